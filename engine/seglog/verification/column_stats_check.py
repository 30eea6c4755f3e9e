"""Checks a segment's column statistics (docs/formats/column_stats.md) against its log; takes the batches in order.

A query trusts statistics whose checksum is correct and that were made from this log, as a search trusts time ranges
(time_ranges_check): only reading all records shows whether they hide some (level "deep").
"""
from itertools import zip_longest

from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError, StorageError, UnsupportedVersionError
from seglog.segment.batches import UNREADABLE
from seglog.segment.column_stats import ColumnStats, ColumnStatsBuilder, column_stats_path, read_column_stats
from seglog.segment.segment import Segment
from seglog.verification.findings import Finding


class ColumnStatsCheck:
    """The check of one segment; its file, if any, is read at creation. `deep`: compare with the records."""

    def __init__(self, segment: Segment, findings: list[Finding], *, deep: bool) -> None:
        self._segment = segment
        self._path = column_stats_path(segment.path)
        self._findings = findings
        self._stats: ColumnStats | None = None
        self._builder: ColumnStatsBuilder | None = None
        try:
            self._stats = read_column_stats(segment.path)
        except FileNotFoundError:
            return
        except StorageError as e:
            self._find("unreadable", None, e.what)
        except UnsupportedVersionError as e:
            self._find("stats_newer", e.position, e.what)
        except CorruptIndexError as e:
            self._find("stats_corrupt", e.position, e.what)
        if deep and self._stats is not None:
            self._builder = ColumnStatsBuilder(segment.base_offset, self._stats.run_bytes)

    def see(self, table: BatchTable) -> None:
        """Take the next batches of the segment."""
        if self._builder is not None:
            try:
                self._builder.add(table)
            except UNREADABLE:      # damage, which the walk reports
                self._builder = None

    def finish(self, window: Window, *, is_damaged: bool) -> None:
        """Report the findings. `window`: the log. `is_damaged`: parts of it are damaged, so nothing can be compared."""
        stats = self._stats
        if stats is None or (self._segment.is_last and stats.log_bytes < len(window)):
            return      # the last segment may have grown since
        if not stats.describes(window, self._segment.base_offset):
            self._find(
                "stats_stale", 24, f"of {stats.log_bytes} bytes of log from offset {stats.base_offset} to "
                f"{stats.next_offset - 1}", f"of the {len(window)} bytes beside it",
            )
        elif self._builder is not None and not is_damaged:
            right = ColumnStats(self._builder.finish(), self._path)
            for slot, (expected, found) in enumerate(zip_longest(right.runs, stats.runs)):
                if found != expected:
                    self._find("stats_mislead", None, f"run {slot}: {found}", str(expected))
                    break

    def _find(self, code: str, position: int | None, found: str, expected: str = "") -> None:
        self._findings.append(Finding(code, str(self._path), position, found=found, expected=expected))
