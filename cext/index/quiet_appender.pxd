"""The quiet appends to a segment. See quiet_appender.pyx."""
from libc.stdint cimport int64_t

from .appended_file cimport AppendedFile
from .growing_end cimport GrowingEnd
from .index_build cimport IndexBuilder


cdef class QuietAppender:
    cdef public GrowingEnd written
    cdef public GrowingEnd seen
    cdef public int64_t quiet_bytes
    cdef public int64_t quiet_until_ms
    cdef public int64_t quiet_until_offset
    cdef public bint _takes_batches     # False: sealed, closed or failed
    cdef public object failure          # the first error, or None
    cdef public AppendedFile _log
    cdef public IndexBuilder _builder

    # `append_quietly` for other kernels.
    cdef int put_quietly(
        self, object raw, int64_t base_offset, int64_t last_offset, int64_t max_timestamp
    ) except -1
