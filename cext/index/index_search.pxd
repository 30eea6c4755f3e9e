"""Searches index files for the largest entry whose key is not above a target.

Offset index, 8 bytes per entry: relative offset i32, position i32. Time index and minute index, 12 bytes: timestamp
i64, relative offset i32. The tagged dialect has a single index, which is searched by both, 16 bytes: relative offset
i32, timestamp i64, position i32. Big-endian; see docs/formats/offset_index.md, time_index.md, minute_index.md and
tagged_index.md.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .span cimport load_i32, load_i64
from .window cimport Window

cdef enum:
    OFFSET_ENTRY_SIZE = 8
    TIME_ENTRY_SIZE = 12
    TAGGED_ENTRY_SIZE = 16

    # As Kafka's AbstractIndex: consumers that keep up look for the last entries, so these are tried first. 8192 bytes
    # keep at most three pages warm, and cover 4 MB of log or more.
    WARM_BYTES = 8192


cdef struct Entries:
    const uint8_t* first        # borrowed
    int64_t n
    bint timed                  # searched by timestamp for an offset, otherwise by offset for a position
    int64_t size                # of an entry; then the positions of key and value in it
    int64_t key_pos
    int64_t value_pos
    int64_t warm                # how many entries at the end are tried first


# The size in bytes of an entry in such an index.
cdef inline int64_t entry_size_of(bint is_tagged, bint timed) noexcept nogil:
    if is_tagged:
        return TAGGED_ENTRY_SIZE
    return TIME_ENTRY_SIZE if timed else OFFSET_ENTRY_SIZE


# Hold the entries of an index whose window names its dialect; none if `window` is None.
cdef inline void hold_entries(Entries* e, Window window, bint timed) noexcept:
    cdef bint is_tagged = window is not None and window.is_tagged
    e.timed = timed
    e.size = entry_size_of(is_tagged, timed)
    e.warm = WARM_BYTES // e.size
    e.key_pos = 4 if is_tagged and timed else 0
    if is_tagged:
        e.value_pos = 0 if timed else 12
    else:
        e.value_pos = 8 if timed else 4
    e.first = NULL
    e.n = 0
    if window is not None:
        e.first = window.base
        e.n = window.size // e.size


cdef inline int64_t key_at(const Entries* e, int64_t slot) noexcept nogil:
    if e.timed:
        return load_i64(e.first + slot * e.size + e.key_pos)
    return load_i32(e.first + slot * e.size)


cdef inline int32_t value_at(const Entries* e, int64_t slot) noexcept nogil:
    return load_i32(e.first + slot * e.size + e.value_pos)


cdef inline int64_t floor_in(const Entries* e, int64_t slot, int64_t n, int64_t target) noexcept nogil:
    """The last of n >= 1 entries from `slot` on whose key is at most `target`; the first entry's key must be.

    Both results of a comparison cost the same, so there is no branch for the processor to mispredict.
    """
    # `place` moves along with the slot, because multiplying the slot in each round would add latency.
    cdef const uint8_t* place = e.first + slot * e.size + e.key_pos
    cdef int64_t half, mask, key
    while n > 1:
        half = n >> 1
        key = load_i64(place + half * e.size) if e.timed else load_i32(place + half * e.size)
        mask = -<int64_t>(key <= target)
        slot += half & mask
        place += (half * e.size) & mask
        n -= half
    return slot


cdef inline int64_t floor_slot(const Entries* e, int64_t target) noexcept nogil:
    """The last slot whose key is at most `target`; -1 if there is none."""
    cdef int64_t warm
    if e.n == 0:
        return -1
    warm = e.n - e.warm
    if warm > 0:
        if key_at(e, warm) <= target:
            return floor_in(e, warm, e.n - warm, target)
        if key_at(e, 0) > target:
            return -1
        return floor_in(e, 0, warm, target)
    if key_at(e, 0) > target:
        return -1
    return floor_in(e, 0, e.n, target)


# The offset as stored in an entry. -1 if below the base: less than any valid entry.
cdef inline int64_t relative_offset(int64_t offset, int64_t base_offset) noexcept nogil:
    cdef uint64_t relative
    if offset < base_offset:
        return -1
    relative = <uint64_t>offset - <uint64_t>base_offset
    return <int64_t>relative if relative <= 0x7FFFFFFF else 0x7FFFFFFF


# The sum wraps, because the base comes from a file name and the entry from a file: both may be anything.
cdef inline int64_t absolute_offset(int32_t relative, int64_t base_offset) noexcept nogil:
    return <int64_t>(<uint64_t>base_offset + <uint64_t><int64_t>relative)
