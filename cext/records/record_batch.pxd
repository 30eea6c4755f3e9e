"""Records of format v2, and the Python objects for a batch and a record of any format.

See docs/formats/record_batch.md. Other kernels use parse_record_v2 and parse_record_header, and open_records, which
gives the bytes of a batch's records for any format and codec.
"""
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t

from .batch_header cimport TIMESTAMP_TYPE_BIT, BatchHeader
from .one_at_a_time cimport Use
from .record_view cimport RecordView
from .span cimport Span, near_varint, near_varlong, span_varint, span_varlong
from .status cimport BAD_HEADER, BAD_KEY_SIZE, BAD_SIZE, BAD_VALUE_SIZE, BAD_VARINT, OK, SHORT
from .window cimport Window

cdef enum:
    MIN_V2_BODY_SIZE = 6        # MIN_V2_RECORD_SIZE without the length varint
    # With this many bytes after a record, its varints can be read without checking each: attributes, one ten-byte
    # varint and four of five bytes, if they begin inside the record, end within that.
    VARINT_SLACK = 64


# One record, from its length on, of the batch that `batch` describes. Moves past it if OK.
# Finds the encoded headers, but does not parse them: see check_record_headers.
cdef inline int parse_record_v2(Span* s, const BatchHeader* batch, RecordView* out) noexcept nogil:
    cdef Span r = s[0]
    cdef const uint8_t* end
    cdef int64_t timestamp_delta = 0
    cdef int32_t length = 0
    cdef int32_t offset_delta = 0
    cdef int status
    status = span_varint(&r, &length) if r.end - r.p < VARINT_SLACK else near_varint(&r, &length)
    if status != OK:
        return status
    if length < MIN_V2_BODY_SIZE:
        return BAD_SIZE
    if length > r.end - r.p:
        return SHORT
    end = r.p + length
    if r.end - end >= VARINT_SLACK:
        # Fast path: the next comparison with `end` detects a varint that runs past the record.
        r.p += 1
        if near_varlong(&r, &timestamp_delta) != OK or near_varint(&r, &offset_delta) != OK:
            return BAD_VARINT
        if near_varint(&r, &out.key_size) != OK:
            return BAD_VARINT
        out.key = r.p
        if out.key_size >= 0:
            if out.key_size > end - r.p:
                return BAD_KEY_SIZE
            r.p += out.key_size
        if near_varint(&r, &out.value_size) != OK:
            return BAD_VARINT
        out.value = r.p
        if out.value_size >= 0:
            if out.value_size > end - r.p:
                return BAD_VALUE_SIZE
            r.p += out.value_size
        if near_varint(&r, &out.header_count) != OK:
            return BAD_VARINT
        if r.p > end:
            return SHORT
    else:
        # Slow path: near the end of the bytes, each read is checked.
        r.end = end
        r.p += 1
        status = span_varlong(&r, &timestamp_delta)
        if status == OK:
            status = span_varint(&r, &offset_delta)
        if status == OK:
            status = span_varint(&r, &out.key_size)
        if status != OK:
            return status
        out.key = r.p
        if out.key_size >= 0:
            if out.key_size > end - r.p:
                return BAD_KEY_SIZE
            r.p += out.key_size
        status = span_varint(&r, &out.value_size)
        if status != OK:
            return status
        out.value = r.p
        if out.value_size >= 0:
            if out.value_size > end - r.p:
                return BAD_VALUE_SIZE
            r.p += out.value_size
        status = span_varint(&r, &out.header_count)
        if status != OK:
            return status
    if out.key_size < 0:
        out.key_size = -1
    if out.value_size < 0:
        out.value_size = -1
    out.headers = r.p
    out.headers_size = <int32_t>(end - r.p)
    if out.header_count == 0:
        if out.headers_size != 0:
            return BAD_SIZE
    elif out.header_count < 0 or out.header_count > out.headers_size // 2:
        return BAD_HEADER
    # Unsigned, because deltas may have any value, and signed overflow is undefined.
    out.offset = <int64_t>(<uint64_t>batch.base_offset + <uint64_t><int64_t>offset_delta)
    if batch.attributes & TIMESTAMP_TYPE_BIT:
        out.timestamp = batch.max_timestamp
    else:
        out.timestamp = <int64_t>(<uint64_t>batch.base_timestamp + <uint64_t>timestamp_delta)
    out.size_bytes = <int32_t>(end - s.p)
    s.p = end
    return OK


# The next of a record's encoded headers: a key, never null, and a value, size -1 if null.
cdef inline int parse_record_header(
    Span* s, const uint8_t** key, int32_t* key_size, const uint8_t** value, int32_t* value_size
) noexcept nogil:
    cdef Span r = s[0]
    if span_varint(&r, key_size) != OK or key_size[0] < 0 or key_size[0] > r.end - r.p:
        return BAD_HEADER
    key[0] = r.p
    r.p += key_size[0]
    if span_varint(&r, value_size) != OK or value_size[0] > r.end - r.p:
        return BAD_HEADER
    value[0] = r.p
    if value_size[0] < 0:
        value_size[0] = -1
    else:
        r.p += value_size[0]
    s.p = r.p
    return OK


# Do exactly `header_count` headers fill the record up to its end? OK or BAD_HEADER.
cdef inline int check_record_headers(const RecordView* record) noexcept nogil:
    cdef Span s
    cdef const uint8_t* field
    cdef int32_t size
    cdef int32_t _
    s.p = record.headers
    s.end = record.headers + record.headers_size
    for _ in range(record.header_count):
        if parse_record_header(&s, &field, &size, &field, &size) != OK:
            return BAD_HEADER
    return OK if s.p == s.end else BAD_HEADER


cdef class RecordBatch:
    cdef Window window
    cdef object decompress
    cdef BatchHeader header


cdef class Record:
    # No more than 80 bytes with the object's head: gcc clears that much of a new object in five stores, and anything
    # larger by `rep stos`, which costs more than the rest of a record.
    cdef Window window              # keeps the bytes alive
    cdef int64_t offset_
    cdef int64_t timestamp_
    cdef const uint8_t* key_
    cdef const uint8_t* value_
    cdef int32_t key_size           # -1: null
    cdef int32_t value_size         # -1: null
    cdef int32_t tail_size          # after the value: v2's header count and headers
    cdef int32_t size_bytes_
    cdef int32_t sequence_
    cdef int8_t timestamp_type_

    cdef tuple fields(self)


cdef class RecordIterator:
    cdef object keeper              # keeps the rows alive: a RecordBatch or a BatchTable
    cdef Window window              # of the batches
    cdef object decompress
    cdef const BatchHeader* batch   # the row being read
    cdef const BatchHeader* first_row
    cdef const BatchHeader* next_row
    cdef const BatchHeader* rows_end
    cdef Window opened              # of the current batch's records
    cdef Span records
    cdef int64_t count              # of the current batch's records,
    cdef int64_t left               # and how many of them remain
    cdef int64_t inner_base         # of a wrapper: see find_inner_base
    cdef int64_t min_offset         # of the batch's next record: offsets increase,
    cdef int64_t max_offset         # and none is above the batch's last
    cdef int64_t first_offset       # records below are skipped,
    cdef int64_t last_offset        # and the first one above ends the iteration
    cdef bint with_control
    cdef bint in_order              # whether offsets must be those of a log; false for what a producer sends
    cdef Record given_last          # the record given last, and the one before it
    cdef Record given_before
    cdef Use use

    cdef Record advance(self)
    cdef int parse_next(self, RecordView* out) noexcept
    cdef bint open_next(self) except -1
    cdef int fail(self, int status) except -1


cdef RecordBatch batch_of(Window window, object decompress, const BatchHeader* header)

cdef Record record_of(Window window, const BatchHeader* batch, const RecordView* view)

cdef RecordIterator iterate(
    object keeper, Window window, object decompress, const BatchHeader* row, const BatchHeader* rows_end,
    int64_t first_offset, int64_t last_offset, bint with_control)
