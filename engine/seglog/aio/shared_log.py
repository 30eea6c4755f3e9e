"""A log in an event loop that several processes have open: `seglog.aio.open(path, attach=True)`.

    append ── gathered while a thread of the loop's pool sends what came before ── one frame and one sync for all
"""
import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Never

from seglog.aio.log import AsyncLog
from seglog.aio.one_by_one import OneByOne
from seglog.aio.readers import GrowingReader
from seglog.aio.together import Together
from seglog.attach.shared_log import SharedLog, Whole
from seglog.errors import LogClosedError
from seglog.log.append import AppendResult, LogAppender, PendingAppend, listed_headers
from seglog.loop.home import settle
from seglog.reading.arguments import misplaced_error
from seglog.reading.times import Time

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record

# How long `close` waits for appends that have begun.
_GRACE_S = 10.0


class AsyncSharedLog(AsyncLog):
    """An AsyncLog for several processes. Which of them owns the log makes no difference: threads of the pool append."""

    blocking: SharedLog

    def __init__(self, blocking: SharedLog) -> None:
        GrowingReader.__init__(self, blocking)
        self._changes = OneByOne(self._home)
        self._is_closing = False
        self._appends: Together[Callable[[LogAppender], Any] | Whole, Any] = Together(self._home, blocking._append_all)

    @property
    def _reader(self) -> Any:
        return self.blocking._reader()

    async def append(
        self, value: "Buffer | None", *misplaced: Never, key: "Buffer | str | None" = None,
        headers: "Headers | None" = (), timestamp: "Time | None" = None,
    ) -> int:
        """As AsyncLog.append. If it is cancelled, the record is in the log, or it never will be."""
        if misplaced:
            raise misplaced_error(1 + len(misplaced))
        if type(headers) is not tuple:
            headers = listed_headers(headers)
        offset: int = await self._append(lambda appender: appender.append(value, key, headers, timestamp, False))
        return offset

    async def _append(self, call: Callable[[LogAppender], Any] | Whole) -> Any:
        if self._is_closing:
            raise LogClosedError("the log was closed", file=self.blocking.path)
        return await self._appends.do(call)

    async def append_many(self, records: "Iterable[Record]", *, atomic: bool = True) -> int:
        """As AsyncLog.append_many."""
        if isinstance(records, Iterable) and not isinstance(records, list | tuple):
            records = list(records)     # they may be read twice
        offset: int = await self._append(lambda appender: appender.append_many(records, atomic, False))
        return offset

    async def append_columns(
        self, columns: object = None, *, timestamps: object = None, keys: object = None, values: object = None,
        headers: object = None,
    ) -> int:
        """As AsyncLog.append_columns."""
        named = {"timestamp": timestamps, "key": keys, "value": values, "headers": headers}
        offset: int = await self._append(lambda appender: appender.append_columns(columns, named, False))
        return offset

    async def append_batch(
        self, raw: "Buffer", *, assign_offsets: bool = True, leader_epoch: int | None = None,
        from_coordinator: bool = False,
    ) -> AppendResult:
        """As SharedLog.append_batch."""
        append: Callable[..., Any] = self.blocking.append_batch
        result: AppendResult = await self._append(Whole(partial(
            append, raw, assign_offsets=assign_offsets, leader_epoch=leader_epoch,
            from_coordinator=from_coordinator,
        )))
        return result

    async def durable(self, written: PendingAppend[Any]) -> None:
        """As AsyncLog.durable."""
        self._home.check()
        done = self._home.loop.create_future()
        await self._home.by_thread(
            self.blocking.when_durable, written, partial(self._home.call, settle, done)
        )
        await done

    async def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, must_be_open: bool = True
    ) -> int:
        """Raises SharedLogError."""
        return self.blocking.end_transaction(producer_id, epoch, commit=commit, must_be_open=must_be_open)

    async def close(self) -> None:
        """As AsyncLog.close: if this process owns the log, another one that is attached takes over."""
        self._home.check()
        self._is_closing = True
        try:
            # Appends that have begun return, unless the owner is stopped.
            if left := self._appends.under_way():
                await asyncio.wait(left, timeout=_GRACE_S)
        finally:
            await self._close()

    async def _close(self) -> None:
        try:
            await self._changes.do_last(self.blocking.close)
        finally:
            self._arrivals.close()
