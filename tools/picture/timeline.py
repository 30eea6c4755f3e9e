"""A partition over time, from its batch headers: a rectangle for each segment, bytes by time, times that go back."""
from collections import Counter
from dataclasses import dataclass, field

from seglog._kernels.segment_scan import BatchTable
from seglog.errors import StorageError
from seglog.log.partition import Partition

from ..ls import Totals, extent_of

# The most batches drawn whose time goes back, and as many that lie in the future; all are counted.
DOTS_MAX = 2_000
_MINUTE_MS = 60_000


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
    """`minutes`: bytes of batches by the minute of their largest timestamp."""

    now_ms: int
    segments: list[SegmentSpan] = field(default_factory=list)
    minutes: Counter[int] = field(default_factory=Counter)
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
        self.minutes[ms // _MINUTE_MS] += size_bytes
        if ms > self.now_ms:
            self.future.add(offset, ms)
        if ms < self._largest_ms:
            self.late.add(offset, ms)
        else:
            self._largest_ms = ms

    def bytes_by(self, buckets: int) -> tuple[int, list[tuple[int, int]]]:
        """Return (ms per bucket, [(start in ms, bytes)]): at most `buckets`, of whole minutes, without gaps."""
        if not self.minutes:
            return _MINUTE_MS, []
        first, last = min(self.minutes), max(self.minutes)
        width = -(-(last - first + 1) // buckets)
        sums: Counter[int] = Counter()
        for minute, size_bytes in self.minutes.items():
            sums[(minute - first) // width] += size_bytes
        return width * _MINUTE_MS, [
            ((first + n * width) * _MINUTE_MS, sums[n]) for n in range((last - first) // width + 1)
        ]
