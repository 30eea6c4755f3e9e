"""Runs background work: in its own thread or, for tests, at once."""
import os
import sys
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from typing import Protocol

from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog._kernels.shield import start_thread, work_in_background
from seglog._kernels.unclosed import Unclosed
from seglog.process_end import PROCESS_END


class Worker(Protocol):
    """Runs one function whenever it is woken; wakes during a run cause one more run."""

    def start(self, work: Callable[[], None]) -> None: ...

    def wake(self) -> None:
        """Request a run. Returns at once."""
        ...

    def wait_idle(self) -> None:
        """Return when every requested run is over."""
        ...

    def close(self) -> None:
        """Let the present run end, and start no other."""
        ...


class InlineWorker:
    """Works in the thread that wakes it, before `wake` returns, so that runs are reproducible."""

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._working = False

    def start(self, work: Callable[[], None]) -> None:
        self._work = work

    def wake(self) -> None:
        if self._work is not None and not self._working:
            try:
                self._working = True
                self._work()
            finally:
                self._working = False

    def wait_idle(self) -> None:
        pass

    def close(self) -> None:
        self._work = None


class IdleWorker:
    """Does nothing: the work is left to the next opening of the tracker."""

    def start(self, work: Callable[[], None]) -> None:
        pass

    def wake(self) -> None:
        pass

    def wait_idle(self) -> None:
        pass

    def close(self) -> None:
        pass


class WorkerPool(Unclosed):
    """A few threads for any number of workers. They start when workers are woken, and end when this is closed or
    collected.

    A waiting thread references only its mailbox: so a tracker that was not closed can be collected, with everything
    that it holds.
    """

    def __init__(self, threads: int = 2) -> None:
        self.mailbox = _Mailbox(threads)

    def new_worker(self) -> "BackgroundWorker":
        self._is_unclosed = True
        return BackgroundWorker(self)

    def close(self) -> None:
        """Let the present runs end, and start no other."""
        self.mailbox.close()
        self._is_unclosed = False

    def _collected(self) -> None:
        """End the threads: it was collected without being closed."""
        self.mailbox.abandon()


class BackgroundWorker(Unclosed):
    """Works in a thread of `pool`, or in its own: one run at a time."""

    def __init__(self, pool: WorkerPool | None = None) -> None:
        self._work: Callable[[], None] | None = None
        self._own: WorkerPool | None = None
        if pool is None:
            pool = self._own = WorkerPool(1)
        self._mailbox = pool.mailbox

    def start(self, work: Callable[[], None]) -> None:
        self._work = work

    def wake(self) -> None:
        if self._work is not None:
            self._is_unclosed = True
            self._mailbox.ask(id(self), self._work)

    def wait_idle(self) -> None:
        self._mailbox.wait_idle(id(self))

    def close(self) -> None:
        self._work = None
        self._mailbox.leave(id(self))
        if self._own is not None:
            self._own.close()
        self._is_unclosed = False

    def _collected(self) -> None:
        """End: it was collected without being closed."""
        self._mailbox.forget(id(self))
        if self._own is not None:
            self._own._collected()


class _Mailbox:
    """The state that workers and their threads share. Workers are identified by numbers.

    A thread that is interrupted leaves no lock taken here (_kernels.quick_lock). The threads are started without
    threading.Thread, whose start and join can wait forever after an interrupt (bpo-45274).
    """

    def __init__(self, threads: int) -> None:
        # Guards the fields below.
        self._lock = QuickLock()
        self._changed = LockCondition(self._lock)
        self._closed = False
        self._most = threads
        self._threads = 0
        # Worker -> its work, in the order of the requests.
        self._asked: dict[int, Callable[[], None]] = {}
        # Worker -> the thread that does its work.
        self._running: dict[int, int] = {}
        # The process of the threads: a forked child has none of its parent's.
        self._process_id = 0

    def ask(self, worker: int, work: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return
            if self._process_id != os.getpid():
                self._running.clear()
                self._threads = 0
            self._asked[worker] = work
            # An interrupt here may lead to one more thread: a worker's runs still take turns.
            if self._threads < min(self._most, len(self._asked) + len(self._running)):
                start_thread(self._run, ())
                PROCESS_END.add(self)
                self._threads += 1
                self._process_id = os.getpid()
        self._changed.notify()

    def _run(self) -> None:
        work_in_background()
        while (found := self._next()) is not None:
            worker, work = found
            try:
                work()
            except BaseException:
                # As in any other thread. The next wake makes it work again.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))
            del work, found
            self._running.pop(worker, None)
            self._changed.notify()
        if not self._running:
            PROCESS_END.remove(self)

    def _next(self) -> tuple[int, Callable[[], None]] | None:
        with self._lock:
            while True:
                seen = self._changed.number
                if self._closed:
                    return None
                # A copy: `forget` takes no lock.
                for worker in [one for one in list(self._asked) if one not in self._running]:
                    work = self._asked.pop(worker, None)
                    if work is not None:
                        self._running[worker] = get_ident()
                        return worker, work
                self._changed.wait(seen)

    def wait_idle(self, worker: int) -> None:
        self._wait_while(lambda: worker in self._asked or worker in self._running)

    def leave(self, worker: int) -> None:
        """Start no other run of a worker, and let the present one end; its own work may call this."""
        with self._lock:
            self._asked.pop(worker, None)
            self._wait_while(lambda: self._running.get(worker) not in (None, get_ident()))

    def forget(self, worker: int) -> None:
        """Forget a worker that was collected. May be called at any moment: takes no lock."""
        self._asked.pop(worker, None)

    def close(self) -> None:
        with self._lock:
            self.abandon()
            self._asked.clear()
            self._wait_while(lambda: any(thread != get_ident() for thread in list(self._running.values())))

    def abandon(self) -> None:
        """Start nothing more. May be called at any moment: takes no lock."""
        self._closed = True
        self._changed.notify()

    # --- when the process ends (process_end) -----------------------------------------------------

    def write_out(self) -> None:
        pass

    def end_soon(self) -> None:
        pass

    def await_end(self, timeout_s: float) -> None:
        """The threads stay: one that waits for work holds nothing."""
        until = time.monotonic() + timeout_s
        with self._lock:
            while self._running or (self._asked and not self._closed):
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return
                self._changed.wait(self._changed.number, left_s)

    def _wait_while(self, is_busy: Callable[[], bool]) -> None:
        with self._lock:
            while True:
                seen = self._changed.number
                if self._process_id != os.getpid() or not is_busy():
                    return
                self._changed.wait(seen)
