"""What an open log holds outside its segments: its locks, its lines in the log dir, its clean mark.

    hold = PartitionHold(fs, "data/orders-0")
    ...                                 # recover, unless hold.clean
    hold.before_first_write()
    ...                                 # append
    hold.put(recovery_point=end, high_watermark=end)
    hold.close(clean=True)

A crash anywhere in between leaves the partition dirty: the next opening recovers it, a broker recovers all partitions.
"""
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from seglog.errors import NotALogError
from seglog.format import names
from seglog.format.directory_kinds import DirectoryKind, refuse_other_kind
from seglog.fs import lock
from seglog.fs.aside import make_directories, make_directory, write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.partition_locks import lock_beside
from seglog.fs.refusals import missing, refusals
from seglog.state.checkpoints import TopicPartition
from seglog.state.clean_marks import PartitionState
from seglog.state.log_dir_state import LogDirState

NO_FILES: Mapping[Path, bytes] = MappingProxyType({})


class PartitionHold:
    """One partition directory, held for writing until close(). Threads may share it.

    path              absolute
    created           the directory was made here
    clean             as of opening: what is on the disk can be trusted; if not, recover before writing
    unordered         as of opening: a crash may have left a later batch on the disk without an earlier one
    unsynced_from     as of opening: what is read from this offset on may be in the page cache only, because a writer of
                      ours did not close the log; None if the log is clean, or if only a broker wrote it
    dirty             our mark is in the partition: before_first_write() was called
    recovery_point, log_start_offset, high_watermark, cleaner_offset
                      from the log dir's checkpoint files; None if they have no line
    """

    def __init__(
        self, fs: FileSystem, path: str | os.PathLike[str], *, create: bool = True, log_dir: LogDirState | None = None
    ) -> None:
        """`log_dir`: an existing hold of the log dir for several logs, which stays open.

        Raises LogLockedError, InvalidArgumentError (not the name of a partition), NotALogError (a file, or a
        directory of another kind), StorageError (missing and not `create`, among others), UnsupportedVersionError (a
        newer seglog wrote here)."""
        self.path = Path(os.path.abspath(path))
        self._fs = fs
        self.created = not os.path.isdir(self.path)
        if not self.created:
            # Before its name: that of a queue says nothing about what is wrong.
            with refusals("list", self.path):
                refuse_other_kind(
                    self.path, DirectoryKind.PARTITION,
                    "pass a partition directory; a new log needs a directory of its own",
                )
        self.topic, self.partition = self._where = named_partition(self.path)
        if self.created:
            refuse_file_in_the_way(self.path)
            if not create:
                raise missing(self.path)
        # (A directory that has a lock file was there, durably, before the lock file.)
        if log_dir is None and not os.path.lexists(self.path.parent / lock.LOG_DIR_LOCK):
            make_directories(fs, self.path.parent)
        self._is_shared = log_dir is not None
        beside = lock_beside(fs, self.path)
        try:
            self._log_dir = log_dir or LogDirState(fs, self.path.parent)
        except BaseException:
            for one in beside:
                one.release()
            raise
        self._beside = beside
        try:
            if self.created:
                self._log_dir.forget(self._where)
            if not os.path.lexists(self.path / lock.PARTITION_LOCK):
                make_directory(fs, self.path)       # the log dir is not empty: its lock file is there
            self._lock = lock.lock_partition(fs, self.path)
            try:
                known = self._log_dir.take_up(self.path, self._where, self._lock)
            except BaseException:
                self._lock.release()
                raise
        except BaseException:
            self._let_go()
            raise
        self.clean = known.clean
        self.unordered = known.left_as is PartitionState.UNORDERED
        self.recovery_point = known.recovery_point
        self.unsynced_from = None if known.left_as is None else known.recovery_point or 0
        self.log_start_offset = known.log_start_offset
        self.high_watermark = known.high_watermark
        self.cleaner_offset = known.cleaner_offset
        self.dirty = False

    def check(self) -> None:
        """Call before each change. Raises ForkedHandleError in a child of the process, LogClosedError after close()."""
        self._lock.check()

    def before_first_write(self, files: Mapping[Path, bytes] = NO_FILES) -> None:
        """Call before anything in the partition changes: marks it dirty, durably. Later calls cost next to nothing.

        `files` in it get new contents then, durably, too.
        """
        if not self.dirty:
            self._lock.check_file()
            self._log_dir.make_dirty({self.path: files})
            self.dirty = True
        else:
            for path, content in files.items():
                write_atomically(self._fs, path, content)

    def before_unordered_writes(self) -> None:
        """Call before a second batch is written while another is not synced: recorded durably, for recovery."""
        self._lock.check_file()
        self._log_dir.make_dirty({self.path: NO_FILES}, PartitionState.UNORDERED)

    def put(
        self,
        *,
        recovery_point: int | None = None,
        high_watermark: int | None = None,
        log_start_offset: int | None = None,
        first_base_offset: int = 0,
        cleaner_offset: int | None = None,
        closing: bool = False,
    ) -> None:
        """Write these values to the checkpoint files, durably; None leaves a line as it is. An unchanged value costs no
        write.

        `closing`: the partition is about to be clean, and its recovery point is the end. A log dir that is held for
        several logs may then write the lines later, with those of others.

        The log start offset has a line only if it is above the first segment's base offset
        (LogManager.checkpointLogStartOffsetsInDir). Before a truncation, lower the recovery point.
        """
        self._lock.check_file()
        lines: dict[str, int | None] = {}
        if recovery_point is not None:
            lines[names.RECOVERY_POINT_CHECKPOINT] = self.recovery_point = recovery_point
        if high_watermark is not None:
            lines[names.REPLICATION_CHECKPOINT] = self.high_watermark = high_watermark
        if log_start_offset is not None:
            self.log_start_offset = log_start_offset if log_start_offset > first_base_offset else None
            lines[names.LOG_START_OFFSET_CHECKPOINT] = self.log_start_offset
        if cleaner_offset is not None:
            lines[names.CLEANER_CHECKPOINT] = self.cleaner_offset = cleaner_offset
        if closing and self._log_dir.gathers:
            self._log_dir.gather_offsets(self._where, lines, lock=self._lock)
        else:
            self._log_dir.put_offsets(self._where, lines, lock=self._lock)

    def advance(self, recovery_point: int) -> bool:
        """Move the recovery point forward; it is written to the checkpoint file later, with other changes.

        Until then a recovery must read and write more. Returns True if it was written.
        """
        self._lock.check_file()
        self.recovery_point = recovery_point
        line = {names.RECOVERY_POINT_CHECKPOINT: recovery_point}
        return self._log_dir.gather_offsets(self._where, line, lock=self._lock)

    def close(self, *, clean: bool) -> None:
        """Release everything, even after an error. Idempotent; may also be called in a child process.

        `clean`: everything is on the disk, including the recovery point, which is the end of the log. Otherwise the
        partition stays dirty if it is.
        """
        try:
            if clean and self._lock.held and (self.dirty or not self.clean):
                self._log_dir.make_clean(self.path)
                self.dirty, self.clean = False, True
        finally:
            self._lock.release()
            self._let_go()

    def _let_go(self) -> None:
        if not self._is_shared:
            self._log_dir.close()
        for one in self._beside:
            one.release()


def named_partition(directory: Path) -> TopicPartition:
    """(topic, partition) from the name of a partition directory. Raises InvalidArgumentError if it is not one."""
    parsed = names.parse_partition_dir(directory.name)
    if parsed is None or parsed.mark or str(parsed) != directory.name:
        raise names.misnamed_error(directory)
    return names.validate_topic(parsed.topic), parsed.partition


def refuse_file_in_the_way(directory: Path) -> None:
    """Raise NotALogError if `directory`, or one above it, exists and is not a directory: a file, or a broken link."""
    path = directory
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    if not path.is_dir():
        what = "a broken symbolic link" if path.is_symlink() else "a file"
        raise NotALogError(
            f"expected a directory, found {what}", file=path, hint="choose another path, or move it away"
        )
