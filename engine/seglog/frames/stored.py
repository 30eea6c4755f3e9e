"""Partitions on a store (S3, Google Cloud Storage, HDFS) or in a backup, of which only what is needed is read.

Indexes are small and are fetched whole, a .log only where they lead. While a segment is read, its bytes are in a local
sparse file, at their original positions. An index is only a hint here, too: the fetched batches are checked, and if the
index was misleading, the whole segment is fetched. Two rare files are checked against the whole .log, as on a disk: a
.txnindex, and a .swap that a compaction left.
"""
import fnmatch
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from seglog._kernels.columns import ArenaPool
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.window import Window
from seglog.backups.snapshot_store import SnapshotStore, path_in_backup
from seglog.errors import (
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    CorruptSettingsError,
    CorruptSnapshotError,
    InvalidArgumentError,
    NotALogError,
    SeglogError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.format.batch_layout import MAGIC_POS
from seglog.format.compression import decompressor
from seglog.format.dialect import KAFKA
from seglog.frames.limits import Limits, Spans, spans_by_stats, spans_by_times
from seglog.frames.options import OFFSET_MAX, ReadOptions
from seglog.frames.part import POOL, Rows, ScanPart, Work
from seglog.fs.files import OsFileSystem
from seglog.fs.mapping import Mapping as FileMapping
from seglog.fs.scratch import scratch_directory
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import Isolation, is_read_committed
from seglog.reading.gaps import has_hole, is_compaction, missing_segments
from seglog.reading.listing import check_swap
from seglog.segment.column_stats import ColumnStats
from seglog.segment.index_file import OffsetIndex, TimeIndex
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import TimeRanges
from seglog.segment.transaction_index import TransactionIndex
from seglog.state import kept_settings
from seglog.state.checked_aborts import checked_aborts
from seglog.state.checkpoints import parse_offset_checkpoint
from seglog.state.leftovers import survey
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.producer_state import ProducerState
from seglog.stores.open_store import is_local, open_store
from seglog.stores.store import ReadableStore, StoredFile
from seglog.stores.tiered_store import TieredStore, is_tiered, tiered_partitions

# One request fetches at most this much into memory.
_PIECE_BYTES = 8 << 20
_SWAPPED_LOG = names.LOG_SUFFIX + names.SWAP_SUFFIX
_COPIED_SWAPS = (_SWAPPED_LOG, names.TRANSACTION_INDEX_SUFFIX + names.SWAP_SUFFIX)
_DECOMPRESS = decompressor()


class _Checkpoints:
    """The offsets in the checkpoint files of log dirs on a store. Each file is read once, for all its partitions."""

    def __init__(self, store: ReadableStore) -> None:
        self._store = store
        self._read: dict[str, Mapping[tuple[str, int], int]] = {}

    def in_file(self, path: str) -> Mapping[tuple[str, int], int]:
        """Those of one file; none if it is missing or cannot be parsed. Raises StorageError."""
        if path not in self._read:
            raw = self._store.read(path)
            try:
                self._read[path] = {} if raw is None else parse_offset_checkpoint(raw, file=path)
            except (CorruptCheckpointError, UnsupportedVersionError):
                self._read[path] = {}
        return self._read[path]


class StoredPartition(NamedTuple):
    """A partition directory on a store. `path`: its URL."""

    topic: str
    partition: int
    path: str
    store: ReadableStore
    checkpoints: _Checkpoints


def is_stored(source: str | os.PathLike[str]) -> bool:
    """Whether `source` names partitions in a store or in a backup, not on a mounted path."""
    return not is_local(source) or path_in_backup(source) is not None


def stored_partitions(url: str, options: Mapping[str, str]) -> list[StoredPartition]:
    """The partitions that a URL names: a partition directory, a pattern in its last component, or a log dir.

    It may also name topics in a broker's tier (stores.tiered_store), or partitions in a snapshot of a backup
    (backups.snapshot_store).

    Raises InvalidArgumentError, NotALogError if there is none, StorageError, CorruptBackupError.
    """
    store: ReadableStore
    in_backup = path_in_backup(url)
    if in_backup is not None:
        store = SnapshotStore(in_backup.store, in_backup.snapshot, options)
        path = f"{store.root}/{in_backup.path or '*'}"
    else:
        store, path = open_store(url, options, OsFileSystem())
    above, _, last = path.rpartition("/")
    if any(letter in last for letter in "*?["):
        found = [f"{above}/{name}" for name in store.directories(above) if fnmatch.fnmatchcase(name, last)]
    elif names.parse_partition_dir(last) is not None or is_tiered(path):
        found = [path]
    else:
        found = [f"{path}/{name}" for name in store.directories(path)]
    tier = TieredStore(store)
    checkpoints, of_tier = _Checkpoints(store), _Checkpoints(tier)
    partitions = []
    for directory in found:
        parsed = names.parse_partition_dir(directory.rpartition("/")[2])
        if parsed is None:
            partitions += [StoredPartition(*there, tier, of_tier) for there in tiered_partitions(store, directory)]
        elif not parsed.mark:
            partitions.append(StoredPartition(parsed.topic, parsed.partition, directory, store, checkpoints))
    if not partitions:
        raise NotALogError(
            "found no partition directory (<topic>-<number>)", file=url,
            hint='name one such as "s3://bucket/logs/orders-0", a pattern in its last part, or the log dir',
        )
    return partitions


def stored_parts(source: StoredPartition, options: ReadOptions, limits: Limits) -> Iterator["StoredPart"]:
    """The segments of a partition that may have rows, with the spans to read.

    Raises NotALogError, StorageError, UnfinishedChangeError; with read_committed, also CorruptIndexError for a
    .txnindex that cannot be read beside a .log that cannot be read.
    """
    files = _files_once_swapped(source)
    segments = _segments(source, files)
    start = max(limits.from_offset, _log_start_offset(source))
    if not is_read_committed(limits.isolation):
        yield from _found(segments, options, limits, start)
        return
    parts = list(_found(segments, options, limits, start))
    if not parts:
        return
    stop = _StableEnd(source, segments, files).up_to(max(part.stop_offset for part in parts))
    read = (segment for segment in segments if segment.base_offset >= parts[0].base_offset)
    aborted = checked_aborts(read, stop)
    for part in parts:
        if part.start_offset < stop:
            here = min(part.stop_offset, stop)
            yield replace(part, stop_offset=here, aborted=tuple(aborted.between(part.start_offset, here)))


class StoredEnds(NamedTuple):
    """Where a partition starts and ends: its log start offset, log end offset and last stable offset."""

    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int


def stored_ends(source: StoredPartition, isolation: Isolation = "read_uncommitted") -> StoredEnds:
    """Where a partition starts and ends. The last segment is fetched from its last index entry on, to find its end;
    with read_committed also what follows the last snapshot of producers. Without, the last stable offset is the end.

    Raises NotALogError, StorageError, UnfinishedChangeError, CorruptRecordError if the end is damaged.
    """
    files = _files_once_swapped(source)
    segments = _segments(source, files)
    start = max(_log_start_offset(source), segments[0].base_offset)
    if isinstance(source.store, SnapshotStore):
        end = source.store.next_offset(source.path)
        assert end is not None      # or its files would not have been listed
    else:
        end = max(segments[-1].next_offset(), start)
    stable = _StableEnd(source, segments, files).up_to(end) if is_read_committed(isolation) else end
    return StoredEnds(start, end, stable)


def _segments(source: StoredPartition, files: Mapping[str, StoredFile]) -> list["_StoredSegment"]:
    """The segments, in order. Raises NotALogError without any, InvalidArgumentError for tagged ones."""
    for name in files:
        if name.endswith(names.TAGGED_LOG_SUFFIX):
            raise InvalidArgumentError(
                "messages with tags can only be read from mounted paths", file=f"{source.path}/{name}",
                hint="copy the partition directory to this machine",
            )
    logs = sorted(name for name in files if names.is_log_file(name))
    if not logs:
        raise NotALogError("no segment file (<20 digits>.log) in the directory", file=source.path)
    return [_StoredSegment(source, name, base, end, files) for name, base, end in _extents(logs)]


def _files_once_swapped(source: StoredPartition) -> dict[str, StoredFile]:
    """The files of a partition directory by name; if a compaction died while it put its segments in place, by the names
    that they have once the next writer has completed that. (The names in the StoredFiles are the present ones.)

    Only the new segments know which ones they replace, so they are fetched. Raises UnfinishedChangeError if one of them
    is damaged, StorageError.
    """
    files = {file.name: file for file in source.store.files(source.path)}
    swaps = [file for name, file in files.items() if name.endswith(names.SWAP_SUFFIX)]
    if not swaps:
        return files
    with scratch_directory() as here:
        for file in swaps:
            if file.name.endswith(_COPIED_SWAPS):
                for _ in _copied(source.store, f"{source.path}/{file.name}", here / file.name, ((0, file.size_bytes),)):
                    pass
        try:
            left = survey(here, KAFKA, list(files))
            for name, _ in left.swapped:
                if name.endswith(_SWAPPED_LOG):
                    check_swap(here / name)
        except SeglogError as error:
            if error.file is not None:
                error.file = error.file.replace(str(here), source.path)
            raise error from None
    for name in (*left.removed, *left.cleaned, *left.replaced, *left.orphans):
        files.pop(name, None)
    for name, final in left.swapped:
        files[final] = files.pop(name)
    return files


def _extents(logs: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Name, base offset and end offset of each segment, in order."""
    bases = [names.parse_base_offset(name) for name in logs]
    return zip(logs, bases, [*bases[1:], OFFSET_MAX], strict=True)


def _found(
    segments: Sequence["_StoredSegment"], options: ReadOptions, limits: Limits, start: int
) -> Iterator["StoredPart"]:
    """The parts of all segments that may have rows, whether committed or not."""
    for segment in segments:
        if segment.base_offset >= limits.to_offset:
            return
        if segment.end_offset > start:
            found = segment.part(options, limits, start)
            if found is not None:
                yield found


@dataclass(slots=True, eq=False)
class _StoredSegment:
    """A .log of a partition, and the files of its directory. `files`: all of them, by name."""

    source: StoredPartition
    name: str
    base_offset: int
    end_offset: int
    files: Mapping[str, StoredFile]
    _checked_transactions: object | None = None

    def part(self, options: ReadOptions, limits: Limits, start: int) -> "StoredPart | None":
        """The part of it that may have rows from offset `start` on; None if there are none."""
        source, file = self.source, self.files[self.name]
        part = StoredPart(
            source.topic, source.partition, f"{source.path}/{file.name}", self.base_offset, ((0, file.size_bytes),),
            max(start, self.base_offset), min(limits.to_offset, self.end_offset), options,
            is_last=self.end_offset == OFFSET_MAX, end_offset=max(self.end_offset, file.end_offset or 0),
            store=source.store, log_bytes=file.size_bytes,
        )
        if part.start_offset >= part.stop_offset or not part.log_bytes:
            return None
        found = _SpanSearch(part, self.files, limits).found()
        return found if found.spans else None

    @property
    def transaction_index(self) -> TransactionIndex | None:
        """The .txnindex; None if it does not exist (no transaction was aborted). Raises CorruptIndexError,
        StorageError."""
        file = self.files.get(names.file_name(self.base_offset, names.TRANSACTION_INDEX_SUFFIX))
        if file is None:
            return None
        path = f"{self.source.path}/{file.name}"
        raw = self.source.store.read(path)
        if raw is None:     # without its entries, aborted records would look committed
            raise StorageError("was listed, but no longer exists", file=path, hint="run again when it is at rest")
        return TransactionIndex(raw, path=path)

    @property
    def producer_snapshot(self) -> bytes | None:
        """The bytes of the .snapshot at the segment's start; None if there is none. Raises StorageError."""
        file = self.files.get(names.file_name(self.base_offset, names.SNAPSHOT_SUFFIX))
        return None if file is None else self.source.store.read(f"{self.source.path}/{file.name}")

    def next_offset(self) -> int:
        """The offset after the last batch, which is looked for from the last index entry on."""
        file = self.files.get(names.file_name(self.base_offset, names.OFFSET_INDEX_SUFFIX))
        raw = None if file is None else self.source.store.read(f"{self.source.path}/{file.name}")
        position = 0
        with suppress(CorruptIndexError):
            entries = list(OffsetIndex(raw, self.base_offset)) if raw else []
            if entries and entries[-1][1] < self.files[self.name].size_bytes:
                position = entries[-1][1]
        end = self.base_offset
        for table in self.tables(position, check_crc=False):
            end = table[-1].last_offset + 1
        return end

    def tables(self, position: int = 0, *, check_crc: bool = True) -> Iterator[BatchTable]:
        """The batch headers from `position` on, for which the rest of the .log is fetched."""
        part = self.part(ReadOptions(), Limits(), self.base_offset)
        if part is not None and position < part.log_bytes:
            yield from replace(part, spans=((position, part.log_bytes),)).tables(check_crc=check_crc)


class _StableEnd:
    """Finds where the oldest open transaction of a partition begins, as a broker does when it loads the log.

    It starts at the last producer snapshot, and reads the batches after it from the store.
    """

    def __init__(
        self, source: StoredPartition, segments: Sequence[_StoredSegment], files: Mapping[str, StoredFile]
    ) -> None:
        self._source = source
        self._segments = segments
        parsed = ((names.parse_file_name(name), file) for name, file in files.items())
        self._snapshots = {
            found.offset: file.name for found, file in parsed
            if found is not None and found.suffix == names.SNAPSHOT_SUFFIX and not found.state
        }

    def up_to(self, stop: int) -> int:
        """The start of the oldest transaction that is open at the log's end, but at most `stop`."""
        first_base, last_base = self._segments[0].base_offset, self._segments[-1].base_offset
        for offset in [*sorted(self._snapshots, reverse=True), None]:
            producers = ProducerSnapshot() if offset is None else self._snapshot(offset)
            if producers is None:
                continue
            offset = first_base if offset is None else offset
            begun = (entry.current_txn_first_offset for entry in producers.producers)
            # The log reaches at least to the start of its last segment, so a snapshot up to there is one of this log.
            # If no transaction that began before `stop` is open in it, no later batch matters.
            if stop <= offset <= last_base and not any(0 <= first < stop for first in begun):
                return stop
            state = ProducerState(producers.producers)
            if self._replayed(state, offset) >= offset:         # else the snapshot is of a log that was longer
                return min([stop, *(entry.current_txn_first_offset for entry in state.open_transactions())])
        raise AssertionError("the log begins at its first segment")

    def _snapshot(self, offset: int) -> ProducerSnapshot | None:
        path = f"{self._source.path}/{self._snapshots[offset]}"
        raw = self._source.store.read(path)
        try:
            return None if raw is None else ProducerSnapshot.parse(raw, file=path)
        except CorruptSnapshotError:
            return None

    def _replayed(self, state: ProducerState, offset: int) -> int:
        """Add all batches from `offset` on. Returns the log's end offset."""
        end = self._segments[-1].base_offset
        for segment in self._segments:
            part = segment.part(ReadOptions(), Limits(), offset) if segment.end_offset > offset else None
            for table in part.tables() if part is not None else ():
                end = table[-1].last_offset + 1
                if table[0].base_offset >= offset:
                    state.add_table(table)
                    continue
                for batch in table:
                    if batch.base_offset >= offset:
                        state.add(batch)
        return end


@dataclass(frozen=True, slots=True)
class StoredPart(ScanPart):
    """As ScanPart, for a .log of `log_bytes` on a store: `path` is its URL, `size_bytes` what is fetched from it.

    `first_offset`: if an index led to the first batch, the batch must begin at this offset or below.
    """

    store: ReadableStore | None = None
    log_bytes: int = 0
    first_offset: int = OFFSET_MAX

    def work(
        self, lost: list[LostRange] | None = None, pool: ArenaPool = POOL, *, threads: int = 1, is_mapped: bool = False
    ) -> Iterator[Work]:
        # (`is_mapped` is ignored: rows that someone keeps would keep the copy on the disk.)
        with scratch_directory() as here:
            copy = here / self.path.rpartition("/")[2]
            spans = self.spans
            for spans in self._fetched(copy):   # noqa: B007    (the last ones)
                yield _nothing      # here threads can be stopped: fetching a segment may take minutes
            local = ScanPart(
                self.topic, self.partition, str(copy), self.base_offset, spans, self.start_offset, self.stop_offset,
                self.options, self.is_last, self.end_offset, aborted=self.aborted,
            )
            try:
                named = None if lost is None else _NamedLost(lost, self.path)
                for work in local.work(named, pool, threads=threads):
                    yield partial(self._told, work, copy)
                if lost is not None:
                    lost.extend(self._gap_behind(copy, spans))
            except SeglogError as error:
                raise self._named(error, copy) from None

    def _gap_behind(self, copy: Path, spans: Spans) -> Iterator[LostRange]:
        """The requested offsets between the last batch of this segment and the next segment, if the spans reach to the
        end of the .log and nothing says that a compaction left the gap.

        reading.gaps, by what was fetched anyway: other segments are not looked through for traces of a compaction.
        """
        if self.is_last or spans[-1][1] != self.log_bytes:
            return
        segment = Segment(copy)
        try:
            *_, last = (table for table in segment.tables(spans[-1][0], check_crc=False) if len(table))
            begin = max(last[-1].last_offset + 1, self.start_offset)
            if begin >= self.stop_offset or has_hole(segment, self.start_offset, spans[-1][0]):
                return
        except (CorruptRecordError, ValueError):
            # Damage at its end: reading it has told that, and nobody knows where it ended.
            return
        finally:
            segment.close()
        directory = self.path.rpartition("/")[0]
        assert self.store is not None
        checkpoints = _Checkpoints(self.store)
        if not _is_told_compacted(StoredPartition(self.topic, self.partition, directory, self.store, checkpoints)):
            after = f"{directory}/{names.file_name(self.end_offset, names.LOG_SUFFIX)}"
            yield missing_segments(after, begin, self.stop_offset - 1)

    def tables(self, *, check_crc: bool = True) -> Iterator[BatchTable]:
        """The batch headers from the start of the first span to the segment's end."""
        with scratch_directory() as here:
            copy = here / self.path.rpartition("/")[2]
            try:
                *_, spans = self._fetched(copy)
                segment = Segment(copy, is_last=self.is_last)
                try:
                    yield from (table for table in segment.tables(spans[0][0], check_crc=check_crc) if len(table))
                finally:
                    segment.close()
            except SeglogError as error:
                raise self._named(error, copy) from None

    def _told(self, work: Callable[[], Rows], copy: Path) -> Rows:
        rows, error = work()
        return rows, None if error is None else self._named(error, copy)

    def _named(self, error: SeglogError, copy: Path) -> SeglogError:
        if error.file == str(copy):
            error.file = self.path
        return error

    def _fetched(self, copy: Path) -> Iterator[Spans]:
        """Copy the spans to their positions in a file, and yield them after each request. If they turn out not to be
        whole batches with the requested offsets, copy and yield the whole .log."""
        assert self.store is not None
        yield from _copied(self.store, self.path, copy, self.spans)
        whole = ((0, self.log_bytes),)
        if self.spans != whole and not self._are_right(copy):
            yield from _copied(self.store, self.path, copy, whole)

    def _are_right(self, copy: Path) -> bool:
        """Whether the spans are whole batches, in order, that begin at or below the requested offset."""
        window, offset = Window(FileMapping(copy), str(copy)), self.base_offset
        for slot, (position, end) in enumerate(self.spans):
            while position < end:
                try:
                    table = scan(
                        window, position, check_crc=False, min_offset=offset, decompress=_DECOMPRESS
                    )
                except SeglogError:
                    return False
                stop = bisect_left(range(len(table)), end, key=lambda at: table[at].position)
                if not stop:
                    return False
                last = table[stop - 1]
                position, offset = last.position + last.size_bytes, last.last_offset + 1
                if slot == 0 and table[0].position == self.spans[0][0] and table[0].base_offset > self.first_offset:
                    return False
            if position != end:
                return False
        return True


def _copied(store: ReadableStore, path: str, copy: Path, spans: Spans) -> Iterator[Spans]:
    """Copy spans of a file to their positions in `copy`, and yield them after each request. Raises StorageError."""
    fs = OsFileSystem()
    if not copy.exists():
        fs.create(copy).close()
    for begin, end in spans:
        with fs.open_write(copy, begin) as file:
            while begin < end:
                piece = store.part(path, begin, min(_PIECE_BYTES, end - begin))
                if not piece:
                    raise StorageError(
                        f"ends at byte {begin}, but had at least {end} bytes when it was listed", file=path,
                        hint="run again when it is at rest",
                    )
                file.append(piece)
                begin += len(piece)
                yield spans


def _nothing() -> Rows:
    return [], None


class _NamedLost(list[LostRange]):
    """Appends lost ranges to another list, with the path of the original instead of the copy's."""

    def __init__(self, lost: list[LostRange], path: str) -> None:
        super().__init__()
        self._lost = lost
        self._path = path

    def append(self, lost: LostRange) -> None:
        self._lost.append(lost._replace(file=self._path))


class _SpanSearch:
    """Finds where in a segment its rows may be, by the small files next to it, each of which is read when needed."""

    def __init__(self, part: StoredPart, files: Mapping[str, StoredFile], limits: Limits) -> None:
        self._part = part
        self._files = files
        self._limits = limits
        self._directory, _, self._name = part.path.rpartition("/")
        self._size = part.spans[0][1]

    def found(self) -> StoredPart:
        """The part with its spans; with none if it has no rows."""
        options, part = self._part.options, self._part
        if options.on_corrupt == "skip":        # indexes would lead past damage, which must be reported
            return part
        if options.has_times or self._limits.has_keys:
            stats = self._column_stats()
            if stats is not None:
                return replace(part, spans=spans_by_stats(stats, part, self._limits))
        if options.has_times:
            ranges = self._time_ranges()
            if ranges is not None:
                return replace(part, spans=spans_by_times(ranges, part))
        return self._by_offsets()

    def _by_offsets(self) -> StoredPart:
        part, since_ms = self._part, self._part.options.since_ms
        begin_offset, begin, end = part.start_offset, 0, self._size
        if since_ms > -1 and not part.is_last:
            raw = self._read(names.TIME_INDEX_SUFFIX) if self._is_v2() else None
            with suppress(CorruptIndexError):
                times = list(TimeIndex(raw, part.base_offset)) if raw else []
                if times and times[-1][0] < since_ms:
                    return replace(part, spans=())      # the last entry of a sealed segment is its largest time
                before = [offset for timestamp, offset in times if timestamp < since_ms]
                begin_offset = max([begin_offset, *before[-1:]])
        if begin_offset > part.base_offset or part.stop_offset < part.end_offset:
            raw = self._read(names.OFFSET_INDEX_SUFFIX)
            with suppress(CorruptIndexError):
                entries = list(OffsetIndex(raw, part.base_offset)) if raw else []
                begin = max([0, *(position for offset, position in entries if offset <= begin_offset)])
                # The batch of the first entry at or after the end may have records before it: read up to the next one.
                behind = [position for offset, position in entries if offset >= part.stop_offset]
                end = behind[1] if len(behind) > 1 else end
        end = min(end, self._size)
        return part if begin >= end else replace(part, spans=((begin, end),), first_offset=begin_offset)

    def _is_v2(self) -> bool:
        """Whether the segment begins with a v2 batch. Then no older ones follow, whose wrappers, and so the time index,
        may have wrong times."""
        assert self._part.store is not None
        return self._part.store.part(self._part.path, MAGIC_POS, 1) == b"\x02"

    def _column_stats(self) -> ColumnStats | None:
        raw = self._read(names.COLUMN_STATS_SUFFIX)
        if raw is None:
            return None
        try:
            stats = ColumnStats(raw, Path(self._name))
        except (CorruptIndexError, UnsupportedVersionError):
            return None
        assert self._part.store is not None
        part = partial(self._part.store.part, self._part.path)
        return stats if stats.is_of(self._part.base_offset, self._size, part) else None

    def _time_ranges(self) -> TimeRanges | None:
        raw = self._read(names.TIME_RANGES_SUFFIX)
        if raw is None:
            return None
        try:
            ranges = TimeRanges(Window(raw))
        except (CorruptIndexError, UnsupportedVersionError):
            return None
        if (ranges.base_offset, ranges.log_bytes) != (self._part.base_offset, self._size):
            return None
        return ranges if self._has_last(ranges.last_position, ranges.next_offset, ranges.last_crc) else None

    def _has_last(self, position: int, next_offset: int, checksum: int) -> bool:
        """Whether this is the last batch of the .log, so that the small file describes this .log."""
        if not 0 <= position < self._size:
            return False
        assert self._part.store is not None
        raw = self._part.store.part(self._part.path, position, self._size - position)
        try:
            table = scan(Window(raw), max_batches=1, decompress=_DECOMPRESS)
        except SeglogError:
            return False
        if len(table) != 1 or table.end != self._size - position:
            return False
        return (table[0].last_offset + 1, table[0].crc) == (next_offset, checksum)

    def _read(self, suffix: str) -> bytes | None:
        file = self._files.get(names.file_name(self._part.base_offset, suffix))
        assert self._part.store is not None
        return None if file is None else self._part.store.read(f"{self._directory}/{file.name}")


def _log_start_offset(source: StoredPartition) -> int:
    """The one in the log dir's checkpoint; 0 without a checkpoint, as for a directory on a disk: the log then starts
    with its first segment."""
    return _log_dirs_offset(source, names.LOG_START_OFFSET_CHECKPOINT) or 0


def _is_told_compacted(source: StoredPartition) -> bool:
    """As reading.gaps: whether something beside the records says that the topic is compacted."""
    if source.topic in names.BROKER_TOPICS or _log_dirs_offset(source, names.CLEANER_CHECKPOINT) is not None:
        return True
    path = f"{source.path}/{kept_settings.FILE_NAME}"
    raw = source.store.read(path)
    try:
        return raw is not None and is_compaction(kept_settings.parse_settings(raw, Path(path)))
    except (CorruptSettingsError, UnsupportedVersionError):
        return False


def _log_dirs_offset(source: StoredPartition, checkpoint: str) -> int | None:
    """The partition's offset in a checkpoint of the log dir; None if there is none."""
    path = f"{source.path.rpartition('/')[0]}/{checkpoint}"
    return source.checkpoints.in_file(path).get((source.topic, source.partition))
