"""A queue of jobs in an event loop: `seglog.aio.Queue`.

    put, ack ── gathered while a thread of the loop's pool writes what came before ── one write and one sync for all
    get      ── waits in the loop; one thread of the queue takes jobs for all tasks that wait

The loop never waits for a disk, nor for a lock whose holder waits for one.
"""
import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from seglog._kernels.shield import start_thread, work_in_background
from seglog._kernels.write_gate import Bell
from seglog.aio.handover import open_by_thread
from seglog.aio.together import Together
from seglog.attach.shared_queue import Queue
from seglog.errors import InvalidArgumentError, LogClosedError
from seglog.loop.home import HomeLoop, settle
from seglog.queue.job import DeadJob, Job
from seglog.queue.options import duration_ns
from seglog.queue.queue import PutCall, QueueStats, _listed

if TYPE_CHECKING:
    from typing_extensions import Buffer

Answer = TypeVar("Answer")


class AsyncJob:
    """A job that a task took, or looked at, with what a Job has; that is `blocking`.

    In `async with job:`, a job whose block ends is acknowledged, and one whose block raises an Exception is refused,
    and the exception is logged; any other exception (CancelledError) gives the job back, as Queue.release does, and is
    raised.
    """

    __slots__ = ("_queue", "blocking")

    def __init__(self, queue: "AsyncQueue", blocking: Job) -> None:
        self._queue = queue
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
        answer = self._queue._acks.do(self.blocking)
        self.blocking.is_settled = True     # as Job.ack: a block that is cancelled now does not give it back
        await asyncio.shield(answer)

    async def nack(self, delay: timedelta | float | None = None, *, reason: str = "") -> None:
        """Refuse it: as Job.nack."""
        await self._queue._by_thread(lambda: self.blocking.nack(delay, reason=reason))

    async def extend(self, lease: timedelta | float | None = None) -> None:
        """Let its lease end so long from now: as Job.extend."""
        await self._queue._by_thread(self.blocking.extend, lease)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None and not self.blocking.is_settled:
            await self.ack()
            return False
        # Also if this task is being cancelled: what a thread began is completed.
        return bool(await asyncio.shield(self._queue._settle(self.blocking.__exit__, kind, error, trace)))


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
        return await self._queue._by_thread(self.blocking.requeue)


class AsyncDeadJobs:
    """`queue.dead`: as DeadJobs. Count them by `(await queue.stats()).dead`."""

    def __init__(self, queue: "AsyncQueue") -> None:
        self._queue = queue

    async def __aiter__(self) -> AsyncIterator[AsyncDeadJob]:
        """The dead jobs as of now."""
        dead = self._queue.blocking.dead
        for job in await self._queue._by_thread(lambda: list(dead)):
            yield AsyncDeadJob(self._queue, job)

    async def peek(self, count: int = 1) -> list[AsyncDeadJob]:
        """Look at the jobs that died first: as DeadJobs.peek."""
        jobs = await self._queue._by_thread(self._queue.blocking.dead.peek, count)
        return [AsyncDeadJob(self._queue, job) for job in jobs]

    async def requeue(self, jobs: Iterable[AsyncDeadJob] | None = None) -> int:
        """Put these dead jobs back, or all: as DeadJobs.requeue."""
        listed = None if jobs is None else _blocking(jobs)
        return await self._queue._by_thread(self._queue.blocking.dead.requeue, listed)

    async def purge(self) -> int:
        """Remove all dead jobs: as DeadJobs.purge."""
        return await self._queue._by_thread(self._queue.blocking.dead.purge)


class AsyncQueue:
    """A queue of jobs for the tasks of an event loop; the arguments and methods are those of seglog.Queue, which is
    `blocking`. Methods are awaited; so is `is_paused()`, which is one here.

        async with seglog.aio.Queue("data/jobs") as jobs:
            await jobs.put(b"value")
            async for job in jobs:
                async with job:
                    ...

    `async with` opens and closes it, in a thread. Threads may use `blocking` beside the loop. Methods raise
    InvalidArgumentError in another event loop, and otherwise what those of seglog.Queue raise.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._path = path
        self._options = options
        self._opened: Queue | None = None
        # Jobs that threads give back or finish now.
        self._settling: set[asyncio.Future[Any]] = set()

    def __repr__(self) -> str:
        return f"<AsyncQueue {os.fspath(self._path)}>"

    async def __aenter__(self) -> Self:
        home = HomeLoop(Path(os.path.abspath(self._path)))
        queue: Queue = await open_by_thread(home, lambda: Queue(self._path, **self._options))
        self._home = home
        self._opened = queue
        self._puts = Together(home, queue._put_all)
        self._acks: Together[Job, None] = Together(home, lambda jobs: _for_all(jobs, queue.ack))
        self._taker = _Taker(home, queue, lambda jobs: self._settle(queue.release, jobs))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def blocking(self) -> Queue:
        """The queue itself, for threads. Raises LogClosedError before it is opened by `async with`."""
        if self._opened is None:
            raise LogClosedError("the queue is not open: use `async with`", file=os.fspath(self._path))
        return self._opened

    def _by_thread(self, work: Callable[..., Answer], *args: Any) -> "asyncio.Future[Answer]":
        self._home.check()
        return self._home.by_thread(work, *args)

    def _settle(self, work: Callable[..., Answer], *args: Any) -> "asyncio.Future[Answer]":
        """Let a thread give jobs back or finish them, which `close` waits for."""
        done = self._by_thread(work, *args)
        self._settling.add(done)
        done.add_done_callback(self._settling.discard)
        return done

    # --- putting -----------------------------------------------------------------------------

    async def put(
        self, value: "Buffer", *, key: str | bytes | None = None, delay: timedelta | float | None = None,
        at: datetime | str | None = None, properties: Mapping[str, str] | None = None, priority: int = 0,
        unique_for: timedelta | float | None = None, timeout: timedelta | float | None = None,
    ) -> str:
        """Put a job, and return its id: as Queue.put. Tasks that put at the same time share a write and a sync. If it
        is cancelled, the job is in the queue or it never will be."""
        self.blocking      # noqa: B018 - raises before it is opened
        self._home.check()
        if unique_for is not None or timeout is not None:
            return await self._by_thread(lambda: self.blocking.put(
                value, key=key, delay=delay, at=at, properties=properties, priority=priority, unique_for=unique_for,
                timeout=timeout,
            ))
        return await self._puts.do(PutCall(value, key, delay, at, properties, priority))

    async def put_many(
        self, jobs: "Iterable[Buffer | tuple[str | bytes | None, Buffer]]", *,
        delay: timedelta | float | None = None, at: datetime | str | None = None,
        properties: Mapping[str, str] | None = None, priority: int = 0,
        unique_for: timedelta | float | None = None, timeout: timedelta | float | None = None,
    ) -> list[str]:
        """Put jobs, and return their ids: as Queue.put_many."""
        queue, listed = self.blocking, _listed("jobs", jobs)
        return await self._by_thread(lambda: queue.put_many(
            listed, delay=delay, at=at, properties=properties, priority=priority, unique_for=unique_for,
            timeout=timeout,
        ))

    # --- taking ------------------------------------------------------------------------------

    async def get(
        self, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> AsyncJob | None:
        """Take the next job that is due: as Queue.get. If it is cancelled, no job is taken."""
        self.blocking      # noqa: B018
        self._home.check()
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
        return AsyncJob(self, job)

    async def get_many(
        self, max_jobs: int, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> list[AsyncJob]:
        """Take the jobs that are due: as Queue.get_many. If it is cancelled, none is taken."""
        if type(max_jobs) is not int or max_jobs < 1:
            raise InvalidArgumentError(f"max_jobs must be an int of 1 or more, not {max_jobs!r}")
        first = await self.get(timeout, lease=lease)
        if first is None or max_jobs == 1:
            return [first] if first is not None else []
        taken = [first.blocking]

        def rest() -> None:
            taken.extend(self.blocking.get_many(max_jobs - 1, 0, lease=lease))

        await self._or_release(taken, rest)
        return [AsyncJob(self, job) for job in taken]

    async def _or_release(self, jobs: list[Job], work: Callable[..., object], *args: object) -> None:
        """Let a thread work on jobs that a task is about to get. If that is cancelled meanwhile, they go back."""
        done = self._settle(work, *args)
        try:
            await asyncio.shield(done)
        except BaseException:
            done.add_done_callback(lambda _: self._settle(self.blocking.release, jobs))
            raise

    async def __aiter__(self) -> Any:
        """Take jobs one after another, waiting for each, until the queue is closed."""
        while True:
            try:
                job = await self.get()
            except LogClosedError:
                if self.blocking.closed:
                    return
                raise
            if job is not None:
                yield job

    # --- looking, and the end ------------------------------------------------------------------

    async def ack(self, jobs: Iterable[AsyncJob]) -> None:
        """Acknowledge several jobs, with one sync: as Queue.ack. Also if the task is cancelled meanwhile."""
        await asyncio.shield(self._settle(self.blocking.ack, _blocking(jobs)))

    async def release(self, jobs: Iterable[AsyncJob]) -> None:
        """Give jobs back that were taken and not worked on: as Queue.release."""
        await asyncio.shield(self._settle(self.blocking.release, _blocking(jobs)))

    @property
    def dead(self) -> AsyncDeadJobs:
        """The jobs that were given up: to look at, to put back, to remove."""
        return AsyncDeadJobs(self)

    async def peek(self, count: int = 1) -> list[AsyncJob]:
        """Look at the first jobs, without taking them: as Queue.peek."""
        return [AsyncJob(self, job) for job in await self._by_thread(self.blocking.peek, count)]

    async def purge(self) -> int:
        """Remove all jobs but the dead: as Queue.purge."""
        return await self._by_thread(self.blocking.purge)

    async def flush(self) -> None:
        """Return when everything that was put and acknowledged is on the disk: as Queue.flush."""
        await self._by_thread(self.blocking.flush)

    async def stats(self) -> QueueStats:
        """Count the jobs: as Queue.stats."""
        return await self._by_thread(self.blocking.stats)

    async def pause(self) -> None:
        """Hand out no job until `resume`, durably: as Queue.pause."""
        await self._by_thread(self.blocking.pause)

    async def resume(self) -> None:
        """Hand out jobs again: as Queue.resume."""
        await self._by_thread(self.blocking.resume)

    async def is_paused(self) -> bool:
        """Whether it is paused: as Queue.is_paused, which may ask another process."""
        return await self._by_thread(lambda: self.blocking.is_paused)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.blocking.closed

    async def close(self) -> None:
        """Close it: as Queue.close. Tasks that wait for a job get LogClosedError; loops over it end. What tasks that
        were cancelled have acknowledged or given back is done before."""
        if self._opened is not None:
            try:
                await self._taker.stop()
                while left := {*self._acks.under_way(), *self._settling}:
                    await asyncio.wait(left)
            finally:
                await asyncio.shield(self._home.by_thread(self._opened.close))
                self._taker.end()


class _Taker:
    """Takes jobs for the tasks that wait, in one thread, which starts with the first of them."""

    def __init__(self, home: HomeLoop, queue: Queue, give_back: Callable[[list[Job]], object]) -> None:
        self._home = home
        self._queue = queue
        self._give_back = give_back
        self._waiting: deque[asyncio.Future[Job]] = deque()
        self._bell = Bell()
        self._is_started = self._is_stopping = self._has_ended = False
        self._stopped: asyncio.Future[None] = home.loop.create_future()

    def wait(self) -> "asyncio.Future[Job]":
        """In the loop: a future for the next job."""
        future: asyncio.Future[Job] = self._home.loop.create_future()
        if self._has_ended:
            future.set_exception(LogClosedError("the queue was closed", file=self._queue.path))
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
        """Before the queue is closed: take no more jobs, and give back those that no task has got. (A job that another
        process is about to send is given back there.)"""
        self._is_stopping = True
        self._bell.ring()
        if self._is_started and self._queue._wake_takers():
            await asyncio.wait([self._stopped])

    def end(self) -> None:
        """The queue was closed."""
        self._has_ended = True
        self._bell.ring()
        self._fail(LogClosedError("the queue was closed", file=self._queue.path))

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
                jobs = self._queue._take_wanted(lambda: 0 if self._is_stopping else len(self._waiting))
            except BaseException as error:
                self._has_ended = self._queue.closed
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
        if left and not self._queue.closed:
            self._queue.release(left)

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
