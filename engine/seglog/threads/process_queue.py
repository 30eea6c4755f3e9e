"""A queue that all logs of a process share, and the one thread that processes its items."""
import os
import queue
import threading
from _thread import start_new_thread
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ProcessQueue(Generic[Item]):
    """Runs `work(queue)` forever in a thread that starts at the first use, and again in a forked child.

    The child begins with an empty queue: the parent processes the items of its own.
    """

    def __init__(self, work: "Callable[[queue.SimpleQueue[Item]], None]") -> None:
        self._work = work
        self._forked()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()       # guards the start
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._is_started = False            # in this process: a fork resets it

    def started(self) -> "queue.SimpleQueue[Item]":
        """Return the queue, and start its thread if necessary."""
        if not self._is_started:
            self._start()
        return self._queue

    def _start(self) -> None:
        with self._lock:
            if not self._is_started:
                # Not threading.Thread, whose start can wait forever if it is interrupted (bpo-45274).
                start_new_thread(self._work, (self._queue,))
                self._is_started = True
