"""Base of the classes that convert batches of a table to another format version. See packer.pyx."""
from libc.stdint cimport int64_t, uint8_t

from .batch_header cimport BatchHeader
from .batch_source cimport Source
from .one_at_a_time cimport Use
from .output cimport OutputChunk
from .segment_scan cimport BatchTable
from .window cimport Window

cdef enum:
    # Returned by add_plain besides a Status, which is 0 or below: this batch, or the open one, needs a codec.
    NEEDS_GIL = 1


cdef class Packer:
    cdef OutputChunk chunk          # being written
    cdef OutputChunk spare          # handed out before; reused once no view of it exists
    cdef Use use
    cdef bint is_broken             # the chunk ends with an incomplete batch
    cdef object decompress
    cdef object compress
    cdef readonly int magic
    cdef readonly int codec
    cdef readonly bint check_crc

    # What each direction implements. The first converts from row i[0] on, and advances it; NEEDS_GIL: that row is
    # checked, but needs a codec. The second converts a row that the first has checked.
    cdef int add_plain(self, BatchTable table, Py_ssize_t* i, Py_ssize_t last) noexcept nogil
    cdef int add_with_codec(self, BatchTable table, const BatchHeader* row) except -1
    cdef int close(self) except -1                      # end the open batch, if any
    cdef int64_t closed_end(self) noexcept nogil        # the end of the finished batches in the chunk
    cdef int64_t inner_capacity(self) noexcept nogil    # of messages before their compression
    cdef void settle(self) noexcept nogil               # complete the finished batches
    cdef void leave_chunk(self) noexcept nogil          # the finished batches go out; the open one moves to a new chunk

    # What both directions share.
    cdef int copy(self, const uint8_t* raw, int64_t size) noexcept nogil
    cdef Window open_source(self, BatchTable table, const BatchHeader* row, Source* source)
    cdef Window compressed(self, int codec, const uint8_t* first, int64_t size, int64_t base_offset)
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int raise_status_of(self, int status, BatchTable table, const BatchHeader* row) except -1
