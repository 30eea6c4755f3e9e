"""A queue of jobs in an event loop: `seglog.aio.Queue`. What it hands out, and how: seglog.aio.taking.

    put ── gathered while a thread of the loop's pool writes what came before ── one write and one sync for all
"""
import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from seglog.aio.handover import open_by_thread
from seglog.aio.taking import AsyncDeadJob, AsyncJob, AsyncTaker
from seglog.aio.together import Together
from seglog.attach.shared_queue import Queue
from seglog.errors import InvalidArgumentError, LogClosedError
from seglog.fs.refusals import as_path
from seglog.loop.home import HomeLoop
from seglog.queue.queue import PutCall, QueueStats, _listed

if TYPE_CHECKING:
    from typing_extensions import Buffer


class AsyncQueue(AsyncTaker[AsyncJob]):
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

    _kind, _dead_kind = AsyncJob, AsyncDeadJob

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._path = as_path(path)
        self._options = options
        self._opened: Queue | None = None

    def __repr__(self) -> str:
        return f"<AsyncQueue {os.fspath(self._path)}>"

    async def __aenter__(self) -> Self:
        home = HomeLoop(Path(os.path.abspath(self._path)))
        queue: Queue = await open_by_thread(home, lambda: Queue(self._path, **self._options))
        self._opened = queue
        self._begin(home, "queue")
        self._puts = Together(home, queue._put_all)
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

    def _check(self) -> None:
        self.blocking      # noqa: B018 - raises before it is opened
        self._home.check()

    # --- putting -----------------------------------------------------------------------------

    async def put(
        self, value: "Buffer", *, key: str | bytes | None = None, delay: timedelta | float | None = None,
        at: datetime | str | None = None, properties: Mapping[str, str] | None = None, priority: int = 0,
        unique_for: timedelta | float | None = None, timeout: timedelta | float | None = None,
    ) -> str:
        """Put a job, and return its id: as Queue.put. Tasks that put at the same time share a write and a sync. If it
        is cancelled, the job is in the queue or it never will be."""
        self._check()
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

    async def get_many(
        self, max_jobs: int, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> list[AsyncJob]:
        """Take the jobs that are due: as Queue.get_many. If it is cancelled, none is taken."""
        if type(max_jobs) is not int or max_jobs < 1:
            raise InvalidArgumentError(f"max_jobs must be an int of 1 or more, not {max_jobs!r}")
        return await self._get_many(max_jobs, timeout, lease)

    # --- looking, and the end ------------------------------------------------------------------

    async def ack(self, jobs: Iterable[AsyncJob]) -> None:
        """Acknowledge several jobs, with one sync: as Queue.ack. Also if the task is cancelled meanwhile."""
        await self._ack(jobs)

    async def release(self, jobs: Iterable[AsyncJob]) -> None:
        """Give jobs back that were taken and not worked on: as Queue.release."""
        await self._release(jobs)

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
            await self._close_taken()
