"""Rows of delayed messages, and the order in which they become due.

A row is (deliver_at, ledger_id, entry_id), none of them negative; rows are ordered by deliver_at, among
equals by position. Entry ids fit 32 bits, because bitmaps of entry ids are part of the snapshot's format.
"""
from libc.stdint cimport int64_t

cdef enum:
    MAX_ENTRY_ID = 0xFFFFFFFF


cdef struct DueRow:
    int64_t deliver_at
    int64_t ledger_id
    int64_t entry_id


cdef inline bint row_below(const DueRow* a, const DueRow* b) noexcept nogil:
    if a.deliver_at != b.deliver_at:
        return a.deliver_at < b.deliver_at
    if a.ledger_id != b.ledger_id:
        return a.ledger_id < b.ledger_id
    return a.entry_id < b.entry_id


# Sort n rows. OK or NO_MEMORY: the sort takes as much memory again while it runs.
cdef int sort_rows(DueRow* rows, int64_t n) noexcept nogil

# The first of n sorted rows whose deliver_at is above `deliver_at`.
cdef int64_t first_after(const DueRow* rows, int64_t n, int64_t deliver_at) noexcept nogil

# Raises InvalidArgumentError for numbers that are no row.
cdef int check_row(int64_t deliver_at, int64_t ledger_id, int64_t entry_id) except -1


cdef class DueRows:
    cdef DueRow* rows           # owned
    cdef readonly int64_t count
    cdef int64_t capacity

    cdef int reserve(self, int64_t more) except -1
    cdef void give_back(self) noexcept
    cdef DueRow* give_away(self) noexcept
    cdef int check_range(self, int64_t first, int64_t end) except -1
