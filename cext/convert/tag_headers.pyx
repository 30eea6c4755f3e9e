"""See tag_headers.pxd."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from .output cimport Output, ensure_room
from .record_batch cimport parse_record_header
from .record_view cimport RecordView
from .span cimport Span, store_u32, store_varlong
from .status cimport BAD_TAG, NO_MEMORY, OK
from .tagged_message cimport (
    FIRST_BYTES, FIRST_INT8, FIRST_INT32, TAG_BROKER_MS, TAG_COUNT, TAG_HONOUR_OFFSETS, TAG_LARGEST_MS, TAG_LAST_DELTA,
    TAG_NO_KEYS, TAG_TIMESTAMP_TYPE, parse_tag, stored_tags,
)

cdef enum:
    PREFIX_BYTES = 11
    MAX_NAME_BYTES = PREFIX_BYTES + 3
    MAX_VARINT_BYTES = 5
cdef const char* TAG_PREFIX = b"seglog.tag."


cdef inline bint is_known(int tag) noexcept nogil:
    """Does the batch itself store this tag's meaning?"""
    return tag in (
        TAG_BROKER_MS, TAG_LARGEST_MS, TAG_COUNT, TAG_LAST_DELTA, TAG_HONOUR_OFFSETS, TAG_NO_KEYS, TAG_TIMESTAMP_TYPE,
    )


cdef int tag_of_header(const uint8_t* key, int32_t key_size, int32_t value_size) noexcept nogil:
    """The id that a header named seglog.tag.<id> stands for; -1: none, or its value has another width."""
    cdef int tag = 0
    cdef int32_t i, width
    if not PREFIX_BYTES < key_size <= PREFIX_BYTES + 3 or value_size < 0 or memcmp(key, TAG_PREFIX, PREFIX_BYTES) != 0:
        return -1
    for i in range(PREFIX_BYTES, key_size):
        if not 48 <= key[i] <= 57:
            return -1
        tag = tag * 10 + (key[i] - 48)
    if tag > 127 or (key[PREFIX_BYTES] == 48 and key_size > PREFIX_BYTES + 1):
        return -1
    if is_known(tag):
        return -1
    width = 8 if tag < FIRST_INT32 else 4 if tag < FIRST_INT8 else 1 if tag < FIRST_BYTES else value_size
    return tag if value_size == width else -1


cdef int tags_of_headers(const RecordView* record, Output* others, int64_t* left_out) noexcept nogil:
    cdef Span s = Span(record.headers, record.headers + record.headers_size)
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef int32_t key_size = 0
    cdef int32_t value_size = 0
    cdef bint[128] seen
    cdef uint8_t* p
    cdef int32_t i, _
    cdef int tag
    others.size = 0
    for i in range(128):
        seen[i] = False
    for _ in range(record.header_count):
        if parse_record_header(&s, &key, &key_size, &value, &value_size) != OK:
            break               # check_placed has checked it
        tag = tag_of_header(key, key_size, value_size)
        if tag < 0 or seen[tag]:
            left_out[0] += 1
            continue
        seen[tag] = True
        if ensure_room(others, 5 + <int64_t>value_size) != OK:
            return NO_MEMORY
        p = others.first + others.size
        p[0] = <uint8_t>tag
        p += 1
        if tag >= FIRST_BYTES:
            store_u32(p, value_size)
            p += 4
        memcpy(p, value, value_size)
        others.size = p + value_size - others.first
    return OK


cdef int headers_of_tags(RecordView* record, Output* headers) noexcept nogil:
    cdef const uint8_t* start = record.value + max(record.value_size, 0) - record.size_bytes
    cdef Span s = stored_tags(start)
    cdef const uint8_t* value = NULL
    cdef int32_t value_size = 0
    cdef int32_t name_size
    cdef int tag = 0
    cdef uint8_t* p
    headers.size = 0
    while s.p != s.end:
        if parse_tag(&s, &tag, &value, &value_size) != OK:
            return BAD_TAG
        if is_known(tag):
            continue
        if ensure_room(headers, MAX_NAME_BYTES + 2 * MAX_VARINT_BYTES + <int64_t>value_size) != OK:
            return NO_MEMORY
        name_size = PREFIX_BYTES + (3 if tag > 99 else 2 if tag > 9 else 1)
        p = store_varlong(headers.first + headers.size, name_size)
        memcpy(p, TAG_PREFIX, PREFIX_BYTES)
        p += name_size
        p[-1] = <uint8_t>(48 + tag % 10)
        if tag > 9:
            p[-2] = <uint8_t>(48 + tag // 10 % 10)
        if tag > 99:
            p[-3] = <uint8_t>(48 + tag // 100)
        p = store_varlong(p, value_size)
        memcpy(p, value, value_size)
        headers.size = p + value_size - headers.first
        record.header_count += 1
    record.headers = headers.first
    record.headers_size = <int32_t>headers.size
    return OK
