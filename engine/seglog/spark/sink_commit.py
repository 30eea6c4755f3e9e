"""Moves what tasks have staged into a log dir: completely, and once, even if a process dies in between.

    <path>.seglog-sink/
        lock                    held by the driver that commits
        journal.json            the commit in progress, and the last epoch of each stream
        <place>/<32 hex>/orders-0   a partition that a task has written

The journal is written before the first change of the log dir, and says for each partition where it ended before. So a
commit that died is completed by the next one, before anything else: a new partition is renamed into place, an existing
one gets the batches that it does not have yet. docs/formats/spark_sink.md describes the files.
"""
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from seglog.errors import CorruptCheckpointError, InvalidArgumentError, LogLockedError
from seglog.format import names
from seglog.format.checked_json import format_json, parse_json
from seglog.format.foreign_names import Shape, judged
from seglog.fs.aside import make_directories, write_atomically
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.lock import EXCLUSIVE, SHARED, lock_file, lock_log_dir, lock_partition
from seglog.fs.mapping import read_file
from seglog.fs.removal import remove_tree
from seglog.log.log import Log
from seglog.log.mirror import mirror
from seglog.reading.partition import Partition
from seglog.spark.sink_options import SinkOptions
from seglog.state.carried_offsets import forget_offsets, put_offsets, tell_log_dir

SINK_SUFFIX = ".seglog-sink"
VERSION = 1
_KIND = "seglog-spark-sink"


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """A partition that a task has written, with offsets from 0 up to `end_offset`."""

    directory: str
    name: str
    end_offset: int


@dataclass(frozen=True, slots=True)
class SinkStep:
    """The change of one partition. `from_offset`: where it ended before; None if it is renamed into place.

    `staged` is relative to `<path>.seglog-sink`; empty for a partition that is only removed.
    """

    name: str
    staged: str
    end_offset: int
    from_offset: int | None
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class SinkJournal:
    """`epochs`: {stream: its last epoch in the log dir}. `steps`: those of an unfinished commit; `stream` and `epoch`
    identify it, None for a batch's.
    """

    epochs: dict[str, int] = field(default_factory=dict)
    steps: tuple[SinkStep, ...] = ()
    stream: str | None = None
    epoch: int | None = None

    @property
    def place(self) -> str:
        """Where the unfinished commit was staged, and where partitions that it replaces are moved."""
        return next(step.staged.partition("/")[0] for step in self.steps if step.staged)

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "SinkJournal":
        """Parse a journal. Raises CorruptCheckpointError, UnsupportedVersionError."""
        def make(body: dict[str, Any]) -> "SinkJournal":
            steps = tuple(SinkStep(**step) for step in body["steps"])
            for step in steps:
                judged(step.name, Shape.PARTITION, file, CorruptCheckpointError)
                if step.staged:
                    place, task, name = step.staged.split("/")
                    judged(place, Shape.FILE, file, CorruptCheckpointError)
                    judged(task, Shape.FILE, file, CorruptCheckpointError)
                    judged(name, Shape.PARTITION, file, CorruptCheckpointError)
            if steps and not any(step.staged for step in steps):
                raise ValueError("it has steps, but nothing is staged for them")
            return cls(dict(body["epochs"]), steps, body["stream"], body["epoch"])

        return parse_json(raw, _KIND, VERSION, file, make)

    def to_bytes(self) -> bytes:
        return format_json(
            _KIND, VERSION, epochs=self.epochs, steps=[asdict(step) for step in self.steps], stream=self.stream,
            epoch=self.epoch,
        )


def partitions_in(log_dir: Path) -> dict[str, names.PartitionDir]:
    """The partitions of a log dir by directory name, without those that a broker marked (-delete, -future)."""
    found = {}
    for path in log_dir.iterdir() if log_dir.is_dir() else ():
        parsed = names.parse_partition_dir(path.name)
        if parsed is not None and not parsed.mark and path.is_dir():
            found[path.name] = parsed
    return found


class SinkCommit:
    """The commit of a batch, or of an epoch of a stream, into a log dir. `place`: where its tasks stage it."""

    def __init__(self, options: SinkOptions, place: str, fs: FileSystem | None = None) -> None:
        self._options = options
        self._log_dir = Path(options.path)
        self._home = Path(f"{options.path}{SINK_SUFFIX}")
        self._place = place
        self._fs = fs or OsFileSystem()

    def check(self, *, overwrite: bool) -> None:
        """Called before the work. Raises InvalidArgumentError if the log dir exists and must not."""
        if names.parse_partition_dir(self._log_dir.name) is not None:
            raise InvalidArgumentError(
                "the path is named like a partition", file=self._log_dir, hint="name the log dir instead"
            )
        refuse_link(self._home)
        if not overwrite and not self._options.may_exist and partitions_in(self._log_dir):
            raise InvalidArgumentError(
                "the log dir already has partitions", file=self._log_dir,
                hint='mode("overwrite") replaces the topics that are written, ifExists=append appends to them',
            )

    def publish(self, staged: list[StagedPartition], *, overwrite: bool = False, epoch: int | None = None) -> None:
        """Publish the staged partitions in the log dir. Raises InvalidArgumentError if two tasks have rows of the same
        partition, LogLockedError if a broker or a writer uses a partition that must change, StorageError.
        """
        with self._held():
            journal = self._ended(self._journal())
            stream = self._options.query
            if epoch is not None and stream is not None and journal.epochs.get(stream, -1) >= epoch:
                self._clear()       # a retry of an epoch that is already in the log dir
                return
            _refuse_two(staged)
            make_directories(self._fs, self._log_dir)
            with ExitStack() as stack:
                # Lock before writing the journal: once written, its steps will be done, by us or by the next commit.
                stack.enter_context(lock_log_dir(self._fs, self._log_dir, SHARED))
                steps, logs = self._steps(staged, overwrite, stack)
                journal = replace(journal, steps=steps, stream=stream, epoch=epoch)
                self._write(journal)
                self._carry_out(journal, logs)
            self._done(journal)
            self._clear()

    def discard(self) -> None:
        """Remove what the tasks have staged, unless a commit of it has begun, which the next commit completes."""
        if self._home.is_dir():
            with self._held():
                if not self._journal().steps:
                    self._clear()

    # --- the steps -----------------------------------------------------------------------------

    def _steps(
        self, staged: list[StagedPartition], overwrite: bool, stack: ExitStack
    ) -> tuple[tuple[SinkStep, ...], dict[str, Log]]:
        """The steps to take, and the logs to append to, open and thus locked."""
        there = partitions_in(self._log_dir).keys()
        if there and not overwrite and not self._options.may_exist:
            self.check(overwrite=False)
        steps, logs = [], {}
        for one in sorted(staged, key=lambda one: one.name):
            place = str(Path(one.directory, one.name).relative_to(self._home))
            exists = one.name in there
            log = None
            if exists and not overwrite:
                log = logs[one.name] = stack.enter_context(Log(self._log_dir / one.name, fsync="batch", create=False))
            elif exists:
                stack.enter_context(lock_partition(self._fs, self._log_dir / one.name))
            steps.append(SinkStep(
                one.name, place, one.end_offset, None if log is None else log.log_end_offset,
                replaces=exists and overwrite,
            ))
        if overwrite:
            topics = {name.rpartition("-")[0] for name in (one.name for one in staged)}
            gone = sorted(name for name in there - {one.name for one in staged} if name.rpartition("-")[0] in topics)
            for name in gone:
                stack.enter_context(lock_partition(self._fs, self._log_dir / name))
            steps += [SinkStep(name, "", 0, None, replaces=True) for name in gone]
        return tuple(steps), logs

    def _carry_out(self, journal: SinkJournal, logs: dict[str, Log]) -> None:
        """Take each step, except what was done before."""
        steps = journal.steps
        fresh = [step for step in steps if step.from_offset is None and step.staged]
        gone = [step.name for step in steps if not step.staged]
        put_offsets(self._fs, self._log_dir, {
            step.name: {**dict.fromkeys(names.OFFSET_CHECKPOINTS), names.RECOVERY_POINT_CHECKPOINT: step.end_offset}
            for step in fresh if (self._home / step.staged).is_dir()
        })
        for step in steps:
            if step.from_offset is None:
                self._rename(step, self._aside(journal, step))
            else:
                self._append(step, logs.get(step.name))
        self._fs.sync_directory(self._log_dir)
        forget_offsets(self._fs, self._log_dir, *gone)
        tell_log_dir(self._fs, self._log_dir, *(step.name for step in fresh))

    def _aside(self, journal: SinkJournal, step: SinkStep) -> Path:
        return self._home / journal.place / f"{step.name}.replaced"

    def _rename(self, step: SinkStep, aside: Path) -> None:
        """Rename the staged directory into place, after moving an existing one aside."""
        target = self._log_dir / step.name
        if self._is_in_the_way(step, aside):
            make_directories(self._fs, aside.parent)
            self._fs.rename(target, aside)
        if step.staged and (self._home / step.staged).is_dir():
            self._fs.rename(self._home / step.staged, target)

    def _is_in_the_way(self, step: SinkStep, aside: Path) -> bool:
        """Whether an existing partition with this name must still be moved aside."""
        is_ahead = not step.staged or (self._home / step.staged).is_dir()
        return step.replaces and is_ahead and (self._log_dir / step.name).is_dir() and not aside.exists()

    def _append(self, step: SinkStep, log: Log | None) -> None:
        """Append the batches that the log does not have: a commit that died may have appended some of them."""
        assert step.from_offset is not None
        with ExitStack() as stack:
            log = log or stack.enter_context(Log(self._log_dir / step.name, create=False))
            done = log.log_end_offset - step.from_offset
            if not 0 <= done <= step.end_offset:
                raise InvalidArgumentError(
                    f"the log ended at {step.from_offset}, and now ends at {log.log_end_offset}: another program wrote"
                    " to it while a commit was unfinished", file=log.path,
                    hint=f"truncate it, or remove {self._home} and write again",
                )
            if done < step.end_offset:
                staged = stack.enter_context(Partition(self._home / step.staged))
                mirror(staged, log, from_offset=done, preserve_offsets=False)
            log.flush()

    # --- the journal ---------------------------------------------------------------------------

    def _ended(self, journal: SinkJournal) -> SinkJournal:
        """Complete the commit that the journal describes, if any, and return the journal after it."""
        if not journal.steps:
            return journal
        with ExitStack() as stack:
            for step in journal.steps:
                if self._is_in_the_way(step, self._aside(journal, step)):
                    stack.enter_context(lock_partition(self._fs, self._log_dir / step.name))
            self._carry_out(journal, {})
        done = self._done(journal)
        if journal.epoch is None:
            self._remove(journal.place)
        else:   # the stream may be retrying the epoch, and staging it in this place
            for step in journal.steps:
                if step.staged:
                    self._remove(step.staged)
        return done

    def _done(self, journal: SinkJournal) -> SinkJournal:
        epochs = dict(journal.epochs)
        if journal.stream is not None and journal.epoch is not None:
            epochs[journal.stream] = journal.epoch
        done = SinkJournal(epochs)
        self._write(done)
        return done

    def _journal(self) -> SinkJournal:
        path = self._home / "journal.json"
        return SinkJournal.parse(read_file(path), str(path)) if path.exists() else SinkJournal()

    def _write(self, journal: SinkJournal) -> None:
        write_atomically(self._fs, self._home / "journal.json", journal.to_bytes())

    @contextmanager
    def _held(self) -> Iterator[None]:
        refuse_link(self._home)
        make_directories(self._fs, self._home)
        try:
            lock = lock_file(self._fs, self._home / "lock", EXCLUSIVE)
        except LogLockedError as error:
            raise LogLockedError("another job is committing into the log dir", file=self._home) from error
        with lock:
            yield

    def _clear(self) -> None:
        """Remove everything that was staged for this commit."""
        self._remove(self._place)

    def _remove(self, below: str) -> None:
        """Remove what is at this path below the home."""
        remove_tree(self._fs, self._home.parent, self._home.name, *below.split("/"))


def refuse_link(home: Path) -> None:
    """Raise InvalidArgumentError if a sink's directory is a symbolic link: it leads to files of others."""
    if home.is_symlink():
        raise InvalidArgumentError(
            "the sink's directory is a symbolic link; nothing was changed", file=home,
            hint="remove the link: it must be a directory beside the log dir",
        )


def _refuse_two(staged: list[StagedPartition]) -> None:
    twice = [name for name, count in Counter(one.name for one in staged).items() if count > 1]
    if twice:
        raise InvalidArgumentError(
            f"several tasks have rows of the same partition: {', '.join(sorted(twice)[:5])}",
            hint='their order would be random: use df.repartition("topic", "partition") before, or coalesce(1)',
        )
