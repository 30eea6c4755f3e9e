"""Which partitions of a log dir are clean: Kafka's clean-shutdown file, and our marks while it is missing.

Kafka's clean-shutdown file (`.kafka_cleanshutdown`) applies to every partition of the log dir: a broker that finds it
trusts all logs and indexes. So it must be removed, durably, before the first byte of any partition changes, and may be
put back only when every partition is known to be clean. While it is missing, files of seglog's record which partitions
are clean (state.clean_marks); docs/formats/clean_marks.md has the table of the cases.

    it exists                                             every partition is clean
    it is missing, and no file of seglog's says why       a broker died: no partition is clean
    we removed it, the partition has a dirty mark         not clean
    we removed it, it existed before                      clean
    we removed it, it did not exist before                clean if the partition has a clean mark of this period

Has a broker used the log dir between two of our runs? It removes its clean-shutdown file at start, which shows nothing
if we have removed it already. If that did not exist before, the partition tells: a broker that loads it removes our
clean mark, whose name is that of a file that Kafka deleted. If it did, a partition without a mark is clean, and the log
dir must tell: a broker creates a missing `log-start-offset-checkpoint`, under its lock and before it loads a log
(CheckpointFile's constructor, from LogManager's). So we remove this file if it would have no line: if it exists when we
open a log dir that no process holds, our files are no longer valid.
"""
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from seglog.errors import CorruptCheckpointError
from seglog.format import names
from seglog.fs.aside import AtomicWrites, write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.logger import Logger
from seglog.state.checkpoints import offsets_or_none
from seglog.state.clean_marks import CLEAN_MARK, PARTITION_MARK, PERIOD_FILE, PartitionMark, PartitionState, Period

_LOG = Logger(__name__)

# The mtime of `.seglog.cleanshutdown` once another process than its creator writes in the same period.
_SHARED_MTIME_NS = 10**9


class CleanPartitions:
    """The marks of one log dir, for one holder of it. All methods are called within a turn (fs.lock.turns).

    The holder that began a period, if no other has joined it, knows which partitions are not clean: if Kafka's file
    existed before, those that it made dirty itself. Other holders must search. A holder that joins sets the mtime of
    the period's file: this is for a running process, and need not be on the disk.
    """

    def __init__(self, fs: FileSystem, log_dir: Path) -> None:
        self.path = log_dir
        self._fs = fs
        self._dirty: set[Path] = set()      # made dirty here, and perhaps clean by now
        self._closed: set[Path] = set()     # have a clean mark that was made here
        self._own: tuple[str, int] | None = None    # a period that was begun here, and the mtime of its file
        self._away_in = ""                  # the period in which Kafka's file is missing, durably by our sync
        self._read: tuple[bytes, Period | None] = (b"", None)    # the file of the period, as read last

    def has_clean_shutdown_file(self) -> bool:
        """Only its existence counts: File.exists."""
        return os.path.exists(self.path / names.CLEAN_SHUTDOWN)

    def is_clean(self, directory: Path) -> bool:
        """Whether the partition in `directory` can be trusted as it is; if not, recover it before writing to it."""
        return self.has_clean_shutdown_file() or self._is_clean(directory, self._current_period())

    def left_as(self, directory: Path) -> PartitionState | None:
        """The state in which a writer of ours left a partition without closing it: it died, or met an error. None if no
        writer did.

        The mark of any period counts: if a broker came in between, its batches count like ours. Dirty if the mark
        cannot be read.
        """
        try:
            return PartitionMark.read(directory / PARTITION_MARK).state
        except FileNotFoundError:
            return None
        except CorruptCheckpointError:
            return PartitionState.DIRTY

    def make_dirty(self, changes: Mapping[Path, Mapping[Path, bytes]], state: PartitionState) -> None:
        """Call before the first change of partitions: sets their marks, then removes Kafka's, durably.

        `changes`: their directories, each with files in it that get new contents behind its mark, durably, too. A crash
        in between leaves Kafka's clean-shutdown file, and partitions that have not changed yet, but for these files.
        """
        content = self._clean_shutdown_contents()
        period = None if content is not None else self._current_period()
        if period is None:
            period = self._begin_period(changes, content)
        elif self._own is None or self._own[0] != period.id:
            self._join_period()
        self._dirty.update(changes)
        mark = PartitionMark(period.id, state).to_bytes()
        self._write({directory: {directory / PARTITION_MARK: mark, **files} for directory, files in changes.items()})
        if content is not None:
            self._fs.unlink(self.path / names.CLEAN_SHUTDOWN)
        if self._away_in != period.id:
            # Even if it was gone already: the process that removed it may have been killed before this call.
            self._fs.sync_directory(self.path)
            self._away_in = period.id

    def clean_mark_of_new(self, directory: Path) -> bytes | None:
        """Call before partitions are created that are not opened at once, `directory` among them. Returns the contents
        of the CLEAN_MARK that each of them needs to be clean, or None if it needs none."""
        if self.has_clean_shutdown_file():
            return None
        period = self._current_period() or self._begin_period((directory,), None)
        return None if period.stood else PartitionMark(period.id, PartitionState.CLEAN).to_bytes()

    def make_clean(self, directories: Collection[Path], *, settles: bool) -> None:
        """Call after the last change of partitions, when they are whole on the disk. `settles`: do what `settle` does,
        too."""
        if self.has_clean_shutdown_file():
            return
        period = self._current_period()
        if settles and self._are_clean(period, but=directories):
            self._restore_clean_shutdown_file(period.content if period else b"")
            for directory in directories:
                self._remove_marks(directory, CLEAN_MARK, PARTITION_MARK)
            return
        if period is None:
            period = self._begin_period((), None)
        clean = PartitionMark(period.id, PartitionState.CLEAN)
        for directory in directories:
            if not period.stood:
                self._set_mark(directory / CLEAN_MARK, clean)
                self._closed.add(directory)
            self._remove_marks(directory, PARTITION_MARK)

    def settle(self) -> None:
        """Put Kafka's clean-shutdown file back if all partitions are clean, and their recovery points are on the
        disk."""
        if self.has_clean_shutdown_file():
            return
        period = self._current_period()
        if period is not None and self._are_clean(period):
            self._restore_clean_shutdown_file(period.content)
            for directory in self._closed:      # the marks no longer count: no sync
                if os.path.lexists(directory / CLEAN_MARK):
                    self._fs.unlink(directory / CLEAN_MARK)
            self._closed.clear()

    def forget_what_a_broker_outdated(self) -> None:
        """Call when opening a log dir that no other process of ours holds."""
        period = self._current_period()
        if period is None or not period.stood or not (self.path / names.LOG_START_OFFSET_CHECKPOINT).exists():
            return
        if not self.has_clean_shutdown_file():
            # Every log dir of a broker has this file.
            if (self.path / names.META_PROPERTIES).exists():
                _LOG.warning("%s: a broker may have used it since, and did not stop cleanly", self.path)
            else:
                _LOG.warning("%s: its last writer did not stop cleanly: each partition is checked when it is opened",
                             self.path)
        self._fs.unlink(self.path / PERIOD_FILE)
        self._fs.sync_directory(self.path)

    def partition_dirs(self) -> Iterator[tuple[Path, names.PartitionDir]]:
        """The directories in the log dir that have the name of a partition, marked ones included."""
        with refusals("list", self.path), os.scandir(self.path) as entries:
            for entry in entries:
                parsed = names.parse_partition_dir(entry.name)
                if parsed is not None and entry.is_dir():
                    yield Path(entry.path), parsed

    def _clean_shutdown_contents(self) -> bytes | None:
        """The contents of Kafka's clean-shutdown file, or None if it is missing."""
        try:
            return read_file(self.path / names.CLEAN_SHUTDOWN)
        except FileNotFoundError:
            return None

    def _current_period(self) -> Period | None:
        path = self.path / PERIOD_FILE
        try:
            raw = read_file(path)
        except FileNotFoundError:
            return None
        if raw != self._read[0]:
            try:
                self._read = raw, Period.parse(raw, file=path)
            except CorruptCheckpointError as error:
                _LOG.warning("%s: all partitions are treated as not clean", error)
                return None
        return self._read[1]

    def _is_clean(self, directory: Path, period: Period | None) -> bool:
        """Whether a partition is clean while Kafka's clean-shutdown file is missing."""
        if period is None or self._is_marked(directory / PARTITION_MARK, period, unreadable=True):
            return False
        return period.stood or self._is_marked(directory / CLEAN_MARK, period, unreadable=False)

    def _is_marked(self, path: Path, period: Period, *, unreadable: bool) -> bool:
        """Whether there is a mark of this period; `unreadable`: the answer if the mark cannot be read."""
        try:
            return PartitionMark.read(path).period == period.id
        except FileNotFoundError:
            return False
        except CorruptCheckpointError as error:
            _LOG.warning("%s: the partition is treated as not clean", error)
            return unreadable

    def _are_clean(self, period: Period | None, but: Collection[Path] = ()) -> bool:
        """Whether all partitions are clean; those in `but` count as clean."""
        but = set(but)
        for directory in list(self._dirty):
            if directory in but or self._is_clean(directory, period) or not directory.exists():
                self._dirty.discard(directory)
            else:
                return False
        if period is not None and period.stood and self._own == (period.id, self._period_mtime_ns()):
            return True
        return all(self._is_clean(other, period) for other in self._loaded_at_start() if other not in but)

    def _begin_period(self, directories: Collection[Path], content: bytes | None) -> Period:
        """Begin a period without Kafka's clean-shutdown file, which held `content`, or was missing.

        A log dir with no partition but `directories` counts as one with that file: no partition in it was unclean.
        """
        stood = content is not None or (
            bool(directories) and all(other in directories for other in self._loaded_at_start())
        )
        period = Period.new(stood=stood, content=content or b"")
        write_atomically(self._fs, self.path / PERIOD_FILE, period.to_bytes())
        self._own = period.id, self._period_mtime_ns()
        if not stood:
            return period
        path = self.path / names.LOG_START_OFFSET_CHECKPOINT
        if path.exists() and offsets_or_none(path) == {}:
            self._fs.unlink(path)
            self._fs.sync_directory(self.path)
        return period

    def _join_period(self) -> None:
        """Make the holder that began the period search from now on."""
        if self._period_mtime_ns() != _SHARED_MTIME_NS:
            self._fs.set_mtime(self.path / PERIOD_FILE, _SHARED_MTIME_NS)

    def _period_mtime_ns(self) -> int:
        with refusals("check the file", self.path / PERIOD_FILE):
            return os.stat(self.path / PERIOD_FILE).st_mtime_ns

    def _restore_clean_shutdown_file(self, content: bytes) -> None:
        write_atomically(self._fs, self.path / names.CLEAN_SHUTDOWN, content)
        # From here on only this file counts. Files of seglog's that a crash leaves are of a past period.
        if (self.path / PERIOD_FILE).exists():
            self._fs.unlink(self.path / PERIOD_FILE)

    def _set_mark(self, path: Path, mark: PartitionMark) -> None:
        write_atomically(self._fs, path, mark.to_bytes())

    def _write(self, changes: Mapping[Path, Mapping[Path, bytes]]) -> None:
        """Write files in several directories, durably, those of a directory in their order."""
        if len(changes) > 1:
            with AtomicWrites(self._fs) as writes:
                for files in changes.values():
                    for path, content in files.items():
                        writes.write(path, content)
                writes.finish()
            return
        for directory, files in changes.items():
            for path, content in files.items():
                write_atomically(self._fs, path, content, sync_names=False)
            self._fs.sync_directory(directory)

    def _remove_marks(self, directory: Path, *marks: str) -> None:
        found = [mark for mark in marks if os.path.lexists(directory / mark)]
        for mark in found:
            self._fs.unlink(directory / mark)
        if found:
            self._fs.sync_directory(directory)

    def _loaded_at_start(self) -> Iterator[Path]:
        """The directories that a broker with the clean-shutdown file would load unchecked (LogManager.loadLogs).

        It also loads deleted ones, but only to remove them.
        """
        for path, partition in self.partition_dirs():
            if partition.mark != names.DELETE and partition.topic != names.METADATA_TOPIC:
                yield path
