"""The end of a growing segment: five numbers, set by one writer and read by many readers.

The GIL makes each change one step. The tuple of them is made on demand, since most appends are never looked at; as long
as nothing changes it is the same tuple, so that readers can compare by `is`.
"""
from libc.stdint cimport int64_t


cdef class GrowingEnd:
    """GrowingEnd(at): `at` is a NamedTuple of position, next_offset, offset_entries, time_entries, minute_entries."""

    def __init__(self, at not None):
        self.at = at

    @property
    def at(self):
        """The present end, as a tuple of the class that was given last."""
        cdef int64_t version = self.version
        made = self._at
        if made is None:
            made = tuple.__new__(self.kind, (
                self.numbers.position, self.numbers.next_offset, self.numbers.offset_entries,
                self.numbers.time_entries, self.numbers.minute_entries,
            ))
            # Making it may have let another thread run, which set a later one.
            if self.version == version:
                self._at = made
        return made

    @at.setter
    def at(self, end not None):
        cdef EndNumbers numbers
        numbers.position, numbers.next_offset = end[0], end[1]
        numbers.offset_entries, numbers.time_entries, numbers.minute_entries = end[2], end[3], end[4]
        self.put(&numbers)
        self.kind = type(end)
        self._at = end
