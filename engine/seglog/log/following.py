"""`follow`: the records of a log as they come, one after the other, for as long as somebody wants them.

    look (an extent, and the epoch that it belongs to) ── read up to its end ── wait until a bell rings ── look again

Where the log was cut below what was read, following goes on from the cut: each record that stands in the log is given
once, in order. A record that was given and then cut away is the caller's to take back: the next one has a lower offset.
"""
import abc
import time
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from seglog._kernels.record_batch import Record
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.write_gate import Bell
from seglog.errors import IdleTimeoutError, InvalidArgumentError, LogClosedError, OffsetOutOfRangeError
from seglog.log.arguments import Isolation, OnOutOfRange, check_on_out_of_range, is_read_committed
from seglog.log.extent import Extent
from seglog.log.lookup import out_of_range
from seglog.log.notices import Listening
from seglog.log.reader import LogReader
from seglog.log.tail import LogTail
from seglog.log.times import Time
from seglog.segment.aborted_transactions import IndexedAborts
from seglog.segment.segment import Segment

# While segments are cut or exchanged, how often to look whether that is over.
_CHANGE_LOOK_S = 0.001


class Waiter(Protocol):
    """Has a bell rung when the log may have grown, or was cut or closed."""

    def arm(self) -> bool:
        """Whether something has to be looked at again, since the bell would not have told of it."""

    @property
    def patience_s(self) -> float:
        """How long to wait for the bell at most before looking anyway."""

    def cancel(self) -> None: ...


class FollowedLog(Protocol):
    """What `follow` asks of a log that others change while it is read."""

    def moment(self) -> tuple[Extent, int]:
        """The extent as of now, and its epoch: another one after segments were cut, exchanged or removed.

        Raises LogClosedError.
        """

    def cut_since(self, epoch: int) -> int | None:
        """The lowest log end offset that a cut left since that epoch; None: there was none."""

    def is_still(self, extent: Extent, epoch: int) -> bool:
        """Whether what was read in the extent, of that epoch, stood when it was read. False: also if it was closed."""

    def has_moved(self, extent: Extent) -> bool:
        """Whether the extent is another one when nobody changes segments. Raises LogClosedError."""

    def waiter(self, bell: Bell) -> Waiter:
        """Raises LogClosedError."""


class OwnSource:
    """Of a log in the process that writes it: its thread of notices rings."""

    patience_s = 60.0

    def __init__(self, log: LogReader, tail: LogTail) -> None:
        self._log = log
        self._tail = tail
        self._listening: Listening | None = None

    def moment(self) -> tuple[Extent, int]:
        live = self._tail.live
        while True:
            epoch = live.epoch
            extent = self._log._current()
            if epoch == live.epoch and (not epoch & 1 or self._tail.failure is not None):
                return extent, epoch
            time.sleep(_CHANGE_LOOK_S)

    def cut_since(self, epoch: int) -> int | None:
        return self._tail.live.cut_since(epoch)

    def is_still(self, extent: Extent, epoch: int) -> bool:
        # One more: a change has begun, of which the maps of before know nothing.
        return self._log._shown.extent is not None and self._tail.live.epoch in (epoch, epoch + 1)

    def has_moved(self, extent: Extent) -> bool:
        return self.moment()[0] is not extent

    def waiter(self, bell: Bell) -> "OwnSource":
        self._log._current()
        self._listening = self._tail.listeners.add(bell.ring, self._tail)
        return self

    def arm(self) -> bool:
        return False

    def cancel(self) -> None:
        if self._listening is not None:
            self._listening.cancel()


class Followable(LogReader, abc.ABC):
    """A log that others change while it is read."""

    @property
    @abc.abstractmethod
    def _source(self) -> FollowedLog:
        """For one call of `follow`."""

    def follow(
        self,
        start: "int | Time" = "end",
        *,
        timeout: float | None = None,
        isolation: Isolation = "read_uncommitted",
        control: bool = False,
        on_out_of_range: OnOutOfRange | None = None,
    ) -> Iterator[Record]:
        """The records from `start` on, and then each one as readers see it; waits where there is none yet.

        `start`: an offset, "end" (as of this call), "start", or a time as `read(since=)` takes it. `timeout`: seconds
        without a record after which IdleTimeoutError, a TimeoutError, is raised; None: wait for ever. Ends when the log
        is closed, behind the batches that were just read; ^C ends the wait. Rolls, compaction and cuts are followed:
        after a cut, the next record has a lower offset. Records that retention removed before they were read:
        OffsetOutOfRangeError with the valid range, or, by `on_out_of_range`, on from the "earliest" or the "latest"
        offset. `isolation`, `control`: see `read`.
        """
        following = _begun(self, start, timeout, is_read_committed(isolation), on_out_of_range)
        # No Python between two records.
        return chain.from_iterable(table.records(first, end, control) for _, table, first, end in following.tables())

    def follow_tables(
        self, start: "int | Time" = "end", *, timeout: float | None = None,
        on_out_of_range: OnOutOfRange | None = None,
    ) -> Iterator[tuple[Segment, BatchTable, int]]:
        """As `follow`, the headers of the batches, with the first offset of them that counts."""
        following = _begun(self, start, timeout, False, on_out_of_range)
        return ((segment, table, first) for segment, table, first, _ in following.tables())


# Of a segment, and the offsets that count: [first, end).
_Table = tuple[Segment, BatchTable, int, int]


class _Following:
    """One call of `follow`."""

    def __init__(
        self, log: Followable, source: FollowedLog, position: int, epoch: int, timeout: float | None,
        is_committed: bool, on_out_of_range: OnOutOfRange | None,
    ) -> None:
        self._log = log
        self._source = source
        self._position = position
        self._epoch = epoch
        self._timeout = timeout
        self._is_committed = is_committed
        self._on_out_of_range = on_out_of_range

    def tables(self) -> Iterator["_Table"]:
        bell = Bell()
        try:
            waiter = self._source.waiter(bell)
        except LogClosedError:
            return
        idle_since: float | None = None
        try:
            while True:
                try:
                    extent, epoch = self._source.moment()
                except LogClosedError:
                    return
                self._go_to(extent, epoch)
                end = extent.log_end_offset
                if self._is_committed:
                    end = min(end, self._log.last_stable_offset)
                if self._position < end:
                    idle_since = None
                    yield from self._read(extent, end)
                elif not waiter.arm():
                    now = time.monotonic()
                    idle_since = now if idle_since is None else idle_since
                    left = waiter.patience_s
                    if self._timeout is not None:
                        left = min(left, idle_since + self._timeout - now)
                        if left <= 0:
                            raise IdleTimeoutError(
                                f"no record came for {self._timeout:g} s", file=self._log.path, offset=self._position
                            )
                    bell.wait(left)
        finally:
            waiter.cancel()

    def _go_to(self, extent: Extent, epoch: int) -> None:
        """Where to read in this extent."""
        if epoch != self._epoch:
            cut = self._source.cut_since(self._epoch)
            if cut is not None and cut < self._position:
                self._position = cut
            self._epoch = epoch
        if self._position < extent.log_start_offset:
            match self._on_out_of_range:
                case None:
                    raise out_of_range(extent, self._position, self._log.path)
                case "earliest":
                    self._position = extent.log_start_offset
                case "latest":
                    self._position = extent.log_end_offset

    def _read(self, extent: Extent, end: int) -> Iterator["_Table"]:
        """What the extent holds from the position up to `end`, as long as it stands."""
        log, first = self._log, self._position
        try:
            aborted = IndexedAborts(extent.segments_from(first), end) if self._is_committed else None
            # (Of LogReader: one that looks for another extent by itself would pass over a cut.)
            for segment, table in LogReader._walk(log, extent, first, end, True, None):
                if not self._source.is_still(extent, self._epoch):
                    return
                yield segment, aborted.left_out_of(table) if aborted else table, first, end
                if len(table):
                    self._position = min(table[-1].last_offset + 1, end)
            self._position = end
        except LogClosedError:
            return
        except OffsetOutOfRangeError:
            # A segment was cut, exchanged or removed before it was read. If records are gone, the next look says so.
            if not self._source.has_moved(extent):
                raise


def _begun(
    log: Followable, start: "int | Time", timeout: float | None, is_committed: bool,
    on_out_of_range: OnOutOfRange | None,
) -> _Following:
    if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
        raise InvalidArgumentError(f"a timeout is a number of seconds, or None, not {timeout!r}")
    check_on_out_of_range(on_out_of_range)
    source = log._source
    extent, epoch = source.moment()
    if start == "end":
        position = extent.log_end_offset
    elif start == "start":
        position = extent.log_start_offset
    elif type(start) is int:
        position = start
        if position > extent.log_end_offset or (position < extent.log_start_offset and on_out_of_range is None):
            raise out_of_range(extent, position, log.path)
    else:
        found = log.offset_at(start)
        position = extent.log_end_offset if found is None else found
    return _Following(log, source, position, epoch, timeout, is_committed, on_out_of_range)
