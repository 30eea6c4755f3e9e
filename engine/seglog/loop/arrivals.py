"""What wakes the coroutines that follow one log: one bell, one watch and one timer for all of them.

    the thread of reading.notices, or of fs.file_watch ── ring ── call_soon_threadsafe ── the coroutines that wait

While no task waits, nothing is held: the watch ends a moment after the last wait. Other threads call only `ring`.
"""
import asyncio
import random

from seglog._kernels.segment_scan import BatchTable
from seglog.errors import SeglogError
from seglog.loop.home import HomeLoop, settle
from seglog.reading.extent import Extent
from seglog.reading.following import FollowedLog, Waiter

_Seen = tuple[object, ...]
# Extent, epoch, the first offset and the end, and whether only committed records count.
Place = tuple[Extent, int, int, int, bool]


class Arrivals:
    """Wakes the tasks that follow one log.

    number    how often the loop was told that there may be more records
    """

    def __init__(self, home: HomeLoop, source: FollowedLog) -> None:
        self.number = 0
        self._home = home
        self._source = source
        self._is_rung = False           # the loop will be told
        self._waiting: set[asyncio.Future[None]] = set()
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen: _Seen = ()
        self._moment: tuple[Extent, int] | None = None      # as of the last look
        self._looked = -1                                   # when `number` was this
        self._table: tuple[Place, BatchTable] | None = None

    def ring(self, _: object = None) -> None:
        if self._home.loop.is_closed():
            # Closed while tasks waited, as asyncio.run does: its timer does not end the watch.
            waiter, self._waiter = self._waiter, None
            if waiter is not None:
                waiter.cancel()
        elif not self._is_rung:
            self._is_rung = True
            self._home.call(self._answer)

    def _answer(self) -> None:
        self._is_rung = False           # before any task looks: later arrivals ring again
        self.wake()

    def wake(self) -> None:
        """Wake every waiting task: each looks again."""
        self.number += 1
        for one in self._waiting:
            settle(one)
        self._waiting.clear()

    def arm(self) -> bool:
        """Call before waiting. True: look again, the bell did not report what came before. Raises LogClosedError."""
        waiter = self._waiter
        if waiter is None:
            self._waiter = self._source.waiter(self)
            self._waiter.arm()
            self.number += 1    # earlier looks no longer count
            return True
        if not waiter.arm():
            return False
        self.wake()         # the waiting tasks rely on what was watched before
        return True

    def moment(self) -> tuple[Extent, int]:
        """`FollowedLog.moment`, one look for all tasks that were woken: later arrivals ring again."""
        if self._moment is None or self._looked != self.number or self._waiter is None:
            self._moment, self._looked = self._source.moment(), self.number
        return self._moment

    def look_again(self) -> None:
        """Drop the last look: the log has changed since."""
        self._moment = None

    def table_at(self, place: Place) -> BatchTable | None:
        """What another task read at this place, all of it up to its end; None if none did."""
        return self._table[1] if self._table is not None and self._table[0] == place else None

    def keep(self, place: Place, table: BatchTable) -> None:
        """Keep it for other tasks at the same place: usually all of them wake there."""
        self._table = place, table

    def bell(self, seen: int) -> "asyncio.Future[None] | None":
        """A future, done when there may be more than when `number` was `seen`; None if there may be more already.
        Pass it to `forget` afterwards."""
        if self.number != seen:
            return None
        one: asyncio.Future[None] = self._home.loop.create_future()
        self._waiting.add(one)
        if self._timer is None:
            self._seen = ()     # unknown as of their last look: the first timer wakes them in any case
            # The timers of many logs must not fire at the same moment: appends of that moment would wait for them.
            self._set_timer(random.uniform(0.5, 1.0))
        return one

    def forget(self, one: "asyncio.Future[None]") -> None:
        """Drop a future of `bell`: no task waits for it any more."""
        self._waiting.discard(one)

    def close(self) -> None:
        """End the watch. Waiting tasks look again, and find the log closed."""
        self._drop()
        self.wake()

    def _set_timer(self, part: float = 1.0) -> None:
        if self._waiter is not None:
            self._timer = self._home.loop.call_later(self._waiter.patience_s * part, self._look_after)

    def _look_after(self) -> None:
        """Look for what the bell does not report: that a writer died; without inotify, anything."""
        self._timer = None
        if not self._waiting:
            self._drop()
            return
        before, self._seen = self._seen, self._look()
        if not before or self._seen != before:
            self.wake()
        self._set_timer()

    def _look(self) -> _Seen:
        try:
            extent, epoch = self._source.moment() if not self._source.is_changing else (None, -1)
            return id(extent), epoch, None if extent is None else extent.log_end_offset
        except SeglogError:
            return ()           # the waiting tasks meet it themselves

    def _drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._moment = self._table = None
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.cancel()
