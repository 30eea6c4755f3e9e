"""Appends that are written and wait for the disk in an event loop: one request to the sync thread for all of them.

    append ── written ── future ──┐
    append ── written ── future ──┼── when_durable ── the sync thread ── call_soon_threadsafe ── all that it covers
    append ── written ── future ──┘
"""
import asyncio
import copy
from collections import deque

from seglog.errors import LogFailedError, SeglogError
from seglog.log.append import PendingAppend
from seglog.log.log import Log
from seglog.log.nonblocking_append import NonblockingAppend
from seglog.loop.home import HomeLoop, settle


class AppendsInFlight:
    """The waiting appends of one log. Its methods run in the loop, except `_answered`."""

    def __init__(self, home: HomeLoop, log: Log, at_once: NonblockingAppend) -> None:
        self._home = home
        self._log = log
        self._at_once = at_once
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._last = -1         # the last append that came to wait
        self._asked = -1        # the sync thread was asked about the appends up to this one; -1: about none

    def __len__(self) -> int:
        return len(self._waiting)

    def durable(self, number: int) -> "asyncio.Future[None]":
        """A future, done when the appends up to `number` are on the disk. If it is cancelled, they stay written."""
        one: asyncio.Future[None] = self._home.loop.create_future()
        self._waiting.append((number, one))
        self._last = max(self._last, number)
        if self._asked < 0:
            self._ask()
        return one

    def _ask(self) -> None:
        # Not the last one's: an append that a thread wrote comes to wait behind later ones of the loop.
        number = self._asked = self._last
        try:
            self._log.when_durable(PendingAppend(None, number), self._answered)
        except SeglogError as error:        # in a forked child
            self.settle(error)

    def _answered(self, error: BaseException | None) -> None:
        """In the sync thread."""
        self._home.call(self.settle, error)

    def settle(self, error: BaseException | None = None) -> None:
        """Resume the tasks whose appends are on the disk; with an error, also those that the request covered."""
        waiting, committed, asked = self._waiting, self._at_once.committed, self._asked
        self._asked = -1
        while waiting and waiting[0][0] <= committed:
            settle(waiting.popleft()[1])
        while error is not None and waiting and waiting[0][0] <= asked:
            settle(waiting.popleft()[1], _of_its_own(error))
        if waiting:
            self._ask()


def _of_its_own(error: BaseException) -> Exception:
    """A copy of the error for one of several tasks: each has its own traceback."""
    if isinstance(error, SeglogError):
        own = copy.copy(error)
        own.__cause__ = error.__cause__
        return own
    return LogFailedError.since(error)
