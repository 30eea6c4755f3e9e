from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from .batch_header cimport BatchHeader
from .span cimport Span

cdef struct RecordMark:
    uint16_t slot               # in its batch, of the first record that begins in the block or later; 0: unknown
    uint16_t distance           # of that record from the start of the block, in bytes
    int32_t largest_delta       # of the timestamps before that record; a larger one is stored as INT32_MAX


cdef class CheckedBatches:
    cdef uint8_t* bits          # owned
    cdef RecordMark* marks      # owned
    cdef int64_t size

    # Is the checksum of the batch at this position known to be correct?
    cdef bint holds(self, int64_t position) noexcept nogil

    # Check the batch and remember the result. False: the checksum is wrong.
    cdef bint check(self, const uint8_t* bytes, const BatchHeader* row) noexcept nogil

    # Prefetch the header of the batch at `position` of the map, which will probably be read next, and what is known
    # about it. `position` and a header after it must lie in the map.
    cdef void expect(self, const uint8_t* bytes, int64_t position) noexcept nogil

    # Advance `records`, which is at the first record of a checked uncompressed batch, towards the record in `slot`, or,
    # if slot is -1, towards the first whose timestamp delta is at or above `delta`; never past it. Returns how many it
    # skipped.
    cdef int64_t approach(
        self, const uint8_t* bytes, const BatchHeader* row, int64_t slot, int64_t delta, Span* records
    ) noexcept nogil
