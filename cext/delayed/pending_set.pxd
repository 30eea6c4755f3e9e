from libc.stdint cimport int64_t


cdef class PendingSet:
    cdef dict bitmaps           # ledger id -> bitmap of entry ids
    cdef object new_bitmap
    cdef readonly int64_t count
    cdef int64_t last_ledger_id
    cdef object last_bitmap     # of last_ledger_id: messages come and go in runs of one ledger

    cdef inline object bitmap_of(self, int64_t ledger_id)
    cdef bint has(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef bint put(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef bint take(self, int64_t ledger_id, int64_t entry_id) except -1
    # Add n rising entry ids, unless one of them is pending already.
    cdef bint put_many(self, int64_t ledger_id, const int64_t* entry_ids, int64_t n) except -1
