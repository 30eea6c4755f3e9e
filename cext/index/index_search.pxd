"""Search in index files: the largest entry whose key is not above a target.

Offset index, 8 bytes an entry: relative offset i32, position i32. Time index and minute index,
12 bytes: timestamp i64, relative offset i32. Big-endian; see docs/formats/offset_index.md,
time_index.md and minute_index.md there.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .span cimport load_i32, load_i64

cdef enum:
    OFFSET_ENTRY_SIZE = 8
    TIME_ENTRY_SIZE = 12

    # Kafka's AbstractIndex: lookups by consumers that keep up hit the last entries, so those are
    # tried first. 8192 bytes: at most three pages then stay warm, and they cover 4 MB of log or more.
    WARM_BYTES = 8192


cdef struct Entries:
    const uint8_t* first        # borrowed
    int64_t n
    bint timed                  # 12-byte entries sorted by timestamp, else 8-byte ones by offset


cdef inline int64_t key_at(const Entries* e, int64_t slot) noexcept nogil:
    if e.timed:
        return load_i64(e.first + slot * TIME_ENTRY_SIZE)
    return load_i32(e.first + slot * OFFSET_ENTRY_SIZE)


cdef inline int32_t value_at(const Entries* e, int64_t slot) noexcept nogil:
    if e.timed:
        return load_i32(e.first + slot * TIME_ENTRY_SIZE + 8)
    return load_i32(e.first + slot * OFFSET_ENTRY_SIZE + 4)


cdef inline int64_t floor_in(const Entries* e, int64_t slot, int64_t n, int64_t target) noexcept nogil:
    """The last of n >= 1 entries from `slot` on whose key is at most `target`; the first's key is.

    Both answers of a comparison cost the same: no branch for the processor to guess wrong.
    """
    cdef int64_t half
    while n > 1:
        half = n >> 1
        slot += half & -<int64_t>(key_at(e, slot + half) <= target)
        n -= half
    return slot


cdef inline int64_t floor_slot(const Entries* e, int64_t target) noexcept nogil:
    """The last slot whose key is at most `target`, -1 where there is none."""
    cdef int64_t warm
    if e.n == 0:
        return -1
    warm = e.n - WARM_BYTES // (TIME_ENTRY_SIZE if e.timed else OFFSET_ENTRY_SIZE)
    if warm > 0:
        if key_at(e, warm) <= target:
            return floor_in(e, warm, e.n - warm, target)
        if key_at(e, 0) > target:
            return -1
        return floor_in(e, 0, warm, target)
    if key_at(e, 0) > target:
        return -1
    return floor_in(e, 0, e.n, target)


# The offset as an entry would hold it. -1 below the base: less than any entry that is not broken.
cdef inline int64_t relative_offset(int64_t offset, int64_t base_offset) noexcept nogil:
    cdef uint64_t relative
    if offset < base_offset:
        return -1
    relative = <uint64_t>offset - <uint64_t>base_offset
    return <int64_t>relative if relative <= 0x7FFFFFFF else 0x7FFFFFFF


# The sum wraps: the base comes from a file name and the entry from a file, both may be anything.
cdef inline int64_t absolute_offset(int32_t relative, int64_t base_offset) noexcept nogil:
    return <int64_t>(<uint64_t>base_offset + <uint64_t><int64_t>relative)
