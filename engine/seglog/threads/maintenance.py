"""Background work of a log or a ledger: write lingering records, sync after an interval, roll when idle.

Each has one daemon thread, only if its configuration needs it. The thread does not keep the log alive. It ends with
the log, or before the process does (process_end): what lingers is written then.
"""
import os
import time
import weakref
from _thread import get_ident
from typing import Protocol

from seglog._kernels.shield import start_thread, work_in_background
from seglog._kernels.write_gate import Bell
from seglog.errors import SeglogError
from seglog.process_end import PROCESS_END


class Maintainable(Protocol):
    """What the thread calls. The log remembers errors and raises them at the next append or close."""

    def _write_lingering(self) -> None: ...

    def _stop_lingering(self) -> None:
        """Write what lingers, and let nothing linger from now on."""

    def _maintain(self) -> None: ...


class MaintenanceThread:
    """Calls `_maintain` every `period_s`, and `_write_lingering` a fixed time after the first call of `linger`.

    No lock: each field is written in one step, and the thread checks all of them whenever the bell rings.
    """

    def __init__(self, log: Maintainable, *, period_s: float | None, linger_s: float) -> None:
        self._period_s = period_s
        self._linger_s = linger_s
        self._bell = Bell()
        self._linger_at: float | None = None
        self._stopped = False
        # A call in C: in one in Python, ^C would be lost.
        self._log = weakref.ref(log, self._bell.ring)
        # A forked child does not have its parent's thread.
        self._process_id = os.getpid()
        self._ended = Bell()
        # Not threading.Thread, which runs Python code when it is collected.
        PROCESS_END.add(self)
        try:
            self._thread_id = start_thread(self._run, ())
        except BaseException:
            PROCESS_END.remove(self)
            raise

    def linger(self) -> None:
        """Note that records now wait in memory. Call it with the log's lock, under which they are also written."""
        if self._linger_at is None:
            self._linger_at = time.monotonic() + self._linger_s
        self._bell.ring()

    def stop(self) -> None:
        """End the thread. Do not hold the log's lock: the thread may need it."""
        self.end_soon()
        if get_ident() != self._thread_id and os.getpid() == self._process_id:
            self.await_end(-1)

    # --- when the process ends (process_end) -----------------------------------------------------

    def write_out(self) -> None:
        log = self._log()
        if log is not None:
            log._stop_lingering()

    def end_soon(self) -> None:
        self._stopped = True
        self._bell.ring()

    def await_end(self, timeout_s: float) -> None:
        self._ended.wait(timeout_s)
        self._ended.ring()      # for another call

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        work_in_background()
        try:
            self._keep()
        finally:
            PROCESS_END.remove(self)
            self._ended.ring()

    def _keep(self) -> None:
        period_at = None if self._period_s is None else time.monotonic() + self._period_s
        while not self._stopped:
            left = self._left_s(period_at)
            if left is None or left > 0:
                self._bell.wait(-1 if left is None else left)
                if self._log() is None:
                    return
                continue
            lingers = self._linger_at is not None and self._linger_at <= time.monotonic()
            if lingers:
                self._linger_at = None      # before writing: records that come after that set it again
            log = self._log()
            if log is None:
                return
            try:
                if lingers:
                    log._write_lingering()
                if period_at is not None and self._period_s is not None and period_at <= time.monotonic():
                    period_at = time.monotonic() + self._period_s
                    log._maintain()
            except SeglogError:
                return      # closed or read-only: the log's next caller is told
            del log

    def _left_s(self, period_at: float | None) -> float | None:
        due = [at for at in (self._linger_at, period_at) if at is not None]
        return min(due) - time.monotonic() if due else None
