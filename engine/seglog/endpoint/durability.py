"""When appends of many connections are on the disk: one sync for all of them, and one wake-up of the loop a round.

    append_batch(wait=False) ── Log.when_durable ── the thread that syncs ── answers ── one call into the loop
"""
import asyncio
from collections import deque
from typing import Any

from seglog.config import Fsync
from seglog.log.append import Written
from seglog.log.log import Log


class Durability:
    """What an acknowledgement means by `fsync`. In the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fsync: Fsync) -> None:
        self._loop = loop
        self.fsync = fsync
        self._answers: deque[tuple[asyncio.Future[None], BaseException | None]] = deque()
        self._is_rung = False

    def reached(self, log: Log, written: Written[Any]) -> "asyncio.Future[None]":
        """Done when it is on the disk; it raises what `Log.when_durable` tells."""
        future = self._loop.create_future()
        log.when_durable(written, lambda error: self._answer(future, error))
        return future

    def ask(self, log: Log, written: Written[Any]) -> None:
        """Have it synced without waiting: with fsync="batch", readers see nothing before that."""
        if self.fsync == "batch":
            log.when_durable(written, _ignore)

    def _answer(self, future: "asyncio.Future[None]", error: BaseException | None) -> None:
        # In the thread that syncs. To wake the loop costs a system call, and several appends share a sync.
        self._answers.append((future, error))
        if not self._is_rung:
            self._is_rung = True
            try:
                self._loop.call_soon_threadsafe(self._settle)
            except RuntimeError:    # the loop is closed: nobody waits
                self._answers.clear()

    def _settle(self) -> None:
        self._is_rung = False       # before the look: what comes later rings again
        while self._answers:
            future, error = self._answers.popleft()
            if future.done():       # the connection is gone
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def _ignore(error: BaseException | None) -> None:
    """The next append of the log meets the error."""
