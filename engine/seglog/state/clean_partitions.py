"""Who is clean in a log dir: Kafka's mark of a clean stop, and ours while it is away.

Kafka's mark (`.kafka_cleanshutdown`) speaks for every partition of the log dir: a broker that finds it trusts
all logs and indexes. So it must be away, durably, before the first byte of any partition changes, and may come
back only when every partition is known to be clean. Who is clean while it is away stands in files of ours
(state.clean_marks); docs/formats/clean_marks.md has the table of the cases.

    mark is there                                         every partition is clean
    away, and no file of ours says why                    a broker died: none is
    away by us, the partition has a dirty mark of it      it is not
    away by us, it stood before                           clean
    away by us, it did not stand                          clean if the partition has a clean mark of this period

Has a broker been here between two runs of ours? It takes its mark away at start, which shows nothing where we did
before. Where its mark did not stand, the partition itself tells: a broker that loads it removes the clean mark,
which is named as a file that Kafka deleted. Where it stood, a partition without a mark is clean, and the log dir has
to tell: a broker makes a `log-start-offset-checkpoint` that is missing, under its lock and before it loads a log
(CheckpointFile's constructor, from LogManager's). So we leave none where it would hold no line: if it is there
when we come to a log dir that nobody holds, what our files say is void.
"""
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from seglog.errors import CorruptCheckpointError
from seglog.format import names
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.state.checkpoints import offsets_or_none
from seglog.state.clean_marks import CLEAN_MARK, PARTITION_MARK, TAKEN_MARK, PartitionMark, PartitionState, TakenMark

_LOG = logging.getLogger(__name__)

# The time of `.seglog.cleanshutdown` once somebody else writes in the period of who made it.
_SHARED_MTIME_NS = 10**9


class CleanPartitions:
    """The marks of one log dir, for one holder of it. All methods are called within a turn (fs.lock.turns).

    Who began a period, and whom nobody joined in it, knows by itself which partitions are not clean: where the mark
    stood before, those that it made dirty. Others search. Who joins says so by the time of the file of the period: that
    is for a process that lives, and need not be on the disk.
    """

    def __init__(self, fs: FileSystem, log_dir: Path) -> None:
        self.path = log_dir
        self._fs = fs
        self._dirty: set[Path] = set()      # made dirty here, and perhaps clean meanwhile
        self._closed: set[Path] = set()     # with a clean mark that was made here
        self._own: tuple[str, int] | None = None    # a period that was begun here, and the time of its file
        self._away_in = ""                  # the period in which Kafka's mark is away, durably and by our sync
        self._read: tuple[bytes, TakenMark | None] = (b"", None)    # the file of the period, as read last

    def kafkas_mark_stands(self) -> bool:
        """That it is there is what counts: File.exists."""
        return os.path.exists(self.path / names.CLEAN_SHUTDOWN)

    def is_clean(self, directory: Path) -> bool:
        """Whether the partition in `directory` can be trusted as it is; else recover it before it is written to."""
        return self.kafkas_mark_stands() or self._is_clean(directory, self._taken_mark())

    def left_as(self, directory: Path) -> PartitionState | None:
        """How a writer of ours left a partition that it did not close: it died, or met an error. None for none.

        Of whatever period the mark is: where a broker came in between, its batches are as ours. Dirty where it cannot
        be read.
        """
        try:
            return PartitionMark.read(directory / PARTITION_MARK).state
        except FileNotFoundError:
            return None
        except CorruptCheckpointError:
            return PartitionState.DIRTY

    def make_dirty(self, directory: Path, state: PartitionState) -> None:
        """Before the first change of a partition: its mark is set, then Kafka's is taken away, durably.

        A crash in between leaves Kafka's mark, and a partition in which nothing changed yet.
        """
        content = self._kafkas_mark()
        taken = None if content is not None else self._taken_mark()
        if taken is None:
            taken = self._begin_period(directory, content)
        elif self._own is None or self._own[0] != taken.period:
            self._join_period()
        self._dirty.add(directory)
        self._set_mark(directory / PARTITION_MARK, PartitionMark(taken.period, state))
        if content is not None:
            self._fs.unlink(self.path / names.CLEAN_SHUTDOWN)
        if self._away_in != taken.period:
            # Also where it was gone: who took it may have been killed before this call.
            self._fs.sync_directory(self.path)
            self._away_in = taken.period

    def make_clean(self, directories: Collection[Path], *, settles: bool) -> None:
        """After the last change of partitions: they are whole on the disk. `settles`: as the method does, in one go."""
        if self.kafkas_mark_stands():
            return
        taken = self._taken_mark()
        if settles and self._are_clean(taken, but=directories):
            self._put_kafkas_mark_back(taken.content if taken else b"")
            for directory in directories:
                self._remove_marks(directory, CLEAN_MARK, PARTITION_MARK)
            return
        if taken is None:
            taken = self._begin_period(None, None)
        clean = PartitionMark(taken.period, PartitionState.CLEAN)
        for directory in directories:
            if not taken.stood:
                self._set_mark(directory / CLEAN_MARK, clean)
                self._closed.add(directory)
            self._remove_marks(directory, PARTITION_MARK)

    def settle(self) -> None:
        """Let Kafka's mark come back where all partitions are clean, and their recovery points are on the disk."""
        if self.kafkas_mark_stands():
            return
        taken = self._taken_mark()
        if taken is not None and self._are_clean(taken):
            self._put_kafkas_mark_back(taken.content)
            for directory in self._closed:      # they say nothing from now on: no sync
                if os.path.lexists(directory / CLEAN_MARK):
                    self._fs.unlink(directory / CLEAN_MARK)
            self._closed.clear()

    def forget_what_a_broker_outdated(self) -> None:
        """For who comes to a log dir that nobody of ours holds."""
        taken = self._taken_mark()
        if taken is None or not taken.stood or not (self.path / names.LOG_START_OFFSET_CHECKPOINT).exists():
            return
        if not self.kafkas_mark_stands():
            _LOG.warning("%s: a broker may have been here since, and it did not stop cleanly", self.path)
        self._fs.unlink(self.path / TAKEN_MARK)
        self._fs.sync_directory(self.path)

    def partition_dirs(self) -> Iterator[tuple[Path, names.PartitionDir]]:
        """What stands in the log dir under the name of a partition, marked ones too."""
        with refusals("list", self.path), os.scandir(self.path) as entries:
            for entry in entries:
                parsed = names.parse_partition_dir(entry.name)
                if parsed is not None and entry.is_dir():
                    yield Path(entry.path), parsed

    def _kafkas_mark(self) -> bytes | None:
        """What Kafka's mark holds; None where it is away."""
        try:
            return read_file(self.path / names.CLEAN_SHUTDOWN)
        except FileNotFoundError:
            return None

    def _taken_mark(self) -> TakenMark | None:
        path = self.path / TAKEN_MARK
        try:
            raw = read_file(path)
        except FileNotFoundError:
            return None
        if raw != self._read[0]:
            try:
                self._read = raw, TakenMark.parse(raw, file=path)
            except CorruptCheckpointError as error:
                _LOG.warning("%s: all partitions are taken for unclean", error)
                return None
        return self._read[1]

    def _is_clean(self, directory: Path, taken: TakenMark | None) -> bool:
        """Whether a partition is clean while Kafka's mark is away."""
        if taken is None or self._is_marked(directory / PARTITION_MARK, taken, unreadable=True):
            return False
        return taken.stood or self._is_marked(directory / CLEAN_MARK, taken, unreadable=False)

    def _is_marked(self, path: Path, taken: TakenMark, *, unreadable: bool) -> bool:
        """Whether there is a mark of this period; `unreadable` where nobody can tell."""
        try:
            return PartitionMark.read(path).period == taken.period
        except FileNotFoundError:
            return False
        except CorruptCheckpointError as error:
            _LOG.warning("%s: the partition is taken for unclean", error)
            return unreadable

    def _are_clean(self, taken: TakenMark | None, but: Collection[Path] = ()) -> bool:
        """Whether all partitions are clean; those of `but` are as well."""
        but = set(but)
        for directory in list(self._dirty):
            if directory in but or self._is_clean(directory, taken) or not directory.exists():
                self._dirty.discard(directory)
            else:
                return False
        if taken is not None and taken.stood and self._own == (taken.period, self._period_mtime_ns()):
            return True
        return all(self._is_clean(other, taken) for other in self._loaded_at_start() if other not in but)

    def _begin_period(self, directory: Path | None, content: bytes | None) -> TakenMark:
        """Kafka's mark is away from here on: it held `content`, or was away.

        A log dir of no partition but `directory` counts as one in which it stood: there is none that was not clean.
        """
        stood = content is not None or (
            directory is not None and all(other == directory for other in self._loaded_at_start())
        )
        taken = TakenMark.new(stood=stood, content=content or b"")
        write_atomically(self._fs, self.path / TAKEN_MARK, taken.to_bytes())
        self._own = taken.period, self._period_mtime_ns()
        if not stood:
            return taken
        path = self.path / names.LOG_START_OFFSET_CHECKPOINT
        if path.exists() and offsets_or_none(path) == {}:
            self._fs.unlink(path)
            self._fs.sync_directory(self.path)
        return taken

    def _join_period(self) -> None:
        """Who began the period shall search from now on."""
        if self._period_mtime_ns() != _SHARED_MTIME_NS:
            self._fs.set_mtime(self.path / TAKEN_MARK, _SHARED_MTIME_NS)

    def _period_mtime_ns(self) -> int:
        with refusals("look at the file", self.path / TAKEN_MARK):
            return os.stat(self.path / TAKEN_MARK).st_mtime_ns

    def _put_kafkas_mark_back(self, content: bytes) -> None:
        write_atomically(self._fs, self.path / names.CLEAN_SHUTDOWN, content)
        # From here on it alone speaks. What is left of ours after a crash is of a period that is over.
        if (self.path / TAKEN_MARK).exists():
            self._fs.unlink(self.path / TAKEN_MARK)

    def _set_mark(self, path: Path, mark: PartitionMark) -> None:
        write_atomically(self._fs, path, mark.to_bytes())

    def _remove_marks(self, directory: Path, *marks: str) -> None:
        found = [mark for mark in marks if os.path.lexists(directory / mark)]
        for mark in found:
            self._fs.unlink(directory / mark)
        if found:
            self._fs.sync_directory(directory)

    def _loaded_at_start(self) -> Iterator[Path]:
        """The directories that a broker with the clean mark would load unchecked (LogManager.loadLogs).

        A deleted one it loads too, but only to remove it.
        """
        for path, partition in self.partition_dirs():
            if partition.mark != names.DELETE and partition.topic != names.METADATA_TOPIC:
                yield path
