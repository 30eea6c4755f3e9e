"""Looks for transactions that are open for too long: one daemon thread per process, while any log has one open."""
import os
import weakref
from typing import Protocol

from seglog._kernels.shield import start_thread, work_in_background
from seglog._kernels.write_gate import Bell, CallLock
from seglog.errors import SeglogError
from seglog.process_end import PROCESS_END

# A clock may be set, and a test's clock stands still: so the thread does not sleep until the timeout.
_LOOK_MS_MIN, _LOOK_MS_MAX = 20, 10_000


class WatchedTransactions(Protocol):
    """The transactions of a log."""

    def abort_overdue(self) -> int | None:
        """Abort transactions that are open too long. Returns the ms until the next look, or None if none is open."""


class TransactionWatch:
    """Calls `abort_overdue` of each watched log until it has no open transaction, is closed or is collected."""

    def __init__(self) -> None:
        self._lock = CallLock()
        self._watched: dict[int, weakref.ref[WatchedTransactions]] = {}
        self._bell = Bell()
        self._process_id = -1       # a forked child does not have its parent's thread
        self._ended = Bell()

    def add(self, watched: WatchedTransactions) -> None:
        """Watch a log in which a transaction has begun. The log calls it with its lock held."""
        self._watched[id(watched)] = weakref.ref(watched)
        if self._process_id != os.getpid():
            self._lock.run(self._start)
        self._bell.ring()

    def after_fork(self) -> None:
        """In the child, which does not write to its parent's logs."""
        self._lock.renew()
        self._watched.clear()

    def _start(self) -> None:
        if self._process_id != os.getpid():
            self._bell, self._ended = Bell(), Bell()
            start_thread(self._run, (self._bell, self._ended))
            self._process_id = os.getpid()
            PROCESS_END.add(self)

    # --- when the process ends (process_end) -----------------------------------------------------

    def write_out(self) -> None:
        pass

    def end_soon(self) -> None:
        bell, self._bell = self._bell, Bell()
        self._process_id = -1       # a transaction that begins from now on starts another thread
        bell.ring()

    def await_end(self, timeout_s: float) -> None:
        self._ended.wait(timeout_s)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self, bell: Bell, ended: Bell) -> None:
        work_in_background()
        try:
            while self._bell is bell:
                left_ms = self._look()
                bell.wait(-1 if left_ms is None else max(left_ms, _LOOK_MS_MIN) / 1000)
        finally:
            ended.ring()

    def _look(self) -> int | None:
        """Look at all logs. Returns the ms until the next look, or None to wait for the bell."""
        left_ms = []
        for key in list(self._watched):
            # Removed first: a transaction that begins after the look adds it again.
            reference = self._watched.pop(key, None)
            watched = reference() if reference is not None else None
            if watched is None or reference is None:
                continue
            try:
                left = watched.abort_overdue()
            except SeglogError:
                continue        # closed or read-only: calls on the log report it
            if left is not None:
                self._watched.setdefault(key, reference)
                left_ms.append(min(left, _LOOK_MS_MAX))
            del watched
        return min(left_ms, default=None)


WATCH = TransactionWatch()
os.register_at_fork(after_in_child=WATCH.after_fork)
