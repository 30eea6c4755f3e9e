"""When appends of many connections are on the disk: one sync for all of them, and one question for it to a thread.

    append_batch(wait=False) ── gathered in the loop ── Log.when_durable ── the thread that syncs ── futures
                                      └──── while one question of a log is open, the next appends gather for the next

A question and its answer are two changes of threads, which cost more processor time than the sync itself: so there are
no more of them than syncs.
"""
import asyncio
from collections import deque
from functools import partial
from typing import Any

from seglog.config import Fsync
from seglog.log.append import Written
from seglog.log.log import Log

_Waiting = list[tuple[Written[Any], "asyncio.Future[None] | None"]]


class Durability:
    """What an acknowledgement means by `fsync`. In the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fsync: Fsync) -> None:
        self._loop = loop
        self.fsync = fsync
        # Those that no question was asked for yet, by log; a log is there as long as one of its questions is open.
        self._gathered: dict[Log, _Waiting] = {}
        self._answers: deque[tuple[Log, _Waiting, BaseException | None]] = deque()
        self._is_rung = False

    def reached(self, log: Log, written: Written[Any]) -> "asyncio.Future[None]":
        """Done when it is on the disk; it raises what `Log.when_durable` tells."""
        future = self._loop.create_future()
        self._gather(log, written, future)
        return future

    def ask(self, log: Log, written: Written[Any]) -> None:
        """Have it synced without waiting: with fsync="batch", readers see nothing before that."""
        if self.fsync == "batch":
            self._gather(log, written, None)

    def _gather(self, log: Log, written: Written[Any], future: "asyncio.Future[None] | None") -> None:
        waiting = self._gathered.get(log)
        if waiting is None:
            waiting = self._gathered[log] = []
            self._loop.call_soon(self._question, log)       # behind the other requests of this turn of the loop
        waiting.append((written, future))

    def _question(self, log: Log) -> None:
        waiting = self._gathered[log]
        if not waiting:
            del self._gathered[log]
            return
        self._gathered[log] = []
        # The last one was written last: its sync has all the others.
        log.when_durable(waiting[-1][0], partial(self._answer, log, waiting))

    def _answer(self, log: Log, waiting: _Waiting, error: BaseException | None) -> None:
        # In the thread that syncs.
        self._answers.append((log, waiting, error))
        if not self._is_rung:
            self._is_rung = True
            try:
                self._loop.call_soon_threadsafe(self._settle)
            except RuntimeError:    # the loop is closed: nobody waits
                self._answers.clear()

    def _settle(self) -> None:
        self._is_rung = False       # before the look: what comes later rings again
        while self._answers:
            log, waiting, error = self._answers.popleft()
            for _, future in waiting:
                if future is None or future.done():     # nobody waits, or the connection is gone
                    continue
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
            # Behind the requests that these answers let come: they share the next sync.
            self._loop.call_soon(self._question, log)
