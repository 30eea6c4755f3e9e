"""The time ranges of a sealed segment: smallest and largest timestamp of each run (docs/formats/time_ranges.md).

    .ranges.index   TimeRanges   where time.index.ranges.enabled is set, or `index rebuild --time-ranges` was called

A search by time looks into runs that may hold the time, and walks no other headers, in whatever order times are. What
prunes by time (a query over a log as a table) takes `spans`, or `columns`.

Ranges are believed for the log that they were made from, and for no other: its size and its last batch must be those
that the file names. So a file whose log was cut, compacted or replaced is passed over (`time_ranges_of`), as is a
damaged one, or one of a newer version: then a search walks the headers.
"""
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from seglog._kernels.time_ranges import TimeRangesSearch
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError, StorageError, UnsupportedVersionError
from seglog.format import names
from seglog.format.dialect import beside
from seglog.fs.mapping import Mapping

# Measured at 10^7 records (docs/benchmarks.md): smaller runs make lookups no quicker.
RUN_BYTES = 64 << 10
_OFFSET_MAX = 2**63 - 1


class TimeRange(NamedTuple):
    """A run: the offsets [start_offset, stop_offset), holes among them, in the bytes [position, end_position).

    A record without a timestamp counts as -1. Without any record, smallest is 2^63 - 1 and largest -2^63.
    """

    start_offset: int
    stop_offset: int
    position: int
    end_position: int
    smallest: int
    largest: int


class TimeSpan(NamedTuple):
    """Runs that follow each other: their offsets [start_offset, stop_offset), and bytes [position, end_position)."""

    start_offset: int
    stop_offset: int
    position: int
    end_position: int


class RangeColumns(NamedTuple):
    """Runs, one field to a column of int64: first offsets, positions, smallest and largest timestamps."""

    offsets: "array[int]"
    positions: "array[int]"
    smallest: "array[int]"
    largest: "array[int]"


class TimeRanges(TimeRangesSearch):
    """`TimeRanges(window)`: those of a whole file, as a sequence of TimeRange. Threads may share it.

    Raises CorruptIndexError, and UnsupportedVersionError for a file of a newer seglog.
    """

    def __getitem__(self, slot: int) -> TimeRange:
        return TimeRange(*self.run(slot + len(self) if slot < 0 else slot))

    def __iter__(self) -> Iterator[TimeRange]:
        return (TimeRange(*self.run(slot)) for slot in range(len(self)))

    @property
    def smallest(self) -> int:
        """The smallest timestamp of the segment."""
        return self.bounds[0]

    @property
    def largest(self) -> int:
        """The largest timestamp of the segment."""
        return self.bounds[1]

    def spans(
        self, smallest: int, largest: int, *, start_offset: int = 0, stop_offset: int = _OFFSET_MAX
    ) -> Iterator[TimeSpan]:
        """Where records with timestamps in [smallest, largest] (ms) may be: nowhere else are any.

        Runs that follow each other are one span. `start_offset`, `stop_offset`: only runs that reach into
        [start_offset, stop_offset). A span may begin before and end behind: it consists of whole runs.
        """
        slot = self.slot_at(start_offset)
        while (slot := self.find(slot, smallest, largest)) >= 0:
            first = self[slot]
            if first.start_offset >= stop_offset:
                return
            stop = min(self.find_end(slot, smallest, largest), self.slot_at(stop_offset - 1) + 1)
            last = self[stop - 1]
            if last.stop_offset > start_offset:
                yield TimeSpan(first.start_offset, last.stop_offset, first.position, last.end_position)
            slot = stop

    def columns(self, first: int = 0, stop: int | None = None) -> RangeColumns:
        """The runs [first, stop): buffers of int64, for any library that takes such."""
        count = max((len(self) if stop is None else min(stop, len(self))) - first, 0)
        columns = RangeColumns(*(array("q", bytes(8 * count)) for _ in range(4)))
        self.copy(first, *columns)
        return columns


def time_ranges_path(log: Path) -> Path:
    """That of a .log file. (A .tlog has none.)"""
    return beside(log, names.TIME_RANGES_SUFFIX)


def read_time_ranges(log: Path) -> TimeRanges:
    """The file beside the .log at `log`. Whether it was made from this log is not checked.

    Raises FileNotFoundError, StorageError, CorruptIndexError and UnsupportedVersionError.
    """
    path = time_ranges_path(log)
    try:
        return TimeRanges(Window(Mapping(path), str(path)))
    except StorageError as error:
        if not path.exists():
            raise FileNotFoundError(path) from error
        raise


def time_ranges_of(log: Path, window: Window) -> TimeRanges | None:
    """The time ranges that were made from this log; None if there are none. `window`: all bytes of the log."""
    if not time_ranges_path(log).exists():      # as a rule
        return None
    try:
        ranges = read_time_ranges(log)
    except (FileNotFoundError, StorageError, CorruptIndexError, UnsupportedVersionError):
        return None
    is_ours = ranges.base_offset == names.parse_base_offset(log.name) and ranges.describes(window)
    return ranges if is_ours else None
