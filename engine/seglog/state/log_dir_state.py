"""What the logs of one log dir share: its lock, Kafka's checkpoint files, and its clean-shutdown file.

Each change is made in a turn (fs.lock.turns), during which no other holder, in this process or another, changes the
files that all partitions share: offsets (state.offset_checkpoints) and clean marks (state.clean_partitions).
"""
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog._kernels.shield import shielded
from seglog.errors import NotALogError
from seglog.format import names
from seglog.format.directory_kinds import DirectoryKind, refuse_other_kind
from seglog.fs.files import FileSystem
from seglog.fs.lock import SHARED, TURNS_LOCK, Lock, lock_log_dir, turns
from seglog.fs.refusals import refusals
from seglog.named_tuple import NamedTuple
from seglog.state.checkpoints import TopicPartition
from seglog.state.clean_marks import CLEAN_MARK, PartitionState
from seglog.state.clean_partitions import CleanPartitions
from seglog.state.offset_checkpoints import OffsetCheckpoints

# For a new partition a broker ignores such lines; so do we: `forget` removes them.
_LINES_OF_A_LOG = (
    names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
)


class Known(NamedTuple):
    """What a log dir knows of one partition.

    clean               what is on the disk can be trusted; if not, recover before writing
    left_as             how a writer of ours left a partition that is not clean; None if none did
    recovery_point, log_start_offset, high_watermark, cleaner_offset
                        from the checkpoint files; None if they have no line
    """

    clean: bool
    left_as: PartitionState | None
    recovery_point: int | None
    log_start_offset: int | None
    high_watermark: int | None
    cleaner_offset: int | None


class LogDirState:
    """One log dir, held together with other writers of ours, but no broker, until close(). Threads may share it.

    gathers     it holds the log dir for many logs, and is closed after them: lines that nothing relies on yet are
                written once for many of them, and Kafka's clean-shutdown file is put back at close()
    """

    def __init__(self, fs: FileSystem, path: str | os.PathLike[str], *, gathers: bool = False) -> None:
        """`path` must exist. Raises LogLockedError if a broker or an offline tool holds it, NotALogError if it is a
        partition directory, a managed ledger, or a ledger; StorageError."""
        self.path = Path(os.path.abspath(path))
        _refuse_other_kind(self.path)
        self.gathers = gathers
        self._checkpoints = OffsetCheckpoints(fs, self.path)
        self._partitions = CleanPartitions(fs, self.path)
        self._settles = False           # a partition became clean: close() checks if Kafka's file can be put back
        # With `gathers`: directories of deleted partitions that no process is removing, because none was here.
        self.abandoned: tuple[Path, ...] = ()
        shielded(self._open, fs)

    def _open(self, fs: FileSystem) -> None:
        if not os.path.lexists(self.path / TURNS_LOCK):
            lock_log_dir(fs, self.path, SHARED).release()       # if a broker refuses us, we leave no file behind
        self._turns = turns(fs, self.path)
        try:
            self._turns.run(self._begin, fs)
        except BaseException:
            self._turns.close()
            raise

    def _begin(self, fs: FileSystem) -> None:
        self._share = lock_log_dir(fs, self.path, SHARED)
        try:
            if self._turns.join():
                self._partitions.forget_what_a_broker_outdated()
                if self.gathers:
                    found = self._partitions.partition_dirs()
                    self.abandoned = tuple(sorted(path for path, name in found if name.mark == names.DELETE))
        except BaseException:
            self._share.release()
            raise

    def close(self) -> None:
        """Release the log dir. Idempotent; may also be called in a child process.

        With `gathers`, gathered lines are written first, and Kafka's clean-shutdown file is put back if all partitions
        are clean.
        """
        shielded(self._close)

    def _close(self) -> None:
        try:
            if self.gathers and self._share.held:
                self._turns.run(self._settle)
        finally:
            self._checkpoints.close()
            self._turns.close()         # before the share is released: a handle that is present must exclude brokers
            self._share.release()

    def _settle(self) -> None:
        self._checkpoints.write()
        if self._settles:
            self._partitions.settle()

    def check(self) -> None:
        """Raises ForkedHandleError in a child process, StorageError after close()."""
        self._share.check_file()

    def claim(self, what: str) -> None:
        """Until close(), exclude others that claim the log dir, for long work that must not be done twice at once.
        Writers go on. Raises LogLockedError, "another `what`"."""
        self._turns.claim(what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- offsets -------------------------------------------------------------------------------

    def offset(self, checkpoint: str, where: TopicPartition) -> int | None:
        """The offset of a partition in one of Kafka's checkpoint files (names.OFFSET_CHECKPOINTS); None if it has none.
        """
        return self._turns.run(self._offset, checkpoint, where)

    def _offset(self, checkpoint: str, where: TopicPartition) -> int | None:
        offset = self._checkpoints.offset(checkpoint, where)
        self._forget_checkpoints()
        return offset

    def put_offset(self, checkpoint: str, where: TopicPartition, offset: int | None) -> None:
        """Set the line of a partition to `offset`, or remove it, durably. Lines of other partitions stay."""
        self.put_offsets(where, {checkpoint: offset})

    def put_offsets(
        self, where: TopicPartition, offsets: Mapping[str, int | None], *, lock: Lock | None = None
    ) -> None:
        """The same for several checkpoint files, with everything gathered. A crash may leave only some written, each
        whole. `lock`: the partition's lock. If it was released meanwhile, nothing is written: the partition may have
        been deleted, and made again. Raises as Lock.check then."""
        self._turns.run(self._put_lines, {where: offsets}, lock)

    def put_lines(self, lines: Mapping[TopicPartition, Mapping[str, int | None]]) -> None:
        """The same for several partitions."""
        self._turns.run(self._put_lines, lines)

    def _put_lines(
        self, lines: Mapping[TopicPartition, Mapping[str, int | None]], lock: Lock | None = None
    ) -> None:
        self._share.check_file()
        if lock is not None:
            lock.check()
        self._put(lines)

    def gather_offsets(
        self, where: TopicPartition, offsets: Mapping[str, int | None], *, lock: Lock | None = None,
        gone: bool = False,
    ) -> bool:
        """Write these lines with the next put_offsets of any partition, after a while, or at close(). True if written.

        For lines that nothing relies on: a recovery point that moves forward, the lines of a partition that is clean,
        or that was removed (`gone`). `lock`: the partition's lock. If it has been released, the lines are written only
        if no other process has held the partition since.
        """
        return self._turns.run(self._gather_offsets, where, offsets, lock, gone)

    def _gather_offsets(
        self, where: TopicPartition, offsets: Mapping[str, int | None], lock: Lock | None, gone: bool
    ) -> bool:
        self._share.check_file()
        self._checkpoints.gather(where, offsets, lock=lock, gone=gone)
        if gone:
            self._settles = True        # all that are left may be clean
        if not self._checkpoints.is_due():
            return False
        self._checkpoints.write()
        self._forget_checkpoints()
        return True

    def _put(self, lines: Mapping[TopicPartition, Mapping[str, int | None]]) -> None:
        for where, offsets in lines.items():
            self._checkpoints.gather(where, offsets)
        self._checkpoints.write()
        self._forget_checkpoints()

    def _forget_checkpoints(self) -> None:
        """Keeping a parsed file costs a descriptor: for one log alone that is not worth it."""
        if not self.gathers:
            self._checkpoints.close()

    # --- a partition that is opened and closed ---------------------------------------------------

    def begin(self, directories: Mapping[TopicPartition, Path]) -> Mapping[str, bytes]:
        """Call before partitions are created that are not opened at once. Returns the files that each needs in order to
        be clean, so that Kafka's clean-shutdown file can be put back although nobody opens them."""
        return self._turns.run(self._begin_partitions, directories)

    def _begin_partitions(self, directories: Mapping[TopicPartition, Path]) -> Mapping[str, bytes]:
        self._share.check_file()
        self._forget(list(directories))
        mark = None
        for directory in directories.values():
            mark = self._partitions.clean_mark_of_new(directory)
            self._settles = True
            break
        return {} if mark is None else {CLEAN_MARK: mark}

    def forget(self, where: TopicPartition) -> None:
        """Call before a partition is created: removes lines of a deleted one, or of one that was never completed."""
        self._turns.run(self._forget, [where])

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        known = [where for where in partitions if self._checkpoints.has_lines(where)]
        if known:
            self._put({where: dict.fromkeys(_LINES_OF_A_LOG) for where in known})
        self._forget_checkpoints()

    def take_up(self, directory: Path, where: TopicPartition, lock: Lock) -> Known:
        """What is known of a partition that was just locked."""
        return self._turns.run(self._take_up, directory, where, lock)

    def _take_up(self, directory: Path, where: TopicPartition, lock: Lock) -> Known:
        self._checkpoints.take_up(where, lock)
        clean = self._partitions.is_clean(directory)
        known = Known(
            clean,
            None if clean else self._partitions.left_as(directory),
            *(self._checkpoints.offset(name, where) for name in (
                names.RECOVERY_POINT_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT, names.REPLICATION_CHECKPOINT,
                names.CLEANER_CHECKPOINT,
            )),
        )
        self._forget_checkpoints()
        return known

    # --- clean marks -----------------------------------------------------------------------------

    def make_dirty(
        self, changes: Mapping[Path, Mapping[Path, bytes]], state: PartitionState = PartitionState.DIRTY
    ) -> None:
        """Call before the first change of partitions: sets their marks, then removes Kafka's, durably. `changes`: their
        directories, each with files in it that get these contents in the same step.

        Call it again with UNORDERED before a second batch is written while another is not synced.
        """
        self._turns.run(self._make_dirty, changes, state)

    def _make_dirty(self, changes: Mapping[Path, Mapping[Path, bytes]], state: PartitionState) -> None:
        self._share.check_file()
        self._partitions.make_dirty(changes, state)

    def make_clean(self, *directories: Path) -> None:
        """Call after the last change of partitions, when they are whole on the disk and their recovery points are their
        ends.

        If all other partitions are clean too, Kafka's clean-shutdown file is put back; with `gathers`, at close().
        """
        self._turns.run(self._make_clean, directories)

    def _make_clean(self, directories: tuple[Path, ...]) -> None:
        self._share.check_file()
        self._partitions.make_clean(directories, settles=not self.gathers)
        self._settles = True

    def partitions(self) -> list[TopicPartition]:
        """(topic, partition) of each partition here, in order, except those marked as deleted, future or stray."""
        return sorted((p.topic, p.partition) for _, p in self._partitions.partition_dirs() if not p.mark)


def _refuse_other_kind(path: Path) -> None:
    """A log dir may have the name of a partition, but no segments."""
    with refusals("list", path):
        refuse_other_kind(path, DirectoryKind.LOG_DIR, "pass a log dir; a new one needs a directory of its own")
    if names.parse_partition_dir(path.name) is not None:
        with refusals("list", path):
            is_partition = names.has_segments(path)
        if is_partition:
            raise NotALogError(
                "expected a log dir, found a partition directory", file=path,
                hint="pass the directory above it",
            )
