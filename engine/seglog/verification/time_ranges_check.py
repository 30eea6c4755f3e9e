"""Checks a segment's time ranges (docs/formats/time_ranges.md) against its log; takes the walk's batches in order.

Searches trust ranges whose checksum is correct and that were made from this log. So a damaged or stale file costs time
but never gives a wrong answer; ranges that contradict the records can hide some, and only reading all records shows
that (level "deep").
"""
from itertools import zip_longest

from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.time_ranges import TimeRangesBuilder
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError, InvalidArgumentError, StorageError, UnsupportedVersionError
from seglog.segment.batches import UNREADABLE
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import TimeRange, TimeRanges, read_time_ranges, time_ranges_path
from seglog.verification.findings import Finding


class TimeRangesCheck:
    """The check of one segment; its file, if any, is read at creation. `deep`: compare with the records."""

    def __init__(self, segment: Segment, findings: list[Finding], *, deep: bool) -> None:
        self._segment = segment
        self._path = str(time_ranges_path(segment.path))
        self._findings = findings
        self._ranges: TimeRanges | None = None
        self._builder: TimeRangesBuilder | None = None
        try:
            ranges = read_time_ranges(segment.path)
        except FileNotFoundError:
            return
        except StorageError as e:
            self._find("unreadable", None, e.what)
            return
        except UnsupportedVersionError as e:
            self._find("timeranges_newer", e.position, e.what)
            return
        except CorruptIndexError as e:
            self._find("timeranges_corrupt", e.position, e.what)
            return
        self._ranges = ranges
        if deep:
            self._builder = TimeRangesBuilder(segment.base_offset, ranges.run_bytes)

    def see(self, table: BatchTable) -> None:
        """Take the next batches of the segment."""
        if self._builder is not None:
            try:
                self._builder.add(table, self._segment.decompress)
            except (*UNREADABLE, InvalidArgumentError):     # damage, which the walk reports
                self._builder = None

    def finish(self, window: Window, *, is_damaged: bool) -> None:
        """Report the findings. `window`: the log. `is_damaged`: parts of it are damaged, so nothing can be compared."""
        ranges = self._ranges
        if ranges is None or (self._segment.is_last and ranges.log_bytes < len(window)):
            return      # the last segment may have grown since
        if ranges.base_offset != self._segment.base_offset or not ranges.describes(window):
            self._find(
                "timeranges_stale", 24, f"of {ranges.log_bytes} bytes of log from offset {ranges.base_offset} to "
                f"{ranges.next_offset - 1}", f"of the {len(window)} bytes beside it",
            )
        elif self._builder is not None and not is_damaged:
            right = TimeRanges(Window(self._builder.finish()))
            for slot, (expected, found) in enumerate(zip_longest(right, ranges)):
                if found != expected:
                    self._find("timeranges_mislead", 64 + 32 * slot, f"run {slot} {_shown(found)}", _shown(expected))
                    break

    def _find(self, code: str, position: int | None, found: str, expected: str = "") -> None:
        self._findings.append(Finding(code, self._path, position, found=found, expected=expected))


def _shown(run: TimeRange | None) -> str:
    return "no run" if run is None else str(tuple(run))
