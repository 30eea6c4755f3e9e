"""The event loop that something belongs to, and what is done there by a thread of its pool."""
import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from seglog.errors import InvalidArgumentError

Answer = TypeVar("Answer")


class HomeLoop:
    """One event loop: that in which this is made."""

    __slots__ = ("loop", "path")

    def __init__(self, path: Path) -> None:
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidArgumentError(
                "seglog.aio works in an event loop, and none runs in this thread", file=path,
                hint="call it in a coroutine that asyncio.run runs; without an event loop, use seglog.open",
            ) from None
        self.path = path

    def check(self) -> None:
        """Raises InvalidArgumentError if another loop runs here, or none."""
        if asyncio._get_running_loop() is not self.loop:
            raise InvalidArgumentError(
                "it belongs to another event loop", file=self.path,
                hint="open readers in each loop; pass appends to the loop that opened the log: "
                "asyncio.run_coroutine_threadsafe(log.append(...), loop)",
            )

    def call(self, function: Callable[..., object], *args: object) -> None:
        """From any thread: have the loop call this soon. Nothing if it was closed: nobody waits in it."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *args)

    def by_thread(self, work: Callable[..., Answer], *args: object) -> "asyncio.Future[Answer]":
        """Have the loop's own pool do `work(*args)`: for calls that block and have no callback.

        If the waiting task was cancelled, asyncio does not log an error that nobody takes.
        """
        answer = self.loop.run_in_executor(None, work, *args)
        answer.add_done_callback(_heard)
        return answer


def settle(future: "asyncio.Future[None]", error: BaseException | None = None) -> None:
    """Have the task that awaits this go on, or get the error; nothing if it was cancelled, or goes on already."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _heard(answer: "asyncio.Future[Answer]") -> None:
    if not answer.cancelled():
        answer.exception()
