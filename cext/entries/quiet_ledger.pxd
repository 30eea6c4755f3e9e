"""Adds that need only a write and a shared sync. See quiet_ledger.pyx."""
from libc.stdint cimport int64_t

from .entry_batch cimport EntryBatch
from .growing_end cimport EndNumbers, GrowingEnd
from .write_gate cimport ChangeGate


cdef class QuietWriter(ChangeGate):
    cdef public object active           # a segment's appender
    cdef public GrowingEnd published    # up to where readers see
    cdef public EntryBatch _waiting
    cdef public bint _waits             # callers wait for syncs
    cdef public int64_t next_id
    cdef public int64_t size_bytes
    cdef public int64_t _synced_bytes
    cdef public int64_t _told_bytes     # `when_synced` is called each time that so many more are on the disk
    cdef public object when_synced

    # Take an entry, which may need `most` bytes. Returns its number to wait for; 0 if it is not open: nothing was done.
    cdef int64_t put_one(self, bytes entry, int64_t timestamp, int64_t most) except -1
    cdef bint write_waiting(self, EndNumbers* end) except -1


cdef class QuietAdds:
    cdef public ChangeGate _tail
    cdef public object interceptors
    cdef public tuple _listeners
    cdef public int64_t _max_message_bytes
    # When the last ledger is full: so many entries, bytes, or milliseconds after it was made.
    cdef public int64_t _most_entries
    cdef public int64_t _most_bytes
    cdef public int64_t _most_age_ms

    # `add_quietly` for other kernels: a tuple, or None.
    cdef object add_one(self, bytes entry, int64_t timestamp)
    cdef object ledger_for(self, int64_t size_bytes, int64_t timestamp)
