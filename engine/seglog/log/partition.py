"""A partition directory, opened to be read: what a broker left on disk, without the broker.

Reads the segments in order of their base offsets, from the log start offset that the log dir's
checkpoint gives (else the first segment) to the end of the data as it was at opening. Takes no lock
and writes nothing, so a live broker may hold the directory.
"""
import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from seglog._kernels.columns import ArenaPool, Columns, chunks
from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.config import LogConfig
from seglog.errors import CorruptCheckpointError, CorruptRecordError, InvalidArgumentError, NotALogError
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.fs.refusals import refusals
from seglog.log.checkpoints import read_offset_checkpoint
from seglog.log.leader_epochs import LeaderEpochs
from seglog.log.times import to_timestamp_ms
from seglog.segment.segment import (
    BatchPosition,
    LostRange,
    Segment,
    TimestampOffset,
    checked_records,
    first_offset_of,
    within_int64,
)

# ListOffsetsRequest's special timestamps (KIP-79, KIP-734).
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3

OnCorrupt = Literal["raise", "skip"]
Time = int | dt.datetime | str


class Partition:
    """`seglog.open_partition(path)`. Use it as a context manager, or close it.

    Threads may share it for reading. A fork is harmless: it holds maps, no locks.
    """

    def __init__(
        self, path: str | Path, *, config: Mapping[str, object] | LogConfig | None = None
    ) -> None:
        self.path = Path(path)
        if self.path.name in ("", ".."):     # the name says the topic, and the log dir is the directory above
            self.path = self.path.resolve()
        self.config = config if isinstance(config, LogConfig) else LogConfig.of(config or {})
        parsed = names.parse_partition_dir(self.path.name)
        self.topic = parsed.topic if parsed else self.path.name
        self.partition = parsed.partition if parsed else -1
        self.decompress = decompressor(self.config.max_decompressed_message_bytes)
        if self.path.is_file():
            raise NotALogError("a file, not a partition directory", file=self.path)
        with refusals("list", self.path):
            logs = names.log_files(self.path)
        if not logs:
            raise NotALogError("no segment file (<20 digits>.log) in the directory", file=self.path)
        self.segments: Sequence[Segment] = [
            Segment(log, is_last=log is logs[-1], decompress=self.decompress) for log in logs
        ]
        self._pool: ArenaPool | None = None

    def __repr__(self) -> str:
        return f"<Partition {self.path.name}: {len(self.segments)} segments>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files. Twice is fine; records and batches taken before stay readable."""
        for segment in self.segments:
            segment.close()

    # --- extent ------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset a reader may see: the log dir's checkpoint (KIP-107), at least the first segment's base."""
        first = self.segments[0].base_offset
        try:
            starts = read_offset_checkpoint(self.path.parent / names.LOG_START_OFFSET_CHECKPOINT)
        except (FileNotFoundError, CorruptCheckpointError):
            return first
        return max(first, starts.get((self.topic, self.partition), first))

    @property
    def log_end_offset(self) -> int:
        """One past the last offset."""
        return self.segments[-1].next_offset

    @property
    def leader_epochs(self) -> LeaderEpochs | None:
        """The leader-epoch-checkpoint; None where there is none. Raises CorruptCheckpointError."""
        path = self.path / names.LEADER_EPOCH_CHECKPOINT
        return LeaderEpochs.read(path) if path.exists() else None

    # --- reading -----------------------------------------------------------------------------

    def tables(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        check_crc: bool = True,
        on_lost: Callable[[LostRange], None] | None = None,
    ) -> Iterator[tuple[Segment, BatchTable]]:
        """Batch headers of the segments that hold [start, stop), some thousand at a time; the base of every reader.

        The first table begins at the batch that holds `start`, the last one may reach beyond `stop`.
        """
        first = self.log_start_offset if start is None else start
        for slot in range(self._segment_slot(first), len(self.segments)):
            segment = self.segments[slot]
            if stop is not None and segment.base_offset >= stop:
                return
            found = segment.find_offset(first) if on_lost is None and first > segment.base_offset else None
            position = found.position if found else 0
            for table in segment.tables(position, check_crc=check_crc, on_lost=on_lost):
                if stop is not None and len(table) and first_offset_of(table[0]) >= stop:
                    return
                if len(table) and table[-1].last_offset >= first:
                    yield segment, table

    def batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        on_corrupt: OnCorrupt = "raise",
        lost: list[LostRange] | None = None,
    ) -> Iterator[RecordBatch]:
        """The batches that hold offsets of [start, stop), control batches and empty ones included.

        `on_corrupt="skip"` goes on after damage; what was skipped is appended to `lost`.
        """
        first = self.log_start_offset if start is None else start
        for _, table in self.tables(start, stop, on_lost=_lost_sink(on_corrupt, lost)):
            for batch in table:
                if batch.last_offset < first:
                    continue
                if stop is not None and first_offset_of(batch) >= stop:
                    return
                yield batch

    def records(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        control: bool = False,
        on_corrupt: OnCorrupt = "raise",
        lost: list[LostRange] | None = None,
    ) -> Iterator[Record]:
        """Lazy records with start <= offset < stop and since <= timestamp < until, in log order.

        Transaction markers are left out unless `control`. `on_corrupt="skip"` goes on after damage;
        what was skipped is appended to `lost`.
        """
        on_lost = _lost_sink(on_corrupt, lost)
        if since is None and until is None:
            return self._records(start, stop, control, on_lost)
        low = -(2**63) if since is None else to_timestamp_ms(since)
        high = 2**63 if until is None else to_timestamp_ms(until)
        if low >= 0 and on_lost is None:
            found = self.offsets_for_time(low)
            if found is None:
                return iter(())
            start = max(found.offset, self.log_start_offset if start is None else start)
        return (r for r in self._records(start, stop, control, on_lost) if low <= r.timestamp < high)

    def _records(
        self, start: int | None, stop: int | None, control: bool, on_lost: Callable[[LostRange], None] | None
    ) -> Iterator[Record]:
        first = self.log_start_offset if start is None else within_int64(start)
        last = 2**63 - 1 if stop is None else within_int64(stop)
        if on_lost is None:
            # Fast path: no Python between two records.
            return chain.from_iterable(
                table.records(first, last, control) for _, table in self.tables(start, stop)
            )
        return self._surviving_records(first, last, control, on_lost)

    def _surviving_records(
        self, start: int, stop: int, control: bool, on_lost: Callable[[LostRange], None]
    ) -> Iterator[Record]:
        for segment, table in self.tables(start, stop, on_lost=on_lost):
            for batch in table:
                if batch.last_offset < start or (batch.is_control and not control):
                    continue
                try:
                    records = checked_records(batch)
                except CorruptRecordError as e:
                    on_lost(_lost_batch(segment, batch, e))
                    continue
                for record in records:
                    if record.offset >= stop:
                        return
                    if record.offset >= start:
                        yield record

    def columns(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        control: bool = False,
        chunk_bytes: int = 4 << 20,
        on_corrupt: OnCorrupt = "raise",
        lost: list[LostRange] | None = None,
    ) -> Iterator[Columns]:
        """The records as columns in Arrow's layout, in chunks of about `chunk_bytes` from reused memory.

        Whole batches: the first chunk may begin below `start`, the last may reach beyond `stop`.
        Each chunk's memory returns to the pool when nothing refers to it any more. `on_corrupt="skip"` goes on
        after damage; what was skipped is appended to `lost`.
        """
        on_lost = _lost_sink(on_corrupt, lost)
        if self._pool is None:
            self._pool = ArenaPool(chunk_bytes)
        for segment, table in self.tables(start, stop, check_crc=on_lost is not None, on_lost=on_lost):
            walk = chunks(
                table, self._pool, chunk_bytes=chunk_bytes, check_crc=on_lost is None, include_control=control
            )
            while True:
                try:
                    yield from walk
                    break
                except CorruptRecordError as e:
                    if on_lost is None:
                        raise
                    on_lost(_lost_batch(segment, table[walk.next_batch], e))
                    walk.next_batch += 1

    # --- seeking -----------------------------------------------------------------------------

    def find_offset(self, offset: int) -> tuple[Segment, BatchPosition] | None:
        """The first batch whose last offset is at or above `offset`, and its segment; None past the end."""
        for slot in range(self._segment_slot(offset), len(self.segments)):
            found = self.segments[slot].find_offset(offset)
            if found is not None:
                return self.segments[slot], found
        return None

    def offsets_for_time(self, when: Time) -> TimestampOffset | None:
        """The first offset, in log order, with timestamp >= `when` (ms, a datetime, ISO 8601, "-2h"); None where none.

        The special values of Kafka's ListOffsets: -1 the log end offset, -2 the log start offset,
        -3 the first offset that carries the largest timestamp. The answer is the log's own: an index
        only says where to begin, and is not believed where it contradicts the log.
        (UnifiedLog.fetchOffsetByTimestamp, KIP-79, KIP-734.)
        """
        target = to_timestamp_ms(when)
        start = self.log_start_offset
        if target == EARLIEST_TIMESTAMP:
            return TimestampOffset(-1, start, self._epoch_at(start))
        if target == LATEST_TIMESTAMP:
            epochs = self._epochs()
            return TimestampOffset(-1, self.log_end_offset, epochs.latest if epochs else None)
        if target == MAX_TIMESTAMP:
            found = [t for segment in self.segments if (t := segment.largest_timestamp) is not None]
            return max(found, key=lambda t: t.timestamp, default=None)
        if target < 0:
            raise InvalidArgumentError(
                f"not a time: {target}", hint="times are >= 0; -1 latest, -2 earliest, -3 largest timestamp"
            )
        for segment in self.segments:
            if segment.next_offset <= start:
                continue
            found_here = segment.find_timestamp(target, start)
            if found_here is not None:
                return found_here
        return None

    def _segment_slot(self, offset: int) -> int:
        """The slot of the last segment whose base is at or below the offset, 0 where there is none."""
        low, high = 0, len(self.segments)
        while high - low > 1:
            middle = (low + high) // 2
            if self.segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    def _epochs(self) -> LeaderEpochs | None:
        try:
            return self.leader_epochs
        except CorruptCheckpointError:
            return None

    def _epoch_at(self, offset: int) -> int | None:
        epochs = self._epochs()
        return epochs.epoch_for_offset(offset) if epochs else None


def _lost_batch(segment: Segment, batch: RecordBatch, error: CorruptRecordError) -> LostRange:
    return LostRange(
        str(segment.path), batch.position, batch.size_bytes,
        batch.last_offset - max(batch.last_offset_delta, 0), batch.last_offset, error.what,
    )


def _lost_sink(on_corrupt: OnCorrupt, lost: list[LostRange] | None) -> Callable[[LostRange], None] | None:
    if on_corrupt == "raise":
        return None
    if on_corrupt != "skip":
        raise InvalidArgumentError(f'on_corrupt is "raise" or "skip", not {on_corrupt!r}')
    return (lambda _: None) if lost is None else lost.append


def open_partition(
    path: str | Path, *, config: Mapping[str, object] | LogConfig | None = None
) -> Partition:
    """Open a partition directory such as `kafka-logs/orders-0` to read it; no broker, no lock.

    Raises NotALogError where there is no segment in it, StorageError where it is not there or may not be read,
    InvalidConfigError for an unknown key.
    """
    return Partition(path, config=config)
