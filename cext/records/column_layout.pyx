"""The layout of columns in an arena. See column_layout.pxd."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from .arena cimport seg_forbid
from .column_decoder cimport (
    MAX_CONTENT_BYTES, SEG_HEADERS, SEG_KEY, SEG_SLACK, SEG_VALUE, SEG_VIEWS, seg_binary, seg_columns, seg_view,
)

cdef enum:
    # Between two columns: a copy that exceeds its slack is then detected by AddressSanitizer.
    GAP = 64
    MAX_SPREAD = 4              # see use_up


cdef struct Cutter:
    uint8_t* base               # NULL: measure only
    int64_t used


cdef uint8_t* cut(Cutter* cutter, int64_t size) noexcept nogil:
    """The next `size` bytes, aligned to 64 as Arrow recommends."""
    cdef uint8_t* p = cutter.base
    cdef int64_t next_ = cutter.used + ((size + 63) & ~<int64_t>63) + GAP
    if cutter.base != NULL:
        p = cutter.base + cutter.used
        seg_forbid(p + size, next_ - cutter.used - size)
    cutter.used = next_
    return p


cdef int64_t lay_out(uint8_t* base, int64_t rows, int64_t content_bytes, seg_columns* c,
                     uint8_t** timestamp_validity) noexcept nogil:
    cdef Cutter cutter = Cutter(base, 0)
    c.row_capacity = rows
    c.offset = <int64_t*>cut(&cutter, 8 * rows)
    c.timestamp = <int64_t*>cut(&cutter, 8 * rows)
    timestamp_validity[0] = cut(&cutter, (rows + 7) // 8)
    # All content may be keys, or all values, so each gets room for all of it.
    c.key.capacity = c.value.capacity = content_bytes
    if not c.without & SEG_HEADERS:
        c.header_start = <int32_t*>cut(&cutter, 4 * (rows + 1))
    if c.without & SEG_VIEWS:
        if not c.is_mapped:
            c.source = cut(&cutter, content_bytes + SEG_SLACK)
        if not c.without & SEG_KEY:
            lay_out_views(&cutter, &c.key, rows, c.source)
        if not c.without & SEG_VALUE:
            lay_out_views(&cutter, &c.value, rows, c.source)
        return cutter.used
    if not c.without & SEG_KEY:
        lay_out_binary(&cutter, &c.key, rows, content_bytes)
    if not c.without & SEG_VALUE:
        lay_out_binary(&cutter, &c.value, rows, content_bytes)
    return cutter.used


cdef void lay_out_views(Cutter* cutter, seg_binary* column, int64_t rows, uint8_t* source) noexcept nogil:
    column.views = <seg_view*>cut(cutter, sizeof(seg_view) * rows)
    column.validity = cut(cutter, (rows + 7) // 8)
    column.data = source


cdef void lay_out_binary(Cutter* cutter, seg_binary* column, int64_t rows, int64_t content_bytes) noexcept nogil:
    column.offsets = <int32_t*>cut(cutter, 4 * (rows + 1))
    column.validity = cut(cutter, (rows + 7) // 8)
    column.data = cut(cutter, content_bytes + SEG_SLACK)


cdef int64_t lay_out_headers(uint8_t* base, int64_t rows, int64_t content_bytes, seg_columns* c) noexcept nogil:
    cdef Cutter cutter = Cutter(base, 0)
    c.header_capacity = rows
    c.header_key.capacity = c.header_value.capacity = content_bytes
    lay_out_binary(&cutter, &c.header_key, rows, content_bytes)
    lay_out_binary(&cutter, &c.header_value, rows, content_bytes)
    return cutter.used


cdef void use_up(int64_t arena_size, int64_t size, int64_t* rows, int64_t* content_bytes) noexcept nogil:
    cdef double spread = min((arena_size - 4096) / <double>size, MAX_SPREAD)
    if spread > 1:
        rows[0] = <int64_t>(rows[0] * spread)
        content_bytes[0] = min(<int64_t>(content_bytes[0] * spread), MAX_CONTENT_BYTES)


cdef void move_binary(seg_binary* to, const seg_binary* from_, int64_t rows, int64_t row_capacity) noexcept nogil:
    to.bytes = from_.bytes
    to.null_count = from_.null_count
    memset(to.validity, 0xFF, (row_capacity + 7) // 8)
    memcpy(to.validity, from_.validity, (rows + 7) // 8)
    if to.views != NULL:
        if rows > 0:
            memcpy(to.views, from_.views, sizeof(seg_view) * rows)
        return
    memcpy(to.offsets, from_.offsets, 4 * (rows + 1))
    memcpy(to.data, from_.data, from_.bytes)
