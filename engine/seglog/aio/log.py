"""A log that an event loop appends to.

    await append ── quiet: written at once, in the loop ─────────────────── on the disk, or no sync asked for: done
                └── else (a roll, a mark, an append in a thread before it): by a thread, one after the other

The loop never waits for a disk, nor for a lock whose holder waits for one. The appends of a task are written in the
order of its calls, and those that wait for the disk share syncs.
"""
import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Never

from seglog.aio.handover import Opening
from seglog.aio.one_by_one import OneByOne
from seglog.aio.producer import AsyncProducer
from seglog.aio.readers import GrowingReader
from seglog.log.append import NOT_AT_ONCE, AppendResult, PendingAppend, listed_headers
from seglog.log.log import Log
from seglog.log.nonblocking_append import NonblockingAppend
from seglog.log.retaining import Retained
from seglog.loop.home import settle
from seglog.loop.in_flight import AppendsInFlight
from seglog.reading.arguments import misplaced_error
from seglog.reading.times import Time

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record
    from seglog.log.stats import LogStats

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
        self._changes = OneByOne(self._home)        # those that threads make
        self._in_a_row = 0

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.blocking.closed

    @property
    def high_watermark(self) -> int:
        """The offset up to which readers see the log: the log end offset."""
        return self.blocking.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is still open; the log end offset if none is."""
        return self.blocking.last_stable_offset

    @property
    def durable_offset(self) -> int:
        """One past the last offset that is known to be on the disk."""
        return self.blocking.durable_offset

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of new batches."""
        return self.blocking.leader_epoch

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
        if self._changes.running is None:
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
        if self._changes.running is None:
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

    async def append_batch(
        self, raw: "Buffer", *, assign_offsets: bool = True, leader_epoch: int | None = None,
        from_coordinator: bool = False,
    ) -> AppendResult:
        """Append a batch as bytes, at the moment when `Log.append_batch` would return. A thread checks and writes it:
        the check decompresses it."""
        result: AppendResult = await self._by_thread(partial(
            self.blocking.append_batch, raw, assign_offsets=assign_offsets, leader_epoch=leader_epoch,
            from_coordinator=from_coordinator, wait=False,
        ))
        return result

    async def append_columns(
        self,
        columns: object = None,
        *,
        timestamps: object = None,
        keys: object = None,
        values: object = None,
        headers: object = None,
    ) -> int:
        """Append records as columns and return the last one's offset, as `Log.append_columns`. A thread writes them."""
        last: int = await self._by_thread(partial(
            self.blocking.append_columns, columns, timestamps=timestamps, keys=keys, values=values, headers=headers,
            wait=False,
        ))
        return last

    async def _by_thread(self, write: Callable[[], Any]) -> Any:
        """Have a thread write, in its turn; return when the method of `Log` would return."""
        written = await self._changes.do(write)
        if self._at_once.is_due(written):
            await self._in_flight.durable(written.number)
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
        await self._changes.do(self.blocking.flush)

    async def _turn(self) -> None:
        """Let other tasks run now and then, even if appends have nothing to wait for."""
        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW:
            self._in_a_row = 0
            await asyncio.sleep(0)

    # --- transactions ----------------------------------------------------------------------------

    def producer(self, producer_id: int) -> Opening[AsyncProducer]:
        """A transactional producer: `async with log.producer(7) as producer`, or `producer = await log.producer(7)`.

        Raises what `Log.producer` raises, when it is awaited.
        """
        self._home.check()
        return Opening(
            lambda: self._home, partial(self.blocking.producer, producer_id), partial(AsyncProducer, self._home),
            lambda producer: None,      # nothing is open yet: its epoch is used up
        )

    async def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, must_be_open: bool = True
    ) -> int:
        """Write the marker that ends a transaction of encoded batches, as `Log.end_transaction`. Returns its offset."""
        marker: int = await self._by_thread(partial(
            self.blocking.end_transaction, producer_id, epoch, commit=commit, must_be_open=must_be_open, wait=False
        ))
        return marker

    # --- slow calls: a thread makes them, and later appends wait for it ----------------------------

    async def roll(self) -> int:
        """`Log.roll`."""
        return await self._changes.do(self.blocking.roll)

    async def snapshot(self, dst: str | os.PathLike[str]) -> int:
        """`Log.snapshot`: appends in this loop wait for it, reads continue."""
        return await self._changes.do(self.blocking.snapshot, dst)

    async def truncate_to(self, offset: int) -> int:
        """`Log.truncate_to`."""
        return await self._changes.do(self.blocking.truncate_to, offset)

    async def delete_records(self, before: int) -> int:
        """`Log.delete_records`."""
        return await self._changes.do(self.blocking.delete_records, before)

    async def delete_old_segments(self) -> Retained:
        """`Log.delete_old_segments`: appends in this loop wait for it."""
        return await self._changes.do(self.blocking.delete_old_segments)

    async def configure(self, changes: Mapping[str, object]) -> None:
        """`Log.configure`: appends after the call use the new settings."""
        await self._changes.do(self.blocking.configure, changes)

    async def stats(self) -> "LogStats":
        """`Log.stats`."""
        self._home.check()
        return await self._home.by_thread(self.blocking.stats)

    async def close(self) -> None:
        """Make everything durable, and close the log. Appends that began before return, those that begin later raise
        LogClosedError; tasks that follow the log see its end.

        Idempotent. If this is cancelled, the log is closed all the same. Raises what `Log.close` raises.
        """
        self._home.check()
        try:
            await self._changes.do_last(self.blocking.close)
        finally:
            self._in_flight.settle()
            self._arrivals.close()

    async def _behind(
        self, at_once: "Callable[[], PendingAppend[int]]", slowly: "Callable[[], PendingAppend[int]]"
    ) -> PendingAppend[int]:
        """Append after the change that a thread is making; in a thread, too, if this append has to wait itself."""
        if self._changes.running is not None:
            await self._changes.turn()
            written = at_once()
            if written is not NOT_AT_ONCE:
                return written
        return await self._changes.do_now(slowly)
