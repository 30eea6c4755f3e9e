"""What the logs of one log dir share: its lock, Kafka's checkpoint files, and its mark of a clean stop.

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
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog.errors import CorruptCheckpointError, NotALogError
from seglog.format import names
from seglog.fs import lock
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.state.checkpoints import TopicPartition, merge_offset, offsets_or_none
from seglog.state.clean_marks import CLEAN_MARK, PARTITION_MARK, TAKEN_MARK, PartitionMark, PartitionState, TakenMark

_LOG = logging.getLogger(__name__)


class LogDirState:
    """One log dir, held together with others of ours and without a broker, until close(). Threads may share it.

    Methods that change something take a turn each (fs.lock.turns): other processes of ours do the same.
    """

    def __init__(self, fs: FileSystem, path: str | os.PathLike[str]) -> None:
        """`path` exists. Raises LogLockedError where a broker or an offline tool holds it, NotALogError where it is a
        partition directory, StorageError."""
        self.path = Path(os.path.abspath(path))
        _refuse_partition(self.path)
        self._fs = fs
        self._turns = lock.turns(fs, self.path)
        try:
            with self._turns:
                self._share = lock.lock_log_dir(fs, self.path, lock.SHARED)
                try:
                    if self._turns.join():
                        self._forget_what_a_broker_outdated()
                except BaseException:
                    self._share.release()
                    raise
        except BaseException:
            self._turns.close()
            raise

    def close(self) -> None:
        """Let go of the log dir. May be called twice, and in a child process."""
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
        return (offsets_or_none(self.path / checkpoint) or {}).get(where)

    def put_offset(self, checkpoint: str, where: TopicPartition, offset: int | None) -> None:
        """Let it say `offset`, or nothing, durably. Lines of other partitions stay."""
        self.put_offsets(where, {checkpoint: offset})

    def put_offsets(self, where: TopicPartition, offsets: Mapping[str, int | None]) -> None:
        """The same of several checkpoint files. A crash leaves some of them, each whole."""
        with self._turns:
            self._share.check_file()
            changed = [
                merge_offset(self._fs, self.path / checkpoint, where, offset) for checkpoint, offset in offsets.items()
            ]
            if any(changed):
                self._fs.sync_directory(self.path)

    # --- who is clean ----------------------------------------------------------------------------

    def is_clean(self, directory: Path) -> bool:
        """Whether the partition in `directory` can be trusted as it is; else recover it before it is written to."""
        with self._turns:
            return self._kafkas_mark() is not None or self._is_clean(directory, self._taken_mark())

    def is_unordered(self, directory: Path) -> bool:
        """Whether a crash may have left a later batch of an unclean partition on the disk without an earlier one.

        Of whatever period the mark is: where a broker came in between, its batches are as ours.
        """
        try:
            return PartitionMark.read(directory / PARTITION_MARK).state is PartitionState.UNORDERED
        except (FileNotFoundError, CorruptCheckpointError):
            return False

    def was_left(self, directory: Path) -> bool:
        """Whether a writer of ours left an unclean partition without closing it: it died, or met an error.

        Of whatever period the mark is, and readable or not.
        """
        return (directory / PARTITION_MARK).exists()

    def make_dirty(self, directory: Path, state: PartitionState = PartitionState.DIRTY) -> None:
        """Before the first change of a partition: its mark is set, then Kafka's is taken away, durably.

        A crash in between leaves Kafka's mark, and a partition in which nothing changed yet. Again with UNORDERED:
        before a second batch is written while another is not synced.
        """
        with self._turns:
            self._share.check_file()
            content = self._kafkas_mark()
            taken = None if content is not None else self._taken_mark()
            if taken is None:
                taken = self._begin_period(stood=content is not None, content=content or b"")
            self._set_mark(directory / PARTITION_MARK, PartitionMark(taken.period, state))
            if content is not None:
                self._fs.unlink(self.path / names.CLEAN_SHUTDOWN)
            # Also where it was gone: who took it may have been killed before this call.
            self._fs.sync_directory(self.path)

    def make_clean(self, directory: Path) -> None:
        """After the last change of a partition: it is whole on the disk, and its recovery point is its end.

        Where all other partitions are clean too, Kafka's mark comes back.
        """
        with self._turns:
            self._share.check_file()
            if self._kafkas_mark() is not None:
                return
            taken = self._taken_mark()
            if all(self._is_clean(other, taken) for other in self._loaded_at_start() if other != directory):
                self._put_kafkas_mark_back(taken.content if taken else b"")
                self._remove_mark(directory / CLEAN_MARK)
            else:
                if taken is None:
                    taken = self._begin_period(stood=False)
                if not taken.stood:
                    self._set_mark(directory / CLEAN_MARK, PartitionMark(taken.period, PartitionState.CLEAN))
            # Last: as long as it is there, it speaks.
            self._remove_mark(directory / PARTITION_MARK)

    def partitions(self) -> list[TopicPartition]:
        """(topic, partition) of what stands here, in order; not what is marked as deleted, future or stray."""
        return sorted((p.topic, p.partition) for _, p in self._partition_dirs() if not p.mark)

    # --- within a turn ---------------------------------------------------------------------------

    def _kafkas_mark(self) -> bytes | None:
        """What Kafka's mark holds; None where it is away. That it is there is what counts: File.exists."""
        try:
            return read_file(self.path / names.CLEAN_SHUTDOWN)
        except FileNotFoundError:
            return None

    def _taken_mark(self) -> TakenMark | None:
        try:
            return TakenMark.read(self.path / TAKEN_MARK)
        except FileNotFoundError:
            return None
        except CorruptCheckpointError as error:
            _LOG.warning("%s: all partitions are taken for unclean", error)
            return None

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

    def _begin_period(self, *, stood: bool, content: bytes = b"") -> TakenMark:
        taken = TakenMark.new(stood=stood, content=content)
        write_atomically(self._fs, self.path / TAKEN_MARK, taken.to_bytes())
        if not stood:
            return taken
        path = self.path / names.LOG_START_OFFSET_CHECKPOINT
        if path.exists() and offsets_or_none(path) == {}:
            self._fs.unlink(path)
            self._fs.sync_directory(self.path)
        return taken

    def _put_kafkas_mark_back(self, content: bytes) -> None:
        write_atomically(self._fs, self.path / names.CLEAN_SHUTDOWN, content)
        # From here on it alone speaks. What is left of ours after a crash is of a period that is over.
        if (self.path / TAKEN_MARK).exists():
            self._fs.unlink(self.path / TAKEN_MARK)

    def _forget_what_a_broker_outdated(self) -> None:
        taken = self._taken_mark()
        if taken is None or not taken.stood or not (self.path / names.LOG_START_OFFSET_CHECKPOINT).exists():
            return
        if self._kafkas_mark() is None:
            _LOG.warning("%s: a broker may have been here since, and it did not stop cleanly", self.path)
        self._fs.unlink(self.path / TAKEN_MARK)
        self._fs.sync_directory(self.path)

    def _set_mark(self, path: Path, mark: PartitionMark) -> None:
        write_atomically(self._fs, path, mark.to_bytes())

    def _remove_mark(self, path: Path) -> None:
        if path.exists():
            self._fs.unlink(path)
            self._fs.sync_directory(path.parent)

    def _loaded_at_start(self) -> Iterator[Path]:
        """The directories that a broker with the clean mark would load unchecked (LogManager.loadLogs).

        A deleted one it loads too, but only to remove it.
        """
        for path, partition in self._partition_dirs():
            if partition.mark != names.DELETE and partition.topic != names.METADATA_TOPIC:
                yield path

    def _partition_dirs(self) -> Iterator[tuple[Path, names.PartitionDir]]:
        with refusals("list", self.path), os.scandir(self.path) as entries:
            for entry in entries:
                parsed = names.parse_partition_dir(entry.name)
                if parsed is not None and entry.is_dir():
                    yield Path(entry.path), parsed


def _refuse_partition(path: Path) -> None:
    """A log dir may have the name of a partition, but no segments."""
    if names.parse_partition_dir(path.name) is not None:
        with refusals("list", path):
            logs = names.log_files(path)
        if logs:
            raise NotALogError(
                "a partition directory stands where a log dir is expected", file=path,
                hint="give the directory above it",
            )
