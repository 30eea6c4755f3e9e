from libc.stdint cimport int64_t

from .batch_header cimport BatchHeader
from .window cimport Window


cdef class BatchTable:
    """The headers of consecutive batches in one window, as a plain array."""
    cdef Window window
    cdef object decompress          # Callable[[codec, magic, memoryview], bytes] or None
    cdef BatchHeader* rows          # owned
    cdef Py_ssize_t n
    cdef Py_ssize_t capacity
    cdef readonly int64_t end       # position after the last batch in the table
    cdef int64_t size               # the end of the scanned bytes
    cdef int64_t first_possible     # no record of the table has a lower offset; INT64_MIN: unknown
    cdef int stop_                  # the Status that ended the scan: OK at the end of the window

    cdef BatchHeader* next_row(self) noexcept nogil

    # A record of this row must be above this offset, the end of the batch before it. -1: unknown.
    cdef inline int64_t end_before(self, const BatchHeader* row) noexcept nogil:
        if row > self.rows:
            return (row - 1).last_offset
        return self.first_possible - 1 if self.first_possible > 0 else -1
