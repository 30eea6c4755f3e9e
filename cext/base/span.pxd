"""A bounded view of borrowed bytes, and loads that respect the bound.

A Span owns nothing: its creator keeps the bytes alive. Each load either moves `p` past what it read and returns OK, or
leaves `p` unchanged and returns another status. Loads cast to unsigned, then shift bytes: compilers turn this into one
instruction, and neither alignment nor byte order matters.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from .status cimport BAD_VARINT, OK, SHORT


cdef struct Span:
    const uint8_t* p
    const uint8_t* end


# --- loads from a position that the caller has checked ----------------------------------

cdef inline uint16_t load_u16(const uint8_t* p) noexcept nogil:
    return <uint16_t>((<uint32_t>p[0] << 8) | <uint32_t>p[1])


cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    return ((<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16)
            | (<uint32_t>p[2] << 8) | <uint32_t>p[3])


cdef inline uint64_t load_u64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>load_u32(p) << 32) | <uint64_t>load_u32(p + 4)


cdef inline int16_t load_i16(const uint8_t* p) noexcept nogil:
    return <int16_t>load_u16(p)


cdef inline int32_t load_i32(const uint8_t* p) noexcept nogil:
    return <int32_t>load_u32(p)


cdef inline int64_t load_i64(const uint8_t* p) noexcept nogil:
    return <int64_t>load_u64(p)


# --- stores, at such a position ---------------------------------------------------------

cdef inline void store_u16(uint8_t* p, uint16_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 8)
    p[1] = <uint8_t>v


cdef inline void store_u32(uint8_t* p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 24)
    p[1] = <uint8_t>(v >> 16)
    p[2] = <uint8_t>(v >> 8)
    p[3] = <uint8_t>v


cdef inline void store_u64(uint8_t* p, uint64_t v) noexcept nogil:
    store_u32(p, <uint32_t>(v >> 32))
    store_u32(p + 4, <uint32_t>v)


# --- bounded loads -----------------------------------------------------------------------

cdef inline int span_varlong(Span* s, int64_t* out) noexcept nogil:
    """Zigzag varint of at most ten bytes, within the span (Kafka's ByteUtils.readVarlong)."""
    cdef const uint8_t* p = s.p
    cdef uint64_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if p == s.end:
            return SHORT
        if shift > 63:
            return BAD_VARINT
        byte = p[0]
        p += 1
        raw |= <uint64_t>(byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    s.p = p
    return OK


cdef inline int span_varint(Span* s, int32_t* out) noexcept nogil:
    """Zigzag varint of at most five bytes (Kafka's ByteUtils.readVarint)."""
    cdef const uint8_t* p = s.p
    cdef uint32_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if p == s.end:
            return SHORT
        if shift > 28:
            return BAD_VARINT
        byte = p[0]
        p += 1
        raw |= <uint32_t>(byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    s.p = p
    return OK


# --- storing varints: the caller must have room for ten bytes -----------------------------

cdef inline uint64_t zigzag(int64_t v) noexcept nogil:
    return (<uint64_t>v << 1) ^ <uint64_t>(v >> 63)


cdef inline uint8_t* store_varlong(uint8_t* p, int64_t v) noexcept nogil:
    cdef uint64_t raw = zigzag(v)
    while raw >= 0x80:
        p[0] = <uint8_t>(raw | 0x80)
        p += 1
        raw >>= 7
    p[0] = <uint8_t>raw
    return p + 1


cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long) noexcept nogil


cdef inline int varlong_size(int64_t v) noexcept nogil:
    """Significant bits / 7, rounded up, at least 1: (9 * bits + 64) / 64 equals that for 1 to 64 bits."""
    return (9 * (64 - leading_zeros(zigzag(v) | 1)) + 64) >> 6


# --- varints with ten readable bytes: the caller has checked that ten bytes follow s.p -------
# They are limited to ten (five) bytes, not to s.end. Same results as span_varlong and span_varint.

cdef inline int near_varlong(Span* s, int64_t* out) noexcept nogil:
    cdef const uint8_t* p = s.p
    cdef uint64_t raw = p[0]
    cdef uint8_t byte
    cdef int shift
    if raw < 0x80:
        p += 1
    elif p[1] < 0x80:
        raw = (raw & 0x7F) | (<uint64_t>p[1] << 7)
        p += 2
    else:
        raw = (raw & 0x7F) | (<uint64_t>(p[1] & 0x7F) << 7)
        p += 2
        shift = 14
        while True:
            if shift > 63:
                return BAD_VARINT
            byte = p[0]
            p += 1
            raw |= <uint64_t>(byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
    out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    s.p = p
    return OK


cdef inline int near_varint(Span* s, int32_t* out) noexcept nogil:
    cdef const uint8_t* p = s.p
    cdef uint32_t raw = p[0]
    cdef uint8_t byte
    cdef int shift
    if raw < 0x80:
        p += 1
    elif p[1] < 0x80:
        raw = (raw & 0x7F) | (<uint32_t>p[1] << 7)
        p += 2
    else:
        raw = (raw & 0x7F) | (<uint32_t>(p[1] & 0x7F) << 7)
        p += 2
        shift = 14
        while True:
            if shift > 28:
                return BAD_VARINT
            byte = p[0]
            p += 1
            raw |= <uint32_t>(byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
    out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    s.p = p
    return OK
