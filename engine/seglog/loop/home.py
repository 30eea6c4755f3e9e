"""The event loop that an object belongs to, and calls that threads of its pool make."""
import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from seglog.errors import InvalidArgumentError

Answer = TypeVar("Answer")


class HomeLoop:
    """The event loop in which this object was made."""

    __slots__ = ("loop", "path")

    def __init__(self, path: Path) -> None:
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidArgumentError(
                "seglog.aio needs a running event loop, and this thread has none", file=path,
                hint="call it from a coroutine that asyncio.run runs; without an event loop, use seglog.open",
            ) from None
        self.path = path

    def check(self) -> None:
        """Raises InvalidArgumentError if another loop runs here, or none."""
        if asyncio._get_running_loop() is not self.loop:
            raise InvalidArgumentError(
                "this object belongs to another event loop", file=self.path,
                hint="open readers in each loop; pass appends to the loop that opened the log: "
                "asyncio.run_coroutine_threadsafe(log.append(...), loop)",
            )

    def call(self, function: Callable[..., object], *args: object) -> None:
        """From any thread: have the loop call `function` soon. Does nothing if the loop is closed: no task waits."""
        call_in(self.loop, function, *args)

    def by_thread(self, work: Callable[..., Answer], *args: object) -> "asyncio.Future[Answer]":
        """Run `work(*args)` in the loop's thread pool: for calls that block and have no callback.

        If the waiting task was cancelled, asyncio does not log that an error was never retrieved.
        """
        answer = self.loop.run_in_executor(None, work, *args)
        answer.add_done_callback(_heard)
        return answer


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """From any thread: have the loop call `function` soon. Does nothing if the loop is closed: no task waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def settle(future: "asyncio.Future[None]", error: BaseException | None = None) -> None:
    """Resume the task that awaits this future, or raise the error in it; does nothing if the future is done."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _heard(answer: "asyncio.Future[Answer]") -> None:
    if not answer.cancelled():
        answer.exception()
