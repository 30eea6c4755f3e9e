"""The counts of `seglog stats`: one pass over every batch and record of a partition.

Decompresses batches, to know their uncompressed sizes. Keeps only counters, and one entry for each producer; a damaged
batch is counted and skipped.
"""
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seglog._kernels.record_batch import RecordBatch
from seglog.errors import (
    CorruptIndexError,
    CorruptRecordError,
    RecordTooLargeError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.reading.partition import Partition
from seglog.segment.batches import checked_records
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.verification.moving_files import size_of

from . import records as lines

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(slots=True)
class CodecUse:
    """Batches of one format version and codec. `stored` and `bare`: record bytes as stored and decompressed."""

    batches: int = 0
    records: int = 0
    batch_bytes: int = 0
    stored_bytes: int = 0
    bare_bytes: int = 0

    @property
    def ratio(self) -> float:
        return self.bare_bytes / self.stored_bytes if self.stored_bytes else 1.0


@dataclass(slots=True)
class Timestamps:
    """Timestamps along the log, those of control records too. Late: below the largest one before; future: after this
    machine's clock."""

    now_ms: int
    records: int = 0
    without: int = 0
    smallest: int = -1
    largest: int = -1
    largest_offset: int = -1
    late: int = 0
    latest_by_ms: int = 0
    latest_offset: int = -1
    future: int = 0
    first_future_offset: int = -1
    log_append_time: int = 0

    def see(self, timestamp: int, offset: int) -> None:
        self.records += 1
        if timestamp < 0:
            self.without += 1
            return
        if timestamp > self.largest:
            self.largest, self.largest_offset = timestamp, offset
        elif timestamp < self.largest:
            self.late += 1
            if self.largest - timestamp > self.latest_by_ms:
                self.latest_by_ms, self.latest_offset = self.largest - timestamp, offset
        if self.smallest < 0 or timestamp < self.smallest:
            self.smallest = timestamp
        if timestamp > self.now_ms:
            self.future += 1
            if self.first_future_offset < 0:
                self.first_future_offset = offset


@dataclass(slots=True)
class ProducerUse:
    epoch: int
    batches: int = 0
    records: int = 0
    last_sequence: int = -1
    last_offset: int = -1
    last_timestamp: int = -1


@dataclass(slots=True)
class TransactionUse:
    committed: int = 0
    aborted: int = 0
    open: dict[int, int] = field(default_factory=dict)      # producer id -> first offset
    other_control_records: int = 0


@dataclass(slots=True)
class IndexUse:
    """Offset-index entries, and their distances in the log."""

    segments: int = 0
    missing: int = 0
    damaged: int = 0
    entries: int = 0
    time_entries: int = 0
    minute_entries: int | None = None       # None if no segment has a .time.index
    time_ranges: int | None = None          # None if no segment has a .ranges.index
    log_bytes: int = 0
    largest_gap_bytes: int = 0

    def see(self, segment: Segment) -> None:
        self.segments += 1
        self.log_bytes += segment.size_bytes
        try:
            if (time_ranges := segment.time_ranges) is not None:
                self.time_ranges = (self.time_ranges or 0) + len(time_ranges)
        except UnsupportedVersionError:
            pass        # nothing is wrong with it
        except CorruptIndexError:
            self.damaged += 1
        try:
            index, time_index = segment.offset_index, segment.time_index
            positions = [position for _, position in index] if index is not None else []
            self.time_entries += 0 if time_index is None else len(time_index)
            if (minute_index := segment.minute_index) is not None:
                self.minute_entries = (self.minute_entries or 0) + len(minute_index)
        except CorruptIndexError:
            self.damaged += 1
            return
        self.missing += index is None
        self.entries += len(positions)
        ends = [*positions, segment.size_bytes]
        self.largest_gap_bytes = max(
            self.largest_gap_bytes, *(end - begin for begin, end in zip([0, *positions], ends, strict=True))
        )


class Survey:
    """Everything that `stats` shows of one partition; `run` fills it."""

    def __init__(self, now_ms: int) -> None:
        self.segments = 0
        self.bytes = 0
        self.first_offset = self.log_end_offset = 0
        self.records = 0
        self.batch_sizes: Counter[int] = Counter()      # log2 of the size, rounded up -> batches
        self.batch_bytes = 0
        self.largest_batch_bytes = 0
        self.codecs: dict[tuple[int, int], CodecUse] = {}
        self.timestamps = Timestamps(now_ms)
        self.transactions = TransactionUse()
        self.producers: dict[int, ProducerUse] = {}
        self.indexes = IndexUse()
        self.lost: list[LostRange] = []
        self.delete_horizons = 0
        self._opened = 0        # decompressed bytes of the current batch

    @property
    def batches(self) -> int:
        return self.batch_sizes.total()

    def run(self, partition: Partition, progress: Callable[[int, int], None]) -> None:
        """Walk the partition. `progress` is called with (bytes done, bytes in all)."""
        total, before = sum(size_of(s.path) for s in partition.segments), 0

        def opening(codec: int, magic: int, payload: memoryview) -> "Buffer":
            opened = partition._decompress(codec, magic, payload)
            self._opened += memoryview(opened).nbytes
            return opened

        for listed in partition.segments:
            segment = Segment(listed.path, is_last=listed.is_last, decompress=opening)
            try:
                segment.files()         # from here on the file stays readable, even if it is removed
                size_bytes = segment.size_bytes
            except StorageError:
                if os.path.lexists(listed.path):
                    raise
                continue        # removed since the directory was listed
            for table in segment.tables(on_lost=self.lost.append):
                for batch in table:
                    self._see(batch, segment)
                progress(before + table.end, total)
            self.segments += 1
            before += size_bytes
            self.indexes.see(segment)
            if self.segments == 1:
                self.first_offset = segment.base_offset
            self.log_end_offset = segment.next_offset
            segment.close()
        self.bytes = before

    def _see(self, batch: RecordBatch, segment: Segment) -> None:
        size = batch.size_bytes
        self.batch_sizes[(size - 1).bit_length()] += 1
        self.batch_bytes += size
        self.largest_batch_bytes = max(self.largest_batch_bytes, size)
        magic, codec = batch.magic, batch.codec
        use = self.codecs.get((magic, codec))
        if use is None:
            use = self.codecs[magic, codec] = CodecUse()
        use.batches += 1
        use.batch_bytes += size
        if magic < 2 and codec == 0 and not batch.is_control:
            # An uncompressed message: its header is enough.
            use.records += 1
            use.stored_bytes += size
            use.bare_bytes += size
            self.records += 1
            self.timestamps.see(batch.max_timestamp, batch.last_offset)
            self.timestamps.log_append_time += batch.timestamp_type == 1
            return
        self._opened = 0
        try:
            records = checked_records(batch)
        except (CorruptRecordError, RecordTooLargeError) as e:
            first = batch.last_offset if magic in (0, 1) else batch.base_offset
            self.lost.append(LostRange(str(segment.path), batch.position, size, first, batch.last_offset, e.what))
            return
        stored = len(batch.payload())
        use.stored_bytes += stored
        use.bare_bytes += self._opened if codec and self._opened else stored
        count = 0
        # Markers are records like others in every count: they have offsets, and times that retention goes by.
        see = self.timestamps.see
        for count, record in enumerate(records, 1):     # noqa: B007
            see(record.timestamp, record.offset)
            if batch.is_control:
                self._see_control(lines.control_type(record.key), batch.producer_id)
        if batch.timestamp_type == 1:
            self.timestamps.log_append_time += count
        use.records += count
        self.records += count
        if magic == 2:
            self._see_producer(batch, count)

    def _see_control(self, kind: str, producer_id: int) -> None:
        if kind == "COMMIT":
            self.transactions.committed += 1
        elif kind == "ABORT":
            self.transactions.aborted += 1
        else:
            self.transactions.other_control_records += 1
            return
        self.transactions.open.pop(producer_id, None)

    def _see_producer(self, batch: RecordBatch, records: int) -> None:
        self.delete_horizons += batch.delete_horizon_ms is not None
        if batch.producer_id < 0:
            return
        if batch.is_transactional and not batch.is_control:
            self.transactions.open.setdefault(batch.producer_id, batch.base_offset)
        producer = self.producers.setdefault(batch.producer_id, ProducerUse(batch.producer_epoch))
        producer.epoch = batch.producer_epoch
        producer.last_offset = batch.last_offset
        producer.last_timestamp = batch.max_timestamp
        producer.batches += 1
        producer.records += records
        if not batch.is_control:
            producer.last_sequence = batch.last_sequence
