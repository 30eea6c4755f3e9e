"""A piece of a partition that one thread, or one task of a cluster, reads: whole batches of one segment."""
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seglog._kernels.columns import ArenaPool
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.topic_rows import RowLayout, TopicRows, topic_rows
from seglog.errors import SeglogError
from seglog.frames.internal_rows import DecodedBatches
from seglog.frames.options import ReadOptions
from seglog.frames.typed.typed_rows import TypedRows, decoded
from seglog.fs.mapping import Mapping
from seglog.reading.damage import OnLost, lost_batch, lost_sink
from seglog.segment.aborted_transactions import AbortedFilter
from seglog.segment.batches import UNREADABLE
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction

# Rows come in chunks of about this many bytes: small enough that several threads, each with waiting chunks, stay within
# a scan's memory; large enough that a call for each chunk costs nothing noticeable.
CHUNK_BYTES = 2 << 20
# The same without keys, values and headers, so that rows of 10-byte records take no more memory than other rows.
NARROW_CHUNK_BYTES = 4 << 20
# Memory kept for the next chunks of all scans in the process.
POOL = ArenaPool(CHUNK_BYTES, 32 << 20)
# For scans whose rows are all kept: each chunk has several partly used large pages, so fewer chunks waste less.
KEPT = ArenaPool(16 << 20, 0)


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The records with start_offset <= offset < stop_offset in `spans` of the .log at `path`. Can be pickled.

    `spans`: (position, end position) of whole batches. `inode`: that of the file when it was listed; another file
    with that name is refused, unless `inode` is None (another machine reads it). `aborted`: transactions left out.
    `end_offset`: every batch of the segment ends below it. `gaps`: offsets before it that no segment holds.
    """

    topic: str
    partition: int
    path: str
    base_offset: int
    spans: tuple[tuple[int, int], ...]
    start_offset: int
    stop_offset: int
    options: ReadOptions
    is_last: bool
    end_offset: int
    inode: int | None = None
    aborted: tuple[AbortedTransaction, ...] = ()
    gaps: tuple[LostRange, ...] = ()

    @property
    def start_position(self) -> int:
        return self.spans[0][0]

    @property
    def end_position(self) -> int:
        return self.spans[-1][1]

    @property
    def size_bytes(self) -> int:
        """The bytes of the .log that are read."""
        return sum(end - position for position, end in self.spans)

    @property
    def layout(self) -> RowLayout:
        return self.options.layout(self.topic, self.partition)

    def batches(self, lost: list[LostRange] | None = None, pool: ArenaPool = POOL) -> Iterator[TopicRows | TypedRows]:
        """The rows, in chunks; each is an Arrow record batch: it has __arrow_c_array__.

        `lost` gets the ranges skipped with on_corrupt="skip", and `gaps`. `pool` determines chunk size and memory.
        Raises CorruptRecordError, StorageError, and OffsetOutOfRangeError if the segment was removed or replaced.
        """
        for work in self.work(lost, pool):
            rows, error = work()
            yield from rows
            if error is not None:
                raise error

    def work(
        self, lost: list[LostRange] | None = None, pool: ArenaPool = POOL, *, threads: int = 1, is_mapped: bool = False
    ) -> Iterator["Work"]:
        """The same as pieces that threads may run in parallel: each returns rows, and the error that ended them early.

        Headers are read here, records are decoded in the pieces. `threads`: how many run pieces; each piece prefetches
        what they read next. `is_mapped`: views refer to the mapped file as long as the rows exist, except in the last
        segment, which a broker may truncate.
        """
        is_mapped = is_mapped and not self.is_last
        on_lost = lost_sink(self.options.on_corrupt, lost)
        if lost is not None:
            lost.extend(self.gaps)
        layout = self.layout
        chunk_bytes = max(pool.chunk_bytes, NARROW_CHUNK_BYTES) if layout.is_narrow else pool.chunk_bytes
        aborted = AbortedFilter(self.aborted) if self.aborted else None
        internal = DecodedBatches(self.topic) if self.options.is_internal else None
        segment = Segment(Path(self.path), is_last=self.is_last, inode=self.inode)
        segment.end_offset = self.end_offset
        try:
            for position, end in self.spans:
                for whole in _tables(segment, position, end, chunk_bytes, on_lost):
                    table = aborted.left_out_of(whole) if aborted else whole
                    stop = _batches_before(table, end)
                    if stop and internal is not None:
                        yield partial(self._decode_internal, internal, segment, table, pool, layout, stop, on_lost)
                    elif stop:
                        ahead = partial(
                            _prefetch, segment.files().log, table.end + (threads - 1) * chunk_bytes, end, chunk_bytes,
                        )
                        yield partial(
                            self._decode, segment, table, pool, layout, stop, chunk_bytes, on_lost, ahead, is_mapped
                        )
        finally:
            segment.close()

    def _decode(
        self, segment: Segment, table: BatchTable, pool: ArenaPool, layout: RowLayout, stop: int, chunk_bytes: int,
        on_lost: OnLost | None, ahead: Callable[[], None], is_mapped: bool,
    ) -> "Rows":
        ahead()
        walk = topic_rows(
            table, pool, layout, stop=stop, start_offset=self.start_offset, stop_offset=self.stop_offset,
            low_ms=self.options.since_ms, high_ms=self.options.until_ms, check_crc=on_lost is None,
            chunk_bytes=chunk_bytes, is_mapped=is_mapped,
        )
        rows: list[TopicRows] = []
        while True:
            try:
                rows.extend(walk)
                return self._typed(rows, None)
            except UNREADABLE as error:
                if on_lost is None:
                    return self._typed(rows, error)
                on_lost(lost_batch(segment, table[walk.next_batch], error))
                walk.skip_batch()
            except SeglogError as error:
                return self._typed(rows, error)

    def _typed(self, rows: list[TopicRows], error: SeglogError | None) -> "Rows":
        """The rows with typed columns, and what ends them: it may now be a value that is not of its schema."""
        options = self.options
        if not options.is_typed:
            return list(rows), error
        done: list[TopicRows | TypedRows] = []
        for one in rows:
            try:
                typed, failed = decoded(one, options.decoders, options.columns, self.path)
            except SeglogError as unreachable:      # schemas cannot be fetched
                return done, unreachable
            done += typed
            if failed is not None:
                return done, failed
        return done, error

    def _decode_internal(
        self, internal: DecodedBatches, segment: Segment, table: BatchTable, pool: ArenaPool, layout: RowLayout,
        stop: int, on_lost: OnLost | None,
    ) -> "Rows":
        """As `_decode`, of what the records of an internal topic say: slow, but these topics are small."""
        rows: list[TopicRows | TypedRows] = []
        for slot in range(stop):
            try:
                rows.extend(topic_rows(
                    internal.table(table[slot]), pool, layout, start_offset=self.start_offset,
                    stop_offset=self.stop_offset, low_ms=self.options.since_ms, high_ms=self.options.until_ms,
                    check_crc=False,
                ))
            except UNREADABLE as error:
                if on_lost is None:
                    return rows, error
                on_lost(lost_batch(segment, table[slot], error))
            except SeglogError as error:
                return rows, error
        return rows, None


# Rows, and the error that follows them.
Rows = tuple[list[TopicRows | TypedRows], SeglogError | None]
Work = Callable[[], Rows]


def _tables(
    segment: Segment, position: int, end: int, chunk_bytes: int, on_lost: OnLost | None
) -> Iterator[BatchTable]:
    """The batch headers of [position, end), for about `chunk_bytes` of batches at a time. Nothing from `end` on is
    read."""
    log = segment.files().log
    log.load(position, min(chunk_bytes, end - position))
    for table in segment.tables(position, check_crc=on_lost is not None, max_bytes=chunk_bytes, on_lost=on_lost):
        if len(table) and table[0].position >= end:
            return
        if len(table):
            yield table
        if table.end >= end:
            return
        log.load(table.end, min(chunk_bytes, end - table.end))


def _prefetch(log: Mapping, position: int, end: int, chunk_bytes: int) -> None:
    """Load the chunk at `position`, if it is before `end`.

    One thread at a time reads headers, under a lock: without this it would wait there for the disk.
    """
    size = min(chunk_bytes, end - position)
    if size > 0:
        log.load(position, size)


def _batches_before(table: BatchTable, end: int) -> int:
    """How many of the batches begin before position `end`."""
    if table.end <= end:
        return len(table)
    return bisect_left(range(len(table)), end, key=lambda slot: table[slot].position)
