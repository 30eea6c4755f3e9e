"""Which records of a topic are read as a table: offsets, partitions, and what prunes."""
from dataclasses import dataclass

from seglog.frames.options import OFFSET_MAX
from seglog.frames.part import ScanPart
from seglog.log.arguments import Isolation
from seglog.segment.column_stats import ColumnStats
from seglog.segment.time_ranges import TimeRanges

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Which records of each partition are asked for. `partitions`, `topics`: of these only; None: all."""

    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    isolation: Isolation = "read_uncommitted"
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    # Only to prune: records with other keys may come as well.
    smallest_key: bytes | None = None
    largest_key: bytes | None = None

    @property
    def has_keys(self) -> bool:
        return self.smallest_key is not None or self.largest_key is not None


def spans_by_stats(stats: ColumnStats, part: ScanPart, limits: Limits) -> Spans:
    """Where in the .log of a part its times and the keys of `limits` may be: (position, end position)."""
    found = stats.spans(
        part.options.since_ms, part.options.last_ms, smallest_key=limits.smallest_key, largest_key=limits.largest_key,
        start_offset=part.start_offset, stop_offset=part.stop_offset,
    )
    return tuple((span.position, span.end_position) for span in found)


def spans_by_times(ranges: TimeRanges, part: ScanPart) -> Spans:
    """Where in the .log of a part its times may be: (position, end position)."""
    found = ranges.spans(
        part.options.since_ms, part.options.last_ms, start_offset=part.start_offset, stop_offset=part.stop_offset
    )
    return tuple((span.position, span.end_position) for span in found)
