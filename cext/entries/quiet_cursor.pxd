"""Steps of a cursor that nearly all entries of a queue take. See quiet_cursor.pyx."""
from libc.stdint cimport int64_t

from .quick_lock cimport QuickLock


cdef class AcknowledgedEnds:
    cdef public object mark_delete      # everything up to here is acknowledged
    cdef public object entries          # a mapping: what is acknowledged after it
    cdef public object batches          # a mapping: partly acknowledged entries


cdef class QuietCursor:
    cdef public QuickLock _lock
    cdef public AcknowledgedEnds _acknowledged
    cdef public object _shown           # `extent`, whose `growing_id` is the ledger that grows
    cdef public object _read            # the last entry that was read or skipped
    cdef public bint _is_closed
    cdef public bint _is_dirty
    cdef public bint _is_due            # the next write must not be delayed
    cdef public bint _is_journaled      # acknowledgements are made durable elsewhere

    # Count an entry that was just added as read if it is the one that would be read next; return whether it is.
    cdef bint pass_next(self, int64_t ledger_id, int64_t entry_id) except -1
    # Acknowledge an entry that is there if the mark-delete position then moves onto it, within the ledger that grows,
    # and nothing else happens: a journal has it, and the listeners need not know. Return whether it did.
    cdef bint acknowledge_next(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef int check_filled(self) except -1
