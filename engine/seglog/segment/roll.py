"""When a log rolls to a new segment, and the name of the new one: Kafka's LogSegment.shouldRoll.

Decided before each append, for the whole append, by its size, largest timestamp and last offset. Nothing here
touches a file or reads a clock.
"""
from collections.abc import Callable

from seglog.config import LogConfig
from seglog.late_import import late
from seglog.segment.index_file import OffsetIndex, TimeIndex

# An index entry holds the offset as a signed int32 above the segment's base
# (LogSegment.canConvertToRelativeOffset).
RELATIVE_OFFSET_MAX = 2**31 - 1


class RollRule:
    """The rule for one segment: its start, and the limits of its configuration.

    `created_ms` is the time when the segment was created or, as in Kafka, last opened; `jitter_ms` is its share of
    segment.jitter.ms. `first_timestamp` is the largest of the segment's first batch, None before it has one.
    """

    __slots__ = (
        "base_offset", "created_ms", "first_timestamp", "index_interval_bytes", "offset_entries_max", "segment_bytes",
        "segment_ms", "time_entries_max",
    )

    def __init__(self, base_offset: int, config: LogConfig, created_ms: int, jitter_ms: int = 0) -> None:
        self.base_offset = base_offset
        self.segment_bytes = config.segment_bytes
        self.index_interval_bytes = config.index_interval_bytes
        self.segment_ms = config.segment_ms - jitter_ms
        self.created_ms = created_ms
        self.first_timestamp: int | None = None
        self.offset_entries_max = config.segment_index_bytes // OffsetIndex.ENTRY_SIZE
        # The last slot of a time index is reserved for its closing entry (TimeIndex.isFull).
        self.time_entries_max = config.segment_index_bytes // TimeIndex.ENTRY_SIZE - 1

    def entries_left(self, offset_entries: int, time_entries: int) -> int:
        """Return how many more index entries fit; 0 or less: an index is full."""
        return min(self.offset_entries_max - offset_entries, self.time_entries_max - time_entries)

    def is_due(
        self,
        size_bytes: int,
        entries_left: int,
        append_bytes: int,
        max_timestamp: int,
        last_offset: int,
        now_ms: int,
    ) -> bool:
        """Whether a segment of `size_bytes` rolls before an append of this size, last offset and largest time.

        In Kafka, an append larger than segment.bytes would roll even an empty segment: LogValidator refuses it before.
        """
        # LogSegment.timeWaitedForRoll: by the records' time if the first batch has one, otherwise by the clock.
        first = self.first_timestamp
        waited_ms = now_ms - self.created_ms if first is None or first < 0 else max_timestamp - first
        return (
            append_bytes > self.segment_bytes - size_bytes
            or (waited_ms > self.segment_ms and size_bytes > 0)
            or entries_left <= 0
            or not 0 <= last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
        )

    def is_idle(self, size_bytes: int, begun_ms: int, now_ms: int) -> bool:
        """Whether a segment that began at `begun_ms`, by the clock, is older than segment.ms, and not empty.

        Only the clock counts: a segment of old records does not roll at once.
        """
        return size_bytes > 0 and now_ms - begun_ms > self.segment_ms


def new_base_offset(first_offset: int | None, last_offset: int, log_end_offset: int) -> int:
    """Return the base offset of the segment that begins with an append (UnifiedLog.maybeRoll, LocalLog.roll).

    It is the append's first offset, which may be above a gap. `first_offset` is None for v0 or v1 of a replica: Kafka
    does not open the wrapper to find it, and takes the lowest offset that the last one allows.
    """
    return max(last_offset - RELATIVE_OFFSET_MAX if first_offset is None else first_offset, log_end_offset)


def segment_jitter_ms(config: LogConfig, randrange: Callable[[int], int] | None = None) -> int:
    """Return by how much one segment's segment.ms is shortened (LogConfig.randomSegmentJitter)."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    if most <= 0:
        return 0
    if randrange is None:
        late("random")
        import random  # (few logs have a jitter)

        randrange = random.randrange
    return randrange(most)
