"""The time ranges of a segment: the smallest and largest timestamp of each run of its bytes.

See docs/formats/time_ranges.md.
"""
from libc.stdint cimport int64_t, uint8_t

from .window cimport Window

cdef enum:
    LEVELS_MAX = 16             # of groups: more than 2^63 runs would need


cdef class TimeRangesSearch:
    cdef Window window                          # keeps the bytes alive
    cdef const uint8_t* runs
    cdef int64_t n                              # of runs
    cdef int levels                             # the number of levels of groups
    cdef const uint8_t* groups[LEVELS_MAX]      # the groups of each level, finest first
    cdef int64_t counts[LEVELS_MAX]
    cdef readonly int64_t base_offset
    cdef readonly int64_t next_offset
    cdef readonly int64_t log_bytes
    cdef readonly int64_t last_position
    cdef readonly int64_t last_crc
    cdef readonly int64_t run_bytes

    cdef int check(self) except -1
    cdef bint place_groups(self, const uint8_t* at, const uint8_t* end) noexcept
    cdef int64_t first_wrong(self) noexcept nogil
    # The first run from `slot` on with a timestamp in [smallest, largest]; the number of runs if there is none.
    cdef int64_t first_from(self, int64_t slot, int64_t smallest, int64_t largest) noexcept nogil
    # The run that contains `offset`, or the gap with it; the first run for offsets before it.
    cdef int64_t slot_of(self, int64_t offset) noexcept nogil
    # Where the run begins: its position in bytes, and its offset. For one past the last run, the end of the log.
    cdef int64_t position_of(self, int64_t slot) noexcept nogil
    cdef int64_t offset_of(self, int64_t slot) noexcept nogil
