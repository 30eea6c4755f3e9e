"""Reading past damage: what is skipped, what is reported, and what is still read."""
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.status import Status, words
from seglog.errors import CorruptRecordError, InvalidArgumentError, SeglogError
from seglog.late_import import late
from seglog.segment.batches import UNREADABLE, checked_records
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment

if TYPE_CHECKING:
    from seglog._kernels.columns import ArenaPool, Columns

OnCorrupt = Literal["raise", "skip"]
OnLost = Callable[[LostRange], None]


def surviving_records(
    tables: Iterable[tuple[Segment, BatchTable, int, int]], start: int, stop: int, control: bool, on_lost: OnLost
) -> Iterator[Record]:
    before = -1
    for segment, table, first, last in tables:
        for slot in range(first, last):
            batch = table[slot]
            if batch.is_control and not control:
                continue
            try:
                records = checked_records(batch)
                _check_begin(batch, records, before)
            except UNREADABLE as e:
                on_lost(lost_batch(segment, batch, e))
                continue
            before = batch.last_offset
            for record in records:
                if record.offset >= stop:
                    return
                if record.offset >= start:
                    yield record


def _check_begin(batch: RecordBatch, records: Iterable[Record], before: int) -> None:
    """Only the inside of a wrapper tells where it begins. Raises CorruptRecordError if that is at or below `before`."""
    if batch.magic < 2 and batch.codec and next(iter(records)).offset <= before:
        raise CorruptRecordError(words(Status.OFFSET_BACK))


def columns_of(
    tables: Iterable[tuple[Segment, BatchTable, int, int]],
    pool: "ArenaPool",
    chunk_bytes: int,
    control: bool,
    on_lost: OnLost | None,
) -> "Iterator[Columns]":
    late("seglog._kernels.columns")
    from seglog._kernels.columns import chunks

    for segment, table, first, last in tables:
        walk = chunks(
            table, pool, chunk_bytes=chunk_bytes, start=first, stop=last, check_crc=on_lost is None,
            include_control=control,
        )
        while True:
            try:
                yield from walk
                break
            except UNREADABLE as e:
                if on_lost is None:
                    raise
                on_lost(lost_batch(segment, table[walk.next_batch], e))
                walk.next_batch += 1


def lost_batch(segment: Segment, batch: RecordBatch, error: SeglogError) -> LostRange:
    return LostRange(
        str(segment.path), batch.position, batch.size_bytes,
        batch.last_offset - max(batch.last_offset_delta, 0), batch.last_offset, error.what,
    )


def lost_sink(on_corrupt: OnCorrupt, lost: list[LostRange] | None) -> OnLost | None:
    """A function that adds a lost range to `lost`, or None if damage is raised."""
    if on_corrupt == "raise":
        return None
    if on_corrupt != "skip":
        raise InvalidArgumentError(f'on_corrupt must be "raise" or "skip", not {on_corrupt!r}')
    return (lambda _: None) if lost is None else lost.append
