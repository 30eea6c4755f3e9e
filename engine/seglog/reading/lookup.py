"""Finding a record in a log by its offset or by time: in a closed directory as in one that grows.

An operation takes the extent of the log once, when it is called, and works on that.
"""
import abc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog._kernels.point_read import LastOpened
from seglog.clock import SystemClock
from seglog.errors import (
    CorruptCheckpointError,
    InvalidArgumentError,
    LogClosedError,
    OffsetOutOfRangeError,
    SeglogError,
    StorageError,
)
from seglog.fs.handles import PathHandle
from seglog.reading.extent import OFFSET_LIMIT, Extent, Shown
from seglog.reading.times import SECONDS_UNTIL, Time, to_time_bound_ms
from seglog.segment.positions import BatchPosition, TimestampOffset
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochs

# ListOffsetsRequest's special timestamps (KIP-79, KIP-734).
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3


class LogLookup(PathHandle, abc.ABC):
    """An open log, its extent, and the searches in it. Threads may share it.

    Every method raises LogClosedError after `close()`, CorruptRecordError if it meets damage, and StorageError if a
    file cannot be read.
    """

    path: Path

    def __init__(self) -> None:
        self._shown = Shown()
        self._last_opened = LastOpened()     # for the segments
        self._now_ms = SystemClock().now_ms     # what "-2h" is counted from

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Close the files. Idempotent; records and batches that were read before stay readable."""

    @property
    @abc.abstractmethod
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is still open; the log end offset if none is."""

    @property
    @abc.abstractmethod
    def leader_epochs(self) -> LeaderEpochs | None:
        """The offset at which each leader epoch began; None if nothing is known. Raises CorruptCheckpointError."""

    def _current(self) -> Extent:
        """The current extent: each operation takes it once."""
        extent = self._shown.extent
        if extent is None:
            raise LogClosedError("the log was closed", file=self.path)
        return extent

    # --- extent ------------------------------------------------------------------------------

    @property
    def segments(self) -> Sequence[Segment]:
        """The current segments, in the order of their base offsets."""
        return self._current().segments

    @property
    def log_start_offset(self) -> int:
        """The first offset that a reader may see."""
        return self._current().log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last offset."""
        extent = self._current()
        with gone_is_out_of_range(self, extent.segments[-1].base_offset):
            return extent.log_end_offset

    def _stable_offset(self, skips_damage: bool) -> int:
        """`last_stable_offset` for a reader that may pass over damage, where the log has to be read to find it."""
        return self.last_stable_offset

    def _if_gone(self, offset: int, error: OffsetOutOfRangeError | StorageError) -> SeglogError:
        """The error to raise for `error`: `error` itself, unless it means that a segment is gone."""
        return out_of_range(self._current(), offset, self.path) if isinstance(error, OffsetOutOfRangeError) else error

    # --- searching ---------------------------------------------------------------------------

    def find_offset(self, offset: int) -> tuple[Segment, BatchPosition] | None:
        """The first batch whose last offset is at or above `offset`, and its segment; None past the end."""
        for segment in self._current().segments_from(offset):
            with gone_is_out_of_range(self, max(offset, segment.base_offset)):
                found = segment.find_offset(offset)
            if found is not None:
                return segment, found
        return None

    def offset_for_time(self, when: Time) -> TimestampOffset | None:
        """The first offset, in log order, with timestamp >= `when` (ms, a datetime, ISO 8601, "-2h"); None if there is
        none.

        Special values, as in Kafka's ListOffsets: -1 the log end offset, -2 the log start offset, -3 the first offset
        with the largest timestamp. The answer comes from the log itself: an index only says where to begin the search,
        and is ignored if it contradicts the log. The time of a v0 or v1 wrapper is not trusted either; Kafka trusts it,
        and so misses messages that are later than their wrapper. (UnifiedLog.fetchOffsetByTimestamp, KIP-79, KIP-734.)
        """
        if type(when) is int and SECONDS_UNTIL <= when < OFFSET_LIMIT:
            # Fast path: the only segment. Each call around the search would cost a part of its time.
            try:
                found = self._shown.seek(when)
            except (OffsetOutOfRangeError, StorageError) as error:
                raise self._if_gone(self.log_start_offset, error) from error
            timestamp, offset, epoch = self._seek(self._current(), when) if found is None else found
            if offset < 0:
                return None
            # (`tuple.__new__` takes a third of the time of a NamedTuple's own.)
            return tuple.__new__(TimestampOffset, (timestamp, offset, None if epoch < 0 else epoch))
        return self._offset_for_ms(to_time_bound_ms(when, now_ms=self._now_ms()))

    def _offset_for_ms(self, target: int) -> TimestampOffset | None:
        """The same for a number that a client or an index names: it is of milliseconds, however small."""
        extent = self._current()
        if target == EARLIEST_TIMESTAMP:
            epochs, start = _epochs_of(self), extent.log_start_offset
            return TimestampOffset(-1, start, epochs.epoch_for_offset(start) if epochs else None)
        if target == LATEST_TIMESTAMP:
            epochs = _epochs_of(self)
            return TimestampOffset(-1, extent.log_end_offset, epochs.latest if epochs else None)
        if target == MAX_TIMESTAMP:
            with gone_is_out_of_range(self, extent.log_start_offset):
                found = [t for segment in extent.segments if (t := segment.largest_timestamp) is not None]
            return max(found, key=lambda t: t.timestamp, default=None)
        if target < 0:
            raise InvalidArgumentError(
                f"not a time: {target}", hint="pass 0 or more; -1 is latest, -2 earliest, -3 largest timestamp"
            )
        timestamp, offset, epoch = self._seek(extent, target)
        return None if offset < 0 else TimestampOffset(timestamp, offset, None if epoch < 0 else epoch)

    def _seek(self, extent: Extent, timestamp: int) -> tuple[int, int, int]:
        """The first record with timestamp >= `timestamp`, an int64 >= 0, as Segment.seek returns it."""
        start = extent.log_start_offset
        try:        # (not by gone_is_out_of_range: it takes longer than the search)
            slot = extent.slot_at(timestamp)
            if extent.segments[slot].base_offset < start:
                slot = max(slot, extent.slot_of(start))
            found = extent.segments[slot].seek(timestamp, start)
            while found[1] < 0 and slot < len(extent.segments) - 1:
                slot += 1
                found = extent.segments[slot].seek(timestamp, start)
            return found
        except (OffsetOutOfRangeError, StorageError) as error:
            raise self._if_gone(start, error) from error


@contextmanager
def gone_is_out_of_range(log: LogLookup, offset: int) -> Iterator[None]:
    """Raise OffsetOutOfRangeError, with the valid range, if a segment is gone when a read at `offset` needs it."""
    try:
        yield
    except (OffsetOutOfRangeError, StorageError) as error:
        raise log._if_gone(offset, error) from error


def out_of_range(extent: Extent, offset: int, path: Path) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"offset {offset} is not within [{extent.log_start_offset}, {extent.log_end_offset})", file=path, offset=offset,
        hint="offsets do not count from the end: tail(n) reads the last n records" if offset < 0 else None,
    )


def _epochs_of(log: LogLookup) -> LeaderEpochs | None:
    try:
        return log.leader_epochs
    except CorruptCheckpointError:
        return None
