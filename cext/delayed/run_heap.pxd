"""A heap of sorted runs of rows, ordered by their first rows, so that rows of many runs come out in order.

A run is sorted by (deliver_at, ledger_id, entry_id). The caller owns the heap's array.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from .due_rows cimport DueRow, row_below
from .status cimport NO_MEMORY, OK


# Sorted rows, of which [pos, n) remain.
cdef struct Run:
    DueRow* rows                # owned
    int64_t pos
    int64_t n
    int64_t owner
    bint pushed                 # came from a tail, so it may be merged with similar runs


cdef inline bint head_below(const Run* a, const Run* b) noexcept nogil:
    return row_below(&a.rows[a.pos], &b.rows[b.pos])


cdef inline void sift_down(Run* heap, int64_t slot, int64_t n) noexcept nogil:
    cdef Run run = heap[slot]
    cdef int64_t child
    while True:
        child = 2 * slot + 1
        if child >= n:
            break
        if child + 1 < n and head_below(&heap[child + 1], &heap[child]):
            child += 1
        if not head_below(&heap[child], &run):
            break
        heap[slot] = heap[child]
        slot = child
    heap[slot] = run


cdef inline void sift_up(Run* heap, int64_t slot) noexcept nogil:
    cdef Run run = heap[slot]
    cdef int64_t parent
    while slot > 0:
        parent = (slot - 1) >> 1
        if not head_below(&run, &heap[parent]):
            break
        heap[slot] = heap[parent]
        slot = parent
    heap[slot] = run


cdef inline int merge_rows(const Run* a, const Run* b, Run* into) noexcept nogil:
    cdef int64_t i = a.pos
    cdef int64_t j = b.pos
    cdef int64_t n = 0
    cdef DueRow* rows = <DueRow*>malloc(((a.n - i) + (b.n - j)) * sizeof(DueRow))
    if rows == NULL:
        return NO_MEMORY
    while i < a.n and j < b.n:
        if row_below(&b.rows[j], &a.rows[i]):
            rows[n] = b.rows[j]
            j += 1
        else:
            rows[n] = a.rows[i]
            i += 1
        n += 1
    memcpy(rows + n, a.rows + i, (a.n - i) * sizeof(DueRow))
    n += a.n - i
    memcpy(rows + n, b.rows + j, (b.n - j) * sizeof(DueRow))
    n += b.n - j
    into.rows = rows
    into.pos = 0
    into.n = n
    into.owner = a.owner
    into.pushed = True
    return OK
