"""Checks a segment's index entries; takes the walk's batches in order, and never reads the log itself.

Any entry that some Kafka version writes is accepted: its offset may be the first or the last of its batch, or the last
of an append of several batches, and entries may be further apart than index.interval.bytes. What matters is whether a
search could go wrong.
"""
import datetime as dt
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

from seglog._kernels import batch_survey as survey
from seglog._kernels.segment_scan import BatchTable
from seglog.config import LogConfig
from seglog.errors import CorruptIndexError, StorageError
from seglog.format.dialect import beside
from seglog.fs.mapping import read_file
from seglog.segment.index_file import OFFSET_INDEXES, TIME_INDEXES, IndexFile, OffsetIndex, TimeIndex
from seglog.segment.segment import Segment
from seglog.verification.column_stats_check import ColumnStatsCheck
from seglog.verification.empty_index import EmptyIndex
from seglog.verification.findings import Finding
from seglog.verification.minute_index_check import MinuteIndexCheck
from seglog.verification.time_ranges_check import TimeRangesCheck

Entries = IndexFile | tuple[()]
Index = TypeVar("Index", OffsetIndex, TimeIndex)


def _moment(timestamp_ms: int) -> str:
    """A record's time in UTC, and its timestamp; only that beyond the range of the calendar."""
    try:
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"timestamp {timestamp_ms}"
    return f"{moment.isoformat(' ', 'milliseconds')}Z (timestamp {timestamp_ms})"


class IndexCheck:
    """The indexes of one segment, read at creation: before the .log is mapped, which may be growing.

    `interval_given`: `config` has the topic's index.interval.bytes, so an empty index can be judged by it. `deep`:
    compare what an index says about records with the records.
    """

    def __init__(
        self, segment: Segment, config: LogConfig, findings: list[Finding], *, interval_given: bool, deep: bool
    ) -> None:
        self._segment = segment
        self._config = config
        self._findings = findings
        self._interval_given = interval_given
        self._missing: set[str] = set()
        self._minutes = MinuteIndexCheck(segment, findings)
        self._ranges = TimeRangesCheck(segment, findings, deep=deep)
        self._stats = ColumnStatsCheck(segment, findings, deep=deep)
        dialect = self._dialect = segment.dialect
        offset_index = self._open(OFFSET_INDEXES[dialect.name], dialect.offset_index, "index_corrupt")
        if dialect.has_one_index and offset_index is None:
            time_index = None       # already reported
        else:
            time_index = self._open(TIME_INDEXES[dialect.name], dialect.time_index, "timeindex_corrupt")
        self._empty = EmptyIndex(segment.base_offset, config.index_interval_bytes)
        self._has_empty_index = offset_index is not None and not len(offset_index)
        self._has_empty_time_index = time_index is not None and not len(time_index)
        self._offsets: Entries = () if offset_index is None else offset_index
        self._times: Entries = () if time_index is None else time_index
        self._offset_slot = self._time_slot = 0
        self._last_offset = segment.base_offset - 1
        self._data_bytes = 0
        self._largest = -1
        self._misled: list[int] = []
        self._hidden: list[int] = []
        self._loose: list[int] = []

    def _path(self, suffix: str) -> str:
        return str(beside(self._segment.path, suffix))

    def _open(self, kind: type[Index], suffix: str, corrupt: str) -> Index | None:
        path = beside(self._segment.path, suffix)
        try:
            # (A copy: a broker truncates its indexes.)
            index = kind(read_file(path), self._segment.base_offset, path=path)
        except FileNotFoundError:
            self._missing.add(suffix)
            return None
        except StorageError as e:
            self._find("unreadable", suffix, found=e.what)
            return None
        except CorruptIndexError as e:
            self._find(corrupt, suffix, position=e.position, found=e.what)
            return None
        limit = self._config.segment_index_bytes
        if index.size_bytes > limit:
            self._find("index_too_large", suffix, found=f"{index.size_bytes} bytes", expected=f"at most {limit}")
        elif index.preallocated_bytes:
            self._find("index_zero_tail", suffix, position=len(index) * index.ENTRY_SIZE,
                       size_bytes=index.preallocated_bytes)
        return index

    # --- the walk ----------------------------------------------------------------------------

    def see(self, table: BatchTable) -> None:
        self._see_offsets(table)
        self._see_times(table)
        self._minutes.see(table)
        self._ranges.see(table)
        self._stats.see(table)
        if self._has_empty_index:
            self._empty.see(table)
        self._last_offset = table[-1].last_offset
        self._data_bytes = table.end

    def _see_offsets(self, table: BatchTable) -> None:
        entries, count = self._offsets, len(self._offsets)
        for slot in range(self._offset_slot, count):
            offset, position = entries[slot]
            if position >= table.end:
                self._offset_slot = slot
                return
            batch_slot = survey.find_position(table, position)
            if batch_slot < 0 or not self._begins_by(table, batch_slot, offset):
                self._misled.append(slot)
        self._offset_slot = count

    def _begins_by(self, table: BatchTable, slot: int, offset: int) -> bool:
        batch = table[slot]
        if batch.magic not in (0, 1) or batch.codec == 0:
            return batch.base_offset <= offset
        # A wrapper: it begins after the batch before it; to know exactly where, it would have to be opened.
        before = table[slot - 1].last_offset if slot else self._last_offset
        return before < offset

    def _see_times(self, table: BatchTable) -> None:
        seen, largest = 0, self._largest
        entries, slot, count = self._times, self._time_slot, len(self._times)
        while slot < count:
            timestamp, offset = entries[slot]
            # (Offsets of entries do not fall: anything below the last one's batch is below this one's.)
            batch_slot = table.find_offset(offset, max(seen - 1, 0))
            if batch_slot < 0:
                break
            if batch_slot >= seen:
                largest = max(largest, survey.largest_timestamp(table, seen, batch_slot + 1))
                seen = batch_slot + 1
            if largest > timestamp:
                self._hidden.append(slot)
            elif largest < timestamp:
                self._loose.append(slot)
            slot += 1
        self._time_slot = slot
        self._largest = max(largest, survey.largest_timestamp(table, min(seen, len(table)), -1))

    # --- the end -----------------------------------------------------------------------------

    def finish(self, lost: Sequence[tuple[int, int]]) -> None:
        """Report the findings. `lost`: damaged byte ranges of the log; entries that point into them are ignored."""
        self._misled += range(self._offset_slot, len(self._offsets))
        self._hidden += range(self._time_slot, len(self._times))
        self._misled = [s for s in self._misled if not _within(self._offsets[s][1], lost)]
        if self._misled:
            self._tell(
                "index_misleads", self._dialect.offset_index, self._misled, self._offsets,
                self._dialect.offset_entry_bytes,
            )
        if self._hidden and not lost:
            self._tell_of_times("timeindex_misleads", self._hidden)
        if self._loose:
            self._tell_of_times("timeindex_loose", self._loose)
        self._minutes.finish(is_damaged=bool(lost))
        self._ranges.finish(self._segment.window, is_damaged=bool(lost))
        self._stats.finish(self._segment.window, is_damaged=bool(lost))
        self._find_missing()

    def _find_missing(self) -> None:
        size = self._data_bytes
        if self._dialect.offset_index in self._missing:
            if size:
                self._find("index_missing", self._dialect.offset_index)
        elif self._has_empty_index:
            code = self._empty.judge(self._times, interval_given=self._interval_given)
            if code is not None:
                expected = f"entries for {size} bytes of log"
                if code == "index_undecided":
                    expected += " if index.interval.bytes, which is not known, is less than that"
                self._find(code, self._dialect.offset_index, found="no entry", expected=expected)
        if self._largest < 0 or self._dialect.has_one_index:
            return
        if self._dialect.time_index in self._missing:
            self._find("timeindex_missing", self._dialect.time_index)
        elif self._has_empty_time_index:
            self._find("timeindex_empty", self._dialect.time_index, found="no entry",
                       expected=f"an entry for {_moment(self._largest)}")
        elif self._times and self._times[-1][0] < self._largest and not self._segment.is_last:
            self._find("timeindex_behind", self._dialect.time_index, found=f"timestamp {self._times[-1][0]}",
                       expected=f"timestamp {self._largest}")

    def _tell_of_times(self, code: str, slots: Sequence[int]) -> None:
        self._tell(code, self._dialect.time_index, slots, self._times, self._dialect.time_entry_bytes)

    def _tell(
        self, code: str, suffix: str, slots: Sequence[int], entries: Entries, entry_size: int
    ) -> None:
        more = f", and {len(slots) - 1} more" if len(slots) > 1 else ""
        self._find(code, suffix, position=slots[0] * entry_size, found=f"entry {slots[0]} {entries[slots[0]]}{more}")

    def _find(
        self, code: str, suffix: str, *, position: int | None = None, size_bytes: int | None = None,
        found: str = "", expected: str = "",
    ) -> None:
        self._findings.append(
            Finding(code, self._path(suffix), position, size_bytes=size_bytes, found=found, expected=expected))


def _within(position: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether it is in one of the ranges, which are in order and do not overlap."""
    slot = bisect_right(ranges, position, key=lambda r: r[0])
    return slot > 0 and position < ranges[slot - 1][1]
