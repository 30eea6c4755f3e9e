"""A growing set of 32-bit numbers, read from serialised roaring bitmaps and written as a plain one.

Plain: only arrays and bitsets, no runs. The format is the portable one of
https://github.com/RoaringBitmap/RoaringFormatSpec, all little-endian. Numbers that share their upper 16 bits are in one
container: an array of the lower 16 bits, a bitset of 65536 bits, or runs.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

cdef enum:
    COOKIE_WITHOUT_RUNS = 12346
    COOKIE_WITH_RUNS = 12347
    MOST_IN_ARRAY = 4096        # values of a container; with more it is a bitset
    BITSET_BYTES = 8192
    NO_OFFSETS_BELOW = 4        # containers, if any has runs


cdef inline void store_le16(uint8_t* p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>v
    p[1] = <uint8_t>(v >> 8)


cdef inline void store_le32(uint8_t* p, uint32_t v) noexcept nogil:
    store_le16(p, v)
    store_le16(p + 2, v >> 16)


cdef inline void set_bit(uint8_t* bits, uint32_t value) noexcept nogil:
    bits[value >> 3] |= <uint8_t>(1 << (value & 7))


# Values in order of arrival, possibly with duplicates; or, if there are many, bits.
cdef struct Container:
    uint32_t key
    int32_t n
    int32_t room
    uint16_t* values            # owned
    uint8_t* bits               # owned; if not NULL, the values are here


# All zeros is an empty set.
cdef struct Numbers:
    Container* containers       # owned, sorted by key
    int32_t n
    int32_t room
    int32_t last                # the container of the last number


cdef int add_number(Numbers* numbers, uint32_t number) noexcept nogil
# Add all numbers of a serialised bitmap. If the status is not OK, some may have been added.
cdef int add_bitmap(Numbers* numbers, const uint8_t* bytes, Py_ssize_t size) noexcept nogil
cdef void forget_numbers(Numbers* numbers) noexcept nogil

# The serialised bitmap. Sorts the values of the containers.
cdef bytes plain_bitmap(Numbers* numbers)
