"""Protobuf's wire format, as far as our own parsers need it.

The rules of span.pxd apply: a load moves `p` past what it read and returns OK, or leaves `p` unchanged.
Groups (wire types 3 and 4) are refused, as by Pulsar's own reader (LightProto).
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint64_t

from .span cimport Span
from .status cimport BAD_FIELD, BAD_VARINT, OK, SHORT


cdef inline int span_uvarint(Span* s, uint64_t* out) noexcept nogil:
    """A varint of at most ten bytes, within the span."""
    cdef const uint8_t* p = s.p
    cdef uint64_t raw
    cdef uint8_t byte
    cdef int shift = 7
    if p == s.end:
        return SHORT
    raw = p[0]
    p += 1
    if raw >= 0x80:
        raw &= 0x7F
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
    out[0] = raw
    s.p = p
    return OK


cdef inline int span_tag(Span* s, uint64_t* out) noexcept nogil:
    """A field's number and wire type. The number must be 1 to 2 ** 29 - 1."""
    cdef Span ahead = s[0]
    cdef int rc = span_uvarint(&ahead, out)
    if rc != OK:
        return rc
    if out[0] < 8 or out[0] > UINT32_MAX:
        return BAD_FIELD
    s.p = ahead.p
    return OK


cdef inline int span_bytes(Span* s, Span* inner) noexcept nogil:
    """The bytes of a length-delimited field."""
    cdef uint64_t size
    cdef Span ahead = s[0]
    cdef int rc = span_uvarint(&ahead, &size)
    if rc != OK:
        return rc
    if size > <uint64_t>(ahead.end - ahead.p):
        return SHORT
    inner.p = ahead.p
    inner.end = ahead.p + size
    s.p = inner.end
    return OK


cdef inline int skip_field(Span* s, uint64_t tag) noexcept nogil:
    """Skip the value of an unneeded field."""
    cdef uint64_t ignored
    cdef Span inner
    cdef int wire_type = tag & 7
    if wire_type == 0:
        return span_uvarint(s, &ignored)
    if wire_type == 2:
        return span_bytes(s, &inner)
    if wire_type == 1 or wire_type == 5:
        if s.end - s.p < (8 if wire_type == 1 else 4):
            return SHORT
        s.p += 8 if wire_type == 1 else 4
        return OK
    return BAD_FIELD


cdef inline int uvarint_size(uint64_t v) noexcept nogil:
    cdef int size = 1
    while v >= 0x80:
        v >>= 7
        size += 1
    return size


cdef inline uint8_t* store_uvarint(uint8_t* p, uint64_t v) noexcept nogil:
    """The caller must have room for ten bytes."""
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        p += 1
        v >>= 7
    p[0] = <uint8_t>v
    return p + 1
