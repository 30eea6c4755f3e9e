"""Jobs for the tasks of an event loop, from a queue or from a consumer of a topic.

    ack ── gathered while a thread of the loop's pool writes what came before ── one write and one sync for all
    get ── waits in the loop; one thread takes jobs for all tasks that wait

The loop never waits for a disk, nor for a lock whose holder waits for one.
"""
import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from seglog._kernels.shield import start_thread, work_in_background
from seglog._kernels.write_gate import Bell
from seglog.aio.together import Together
from seglog.errors import LogClosedError
from seglog.loop.home import HomeLoop, settle
from seglog.queue.dead import DeadJobs
from seglog.queue.job import DeadJob, Job
from seglog.queue.options import duration_ns
from seglog.queue.queue import _listed

Answer = TypeVar("Answer")
OneJob = TypeVar("OneJob", bound="AsyncJob")


class Takeable(Protocol):
    """What hands jobs out: a Queue, or a Consumer."""

    @property
    def closed(self) -> bool: ...

    @property
    def dead(self) -> DeadJobs: ...

    def ack(self, jobs: Any, /, *, wait: bool = True) -> None: ...

    def release(self, jobs: Any, /) -> None: ...

    def peek(self, count: int = 1, /) -> Sequence[Job]: ...

    def get_many(
        self, count: int, timeout: timedelta | float | None = None, /, *, lease: timedelta | float | None = None
    ) -> Sequence[Job]: ...

    def close(self) -> None: ...

    def _take_wanted(self, wanted: Callable[[], int]) -> list[Job]: ...

    def _wake_takers(self) -> bool: ...


class AsyncJob:
    """A job that a task took, or looked at, with what a Job has; that is `blocking`.

    In `async with job:`, a job whose block ends is acknowledged, and one whose block raises an Exception is refused,
    and the exception is logged; any other exception (CancelledError) gives the job back, as Queue.release does, and is
    raised.
    """

    __slots__ = ("_taker", "blocking")

    def __init__(self, taker: "AsyncTaker[Any]", blocking: Job) -> None:
        self._taker = taker
        self.blocking = blocking

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The job's id: what `put` returned."""
        return self.blocking.id

    @property
    def value(self) -> bytes:
        """The bytes that were put. Raises CorruptRecordError if they are damaged on the disk."""
        return self.blocking.value

    @property
    def key(self) -> str | bytes | None:
        """The key that was put with it."""
        return self.blocking.key

    @property
    def properties(self) -> dict[str, str]:
        """The properties that were put with it."""
        return self.blocking.properties

    @property
    def attempt(self) -> int:
        """How often it was delivered, this time included."""
        return self.blocking.attempt

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged, refused or given back."""
        return self.blocking.is_settled

    @property
    def enqueued_at(self) -> datetime:
        """When it was put, UTC."""
        return self.blocking.enqueued_at

    @property
    def due_at(self) -> datetime:
        """As Job.due_at."""
        return self.blocking.due_at

    async def ack(self) -> None:
        """Acknowledge it, durably: as Job.ack. Also if the task is cancelled meanwhile."""
        answer = self._taker._acks.do(self.blocking)
        self.blocking.is_settled = True     # as Job.ack: a block that is cancelled now does not give it back
        await asyncio.shield(answer)

    async def nack(self, delay: timedelta | float | None = None, *, reason: str = "") -> None:
        """Refuse it: as Job.nack. Also if the task is cancelled meanwhile."""
        await self._settled_by(lambda: self.blocking.nack(delay, reason=reason))

    async def _settled_by(self, work: Callable[[], None]) -> None:
        """Let a thread finish it, also if this task is cancelled meanwhile."""
        done = self._taker._settle(work)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            self.blocking.is_settled = True     # its block does not give it back: that would undo this
            raise

    async def extend(self, lease: timedelta | float | None = None) -> None:
        """Let its lease end so long from now: as Job.extend."""
        await self._taker._by_thread(self.blocking.extend, lease)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None and not self.blocking.is_settled:
            await self.ack()
            return False
        # Also if this task is being cancelled: what a thread began is completed.
        return bool(await asyncio.shield(self._taker._settle(self.blocking.__exit__, kind, error, trace)))


class AsyncDeadJob(AsyncJob):
    """A job that was given up: as DeadJob, which is `blocking`."""

    __slots__ = ()
    blocking: DeadJob

    @property
    def reason(self) -> str:
        """The last failure."""
        return self.blocking.reason

    @property
    def died_at(self) -> datetime:
        """When it was given up, UTC."""
        return self.blocking.died_at

    async def requeue(self) -> bool:
        """Put it back: as DeadJob.requeue."""
        return await self._taker._by_thread(self.blocking.requeue)


class AsyncDeadJobs:
    """`dead` of a queue, and of a consumer: as DeadJobs. Count them by `(await queue.stats()).dead`."""

    def __init__(self, taker: "AsyncTaker[Any]") -> None:
        self._taker = taker

    async def __aiter__(self) -> AsyncIterator[AsyncDeadJob]:
        """The dead jobs as of now."""
        dead = self._taker.blocking.dead
        for job in await self._taker._by_thread(lambda: list(dead)):
            yield self._taker._dead_kind(self._taker, job)

    async def peek(self, count: int = 1) -> list[AsyncDeadJob]:
        """Look at the jobs that died first: as DeadJobs.peek."""
        jobs = await self._taker._by_thread(self._taker.blocking.dead.peek, count)
        return [self._taker._dead_kind(self._taker, job) for job in jobs]

    async def requeue(self, jobs: Iterable[AsyncDeadJob] | None = None) -> int:
        """Put these dead jobs back, or all: as DeadJobs.requeue."""
        listed = None if jobs is None else _blocking(jobs)
        return await self._taker._by_thread(self._taker.blocking.dead.requeue, listed)

    async def purge(self) -> int:
        """Remove all dead jobs: as DeadJobs.purge."""
        return await self._taker._by_thread(self._taker.blocking.dead.purge)


class AsyncTaker(Generic[OneJob]):
    """What seglog.aio.Queue and the consumers of a seglog.aio.Topic have in common. A class below says of which class
    its jobs are, and begins it."""

    _kind: type[OneJob]
    _dead_kind: type["AsyncDeadJob"]

    def _begin(self, home: HomeLoop, noun: str) -> None:
        """Once `blocking` is open. `noun`: what is closed one day."""
        blocking = self.blocking
        self._home = home
        self._acks: Together[Job, None] = Together(home, lambda jobs: _for_all(jobs, blocking.ack))
        self._taker = _Taker(home, blocking, noun, lambda jobs: self._settle(blocking.release, jobs))
        # Jobs that threads give back or finish now.
        self._settling: set[asyncio.Future[Any]] = set()

    @property
    def blocking(self) -> Takeable:
        """What it takes from, for threads."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raise what keeps it from being used in this loop."""
        self._home.check()

    def _is_over(self) -> bool:
        """Whether loops over its jobs end."""
        return self.blocking.closed

    def _by_thread(self, work: Callable[..., Answer], *args: Any) -> "asyncio.Future[Answer]":
        self._home.check()
        return self._home.by_thread(work, *args)

    def _settle(self, work: Callable[..., Answer], *args: Any) -> "asyncio.Future[Answer]":
        """Let a thread give jobs back or finish them, which `close` waits for."""
        done = self._by_thread(work, *args)
        self._settling.add(done)
        done.add_done_callback(self._settling.discard)
        return done

    # --- taking ------------------------------------------------------------------------------

    async def get(
        self, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> OneJob | None:
        """Take the next one that is due: as that of the blocking class. If it is cancelled, none is taken."""
        self._check()
        if lease is not None:
            duration_ns("lease", lease)
        limit_s = None if timeout is None else duration_ns("timeout", timeout) / 1e9
        waiting = self._taker.wait()
        try:
            await asyncio.wait([waiting], timeout=limit_s)
        except asyncio.CancelledError:
            self._taker.leave(waiting)
            raise
        if not waiting.done():
            self._taker.leave(waiting)
            return None
        job = waiting.result()
        if lease is not None:
            await self._or_release([job], job.extend, lease)
        return self._kind(self, job)

    async def _get_many(
        self, count: int, timeout: timedelta | float | None, lease: timedelta | float | None
    ) -> list[OneJob]:
        first = await self.get(timeout, lease=lease)
        if first is None or count == 1:
            return [first] if first is not None else []
        taken = [first.blocking]

        def rest() -> None:
            taken.extend(self.blocking.get_many(count - 1, 0, lease=lease))

        await self._or_release(taken, rest)
        return [self._kind(self, job) for job in taken]

    async def _or_release(self, jobs: list[Job], work: Callable[..., object], *args: object) -> None:
        """Let a thread work on jobs that a task is about to get. If that is cancelled meanwhile, they go back."""
        done = self._settle(work, *args)
        try:
            await asyncio.shield(done)
        except BaseException:
            done.add_done_callback(lambda _: self._settle(self.blocking.release, jobs))
            raise

    async def __aiter__(self) -> AsyncIterator[OneJob]:
        """Take jobs one after another, waiting for each, until it is closed."""
        while True:
            try:
                job = await self.get()
            except LogClosedError:
                if self._is_over():
                    return
                raise
            if job is not None:
                yield job

    # --- finishing, and looking ----------------------------------------------------------------

    async def _ack(self, jobs: Iterable[AsyncJob]) -> None:
        await asyncio.shield(self._settle(self.blocking.ack, _blocking(jobs)))

    async def _release(self, jobs: Iterable[AsyncJob]) -> None:
        await asyncio.shield(self._settle(self.blocking.release, _blocking(jobs)))

    @property
    def dead(self) -> AsyncDeadJobs:
        """Those that were given up: to look at, to put back, to remove."""
        return AsyncDeadJobs(self)

    async def peek(self, count: int = 1) -> list[OneJob]:
        """Look at the first ones, without taking them: as that of the blocking class."""
        return [self._kind(self, job) for job in await self._by_thread(self.blocking.peek, count)]

    # --- the end -----------------------------------------------------------------------------

    async def _stop_taking(self) -> None:
        """Before it is closed: what tasks that were cancelled have acknowledged or given back is done."""
        await self._taker.stop()
        while left := {*self._acks.under_way(), *self._settling}:
            await asyncio.wait(left)

    async def _close_taken(self) -> None:
        try:
            await self._stop_taking()
        finally:
            await asyncio.shield(self._home.by_thread(self.blocking.close))
            self._taker.end()


class _Taker:
    """Takes jobs for the tasks that wait, in one thread, which starts with the first of them."""

    def __init__(
        self, home: HomeLoop, taken_from: Takeable, noun: str, give_back: Callable[[list[Job]], object]
    ) -> None:
        self._home = home
        self._taken_from = taken_from
        self._noun = noun
        self._give_back = give_back
        self._waiting: deque[asyncio.Future[Job]] = deque()
        self._bell = Bell()
        self._is_started = self._is_stopping = self._has_ended = False
        self._stopped: asyncio.Future[None] = home.loop.create_future()

    def wait(self) -> "asyncio.Future[Job]":
        """In the loop: a future for the next job."""
        future: asyncio.Future[Job] = self._home.loop.create_future()
        if self._has_ended:
            future.set_exception(self._closed_error())
            return future
        self._waiting.append(future)
        if not self._is_started and not self._is_stopping:
            self._is_started = True
            start_thread(self._run, ())
        self._bell.ring()
        return future

    def leave(self, future: "asyncio.Future[Job]") -> None:
        """In the loop: the task does not wait any more. A job that came meanwhile goes back."""
        if future.done():
            if not future.cancelled() and future.exception() is None:
                self._give_back([future.result()])
        else:
            future.cancel()
            if future in self._waiting:
                self._waiting.remove(future)

    async def stop(self) -> None:
        """Before it is closed: take no more jobs, and give back those that no task has got. (A job that another
        process is about to send is given back there.)"""
        self._is_stopping = True
        self._bell.ring()
        if self._is_started and self._taken_from._wake_takers():
            await asyncio.wait([self._stopped])

    def end(self) -> None:
        """It was closed."""
        self._has_ended = True
        self._bell.ring()
        self._fail(self._closed_error())

    def _closed_error(self) -> LogClosedError:
        return LogClosedError(f"the {self._noun} was closed", file=self._home.path)

    def _run(self) -> None:
        work_in_background()
        try:
            self._take()
        finally:
            self._home.call(settle, self._stopped)

    def _take(self) -> None:
        while not self._has_ended and not self._is_stopping:
            if not self._waiting:
                self._bell.wait(-1)
                continue
            try:
                # Tasks that come, or are cancelled, while it waits count.
                jobs = self._taken_from._take_wanted(lambda: 0 if self._is_stopping else len(self._waiting))
            except BaseException as error:
                self._has_ended = self._taken_from.closed
                self._home.call(self._fail, error)
                if self._has_ended:
                    return
                self._bell.wait(-1)
            else:
                if jobs:
                    self._taken(jobs)

    def _taken(self, jobs: list[Job]) -> None:
        handed = Bell()
        left: list[Job] = []

        def hand() -> None:
            try:
                for job in jobs:
                    while not self._is_stopping and self._waiting and (future := self._waiting.popleft()):
                        if not future.done():
                            future.set_result(job)
                            break
                    else:
                        left.append(job)
            finally:
                handed.ring()

        self._home.call(hand)
        while not handed.wait(1.0):     # (A loop that was closed calls nothing.)
            if self._home.loop.is_closed():
                left = jobs
                break
        if left and not self._taken_from.closed:
            self._taken_from.release(left)

    def _fail(self, error: BaseException) -> None:
        """In the loop."""
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(error)


def _blocking(jobs: Iterable[AsyncJob]) -> list[Any]:
    """The jobs of a Queue; what is none of ours is left for that to refuse."""
    return [job.blocking if isinstance(job, AsyncJob) else job for job in _listed("jobs", jobs)]


def _for_all(jobs: list[Job], acknowledge: Callable[[list[Job]], None]) -> list[BaseException | None]:
    acknowledge(jobs)
    return [None] * len(jobs)
