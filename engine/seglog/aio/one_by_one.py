"""Calls that threads make for tasks, one after the other, in the order in which the tasks asked."""
import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from seglog.loop.home import HomeLoop

Answer = TypeVar("Answer")


class OneByOne:
    """The calls on one object. A call that has begun is completed, even if the task that waits for it is cancelled.

    `running`: the call that a thread is making now.
    """

    __slots__ = ("_home", "running")

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        self.running: asyncio.Future[Any] | None = None

    async def do(self, work: Callable[..., Answer], *args: object) -> Answer:
        """Run `work(*args)` in a thread, after the calls before it. If this is cancelled while it waits for its turn,
        nothing is done. Raises InvalidArgumentError in another loop."""
        self._home.check()
        await self.turn()
        return await self.do_now(partial(work, *args))

    async def do_last(self, work: Callable[[], Answer]) -> Answer:
        """Run `work` in a thread, after the calls before it. If this is cancelled while it waits for its turn, a thread
        does it at once."""
        self._home.check()
        try:
            await self.turn()
        except asyncio.CancelledError:
            self._begin(work)
            raise
        return await self.do_now(work)

    async def turn(self) -> None:
        """Return when no thread is making a call."""
        while (running := self.running) is not None:
            await asyncio.wait((running,))

    async def do_now(self, work: Callable[[], Answer]) -> Answer:
        """Run `work` in a thread without waiting for a turn."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Callable[[], Answer]) -> "asyncio.Future[Answer]":
        running = self.running = self._home.by_thread(work)
        running.add_done_callback(self._ended)      # first, so that waiting tasks find no call under way
        return running

    def _ended(self, running: "asyncio.Future[Any]") -> None:
        if self.running is running:
            self.running = None
