"""Adds delayed messages one by one.

Nearly every message is new, belongs to the ledger being written, and was never moved or cancelled. Adding such a
message takes a few nanoseconds; finding out in Python that it is one takes hundreds. All other messages go through the
tracker, which handles every case.
"""
cimport cython
from libc.stdint cimport int64_t
from cpython.long cimport PyLong_Check, PyLong_CheckExact
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from .due_runs cimport DueRuns
from .pending_set cimport PendingSet
from .quick_lock cimport QuickLock

cdef enum:
    ANY = -2


cdef inline bint is_int(object value) noexcept:
    return PyLong_CheckExact(value) or (PyLong_Check(value) and not isinstance(value, bool))


@cython.final
cdef class Intake:
    """Adds to `runs` and `pending`, as long as no message was cancelled or moved: `cancelled` and `moved` are empty.

    now_ms: the clock, or None for the system's. other: another set that may contain the message, or None.
    ledger_id: only messages of this ledger are added here; ANY_LEDGER: messages of all ledgers.
    early_ms, most: a message due within `early_ms`, or beyond the `most` pending ones, is not added here.
    delayed: how many are pending. `lock` guards it, like everything else.
    """
    ANY_LEDGER = ANY

    def __init__(
        self,
        QuickLock lock not None,
        DueRuns runs not None,
        PendingSet pending not None,
        dict cancelled not None,
        dict moved not None,
        now_ms=None,
        PendingSet other=None,
    ):
        self.lock = lock
        self.runs = runs
        self.pending = pending
        self.cancelled = cancelled
        self.moved = moved
        self.now_ms = now_ms
        self.other = other
        self.ledger_id = ANY

    cdef int64_t now(self) except? -1:
        cdef timespec time
        if self.now_ms is not None:
            return self.now_ms()
        clock_gettime(CLOCK_REALTIME, &time)
        return <int64_t>time.tv_sec * 1000 + time.tv_nsec // 1_000_000

    def add(self, object ledger_id, object entry_id, object deliver_at):
        """Whether the message is pending now. False: nothing was changed, because it needs the tracker, or because
        another thread holds the lock. Raises TypeError for a value that is not an int (a C argument would truncate
        it), OverflowError, InvalidArgumentError for numbers that cannot be a message, MemoryError."""
        if not (is_int(ledger_id) and is_int(entry_id) and is_int(deliver_at)):
            raise TypeError("a message is three ints")
        return self.put(ledger_id, entry_id, deliver_at)

    cdef bint put(self, int64_t ledger_id, int64_t entry_id, int64_t deliver_at) except -1:
        cdef int64_t cutoff = self.now() + self.early_ms
        if (
            not self.lock.is_open()
            or (ledger_id != self.ledger_id and self.ledger_id != ANY)
            or deliver_at <= cutoff or deliver_at < 0
            or self.delayed >= self.most
            or len(self.cancelled) or len(self.moved)
            or (self.other is not None and self.other.bitmap_of(ledger_id) is not None)
        ):
            return False
        # Nothing below releases the GIL, except a garbage collection, which may start at any time.
        self.lock.take()
        try:
            self.delayed += self.runs.put_new(deliver_at, ledger_id, entry_id, self.pending, False)
        finally:
            self.lock.give()
        return True
