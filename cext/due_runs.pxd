from libc.stdint cimport int64_t

from .due_rows cimport DueRow


# Rows as they were pushed, in chunks, so that a push never moves what lies there.
cdef struct Tail:
    DueRow** chunks             # owned, and so are they
    int64_t n_chunks
    int64_t room                # in the last chunk
    int64_t n
    int64_t min_at              # INT64_MAX while there is no row
    int64_t owner


# Sorted rows; [pos, n) are still there.
cdef struct Run:
    DueRow* rows                # owned
    int64_t pos
    int64_t n
    int64_t owner
    bint pushed                 # came from a tail: may be merged with its like
