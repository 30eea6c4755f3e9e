"""Which segments a log has, and where it begins, at one moment."""
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from seglog.segment.segment import NO_END, Segment

# No offset and no timestamp is as large: they are int64.
OFFSET_LIMIT = 2**63


class Shown:
    """What readers of a log see: `extent`, replaced as a whole; None: closed."""

    __slots__ = ("extent",)

    def __init__(self) -> None:
        self.extent: Extent | None = None


class Extent:
    """The segments of a log, in order, at least one, and the first offset that a reader may see. Does not change.

    A log that rolls, or loses segments, has another Extent from then on: one store of one attribute, so
    that a reader finds segments and start that belong together.
    """

    __slots__ = ("_largest", "base_offsets", "log_start_offset", "segments")

    def __init__(self, segments: Iterable[Segment], log_start_offset: int) -> None:
        self.segments = tuple(segments)
        self.log_start_offset = log_start_offset
        self.base_offsets = tuple(segment.base_offset for segment in self.segments)
        # Of each segment but the last: the largest timestamp in it and in those before. As many as were asked for.
        self._largest: list[int] = []
        self._bound()

    def _bound(self) -> None:
        """Tell each segment where the next one begins: no batch of it ends behind."""
        for segment, following in pairwise(self.segments):
            segment.end_offset = following.base_offset
        for segment in self.segments[-1:]:
            segment.end_offset = NO_END

    def followed_by(self, segment: Segment) -> "Extent":
        """The same after a roll: what was learned of the segments before stays known."""
        later = Extent((), self.log_start_offset)
        later.segments = (*self.segments, segment)
        later.base_offsets = (*self.base_offsets, segment.base_offset)
        later._largest = self._largest
        self.segments[-1].end_offset = segment.base_offset
        return later

    @property
    def log_end_offset(self) -> int:
        """One past the last offset; of a segment that grows, of what is published now."""
        return self.segments[-1].next_offset

    def slot_of(self, offset: int) -> int:
        """The slot of the last segment whose base is at or below the offset, 0 where there is none."""
        return max(bisect_right(self.base_offsets, offset) - 1, 0)

    def segments_from(self, offset: int) -> Iterator[Segment]:
        """The segment that holds the offset, and those behind it."""
        return islice(self.segments, self.slot_of(offset), None)

    def slot_at(self, timestamp: int) -> int:
        """The slot of the first segment with a timestamp as large, or with damage that hides it; else of the last one.

        Walks the headers of each segment before it, once for each opening.
        """
        largest = self._largest
        slot = bisect_left(largest, timestamp)
        if slot == len(largest) < len(self.segments) - 1:
            largest = largest.copy()        # threads share the list
            for segment in self.segments[len(largest):-1]:
                passed = segment.largest_passed
                largest.append(max(largest[-1] if largest else -1, OFFSET_LIMIT if passed is None else passed))
                if largest[-1] >= timestamp:
                    break
            self._largest = largest
            slot = bisect_left(largest, timestamp)
        return slot

    def end_now(self, stop: int | None) -> int | None:
        """`stop`, or the end as of now where somebody appends."""
        if self.segments[-1].published is None:
            return stop
        end = self.log_end_offset
        return end if stop is None else min(stop, end)
