"""The checkpoint files of a log dir, as one holder keeps them: parsed once, with changes gathered.

Each file is for all partitions, so that the cost of reading or writing one grows with their number. A holder therefore
keeps what it parsed, and reads a file again only if another process wrote it. Changes that nothing relies on yet are
gathered here, and written together with one that must be written, once for many logs.

All methods are called within a turn (fs.lock.turns), during which no other process or thread changes the files.
"""
import os
import time
from collections.abc import Mapping
from pathlib import Path

from seglog.errors import LogLockedError, StorageError
from seglog.format import names
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.lock import Lock, lock_partition
from seglog.fs.mapping import OpenedFile
from seglog.logger import Logger
from seglog.state.checkpoints import (
    TopicPartition,
    join_offset_checkpoint,
    offset_checkpoint_line,
    parse_offsets_or_none,
)

_LOG = Logger(__name__)

# Gathered changes are written with the first change that comes this long after the last write, or makes them this many.
GATHER_S = 5.0
GATHER_PARTITIONS = 256


class _CheckpointFile:
    """One checkpoint file: its parsed contents, and the open file that they are from."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._opened: OpenedFile | None = None
        self._offsets: dict[TopicPartition, int] | None = {}
        self._lines: dict[TopicPartition, bytes] | None = None      # formatted; built for the first write

    def offsets(self) -> dict[TopicPartition, int] | None:
        """The offsets: empty if there is no file, None if it does not parse."""
        if self._opened is None or not self._opened.is_current():
            self.close()
            self._opened = OpenedFile(self._path)
            raw = self._opened.read()
            self._offsets = {} if raw is None else parse_offsets_or_none(raw, self._path)
            self._lines = None
        return self._offsets

    def write(self, fs: FileSystem, changes: Mapping[TopicPartition, int | None]) -> bool:
        """Change the lines of these partitions, None for no line. Returns False if they are the same already.

        Durable when the caller has synced the directory. A file that does not parse is kept as `<name>.bak`, because
        its other lines cannot be kept.
        """
        found = self.offsets()
        changes = {where: offset for where, offset in changes.items() if (found or {}).get(where) != offset}
        if found is not None and not changes:
            return False
        offsets, self._offsets = found or {}, None
        lines, self._lines = self._lines, None      # an error leaves neither: the file is read again
        if lines is None:
            lines = {where: offset_checkpoint_line(where, offset) for where, offset in offsets.items()}
        for where, offset in changes.items():
            if offset is None:
                offsets.pop(where, None)
                lines.pop(where, None)
            else:
                offsets[where] = offset
                lines[where] = offset_checkpoint_line(where, offset)
        backup = None
        if found is None:
            backup = self._path + names.BACKUP_SUFFIX
            _LOG.warning("%s: kept as %s; a new file was started", self._path, os.path.basename(backup))
        self.close()
        write_atomically(fs, self._path, join_offset_checkpoint(lines.values()), backup=backup, sync_names=False)
        self._opened = OpenedFile(self._path)
        self._offsets, self._lines = offsets, lines
        return True

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


class _Gathered:
    """Lines of one partition that are not written yet.

    `lock`: the partition's lock under which they were gathered; it may have been released since. `gone`: the partition
    was removed.
    """

    __slots__ = ("gone", "lock", "offsets")

    def __init__(self) -> None:
        self.offsets: dict[str, int | None] = {}
        self.lock: Lock | None = None
        self.gone = False


class OffsetCheckpoints:
    """Kafka's checkpoint files of one log dir (names.OFFSET_CHECKPOINTS). Not thread-safe: take turns."""

    def __init__(self, fs: FileSystem, log_dir: Path) -> None:
        self._fs = fs
        self._log_dir = log_dir
        self._files = {name: _CheckpointFile(os.path.join(log_dir, name)) for name in names.OFFSET_CHECKPOINTS}
        self._gathered: dict[TopicPartition, _Gathered] = {}
        self._written_s = time.monotonic()

    def offset(self, checkpoint: str, where: TopicPartition) -> int | None:
        """The line of a partition in a file, or the gathered one; None if there is none."""
        gathered = self._gathered.get(where)
        if gathered is not None and checkpoint in gathered.offsets:
            return gathered.offsets[checkpoint]
        return (self._files[checkpoint].offsets() or {}).get(where)

    def has_lines(self, where: TopicPartition) -> bool:
        """Whether a partition has a line in a file, or a gathered one."""
        return where in self._gathered or any(where in (file.offsets() or ()) for file in self._files.values())

    def gather(
        self, where: TopicPartition, offsets: Mapping[str, int | None], *, lock: Lock | None = None, gone: bool = False
    ) -> None:
        """Write these lines with the next write. `lock`: the partition's lock, if it may be released before that.

        `gone`: the partition was removed.
        """
        gathered = self._gathered.setdefault(where, _Gathered())
        gathered.offsets.update(offsets)
        gathered.lock, gathered.gone = lock, gone

    def is_due(self) -> bool:
        """Whether gathered lines have waited long enough, or are many."""
        return len(self._gathered) >= GATHER_PARTITIONS or time.monotonic() - self._written_s >= GATHER_S

    def take_up(self, where: TopicPartition, lock: Lock) -> None:
        """The partition was locked again. If another process had it in between, drop its gathered lines."""
        gathered = self._gathered.get(where)
        if gathered is not None:
            if gathered.gone or gathered.lock is None or gathered.lock.note != lock.found_note:
                del self._gathered[where]
            else:
                gathered.lock = lock

    def write(self) -> None:
        """Write the gathered lines, durably. A crash may leave only some files written, each whole."""
        gathered, self._gathered = self._gathered, {}
        self._written_s = time.monotonic()
        locks: list[Lock] = []
        try:
            changes: dict[str, dict[TopicPartition, int | None]] = {name: {} for name in names.OFFSET_CHECKPOINTS}
            for where, one in gathered.items():
                if self._is_ours(where, one, locks):
                    for checkpoint, offset in one.offsets.items():
                        changes[checkpoint][where] = offset
            written = [file.write(self._fs, changes[name]) for name, file in self._files.items() if changes[name]]
            if any(written):
                self._fs.sync_directory(self._log_dir)
        finally:
            for lock in locks:
                lock.release()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _is_ours(self, where: TopicPartition, gathered: _Gathered, locks: list[Lock]) -> bool:
        """Whether no other process had the partition since the lines were gathered; `locks` hold it until the write."""
        directory = self._log_dir / names.partition_dir(*where)
        if gathered.gone:
            return not os.path.lexists(directory)
        held = gathered.lock
        if held is None or held.held:
            return True
        if not directory.is_dir():
            return False
        try:
            lock = lock_partition(self._fs, directory)
        except (LogLockedError, StorageError):
            return False
        locks.append(lock)
        return lock.found_note == held.note
