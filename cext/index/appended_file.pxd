"""A file for appending. See appended_file.pyx."""
from libc.stdint cimport int64_t


cdef class AppendedFile:
    cdef public int _fd                 # -1: only `append` can write, as in test doubles
    cdef public int64_t _position       # the position of the next append
    cdef readonly int64_t _writes       # begun and ended: a write counts twice
    cdef readonly int64_t _synced_writes        # of them, those that a sync covers
    cdef public bint _closed
    cdef public object _failure         # the first error, or None

    # `append_bytes` for other kernels.
    cdef int64_t append_piece(self, object data) except -1
    cdef int sync_whole(self, bint data_only) except -1
    cdef int sync_descriptor(self, bint data_only) except -1
