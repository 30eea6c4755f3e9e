"""`follow`: the records of a log as they come, one after the other, until the caller stops.

    look (an extent, and the epoch that it belongs to) ── read up to its end ── wait until a bell rings ── look again

If the log is truncated below what was read, following continues from the truncation: each record in the log is returned
once, in order. The caller must undo records that were returned and then truncated: the next record has a lower offset.
"""
import abc
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Protocol

from seglog._kernels.chained import Chained
from seglog._kernels.record_batch import Record
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.shield import shielded
from seglog._kernels.write_gate import Bell
from seglog.errors import IdleTimeoutError, InvalidArgumentError, LogClosedError, OffsetOutOfRangeError
from seglog.reading.arguments import Isolation, OnOutOfRange, check_on_out_of_range, is_read_committed
from seglog.reading.extent import Extent
from seglog.reading.lookup import out_of_range
from seglog.reading.open_readers import FOLLOW_CALLS
from seglog.reading.reader import LogReader, abort_check
from seglog.reading.times import Time
from seglog.segment.segment import Segment

if TYPE_CHECKING:
    from seglog.fs.file_watch import AnyBell

# Thirty years: a longer timeout counts as none, so no clock or loop has to count it.
_TIMEOUT_S_MAX = 1e9
# While segments are truncated or exchanged, how often to look whether that is over.
CHANGE_LOOK_S = 0.001


class Waiter(Protocol):
    """Rings a bell when the log may have grown, or was truncated or closed."""

    def arm(self) -> bool:
        """Call before waiting. True: look again, because the bell would not have reported a change."""

    @property
    def patience_s(self) -> float:
        """How long to wait for the bell before looking anyway."""

    def cancel(self) -> None: ...


class FollowedLog(Protocol):
    """What `follow` needs of a log that changes while it is read."""

    def moment(self) -> tuple[Extent, int]:
        """The current extent, and its epoch, which changes when segments are truncated, exchanged or removed.

        Raises LogClosedError.
        """

    @property
    def is_changing(self) -> bool:
        """Whether `moment` would wait because segments are being truncated or exchanged."""

    def reload(self) -> None:
        """Complete a change that an interrupt left in the middle. `moment` does it, too."""

    def truncation_since(self, epoch: int) -> int | None:
        """The lowest log end offset after a truncation since that epoch, or None if there was none."""

    def is_still(self, extent: Extent, epoch: int) -> bool:
        """Whether what was read in the extent, of that epoch, was in the log when it was read. False if it is closed.
        """

    def has_moved(self, extent: Extent) -> bool:
        """Whether the extent is another one once no segments are being changed. Raises LogClosedError."""

    def waiter(self, bell: "AnyBell") -> Waiter:
        """Raises LogClosedError."""


class Followable(LogReader, abc.ABC):
    """A log that changes while it is read."""

    @property
    @abc.abstractmethod
    def _source(self) -> FollowedLog:
        """A source for one call of `follow`."""

    def follow(
        self,
        start: "int | Time" = "end",
        *,
        timeout: float | None = None,
        isolation: Isolation = "read_uncommitted",
        control: bool = False,
        on_out_of_range: OnOutOfRange | None = None,
    ) -> Iterator[Record]:
        """Iterate over the records from `start` on, then over new ones as readers see them; waits if there is none yet.

        `start`: an offset, "end" (as of this call), "start", or a time as `read(since=)` takes it. `timeout`: seconds
        without a record after which IdleTimeoutError, a TimeoutError, is raised, or None to wait forever. Ends when
        the log is closed, after the batches just read; ^C ends the wait. Rolls, compaction and truncation are followed:
        after a truncation, the next record has a lower offset. If retention removes records before they are read,
        raises OffsetOutOfRangeError with the valid range, or continues from the "earliest" or "latest" offset if
        `on_out_of_range` says so. `isolation`, `control`: see `read`.
        """
        following = Following(self, start, timeout, isolation, on_out_of_range)
        # No Python between two records.
        return Chained(following.runs(control))

    def _follow_tables(
        self, start: "int | Time" = "end", *, timeout: float | None = None,
        on_out_of_range: OnOutOfRange | None = None,
    ) -> Iterator[tuple[Segment, BatchTable, int]]:
        """As `follow`, but the headers of the batches, each with the first offset that counts."""
        following = Following(self, start, timeout, "read_uncommitted", on_out_of_range)
        return ((segment, table, first) for segment, table, first, _ in following.tables())


# A segment, headers of its batches, and the offsets that count: [first, end).
Table = tuple[Segment, BatchTable, int, int]


class Following:
    """One call of `follow`: where it is, and what it reads next. `tables` waits in between, or seglog.aio does.

    position    the next offset to read
    is_outdated the last read ended early, since the log had changed after the look that it began with
    """

    def __init__(
        self, log: Followable, start: "int | Time", timeout: float | None, isolation: Isolation,
        on_out_of_range: OnOutOfRange | None,
    ) -> None:
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise InvalidArgumentError(f"timeout must be a number of seconds from 0 on, or None, not {timeout!r}")
        check_on_out_of_range(on_out_of_range)
        self.log = log
        self.source = log._source
        # (An int may be too large for a float, which is no error: it counts as None.)
        self.timeout = None if timeout is None or timeout > _TIMEOUT_S_MAX else float(timeout)
        self.is_committed = is_read_committed(isolation)
        self._on_out_of_range = on_out_of_range
        self.position = start if type(start) is int else -1
        self._await_change(None)
        extent, self._epoch = self.source.moment()
        if start == "end":
            self.position = extent.log_end_offset
        elif start == "start":
            self.position = extent.log_start_offset
        elif type(start) is int:
            self.position = start
            if start > extent.log_end_offset or (start < extent.log_start_offset and on_out_of_range is None):
                raise out_of_range(extent, start, log.path)
        elif start in ("earliest", "latest", "beginning"):      # Kafka's words
            raise InvalidArgumentError(f"not a start: {start!r}", hint='pass "start", "end", an offset or a time')
        else:
            found = log.offset_for_time(start)
            self.position = extent.log_end_offset if found is None else found.offset
        self._doubt: OffsetOutOfRangeError | None = None
        self.is_outdated = False
        FOLLOW_CALLS.opened(self)

    def tables(self) -> Generator[Table, None, None]:
        bell = Bell()
        try:
            waiter = self.source.waiter(bell)
        except LogClosedError:
            self.end()
            return
        idle_since: float | None = None
        try:
            while True:
                idle_since = self._await_change(idle_since)
                try:
                    extent, epoch = self.source.moment()
                except LogClosedError:
                    return
                end = self.go_to(extent, epoch)
                if self.position < end:
                    idle_since = None
                    yield from self.read(extent, end)
                    self.clear(extent)
                elif not waiter.arm():
                    now = time.monotonic()
                    idle_since = now if idle_since is None else idle_since
                    left = waiter.patience_s
                    if self.timeout is not None:
                        left = min(left, idle_since + self.timeout - now)
                        if left <= 0:
                            raise self.idle_error()
                    bell.wait(left)
        finally:
            # Whole, if an interrupt comes as the caller drops the iterator.
            shielded(self._end, waiter)

    def runs(self, control: bool) -> Iterator[Iterator[Record]]:
        """The records of each table."""
        tables = self.tables()
        try:
            for _, table, first, end in tables:
                yield table.records(first, end, control)
        finally:
            tables.close()      # not by its finalizer, in which an interrupt would be lost

    def _end(self, waiter: Waiter) -> None:
        waiter.cancel()
        self.end()

    def end(self) -> None:
        """Count it no more. Idempotent."""
        FOLLOW_CALLS.closed(self)

    def _await_change(self, idle_since: float | None) -> float | None:
        """Wait until segments are no longer being changed, within the timeout. Returns since when no record came."""
        while self.timeout is not None and self.source.is_changing:
            now = time.monotonic()
            idle_since = now if idle_since is None else idle_since
            if now - idle_since >= self.timeout:
                raise self.idle_error()
            self.source.reload()
            time.sleep(CHANGE_LOOK_S)
        return idle_since

    def idle_error(self) -> IdleTimeoutError:
        offset = self.position if self.position >= 0 else None      # None if it began while segments were being changed
        return IdleTimeoutError(f"no record came for {self.timeout:g} s", file=self.log.path, offset=offset)

    def go_to(self, extent: Extent, epoch: int) -> int:
        """Move to where to read in this extent. Returns the offset up to which it may be read."""
        if epoch != self._epoch:
            truncation = self.source.truncation_since(self._epoch)
            if truncation is not None and truncation < self.position:
                self.position = truncation
            self._epoch = epoch
        if self.position < extent.log_start_offset:
            match self._on_out_of_range:
                case None:
                    raise out_of_range(extent, self.position, self.log.path)
                case "earliest":
                    self.position = extent.log_start_offset
                case "latest":
                    self.position = extent.log_end_offset
        end = extent.log_end_offset
        return min(end, self.log.last_stable_offset) if self.is_committed else end

    def read(self, extent: Extent, end: int) -> Iterator[Table]:
        """What the extent holds from the position up to `end`, while the log still holds it. Call `clear` afterwards.
        """
        log, first = self.log, self.position
        self.is_outdated = False
        try:
            aborted = None
            if self.is_committed:
                aborted = abort_check()(extent.segments_from(first), end)
            # (LogReader's own: a Follower's, which looks for another extent by itself, would pass over a truncation.)
            for segment, table in LogReader._walk(log, extent, first, end, True, None):
                if not self.source.is_still(extent, self._epoch):
                    self.is_outdated = True
                    return
                yield segment, aborted.left_out_of(table) if aborted else table, first, end
                if len(table):
                    self.position = min(table[-1].last_offset + 1, end)
            self.position = end
        except LogClosedError:
            return
        except OffsetOutOfRangeError as error:
            self._doubt = error

    @property
    def is_in_doubt(self) -> bool:
        """A segment was truncated, exchanged or removed before it was read: `clear` may wait until that is over."""
        return self._doubt is not None

    def clear(self, extent: Extent) -> None:
        """After `read`: raise the error that it met, unless the log has changed since: if records are gone, the next
        look reports it."""
        doubt, self._doubt = self._doubt, None
        try:
            if doubt is not None and not self.source.has_moved(extent):
                raise doubt
        except LogClosedError:
            return
