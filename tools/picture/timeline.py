"""A partition over time, from its batch headers: a rectangle for each segment, bytes by time, times that go back."""
from collections import Counter
from dataclasses import dataclass, field, replace

from seglog._kernels.segment_scan import BatchTable
from seglog.errors import StorageError
from seglog.reading.partition import Partition

from ..ls import Totals, extent_of
from .time_histogram import TimeHistogram
from .time_limits import TimeLimits

# The most batches drawn whose time goes back, and as many that lie in the future; all are counted.
DOTS_MAX = 2_000


@dataclass(slots=True)
class SegmentSpan:
    """A segment's extent: offsets [base_offset, next_offset), and the sums over its headers."""

    name: str
    base_offset: int
    next_offset: int
    totals: Totals


@dataclass(slots=True)
class Dots:
    """`points`: (offset, ms) of `count` batches, or of every second, fourth, ... if these are more than DOTS_MAX."""

    points: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    _stride: int = 1

    def add(self, offset: int, ms: int) -> None:
        if self.count % self._stride == 0:
            if len(self.points) == DOTS_MAX:
                del self.points[1::2]
                self._stride *= 2
            self.points.append((offset, ms))
        self.count += 1


@dataclass(slots=True)
class Timeline:
    """`sizes`: bytes of batches by their largest timestamp."""

    now_ms: int
    segments: list[SegmentSpan] = field(default_factory=list)
    sizes: TimeHistogram = field(default_factory=TimeHistogram)
    late: Dots = field(default_factory=Dots)
    future: Dots = field(default_factory=Dots)
    _largest_ms: int = -1

    def run(self, partition: Partition) -> None:
        """Walk the headers. Skips a segment that was removed since the directory was listed."""
        for segment in partition.segments:
            try:
                totals, next_offset = extent_of(segment, self._look)
            except StorageError:
                if segment.path.exists():
                    raise
                continue
            self.segments.append(SegmentSpan(segment.path.name, segment.base_offset, next_offset, totals))

    def _look(self, table: BatchTable) -> None:
        for batch in table:
            ms = batch.max_timestamp
            if ms >= 0:
                self._see(batch.last_offset, ms, batch.size_bytes)

    def _see(self, offset: int, ms: int, size_bytes: int) -> None:
        self.sizes.add(ms, size_bytes)
        if ms > self.now_ms:
            self.future.add(offset, ms)
        if ms < self._largest_ms:
            self.late.add(offset, ms)
        else:
            self._largest_ms = ms

    def limits(self) -> TimeLimits:
        """The times that an axis shows. There must be a timestamp."""
        # Without a count: the first timestamp of a batch may be that of one record alone.
        times = Counter({ms: 0 for _, ms in (*self.late.points, *self.future.points)})
        for span in self.segments:
            times.update({ms: 0 for ms in (span.totals.first_timestamp, span.totals.max_timestamp) if ms >= 0})
        earliest_ms = min(times, default=0)
        for ms, count in self.sizes.counts().items():
            times[max(ms, earliest_ms)] += count
        found = TimeLimits.of(times)
        step_ms = self.sizes.step_ms
        if found.last_ms < found.latest_ms and found.last_ms % step_ms == 0:
            return replace(found, last_ms=found.last_ms + step_ms - 1)       # the end of its step
        return found

    def bytes_by(self, bars: int) -> tuple[int, list[tuple[int, int]]]:
        """Return (ms per bar, [(start in ms, bytes)]): at most so many `bars`, without gaps; within the limits."""
        return self.sizes.bars(self.limits(), bars) if self.sizes else (1, [])
