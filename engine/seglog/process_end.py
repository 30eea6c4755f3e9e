"""The end of the process: background work ends, and data in memory is written, before the interpreter is finalized.

When the interpreter is finalized, it stops all other threads permanently, wherever they are: locks that they hold stay
locked, and their work is never done. Objects that nobody closed, and that are collected later, must not wait for them.
So each of our threads ends before, while all threads still run: in an atexit handler, after the handlers that the
program has registered since it imported this, and after all of its threads but the daemons.

A child of multiprocessing that was forked runs no atexit handlers and finalizes nothing: it only writes what is kept in
memory. A process that is killed, or calls os._exit, does nothing.
"""
import atexit
import os
import sys
import time
from typing import Protocol

from seglog.logger import Logger

_LOG = Logger(__name__)

# How long the threads get, all together: a disk may hang. A thread that is late is stopped anywhere, as the program's
# own are, and the kernels that wait find out (_kernels.ending).
_PATIENCE_S = 0.5


class Ending(Protocol):
    """An object that has a thread, or data that is not written yet."""

    def write_out(self) -> None:
        """Write what is kept in memory, and keep nothing there from now on."""

    def end_soon(self) -> None:
        """Have the thread end. Returns at once."""

    def await_end(self, timeout_s: float) -> None:
        """Return when the thread has ended, or has nothing left to do, but after `timeout_s` at the latest."""


class ProcessEnd:
    """Everything that this process has to finish before it ends. Each method's changes are one step, without a lock."""

    def __init__(self) -> None:
        self._endings: dict[int, Ending] = {}
        self._last: set[int] = set()
        self._is_told = False       # whether multiprocessing will call this process's `write_out`

    def add(self, ending: Ending, *, is_last: bool = False) -> None:
        """Finish it when the process ends, unless it is removed before. Keeps it alive until then. `is_last`: others
        give it work while they end."""
        if is_last:
            self._last.add(id(ending))
        self._endings[id(ending)] = ending
        if not self._is_told:
            self._is_told = True
            self._tell_multiprocessing()

    def remove(self, ending: Ending) -> None:
        """It is finished. Idempotent."""
        self._endings.pop(id(ending), None)
        self._last.discard(id(ending))

    def after_fork(self) -> None:
        """In the child, which has none of its parent's threads."""
        self._endings, self._last = {}, set()
        self._is_told = False

    def _tell_multiprocessing(self) -> None:
        process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
        if process is not None and util is not None and process.parent_process() is not None:
            util.Finalize(None, self.write_out, exitpriority=0)

    def write_out(self) -> None:
        """Have everything written that is kept in memory."""
        for ending in list(self._endings.values()):
            try:
                ending.write_out()
            except Exception:
                _LOG.exception("what was kept in memory could not be written when the process ended")

    def run(self) -> None:
        """Finish everything."""
        self.write_out()
        until = time.monotonic() + _PATIENCE_S
        endings = list(self._endings.values())
        for are_last in (False, True):
            due = [ending for ending in endings if (id(ending) in self._last) is are_last]
            for ending in due:
                ending.end_soon()
            for ending in due:
                ending.await_end(max(until - time.monotonic(), 0.0))
        self._endings.clear()


PROCESS_END = ProcessEnd()
atexit.register(PROCESS_END.run)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROCESS_END.after_fork)
