"""Rebuilds a partition's index files from its log.

An index is a function of the log (Kafka's LogSegment.recover): this writes what a broker would write after an unclean
shutdown, trimmed. An older broker's index may have other valid entries; it is replaced all the same, and kept as `.bak`
on request. A file that already has the right bytes stays, so a second run changes nothing. Minute indexes and time
ranges are written if they are configured or exist, time ranges also on request.

A .txnindex is a function of the log, too, but not after compaction: the cleaner drops aborted transactions whose data
is gone. So one that lists more than the log shows stays; one that does not parse, or lacks an aborted transaction, is
rebuilt.

The log is read and never changed. Each file is replaced in one step (fs.aside), independently: after a crash at any
moment, every index is the old one or the new one. Several hundred files share the wait for the disk.
"""
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    SeglogError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.fs.aside import AtomicWrites
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.mapping import read_file
from seglog.fs.partition_locks import lock_alone
from seglog.loading.replay import producers_before
from seglog.reading.partition import Partition
from seglog.segment import transaction_index
from seglog.segment.batches import UNREADABLE
from seglog.segment.index_file import TimeIndex, minute_index_path
from seglog.segment.indexes import index_bytes, time_ranges_bytes
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import TimeRanges, read_time_ranges, time_ranges_path
from seglog.state.producer_state import ProducerState

Progress = Callable[[int, int], None]

# The most that one wait for the disk covers: scratch files and new files need space at the same time.
_FILES_MAX = 512
_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class RebuiltIndex:
    """One index file. `size_before`: None if there was none; `changed`: whether it was written, otherwise it already
    had the right bytes; `backup`: the name under which the former file is kept, None if it is not.
    """

    file: str
    entries: int
    size_bytes: int
    size_before: int | None
    changed: bool = False
    backup: str | None = None


@dataclass(frozen=True, slots=True)
class RefusedSegment:
    """A segment whose indexes were not changed, since its log cannot be read to its end."""

    file: str
    error: SeglogError


def rebuild_indexes(
    path: str | Path,
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    only: Collection[str] = (),
    time_ranges: bool = False,
    keep_replaced: bool = False,
    dry_run: bool = False,
    fs: FileSystem | None = None,
    progress: Progress | None = None,
) -> Iterator[RebuiltIndex | RefusedSegment]:
    """Write the index files of a partition directory; yields each durable file and each refused segment.

    `only`: names of the .log files whose indexes to write; all if empty. `time_ranges`: each segment gets a
    .ranges.index. `keep_replaced`: keep each file that is replaced, as `.bak`. `dry_run`: only tell what would be
    written, also beside a writer.
    `progress` is called with (bytes of log read, total bytes). A generator: it holds the log dir's lock while it runs.
    Raises LogLockedError if a broker or another writer holds it, StorageError if a write fails.
    """
    fs = OsFileSystem() if fs is None else fs
    path = Path(path)
    with (
        nullcontext() if dry_run else lock_alone(fs, path), Partition(path, config=config) as partition,
        IndexFiles(fs, dry_run=dry_run, keep_replaced=keep_replaced) as files,
    ):
        wanted = [s for s in partition.segments if not only or s.path.name in only]
        total, done = sum(s.size_bytes for s in wanted), 0
        for segment in wanted:
            try:
                right = index_bytes(segment, partition.config, progress=_shifted(progress, done, total))
            except CorruptRecordError as e:
                files.refuse(segment.path, e)
            else:
                dialect = segment.dialect
                for suffix, raw in dialect.index_files(right.offset_index, right.time_index).items():
                    size = dialect.offset_entry_bytes if suffix == dialect.offset_index else dialect.time_entry_bytes
                    files.put(segment.path.with_suffix(suffix), raw or b"", len(raw or b"") // size)
                if not dialect.has_one_index:
                    minute_index = minute_index_path(segment.path)
                    if partition.config.time_index_minute_enabled or minute_index.exists():
                        raw = right.minute_index
                        files.put(minute_index, raw, len(raw) // TimeIndex.ENTRY_SIZE)
                    wanted_ranges = time_ranges or partition.config.time_index_ranges_enabled
                    if wanted_ranges or time_ranges_path(segment.path).exists():
                        _put_time_ranges(files, segment, is_asked=time_ranges)
            done += segment.size_bytes
            yield from files.take()
        if not only and partition._dialect.has_producers:
            for segment, raw in _transaction_indexes(partition):
                path = segment.path.with_suffix(names.TRANSACTION_INDEX_SUFFIX)
                files.put(path, raw, len(raw) // transaction_index.ENTRY_SIZE)
                yield from files.take()
        yield from files.take_all()


def _put_time_ranges(files: "IndexFiles", segment: Segment, *, is_asked: bool) -> None:
    """Write a segment's time ranges. Those of a newer seglog are replaced only on request."""
    path = time_ranges_path(segment.path)
    try:
        if not is_asked and path.exists():
            with suppress(CorruptIndexError):
                read_time_ranges(segment.path)
        raw = time_ranges_bytes(segment)
    except (*UNREADABLE, UnsupportedVersionError) as e:
        files.refuse(path, e)
    else:
        files.put(path, raw, len(TimeRanges(Window(raw))))


def _shifted(progress: Progress | None, done: int, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda position: progress(done + position, total)


class IndexFiles:
    """Writes index files unless they already have the right bytes, several with one wait for the disk.

    A step is taken, in the order of the calls, when its file is durable. A context manager: it removes what was not
    finished. `dry_run`: only tell.
    """

    def __init__(self, fs: FileSystem, *, dry_run: bool, keep_replaced: bool = False) -> None:
        self._writes = AtomicWrites(fs)
        self._is_dry, self._keeps_replaced = dry_run, keep_replaced
        self._steps: list[RebuiltIndex | RefusedSegment] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writes.__exit__(kind, error, trace)

    def put(self, path: Path, raw: bytes, entries: int) -> None:
        """Write `raw`, which has so many entries, to the file. Raises StorageError."""
        before = read_file(path) if path.exists() else None
        backup = None
        if before != raw:
            if before is not None and self._keeps_replaced:
                backup = os.fspath(path) + names.BACKUP_SUFFIX
            if not self._is_dry:
                self._writes.write(path, raw, backup=backup)
        size_before = None if before is None else len(before)
        self.keep(RebuiltIndex(os.fspath(path), entries, len(raw), size_before, before != raw, backup))

    def refuse(self, path: Path, error: SeglogError) -> None:
        """Tell that the indexes of `path` are not written."""
        self.keep(RefusedSegment(os.fspath(path), error))

    def keep(self, step: RebuiltIndex | RefusedSegment) -> None:
        """Tell of a step behind those before it."""
        self._steps.append(step)

    def take(self) -> Iterator[RebuiltIndex | RefusedSegment]:
        """Yield the steps so far, if there are enough files to wait for, or none. Raises StorageError."""
        if not 0 < len(self._writes) < _FILES_MAX or self._writes.waiting_bytes >= _BYTES_MAX:
            yield from self.take_all()

    def take_all(self) -> Iterator[RebuiltIndex | RefusedSegment]:
        """Yield all steps so far. Raises StorageError."""
        if self._writes:
            self._writes.finish()
        steps, self._steps = self._steps, []
        yield from steps


# --- aborted transactions ----------------------------------------------------------------


def _transaction_indexes(partition: Partition) -> Iterator[tuple[Segment, bytes]]:
    """Yield the wrong .txnindex files, and what they must contain. Ends if the log is damaged."""
    state = ProducerState(producers_before(partition.path, partition.segments[0].base_offset))
    for segment in partition.segments:
        aborted = []
        try:
            for table in segment.tables(check_crc=False):
                for batch in table:
                    if batch.producer_id >= 0 and (transaction := state.add(batch)):
                        aborted.append(transaction)
        except (CorruptRecordError, UnsupportedCompressionTypeError):
            # Damage that was already reported with its segment, or a marker that does not decompress.
            return
        listed = _listed(segment)
        if listed is None or not listed.issuperset((a.producer_id, a.last_offset) for a in aborted):
            yield segment, transaction_index.encode(aborted)


def _listed(segment: Segment) -> set[tuple[int, int]] | None:
    """Return (producer, marker offset) of each transaction in the .txnindex; None if it does not parse."""
    try:
        return {(a.producer_id, a.last_offset) for a in segment.transaction_index or ()}
    except (CorruptIndexError, UnsupportedVersionError):
        return None
