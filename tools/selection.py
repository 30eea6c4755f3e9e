"""Selects the records or batches of a partition that `seglog dump` shows, read batch by batch."""
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Literal, Protocol

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import CorruptRecordError, OffsetOutOfRangeError
from seglog.named_tuple import NamedTuple
from seglog.reading.partition import Partition
from seglog.reading.unproven import unproven_batches, unproven_records
from seglog.segment.batches import UNREADABLE, checked_records, header_offset_of
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment

from . import records as lines
from .record_filter import RecordFilter
from .targets import Place
from .transaction_state import Outcome, TransactionOutcomes

What = Literal["batches", "control"] | None     # None: records
OnLost = Callable[[LostRange], None] | None

_FOREVER = 1 << 63


class Selection(NamedTuple):
    """The conditions on records: offsets in [start, stop), timestamps in [since, until); for each partition at most

    about `max_bytes` of batches, and `limit` records (or batches, if batches are shown).
    """

    start: int | None
    stop: int | None
    since: int | None
    until: int | None
    max_bytes: int | None
    limit: int | None
    tail: int | None = None         # of those only the last ones
    follows: bool = False           # then also what is appended
    matching: RecordFilter | None = None    # on records; leaves out batches of control records
    is_committed: bool = False      # without records of aborted and open transactions
    shows_damaged: bool = False     # also what can be decoded of damaged batches, unproven

    @property
    def is_by_time(self) -> bool:
        return self.since is not None or self.until is not None


def refuse_outside(partition: Partition, selection: Selection, place: Place) -> None:
    """Raise OffsetOutOfRangeError for offsets that the log does not have.

    Exceptions: a window that begins at the log's start may be empty; a log dir is not checked; with --follow the
    offsets may still come; and if damage hides the end, it is not known.
    """
    start, stop = selection.start, selection.stop
    if place.in_log_dir or selection.follows or (start is None and stop is None):
        return
    first = partition.segments[0].base_offset
    try:
        end = partition.log_end_offset
    except CorruptRecordError:
        return
    is_behind = start is not None and start > first and start >= end
    is_before = stop is not None and 0 < stop <= first
    if is_behind or is_before:
        asked = f"offset {start}" if is_behind else f"what lies before offset {stop}"
        valid = f"valid are {first}…{end - 1}" if end > first else f"the log is empty and begins at {end}"
        raise OffsetOutOfRangeError(
            f"{asked} is out of range: {valid}", file=place.path, offset=start if is_behind else stop
        )


def select_batches(
    partition: Partition, selection: Selection, on_lost: OnLost
) -> Iterator[tuple[Segment, RecordBatch, int]]:
    """Return the batches that may contain selected records, in log order, and the first selected offset."""
    start, stop, since, until = selection.start, selection.stop, selection.since, selection.until
    if since is not None and since > 0 and on_lost is None:
        found = partition._offset_for_ms(since)
        if found is None:
            return
        start = max(found.offset, partition.log_start_offset if start is None else start)
    first = partition.log_start_offset if start is None else start
    bytes_left = _FOREVER if selection.max_bytes is None else selection.max_bytes
    if bytes_left <= 0:
        return
    tables: Iterator[tuple[Segment, BatchTable, int]]
    if selection.follows:
        from seglog.reading.follower import Follower  # only they need its watchers of files

        assert isinstance(partition, Follower)
        tables = partition._follow_tables(first)
    else:
        tables = ((segment, table, first) for segment, table in partition.tables(start, stop, on_lost=on_lost))
    for segment, table, first in tables:        # which is lower after a truncation
        for batch in table:
            if batch.last_offset < first or (since is not None and batch.max_timestamp < since and (
                batch.bounds_time or batch.largest_timestamp < since
            )):
                continue
            # Only near the end: a wrapper must be opened to find its first offset.
            if stop is not None and batch.last_offset >= stop and batch.base_offset >= stop:
                return
            if until is not None and batch.magic == 2 and batch.timestamp_type == 1 and batch.max_timestamp >= until:
                continue
            yield segment, batch, first
            bytes_left -= batch.size_bytes
            if bytes_left <= 0:
                return


class HasPath(Protocol):
    """A file with batches."""

    @property
    def path(self) -> Path: ...


class Item(NamedTuple):
    """A batch with the selected records, by their index in it; if `records` is None, the batch itself is selected.

    `transaction`: what became of the transaction of its records. `is_unproven`: its checksum does not match.
    """

    segment: HasPath
    batch: RecordBatch
    base_offset: int
    records: Iterator[tuple[int, Record]] | None
    transaction: Outcome = ""
    is_unproven: bool = False


def select(partition: Partition, selection: Selection, what: What, on_lost: OnLost) -> Iterator[Item]:
    """Return what is to be shown, in log order, up to the limit. Use an item's records before taking the next item."""
    if selection.tail is not None or (selection.follows and selection.start is None and selection.since is None):
        selection = _tail(partition, selection, what, on_lost)
    if selection.is_committed:
        stable = partition._stable_offset(on_lost is not None)
        selection = selection._replace(stop=stable if selection.stop is None else min(selection.stop, stable))
    items = _items(partition, selection, what, on_lost)
    return items if selection.limit is None else _up_to(items, selection.limit)


def _items(partition: Partition, selection: Selection, what: What, on_lost: OnLost) -> Iterator[Item]:
    items = _batches(partition, selection, on_lost) if what == "batches" else _records(partition, selection, on_lost)
    if selection.is_committed:
        items = (item for item in items if item.transaction not in ("aborted", "open"))
    return (item for item in items if item.batch.is_control) if what == "control" else items


def _tail(partition: Partition, selection: Selection, what: What, on_lost: OnLost) -> Selection:
    """Return the selection that starts at the last `tail` items, or at its old start if it has fewer.

    Searches from the end, each time further back. Damage is not reported here: reading the result reports what matters.
    """
    tail = selection.tail or 0
    end = partition.log_end_offset if selection.stop is None else min(selection.stop, partition.log_end_offset)
    first = partition.log_start_offset if selection.start is None else selection.start
    if selection.is_committed:
        end = min(end, partition._stable_offset(on_lost is not None))
    closed = selection._replace(follows=False, stop=end, shows_damaged=False)
    skip: OnLost = None if on_lost is None else lambda gone: None
    reach = tail
    while True:
        start = max(end - reach, first)
        last: deque[int] = deque(maxlen=tail)
        if tail:
            for item in _items(partition, closed._replace(start=start), what, skip):
                if item.records is None:
                    last.append(item.base_offset)
                else:
                    last.extend(record.offset for _, record in item.records)
        if len(last) == tail:
            return selection._replace(start=last[0] if last else end)
        if start <= first:
            return selection._replace(start=first)
        reach *= 8


def _batches(partition: Partition, selection: Selection, on_lost: OnLost) -> Iterator[Item]:
    outcomes = _outcomes(partition, selection)
    damaged = _Damaged(partition, on_lost) if selection.shows_damaged else None
    for segment, batch, _ in select_batches(partition, selection, damaged or on_lost):
        if damaged is not None:
            yield from _unproven(damaged)
        yield Item(segment, batch, batch.last_offset, None, "" if outcomes is None else outcomes.of(batch))
    if damaged is not None:
        yield from _unproven(damaged)


def _outcomes(partition: Partition, selection: Selection) -> TransactionOutcomes | None:
    """None for a log that grows: a transaction may end later."""
    return None if selection.follows else TransactionOutcomes(partition)


class _Damaged:
    """An `on_lost` that also keeps what was lost, to show what can be decoded of it."""

    def __init__(self, partition: Partition, on_lost: OnLost) -> None:
        self._partition = partition
        self._on_lost = on_lost
        self._lost: list[LostRange] = []

    def __call__(self, lost: LostRange) -> None:
        if self._on_lost is not None:
            self._on_lost(lost)
        self._lost.append(lost)

    def batches(self) -> Iterator[tuple[Segment, RecordBatch]]:
        """Those since the last call."""
        lost, self._lost = self._lost, []
        for one in lost:
            segment = next((each for each in self._partition.segments if str(each.path) == one.file), None)
            if segment is not None and one.size_bytes:
                for batch in unproven_batches(one.file, one.position, one.size_bytes):
                    yield segment, batch


def _unproven(damaged: _Damaged) -> Iterator[Item]:
    for segment, batch in damaged.batches():
        yield Item(segment, batch, batch.last_offset, None, is_unproven=True)


def _unproven_records(damaged: _Damaged, selection: Selection) -> Iterator[Item]:
    first = 0 if selection.start is None else selection.start
    last = _FOREVER if selection.stop is None else selection.stop
    since = -_FOREVER if selection.since is None else selection.since
    until = _FOREVER if selection.until is None else selection.until
    for segment, batch in damaged.batches():
        chosen = (
            (n, r) for n, r in enumerate(unproven_records(batch))
            if first <= r.offset < last and (not selection.is_by_time or since <= r.timestamp < until)
            and (selection.matching is None or (not batch.is_control and selection.matching.matches(r)))
        )
        one = next(chosen, None)
        if one is not None:
            base = header_offset_of(batch)
            yield Item(segment, batch, base, chain([one], chosen), is_unproven=True)


def _records(partition: Partition, selection: Selection, on_lost: OnLost) -> Iterator[Item]:
    outcomes = _outcomes(partition, selection)
    damaged = _Damaged(partition, on_lost) if selection.shows_damaged else None
    on_lost = damaged or on_lost
    for item in _proven_records(partition, selection, on_lost, outcomes):
        if damaged is not None:
            yield from _unproven_records(damaged, selection)
        yield item
    if damaged is not None:
        yield from _unproven_records(damaged, selection)


def _proven_records(
    partition: Partition, selection: Selection, on_lost: OnLost, outcomes: TransactionOutcomes | None
) -> Iterator[Item]:
    last = _FOREVER if selection.stop is None else selection.stop
    since = -_FOREVER if selection.since is None else selection.since
    until = _FOREVER if selection.until is None else selection.until
    for segment, batch, first in select_batches(partition, selection, on_lost):
        try:
            records = checked_records(batch)
        except UNREADABLE as e:
            if on_lost is None:
                raise
            base = header_offset_of(batch)
            on_lost(LostRange(str(segment.path), batch.position, batch.size_bytes, base, batch.last_offset, e.what))
            continue
        opening = next(iter(records), None)
        if opening is None:
            continue
        base = lines.base_offset_of(batch, [opening])
        chosen: Iterator[tuple[int, Record]] = enumerate(records)
        if opening.offset < first or batch.last_offset >= last:
            chosen = ((n, r) for n, r in chosen if first <= r.offset < last)
        if selection.is_by_time:
            chosen = ((n, r) for n, r in chosen if since <= r.timestamp < until)
        if selection.matching is not None:
            if batch.is_control:
                continue
            matches = selection.matching.matches
            chosen = ((n, r) for n, r in chosen if matches(r))
        one = next(chosen, None)
        if one is not None:
            transaction: Outcome = "" if outcomes is None else outcomes.of(batch)
            yield Item(segment, batch, base, chain([one], chosen), transaction)


def _up_to(items: Iterator[Item], limit: int) -> Iterator[Item]:
    """The first `limit` records, or batches, of the items."""
    while limit > 0 and (item := next(items, None)) is not None:
        if item.records is None:
            limit -= 1
            yield item
        else:
            records = list(islice(item.records, limit))
            limit -= len(records)
            yield item._replace(records=iter(records))
