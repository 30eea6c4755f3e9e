"""What the logs of one log dir share: its lock, Kafka's checkpoint files, and its mark of a clean stop.

Each change is made in a turn (fs.lock.turns), in which no other holder, in this process or another, changes the files
that all partitions share: offsets (state.offset_checkpoints), and who is clean (state.clean_partitions).
"""
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog.errors import NotALogError
from seglog.format import names
from seglog.fs.files import FileSystem
from seglog.fs.lock import SHARED, Lock, lock_log_dir, turns
from seglog.fs.refusals import refusals
from seglog.state.checkpoints import TopicPartition
from seglog.state.clean_marks import PartitionState
from seglog.state.clean_partitions import CleanPartitions
from seglog.state.offset_checkpoints import OffsetCheckpoints

# Of a new partition a broker heeds them no more than we do.
_LINES_OF_A_LOG = (
    names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
)


@dataclass(frozen=True, slots=True)
class Known:
    """What a log dir knows of one partition.

    clean               what is on disk can be trusted; else recover before writing
    left_as             how a writer of ours left one that is not clean; None where none did
    recovery_point, log_start_offset, high_watermark, cleaner_offset
                        what the checkpoint files say; None where they do not
    """

    clean: bool
    left_as: PartitionState | None
    recovery_point: int | None
    log_start_offset: int | None
    high_watermark: int | None
    cleaner_offset: int | None


class LogDirState:
    """One log dir, held together with others of ours and without a broker, until close(). Threads may share it.

    gathers     it is one holder of many logs, which closes it behind them: what nothing relies on yet is written once
                for many of them, and Kafka's mark comes back at close()
    """

    def __init__(self, fs: FileSystem, path: str | os.PathLike[str], *, gathers: bool = False) -> None:
        """`path` exists. Raises LogLockedError where a broker or an offline tool holds it, NotALogError where it is a
        partition directory, StorageError."""
        self.path = Path(os.path.abspath(path))
        _refuse_partition(self.path)
        self.gathers = gathers
        self._checkpoints = OffsetCheckpoints(fs, self.path)
        self._partitions = CleanPartitions(fs, self.path)
        self._settles = False           # a partition became clean, and Kafka's mark was not thought of yet
        self._turns = turns(fs, self.path)
        try:
            with self._turns:
                self._share = lock_log_dir(fs, self.path, SHARED)
                try:
                    if self._turns.join():
                        self._partitions.forget_what_a_broker_outdated()
                except BaseException:
                    self._share.release()
                    raise
        except BaseException:
            self._turns.close()
            raise

    def close(self) -> None:
        """Let go of the log dir. May be called twice, and in a child process.

        With `gathers`, what was gathered is written first, and Kafka's mark comes back where all partitions are clean.
        """
        try:
            if self.gathers and self._share.held:
                with self._turns:
                    self._checkpoints.write()
                    if self._settles:
                        self._partitions.settle()
        finally:
            self._checkpoints.close()
            self._turns.close()         # first: who is counted as present holds off brokers
            self._share.release()

    def check(self) -> None:
        """Raises ForkedHandleError in a child process, StorageError once closed."""
        self._share.check_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- offsets -------------------------------------------------------------------------------

    def offset(self, checkpoint: str, where: TopicPartition) -> int | None:
        """What one of Kafka's checkpoint files (names.OFFSET_CHECKPOINTS) says of a partition; None where nothing."""
        with self._turns:
            offset = self._checkpoints.offset(checkpoint, where)
            self._forget_checkpoints()
            return offset

    def put_offset(self, checkpoint: str, where: TopicPartition, offset: int | None) -> None:
        """Let it say `offset`, or nothing, durably. Lines of other partitions stay."""
        self.put_offsets(where, {checkpoint: offset})

    def put_offsets(self, where: TopicPartition, offsets: Mapping[str, int | None]) -> None:
        """The same of several checkpoint files, with all that was gathered. A crash leaves some of them, each whole."""
        self.put_lines({where: offsets})

    def put_lines(self, lines: Mapping[TopicPartition, Mapping[str, int | None]]) -> None:
        """The same of several partitions."""
        with self._turns:
            self._share.check_file()
            self._put(lines)

    def gather_offsets(
        self, where: TopicPartition, offsets: Mapping[str, int | None], *, lock: Lock | None = None,
        gone: bool = False,
    ) -> bool:
        """Let them say it with the next put_offsets of any partition, after a while, or at close(). True if written.

        For what nothing relies on: a recovery point that moves forward, the lines of a partition that is clean, or that
        was removed (`gone`). `lock`: that of the partition. Once it was released, what was gathered under it is written
        only if nobody else has had the partition since.
        """
        with self._turns:
            self._share.check_file()
            self._checkpoints.gather(where, offsets, lock=lock, gone=gone)
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
        """What was parsed costs a descriptor a file: for one log alone that is more than it saves."""
        if not self.gathers:
            self._checkpoints.close()

    # --- a partition that is opened and closed ---------------------------------------------------

    def forget(self, where: TopicPartition) -> None:
        """Before a partition is made: no line is left of one that was deleted, or never came to be."""
        with self._turns:
            if self._checkpoints.has_lines(where):
                self._put({where: dict.fromkeys(_LINES_OF_A_LOG)})
            self._forget_checkpoints()

    def take_up(self, directory: Path, where: TopicPartition, lock: Lock) -> Known:
        """What is known of a partition that was locked."""
        with self._turns:
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

    # --- who is clean ----------------------------------------------------------------------------

    def make_dirty(self, directory: Path, state: PartitionState = PartitionState.DIRTY) -> None:
        """Before the first change of a partition: its mark is set, then Kafka's is taken away, durably.

        Again with UNORDERED: before a second batch is written while another is not synced.
        """
        with self._turns:
            self._share.check_file()
            self._partitions.make_dirty(directory, state)

    def make_clean(self, *directories: Path) -> None:
        """After the last change of partitions: they are whole on the disk, and their recovery points are their ends.

        Where all other partitions are clean too, Kafka's mark comes back; with `gathers`, at close().
        """
        with self._turns:
            self._share.check_file()
            self._partitions.make_clean(directories, settles=not self.gathers)
            self._settles = True

    def partitions(self) -> list[TopicPartition]:
        """(topic, partition) of what stands here, in order; not what is marked as deleted, future or stray."""
        return sorted((p.topic, p.partition) for _, p in self._partitions.partition_dirs() if not p.mark)


def _refuse_partition(path: Path) -> None:
    """A log dir may have the name of a partition, but no segments."""
    if names.parse_partition_dir(path.name) is not None:
        with refusals("list", path):
            logs = names.log_files(path)
        if logs:
            raise NotALogError(
                "expected a log dir, found a partition directory", file=path,
                hint="pass the directory above it",
            )
