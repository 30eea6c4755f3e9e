"""Reading partitions in an event loop: closed ones, and those that grow."""
import asyncio
from functools import partial
from types import TracebackType
from typing import Generic, Self, SupportsIndex, TypeVar

from seglog._kernels.record_batch import Record
from seglog.aio.cursor import AsyncCursor
from seglog.aio.handover import Opening
from seglog.aio.records import AsyncRecords, FollowedRecords, ReadRecords
from seglog.fs.handles import OpenHandle
from seglog.log.log import Log
from seglog.loop.arrivals import Arrivals
from seglog.loop.home import HomeLoop
from seglog.reading.arguments import Isolation, OnOutOfRange
from seglog.reading.damage import OnCorrupt
from seglog.reading.follower import Follower
from seglog.reading.following import Followable, Following
from seglog.reading.partition import Partition
from seglog.reading.reader import ReadArguments, read_runs, tail_runs
from seglog.reading.times import Time
from seglog.segment.positions import LostRange, TimestampOffset

Blocking = TypeVar("Blocking", bound=Partition | Log)
Growing = TypeVar("Growing", bound=Follower | Log)


class AsyncReader(OpenHandle, Generic[Blocking]):
    """A reader for the event loop in which it was made. Closing it closes `blocking`.

    blocking    the underlying reader or log, for the calls that this class lacks: they may wait for a disk
    """

    def __init__(self, blocking: Blocking) -> None:
        """Raises InvalidArgumentError if no loop runs."""
        self.blocking: Blocking = blocking
        self._home = HomeLoop(blocking.path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.blocking!r}>"

    @property
    def _reader(self) -> Blocking:
        """What reads."""
        return self.blocking

    @property
    def log_start_offset(self) -> int:
        """The first offset that a reader may see."""
        return self.blocking.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last offset."""
        return self.blocking.log_end_offset

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: "Time | None" = None,
        until: "Time | None" = None,
        isolation: Isolation = "read_uncommitted",
        on_out_of_range: OnOutOfRange | None = None,
        control: bool = False,
        on_corrupt: OnCorrupt = "raise",
    ) -> AsyncRecords:
        """Iterate over the records with `async for`, as `seglog.Partition.read` does. The read begins, and fixes its
        end, when the first record is requested: errors of the call are raised there, too. What is returned has `lost`,
        what was skipped so far with on_corrupt="skip"."""
        asked = ReadArguments(start, stop, since, until, isolation, on_out_of_range, control, None, on_corrupt)
        lost: list[LostRange] = []
        begin = partial(read_runs, self._reader, asked, lost)
        return ReadRecords(self._home, begin, lost, parses_by_thread=on_corrupt != "raise")

    def tail(self, n: SupportsIndex, *, isolation: Isolation = "read_uncommitted") -> AsyncRecords:
        """Iterate over the last `n` records with `async for`, as `seglog.Partition.tail` does. Which these are, is
        found when the first one is requested: errors of the call are raised there, too."""
        begin = partial(tail_runs, self._reader, n, isolation)
        return ReadRecords(self._home, begin, (), parses_by_thread=False)

    def __aiter__(self) -> AsyncRecords:
        return self.read()

    async def get(self, offset: int) -> Record:
        """Return the record with this offset. Raises what `log[offset]` raises."""
        self._home.check()
        return await self._home.by_thread(self.blocking.__getitem__, offset)

    async def offset_for_time(self, when: Time) -> TimestampOffset | None:
        """The first offset with timestamp >= `when`, as Log.offset_for_time; None if there is none."""
        self._home.check()
        return await self._home.by_thread(self.blocking.offset_for_time, when)

    def cursor(self, name: str, *, shared: bool = False) -> Opening[AsyncCursor]:
        """Open a cursor: `async with log.cursor("mailer") as cursor`, or `cursor = await log.cursor("mailer")`,
        which is closed later. Its position is stored durably in the partition. Raises what `Log.cursor` raises."""
        self._home.check()
        return Opening(
            lambda: self._home, partial(self.blocking.cursor, name, shared=shared),
            partial(AsyncCursor, self._home, self.blocking),
        )

    async def close(self) -> None:
        """Close it, and `blocking`. Idempotent. If this is cancelled, `blocking` is closed all the same."""
        self._home.check()
        await asyncio.shield(self._home.by_thread(self.blocking.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncPartition(AsyncReader[Partition]):
    """`seglog.aio.open_partition(path)`: a directory as it was when it was opened."""


class GrowingReader(AsyncReader[Growing]):
    """A reader of a log that grows."""

    def __init__(self, blocking: Growing) -> None:
        super().__init__(blocking)
        self._arrivals = Arrivals(self._home, blocking._source)

    def follow(
        self,
        start: "int | Time" = "end",
        *,
        timeout: float | None = None,
        isolation: Isolation = "read_uncommitted",
        control: bool = False,
        on_out_of_range: OnOutOfRange | None = None,
    ) -> AsyncRecords:
        """Iterate with `async for` over the records from `start` on, and over new ones as they come, as `Log.follow`.

        "end" is the end as of this call. Ends when the log is closed; `timeout`: seconds without a record after which
        IdleTimeoutError is raised. Any number of tasks may follow one log: none of them needs a thread. Raises what
        `Log.follow` raises; if `start` is a time, when the first record is requested.
        """
        log: Followable = self._reader
        begin = partial(Following, log, start, timeout, isolation, on_out_of_range)
        following = begin() if start in ("start", "end") or type(start) is int else None
        return FollowedRecords(
            self._home, self._arrivals, begin, following, control=control, is_near=start == "end",
            # A Follower may have to search the log for the last stable offset.
            waits_in_thread=isolation != "read_uncommitted" and not isinstance(log, Log),
        )

    async def close(self) -> None:
        """Close it, and `blocking`: tasks that follow it see the end. Idempotent. If this is cancelled, `blocking` is
        closed all the same."""
        try:
            await super().close()
        finally:
            self._arrivals.close()


class AsyncFollower(GrowingReader[Follower]):
    """`seglog.aio.follow(path)`: a partition that another process writes; each call sees it as it is now."""

