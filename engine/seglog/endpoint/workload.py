"""What a request may cost the others: a light request is handled at once, a heavy one in steps and in its turn.

    light       few elements, a small answer
    heavy       more than that: one at a time in the whole server; it is decoded and encoded in a thread, and so is what
                its handler makes of all rows at once; the handler lets the loop go on after every two milliseconds
    refused     more rows or bytes than an answer may have

A handler calls `step` for each row of its answer, so it is found out on the way what a request is. While there is a
heavy one, the cyclic collector does not run: its thousands of objects, which are in no cycle, would make each of its
runs take up to 40 ms, in whichever thread.
"""
import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from seglog.coordinators.timer import Paced
from seglog.endpoint.frame_reader import RequestMemory

# A request of so many elements, or an answer of so many rows or bytes, takes about a millisecond.
LIGHT_ROWS = 1024
LIGHT_BYTES = 256 << 10
# What one answer may hold: 32 MiB on the wire, and about twice as much in memory while it is made.
ROWS_MAX = 1 << 17
BYTES_MAX = 32 << 20
# What light requests of all connections may have the loop unpack: so much at a time, and so much in a second. Many
# connections could otherwise keep it busy together. It takes 1 to 5 ms a MiB.
UNPACKED_BYTES_MAX = 2 << 20
_UNPACKED_BYTES_PER_S = 64 << 20

_Done = TypeVar("_Done")


class AnswerTooLargeError(Exception):
    """The answer would be larger than any may be: the client has to ask for less at a time."""


class HeavyWork:
    """Of one server. Use it in the loop's thread. `memory`: of requests, which inflated batches count to."""

    def __init__(self, memory: RequestMemory) -> None:
        self.memory = memory
        self.turn = asyncio.Lock()
        self._has_paused_collector = False
        self.thread = ThreadPoolExecutor(1, "seglog-heavy")
        # What the loop may unpack now, and when this was known.
        self._left_bytes: float = UNPACKED_BYTES_MAX
        self._counted_s = time.monotonic()

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)

    def has_time_to_unpack(self, size_bytes: int) -> bool:
        """Whether the loop may unpack so many bytes now, which are then counted."""
        now_s = time.monotonic()
        self._left_bytes = min(
            UNPACKED_BYTES_MAX, self._left_bytes + (now_s - self._counted_s) * _UNPACKED_BYTES_PER_S)
        self._counted_s = now_s
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    async def begin(self) -> None:
        """Wait until no other request is heavy."""
        await self.turn.acquire()
        self._has_paused_collector = gc.isenabled()
        gc.disable()

    def end(self) -> None:
        """Call it when the objects of the request are gone."""
        if self._has_paused_collector:
            gc.enable()
        self.turn.release()


class Workload(Paced):
    """Of one request. `end` it."""

    # Until something changes them: most requests are light.
    _rows = _bytes = 0
    is_heavy = False

    def __init__(self, heavy: HeavyWork | None) -> None:
        """`heavy` is None, which is no limit, only in tests of a handler alone."""
        self._heavy = heavy

    async def step(self, rows: int = 1, size_bytes: int = 0) -> None:
        """Before the next rows of the answer. Raises AnswerTooLargeError."""
        if self._heavy is None:
            return
        self._rows += rows
        self._bytes += size_bytes
        if not self.is_heavy:
            if self._rows <= LIGHT_ROWS and self._bytes <= LIGHT_BYTES:
                return
            await self.become_heavy()
        if self._rows > ROWS_MAX or self._bytes > BYTES_MAX:
            raise AnswerTooLargeError
        await self.pause()

    def has_time_to_unpack(self, size_bytes: int) -> bool:
        """Whether the loop may unpack so many bytes now; all connections share its time. Otherwise, become heavy."""
        return self._heavy is None or self._heavy.has_time_to_unpack(size_bytes)

    async def become_heavy(self) -> None:
        """Wait until no other request is heavy."""
        if self._heavy is not None and not self.is_heavy:
            await self._heavy.begin()
            self.is_heavy = True

    @contextlib.contextmanager
    def holding(self, size_bytes: int) -> "Iterator[None]":
        """Within the context, so many bytes count as memory of requests: if there are too many, no other is read. It
        does not wait for memory, because this request has some already, that others may wait for."""
        if self._heavy is None:
            yield
            return
        self._heavy.memory.add(size_bytes)
        try:
            yield
        finally:
            self._heavy.memory.give_back(size_bytes)

    async def in_thread(self, function: Callable[..., _Done], *arguments: Any) -> _Done:
        """Run what would block the loop, one at a time in the whole server."""
        if self._heavy is None:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._heavy.thread, function, *arguments)

    async def made(self, make: Callable[..., _Done], *arguments: Any) -> _Done:
        """What is made of all rows of a request at once; in the thread, if there are many."""
        return await self.in_thread(make, *arguments) if self.is_heavy else make(*arguments)

    def end(self) -> None:
        if self.is_heavy and self._heavy is not None:
            self.is_heavy = False
            self._heavy.end()


UNLIMITED = Workload(None)
