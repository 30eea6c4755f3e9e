"""Searches index files in memory for one target or for many.

An object borrows a Window for life and keeps no other state, so it is thread-safe. The caller says how many entries
there are, since a broker that died leaves preallocated zeros at the end of a file (`count_entries` finds where they
begin). Entries may be anything, sorted or not: a search then returns some entry, never one outside the file; its user
checks what it finds in the log.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from seglog.errors import InvalidArgumentError

from .window cimport Window, check_whole

cdef enum:
    GROUP = 8           # searches that run interleaved: while one waits for memory, others go on


def count_entries(Window window not None, int entry_size):
    """Count the complete entries of `entry_size` bytes before the zeros at the end of an index file.

    The active segment's index files are preallocated and trimmed on roll and clean close, so a crash
    leaves a tail of zeros (kafka.tools.DumpLogSegments stops at the first such entry). No real entry
    but the first can be all zeros: offsets rise above the base, timestamps strictly. The first one
    can be, in a time index whose only timestamp is 0: then the file holds nothing else.
    """
    cdef int64_t end = window.size
    cdef const uint8_t* base = window.base
    if entry_size < 1:
        raise InvalidArgumentError(f"invalid index entry size {entry_size}")
    end -= end % entry_size
    if end == TIME_ENTRY_SIZE and entry_size == TIME_ENTRY_SIZE:
        return 1
    with nogil:
        while end > 0 and base[end - 1] == 0:
            end -= 1
    check_whole(window)
    return (end + entry_size - 1) // entry_size


cdef int64_t gallop(const Entries* e, int64_t slot, int64_t target) noexcept nogil:
    """`floor_slot` for a target whose answer is at `slot` (may be -1) or after it, near by rather than far."""
    cdef int64_t step = 1
    cdef int64_t low = slot
    while low + step < e.n and key_at(e, low + step) <= target:
        low += step
        step <<= 1
    # The answer is in [low, low + step), and low itself was compared unless it is still `slot`.
    if step > e.n - low:
        step = e.n - low
    if low < 0:
        return -1
    return floor_in(e, low, step, target)


cdef void search_group(const Entries* e, const int64_t* targets, int64_t* slots) noexcept nogil:
    """GROUP searches in step: they all halve the same number of entries, so they end together."""
    cdef int64_t n = e.n
    cdef int64_t half
    cdef int i
    for i in range(GROUP):
        slots[i] = 0
    while n > 1:
        half = n >> 1
        for i in range(GROUP):
            slots[i] += half & -<int64_t>(key_at(e, slots[i] + half) <= targets[i])
        n -= half
    for i in range(GROUP):
        if key_at(e, slots[i]) > targets[i]:
            slots[i] = -1


cdef inline bint rises(const int64_t* targets, int64_t previous) noexcept nogil:
    cdef bint answer = previous <= targets[0]
    cdef int i
    for i in range(GROUP - 1):
        answer &= targets[i] <= targets[i + 1]
    return answer


cdef void search_many(
    const Entries* e, const int64_t* targets, int64_t n, int64_t base_offset, int64_t* out, int64_t none, int64_t add
) noexcept nogil:
    """out[i] = `add` + the value of the floor entry of targets[i], or `none`.

    `base_offset` is taken off the targets of an offset index. Rising targets gallop from one answer
    to the next; others are searched interleaved.
    """
    cdef int64_t keys[GROUP]
    cdef int64_t slots[GROUP]
    cdef int64_t done = 0
    cdef int64_t previous_key = 0
    cdef int64_t slot = -1
    cdef bint gallops = False
    cdef int size, i
    while done < n:
        size = GROUP if n - done >= GROUP else <int>(n - done)
        for i in range(size):
            keys[i] = targets[done + i] if e.timed else relative_offset(targets[done + i], base_offset)
        for i in range(size, GROUP):
            keys[i] = keys[size - 1]
        if e.n == 0:
            for i in range(GROUP):
                slots[i] = -1
        elif gallops and rises(keys, previous_key):
            for i in range(GROUP):
                slot = gallop(e, slot, keys[i])
                slots[i] = slot
        else:
            gallops = rises(keys, keys[0])
            search_group(e, keys, slots)
        slot = slots[GROUP - 1]
        previous_key = keys[GROUP - 1]
        for i in range(size):
            out[done + i] = none if slots[i] < 0 else absolute_offset(value_at(e, slots[i]), add)
        done += size


@cython.internal
cdef class _Search:
    """The common base of the offset index and the time index."""
    cdef Window window
    cdef Entries entries
    cdef readonly int64_t base_offset

    def __len__(self):
        return self.entries.n

    def slot(self, int64_t target):
        """Return the last slot whose key (offset or timestamp) is at most `target`, -1 if there is none."""
        return floor_slot(&self.entries, self.key(target))

    cdef int64_t key(self, int64_t target) noexcept:
        return target if self.entries.timed else relative_offset(target, self.base_offset)

    cdef int hold(self, Window window, int64_t base_offset, int64_t entries, bint timed) except -1:
        hold_entries(&self.entries, window, timed)
        if entries < 0 or entries > self.entries.n:
            raise InvalidArgumentError(
                f"{entries} entries do not fit an index of {window.size} bytes, which has {self.entries.n}"
            )
        self.window = window
        self.base_offset = base_offset
        self.entries.n = entries
        return 0

    cdef int check_slot(self, int64_t slot) except -1:
        if slot < 0 or slot >= self.entries.n:
            raise IndexError(f"slot {slot} is out of range: there are {self.entries.n}")
        return 0


@cython.final
cdef class OffsetIndexSearch(_Search):
    """An offset index in memory: offset -> position of a batch at or before it.

    `entries` counts from the start of the window, which outlives this object.
    """

    def __cinit__(self, Window window not None, int64_t base_offset, int64_t entries):
        self.hold(window, base_offset, entries, timed=False)

    def lookup(self, int64_t offset):
        """Return (offset, position) of the last entry at or below `offset`; (base_offset, 0) if there is none."""
        cdef int64_t slot = floor_slot(&self.entries, relative_offset(offset, self.base_offset))
        check_whole(self.window)
        if slot < 0:
            return (self.base_offset, 0)
        return (
            absolute_offset(<int32_t>key_at(&self.entries, slot), self.base_offset),
            value_at(&self.entries, slot),
        )

    def entry(self, int64_t slot):
        """Return (offset, position) in a slot."""
        self.check_slot(slot)
        return (
            absolute_offset(<int32_t>key_at(&self.entries, slot), self.base_offset),
            value_at(&self.entries, slot),
        )

    def lookup_many(self, const int64_t[::1] offsets not None, int64_t[::1] positions not None):
        """Set `positions[i]` to the position of `lookup(offsets[i])`. Fastest if offsets rise."""
        check_room(offsets.shape[0], positions.shape[0])
        if offsets.shape[0]:
            with nogil:
                search_many(
                    &self.entries, &offsets[0], offsets.shape[0], self.base_offset, &positions[0], none=0, add=0
                )

    def first_disorder(self):
        """Return the first slot that is not above the one before it, in offset and in position; -1: sorted."""
        cdef int64_t slot
        cdef int64_t found = -1
        with nogil:
            for slot in range(1, self.entries.n):
                if (
                    key_at(&self.entries, slot) <= key_at(&self.entries, slot - 1)
                    or value_at(&self.entries, slot) <= value_at(&self.entries, slot - 1)
                ):
                    found = slot
                    break
        check_whole(self.window)
        return found


@cython.final
cdef class TimeIndexSearch(_Search):
    """A time index or minute index in memory: timestamp -> offset of a record at or before it in the log.

    `entries` counts from the start of the window, which outlives this object.
    """

    def __cinit__(self, Window window not None, int64_t base_offset, int64_t entries):
        self.hold(window, base_offset, entries, timed=True)

    def lookup(self, int64_t timestamp):
        """Return (timestamp, offset) of the last entry at or below `timestamp`; (-1, base_offset) if there is none."""
        cdef int64_t slot = floor_slot(&self.entries, timestamp)
        check_whole(self.window)
        if slot < 0:
            return (-1, self.base_offset)
        return (key_at(&self.entries, slot), absolute_offset(value_at(&self.entries, slot), self.base_offset))

    def entry(self, int64_t slot):
        """Return (timestamp, offset) in a slot."""
        self.check_slot(slot)
        return (key_at(&self.entries, slot), absolute_offset(value_at(&self.entries, slot), self.base_offset))

    def lookup_many(self, const int64_t[::1] timestamps not None, int64_t[::1] offsets not None):
        """Set `offsets[i]` to the offset of `lookup(timestamps[i])`. Fastest if timestamps rise."""
        check_room(timestamps.shape[0], offsets.shape[0])
        if timestamps.shape[0]:
            with nogil:
                search_many(
                    &self.entries, &timestamps[0], timestamps.shape[0], 0, &offsets[0],
                    none=self.base_offset, add=self.base_offset,
                )

    def first_disorder(self):
        """Return the first slot whose timestamp is not above, or offset below, that of the one before; -1: sorted.

        In the tagged dialect timestamps may be equal, and offsets rise.
        """
        cdef int64_t slot
        cdef int64_t found = -1
        cdef bint may_be_equal = self.window.is_tagged
        with nogil:
            for slot in range(1, self.entries.n):
                if (
                    key_at(&self.entries, slot) < key_at(&self.entries, slot - 1)
                    or (key_at(&self.entries, slot) == key_at(&self.entries, slot - 1) and not may_be_equal)
                    or value_at(&self.entries, slot) < value_at(&self.entries, slot - 1)
                ):
                    found = slot
                    break
        check_whole(self.window)
        return found


cdef int check_room(Py_ssize_t targets, Py_ssize_t out) except -1:
    if out < targets:
        raise InvalidArgumentError(f"`out` has room for {out} answers, but there are {targets} targets")
    return 0
