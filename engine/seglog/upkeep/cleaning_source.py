"""What a compaction round works on: an open log, or a closed directory that is only read."""
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seglog._kernels.segment_scan import scan
from seglog.format import names
from seglog.fs.files import FileSystem
from seglog.log.log import Log
from seglog.reading.partition import Partition
from seglog.segment.segment import Segment
from seglog.state.checkpoints import offsets_or_none
from seglog.state.producer_snapshot import ProducerEntry
from seglog.upkeep.cleaning_plan import CleanableLog

Exchange = Callable[[Sequence[Segment], Sequence[Segment], Sequence[Path]], tuple[Segment, ...] | None]


class SegmentDirt:
    """A segment with its times, as Kafka's cleaner uses them."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.base_offset = segment.base_offset
        self.size_bytes = segment.size_bytes

    @property
    def largest_timestamp(self) -> int:
        found = self._segment.largest_timestamp
        return mtime_ns(self._segment) // 1_000_000 if found is None or found.timestamp < 0 else found.timestamp

    @property
    def first_timestamp(self) -> int:
        first = next(iter(scan(self._segment.window, max_batches=1)), None)
        return -1 if first is None else first.max_timestamp


@dataclass(frozen=True, slots=True)
class CleaningSource:
    """A log at one moment. If `fs` and `exchange` are None, nothing is written."""

    path: Path
    segments: tuple[Segment, ...]
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    checkpoint: int | None
    producers: tuple[ProducerEntry, ...]
    fs: FileSystem | None = None
    exchange: Exchange | None = None

    def as_planned(self) -> CleanableLog:
        """Return the same in the form that the plan needs."""
        return CleanableLog(
            [SegmentDirt(segment) for segment in self.segments], self.log_start_offset, self.log_end_offset,
            self.last_stable_offset, self.checkpoint,
        )

    def key_at(self, offset: int) -> bytes | None:
        """Return the key of the record with this offset."""
        slot = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        record = None if slot < 0 else self.segments[slot].get(offset)
        return None if record is None else record.key


def source_of(log: Log, high_watermark: int | None = None) -> CleaningSource:
    """Make the source of an open log as of now. `high_watermark`: nothing after it counts as decided."""
    end = log.log_end_offset
    return CleaningSource(
        log.path, tuple(log.segments), log.log_start_offset, end,
        log.last_stable_offset if high_watermark is None else min(high_watermark, log.last_stable_offset),
        log.cleaner_offset, log.producers, log._fs, log._exchange,
    )


def source_of_closed(partition: Partition) -> CleaningSource:
    """Make the source of a directory that is not open for writing, for reading only."""
    checkpoint = offsets_or_none(partition.path.parent / names.CLEANER_CHECKPOINT) or {}
    return CleaningSource(
        partition.path, tuple(partition.segments), partition.log_start_offset, partition.log_end_offset,
        partition.last_stable_offset, checkpoint.get((partition.topic, partition.partition)), partition.producers,
    )


def mtime_ns(segment: Segment) -> int:
    """Return when the .log was last written to."""
    return segment.path.stat().st_mtime_ns
