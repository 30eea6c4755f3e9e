"""Partitions as an event loop reads them: closed ones, and those that grow."""
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from seglog._kernels.record_batch import Record
from seglog.aio.arrivals import Arrivals
from seglog.aio.home import HomeLoop
from seglog.aio.records import AsyncRecords, FollowedRecords, ReadRecords
from seglog.fs.handles import OpenHandle
from seglog.log.arguments import Isolation, OnOutOfRange
from seglog.log.damage import OnCorrupt
from seglog.log.follower import Follower
from seglog.log.following import Followable, Following
from seglog.log.log import Log
from seglog.log.partition import Partition
from seglog.log.reader import read_runs
from seglog.log.times import Time
from seglog.segment.answers import LostRange

Blocking = TypeVar("Blocking", bound=Partition | Log)
Growing = TypeVar("Growing", bound=Follower | Log)


class AsyncReader(OpenHandle, Generic[Blocking]):
    """What can be read in the event loop in which this was made. Closing it closes `blocking`.

    blocking    the reader or log itself, for what is not here: its calls may wait for a disk
    """

    def __init__(self, blocking: Blocking) -> None:
        """Raises InvalidArgumentError if no loop runs."""
        self.blocking: Blocking = blocking
        self._home = HomeLoop(blocking.path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.blocking!r}>"

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
        since: Time | None = None,
        until: Time | None = None,
        isolation: Isolation = "read_uncommitted",
        on_out_of_range: OnOutOfRange | None = None,
        control: bool = False,
        on_corrupt: OnCorrupt = "raise",
        lost: list[LostRange] | None = None,
    ) -> AsyncRecords:
        """`async for` over the records, as `seglog.Partition.read` gives them. It begins, and fixes its end, with the
        first record that is asked for: the errors of the call come there, too."""
        begin = partial(
            read_runs, self.blocking, start, stop, since=since, until=until, isolation=isolation,
            on_out_of_range=on_out_of_range, control=control, max_magic=None, on_corrupt=on_corrupt, lost=lost,
        )
        return ReadRecords(self._home, begin, parses_by_thread=on_corrupt != "raise")

    def __aiter__(self) -> AsyncRecords:
        return self.read()

    async def get(self, offset: int) -> Record:
        """The record with this offset: `log[offset]`, which says what it raises."""
        self._home.check()
        return await self._home.by_thread(self.blocking.__getitem__, offset)

    async def close(self) -> None:
        """Idempotent. If this is cancelled, `blocking` is closed all the same."""
        self._home.check()
        await self._home.by_thread(self.blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncPartition(AsyncReader[Partition]):
    """`seglog.aio.open_partition(path)`: a directory as of its opening."""


class GrowingReader(AsyncReader[Growing]):
    """Of a log that is appended to."""

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
        """`async for` over the records from `start` on, and each one as readers see it, as `Log.follow` gives them.

        "end" is as of this call. Ends when the log is closed; `timeout`: seconds without a record after which
        IdleTimeoutError is raised. Any number of tasks may follow one log: they share a bell, and none has a thread.
        Raises what `Log.follow` raises; where `start` is a time, with the first record that is asked for.
        """
        log: Followable = self.blocking
        begin = partial(Following, log, start, timeout, isolation, on_out_of_range)
        following = begin() if start in ("start", "end") or type(start) is int else None
        return FollowedRecords(
            self._home, self._arrivals, begin, following, control=control, is_near=start == "end",
            # Where nobody tells the last stable offset, it is looked for in the log.
            waits_in_thread=isolation != "read_uncommitted" and not isinstance(log, Log),
        )

    async def close(self) -> None:
        """Tasks that follow it see the end. Idempotent. If this is cancelled, `blocking` is closed all the same."""
        try:
            await super().close()
        finally:
            self._arrivals.close()


class AsyncFollower(GrowingReader[Follower]):
    """`seglog.aio.follow_partition(path)`: a partition that another process writes, each call as of now."""

