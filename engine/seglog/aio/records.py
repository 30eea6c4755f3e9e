"""`async for`: the records of a read, or of following.

Records come in runs of at most about 1 MB of the log. A run is read when the one before is used up, so the read-ahead
is bounded. A thread of the loop's pool reads files that may have to come from a disk, one run at a time; the loop
itself reads what was just appended. The loop gets a turn every few hundred records.

Waiting may be cancelled (`asyncio.wait_for(anext(records), 1)`): no record is lost, the next call continues.
"""
import abc
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Self, TypeVar

from seglog._kernels.record_batch import Record
from seglog.errors import LogClosedError
from seglog.fs.handles import OpenHandle
from seglog.loop.arrivals import Arrivals, Place
from seglog.loop.home import HomeLoop, settle
from seglog.reading.extent import Extent
from seglog.reading.following import Following, Table
from seglog.segment.positions import LostRange

Run = Iterable[Record]
Answer = TypeVar("Answer")

# How many records, and how many looks that found some, come between two turns of the loop.
_CHUNK, _NEAR_IN_A_ROW = 256, 16
# Shared: each object that a waiting task keeps is one more for the garbage collector to visit.
_USED_UP: Iterator[Any] = iter(())


class AsyncRecords(OpenHandle, AsyncIterator[Record], abc.ABC):
    """Records, one after the other: `async for record in records`, or `await anext(records)`.

    Only one task may iterate at a time. It holds no resource that has to be released; `aclose` ends it early.
    """

    __slots__ = ("_busy", "_chunk", "_failure", "_home", "_is_awaited", "_is_over", "_parses_by_thread", "_run")

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        self._chunk: Iterator[Record] = _USED_UP
        self._run: Iterator[Record] | None = None
        self._failure: BaseException | None = None      # to be raised after the chunk
        self._busy: asyncio.Future[Any] | None = None
        self._is_awaited = False
        self._is_over = False
        self._parses_by_thread = False

    def _look(self) -> "asyncio.Future[None] | None":
        """Look for records without waiting. Returns the future to wait for if there are none; None if records are in
        `_chunk`, or if `_refilled` must look for them."""
        return None

    def _wait_no_more(self) -> None:
        """Drop the future that `_look` returned."""

    @abc.abstractmethod
    async def _next_run(self) -> Run | None:
        """The next run, or None at the end. If this is cancelled, the next call continues there."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        # Fast path: a record of the current chunk.
        for record in self._chunk:
            return record
        if self._is_awaited:
            raise RuntimeError("another task is waiting for the next record; use a separate iterator for each task")
        self._home.check()
        self._is_awaited = True
        self._chunk = _USED_UP
        try:
            while (bell := self._look()) is not None:
                await bell
            for record in self._chunk:
                return record
            return await self._refilled()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._end()
            raise
        finally:
            self._is_awaited = False
            self._wait_no_more()

    @property
    def lost(self) -> tuple[LostRange, ...]:
        """What was skipped so far, with on_corrupt="skip"."""
        return ()

    async def aclose(self) -> None:
        """End the iteration; a task that waits for a record sees the end. Idempotent."""
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._chunk, self._run, self._failure = _USED_UP, None, None

    async def _refilled(self) -> Record:
        while not self._is_over:
            if self._failure is not None:
                raise self._failure
            if self._run is None:
                run = await self._next_run()
                if run is None or self._is_over:
                    break
                self._run = iter(run)
            elif not self._parses_by_thread:
                await asyncio.sleep(0)
                if self._run is None:       # closed meanwhile
                    break
            chunk, failure = await self._by_thread(_taken, self._run) if self._parses_by_thread else _taken(self._run)
            if self._is_over:
                break
            self._take(chunk, failure)
            for record in self._chunk:
                return record
        raise StopAsyncIteration

    def _take(self, chunk: list[Record], failure: BaseException | None) -> None:
        if len(chunk) < _CHUNK:
            self._run, self._failure = None, failure
        self._chunk = iter(chunk)

    async def _by_thread(self, work: Callable[..., Answer], *args: object) -> Answer:
        """Run `work(*args)` in a thread. If the waiting task is cancelled, the next call gets the answer."""
        busy = self._busy
        if busy is None:
            busy = self._busy = self._home.by_thread(work, *args)
        try:
            answer: Answer = await asyncio.shield(busy)
        except BaseException as error:
            # The task may be cancelled after the work is done: then the next call gets the answer.
            if busy.cancelled() or not isinstance(error, asyncio.CancelledError):
                self._busy = None
            raise
        self._busy = None
        return answer


def _taken(run: Iterator[Record]) -> tuple[list[Record], BaseException | None]:
    """The next records, and the error that followed them."""
    chunk: list[Record] = []
    try:
        for record in islice(run, _CHUNK):
            chunk.append(record)        # (not by list(): records before an error are kept)
    except Exception as error:
        return chunk, error
    return chunk, None


class ReadRecords(AsyncRecords):
    """The records of one call of `read`, which begins, and fixes its end, when the first one is requested."""

    __slots__ = ("_begin", "_lost", "_runs")

    def __init__(
        self, home: HomeLoop, begin: Callable[[], Iterator[Run]], lost: Sequence[LostRange], *, parses_by_thread: bool
    ) -> None:
        super().__init__(home)
        self._begin = begin
        self._lost = lost
        self._runs: Iterator[Run] | None = None
        self._parses_by_thread = parses_by_thread

    @property
    def lost(self) -> tuple[LostRange, ...]:
        return tuple(self._lost)

    async def _next_run(self) -> Run | None:
        return await self._by_thread(self._step)

    def _step(self) -> Run | None:
        if self._runs is None:
            self._runs = self._begin()
        return next(self._runs, None)


class _Nothing(Iterable[Record]):
    """What a step of following found instead of records."""

    def __iter__(self) -> Iterator[Record]:
        return iter(())


_WAIT, _BY_THREAD = _Nothing(), _Nothing()


class FollowedRecords(AsyncRecords):
    """The records of one call of `follow`.

    `begin`: finds where to begin; `following`: its result, if it was called already. `is_near`: the next records were
    appended since the last look, so they are in memory. `waits_in_thread`: each look may take long, so a thread does
    it.
    """

    __slots__ = (
        "_arrivals", "_begin", "_bell", "_control", "_extent", "_following", "_idle_since", "_is_near", "_limit",
        "_near_steps", "_place", "_seen", "_tables", "_waits_in_thread",
    )

    def __init__(
        self, home: HomeLoop, arrivals: Arrivals, begin: Callable[[], Following], following: Following | None, *,
        control: bool, waits_in_thread: bool, is_near: bool,
    ) -> None:
        super().__init__(home)
        self._arrivals = arrivals
        self._begin = begin
        self._following = following
        self._control = control
        self._waits_in_thread = waits_in_thread
        self._tables: Iterator[Table] | None = None
        self._extent: Extent | None = None
        self._is_near = is_near and not waits_in_thread
        self._near_steps = 0
        self._place: Place | None = None
        self._seen = 0                      # arrivals as of the last look
        self._idle_since: float | None = None
        self._bell: asyncio.Future[None] | None = None
        self._limit: asyncio.TimerHandle | None = None

    async def aclose(self) -> None:
        await super().aclose()
        if self._is_awaited:
            self._arrivals.wake()

    def _end(self) -> None:
        super()._end()
        if self._following is not None:
            self._following.end()

    async def _next_run(self) -> Run | None:
        try:
            while not self._is_over:
                if self._busy is None:
                    self._seen = self._arrivals.number
                run: Run | None = _BY_THREAD
                if self._is_near and self._busy is None and self._following is not None:
                    self._near_steps += 1
                    if self._near_steps >= _NEAR_IN_A_ROW:
                        self._near_steps = 0
                        await asyncio.sleep(0)
                    run = self._step(self._following, may_wait=False)
                if run is _BY_THREAD:
                    run = await self._by_thread(self._begun_step)
                if run is not _WAIT:
                    self._idle_since = None
                    return run
                if (bell := self._to_wait_for()) is not None:
                    try:
                        await bell
                    finally:
                        self._wait_no_more()
                self._is_near, self._near_steps = not self._waits_in_thread, 0
        except LogClosedError:
            pass
        return None

    def _look(self) -> "asyncio.Future[None] | None":
        # Does what `_next_run` does for records in memory, in the one coroutine that the task awaits anyway.
        following = self._following
        if (
            following is None or not self._is_near or self._is_over or self._busy is not None or self._run is not None
            or self._failure is not None
        ):
            return None
        self._wait_no_more()
        try:
            while self._near_steps < _NEAR_IN_A_ROW - 1:
                self._near_steps += 1
                self._seen = self._arrivals.number
                run = self._step(following, may_wait=False)
                if run is None or run is _BY_THREAD:
                    break
                if run is not _WAIT:
                    self._idle_since = None
                    self._run = iter(run)
                    self._take(*_taken(self._run))
                    break
                bell = self._to_wait_for()
                self._near_steps = 0
                if bell is not None:
                    return bell
        except LogClosedError:
            self._end()
        return None

    def _to_wait_for(self) -> "asyncio.Future[None] | None":
        """A future, done when there may be more than at the last look or at the timeout; None to look again at once."""
        if self._arrivals.arm():
            return None
        left_s = self._left_s()
        self._bell = self._arrivals.bell(self._seen)
        if self._bell is not None and left_s is not None:
            self._limit = self._home.loop.call_later(left_s, settle, self._bell)
        return self._bell

    def _wait_no_more(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            self._arrivals.forget(bell)
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _left_s(self) -> float | None:
        """How many seconds are left to wait for a record. Raises IdleTimeoutError."""
        assert self._following is not None
        timeout = self._following.timeout
        if timeout is None:
            return None
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        left = self._idle_since + timeout - now
        if left <= 0:
            raise self._following.idle_error()
        return left

    def _begun_step(self) -> Run | None:
        if self._following is None:
            self._following = self._begin()
            if self._is_over:       # closed meanwhile
                self._following.end()
        return self._step(self._following, may_wait=True)

    def _step(self, following: Following, *, may_wait: bool) -> Run | None:
        """The next run. _WAIT: there is none yet; _BY_THREAD: the look may have to wait. Raises LogClosedError."""
        while True:
            if self._tables is not None:
                for _, table, first, end in self._tables:
                    # Otherwise this reader lags: the next records may no longer be in memory.
                    self._is_near = self._is_near and len(table) > 0 and table[-1].last_offset + 1 >= end
                    if self._is_near and self._place is not None:
                        self._arrivals.keep(self._place, table)
                    return table.records(first, end, self._control)
                self._tables = None
            if not may_wait and (following.is_in_doubt or following.source.is_changing):
                return _BY_THREAD
            if self._extent is not None:
                following.clear(self._extent)
            if following.is_outdated:
                # The loop does not know of the change yet, and learns of nothing while this task does not wait.
                self._arrivals.look_again()
            extent, epoch = following.source.moment() if may_wait else self._arrivals.moment()
            end = following.go_to(extent, epoch)
            first = following.position
            if first >= end:
                return _WAIT
            # Only what the loop reads is shared: a thread's table is not of the place that the loop looked at last.
            self._place = None if may_wait else (extent, epoch, first, end, following.is_committed)
            if self._place is not None:
                shared = self._arrivals.table_at(self._place)
                if shared is not None:
                    self._place = None
                    following.position = end
                    return shared.records(first, end, self._control)
            self._extent, self._tables = extent, following.read(extent, end)
