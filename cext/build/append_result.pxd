"""The result of checking batches to append: they can be written, or must be rebuilt first."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from .batch_header cimport BatchHeader
from .segment_scan cimport BatchTable
from .span cimport Span
from .window cimport Window


cdef class Assigned:
    cdef readonly Window raw
    cdef readonly BatchTable table
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t offset_of_max_timestamp
    cdef readonly int64_t count
    cdef readonly int64_t suspect
    cdef readonly int32_t max_epoch
    cdef readonly bint has_producer
    cdef readonly bint rebuilt
    cdef bint is_ours           # nothing else refers to the bytes of `raw`

    cdef void place_rows(self, int64_t first_offset, int32_t leader_epoch) noexcept nogil
    cdef void sum_up(self) noexcept nogil


cdef class Unfit:
    cdef BatchTable table
    cdef Span span              # of a v2 batch's records, within `opened`
    cdef Window opened          # the records of a compressed batch, or all bytes
    cdef int64_t max_timestamp
    cdef readonly int64_t count
    cdef readonly int codec
    cdef readonly int magic


# An Assigned for all batches of a table with at least one. count -1: not counted.
cdef Assigned assigned_of(BatchTable table, int64_t count, bint is_ours, bint rebuilt)

# `codec`, `magic`: what the batches must be converted to.
cdef Unfit unfit_of(
    BatchTable table, Window opened, Span span, int64_t count, int64_t max_timestamp, int codec, int magic
)

# Set the timestamp type and maximum of a batch, in its bytes (which must be ours) and in its row.
cdef void stamp(const uint8_t* bytes, BatchHeader* row, bint is_log_append_time, int64_t max_timestamp) noexcept nogil

# Raises InvalidArgumentError if `count` offsets from the first one on would exceed the largest offset.
cdef int check_room(int64_t first_offset, int64_t count) except -1
