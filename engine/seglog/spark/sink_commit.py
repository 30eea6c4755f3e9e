"""Moves what tasks have staged into a log dir: completely, and once, even if a process dies in between.

    <path>.seglog-sink/
        lock                    held by the driver that commits
        journal.json            the commit in progress, and what was committed (sink_journal)
        <place>/<32 hex>/orders-0   a partition that a task has written

The journal is written before the first change of the log dir, and says for each partition where it ended before. So a
commit that died can be completed, or undone (sink_steps): a new partition is renamed into place, an existing one gets
the batches that it does not have yet. The next epoch of a stream does so before anything else, and so does a batch that
is known to be another one, or the same one, by its id. A batch without an id may be the one that died, started again:
it is refused, since completing the one and adding the other would give every record twice.
"""
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.format import names
from seglog.fs.aside import make_directories, write_atomically
from seglog.fs.files import AnyPath, FileSystem, OsFileSystem, checked_fs
from seglog.fs.lock import EXCLUSIVE, SHARED, lock_file, lock_log_dir, lock_partition
from seglog.fs.mapping import read_file
from seglog.fs.removal import remove_tree
from seglog.log.log import Log
from seglog.spark.sink_journal import JOURNAL_NAME, SinkJournal, SinkStep, StagedPartition
from seglog.spark.sink_options import SinkOptions
from seglog.spark.sink_steps import SinkSteps, check_staged
from seglog.spark.source_options import local_path
from seglog.state.carried_offsets import LogDirOffsets

SINK_SUFFIX = ".seglog-sink"


@dataclass(frozen=True, slots=True)
class UnfinishedCommit:
    """A commit that began and did not end. `partitions`: the names of those that it writes. `batch`: the id of the
    batch, if it has one; `stream` and `epoch` of a stream. `overwrites`: it replaces what was there. `drops`: it is
    being undone.
    """

    partitions: list[str]
    batch: str | None
    stream: str | None
    epoch: int | None
    overwrites: bool
    drops: bool


def unfinished_commit(path: AnyPath) -> UnfinishedCommit | None:
    """The commit into the log dir `path` that began and did not end; None if there is none.

    Raises InvalidArgumentError, StorageError, CorruptCheckpointError.
    """
    journal = _SinkHome(_log_dir(path), OsFileSystem()).journal()
    if not journal.steps:
        return None
    return UnfinishedCommit(
        [step.name for step in journal.steps], journal.batch, journal.stream, journal.epoch,
        any(step.replaces for step in journal.steps), journal.drops,
    )


def complete_commit(path: AnyPath, *, fs: FileSystem | None = None) -> list[str]:
    """Complete the commit of Spark's sink into the log dir `path` whose driver died. Returns its partitions; none if no
    commit is unfinished.

    Raises InvalidArgumentError if it is being dropped, or another program has written to its partitions since;
    LogLockedError if a broker or a writer uses them, StorageError, CorruptCheckpointError.
    """
    home = _SinkHome(_log_dir(path), checked_fs(fs))
    if not home.journal().steps:
        return []
    with home.held():
        journal = home.journal()
        if journal.drops:
            raise InvalidArgumentError(
                "the commit is being dropped", file=home.journal_path, hint="complete that with --drop"
            )
        home.ended(journal)
        return [step.name for step in journal.steps]


def drop_commit(path: AnyPath, *, fs: FileSystem | None = None) -> list[str]:
    """Undo the commit of Spark's sink into the log dir `path` whose driver died: partitions are as they were before,
    and what was staged is removed. Returns its partitions; none if no commit is unfinished.

    Raises InvalidArgumentError, before any change, if another program has written to its partitions since;
    LogLockedError if a broker or a writer uses them, StorageError, CorruptCheckpointError.
    """
    home = _SinkHome(_log_dir(path), checked_fs(fs))
    if not home.journal().steps:
        return []
    with home.held():
        journal = home.journal()
        home.undone(journal)
        return [step.name for step in journal.steps]


def partitions_in(log_dir: Path) -> dict[str, names.PartitionDir]:
    """The partitions of a log dir by directory name, without those that a broker marked (-delete, -future)."""
    found = {}
    for path in log_dir.iterdir() if log_dir.is_dir() else ():
        parsed = names.parse_partition_dir(path.name)
        if parsed is not None and not parsed.mark and path.is_dir():
            found[path.name] = parsed
    return found


class _SinkHome:
    """The sink's directory beside a log dir: its lock, its journal, and the end of a commit that died."""

    def __init__(self, log_dir: Path, fs: FileSystem) -> None:
        self.path = Path(f"{log_dir}{SINK_SUFFIX}")
        self.journal_path = self.path / JOURNAL_NAME
        self._log_dir = log_dir
        self._fs = fs

    @contextmanager
    def held(self) -> Iterator[None]:
        self.refuse_link()
        make_directories(self._fs, self.path)
        try:
            lock = lock_file(self._fs, self.path / "lock", EXCLUSIVE)
        except LogLockedError as error:
            raise LogLockedError("another job is committing into the log dir", file=self.path) from error
        with lock:
            yield

    def refuse_link(self) -> None:
        """Raise InvalidArgumentError if the directory is a symbolic link: it leads to files of others."""
        if self.path.is_symlink():
            raise InvalidArgumentError(
                "the sink's directory is a symbolic link; nothing was changed", file=self.path,
                hint="remove the link: it must be a directory beside the log dir",
            )

    def journal(self) -> SinkJournal:
        self.refuse_link()
        if not self.journal_path.exists():
            return SinkJournal()
        return SinkJournal.parse(read_file(self.journal_path), str(self.journal_path))

    def write(self, journal: SinkJournal) -> None:
        write_atomically(self._fs, self.journal_path, journal.to_bytes())

    def ended(self, journal: SinkJournal) -> SinkJournal:
        """Complete the commit that the journal describes, if any, or its undoing. Returns the journal after it."""
        if not journal.steps:
            return journal
        if journal.drops:
            return self.undone(journal)
        SinkSteps(self._fs, self._log_dir, self.path, journal).complete()
        return self._closed(journal, journal.completed())

    def undone(self, journal: SinkJournal) -> SinkJournal:
        """Undo the commit that the journal describes, if any. Returns the journal after it."""
        if not journal.steps:
            return journal
        begun = replace(journal, drops=True)
        SinkSteps(self._fs, self._log_dir, self.path, journal).undo(lambda: self.write(begun))
        return self._closed(journal, journal.dropped())

    def _closed(self, journal: SinkJournal, after: SinkJournal) -> SinkJournal:
        self.write(after)
        if journal.is_batch:
            self.remove(journal.place)
        else:   # the stream may be retrying the epoch, and staging it in this place
            for step in journal.steps:
                if step.staged:
                    self.remove(step.staged)
        return after

    def remove(self, below: str) -> None:
        """Remove what is at this path below the home."""
        remove_tree(self._fs, self.path.parent, self.path.name, *below.split("/"))


class SinkCommit:
    """The commit of a batch, or of an epoch of a stream, into a log dir. `place`: where its tasks stage it."""

    def __init__(self, options: SinkOptions, place: str, fs: FileSystem | None = None) -> None:
        self._options = options
        self._log_dir = Path(options.path)
        self._place = place
        self._fs = checked_fs(fs)
        self._home = _SinkHome(self._log_dir, self._fs)

    def check(self, *, overwrite: bool) -> None:
        """Called before the work of a batch. Raises InvalidArgumentError if the log dir exists and must not, or if an
        unfinished commit may be of this batch.
        """
        _log_dir(self._log_dir)
        journal = self._home.journal()
        if not journal.drops:
            self._check(journal, overwrite)

    def publish(self, staged: list[StagedPartition], *, overwrite: bool = False, epoch: int | None = None) -> None:
        """Publish the staged partitions in the log dir. Raises InvalidArgumentError if two tasks have rows of the same
        partition, or an unfinished commit may be of this batch; LogLockedError if a broker or a writer uses a partition
        that must change, StorageError.
        """
        with self._home.held():
            journal = self._home.journal()
            if journal.drops:
                journal = self._home.undone(journal)
            if epoch is None:
                # Before another commit is completed: a refusal changes nothing.
                self._check(journal, overwrite)
            if not self._has(journal, epoch):
                journal = self._home.ended(journal)
            if self._has(journal, epoch):       # a retry of what is already in the log dir
                self._clear()
                return
            if self._options.query is not None and self._options.query not in journal.epochs:
                self._check_new(journal)
            _refuse_two(staged)
            make_directories(self._fs, self._log_dir)
            with ExitStack() as stack:
                # Lock before writing the journal: once written, its steps will be done, by us or by the next commit.
                stack.enter_context(lock_log_dir(self._fs, self._log_dir, SHARED))
                steps, logs = self._steps(staged, overwrite, stack)
                check_staged(self._home.path, steps)
                journal = replace(
                    journal, steps=steps, stream=self._options.query, epoch=epoch, batch=self._options.batch
                )
                if steps:
                    self._home.write(journal)
                    SinkSteps(self._fs, self._log_dir, self._home.path, journal, logs).carry_out()
            self._home.write(journal.completed())
            self._clear()

    def discard(self) -> None:
        """Remove what the tasks have staged, unless a commit of it has begun, which the next commit completes."""
        if self._home.path.is_dir():
            with self._home.held():
                if not self._home.journal().steps:
                    self._clear()

    # --- what is there ---------------------------------------------------------------------------

    def _has(self, journal: SinkJournal, epoch: int | None) -> bool:
        """Whether this batch, or this epoch, is in the log dir."""
        if epoch is None:
            return self._options.batch is not None and self._options.batch in journal.batches
        return self._options.query is not None and journal.epochs.get(self._options.query, -1) >= epoch

    def _check(self, journal: SinkJournal, overwrite: bool) -> None:
        """Raise InvalidArgumentError if this batch must not be written now."""
        batch = self._options.batch
        # What is overwritten cannot be there twice.
        if overwrite or self._has(journal, None):
            return
        if journal.is_batch:
            if batch is None or journal.batch is None:
                raise self._unfinished(journal)
            if batch == journal.batch:
                return
        self._check_new(journal)

    def _check_new(self, journal: SinkJournal) -> None:
        """Raise InvalidArgumentError if there are partitions, or will be, and there must be none."""
        if not self._options.may_exist and (partitions_in(self._log_dir) or journal.steps):
            raise InvalidArgumentError(
                "the log dir already has partitions", file=self._log_dir,
                hint='mode("overwrite") replaces the topics that are written, ifExists=append appends to them',
            )

    def _unfinished(self, journal: SinkJournal) -> InvalidArgumentError:
        of_batch = "" if journal.batch is None else f" of batch {journal.batch!r}"
        # Spark shows the message of an error that a sink raises, and leaves out its hint.
        return InvalidArgumentError(
            f"the commit{of_batch} of {len(journal.steps)} partitions into this log dir is unfinished: its driver died,"
            " and if that was this job, another run would give its records twice. Run"
            f" `seglog spark sink {self._log_dir} --complete` to keep that batch, and do not run its job again; or"
            " --drop to undo it, and run again", file=self._log_dir,
            hint="with the option batchId, a job can always be run again",
        )

    # --- the steps -----------------------------------------------------------------------------

    def _steps(
        self, staged: list[StagedPartition], overwrite: bool, stack: ExitStack
    ) -> tuple[tuple[SinkStep, ...], dict[str, Log]]:
        """The steps to take, and the logs to append to, open and thus locked."""
        there = partitions_in(self._log_dir).keys()
        steps, logs = [], {}
        offsets = LogDirOffsets(str(self._log_dir), self._read)
        for one in sorted(staged, key=lambda one: one.name):
            place = str(Path(one.directory, one.name).relative_to(self._home.path))
            exists = one.name in there
            log = None
            if exists and not overwrite:
                log = logs[one.name] = stack.enter_context(Log(self._log_dir / one.name, fsync="batch", create=False))
            elif exists:
                stack.enter_context(lock_partition(self._fs, self._log_dir / one.name))
            steps.append(SinkStep(
                one.name, place, one.end_offset, None if log is None else log.log_end_offset,
                replaces=exists and overwrite, former=offsets.of(one.name) if exists and overwrite else {},
            ))
        if overwrite:
            topics = {name.rpartition("-")[0] for name in (one.name for one in staged)}
            gone = sorted(name for name in there - {one.name for one in staged} if name.rpartition("-")[0] in topics)
            for name in gone:
                stack.enter_context(lock_partition(self._fs, self._log_dir / name))
            steps += [SinkStep(name, "", 0, None, replaces=True, former=offsets.of(name)) for name in gone]
        return tuple(steps), logs

    def _read(self, checkpoint: str) -> bytes | None:
        path = self._log_dir / checkpoint
        return read_file(path) if path.exists() else None

    def _clear(self) -> None:
        """Remove everything that was staged for this commit."""
        self._home.remove(self._place)


def _log_dir(path: AnyPath) -> Path:
    """The log dir at a path. Raises InvalidArgumentError if that is named like a partition."""
    log_dir = Path(os.path.abspath(local_path(str(path))))
    if names.parse_partition_dir(log_dir.name) is not None:
        raise InvalidArgumentError(
            "the path is named like a partition", file=log_dir, hint="name the log dir instead"
        )
    return log_dir


def _refuse_two(staged: list[StagedPartition]) -> None:
    twice = [name for name, count in Counter(one.name for one in staged).items() if count > 1]
    if twice:
        raise InvalidArgumentError(
            f"several tasks have rows of the same partition: {', '.join(sorted(twice)[:5])}",
            hint='their order would be random: use df.repartition("topic", "partition") before, or coalesce(1)',
        )
