"""A queue that all logs of a process share, and the one thread that processes its items.

The process ends after the thread has processed what is queued then (process_end).
"""
import os
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from seglog._kernels.shield import start_thread
from seglog._kernels.write_gate import Bell
from seglog.process_end import PROCESS_END

Item = TypeVar("Item")


class ProcessQueue(Generic[Item]):
    """Runs `work(queue)` in a thread that starts at the first use, and again in a forked child. `work` returns when it
    gets None from the queue, with everything processed that was put before.

    The child begins with an empty queue: the parent processes the items of its own. `ends_last`: the threads of other
    queues put items here.
    """

    def __init__(self, work: "Callable[[queue.SimpleQueue[Item | None]], None]", *, ends_last: bool = False) -> None:
        self._work = work
        self._ends_last = ends_last
        self._forked()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()       # guards the start
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._is_started = False            # in this process: a fork resets it

    def started(self) -> "queue.SimpleQueue[Item | None]":
        """Return the queue, and start its thread if necessary."""
        if not self._is_started:
            self._start()
        return self._queue

    def _start(self) -> None:
        with self._lock:
            if not self._is_started:
                # Not threading.Thread, whose start can wait forever if it is interrupted (bpo-45274).
                self._ended = Bell()
                start_thread(self._run, (self._queue, self._ended))
                self._is_started = True
                PROCESS_END.add(self, is_last=self._ends_last)

    def _run(self, items: "queue.SimpleQueue[Item | None]", ended: Bell) -> None:
        try:
            self._work(items)
        finally:
            ended.ring()

    # --- when the process ends (process_end) -----------------------------------------------------

    def write_out(self) -> None:
        pass

    def end_soon(self) -> None:
        self._is_started = False        # what is put from now on starts another thread
        self._queue.put(None)

    def await_end(self, timeout_s: float) -> None:
        self._ended.wait(timeout_s)
