"""Which segments a log has, and where it begins, at one moment."""
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import overload

from seglog._kernels.quick_read import ShownSegments
from seglog.segment.damage import NO_END
from seglog.segment.segment import Segment

# Larger than every offset and timestamp: they are int64.
OFFSET_LIMIT = 2**63


class Shown(ShownSegments):
    """What readers of a log see: `extent`, which is replaced as a whole, and None once the log is closed."""

    __slots__ = ()
    extent: "Extent | None"


class Stretch(Sequence[Segment]):
    """Adjacent segments, in lists that several stretches may share: the lists only ever grow. Immutable.

    `cells[:stop]` are the segments, and `bases` holds their base offsets in the same places, to be searched.
    """

    __slots__ = ("bases", "cells", "stop")

    def __init__(self, cells: list[Segment], bases: list[int]) -> None:
        self.cells = cells
        self.bases = bases
        self.stop = len(cells)

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> "Stretch":
        cells = list(segments)
        return cls(cells, [segment.base_offset for segment in cells])

    def __len__(self) -> int:
        return self.stop

    @overload
    def __getitem__(self, slot: int) -> Segment: ...
    @overload
    def __getitem__(self, slot: slice) -> tuple[Segment, ...]: ...
    def __getitem__(self, slot: int | slice) -> Segment | tuple[Segment, ...]:
        if isinstance(slot, slice):
            start, stop, step = slot.indices(self.stop)
            return tuple(self.cells[start:stop] if step == 1 else self.cells[: self.stop][slot])
        place = slot if slot >= 0 else slot + self.stop
        if not 0 <= place < self.stop:
            raise IndexError(slot)
        return self.cells[place]

    def __iter__(self) -> Iterator[Segment]:
        return islice(self.cells, self.stop)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None     # type: ignore[assignment]

    def slot_of(self, offset: int) -> int:
        """The slot of the last segment whose base is at or below the offset, 0 if there is none."""
        return max(bisect_right(self.bases, offset, 0, self.stop) - 1, 0)

    def followed_by(self, segment: Segment) -> "Stretch":
        cells, bases = self.cells, self.bases
        if self.stop != len(cells):
            cells, bases = cells[: self.stop], bases[: self.stop]
        bases.append(segment.base_offset)
        cells.append(segment)
        return Stretch(cells, bases)

    def behind(self, count: int) -> "Stretch":
        """Without the first `count`. Has lists of its own, so that it does not keep the maps of those segments open."""
        return Stretch(self.cells[count : self.stop], self.bases[count : self.stop])

    def exchanged(self, begin: int, stop: int, new: Sequence[Segment]) -> "Stretch":
        """With `new` in the place of the segments in [begin, stop)."""
        cells = [*self.cells[:begin], *new, *self.cells[stop : self.stop]]
        bases = [*self.bases[:begin], *(segment.base_offset for segment in new), *self.bases[stop : self.stop]]
        return Stretch(cells, bases)


class Extent:
    """The segments of a log, in order, at least one, and the first offset that a reader may see. Immutable.

    A log that rolls, or loses segments, gets another Extent: one store of one attribute, so that a reader finds
    segments and start that belong together. Both share the lists of the segments.
    """

    __slots__ = ("_largest", "log_start_offset", "segments")

    def __init__(self, segments: Iterable[Segment], log_start_offset: int) -> None:
        self.segments = Stretch.of(segments)
        self.log_start_offset = log_start_offset
        # For each segment but the last: the largest timestamp in it and in those before. Filled as far as needed.
        self._largest: list[int] = []
        _bind(self.segments)
        for segment in self.segments[-1:]:
            segment.end_offset = NO_END

    @classmethod
    def _of(cls, segments: Stretch, log_start_offset: int, largest: list[int]) -> "Extent":
        self = cls.__new__(cls)
        self.segments, self.log_start_offset, self._largest = segments, log_start_offset, largest
        return self

    def followed_by(self, segment: Segment) -> "Extent":
        """The same after a roll: what is known about the earlier segments is kept."""
        self.segments[-1].end_offset = segment.base_offset
        return Extent._of(self.segments.followed_by(segment), self.log_start_offset, self._largest)

    def behind(self, count: int, log_start_offset: int) -> "Extent":
        """The same without the first `count` segments."""
        return Extent._of(self.segments.behind(count), log_start_offset, [] if count else self._largest)

    def exchanged(self, begin: int, stop: int, new: Sequence[Segment]) -> "Extent":
        """The same with `new` in the place of the sealed segments in [begin, stop)."""
        segments = self.segments.exchanged(begin, stop, new)
        _bind(segments[max(begin - 1, 0) : begin + len(new) + 1])
        return Extent._of(segments, self.log_start_offset, self._largest[:begin])

    @property
    def log_end_offset(self) -> int:
        """One past the last offset; if the last segment grows, of what is published now."""
        segments = self.segments
        return segments.cells[segments.stop - 1].next_offset

    def slot_of(self, offset: int) -> int:
        """The slot of the last segment whose base is at or below the offset, 0 if there is none."""
        return self.segments.slot_of(offset)

    def segments_from(self, offset: int) -> Iterator[Segment]:
        """The segment that holds the offset, and all later ones."""
        segments = self.segments
        slot = max(bisect_right(segments.bases, offset, 0, segments.stop) - 1, 0)      # slot_of without a call
        return islice(segments.cells, slot, segments.stop)

    def slot_at(self, timestamp: int) -> int:
        """The slot of the first segment with this timestamp or a larger one, or with damage that may hide it; otherwise
        of the last one.

        Walks the headers of each segment before it, once for each opening.
        """
        largest = self._largest
        slot = bisect_left(largest, timestamp)
        segments = self.segments
        if slot == len(largest) < len(segments) - 1:
            largest = largest.copy()        # threads share the list
            for segment in islice(segments.cells, len(largest), segments.stop - 1):
                passed = segment._largest_passed
                largest.append(max(largest[-1] if largest else -1, OFFSET_LIMIT if passed is None else passed))
                if largest[-1] >= timestamp:
                    break
            self._largest = largest
            slot = bisect_left(largest, timestamp)
        return slot

    def end_now(self, stop: int | None) -> int | None:
        """`stop`, but not past the current end if the log is being appended to."""
        segments = self.segments
        last = segments.cells[segments.stop - 1]
        if last.published is None:
            return stop
        end = last.next_offset
        return end if stop is None else min(stop, end)


def _bind(segments: Iterable[Segment]) -> None:
    """Tell each segment but the last where the next one begins: no batch of it ends after that."""
    for segment, following in pairwise(segments):
        segment.end_offset = following.base_offset
