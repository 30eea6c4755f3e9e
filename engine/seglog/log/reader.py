"""How a log is read, whether it is a closed directory or one that grows: the methods of both.

A read takes the extent of the log once, when it is called, and works on that: what is appended later it
does not see, and nothing it does waits for an append or keeps one waiting. Segments that are removed
or cut meanwhile it reads to their end where they are open, else it ends with OffsetOutOfRangeError.
"""
import abc
import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from seglog._kernels.columns import ArenaPool, Columns, chunks
from seglog._kernels.point_read import LastOpened
from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.clock import SystemClock
from seglog.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    InvalidArgumentError,
    LogClosedError,
    NoRecordError,
    OffsetOutOfRangeError,
)
from seglog.log.aborted_transactions import AbortedTransactions
from seglog.log.leader_epochs import LeaderEpochs
from seglog.log.times import to_timestamp_ms
from seglog.segment.segment import (
    BatchPosition,
    LostRange,
    Segment,
    TimestampOffset,
    checked_records,
    first_offset_of,
    within_int64,
)

# ListOffsetsRequest's special timestamps (KIP-79, KIP-734).
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3

# No offset and no timestamp is as large: they are int64.
OFFSET_LIMIT = 2**63

OnCorrupt = Literal["raise", "skip"]
OnOutOfRange = Literal["earliest", "latest"]
Isolation = Literal["read_uncommitted", "read_committed"]
Time = int | dt.datetime | str
OnLost = Callable[[LostRange], None]


class Extent:
    """The segments of a log, in order, at least one, and the first offset that a reader may see. Does not change.

    A log that rolls, or loses segments, has another Extent from then on: one store of one attribute, so
    that a reader finds segments and start that belong together.
    """

    __slots__ = ("_largest", "base_offsets", "log_start_offset", "segments")

    def __init__(self, segments: Iterable[Segment], log_start_offset: int) -> None:
        self.segments = tuple(segments)
        self.log_start_offset = log_start_offset
        self.base_offsets = tuple(segment.base_offset for segment in self.segments)
        # Of each segment but the last: the largest timestamp in it and in those before. As many as were asked for.
        self._largest: list[int] = []

    def followed_by(self, segment: Segment) -> "Extent":
        """The same after a roll: what was learned of the segments before stays known."""
        later = Extent((), self.log_start_offset)
        later.segments = (*self.segments, segment)
        later.base_offsets = (*self.base_offsets, segment.base_offset)
        later._largest = self._largest
        return later

    @property
    def log_end_offset(self) -> int:
        """One past the last offset; of a segment that grows, of what is published now."""
        return self.segments[-1].next_offset

    def slot_of(self, offset: int) -> int:
        """The slot of the last segment whose base is at or below the offset, 0 where there is none."""
        return max(bisect_right(self.base_offsets, offset) - 1, 0)

    def slot_at(self, timestamp: int) -> int:
        """The slot of the first segment with a timestamp as large, or with damage that hides it; else of the last one.

        Walks the headers of each segment before it, once for each opening.
        """
        largest = self._largest
        slot = bisect_left(largest, timestamp)
        if slot == len(largest) < len(self.segments) - 1:
            largest = largest.copy()        # threads share the list
            for segment in self.segments[len(largest):-1]:
                passed = segment.largest_passed
                largest.append(max(largest[-1] if largest else -1, OFFSET_LIMIT if passed is None else passed))
                if largest[-1] >= timestamp:
                    break
            self._largest = largest
            slot = bisect_left(largest, timestamp)
        return slot

    def end_now(self, stop: int | None) -> int | None:
        """`stop`, or the end as of now where somebody appends."""
        if self.segments[-1].published is None:
            return stop
        end = self.log_end_offset
        return end if stop is None else min(stop, end)


class LogReader(abc.ABC):
    """What `Partition` and `Log` can be asked. Threads may share it.

    Every method raises LogClosedError after `close()`, CorruptRecordError where damage is met (or, with
    `on_corrupt="skip"`, goes on behind it and appends what was skipped to `lost`), and StorageError where a
    file cannot be read. Batches and records taken from it stay readable after it is closed.
    """

    path: Path

    def __init__(self) -> None:
        # Replaced as a whole; None: closed.
        self._extent: Extent | None = None
        self._pool: ArenaPool | None = None
        self.last_opened = LastOpened()     # for the segments
        self._now_ms = SystemClock().now_ms     # what "-2h" is counted from

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the files. Twice is fine; records and batches taken before stay readable."""

    @property
    @abc.abstractmethod
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is still open; the log end offset where none is."""

    @property
    @abc.abstractmethod
    def leader_epochs(self) -> LeaderEpochs | None:
        """At which offset each leader epoch began; None where nothing is known. Raises CorruptCheckpointError."""

    def _current(self) -> Extent:
        """The extent as of now: taken once by each operation."""
        extent = self._extent
        if extent is None:
            raise LogClosedError("the log was closed", file=self.path)
        return extent

    # --- extent ------------------------------------------------------------------------------

    @property
    def segments(self) -> Sequence[Segment]:
        """In the order of their base offsets, as of now."""
        return self._current().segments

    @property
    def log_start_offset(self) -> int:
        """The first offset that a reader may see."""
        return self._current().log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last offset."""
        return self._current().log_end_offset

    # --- reading -----------------------------------------------------------------------------

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        isolation: Isolation = "read_uncommitted",
        on_out_of_range: OnOutOfRange | None = None,
        control: bool = False,
        on_corrupt: OnCorrupt = "raise",
        lost: list[LostRange] | None = None,
    ) -> Iterator[Record]:
        """Lazy records with start <= offset < stop and since <= timestamp < until, in log order.

        Ends at the end of the log as of this call. `start` must lie in [log start offset, log end offset]; elsewhere
        `on_out_of_range` says to begin at the "earliest" or the "latest" offset instead of raising
        OffsetOutOfRangeError (a consumer's auto.offset.reset). `isolation="read_committed"` ends at the last
        stable offset and leaves out the records of aborted transactions. Transaction markers are left out
        unless `control`.
        """
        extent = self._current()
        if on_out_of_range not in (None, "earliest", "latest"):
            raise InvalidArgumentError(f'on_out_of_range is "earliest" or "latest", not {on_out_of_range!r}')
        _check_range(start, stop)
        if start is not None and not _holds(extent, start, on_corrupt):
            if on_out_of_range is None:
                raise _out_of_range(extent, start, self.path)
            start = None
            if on_out_of_range == "latest":
                start = self.last_stable_offset if isolation == "read_committed" else extent.log_end_offset
        return self._select(extent, start, stop, since, until, isolation, control, _lost_sink(on_corrupt, lost))

    def records(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        isolation: Isolation = "read_uncommitted",
        control: bool = False,
        on_corrupt: OnCorrupt = "raise",
        lost: list[LostRange] | None = None,
    ) -> Iterator[Record]:
        """As `read`, with any `start`: what the files hold of [start, stop), below the log start offset too."""
        extent = self._current()
        return self._select(extent, start, stop, since, until, isolation, control, _lost_sink(on_corrupt, lost))

    def __iter__(self) -> Iterator[Record]:
        return self.read()

    def __getitem__(self, offset: int) -> Record:
        """The record with this offset.

        Raises OffsetOutOfRangeError outside [log start offset, log end offset), NoRecordError where compaction has
        left no record, or a transaction's marker stands.
        """
        # Fast path: what is there. What is not is told apart below.
        extent = self._extent
        if extent is not None and type(offset) is int and extent.log_start_offset <= offset < OFFSET_LIMIT:
            try:
                record = extent.segments[bisect_right(extent.base_offsets, offset) - 1].get(offset)
            except OffsetOutOfRangeError as gone:
                raise _out_of_range(self._current(), offset, self.path) from gone
            if record is not None:
                return record
        return self._get(offset)

    def _get(self, offset: int) -> Record:
        if not isinstance(offset, int):
            raise InvalidArgumentError(f"not an offset: {offset!r}", hint="for a range, read(start, stop)")
        extent = self._current()
        if not extent.log_start_offset <= offset < extent.log_end_offset:
            raise _out_of_range(extent, offset, self.path)
        record = next(self._records(extent, offset, offset + 1, "read_uncommitted", False, None), None)
        if record is None:
            raise NoRecordError(f"no record has offset {offset}", file=self.path, offset=offset)
        return record

    def batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
        on_corrupt: OnCorrupt = "raise",
        lost: list[LostRange] | None = None,
    ) -> Iterator[RecordBatch]:
        """The batches that hold offsets of [start, stop), control batches and empty ones included."""
        extent, on_lost = self._current(), _lost_sink(on_corrupt, lost)
        first, stop, aborted = self._bounds(extent, start, stop, isolation)
        tables = _cut(self._walk(extent, first, stop, True, on_lost), first, stop, aborted)
        return (table[slot] for _, table, first, last in tables for slot in range(first, last))

    def columns(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
        control: bool = False,
        chunk_bytes: int = 4 << 20,
        on_corrupt: OnCorrupt = "raise",
        lost: list[LostRange] | None = None,
    ) -> Iterator[Columns]:
        """The records as columns in Arrow's layout, in chunks of about `chunk_bytes` from reused memory.

        Whole batches: the first chunk may begin below `start`, the last may reach beyond `stop`.
        Each chunk's memory returns to the pool when nothing refers to it any more.
        """
        on_lost = _lost_sink(on_corrupt, lost)
        if self._pool is None:
            self._pool = ArenaPool(chunk_bytes)
        extent = self._current()
        first, stop, aborted = self._bounds(extent, start, stop, isolation)
        # Decoding checks the checksums, while the bytes are at hand.
        tables = _cut(self._walk(extent, first, stop, on_lost is not None, on_lost), first, stop, aborted)
        return _columns(tables, self._pool, chunk_bytes, control, on_lost)

    def tables(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        check_crc: bool = True,
        on_lost: OnLost | None = None,
    ) -> Iterator[tuple[Segment, BatchTable]]:
        """Batch headers of the segments that hold [start, stop), some thousand at a time; the base of every reader.

        The first table begins at the batch that holds `start`, the last one may reach beyond `stop`.
        """
        _check_range(start, stop)
        extent = self._current()
        first = extent.log_start_offset if start is None else start
        return self._walk(extent, first, extent.end_now(stop), check_crc, on_lost)

    def _walk(
        self, extent: Extent, first: int, stop: int | None, check_crc: bool, on_lost: OnLost | None
    ) -> Iterator[tuple[Segment, BatchTable]]:
        for slot in range(extent.slot_of(first), len(extent.segments)):
            segment = extent.segments[slot]
            if stop is not None and segment.base_offset >= stop:
                return
            try:
                found = segment.find_offset(first) if on_lost is None and first > segment.base_offset else None
                position = found.position if found else 0
                for table in segment.tables(position, check_crc=check_crc, on_lost=on_lost):
                    if stop is not None and len(table) and first_offset_of(table[0]) >= stop:
                        return
                    if len(table) and table[-1].last_offset >= first:
                        yield segment, table
            except OffsetOutOfRangeError as gone:
                raise _out_of_range(self._current(), max(first, segment.base_offset), self.path) from gone

    def _bounds(
        self, extent: Extent, start: int | None, stop: int | None, isolation: Isolation
    ) -> tuple[int, int | None, AbortedTransactions | None]:
        """Where a read begins and ends, and what it leaves out in between."""
        _check_range(start, stop)
        first = extent.log_start_offset if start is None else start
        aborted = None
        if isolation == "read_committed":
            stable = self.last_stable_offset
            stop = stable if stop is None else min(stop, stable)
            aborted = AbortedTransactions.of(extent.segments[extent.slot_of(first):], first, stop)
        elif isolation != "read_uncommitted":
            raise InvalidArgumentError(f'isolation is "read_uncommitted" or "read_committed", not {isolation!r}')
        return first, extent.end_now(stop), aborted

    def _select(
        self,
        extent: Extent,
        start: int | None,
        stop: int | None,
        since: Time | None,
        until: Time | None,
        isolation: Isolation,
        control: bool,
        on_lost: OnLost | None,
    ) -> Iterator[Record]:
        if since is None and until is None:
            return self._records(extent, start, stop, isolation, control, on_lost)
        low = -(2**63) if since is None else to_timestamp_ms(since, now_ms=self._now_ms())
        high = 2**63 if until is None else to_timestamp_ms(until, now_ms=self._now_ms())
        if low >= 0 and on_lost is None:
            _, offset, _ = self._seek(extent, low)
            if offset < 0:
                return iter(())
            start = offset if start is None else max(offset, start)
        records = self._records(extent, start, stop, isolation, control, on_lost)
        return (r for r in records if low <= r.timestamp < high)

    def _records(
        self,
        extent: Extent,
        start: int | None,
        stop: int | None,
        isolation: Isolation,
        control: bool,
        on_lost: OnLost | None,
    ) -> Iterator[Record]:
        first, stop, aborted = self._bounds(extent, start, stop, isolation)
        tables = self._walk(extent, first, stop, True, on_lost)
        first = within_int64(first)
        end = 2**63 - 1 if stop is None else within_int64(stop)
        if on_lost is not None:
            return _surviving_records(_cut(tables, first, stop, aborted), first, end, control, on_lost)
        # Fast path: no Python between two records.
        return chain.from_iterable(
            (aborted.left_out_of(table) if aborted else table).records(first, end, control) for _, table in tables
        )

    # --- seeking -----------------------------------------------------------------------------

    def find_offset(self, offset: int) -> tuple[Segment, BatchPosition] | None:
        """The first batch whose last offset is at or above `offset`, and its segment; None past the end."""
        extent = self._current()
        for slot in range(extent.slot_of(offset), len(extent.segments)):
            found = extent.segments[slot].find_offset(offset)
            if found is not None:
                return extent.segments[slot], found
        return None

    def offset_at(self, when: Time) -> int | None:
        """The offset of the first record, in log order, with timestamp >= `when`; None where there is none.

        `when` and its special values: as for `offsets_for_time`.
        """
        if type(when) is int and 0 <= when < OFFSET_LIMIT:
            offset = self._seek(self._extent or self._current(), when)[1]
            return None if offset < 0 else offset
        found = self.offsets_for_time(when)
        return None if found is None else found.offset

    def offsets_for_time(self, when: Time) -> TimestampOffset | None:
        """The first offset, in log order, with timestamp >= `when` (ms, a datetime, ISO 8601, "-2h"); None where none.

        The special values of Kafka's ListOffsets: -1 the log end offset, -2 the log start offset,
        -3 the first offset that carries the largest timestamp. The answer is the log's own: an index
        only says where to begin, and is not believed where it contradicts the log.
        (UnifiedLog.fetchOffsetByTimestamp, KIP-79, KIP-734.)
        """
        target = to_timestamp_ms(when, now_ms=self._now_ms())
        extent = self._current()
        if target == EARLIEST_TIMESTAMP:
            return TimestampOffset(-1, extent.log_start_offset, self._epoch_at(extent.log_start_offset))
        if target == LATEST_TIMESTAMP:
            epochs = self._epochs()
            return TimestampOffset(-1, extent.log_end_offset, epochs.latest if epochs else None)
        if target == MAX_TIMESTAMP:
            found = [t for segment in extent.segments if (t := segment.largest_timestamp) is not None]
            return max(found, key=lambda t: t.timestamp, default=None)
        if target < 0:
            raise InvalidArgumentError(
                f"not a time: {target}", hint="times are >= 0; -1 latest, -2 earliest, -3 largest timestamp"
            )
        timestamp, offset, epoch = self._seek(extent, target)
        return None if offset < 0 else TimestampOffset(timestamp, offset, None if epoch < 0 else epoch)

    def _seek(self, extent: Extent, timestamp: int) -> tuple[int, int, int]:
        """The first record with timestamp >= `timestamp`, an int64 >= 0, as Segment.seek tells it."""
        start = extent.log_start_offset
        try:
            slot = extent.slot_at(timestamp)
            if extent.base_offsets[slot] < start:
                slot = max(slot, extent.slot_of(start))
            found = extent.segments[slot].seek(timestamp, start)
            while found[1] < 0 and slot < len(extent.segments) - 1:
                slot += 1
                found = extent.segments[slot].seek(timestamp, start)
            return found
        except OffsetOutOfRangeError as gone:
            raise _out_of_range(self._current(), start, self.path) from gone

    def _epochs(self) -> LeaderEpochs | None:
        try:
            return self.leader_epochs
        except CorruptCheckpointError:
            return None

    def _epoch_at(self, offset: int) -> int | None:
        epochs = self._epochs()
        return epochs.epoch_for_offset(offset) if epochs else None


def _holds(extent: Extent, offset: int, on_corrupt: OnCorrupt) -> bool:
    """May a read begin at the offset? The log end offset is the last that it may."""
    if offset < extent.log_start_offset:
        return False
    if offset <= extent.segments[-1].base_offset:
        return True
    try:
        return offset <= extent.log_end_offset
    except CorruptRecordError:
        if on_corrupt == "raise":
            raise
        return True     # nobody knows where it ends


def _check_range(start: int | None, stop: int | None) -> None:
    for offset in (start, stop):
        if offset is not None and not isinstance(offset, int):
            raise InvalidArgumentError(f"not an offset: {offset!r}", hint="for times, read(since=, until=)")


def _out_of_range(extent: Extent, offset: int, path: Path) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"offset {offset} is not within [{extent.log_start_offset}, {extent.log_end_offset})", file=path, offset=offset
    )


def _cut(
    tables: Iterable[tuple[Segment, BatchTable]], start: int, stop: int | None, aborted: AbortedTransactions | None
) -> Iterator[tuple[Segment, BatchTable, int, int]]:
    start = within_int64(start)
    for segment, whole in tables:
        table = aborted.left_out_of(whole) if aborted else whole
        first, last = max(table.find_offset(start), 0), len(table)
        if stop is not None:
            over = table.find_offset(within_int64(stop - 1), first)
            if over >= 0:
                last = over + (first_offset_of(table[over]) < stop)
        if first < last:
            yield segment, table, first, last


def _surviving_records(
    tables: Iterable[tuple[Segment, BatchTable, int, int]], start: int, stop: int, control: bool, on_lost: OnLost
) -> Iterator[Record]:
    for segment, table, first, last in tables:
        for slot in range(first, last):
            batch = table[slot]
            if batch.is_control and not control:
                continue
            try:
                records = checked_records(batch)
            except CorruptRecordError as e:
                on_lost(_lost_batch(segment, batch, e))
                continue
            for record in records:
                if record.offset >= stop:
                    return
                if record.offset >= start:
                    yield record


def _columns(
    tables: Iterable[tuple[Segment, BatchTable, int, int]],
    pool: ArenaPool,
    chunk_bytes: int,
    control: bool,
    on_lost: OnLost | None,
) -> Iterator[Columns]:
    for segment, table, first, last in tables:
        walk = chunks(
            table, pool, chunk_bytes=chunk_bytes, first=first, last=last, check_crc=on_lost is None,
            include_control=control,
        )
        while True:
            try:
                yield from walk
                break
            except CorruptRecordError as e:
                if on_lost is None:
                    raise
                on_lost(_lost_batch(segment, table[walk.next_batch], e))
                walk.next_batch += 1


def _lost_batch(segment: Segment, batch: RecordBatch, error: CorruptRecordError) -> LostRange:
    return LostRange(
        str(segment.path), batch.position, batch.size_bytes,
        batch.last_offset - max(batch.last_offset_delta, 0), batch.last_offset, error.what,
    )


def _lost_sink(on_corrupt: OnCorrupt, lost: list[LostRange] | None) -> OnLost | None:
    if on_corrupt == "raise":
        return None
    if on_corrupt != "skip":
        raise InvalidArgumentError(f'on_corrupt is "raise" or "skip", not {on_corrupt!r}')
    return (lambda _: None) if lost is None else lost.append
