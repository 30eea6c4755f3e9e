"""A transactional producer in an event loop."""
import asyncio
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seglog.aio.one_by_one import OneByOne
from seglog.fs.handles import OpenHandle
from seglog.log.producer import Producer
from seglog.loop.home import HomeLoop

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record
    from seglog.reading.times import Time


class AsyncProducer(OpenHandle):
    """A transactional producer, from `log.producer(producer_id)` of an AsyncLog. `async with` aborts at its end what
    was not committed, also if its task is cancelled.

        async with log.producer(7) as producer:
            await producer.begin()
            await producer.append(b"value", key=b"key")
            await producer.commit()

    Its calls are made in their order, by threads: a call whose task is cancelled is completed if it has begun, and not
    made otherwise. Each raises what the method of `seglog.Producer` raises.

    blocking    the `seglog.Producer` below
    """

    def __init__(self, home: HomeLoop, blocking: Producer) -> None:
        self.blocking = blocking
        self._calls = OneByOne(home)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.blocking!r}>"

    @property
    def producer_id(self) -> int:
        """The producer's id, as in its batches."""
        return self.blocking.producer_id

    @property
    def epoch(self) -> int:
        """The producer's epoch, as in its batches."""
        return self.blocking.epoch

    @property
    def in_transaction(self) -> bool:
        """Whether `begin` was called, and neither `commit` nor `abort` since."""
        return self.blocking.in_transaction

    async def begin(self) -> None:
        """Begin a transaction: as Producer.begin."""
        await self._calls.do(self.blocking.begin)

    async def append(
        self,
        value: "Buffer | None",
        *,
        key: "Buffer | str | None" = None,
        headers: "Headers | None" = (),
        timestamp: "Time | None" = None,
    ) -> int:
        """Append a record to the transaction. Returns its offset."""
        return await self._calls.do(
            partial(self.blocking.append, value, key=key, headers=headers, timestamp=timestamp))

    async def append_many(self, records: "Iterable[Record]") -> int:
        """Append records to the transaction as one batch. Returns the last one's offset."""
        return await self._calls.do(self.blocking.append_many, list(records))

    async def commit(self) -> int | None:
        """Let readers of committed data see the records: as Producer.commit, durably with fsync="batch"."""
        return await self._calls.do(self.blocking.commit)

    async def abort(self) -> int | None:
        """Hide the records from readers of committed data forever: as Producer.abort."""
        return await self._calls.do(self.blocking.abort)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Also if this task is being cancelled: the transaction would stay open.
        await asyncio.shield(asyncio.ensure_future(self._calls.do(self.blocking.__exit__, kind, error, trace)))
