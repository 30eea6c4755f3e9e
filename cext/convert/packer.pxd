"""What turns batches of a table into bytes of another format version, in either direction. See packer.pyx."""
from libc.stdint cimport int64_t, uint8_t

from .batch_header cimport BatchHeader
from .batch_source cimport Source
from .output cimport OutputChunk
from .segment_scan cimport BatchTable
from .window cimport Window

cdef enum:
    # What add_plain answers beside a Status, which is 0 or below: this batch, or the open one, goes through a codec.
    NEEDS_GIL = 1


cdef class Packer:
    cdef OutputChunk chunk          # being written
    cdef OutputChunk spare          # handed out before; written again once nobody looks at it
    cdef bint is_busy
    cdef bint is_broken             # half a batch stands at the end of the chunk
    cdef object decompress
    cdef object compress
    cdef readonly int magic
    cdef readonly int codec
    cdef readonly bint check_crc

    # What a direction is. The first converts from row i[0] on, and counts it up; NEEDS_GIL: that row is whole,
    # but needs a codec. The second converts a row that the first has checked.
    cdef int add_plain(self, BatchTable table, Py_ssize_t* i, Py_ssize_t last) noexcept nogil
    cdef int add_with_codec(self, BatchTable table, const BatchHeader* row) except -1
    cdef int close(self) except -1                      # end the open batch, if there is one
    cdef int64_t closed_end(self) noexcept nogil        # of the ended batches in the chunk
    cdef void settle(self) noexcept nogil               # let nothing be left to write in the ended batches
    cdef void leave_chunk(self) noexcept nogil          # they go out, and what is open stands at the start of another

    # What both do alike.
    cdef int copy(self, const uint8_t* raw, int64_t size) noexcept nogil
    cdef Window open_source(self, BatchTable table, const BatchHeader* row, Source* source)
    cdef Window compressed(self, int codec, const uint8_t* first, int64_t size, int64_t base_offset)
    cdef int enter(self) except -1
    cdef int raise_status_of(self, int status, BatchTable table, const BatchHeader* row) except -1
