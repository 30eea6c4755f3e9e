"""The slow path to a record by its time, which handles damage and misleading indexes.

An entry of the time index proves nothing by itself: neither that it points to a batch with that time, nor that no batch
before has a later one. So it is trusted if the log agrees; otherwise the segment is read from its start. The time of a
wrapper proves nothing about its messages before it is opened: brokers before 0.10.1 stored the time that the producer
gave, and a v0 wrapper may contain v1 messages.
"""
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Protocol

from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError
from seglog.format.compression import Decompress
from seglog.segment.batches import (
    SCAN_BATCHES,
    SCAN_BYTES,
    UNREADABLE,
    WALK_BATCHES,
    checked_records,
    known_epoch,
    within_int64,
)
from seglog.segment.index_file import TimeIndex
from seglog.segment.positions import LostRange, TimestampOffset

NEVER = 2**63       # later than any timestamp


class SearchableSegment(Protocol):
    """What the search needs of its segment (segment.segment)."""

    @property
    def decompress(self) -> Decompress: ...

    @property
    def window(self) -> Window: ...

    @property
    def time_index(self) -> TimeIndex | None: ...

    def position_near(self, target: int) -> int: ...

    def tables(
        self,
        position: int = 0,
        *,
        check_crc: bool = True,
        max_batches: int = SCAN_BATCHES,
        on_lost: Callable[[LostRange], None] | None = None,
    ) -> Iterator[BatchTable]: ...


class TimeSearch:
    """The search in one segment. Keeps what it learned from the headers that it passed. Thread-safe."""

    __slots__ = ("_proved_to", "_walked")

    def __init__(self) -> None:
        self._proved_to = 0         # before this position, no message is later than its wrapper says
        # (position, largest timestamp before it) at batches that a walk from the start passed. Replaced by a longer
        # list, never changed.
        self._walked = [(0, -1)]

    def proves_wrappers(self, segment: SearchableSegment) -> bool:
        """Whether no message is later than its wrapper says. Opens each wrapper, once for each opening of the log.

        Skips damage: reading there raises the error.
        """
        for table in segment.tables(self._proved_to, on_lost=lambda _: None):
            slot = table.find_unbounded()
            while slot >= 0:
                if _holds_later(table[slot]):
                    return False
                slot = table.find_unbounded(slot + 1)
            self._proved_to = max(self._proved_to, table.end)
        return True

    def find(self, segment: SearchableSegment, target: int, start_offset: int) -> TimestampOffset | None:
        """Do Segment.find_timestamp for any int."""
        if target != within_int64(target):
            return None if target > 0 else self.find(segment, within_int64(target), start_offset)
        for table in segment.tables(self._position_before(segment, target)):
            found = table.find_timestamp(target)
            while found >= 0:
                batch = table[found]
                if batch.last_offset >= start_offset:
                    for record in checked_records(batch):
                        if record.timestamp >= target and record.offset >= start_offset:
                            return TimestampOffset(record.timestamp, record.offset, known_epoch(batch))
                found = table.find_timestamp(target, found + 1)
        return None

    def largest(self, segment: SearchableSegment) -> TimestampOffset | None:
        """Segment.largest_timestamp."""
        entry = self._trusted_entry(segment, 2**63 - 1)
        largest, position = (-1, 0) if entry is None else (entry[0], entry[2])
        for table in segment.tables(position):
            largest = max(largest, table.max_timestamp)
            slot = table.find_unbounded() if table.end > self._proved_to else -1
            while slot >= 0:
                largest = max(largest, table[slot].largest_timestamp)
                slot = table.find_unbounded(slot + 1)
        if largest >= 0:
            found = self.find(segment, largest, 0)
            # (A batch that compaction emptied keeps its time, but has no record with it.)
            return found if found is not None else _largest_of_records(segment)
        first = next((batch for table in segment.tables() for batch in table), None)
        if first is None or first.magic == 0:
            return None
        return TimestampOffset(-1, first.base_offset, known_epoch(first))

    def _position_before(self, segment: SearchableSegment, target: int) -> int:
        entry = self._trusted_entry(segment, within_int64(target - 1))
        return 0 if entry is None else entry[2]

    def _trusted_entry(self, segment: SearchableSegment, target: int) -> tuple[int, int, int] | None:
        """Find the last time-index entry with timestamp <= target: (timestamp, offset, position of its batch).

        None if there is none, if the entry does not point to a batch with that largest timestamp, or if an earlier
        batch has a later one: then the index is not trusted. After compaction, the entry's offset may be a gap; a
        rewritten index points to the batch that covers it.
        """
        try:
            index = segment.time_index
            if index is None or len(index) == 0:
                return None
            timestamp, offset = index.lookup(target)
        except CorruptIndexError:
            return None
        if timestamp < 0:
            return None
        position = segment.position_near(offset)
        table = scan(segment.window, position, max_bytes=SCAN_BYTES, decompress=segment.decompress)
        found = table.find_offset(offset)
        if found < 0 or not table[found].crc_is_valid() or table[found].max_timestamp != timestamp:
            return None
        position = table[found].position
        return (timestamp, offset, position) if self._nothing_later_before(segment, position, timestamp) else None

    def _nothing_later_before(self, segment: SearchableSegment, position: int, timestamp: int) -> bool:
        """Whether a batch begins at `position`, and no batch before it has a timestamp above `timestamp`.

        No entry proves that by itself, only the headers of all batches before. They are walked once (about 0.2 s a GiB,
        warm, with 16 KiB batches), and the results kept. Skips damage on the way.
        """
        walked = self._walked
        if walked[-1][0] < position:
            walked = walked.copy()
            for table in segment.tables(
                walked[-1][0], check_crc=False, max_batches=WALK_BATCHES, on_lost=lambda _: None
            ):
                walked.append((table.end, max(walked[-1][1], self._bound_of(table))))
                if table.end >= position:
                    break
            if len(walked) > len(self._walked):
                self._walked = walked
        start, largest = walked[bisect_right(walked, position, key=lambda place: place[0]) - 1]
        rest = scan(segment.window, start, position, decompress=segment.decompress)
        return rest.end == position and max(largest, self._bound_of(rest)) <= timestamp

    def _bound_of(self, table: BatchTable) -> int:
        """Return a bound: no record of the table is later."""
        if table.end > self._proved_to and table.find_unbounded() >= 0:
            return NEVER
        return table.max_timestamp


def _largest_of_records(segment: SearchableSegment) -> TimestampOffset | None:
    largest: TimestampOffset | None = None
    for table in segment.tables():
        for batch in table:
            for record in checked_records(batch):
                if largest is None or record.timestamp > largest.timestamp:
                    largest = TimestampOffset(record.timestamp, record.offset, known_epoch(batch))
    return largest


def _holds_later(wrapper: RecordBatch) -> bool:
    """Whether a message in it is later than it says. One that does not open has nothing that a search could find."""
    try:
        return wrapper.largest_timestamp > wrapper.max_timestamp
    except UNREADABLE:
        return False
