"""Where background work runs: in a thread of its own, or, for tests, at once."""
import os
import sys
import threading
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from typing import Protocol

from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog._kernels.shield import work_in_background
from seglog._kernels.unclosed import Unclosed


class Worker(Protocol):
    """Runs one function whenever it is woken; wakes that come while it runs make it run once more."""

    def start(self, work: Callable[[], None]) -> None: ...

    def wake(self) -> None:
        """Ask for a run. Returns at once."""
        ...

    def wait_idle(self) -> None:
        """Return when every run that was asked for is over."""
        ...

    def close(self) -> None:
        """Let the present run end and begin no other."""
        ...


class InlineWorker:
    """Works in the thread that wakes it, before `wake` returns: runs are the same every time."""

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
    """Does nothing: what there is to do is left to who opens the tracker next."""

    def start(self, work: Callable[[], None]) -> None:
        pass

    def wake(self) -> None:
        pass

    def wait_idle(self) -> None:
        pass

    def close(self) -> None:
        pass


class BackgroundWorker(Unclosed):
    """Works in a thread, which starts when it is first woken, and ends when this is closed or collected.

    While it waits, the thread holds its mailbox and nothing else: a tracker that somebody forgot to close is collected,
    with all that it holds.
    """

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._mailbox = _Mailbox()

    def start(self, work: Callable[[], None]) -> None:
        self._work = work

    def wake(self) -> None:
        if self._work is not None:
            self._is_unclosed = True
            self._mailbox.ask(self._work)

    def wait_idle(self) -> None:
        self._mailbox.wait_idle()

    def close(self) -> None:
        self._work = None
        self._mailbox.close()
        self._is_unclosed = False

    def _collected(self) -> None:
        """Nobody has it any more, and it was not closed."""
        self._mailbox.abandon()


class _Mailbox:
    """What a worker and its thread have in common.

    A thread that is interrupted leaves no lock taken here (_kernels.quick_lock). The thread is started without
    threading.Thread, whose start and join an interrupt can leave waiting for ever (bpo-45274).
    """

    def __init__(self) -> None:
        # Guards what follows.
        self._lock = QuickLock()
        self._changed = LockCondition(self._lock)
        self._closed = False
        self._asked: Callable[[], None] | None = None
        self._worker: int | None = None     # the thread that is at work
        # The process that the thread is in: a forked child has none of its parent's. An interrupt may lead to a second
        # thread, so they take turns.
        self._process_id = 0

    def ask(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return
            self._asked = work
            if self._process_id != os.getpid():
                self._worker = None
                start_new_thread(self._run, ())
                self._process_id = os.getpid()
        self._changed.notify()

    def _run(self) -> None:
        work_in_background()
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException:
                # As of any other thread. The next wake makes it work again.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))
            del work
            self._worker = None
            self._changed.notify()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            while True:
                seen = self._changed.number
                if self._closed:
                    return None
                if self._asked is not None and self._worker is None:
                    work, self._asked, self._worker = self._asked, None, get_ident()
                    return work
                self._changed.wait(seen)

    def wait_idle(self) -> None:
        self._wait_while(lambda: self._asked is not None or self._worker is not None)

    def close(self) -> None:
        with self._lock:
            self.abandon()
            self._asked = None
            # Its own work may close it.
            self._wait_while(lambda: self._worker not in (None, get_ident()))

    def abandon(self) -> None:
        """Begin nothing more. May be called at any moment: takes no lock."""
        self._closed = True
        self._changed.notify()

    def _wait_while(self, is_busy: Callable[[], bool]) -> None:
        with self._lock:
            while True:
                seen = self._changed.number
                if self._process_id != os.getpid() or not is_busy():
                    return
                self._changed.wait(seen)
