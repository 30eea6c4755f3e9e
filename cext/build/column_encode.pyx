"""Encodes columns as v2 batches, without the GIL and without an object for each record."""
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from seglog.errors import InvalidArgumentError, RecordTooLargeError

from .batch_builder cimport MAX_RECORD_OVERHEAD, append_fields
from .batch_encode cimport EncodedBatch, begin_encoded
from .column_source cimport (
    BAD_OFFSETS, TOO_LARGE, BinarySource, ColumnSource, HeaderSource, is_null, take_field, take_headers,
)
from .field cimport to_timestamp
from .output cimport Output, ensure_room
from .record_view cimport RecordView
from .span cimport store_varlong
from .status cimport BAD_SIZE, NO_MEMORY, OK

# Which field of a row was wrong.
cdef enum Culprit:
    NOBODY
    KEY
    VALUE
    HEADERS
    HEADER_KEY
    HEADER_VALUE
    TIMESTAMP

# Answers beside Status and those of column_source.
cdef enum:
    NULL_HEADER_KEY = 11
    BAD_TIMESTAMP = 12

_CULPRITS = ("record", "key", "value", "headers", "header key", "header value", "timestamp")
_WORDS = {
    BAD_OFFSETS: "has offsets outside its data",
    NULL_HEADER_KEY: "is null",
    BAD_TIMESTAMP: "is below -1 (none)",
}


cdef struct Filling:
    int64_t row                 # the next one
    Culprit culprit
    Output headers              # of the row, encoded


cdef inline int append_sized(Output* out, const uint8_t* bytes, int32_t size) noexcept nogil:
    cdef int64_t content = size if size > 0 else 0
    cdef uint8_t* p
    if content + 5 > INT32_MAX - out.size:
        return BAD_SIZE
    if ensure_room(out, 5 + content) != OK:
        return NO_MEMORY
    p = store_varlong(out.first + out.size, size)
    if content:
        memcpy(p, bytes, content)
    out.size = p + content - out.first
    return OK


cdef int encode_headers(Filling* filling, const HeaderSource* source, int64_t row, RecordView* record) noexcept nogil:
    cdef const uint8_t* bytes = NULL
    cdef int32_t size = 0
    cdef int64_t header, end
    cdef int status
    record.header_count = 0
    record.headers_size = 0
    filling.culprit = HEADERS
    status = take_headers(source, row, &header, &end)
    if status != OK:
        return status
    if end - header > INT32_MAX:
        return TOO_LARGE
    record.header_count = <int32_t>(end - header)
    filling.headers.size = 0
    while header < end:
        filling.culprit = HEADER_KEY
        status = take_field(&source.key, header, &bytes, &size)
        if status == OK:
            status = append_sized(&filling.headers, bytes, size) if size >= 0 else NULL_HEADER_KEY
        if status != OK:
            return status
        filling.culprit = HEADER_VALUE
        status = take_field(&source.value, header, &bytes, &size)
        if status == OK:
            status = append_sized(&filling.headers, bytes, size)
        if status != OK:
            return status
        header += 1
    record.headers = filling.headers.first
    record.headers_size = <int32_t>filling.headers.size
    return OK


cdef int fill(
    EncodedBatch made, ColumnSource source, Filling* filling, int64_t default_timestamp, int64_t limit_bytes
) noexcept nogil:
    """Append rows until the batch is full or there are no more. The first one always fits."""
    cdef const BinarySource* keys = &source.key
    cdef const BinarySource* values = &source.value
    # How far a copy may read ahead. For a list of objects this is NULL, so that it stays within the object.
    cdef const uint8_t* keys_end = keys.data + keys.data_bytes
    cdef const uint8_t* values_end = values.data + values.data_bytes
    cdef bint has_headers = source.headers.rows > 0
    cdef int64_t row = filling.row
    cdef int64_t first = row
    cdef int64_t size
    cdef RecordView record
    cdef int status = OK
    record.headers = NULL
    record.headers_size = 0
    record.header_count = 0
    record.timestamp = default_timestamp
    while row < source.rows:
        filling.culprit = KEY
        status = take_field(keys, row, &record.key, &record.key_size)
        if status != OK:
            break
        filling.culprit = VALUE
        status = take_field(values, row, &record.value, &record.value_size)
        if status != OK:
            break
        if source.timestamps != NULL:
            filling.culprit = TIMESTAMP
            record.timestamp = -1
            if not is_null(source.timestamp_validity, source.timestamp_validity_from + row):
                record.timestamp = source.timestamps[row]
            if record.timestamp < -1:
                status = BAD_TIMESTAMP
                break
        if has_headers:
            status = encode_headers(filling, &source.headers, row, &record)
            if status != OK:
                break
        filling.culprit = NOBODY
        size = <int64_t>record.key_size + record.value_size + record.headers_size + MAX_RECORD_OVERHEAD
        if size > limit_bytes - made.out.size and row > first:
            break
        if row == first:
            made.batch.base_timestamp = record.timestamp
        record.offset = row - first
        status = append_fields(&made.out, &made.batch, &record, keys_end, values_end, NULL)
        if status != OK:
            break
        made._note(&record)
        row += 1
    filling.row = row
    return status


def encode_columns(
    columns, timestamp, *, int64_t max_batch_bytes, int64_t base_offset=0, int codec=0, compress=None,
    int32_t leader_epoch=-1, log_append_time=None,
):
    """Records as columns, numbered from `base_offset` on: a list of EncodedBatch, one after the other.

    columns: see column_source.pyx. A null timestamp means none (-1); without such a column, `timestamp` (ms) applies to
    all. max_batch_bytes: before compression; a larger record gets a batch of its own. The rest: as in encode_records.

    Raises TypeError, InvalidArgumentError (no rows, columns that do not match each other, offsets outside their data),
    RecordTooLargeError, and what encode_records raises. No batch is then returned.
    """
    cdef ColumnSource source = columns if isinstance(columns, ColumnSource) else ColumnSource(columns)
    cdef EncodedBatch made
    cdef Filling filling
    cdef int64_t default_timestamp = to_timestamp(timestamp if source.timestamp is None else source.timestamp, -1)
    cdef int64_t limit_bytes = min(max(max_batch_bytes, 0), INT32_MAX)
    cdef int64_t expected_bytes = source.content_bytes() + min(source.rows, INT32_MAX) * MAX_RECORD_OVERHEAD
    cdef int status
    batches = []
    if source.rows == 0:
        raise InvalidArgumentError("a batch must contain at least one record")
    memset(&filling, 0, sizeof(Filling))
    try:
        while filling.row < source.rows:
            made = begin_encoded(codec, compress, leader_epoch, log_append_time, -1, -1, -1, False, False, None)
            if ensure_room(&made.out, min(expected_bytes, limit_bytes)) != OK:
                raise MemoryError
            with nogil:
                status = fill(made, source, &filling, default_timestamp, limit_bytes)
            if status != OK:
                raise_bad_row(status, filling.culprit, filling.row)
            batches.append(made._sealed(compress, base_offset))
            base_offset += made.batch.count
    finally:
        free(filling.headers.first)
    return batches


cdef int raise_bad_row(int status, Culprit culprit, int64_t row) except -1:
    if status == NO_MEMORY:
        raise MemoryError
    if status == BAD_SIZE or status == TOO_LARGE:
        raise RecordTooLargeError(
            f"the {_CULPRITS[culprit]} of row {row} is larger than the {INT32_MAX} bytes that formats allow")
    raise InvalidArgumentError(f"the {_CULPRITS[culprit]} of row {row} {_WORDS[status]}")
