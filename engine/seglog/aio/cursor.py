"""A cursor of a log in an event loop."""
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from seglog._kernels.record_batch import Record
from seglog.aio.one_by_one import OneByOne
from seglog.aio.records import AsyncRecords, ReadRecords
from seglog.fs.handles import OpenHandle
from seglog.loop.home import HomeLoop
from seglog.reading.arguments import Isolation, OnOutOfRange
from seglog.reading.log_cursor import LogCursor
from seglog.reading.reader import LogReader, ReadArguments, read_runs
from seglog.segment.positions import LostRange


class AsyncCursor(OpenHandle):
    """A cursor, from `log.cursor(name)` of an AsyncLog, AsyncFollower or AsyncPartition.

        async with log.cursor("mailer") as cursor:
            async for record in cursor.read():
                await send(record.value)
                await cursor.commit(record)

    blocking    the `seglog.LogCursor` below
    """

    def __init__(self, home: HomeLoop, log: LogReader, blocking: LogCursor) -> None:
        self.blocking = blocking
        self._home = home
        self._log = log
        self._calls = OneByOne(home)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.blocking!r}>"

    @property
    def name(self) -> str:
        """The name, as it was opened."""
        return self.blocking.name

    @property
    def is_shared(self) -> bool:
        """Whether several readers may use the name at the same time."""
        return self.blocking.is_shared

    @property
    def path(self) -> Path:
        """The path of the partition that it reads."""
        return self.blocking.path

    async def position(self) -> int:
        """The offset of the next record to read, after the commits before: as LogCursor.position."""
        return await self._calls.do(lambda: self.blocking.position)

    async def lag(self) -> int:
        """The number of offsets from the position to the end of the log."""
        return await self._calls.do(lambda: self.blocking.lag)

    def read(
        self, *, isolation: Isolation = "read_uncommitted", on_out_of_range: OnOutOfRange | None = None
    ) -> AsyncRecords:
        """Iterate with `async for` over the records from the position to the end of the log. Commits nothing. The read
        begins, and fixes its end, when the first record is requested. Raises what LogCursor.read raises."""
        asked = ReadArguments(isolation=isolation, on_out_of_range=on_out_of_range)
        lost: list[LostRange] = []

        def begin() -> Any:
            return read_runs(self._log, asked._replace(start=self.blocking._begin_read()), lost)

        return ReadRecords(self._home, begin, lost, parses_by_thread=False)

    async def commit(self, done: int | Record) -> None:
        """Move the position to the record after `done`, durably: as LogCursor.commit. The commits of a task are
        made in the order of its calls. A commit that is cancelled was made, or will not be made."""
        await self._calls.do(self.blocking.commit, done)

    async def close(self) -> None:
        """Release the name for other readers. Idempotent; the log stays open. If this is cancelled, the name is
        released all the same."""
        await self._calls.do_last(self.blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
