"""How what tasks have staged comes into a log dir: all of it, once, whatever dies in between.

    <path>.seglog-sink/
        lock                    held by the driver that commits
        journal.json            the batch that is being put in place, and the last epoch of each stream
        <place>/<32 hex>/orders-0   what a task has written

The journal is written before the first change of the log dir, and says for each partition where it ended before. So a
commit that died is ended by the next one, before anything else: a partition that is new gets its name by a rename, one
that is there gets those batches that it does not have yet. docs/formats/spark_sink.md describes the files.
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
from seglog.fs.staging import bottom_up
from seglog.log.log import Log
from seglog.log.mirror import mirror
from seglog.log.partition import Partition
from seglog.spark.sink_options import SinkOptions
from seglog.state.carried_offsets import forget_offsets, put_offsets, tell_log_dir

SINK_SUFFIX = ".seglog-sink"
VERSION = 1
_KIND = "seglog-spark-sink"


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """A partition that a task has written, with offsets from 0 on up to `end_offset`."""

    directory: str
    name: str
    end_offset: int


@dataclass(frozen=True, slots=True)
class SinkStep:
    """What becomes of a partition. `from_offset`: where it ended before; None where it gets its name by a rename.

    `staged` is below the place of sinks; empty for a partition that only goes away.
    """

    name: str
    staged: str
    end_offset: int
    from_offset: int | None
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class SinkJournal:
    """`epochs`: {stream: its last epoch that is in the log dir}. `steps` are those of a commit that did not end;
    `stream` and `epoch` say whose, None for a batch's.
    """

    epochs: dict[str, int] = field(default_factory=dict)
    steps: tuple[SinkStep, ...] = ()
    stream: str | None = None
    epoch: int | None = None

    @property
    def place(self) -> str:
        """Where the commit under way was staged, and where what it replaces goes, whoever ends it."""
        return next(step.staged.partition("/")[0] for step in self.steps if step.staged)

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "SinkJournal":
        """Raises CorruptCheckpointError, UnsupportedVersionError."""
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
                raise ValueError("steps, and nothing is staged for them")
            return cls(dict(body["epochs"]), steps, body["stream"], body["epoch"])

        return parse_json(raw, _KIND, VERSION, file, make)

    def to_bytes(self) -> bytes:
        return format_json(
            _KIND, VERSION, epochs=self.epochs, steps=[asdict(step) for step in self.steps], stream=self.stream,
            epoch=self.epoch,
        )


def partitions_in(log_dir: Path) -> dict[str, names.PartitionDir]:
    """The partitions of a log dir by the names of their directories; none that a broker marked (-delete, -future)."""
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
        """Before the work. Raises InvalidArgumentError where the log dir is there and must not be."""
        if names.parse_partition_dir(self._log_dir.name) is not None:
            raise InvalidArgumentError(
                "the path is named like a partition", file=self._log_dir, hint="name the log dir, which holds them"
            )
        if not overwrite and not self._options.may_exist and partitions_in(self._log_dir):
            raise InvalidArgumentError(
                "the log dir has partitions already", file=self._log_dir,
                hint='mode("overwrite") replaces the topics that are written, ifExists=append appends to them',
            )

    def publish(self, staged: list[StagedPartition], *, overwrite: bool = False, epoch: int | None = None) -> None:
        """Let the log dir have them. Raises InvalidArgumentError where two tasks have one partition, LogLockedError
        where a broker or a writer has one that is changed, StorageError.
        """
        with self._held():
            journal = self._ended(self._journal())
            stream = self._options.query
            if epoch is not None and stream is not None and journal.epochs.get(stream, -1) >= epoch:
                self._clear()       # it was tried again, and is there
                return
            _refuse_two(staged)
            make_directories(self._fs, self._log_dir)
            with ExitStack() as stack:
                # Before the journal: what it says is done, if not by us then by the next commit.
                stack.enter_context(lock_log_dir(self._fs, self._log_dir, SHARED))
                steps, logs = self._steps(staged, overwrite, stack)
                journal = replace(journal, steps=steps, stream=stream, epoch=epoch)
                self._write(journal)
                self._carry_out(journal, logs)
            self._done(journal)
            self._clear()

    def discard(self) -> None:
        """Remove what the tasks have staged, unless a commit of it has begun: that one is ended by the next."""
        if self._home.is_dir():
            with self._held():
                if not self._journal().steps:
                    self._clear()

    # --- the steps -----------------------------------------------------------------------------

    def _steps(
        self, staged: list[StagedPartition], overwrite: bool, stack: ExitStack
    ) -> tuple[tuple[SinkStep, ...], dict[str, Log]]:
        """What is to be done, and the logs that are appended to: open, so that nobody else is in them."""
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
        """Each step as far as it was not done before."""
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
        """The staged directory gets the name, and one that had it goes aside; both are where they were, or both not."""
        target = self._log_dir / step.name
        if self._is_in_the_way(step, aside):
            make_directories(self._fs, aside.parent)
            self._fs.rename(target, aside)
        if step.staged and (self._home / step.staged).is_dir():
            self._fs.rename(self._home / step.staged, target)

    def _is_in_the_way(self, step: SinkStep, aside: Path) -> bool:
        """Whether the partition that had the name has yet to go aside."""
        is_ahead = not step.staged or (self._home / step.staged).is_dir()
        return step.replaces and is_ahead and (self._log_dir / step.name).is_dir() and not aside.exists()

    def _append(self, step: SinkStep, log: Log | None) -> None:
        """Those batches that the log has not got: a commit that died may have appended some of them."""
        assert step.from_offset is not None
        with ExitStack() as stack:
            log = log or stack.enter_context(Log(self._log_dir / step.name, create=False))
            done = log.log_end_offset - step.from_offset
            if not 0 <= done <= step.end_offset:
                raise InvalidArgumentError(
                    f"the log ended at {step.from_offset}, and ends at {log.log_end_offset} now: somebody else wrote to"
                    " it while a commit had not ended", file=log.path,
                    hint=f"cut it back, or remove {self._home} and write again",
                )
            if done < step.end_offset:
                staged = stack.enter_context(Partition(self._home / step.staged))
                mirror(staged, log, from_offset=done, preserve_offsets=False)
            log.flush()

    # --- the journal ---------------------------------------------------------------------------

    def _ended(self, journal: SinkJournal) -> SinkJournal:
        """The journal, with the commit done that it tells of."""
        if not journal.steps:
            return journal
        with ExitStack() as stack:
            for step in journal.steps:
                if self._is_in_the_way(step, self._aside(journal, step)):
                    stack.enter_context(lock_partition(self._fs, self._log_dir / step.name))
            self._carry_out(journal, {})
        done = self._done(journal)
        if journal.epoch is None:
            self._remove(self._home / journal.place)
        else:   # the stream may be trying the epoch again, and staging it in this place
            for step in journal.steps:
                if step.staged:
                    self._remove(self._home / step.staged)
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
        make_directories(self._fs, self._home)
        try:
            lock = lock_file(self._fs, self._home / "lock", EXCLUSIVE)
        except LogLockedError as error:
            raise LogLockedError("another job is committing into the log dir", file=self._home) from error
        with lock:
            yield

    def _clear(self) -> None:
        """Remove all that was staged for this commit."""
        self._remove(self._home / self._place)

    def _remove(self, path: Path) -> None:
        if path.is_dir():
            for directory, files in bottom_up(str(path)):
                for file in files:
                    self._fs.unlink(file)
                self._fs.rmdir(directory)


def _refuse_two(staged: list[StagedPartition]) -> None:
    twice = [name for name, count in Counter(one.name for one in staged).items() if count > 1]
    if twice:
        raise InvalidArgumentError(
            f"several tasks have rows of one partition: {', '.join(sorted(twice)[:5])}",
            hint='their order would be left to chance: df.repartition("topic", "partition") before, or coalesce(1)',
        )
