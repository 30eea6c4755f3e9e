"""Runs jobs in a thread that exists as long as there are any, such as writing files that no caller waits for.

The process ends after they are done (process_end).
"""
from _thread import allocate_lock
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from seglog._kernels.ending import check_others_run
from seglog._kernels.shield import start_thread, work_in_background
from seglog._kernels.write_gate import Bell
from seglog.logger import Logger
from seglog.process_end import PROCESS_END

_LOG = Logger(__name__)

# An interrupted waiter may not have rung the bell for the others: they look again after this time.
_LOOK_S = 1.0

Job = TypeVar("Job")


class BackgroundWork(ABC, Generic[Job]):
    """Runs jobs in the order in which they were put, in a thread that ends when none is left.

    `_put` may be called by one thread at a time, `wait` by any.
    """

    # Whether `_put` runs the job itself if no thread can start, at the interpreter's exit or the system's limit.
    # If not, the job is dropped.
    _DOES_WITHOUT_THREAD: ClassVar[bool]

    def __init__(self) -> None:
        self._lock = allocate_lock()        # guards the next two fields
        self._due: list[Job] = []
        self.is_busy = False
        self._idle = Bell()

    @abstractmethod
    def _do(self, job: Job) -> None:
        """Run one job, without holding any lock."""

    def wait(self) -> None:
        """Return when all jobs have ended, whatever their result. Raises LogFailedError if the process ended before."""
        while self.is_busy:
            check_others_run()
            bell = self._idle
            bell.wait(_LOOK_S)
            bell.ring()     # for the other waiters

    def _put(self, job: Job, *, is_latest: bool = False) -> Job | None:
        """Run the job as soon as possible. `is_latest`: replace the job that still waits, and return that one."""
        with self._lock:
            replaced = self._due.pop() if is_latest and self._due else None
            self._due.append(job)
            begins, self.is_busy = not self.is_busy, True
        if begins:
            self._idle = Bell()
            PROCESS_END.add(self)
            try:
                start_thread(self._run, ())
            except RuntimeError:
                self._do_all(drops=not self._DOES_WITHOUT_THREAD)
        return replaced

    def _run(self) -> None:
        work_in_background()
        self._do_all()

    def _do_all(self, *, drops: bool = False) -> None:
        bell = self._idle
        while (job := self._take()) is not None:
            try:
                if not drops:
                    self._do(job)
            except BaseException:       # otherwise `wait` would never return
                _LOG.exception("work in the background failed")
            del job
        bell.ring()

    def _take(self) -> Job | None:
        with self._lock:
            job = self._due.pop(0) if self._due else None
            self.is_busy = job is not None
            if job is None:
                PROCESS_END.remove(self)
        return job

    # --- when the process ends (process_end) -----------------------------------------------------

    def write_out(self) -> None:
        pass

    def end_soon(self) -> None:
        pass

    def await_end(self, timeout_s: float) -> None:
        if self.is_busy:
            self._idle.wait(timeout_s)
            self._idle.ring()       # for the other waiters
