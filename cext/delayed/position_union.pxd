from libc.stdint cimport int32_t, int64_t, uint8_t

from .due_rows cimport DueRows
from .one_at_a_time cimport Use
from .plain_bitmap cimport Numbers


cdef struct LedgerNumbers:
    int64_t ledger_id
    int64_t group               # which added its last bitmap
    Numbers entries             # owned


cdef class PositionUnion:
    cdef LedgerNumbers* ledgers     # owned, in order of arrival
    cdef int32_t n
    cdef int32_t room
    cdef int32_t* slots             # owned hash table of indexes in `ledgers`, -1: free
    cdef int32_t mask               # its size minus one
    cdef int32_t last
    cdef Use use

    cdef int add_all(self, DueRows rows) except -1
    cdef LedgerNumbers* ledger(self, int64_t ledger_id) noexcept nogil
    cdef bint widen(self) noexcept nogil
    # Add a serialised bitmap of a ledger. BAD_FIELD: `group` has already added one of this ledger.
    cdef int add(self, int64_t group, int64_t ledger_id, const uint8_t* bytes, Py_ssize_t size) noexcept nogil
