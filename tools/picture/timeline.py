"""How a partition lies in time, by its batch headers: a rectangle a segment, bytes by time, times that run back."""
from collections import Counter
from dataclasses import dataclass, field

from seglog._kernels.batch_survey import tally
from seglog.errors import StorageError
from seglog.log.partition import Partition
from seglog.segment.answers import LostRange
from seglog.segment.segment import Segment

# Of the batches whose time runs back, or lies in the future, as many are drawn at most; all are counted.
DOTS_MAX = 2_000
_MINUTE_MS = 60_000


@dataclass(slots=True)
class SegmentSpan:
    """A segment's place: offsets [base_offset, next_offset), times in ms or -1. `format_bytes`: of v0, v1 and v2."""

    name: str
    base_offset: int
    next_offset: int
    size_bytes: int
    first_ms: int = -1
    last_ms: int = -1
    batches: int = 0
    format_bytes: list[int] = field(default_factory=lambda: [0, 0, 0])
    damaged_bytes: int = 0


@dataclass(slots=True)
class Timeline:
    """`minutes`: bytes of batches by the minute of their largest timestamp. `late` and `future`: (offset, ms)."""

    now_ms: int
    segments: list[SegmentSpan] = field(default_factory=list)
    minutes: Counter[int] = field(default_factory=Counter)
    late: list[tuple[int, int]] = field(default_factory=list)
    future: list[tuple[int, int]] = field(default_factory=list)
    late_count: int = 0
    future_count: int = 0
    _largest_ms: int = -1

    def run(self, partition: Partition) -> None:
        """Walk the headers. A segment that was removed since the directory was listed is passed over."""
        for segment in partition.segments:
            try:
                span = SegmentSpan(segment.path.name, segment.base_offset, segment.base_offset, segment.size_bytes)
                self._walk(segment, span)
            except StorageError:
                if segment.path.exists():
                    raise
                continue
            self.segments.append(span)

    def _walk(self, segment: Segment, span: SegmentSpan) -> None:
        def on_lost(lost: LostRange) -> None:
            span.damaged_bytes += lost.size_bytes

        for table in segment.tables(check_crc=False, on_lost=on_lost):
            for (magic, _), (_, size_bytes, _) in tally(table).items():
                span.format_bytes[magic] += size_bytes
            span.batches += len(table)
            for batch in table:
                ms = batch.max_timestamp
                if ms >= 0:
                    self._see(batch.last_offset, ms, batch.size_bytes)
            known = [ms for ms in (span.first_ms, table.min_timestamp) if ms >= 0]
            span.first_ms = min(known, default=-1)
            span.last_ms = max(span.last_ms, table.max_timestamp)
            span.next_offset = table[-1].last_offset + 1

    def _see(self, offset: int, ms: int, size_bytes: int) -> None:
        self.minutes[ms // _MINUTE_MS] += size_bytes
        if ms > self.now_ms:
            self.future_count += 1
            if len(self.future) < DOTS_MAX:
                self.future.append((offset, ms))
        if ms < self._largest_ms:
            self.late_count += 1
            if len(self.late) < DOTS_MAX:
                self.late.append((offset, ms))
        else:
            self._largest_ms = ms

    @property
    def first_ms(self) -> int:
        return min((span.first_ms for span in self.segments if span.first_ms >= 0), default=-1)

    @property
    def last_ms(self) -> int:
        return max((span.last_ms for span in self.segments), default=-1)

    def bytes_by(self, buckets: int) -> tuple[int, list[tuple[int, int]]]:
        """(ms a bucket, [(when it begins in ms, bytes)]): at most so many, of whole minutes, none left out between."""
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
