"""The end of a growing segment. See growing_end.pyx."""
from libc.stdint cimport int64_t


cdef struct EndNumbers:
    int64_t position
    int64_t next_offset
    int64_t offset_entries
    int64_t time_entries
    int64_t minute_entries


cdef class GrowingEnd:
    cdef EndNumbers numbers
    cdef int64_t version        # counts the changes
    cdef object kind            # the class of the tuple
    cdef object _at             # `numbers` as a tuple; None before the first request

    cdef inline void put(self, const EndNumbers* numbers) noexcept:
        self.numbers = numbers[0]
        self.version += 1
        self._at = None
