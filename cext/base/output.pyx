"""The memory that kernels write into. See output.pxd.

Fresh memory costs four to five times as much as filling it (page faults), so code that fills chunk after chunk keeps
the OutputChunk and fills it again once it has no more views (`exports` is 0).
"""
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from .status cimport NO_MEMORY, OK

cdef enum:
    FIRST_CAPACITY = 4096


cdef int grow_output(Output* out, int64_t more) noexcept nogil:
    cdef int64_t capacity
    cdef uint8_t* grown
    if more > INT64_MAX // 4 - out.size:
        return NO_MEMORY
    capacity = max(FIRST_CAPACITY, 2 * out.capacity, out.size + more)
    grown = <uint8_t*>realloc(out.first, capacity + WILD_COPY_SLACK)
    if grown == NULL:
        return NO_MEMORY
    out.first = grown
    out.capacity = capacity
    return OK


cdef void trim_output(Output* out) noexcept nogil:
    cdef uint8_t* smaller = <uint8_t*>realloc(out.first, out.size + WILD_COPY_SLACK)
    if smaller != NULL:
        out.first = smaller
        out.capacity = out.size


cdef class OutputChunk:
    """Written bytes, read-only for Python; they live as long as a view of them."""

    def __dealloc__(self):
        free(self.out.first)

    def __len__(self):
        return self.out.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.out.first, self.out.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1


cdef OutputChunk next_chunk(OutputChunk full, OutputChunk spare, int64_t end):
    cdef OutputChunk fresh = spare if spare is not None and spare.exports == 0 else OutputChunk()
    cdef int64_t rest = full.out.size - end
    fresh.out.size = 0
    if ensure_room(&fresh.out, rest) != OK:
        raise MemoryError
    if rest:
        memcpy(fresh.out.first, full.out.first + end, rest)
    fresh.out.size = rest
    full.out.size = end
    return fresh
