"""The steps of a sink's commit, each of which changes one partition of a log dir: carried out, or undone.

A step can be carried out again, and undone, whatever a process that died has done of it: what is still staged, and
where a log ends, tells. docs/formats/spark_sink.md describes the files.
"""
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from seglog._kernels.record_batch import Record
from seglog.errors import InvalidArgumentError, StorageError
from seglog.format import names
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem
from seglog.fs.lock import SHARED, lock_log_dir, lock_partition
from seglog.log.log import Log
from seglog.log.mirror import mirror
from seglog.reading.partition import Partition
from seglog.spark.sink_journal import SinkJournal, SinkStep
from seglog.state.carried_offsets import forget_offsets, put_offsets, tell_log_dir


class SinkSteps:
    """The steps of the journal's commit into `log_dir`. `home`: the sink's directory, which the caller has locked.

    `logs`: those of existing partitions that the caller has opened, and thus locked.
    """

    def __init__(
        self, fs: FileSystem, log_dir: Path, home: Path, journal: SinkJournal, logs: dict[str, Log] | None = None
    ) -> None:
        self._fs = fs
        self._log_dir = log_dir
        self._home = home
        self._journal = journal
        self._logs = logs or {}

    def carry_out(self) -> None:
        """Take each step, except what was done before. The caller holds the locks."""
        steps = self._journal.steps
        fresh = [step for step in steps if step.from_offset is None and step.staged]
        gone = [step.name for step in steps if not step.staged]
        put_offsets(self._fs, self._log_dir, {
            step.name: {**dict.fromkeys(names.OFFSET_CHECKPOINTS), names.RECOVERY_POINT_CHECKPOINT: step.end_offset}
            for step in fresh if self._is_staged(step)
        })
        for step in steps:
            if step.from_offset is None:
                self._rename(step)
            else:
                self._append(step)
        self._fs.sync_directory(self._log_dir)
        forget_offsets(self._fs, self._log_dir, *gone)
        tell_log_dir(self._fs, self._log_dir, *(step.name for step in fresh))

    def complete(self) -> None:
        """Take the steps that a process that died has left. Raises LogLockedError if a broker or writer is in the way.
        """
        with ExitStack() as stack:
            stack.enter_context(lock_log_dir(self._fs, self._log_dir, SHARED))
            for step in self._journal.steps:
                if self._is_in_the_way(step):
                    stack.enter_context(lock_partition(self._fs, self._log_dir / step.name))
            self.carry_out()

    def undo(self, begin: Callable[[], None]) -> None:
        """Take back each step that was taken. `begin` is called before the first change. Raises InvalidArgumentError,
        before that, if a partition has records that another program has written since; LogLockedError, StorageError.
        """
        with ExitStack() as stack:
            stack.enter_context(lock_log_dir(self._fs, self._log_dir, SHARED))
            for step in self._journal.steps:
                target = self._log_dir / step.name
                if step.from_offset is not None:
                    log = stack.enter_context(Log(target, fsync="batch", create=False))
                    self._logs[step.name] = log
                    self._check_ours(step, log, self._done(step, log))
                elif self._is_in_place(step):
                    stack.enter_context(lock_partition(self._fs, target))
                    with Partition(target) as there:
                        end_offset = there.log_end_offset
                    if end_offset != step.end_offset:
                        raise _changed(target, f"it ended at {step.end_offset}, and now ends at {end_offset}")
                elif target.is_dir() and self._aside(step).exists():
                    raise _changed(target, "the partition was moved away, and is there again")
            begin()
            for step in self._journal.steps:
                self._undo(step)
            self._fs.sync_directory(self._log_dir)
            put_offsets(self._fs, self._log_dir, {
                step.name: {**dict.fromkeys(names.OFFSET_CHECKPOINTS), **step.former}
                for step in self._journal.steps if step.from_offset is None
            })

    # --- a partition that is renamed into place ------------------------------------------------

    def _aside(self, step: SinkStep) -> Path:
        return self._home / self._journal.place / f"{step.name}.replaced"

    def _is_staged(self, step: SinkStep) -> bool:
        return step.staged != "" and (self._home / step.staged).is_dir()

    def _is_in_place(self, step: SinkStep) -> bool:
        """Whether what was staged has its name in the log dir."""
        return step.staged != "" and not self._is_staged(step) and (self._log_dir / step.name).is_dir()

    def _is_in_the_way(self, step: SinkStep) -> bool:
        """Whether an existing partition with this name must still be moved aside."""
        is_ahead = not step.staged or self._is_staged(step)
        return step.replaces and is_ahead and (self._log_dir / step.name).is_dir() and not self._aside(step).exists()

    def _rename(self, step: SinkStep) -> None:
        """Rename the staged directory into place, after moving an existing one aside."""
        target = self._log_dir / step.name
        if self._is_in_the_way(step):
            make_directories(self._fs, self._aside(step).parent)
            self._fs.rename(target, self._aside(step))
        if self._is_staged(step):
            self._fs.rename(self._home / step.staged, target)

    def _undo(self, step: SinkStep) -> None:
        target = self._log_dir / step.name
        if step.from_offset is not None:
            log = self._logs[step.name]
            if self._done(step, log):
                log.truncate_to(step.from_offset)
            return
        if self._is_in_place(step):
            make_directories(self._fs, (self._home / step.staged).parent)
            self._fs.rename(target, self._home / step.staged)
        if self._aside(step).exists():
            self._fs.rename(self._aside(step), target)

    # --- a partition that is appended to -------------------------------------------------------

    def _append(self, step: SinkStep) -> None:
        """Append the batches that the log does not have: a commit that died may have appended some of them."""
        with ExitStack() as stack:
            log = self._logs.get(step.name)
            if log is None:
                log = stack.enter_context(Log(self._log_dir / step.name, create=False))
            done = self._done(step, log)
            self._check_ours(step, log, done)
            if done < step.end_offset:
                staged = stack.enter_context(Partition(self._home / step.staged))
                mirror(staged, log, from_offset=done, preserve_offsets=False)
            log.flush()

    def _done(self, step: SinkStep, log: Log) -> int:
        """How many offsets of the step the log has."""
        assert step.from_offset is not None
        done = log.log_end_offset - step.from_offset
        if not 0 <= done <= step.end_offset:
            raise self._not_ours(step, log)
        return done

    def _check_ours(self, step: SinkStep, log: Log, done: int) -> None:
        """Raise InvalidArgumentError unless the records that the log got since are those that were staged."""
        if not done:
            return
        assert step.from_offset is not None
        with Partition(self._home / step.staged) as staged:
            ours = staged.read(0, done)
            # Meanwhile retention may have moved the start of the log, and compaction may have left records out.
            for record in log.read(max(step.from_offset, log.log_start_offset)):
                offset = record.offset - step.from_offset
                same = next((one for one in ours if one.offset >= offset), None)
                if same is None or _fields(same) != (offset, *_fields(record)[1:]):
                    raise self._not_ours(step, log)

    def _not_ours(self, step: SinkStep, log: Log) -> InvalidArgumentError:
        return _changed(log.path, f"the log ended at {step.from_offset}, and now ends at {log.log_end_offset}")


def check_staged(home: Path, steps: tuple[SinkStep, ...]) -> None:
    """Raise StorageError unless what the steps need is there: without it, they would look as if they were done."""
    for step in steps:
        if step.staged and not (home / step.staged).is_dir():
            raise StorageError(
                "what a task has staged is gone", file=home / step.staged,
                hint="find out what removes files there, and run the job again: nothing was changed",
            )


def _fields(record: Record) -> tuple[object, ...]:
    return record.offset, record.key, record.value, record.headers


def _changed(path: Path, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{what}: another program wrote to it while a commit was unfinished", file=path,
        hint="move the partition away, or truncate it to where it ended before, and run again",
    )
