"""Rows in the order in which they were pushed; due_runs sorts them when necessary.

They are stored in chunks, so a push never moves existing rows. A tail begins small, because many trackers hold almost
nothing, and grows by chunks of at most 192 KiB.
"""
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from .due_rows cimport DueRow
from .status cimport NO_MEMORY, OK

cdef enum:
    FIRST_CHUNK_ROWS = 64
    MAX_CHUNK_ROWS = 8192


cdef struct Tail:
    DueRow** chunks             # owned, like the pointers to them
    int64_t n_chunks
    int64_t room                # in the last chunk
    int64_t n
    int64_t min_at              # INT64_MAX if there is no row
    int64_t owner


cdef inline int64_t chunk_rows(int64_t chunk) noexcept nogil:
    return MAX_CHUNK_ROWS if chunk > 7 else FIRST_CHUNK_ROWS << chunk


cdef inline int64_t rows_of_chunks(int64_t chunks) noexcept nogil:
    """The sum of the first `chunks` values chunk_rows(0), chunk_rows(1), …."""
    cdef int64_t growing = chunks if chunks < 8 else 8
    return FIRST_CHUNK_ROWS * ((1 << growing) - 1) + MAX_CHUNK_ROWS * (chunks - growing)


cdef inline void forget_tail(Tail* tail) noexcept nogil:
    cdef int64_t i
    for i in range(tail.n_chunks):
        free(tail.chunks[i])
    free(tail.chunks)
    tail.chunks = NULL
    tail.n_chunks = tail.room = tail.n = 0
    tail.min_at = INT64_MAX


cdef inline int grow_tail(Tail* tail) noexcept nogil:
    cdef DueRow** chunks = <DueRow**>realloc(tail.chunks, (tail.n_chunks + 1) * sizeof(DueRow*))
    cdef DueRow* chunk
    if chunks == NULL:
        return NO_MEMORY
    tail.chunks = chunks
    chunk = <DueRow*>malloc(chunk_rows(tail.n_chunks) * sizeof(DueRow))
    if chunk == NULL:
        return NO_MEMORY
    chunks[tail.n_chunks] = chunk
    tail.room = chunk_rows(tail.n_chunks)
    tail.n_chunks += 1
    return OK


cdef inline int push_row(Tail* tail, int64_t deliver_at, int64_t ledger_id, int64_t entry_id) noexcept nogil:
    cdef DueRow* row
    if tail.room == 0 and grow_tail(tail) != OK:
        return NO_MEMORY
    row = tail.chunks[tail.n_chunks - 1] + (chunk_rows(tail.n_chunks - 1) - tail.room)
    row.deliver_at = deliver_at
    row.ledger_id = ledger_id
    row.entry_id = entry_id
    tail.room -= 1
    tail.n += 1
    if deliver_at < tail.min_at:
        tail.min_at = deliver_at
    return OK


cdef inline void copy_tail(const Tail* tail, DueRow* to) noexcept nogil:
    cdef int64_t i, n
    for i in range(tail.n_chunks):
        n = chunk_rows(i) - (tail.room if i == tail.n_chunks - 1 else 0)
        memcpy(to, tail.chunks[i], n * sizeof(DueRow))
        to += n
