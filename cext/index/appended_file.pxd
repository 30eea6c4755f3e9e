"""A file that is appended to. See appended_file.pyx."""
from libc.stdint cimport int64_t


cdef class AppendedFile:
    cdef public int _fd                 # -1: writes go through `append` alone, as in the doubles of tests
    cdef public int64_t _position       # where the next append goes
    cdef public bint _unsynced
    cdef public bint _closed
    cdef public object _failure         # the first error, None before it

    # `append_bytes` for other kernels.
    cdef int64_t append_piece(self, object data) except -1
