"""Waits until appends of many connections are on the disk: one sync, and one request to the sync thread, for all.

    append_batch(wait=False) ── gathered in the loop ── Log.when_durable ── the sync thread ── callbacks
                                      └──── while a log has a pending request, its next appends gather

A request and its answer are two thread switches, which cost more CPU time than the sync itself, so there are no more
requests than syncs. This is for many logs and many connections, whose answers are callbacks. `in_flight` is for the
tasks of one log: they come in order, so that one number says who is done, even of those that no request was made for.
"""
import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from seglog.config import Fsync
from seglog.log.append import PendingAppend
from seglog.log.log import Log
from seglog.logger import Logger
from seglog.loop.home import call_in, settle

_LOG = Logger(__name__)

# Called in the loop: it is on the disk (None), or what `Log.when_durable` tells instead.
Told = Callable[[BaseException | None], None]
_Waiting = list[tuple[PendingAppend[Any], Told | None]]


class Durability:
    """Makes appends as durable as `fsync` asks. Use it in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fsync: Fsync) -> None:
        self._loop = loop
        self.fsync = fsync
        # Appends without a request yet, by log. A log is a key here as long as it has a pending request.
        self._gathered: dict[Log, _Waiting] = {}
        self._answers: deque[tuple[Log, _Waiting, BaseException | None]] = deque()
        self._is_rung = False

    def reached(self, log: Log, written: PendingAppend[Any]) -> "asyncio.Future[None]":
        """A future that is done when the append is on the disk. It raises the error that `Log.when_durable` reports."""
        future = self._loop.create_future()
        self.tell(log, written, partial(settle, future))
        return future

    def tell(self, log: Log, written: PendingAppend[Any], told: Told) -> None:
        """Call `told` when it is on the disk. What it raises is logged."""
        self._gather(log, written, told)

    def ask(self, log: Log, written: PendingAppend[Any]) -> None:
        """Request a sync without waiting for it: with fsync="batch", readers see an append only after its sync."""
        if self.fsync == "batch":
            self._gather(log, written, None)

    def _gather(self, log: Log, written: PendingAppend[Any], told: Told | None) -> None:
        waiting = self._gathered.get(log)
        if waiting is None:
            waiting = self._gathered[log] = []
            self._loop.call_soon(self._question, log)       # behind the other requests of this turn of the loop
        waiting.append((written, told))

    def _question(self, log: Log) -> None:
        waiting = self._gathered[log]
        if not waiting:
            del self._gathered[log]
            return
        self._gathered[log] = []
        # The last append was written last: its sync covers all the others.
        log.when_durable(waiting[-1][0], partial(self._answer, log, waiting))

    def _answer(self, log: Log, waiting: _Waiting, error: BaseException | None) -> None:
        # Runs in the sync thread.
        self._answers.append((log, waiting, error))
        if not self._is_rung:
            self._is_rung = True
            call_in(self._loop, self._settle)

    def _settle(self) -> None:
        self._is_rung = False       # first: answers that come later ring again
        while self._answers:
            log, waiting, error = self._answers.popleft()
            for _, told in waiting:
                if told is not None:
                    try:
                        told(error)
                    except Exception:       # the others wait, too
                        _LOG.exception("%s: an acknowledgement failed", log.path)
            # Behind the requests that these answers let come: they share the next sync.
            self._loop.call_soon(self._question, log)
