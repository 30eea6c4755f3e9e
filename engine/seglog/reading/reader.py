"""Reading a log, whether it is a closed directory or one that grows.

A read takes the extent of the log once, when it is called, and works on that: it does not see later appends, and
readers and appends never wait for each other. If segments are removed or cut meanwhile, it reads them to their end if
they are open; otherwise it raises OffsetOutOfRangeError.
"""
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, SupportsIndex

from seglog._kernels.batch_survey import first_above
from seglog._kernels.chained import Chained
from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import BatchTable, scan
from seglog.clock import Clock, SystemClock
from seglog.config import LogConfig
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    NoRecordError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format.compression import Decompress
from seglog.format.live_ends import LiveEnds
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.late_import import late
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import (
    Isolation,
    OnOutOfRange,
    check_on_out_of_range,
    checked_epoch,
    checked_offset,
    is_read_committed,
)
from seglog.reading.damage import OnCorrupt, OnLost, columns_of, lost_sink, surviving_records
from seglog.reading.extent import Extent
from seglog.reading.format_counters import FormatCounters
from seglog.reading.live_ends import told_ends
from seglog.reading.lookup import LogLookup, gone_is_out_of_range, out_of_range
from seglog.reading.times import Time, to_time_bound_ms
from seglog.segment.batches import first_offset_of, within_int64
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment

if TYPE_CHECKING:
    from seglog._kernels.columns import ArenaPool, Columns
    from seglog.reading.fetch import LogFetch
    from seglog.reading.fetch_result import Fetched
    from seglog.reading.gaps import GapFinder
    from seglog.reading.log_cursor import LogCursor
    from seglog.segment.aborted_transactions import IndexedAborts
    from seglog.state.leader_epochs import EpochEnd


class ReadArguments(NamedTuple):
    """The arguments of a read: see `LogReader.read`."""

    start: int | None = None
    stop: int | None = None
    since: "Time | None" = None
    until: "Time | None" = None
    isolation: Isolation = "read_uncommitted"
    on_out_of_range: OnOutOfRange | None = None
    control: bool = False
    max_magic: int | None = None
    on_corrupt: OnCorrupt = "raise"


class LogReader(LogLookup):
    """The methods for reading that `Partition` and `Log` share. Threads may share it.

    Every method raises LogClosedError after `close()`, CorruptRecordError if it meets damage (with `on_corrupt="skip"`
    it continues after the damage instead, and `lost` of what is returned tells what was skipped so far), and
    StorageError if a file cannot be read. Batches and records stay readable after the log is closed.
    """

    config: LogConfig
    _decompress: Decompress
    _fs: FileSystem = OsFileSystem()     # for the files of its cursors
    _clock: Clock = SystemClock()
    _syncs_cursors = True

    def __init__(self) -> None:
        super().__init__()
        self._pool: ArenaPool | None = None
        self.format_counters = FormatCounters()

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: "Time | None" = None,
        until: "Time | None" = None,
        isolation: Isolation = "read_uncommitted",
        on_out_of_range: OnOutOfRange | None = None,
        control: bool = False,
        max_magic: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> "Chained[Record, LostRange]":
        """Iterate lazily over the records with start <= offset < stop and since <= timestamp < until, in log order.

        Ends at the end of the log as of this call. `start` must be in [log start offset, log end offset]; otherwise the
        read begins at the "earliest" or "latest" offset if `on_out_of_range` says so (a consumer's auto.offset.reset),
        or raises OffsetOutOfRangeError. `isolation="read_committed"` ends at the last stable offset and leaves out the
        records of aborted transactions. Transaction markers are left out unless `control`. `max_magic`: raise
        UnsupportedVersionError at the first batch of a later record format. What is returned has `lost`.
        """
        asked = ReadArguments(start, stop, since, until, isolation, on_out_of_range, control, max_magic, on_corrupt)
        lost: list[LostRange] = []
        # No Python between two records.
        return Chained(read_runs(self, asked, lost), lost)

    def cursor(self, name: str, *, shared: bool = False) -> "LogCursor":
        """Open a cursor, whose position is stored durably in the partition. `shared`: several readers, in this
        process or others, may use the name at the same time if all of them pass it; then a commit never moves back.

        Raises InvalidArgumentError for an invalid name, LogLockedError if the name is in use, CorruptCheckpointError if
        its file is damaged, StorageError if the directory cannot be written to.
        """
        self._current()
        late("seglog.reading.log_cursor")
        from seglog.reading.log_cursor import LogCursor

        return LogCursor(
            self, name, is_shared=shared, is_durable=self._syncs_cursors, fs=self._fs, clock=self._clock
        )

    def _told_ends(self) -> LiveEnds | None:
        """The truncation state that the log's writer has published, or None."""
        return told_ends(self.path)

    def _read_epoch(self) -> int | None:
        """The epoch in which a read that begins now reads, or an earlier one."""
        ends = self._told_ends()
        return None if ends is None else ends.epoch

    def _records_in_files(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        control: bool = False,
        on_corrupt: OnCorrupt = "raise",
    ) -> "Chained[Record, LostRange]":
        """As `read`, but with any `start`: what the files hold of [start, stop), even below the log start offset."""
        asked = ReadArguments(stop=stop, control=control, on_corrupt=on_corrupt)
        lost: list[LostRange] = []
        return Chained(_runs(self, self._current(), _index(start), asked, lost_sink(on_corrupt, lost)), lost)

    def __iter__(self) -> Iterator[Record]:
        return self.read()

    def __getitem__(self, offset: int) -> Record:
        """The record with this offset.

        Raises OffsetOutOfRangeError outside [log start offset, log end offset), NoRecordError if compaction has removed
        the record, or the offset is that of a transaction's marker.
        """
        try:
            record = self._shown.record(offset)
        except (OffsetOutOfRangeError, StorageError) as error:
            raise self._if_gone(offset, error) from error
        return _get(self, offset) if record is None else record     # `_get` tells the other cases apart

    def get(self, offset: int) -> Record:
        """Return the record with this offset, as `log[offset]` does."""
        return self[offset]

    def tail(self, n: SupportsIndex, *, isolation: Isolation = "read_uncommitted") -> Iterator[Record]:
        """Iterate lazily over the last `n` records that `read` gives, in log order; over all if it gives fewer.

        Markers do not count, nor do offsets that compaction left empty. `isolation="read_committed"`: the last ones
        below the last stable offset, and records of aborted transactions do not count. Ends at the end of the log as of
        this call, which reads batch headers from the end back, not the log. Raises InvalidArgumentError for a number
        below 0.
        """
        return Chained(tail_runs(self, n, isolation))

    def batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
        on_out_of_range: OnOutOfRange | None = None,
        max_magic: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> "Chained[RecordBatch, LostRange]":
        """Iterate over the batches with offsets in [start, stop), control batches and empty ones included. See `read`.
        """
        asked = ReadArguments(
            start, stop, isolation=isolation, on_out_of_range=on_out_of_range, max_magic=max_magic,
            on_corrupt=on_corrupt,
        )
        lost: list[LostRange] = []
        extent, on_lost = self._current(), lost_sink(on_corrupt, lost)
        first, stop, aborted = _bounds(self, extent, _start_in_range(self, extent, asked), asked)
        tables = _cut(_known(self._walk(extent, first, stop, True, on_lost), stop, max_magic), first, stop, aborted)
        # No Python between two batches of a table.
        return Chained((islice(table, first, last) for _, table, first, last in tables), lost)

    def columns(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
        on_out_of_range: OnOutOfRange | None = None,
        control: bool = False,
        chunk_bytes: int = 4 << 20,
        on_corrupt: OnCorrupt = "raise",
    ) -> "Chained[Columns, LostRange]":
        """Iterate over the records as columns in Arrow's layout, in chunks of about `chunk_bytes` from reused memory.

        Chunks hold whole batches: the first may begin below `start`, the last may reach beyond `stop`. For the other
        arguments see `read`. Each chunk's memory returns to the pool when nothing refers to it any more.
        """
        asked = ReadArguments(
            start, stop, isolation=isolation, on_out_of_range=on_out_of_range, control=control, on_corrupt=on_corrupt
        )
        lost: list[LostRange] = []
        on_lost = lost_sink(on_corrupt, lost)
        if self._pool is None:
            late("seglog._kernels.columns")
            from seglog._kernels.columns import ArenaPool

            self._pool = ArenaPool(chunk_bytes)
        extent = self._current()
        first, stop, aborted = _bounds(self, extent, _start_in_range(self, extent, asked), asked)
        # Decoding verifies the checksums, while the bytes are in the cache.
        tables = _cut(self._walk(extent, first, stop, on_lost is not None, on_lost), first, stop, aborted)
        return Chained((columns_of(tables, self._pool, chunk_bytes, control, on_lost),), lost)

    # --- for clients over a network ----------------------------------------------------------

    def fetch(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        magic: int | None = None,
        min_one: bool = True,
        isolation: Isolation = "read_uncommitted",
    ) -> "Fetched":
        """The bytes that a broker sends to a client that fetches from `offset` and knows record formats up to `magic`.

        Returns a FetchSlice of one segment's file, at most `max_bytes`; the last batch may be incomplete, but with
        `min_one` the first batch is whole however large it is. The client must skip records below `offset` in the first
        batch. If that batch has a newer format than the client knows, returns a ConvertedFetch of about as many bytes
        on disk. No bytes: there is nothing to read yet. `isolation="read_committed"` ends at the last stable offset,
        and `ends` lists the aborted transactions, whose records the client must leave out. Tagged messages are
        converted only if `magic` is given.

        Raises OffsetOutOfRangeError, UnsupportedCompressionTypeError (zstd first, for a client below v2),
        UnsupportedVersionError (message.downconversion.enable=false), InvalidArgumentError.
        """
        offset = checked_offset(offset)
        if magic not in (None, 0, 1, 2) or isinstance(magic, bool):
            raise InvalidArgumentError(f"magic must be 0, 1, 2 or None, not {magic!r}")
        if not isinstance(max_bytes, int) or max_bytes < 0:
            raise InvalidArgumentError(f"max_bytes must be a number of bytes, not {max_bytes!r}")
        is_committed = is_read_committed(isolation)
        extent = self._current()
        with gone_is_out_of_range(self, offset):
            if not extent.log_start_offset <= offset <= extent.log_end_offset:
                raise out_of_range(extent, offset, self.path)
            fetch = _log_fetch()(
                self, extent, magic=magic, max_bytes=max_bytes, min_one=min_one, is_committed=is_committed,
            )
            return fetch.at(offset)

    def aborted_transactions(self, start: int | None = None, stop: int | None = None) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that reach into [start, stop)."""
        late("seglog.reading.fetch")
        from seglog.reading.fetch import aborted_transactions

        extent = self._current()
        first = extent.log_start_offset if start is None else checked_offset(start)
        last = extent.log_end_offset if stop is None else checked_offset(stop)
        with gone_is_out_of_range(self, first):
            return list(aborted_transactions(extent, first, last))

    def end_offset_for(self, epoch: int) -> "EpochEnd | None":
        """The largest leader epoch that is not above `epoch`, and its end offset: up to there, a log that has this
        epoch agrees with this one. None if nothing is known. (OffsetsForLeaderEpoch, KIP-101)"""
        epoch, epochs = checked_epoch(epoch), self.leader_epochs
        return None if epochs is None else epochs.end_offset_for(epoch, self.log_end_offset)

    def tables(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        check_crc: bool = True,
        on_lost: OnLost | None = None,
    ) -> Iterator[tuple[Segment, BatchTable]]:
        """Batch headers of the segments that hold [start, stop), some thousands at a time; the base of every reader.

        The first table begins at the batch that holds `start`, the last one may reach beyond `stop`. None if
        `start` >= `stop`.
        """
        start, stop = _index(start), _index(stop)
        extent = self._current()
        first = extent.log_start_offset if start is None else start
        return self._walk(extent, first, extent.end_now(stop), check_crc, on_lost)

    def _find_tail(self, asked: tuple[int, bool]) -> tuple[Extent, int, int]:
        """The extent, and the offsets [start, stop) of its last records; `asked`: how many, and whether committed."""
        n, is_committed = asked
        extent = self._current()
        with gone_is_out_of_range(self, extent.log_start_offset):
            end = extent.log_end_offset
        if is_committed:
            end = min(end, self._stable_offset(False))
        return extent, _start_of_tail(self, extent, end, n, is_committed), end

    def _walk(
        self, extent: Extent, first: int, stop: int | None, check_crc: bool, on_lost: OnLost | None
    ) -> Iterator[tuple[Segment, BatchTable]]:
        if stop is not None and first >= stop:
            return      # an empty range inside a batch does not hold the batch
        before, gaps = None, None
        on_lost = None if on_lost is None else _from(first, on_lost)
        for segment in extent.segments_from(first):
            if on_lost is not None and before is not None:
                gaps = gaps or _gap_finder(self, extent)
                gap = gaps.between(before, segment, first, stop)
                if gap is not None:
                    on_lost(gap)
            before = segment
            if stop is not None and segment.base_offset >= stop:
                return
            try:        # (not with gone_is_out_of_range: two of these take a tenth of the time of a one-record read)
                position = 0
                if on_lost is None and first > segment.base_offset:
                    found = segment.find_offset(first)
                    if found is None:
                        continue
                    position = found.position
                for table in segment.tables(position, check_crc=check_crc, on_lost=on_lost):
                    if stop is not None and len(table) and first_offset_of(table[0]) >= stop:
                        return
                    if len(table) and table[-1].last_offset >= first:
                        yield segment, table
                    if stop is not None and len(table) and table[-1].last_offset >= stop - 1:
                        return      # what follows, even damage, is past what was asked for
            except (OffsetOutOfRangeError, StorageError) as error:
                raise self._if_gone(max(first, segment.base_offset), error) from error


def _from(first: int, on_lost: OnLost) -> OnLost:
    """Leave out damage below the first offset that was asked for."""
    def tell(lost: LostRange) -> None:
        if lost.last_offset < 0 or lost.last_offset >= first:
            on_lost(lost)

    return tell


def _get(log: LogReader, offset: int) -> Record:
    try:
        offset = operator.index(offset)
    except TypeError:
        hint = "for a range, read(start, stop)" if isinstance(offset, slice) else "an offset is an int, such as 0"
        raise InvalidArgumentError(f"not an offset: {offset!r}", hint=hint) from None
    extent = log._current()
    if offset < extent.log_start_offset:
        raise out_of_range(extent, offset, log.path)
    # list(), though there is at most one record, so that the rest of the batch is checked, too.
    runs = _runs(log, extent, offset, ReadArguments(stop=offset + 1), None)
    for record in list(Chained(runs)):
        return record
    if offset >= extent.log_end_offset:
        raise out_of_range(extent, offset, log.path)
    raise NoRecordError(f"no record has offset {offset}", file=log.path, offset=offset)


def _start_in_range(log: LogReader, extent: Extent, asked: ReadArguments) -> int | None:
    """Where a read begins, or None for the log start offset."""
    check_on_out_of_range(asked.on_out_of_range)
    start = _index(asked.start)
    if start is None:
        return None
    try:
        if _holds(extent, start, asked.on_corrupt):
            return start
    except (OffsetOutOfRangeError, StorageError) as error:
        raise log._if_gone(start, error) from error
    match asked.on_out_of_range:
        case None:
            raise out_of_range(extent, start, log.path)
        case "earliest":
            return None
        case "latest":
            if asked.isolation != "read_committed":
                return extent.log_end_offset
            return log._stable_offset(asked.on_corrupt == "skip")


def _holds(extent: Extent, offset: int, on_corrupt: OnCorrupt) -> bool:
    """Whether a read may begin at the offset. The log end offset is the last one where it may."""
    if offset < extent.log_start_offset:
        return False
    segments = extent.segments
    if offset <= segments.bases[segments.stop - 1]:
        return True
    try:
        return offset <= extent.log_end_offset
    except CorruptRecordError:
        if on_corrupt == "raise":
            raise
        return True     # the end is unknown


# Looked up once: a fetch takes four microseconds.
@cache
def _log_fetch() -> "type[LogFetch]":
    late("seglog.reading.fetch")
    from seglog.reading.fetch import LogFetch

    return LogFetch


@cache
def abort_check() -> "Callable[[Iterable[Segment], int], IndexedAborts]":
    """state.checked_aborts.checked_aborts."""
    late("seglog.state.checked_aborts")
    from seglog.state.checked_aborts import checked_aborts

    return checked_aborts


def _gap_finder(log: LogReader, extent: Extent) -> "GapFinder":
    late("seglog.reading.gaps")
    from seglog.reading.gaps import GapFinder

    return GapFinder(log.path, log.config, extent)


def _bounds(
    log: LogReader, extent: Extent, start: int | None, asked: ReadArguments
) -> "tuple[int, int | None, IndexedAborts | None]":
    """Where a read from `start` begins and ends, and what it leaves out in between."""
    first, stop = extent.log_start_offset if start is None else start, _index(asked.stop)
    aborted = None
    if is_read_committed(asked.isolation):
        stable = log._stable_offset(asked.on_corrupt == "skip")
        stop = stable if stop is None else min(stop, stable)
        with gone_is_out_of_range(log, first):
            aborted = abort_check()(extent.segments_from(first), stop)
    return first, extent.end_now(stop), aborted


def read_runs(log: LogReader, asked: ReadArguments, lost: list[LostRange]) -> Iterator[Iterable[Record]]:
    """`LogReader.read` in runs of at most about 1 MB. Each step reads and checks a run, which may wait for a disk;
    iterating over the run parses its records.
    """
    extent = log._current()
    start, on_lost = _start_in_range(log, extent, asked), lost_sink(asked.on_corrupt, lost)
    if asked.since is None and asked.until is None:
        return _runs(log, extent, start, asked, on_lost)
    low = -(2**63) if asked.since is None else to_time_bound_ms(asked.since, now_ms=log._now_ms())
    high = 2**63 if asked.until is None else to_time_bound_ms(asked.until, now_ms=log._now_ms())
    if low >= 0 and on_lost is None:
        _, offset, _ = log._seek(extent, low)
        if offset < 0:
            return iter(())
        start = offset if start is None else max(offset, start)
    runs = _runs(log, extent, start, asked, on_lost)
    return ((r for r in run if low <= r.timestamp < high) for run in runs)


def tail_runs(log: LogReader, n: SupportsIndex, isolation: Isolation) -> Iterator[Iterable[Record]]:
    """`LogReader.tail` in runs, as `read_runs`."""
    if isinstance(n, bool) or not isinstance(n, SupportsIndex) or operator.index(n) < 0:
        raise InvalidArgumentError(f"n must be a number of records, not {n!r}")
    extent, start, stop = log._find_tail((operator.index(n), is_read_committed(isolation)))
    return _runs(log, extent, start, ReadArguments(stop=stop, isolation=isolation), None)


def _start_of_tail(log: LogReader, extent: Extent, end: int, n: int, is_committed: bool) -> int:
    """The offset from which on there are `n` records below `end`; the log start offset if there are fewer.

    Searches from the end, each time further back: gaps and markers take offsets, too.
    """
    first = extent.log_start_offset
    if n == 0:
        return end
    low = end - n
    if low <= first:
        return first
    while True:
        with gone_is_out_of_range(log, low):
            aborted = abort_check()(extent.segments_from(low), end) if is_committed else None
        # Twice over the headers, because a list of the batches may be large.
        over = sum(count for _, count in _counted(log, extent, low, end, aborted)) - n
        if over >= 0:
            for batch, count in _counted(log, extent, low, end, aborted):
                if over < count:
                    return _offset_in(batch, over, first, end)
                over -= count
            return end      # they were cut off meanwhile
        if low == first:
            return first
        low = max(end - 8 * (end - low), first)


def _counted(
    log: LogReader, extent: Extent, low: int, end: int, aborted: "IndexedAborts | None"
) -> Iterator[tuple[RecordBatch, int]]:
    """The batches from the one that holds `low`, with their numbers of records that a read up to `end` gives.

    Checksums are not checked: a read from the offset that the numbers lead to reads every batch that matters.
    """
    first = extent.log_start_offset
    for _, table in log._walk(extent, low, end, False, None):
        for batch in aborted.left_out_of(table) if aborted else table:
            if batch.is_control:
                continue
            count = batch.count
            if count < 0 or batch.base_offset < first or batch.last_offset >= end:
                count = sum(first <= record.offset < end for record in batch)
            yield batch, count


def _offset_in(batch: RecordBatch, skipped: int, first: int, end: int) -> int:
    """The offset of a record in the batch behind `skipped` ones of [first, end); if the batch is damaged, its first
    offset, for the read to find that."""
    if not batch.crc_is_valid():
        return first_offset_of(batch)
    offsets = (record.offset for record in batch if first <= record.offset < end)
    return next(islice(offsets, skipped, None), first_offset_of(batch))


def _runs(
    log: LogReader, extent: Extent, start: int | None, asked: ReadArguments, on_lost: OnLost | None
) -> Iterator[Iterable[Record]]:
    """The records, one table at a time, after its headers were read and its checksums verified. Times are not looked
    at."""
    control = asked.control
    first, stop, aborted = _bounds(log, extent, start, asked)
    tables = _known(log._walk(extent, first, stop, True, on_lost), stop, asked.max_magic)
    first = within_int64(first)
    end = 2**63 - 1 if stop is None else within_int64(stop)
    if on_lost is not None:
        return iter((surviving_records(_cut(tables, first, stop, aborted), first, end, control, on_lost),))
    return ((aborted.left_out_of(table) if aborted else table).records(first, end, control) for _, table in tables)


def _index(offset: SupportsIndex | None) -> int | None:
    """An offset, as any library's int, or None."""
    try:
        return None if offset is None else operator.index(offset)
    except TypeError:
        hint = "leave start out for the first record; tail(n) reads the last ones; for times, read(since=, until=)"
        raise InvalidArgumentError(f"not an offset: {offset!r}", hint=hint) from None


def _known(
    tables: Iterator[tuple[Segment, BatchTable]], stop: int | None, max_magic: int | None
) -> Iterator[tuple[Segment, BatchTable]]:
    """The tables up to the first batch of a later format than the reader knows: that raises UnsupportedVersionError."""
    return tables if max_magic is None else _up_to_format(tables, stop, max_magic)


def _up_to_format(
    tables: Iterator[tuple[Segment, BatchTable]], stop: int | None, max_magic: int
) -> Iterator[tuple[Segment, BatchTable]]:
    for segment, table in tables:
        slot = 0 if segment.dialect.is_tagged else first_above(table, max_magic)
        if slot < 0 or (stop is not None and first_offset_of(table[slot]) >= stop):
            yield segment, table
            continue
        batch = table[slot]
        if slot > 0:
            yield segment, scan(segment.window, table[0].position, batch.position, decompress=segment.decompress)
        raise UnsupportedVersionError(
            f"the batch has record format v{batch.magic}, the reader knows formats up to v{max_magic}",
            file=segment.path, position=batch.position, offset=first_offset_of(batch),
            hint="use a newer client, or call `fetch` with `magic=`, which converts the batch",
        )


def _cut(
    tables: Iterable[tuple[Segment, BatchTable]], start: int, stop: int | None, aborted: "IndexedAborts | None"
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
