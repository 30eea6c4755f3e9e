from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from .batch_header cimport BatchHeader
from .span cimport Span

cdef struct RecordMark:
    uint16_t slot               # in its batch, of the first record that does not begin before the block; 0: not known
    uint16_t distance           # of that record from the start of the block
    int32_t largest_delta       # of the timestamps before that record; a bound of int32 stands for what is beyond


cdef class CheckedBatches:
    cdef uint8_t* bits          # owned
    cdef RecordMark* marks      # owned
    cdef int64_t size

    # Is the checksum of the batch that begins there known to be good?
    cdef bint holds(self, int64_t position) noexcept nogil

    # Check the batch and remember it. False: the checksum does not fit.
    cdef bint check(self, const uint8_t* bytes, const BatchHeader* row) noexcept nogil

    # A batch at `position` of the map is likely to be read next: let its header come from memory, and what is known
    # of it. `position` and the room of a header behind it lie in the map.
    cdef void expect(self, const uint8_t* bytes, int64_t position) noexcept nogil

    # Move `records`, at the first record of a checked batch that is not compressed, towards the record in `slot`, or,
    # with slot -1, towards the first whose timestamp delta is at or above `delta`; never past it. How many were passed.
    cdef int64_t approach(
        self, const uint8_t* bytes, const BatchHeader* row, int64_t slot, int64_t delta, Span* records
    ) noexcept nogil
