"""How many messages are delayed, and the adding of most of them. See intake.pyx."""
from libc.stdint cimport int64_t

from .due_runs cimport DueRuns
from .pending_set cimport PendingSet
from .quick_lock cimport QuickLock


cdef class Intake:
    cdef QuickLock lock
    cdef DueRuns runs
    cdef PendingSet pending
    cdef PendingSet other
    cdef dict cancelled
    cdef dict moved
    cdef object now_ms
    cdef public int64_t ledger_id
    cdef public int64_t early_ms
    cdef public int64_t most
    cdef public int64_t delayed

    cdef int64_t now(self) except? -1
    cdef bint put(self, int64_t ledger_id, int64_t entry_id, int64_t deliver_at) except -1
