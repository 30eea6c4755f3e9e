"""Decodes batches into columns without the GIL: checks the CRC, then reads the records, batch by batch.

Only complete batches stay: nothing of a bad batch does. The caller reserves room for a batch's rows and bytes first;
only headers may need more along the way.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from .batch_attributes cimport has_open_end, hides_last_offset
from .batch_header cimport (
    CODEC_MASK, CONTROL_BIT, TAGGED_MAGIC, TIMESTAMP_TYPE_BIT, V0_HEADER_SIZE, V1_HEADER_SIZE, V2_HEADER_SIZE,
    BatchHeader, crc_matches,
)
from .legacy_records cimport parse_bare_message, parse_inner_message
from .record_batch cimport parse_record_header, parse_record_v2
from .record_view cimport RecordView
from .span cimport Span
from .status cimport BAD_CRC, BAD_HEADER, LIMIT, NO_SPACE, OFFSET_BACK, OFFSET_RANGE, OK, TRAILING_BYTES

cdef extern from "seg_columns.h" nogil:
    ctypedef struct seg_batch_base:
        int64_t base_offset
        uint64_t base_timestamp
        uint64_t delta_mask

    void seg_binary_append(seg_binary* column, int64_t row, const uint8_t* bytes, int32_t size)
    const uint8_t* seg_take_records(seg_columns* c, const uint8_t* p, const uint8_t* end, const uint8_t* safe,
                                    int32_t count, const seg_batch_base* base)
    bint seg_take_message(seg_columns* c, const uint8_t* p, const uint8_t* end, const uint8_t* safe,
                          int64_t offset, int64_t timestamp)


cdef enum:
    KEY_SIZE_BYTES = 4          # of the size field before a message's key


cdef int decode_run(Run* run) noexcept nogil:
    """Decode batches until one needs the GIL. Only complete batches are added."""
    cdef seg_columns* c = run.c
    cdef const BatchHeader* row
    cdef const uint8_t* bytes = run.bytes       # where the batches' positions count from
    cdef int64_t size = run.size
    cdef int64_t rows_before
    cdef bint is_bare
    cdef bint has_views = c.without & SEG_VIEWS != 0
    cdef int status
    while run.batch < run.last and run.content_bytes < run.stop_bytes:
        row = &run.rows[run.batch]
        is_bare = row.magic & ~1 == 0       # v0 or v1: an uncompressed message is a batch of its own
        if run.check_crc and not crc_matches(run.bytes, row):
            return BAD_CRC
        if not is_bare and row.attributes & CONTROL_BIT and not run.include_control:
            run.batch += 1
            continue
        if row.attributes & CODEC_MASK:
            return NEEDS_DECOMPRESSION
        if row.size_bytes > MAX_CONTENT_BYTES - run.content_bytes:
            return LIMIT
        if (row.size_bytes > c.key.capacity - run.content_bytes
                or (row.count if row.magic >= 2 else 1) > c.row_capacity - c.rows):
            return NO_SPACE
        if has_views:
            if c.is_mapped:
                if row.position + row.size_bytes - (c.source - bytes) > MAX_CONTENT_BYTES:
                    return LIMIT
            else:
                memcpy(c.source + c.source_bytes, run.bytes + row.position, <size_t>row.size_bytes)
                bytes = c.source + c.source_bytes - row.position
                size = row.position + row.size_bytes + SEG_SLACK
        if not is_bare or not take_quickly(c, bytes, size, row):
            rows_before = c.rows
            status = take_batch(c, bytes + size, bytes + row.position, row)
            if status == OK:
                status = check_offsets(c, rows_before, row, run.begin)
            if status != OK:
                seg_columns_cut(c, rows_before)
                return status
        if has_views:
            c.source_bytes = bytes + row.position + row.size_bytes - c.source
        run.content_bytes += row.size_bytes
        run.batch += 1
    return OK


cdef inline bint take_quickly(
    seg_columns* c, const uint8_t* bytes, int64_t size, const BatchHeader* row
) noexcept nogil:
    """Append a bare v0 or v1 message, whose offset is the header's. False: it needs the slow path."""
    cdef const uint8_t* p = bytes + row.position
    return seg_take_message(
        c, p + (V1_HEADER_SIZE if row.magic == 1 else V0_HEADER_SIZE), p + row.size_bytes, bytes + size,
        row.base_offset, row.base_timestamp,
    )


cdef int check_offsets(
    const seg_columns* c, int64_t first, const BatchHeader* row, const BatchHeader* begin
) noexcept nogil:
    cdef const int64_t* offset = c.offset + first
    cdef int64_t n = c.rows - first
    cdef int64_t i
    cdef int disorder = 0
    if n == 0:
        return OK
    # Without an early exit, so that the compiler vectorises the loop.
    for i in range(1, n):
        disorder |= offset[i] <= offset[i - 1]
    if disorder:
        return OFFSET_BACK
    if row.magic == 2:
        return OK if row.base_offset <= offset[0] and offset[n - 1] <= row.last_offset else <int>OFFSET_RANGE
    if row.magic == TAGGED_MAGIC:
        if not has_open_end(row) and offset[n - 1] > row.last_offset:
            return OFFSET_RANGE
        return OK if row.base_offset <= offset[0] else <int>OFFSET_RANGE
    # A wrapper has the offset of its last message.
    if offset[n - 1] != row.last_offset and not hides_last_offset(row):
        return OFFSET_RANGE
    if row.attributes & CODEC_MASK and (offset[0] < 0 or (row > begin and offset[0] <= (row - 1).last_offset)):
        return OFFSET_BACK
    return OK


cdef int take_batch(seg_columns* c, const uint8_t* safe, const uint8_t* p, const BatchHeader* row) noexcept nogil:
    """Append the records of one uncompressed batch. `safe`: the end of readable memory."""
    if row.magic >= 2:
        return take_records(c, p + V2_HEADER_SIZE, p + row.size_bytes, safe, row)
    return take_message(c, p, p + row.size_bytes, row)


cdef int take_records(seg_columns* c, const uint8_t* p, const uint8_t* end, const uint8_t* safe,
                      const BatchHeader* row) noexcept nogil:
    """Append the records of a v2 batch. Its body, [p, end), is not compressed."""
    cdef int64_t stop = c.rows + row.count
    cdef seg_batch_base base
    cdef RecordView view
    cdef Span span
    cdef int status
    base.base_offset = row.base_offset
    if row.attributes & TIMESTAMP_TYPE_BIT:
        base.base_timestamp = <uint64_t>row.max_timestamp
        base.delta_mask = 0
    else:
        base.base_timestamp = <uint64_t>row.base_timestamp
        base.delta_mask = <uint64_t>-1
    while True:
        # Fast path: ordinary records, well before the end of readable memory.
        p = seg_take_records(c, p, end, safe, <int32_t>(stop - c.rows), &base)
        if c.rows == stop:
            break
        # Slow path: the checked parser accepts or refuses the record at which the fast path stopped.
        span.p = p
        span.end = end
        status = parse_record_v2(&span, row, &view)
        if status == OK:
            status = append(c, &view)
        if status != OK:
            return status
        p = span.p
    return OK if p == end else TRAILING_BYTES


cdef int take_message(seg_columns* c, const uint8_t* p, const uint8_t* end, const BatchHeader* row) noexcept nogil:
    """Append the single record of a bare message, [p, end): v0, v1 or tagged."""
    cdef RecordView view
    cdef Span span
    cdef int status
    span.p = p
    span.end = end
    status = parse_bare_message(&span, row, &view)
    if status == OK:
        status = append(c, &view)
    return status


cdef int take_inner_messages(seg_columns* c, const uint8_t* p, const uint8_t* end, int64_t count, int64_t base,
                             const BatchHeader* wrapper) noexcept nogil:
    """Append the messages of an opened wrapper, with `base` and `count` from find_inner_base."""
    cdef int64_t stop = c.rows + count
    cdef RecordView view
    cdef Span span = Span(p, end)
    cdef const uint8_t* body
    cdef int status
    while c.rows < stop:
        p = span.p
        status = parse_inner_message(&span, wrapper, &base, &view)
        if status != OK:
            return status
        body = view.key - KEY_SIZE_BYTES
        if not seg_take_message(c, body, span.p, end, view.offset, view.timestamp):
            status = append(c, &view)
            if status != OK:
                return status
    return OK if span.p == end else TRAILING_BYTES


cdef int append(seg_columns* c, const RecordView* view) noexcept nogil:
    cdef int status = OK
    if view.header_count > 0 and not c.without & SEG_HEADERS:
        status = append_headers(c, view)
        if status != OK:
            return status
    c.offset[c.rows] = view.offset
    c.timestamp[c.rows] = view.timestamp
    if not c.without & SEG_KEY:
        seg_binary_append(&c.key, c.rows, view.key, view.key_size)
    if not c.without & SEG_VALUE:
        seg_binary_append(&c.value, c.rows, view.value, view.value_size)
    if not c.without & SEG_HEADERS:
        c.header_start[c.rows + 1] = <int32_t>c.header_rows
    c.rows += 1
    return OK


cdef int append_headers(seg_columns* c, const RecordView* view) noexcept nogil:
    """NEEDS_HEADER_SPACE or BAD_HEADER: the caller removes what was appended."""
    cdef Span span = Span(view.headers, view.headers + view.headers_size)
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef int32_t key_size = 0
    cdef int32_t value_size = 0
    cdef int32_t _i
    if (view.header_count > c.header_capacity - c.header_rows
            or view.headers_size > c.header_key.capacity - c.header_key.bytes
            or view.headers_size > c.header_value.capacity - c.header_value.bytes):
        return NEEDS_HEADER_SPACE
    for _i in range(view.header_count):
        if parse_record_header(&span, &key, &key_size, &value, &value_size) != OK:
            return BAD_HEADER
        seg_binary_append(&c.header_key, c.header_rows, key, key_size)
        seg_binary_append(&c.header_value, c.header_rows, value, value_size)
        c.header_rows += 1
    return OK if span.p == span.end else BAD_HEADER
