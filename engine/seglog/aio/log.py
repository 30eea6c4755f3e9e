"""A log that an event loop appends to.

    await append ── quiet: written at once, in the loop ─────────────────── on the disk, or no sync asked for: done
                └── else (a roll, a mark, an append in a thread before it): by a thread, one after the other

The loop never waits for a disk, nor for a lock whose holder waits for one. Appends are written in the order of the
calls, and those that wait for the disk share syncs.
"""
import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Never, TypeVar

from seglog.aio.readers import GrowingReader
from seglog.log.append import NOT_AT_ONCE, PendingAppend, listed_headers
from seglog.log.log import Log
from seglog.log.nonblocking_append import NonblockingAppend
from seglog.loop.home import settle
from seglog.loop.in_flight import AppendsInFlight
from seglog.reading.arguments import misplaced_error
from seglog.reading.times import Time

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record

Answer = TypeVar("Answer")

# Appends in a row that wait for nothing; then the loop gets a turn.
_IN_A_ROW = 64


class AsyncLog(GrowingReader[Log]):
    """A log that an event loop appends to: `seglog.aio.open(path)`, or `AsyncLog(log)` of a log that is open already.

    It belongs to the event loop in which it was made: any task of that loop may append and read. If an append is
    cancelled, its record is either in the log or was never written; nothing waits for it.
    """

    def __init__(self, blocking: Log) -> None:
        super().__init__(blocking)
        self._at_once = NonblockingAppend(blocking)
        self._in_flight = AppendsInFlight(self._home, blocking, self._at_once)
        self._in_thread: asyncio.Future[Any] | None = None     # the change that a thread is making now
        self._in_a_row = 0

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.blocking.closed

    # --- appending -------------------------------------------------------------------------------

    async def append(
        self,
        value: "Buffer | None",
        *misplaced: Never,
        key: "Buffer | str | None" = None,
        headers: "Headers | None" = (),
        timestamp: "Time | None" = None,
    ) -> int:
        """Append one record and return its offset, at the moment when `Log.append` would return."""
        if misplaced:
            raise misplaced_error(1 + len(misplaced))
        self._home.check()
        if type(headers) is not tuple:
            headers = listed_headers(headers)
        written = NOT_AT_ONCE
        if self._in_thread is None:
            written = self._at_once.append(value, key, headers, timestamp)
        if written is NOT_AT_ONCE:
            written = await self._behind(
                partial(self._at_once.append, value, key, headers, timestamp),
                partial(self._at_once.append_later, value, key, headers, timestamp),
            )
        if self._at_once.is_due(written):
            await self._in_flight.durable(written.number)
        else:
            await self._turn()
        return written.result

    async def append_many(self, records: "Iterable[Record]", *, atomic: bool = True) -> int:
        """Append records and return the last one's offset, at the moment when `Log.append_many` would return."""
        self._home.check()
        if isinstance(records, Iterable) and not isinstance(records, list | tuple):
            records = list(records)     # they may be read twice
        written = NOT_AT_ONCE
        if self._in_thread is None:
            written = self._at_once.append_many(records, atomic)
        if written is NOT_AT_ONCE:
            written = await self._behind(
                partial(self._at_once.append_many, records, atomic),
                partial(self._at_once.append_many_later, records, atomic),
            )
        if self._at_once.is_due(written):
            await self._in_flight.durable(written.number)
        else:
            await self._turn()
        return written.result

    async def durable(self, written: PendingAppend[Any]) -> None:
        """Return when `written`, from an append of `blocking` with wait=False, is on the disk, in every `fsync` mode.

        Raises LogFailedError if it never will be, InvalidArgumentError for a token of another log.
        """
        self._home.check()
        done: asyncio.Future[None] = self._home.loop.create_future()
        self.blocking.when_durable(written, partial(self._home.call, settle, done))
        await done

    async def flush(self) -> None:
        """Return when everything appended before is on the disk."""
        await self._by_thread(self.blocking.flush)

    async def _turn(self) -> None:
        """Let other tasks run now and then, even if appends have nothing to wait for."""
        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW:
            self._in_a_row = 0
            await asyncio.sleep(0)

    # --- slow calls: a thread makes them, and later appends wait for it ----------------------------

    async def roll(self) -> int:
        """`Log.roll`."""
        return await self._by_thread(self.blocking.roll)

    async def snapshot(self, dst: str | os.PathLike[str]) -> int:
        """`Log.snapshot`: appends in this loop wait for it, reads continue."""
        return await self._by_thread(self.blocking.snapshot, dst)

    async def truncate_to(self, offset: int) -> int:
        """`Log.truncate_to`."""
        return await self._by_thread(self.blocking.truncate_to, offset)

    async def delete_records(self, before: int) -> int:
        """`Log.delete_records`."""
        return await self._by_thread(self.blocking.delete_records, before)

    async def close(self) -> None:
        """Make everything durable, and close the log; appends that wait return, tasks that follow it see the end.

        Idempotent. If this is cancelled, the log is closed all the same. Raises what `Log.close` raises.
        """
        self._home.check()
        try:
            await self._change(self.blocking.close)     # at once: the log itself makes it wait its turn
        finally:
            self._in_flight.settle()
            self._arrivals.close()

    async def _behind(
        self, at_once: "Callable[[], PendingAppend[int]]", slowly: "Callable[[], PendingAppend[int]]"
    ) -> PendingAppend[int]:
        """Append after the change that a thread is making; in a thread, too, if this append has to wait itself."""
        if self._in_thread is not None:
            await self._turn_to_change()
            written = at_once()
            if written is not NOT_AT_ONCE:
                return written
        return await self._change(slowly)

    async def _by_thread(self, work: Callable[..., Answer], *args: object) -> Answer:
        self._home.check()
        await self._turn_to_change()
        return await self._change(partial(work, *args))

    async def _turn_to_change(self) -> None:
        while (change := self._in_thread) is not None:
            await asyncio.wait((change,))

    async def _change(self, work: Callable[[], Answer]) -> Answer:
        """Do `work` in a thread, now. It is done even if the waiting task is cancelled."""
        change = self._in_thread = self._home.by_thread(work)
        change.add_done_callback(self._changed)         # first, so that waiting tasks find no change under way
        return await asyncio.shield(change)

    def _changed(self, change: "asyncio.Future[Any]") -> None:
        if self._in_thread is change:
            self._in_thread = None
