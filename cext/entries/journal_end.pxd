"""The growing end of a queue's journal. See journal_end.pyx."""
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

from .appended_file cimport AppendedFile
from .write_gate cimport ChangeGate


cdef class JournalEnd(ChangeGate):
    cdef public AppendedFile _file
    cdef public int64_t journal_id
    cdef public int64_t _synced_to      # up to here the file is on the disk
    cdef public int64_t _quiet_to       # an append that ends here or before needs only a write
    cdef public bint _waits             # callers wait for syncs

    # Whether an append of one item is quiet; it stays so as long as the caller holds the lock of all appends.
    cdef bint is_quiet(self) noexcept
    # Append it. Raises as ChangeGate.change.
    cdef int append_one(
        self, int kind, int64_t ledger_id, int64_t entry_id, int32_t batch_index, uint32_t number, uint64_t at_ms,
        uint16_t subscription
    ) except -1
