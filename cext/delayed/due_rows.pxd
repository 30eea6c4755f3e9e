"""Rows of delayed messages, and the order in which they become due.

A row is (deliver_at, ledger_id, entry_id), none of them negative. Rows are ordered by deliver_at, then by position.
Entry ids fit 32 bits, because bitmaps of entry ids are part of the snapshot's format.
"""
from libc.stdint cimport int64_t, uint8_t

from .one_at_a_time cimport Use

cdef enum:
    MAX_ENTRY_ID = 0xFFFFFFFF
    # Tag and size of an index, three tags and three varints: the largest index of a segment.
    MAX_INDEX_BYTES = 2 + 3 * 11


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


# Sort n rows. OK or NO_MEMORY: while it runs, the sort allocates as much memory again.
cdef int sort_rows(DueRow* rows, int64_t n) noexcept nogil

# The first of n sorted rows whose deliver_at is above `deliver_at`.
cdef int64_t first_after(const DueRow* rows, int64_t n, int64_t deliver_at) noexcept nogil

# One past the last row of the snapshot segment that begins at row `first` of n sorted rows. The segment spans less than
# `time_step_ms` and holds at most `most` rows (MutableBucket.createImmutableBucketAndAsyncPersistent of Pulsar 4.2.4).
cdef int64_t segment_end(
    const DueRow* rows, int64_t n, int64_t first, int64_t time_step_ms, int64_t most
) noexcept nogil

# Write the rows as a SnapshotSegment; returns its size in bytes. `out` must have MAX_INDEX_BYTES for each row.
cdef int64_t encode_rows(const DueRow* rows, int64_t n, uint8_t* out) noexcept nogil

# Raises InvalidArgumentError if these numbers cannot be a row.
cdef int check_row(int64_t deliver_at, int64_t ledger_id, int64_t entry_id) except -1


cdef class DueRows:
    cdef DueRow* rows           # owned
    cdef readonly int64_t count
    cdef int64_t capacity
    cdef Use use

    cdef int reserve(self, int64_t more) except -1
    cdef void give_back(self) noexcept
    cdef DueRow* give_away(self) noexcept
    cdef int check_range(self, int64_t start, int64_t stop) except -1
