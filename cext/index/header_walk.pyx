"""A walk over all batch headers of a segment beside its indexes, to find which entries can be trusted.

A time index claims for each entry that nothing before it is later. No entry proves that, only the headers of all
batches before it do; so they are walked once, and the entries that proved true are trusted from then on. In a growing
segment, the walk continues where it ended. It checks no checksums: a reader that is led to a batch does that. It does
not prove the time of a v0 or v1 wrapper: it only reports that there are some.
"""
cimport cython
from libc.stdint cimport INT64_MAX, int64_t

from .batch_attributes cimport has_open_end
from .batch_header cimport BatchHeader, bounds_time
from .index_search cimport TAGGED_ENTRY_SIZE, Entries, absolute_offset, hold_entries, key_at, value_at
from .status cimport OK
from .tagged_message cimport header_in
from .window cimport Window, check_whole


@cython.final
cdef class HeaderWalk:
    """HeaderWalk(base_offset, by_minute): at the start of a segment. Thread-safe.

    by_minute: its times are those of the minute index, so a search may have to walk through a whole minute. misled: the
    wrappers were opened, and one has a later message than its header says (`distrust`). Then no header and no entry
    excludes a time.
    """

    def __cinit__(self, int64_t base_offset, bint by_minute=False):
        self.base_offset = base_offset
        self.by_minute = by_minute
        self.walked.largest = -1
        self.walked.last_offset = base_offset - 1 if base_offset > 0 else -1

    @property
    def position(self):
        """The position of the header that the walk has reached."""
        return self.walked.position

    @property
    def largest_timestamp(self):
        """The largest timestamp of the batches passed; -1 if none has one."""
        return self.walked.largest

    @property
    def offset_entries(self):
        """The number of offset entries that point to a batch, and no batch before reaches their offset."""
        return self.walked.offset_entries

    @property
    def time_entries(self):
        """The number of time entries with the largest timestamp of their offset's batch and all before."""
        return self.walked.time_entries

    @property
    def damaged(self):
        """The walk met an invalid header, or offsets that do not increase, and stops there."""
        return self.walked.damaged

    @property
    def has_wrappers(self):
        """Some batches passed have times that bound nothing before they are opened (RecordBatch.bounds_time)."""
        return self.walked.has_wrappers

    def distrust(self):
        """Do not take any header's time for a bound any longer."""
        self.misled = True

    def advance(self, Window window not None, Window offsets, Window times, int64_t end_offset=INT64_MAX):
        """Continue to the end of `window`; `offsets` and `times`: entries of the indexes, None without an index.

        end_offset: every batch ends below it.
        Windows may get longer, and must contain what they contained before.
        """
        cdef Walked walked = self.walked
        cdef Entries of_offsets, of_times
        hold_entries(&of_offsets, offsets, timed=False)
        hold_entries(&of_times, times, timed=True)
        if walked.damaged or walked.position >= window.size:     # or another thread has walked on
            return
        with nogil:
            walk(&walked, self.base_offset, end_offset, window, &of_offsets, &of_times)
        check_whole(window)
        if offsets is not None:
            check_whole(offsets)
        if times is not None:
            check_whole(times)
        if walked.position > self.walked.position or walked.damaged:
            self.walked = walked


cdef void walk(
    Walked* w, int64_t base_offset, int64_t end_offset, Window window,
    const Entries* offsets, const Entries* times
) noexcept nogil:
    cdef BatchHeader row
    cdef int64_t size = window.size
    cdef int64_t slot
    while w.position < size:
        if (
            header_in(window, size, w.position, &row) != OK
            or has_open_end(&row)
            or not w.last_offset < row.base_offset <= row.last_offset or row.last_offset >= end_offset
        ):
            w.damaged = True
            return
        while not w.offsets_end and w.offset_entries < offsets.n:
            slot = w.offset_entries
            if value_at(offsets, slot) > row.position:
                break
            # Offsets must rise, since they are searched; and everything before the batch must be before the entry.
            w.offsets_end = (
                value_at(offsets, slot) < row.position
                or absolute_offset(<int>key_at(offsets, slot), base_offset) <= w.last_offset
                or (slot > 0 and key_at(offsets, slot) <= key_at(offsets, slot - 1))
            )
            if not w.offsets_end:
                w.offset_entries += 1
        w.largest = max(w.largest, row.max_timestamp)
        w.has_wrappers |= not bounds_time(&row)
        while not w.times_end and w.time_entries < times.n:
            slot = w.time_entries
            if absolute_offset(value_at(times, slot), base_offset) > row.last_offset:
                break
            if times.size == TAGGED_ENTRY_SIZE:     # of this batch, the largest so far
                w.times_end = key_at(times, slot) != w.largest
            else:
                w.times_end = (
                    key_at(times, slot) != row.max_timestamp or row.max_timestamp != w.largest
                    or (slot > 0 and key_at(times, slot) <= key_at(times, slot - 1))
                )
            if not w.times_end:
                w.time_entries += 1
        w.last_offset = row.last_offset
        w.position += row.size_bytes
