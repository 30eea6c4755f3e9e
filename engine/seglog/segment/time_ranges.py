"""The time ranges of a sealed segment: smallest and largest timestamp of each run (docs/formats/time_ranges.md).

    .ranges.index   TimeRanges   if seglog.time.index.ranges.enabled is set, or `index rebuild --time-ranges` was run

A search by time reads only runs that may contain the time, and walks no other headers, in whatever order times are.
Queries over a log as a table prune by `spans` or `columns`.

Ranges are trusted only for the log that they were made from: its size and its last batch must match those in the file.
If the log was truncated, compacted or replaced, the file is ignored (`time_ranges_of`), as is a damaged one, or one of
a newer version: then a search walks the headers.
"""
from array import array
from collections.abc import Iterator
from pathlib import Path

from seglog._kernels.time_ranges import TimeRangesSearch
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError, StorageError, UnsupportedVersionError
from seglog.format import names
from seglog.format.dialect import beside
from seglog.fs.mapping import Mapping
from seglog.named_tuple import NamedTuple

_OFFSET_MAX = 2**63 - 1


class TimeRange(NamedTuple):
    """A run: the offsets [start_offset, stop_offset), possibly with gaps, in the bytes [position, end_position).

    A record without a timestamp counts as -1. Without any records, smallest is 2^63 - 1 and largest -2^63.
    """

    start_offset: int
    stop_offset: int
    position: int
    end_position: int
    smallest: int
    largest: int


class TimeSpan(NamedTuple):
    """Consecutive runs: their offsets [start_offset, stop_offset), and bytes [position, end_position)."""

    start_offset: int
    stop_offset: int
    position: int
    end_position: int


class RangeColumns(NamedTuple):
    """Runs as columns of int64: first offsets, positions, smallest and largest timestamps."""

    offsets: "array[int]"
    positions: "array[int]"
    smallest: "array[int]"
    largest: "array[int]"


class TimeRanges(TimeRangesSearch):
    """`TimeRanges(window)`: the ranges in a file, as a sequence of TimeRange. Thread-safe.

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
        """Return where records with timestamps in [smallest, largest] (ms) may be: none are elsewhere.

        Consecutive runs form one span. `start_offset`, `stop_offset`: only runs that overlap [start_offset,
        stop_offset). A span consists of whole runs, so it may begin earlier and end later.
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
        """Return the runs [first, stop) as buffers of int64, for any library that accepts those."""
        count = max((len(self) if stop is None else min(stop, len(self))) - first, 0)
        columns = RangeColumns(*(array("q", bytes(8 * count)) for _ in range(4)))
        self.copy(first, *columns)
        return columns


def time_ranges_path(log: Path) -> Path:
    """Return the path for a .log file. (A .tlog has none.)"""
    return beside(log, names.TIME_RANGES_SUFFIX)


def read_time_ranges(log: Path) -> TimeRanges:
    """Read the file beside the .log at `log`, without checking whether it was made from this log.

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
    """Return the time ranges made from this log; None if there are none. `window`: all bytes of the log."""
    if not time_ranges_path(log).exists():      # the usual case
        return None
    try:
        ranges = read_time_ranges(log)
    except (FileNotFoundError, StorageError, CorruptIndexError, UnsupportedVersionError):
        return None
    is_ours = ranges.base_offset == names.parse_base_offset(log.name) and ranges.describes(window)
    return ranges if is_ours else None
