"""Limits on the records of a topic that are read as a table: offsets, partitions, and bounds that only prune."""
from dataclasses import dataclass

from seglog.frames.options import OFFSET_MAX
from seglog.frames.part import ScanPart
from seglog.reading.arguments import Isolation
from seglog.segment.column_stats import ColumnStats
from seglog.segment.time_ranges import TimeRanges

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The requested records of each partition. `partitions`, `topics`: only these, or all if None."""

    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    isolation: Isolation = "read_uncommitted"
    is_isolation_chosen: bool = False       # by the user; write_table has another default
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    # These only prune: records with other keys may be read as well.
    smallest_key: bytes | None = None
    largest_key: bytes | None = None

    @property
    def has_keys(self) -> bool:
        return self.smallest_key is not None or self.largest_key is not None

    def has_place(self, topic: str, partition: int) -> bool:
        """Whether records of this partition are requested."""
        return (self.partitions is None or partition in self.partitions) and (
            self.topics is None or topic in self.topics
        )


def spans_by_stats(stats: ColumnStats, part: ScanPart, limits: Limits) -> Spans:
    """The spans (position, end position) of a part's .log that may contain its times and the keys of `limits`."""
    found = stats.spans(
        part.options.since_ms, part.options.last_ms, smallest_key=limits.smallest_key, largest_key=limits.largest_key,
        start_offset=part.start_offset, stop_offset=part.stop_offset,
    )
    return tuple((span.position, span.end_position) for span in found)


def spans_by_times(ranges: TimeRanges, part: ScanPart) -> Spans:
    """The spans (position, end position) of a part's .log that may contain its times."""
    found = ranges.spans(
        part.options.since_ms, part.options.last_ms, start_offset=part.start_offset, stop_offset=part.stop_offset
    )
    return tuple((span.position, span.end_position) for span in found)
