"""A walk over all batch headers of a segment beside its indexes: which of their entries can be believed.

A time index says for each entry that nothing before it is later. No entry proves that, only the headers of all
batches before it do; so they are walked once, and as many entries as held true are believed from then on. A
segment that grows is walked on from where the walk had come to. No checksum is looked at: who is led to a
batch checks it. The time of a wrapper of v0 or v1 is not proved by this: the walk only tells that there are such.
"""
cimport cython
from libc.stdint cimport INT64_MAX, int64_t

from .batch_attributes cimport has_open_end
from .batch_header cimport BatchHeader, bounds_time
from .index_search cimport TAGGED_ENTRY_SIZE, Entries, absolute_offset, hold_entries, key_at, value_at
from .status cimport OK
from .tagged_message cimport header_in
from .window cimport Window


@cython.final
cdef class HeaderWalk:
    """HeaderWalk(base_offset, by_minute): at the start of a segment. Threads may share it.

    by_minute: its times are those of the minute index, so that a search may have to walk through a whole minute.
    misled: somebody opened the wrappers and found a later message than its wrapper says (`distrust`). Then no header
    and no entry says where a time is not.
    """

    def __cinit__(self, int64_t base_offset, bint by_minute=False):
        self.base_offset = base_offset
        self.by_minute = by_minute
        self.walked.largest = -1
        self.walked.last_offset = base_offset - 1 if base_offset > 0 else -1

    @property
    def position(self):
        """Of the header that the walk has come to."""
        return self.walked.position

    @property
    def largest_timestamp(self):
        """Of the batches passed; -1 where none has one."""
        return self.walked.largest

    @property
    def offset_entries(self):
        """So many of the offset index lead to a batch, and none before that batch reaches up to their offset."""
        return self.walked.offset_entries

    @property
    def time_entries(self):
        """So many of the time index name the largest timestamp of the batch of their offset, and of all before."""
        return self.walked.time_entries

    @property
    def damaged(self):
        """The walk met what is no header, or offsets that do not increase, and goes no further."""
        return self.walked.damaged

    @property
    def has_wrappers(self):
        """Batches were passed whose time bounds nothing before they are opened (RecordBatch.bounds_time)."""
        return self.walked.has_wrappers

    def distrust(self):
        """Take no header's time for a bound any more."""
        self.misled = True

    def advance(self, Window window not None, Window offsets, Window times, int64_t end_offset=INT64_MAX):
        """Walk on to the end of `window`; `offsets` and `times`: entries of the indexes, None where there is no index.

        end_offset: every batch ends below.
        Windows may be longer each time, and hold what they held before.
        """
        cdef Walked walked = self.walked
        cdef Entries of_offsets, of_times
        hold_entries(&of_offsets, offsets, timed=False)
        hold_entries(&of_times, times, timed=True)
        if walked.damaged or walked.position >= window.size:     # or another thread has walked on
            return
        with nogil:
            walk(&walked, self.base_offset, end_offset, window, &of_offsets, &of_times)
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
            # Offsets must rise, for they are searched; and what stands before the batch must lie before the entry.
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
