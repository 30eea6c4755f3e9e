"""Rebuilds a partition's index files from its log.

An index is a function of the log (Kafka's LogSegment.recover): this writes what a broker would write after an unclean
shutdown, trimmed. An older broker's index may have other valid entries; it is replaced all the same, and kept as
`.bak`. A file that already has the right bytes stays, so a second run changes nothing. Minute indexes and time ranges
are written if they are configured or exist, time ranges also on request.

A .txnindex is a function of the log, too, but not after compaction: the cleaner drops aborted transactions whose data
is gone. So one that lists more than the log shows stays; one that does not parse, or lacks an aborted transaction, is
rebuilt.

The log is read and never changed. Each file is replaced in one step (fs.aside), independently: after a crash at any
moment, every index is the old one or the new one.
"""
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

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
from seglog.fs.aside import write_atomically
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


@dataclass(frozen=True, slots=True)
class RebuiltIndex:
    """One index file. `size_before`: None if there was none; `backup`: None if nothing was replaced."""

    file: str
    entries: int
    size_bytes: int
    size_before: int | None
    backup: str | None = None

    @property
    def changed(self) -> bool:
        """Whether the file was written; otherwise it already had the right bytes."""
        return self.backup is not None or self.size_before is None


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
    dry_run: bool = False,
    fs: FileSystem | None = None,
    progress: Progress | None = None,
) -> Iterator[RebuiltIndex | RefusedSegment]:
    """Write the index files of a partition directory; yields each finished file and each refused segment.

    `only`: names of the .log files whose indexes to write; all if empty. `time_ranges`: each segment gets a
    .ranges.index. `dry_run`: only tell what would be written, also beside a writer.
    `progress` is called with (bytes of log read, total bytes). A generator: it holds the log dir's lock while it runs.
    Raises LogLockedError if a broker or another writer holds it, StorageError if a write fails.
    """
    fs = OsFileSystem() if fs is None else fs
    path = Path(path)
    with nullcontext() if dry_run else lock_alone(fs, path), Partition(path, config=config) as partition:
        wanted = [s for s in partition.segments if not only or s.path.name in only]
        total, done = sum(s.size_bytes for s in wanted), 0
        for segment in wanted:
            try:
                right = index_bytes(segment, partition.config, progress=_shifted(progress, done, total))
            except CorruptRecordError as e:
                yield RefusedSegment(os.fspath(segment.path), e)
            else:
                dialect = segment.dialect
                for suffix, raw in dialect.index_files(right.offset_index, right.time_index).items():
                    size = dialect.offset_entry_bytes if suffix == dialect.offset_index else dialect.time_entry_bytes
                    yield put_index(fs, segment.path.with_suffix(suffix), raw or b"", size, dry_run=dry_run)
                if dialect.has_one_index:
                    done += segment.size_bytes
                    continue
                minute_index = minute_index_path(segment.path)
                if partition.config.time_index_minute_enabled or minute_index.exists():
                    yield put_index(fs, minute_index, right.minute_index, TimeIndex.ENTRY_SIZE, dry_run=dry_run)
                wanted_ranges = time_ranges or partition.config.time_index_ranges_enabled
                if wanted_ranges or time_ranges_path(segment.path).exists():
                    yield _put_time_ranges(fs, segment, is_asked=time_ranges, dry_run=dry_run)
            done += segment.size_bytes
        if not only and partition._dialect.has_producers:
            for segment, raw in _transaction_indexes(partition):
                path = segment.path.with_suffix(names.TRANSACTION_INDEX_SUFFIX)
                yield put_index(fs, path, raw, transaction_index.ENTRY_SIZE, dry_run=dry_run)


def _put_time_ranges(
    fs: FileSystem, segment: Segment, *, is_asked: bool, dry_run: bool
) -> RebuiltIndex | RefusedSegment:
    """Write a segment's time ranges. Those of a newer seglog are replaced only on request."""
    path = time_ranges_path(segment.path)
    try:
        if not is_asked and path.exists():
            with suppress(CorruptIndexError):
                read_time_ranges(segment.path)
        raw = time_ranges_bytes(segment)
    except (*UNREADABLE, UnsupportedVersionError) as e:
        return RefusedSegment(os.fspath(path), e)
    return replace(put_index(fs, path, raw, 1, dry_run=dry_run), entries=len(TimeRanges(Window(raw))))


def _shifted(progress: Progress | None, done: int, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda position: progress(done + position, total)


def put_index(fs: FileSystem, path: Path, raw: bytes, entry_size: int, *, dry_run: bool = False) -> RebuiltIndex:
    """Write `raw` to the file, unless it already has these bytes. `dry_run`: only tell."""
    before = read_file(path) if path.exists() else None
    backup = None
    if before != raw:
        backup = None if before is None else os.fspath(path) + names.BACKUP_SUFFIX
        if not dry_run:
            write_atomically(fs, path, raw, backup=backup)
    return RebuiltIndex(
        os.fspath(path), len(raw) // entry_size, len(raw), None if before is None else len(before), backup
    )


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
