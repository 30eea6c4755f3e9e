"""The step of a dispatcher that nearly all entries of a queue take. See quiet_dispatcher.pyx."""
from libc.stdint cimport int64_t

from .pending_set cimport PendingSet
from .quick_lock cimport QuickLock
from .quiet_cursor cimport QuietCursor


cdef class QuietDispatcher:
    cdef public QuickLock _lock
    cdef public QuietCursor _cursor
    cdef public list _read              # entries that were read, but not placed yet
    cdef public PendingSet _taken       # entries that were dispatched
    cdef public bint _is_closed

    # `_hand_over`, for other kernels.
    cdef bint hand_over(self, int64_t ledger_id, int64_t entry_id) except -1
