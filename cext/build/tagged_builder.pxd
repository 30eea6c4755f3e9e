"""Writes messages of the tagged dialect. See docs/formats/tagged_message.md."""
from libc.stdint cimport INT32_MAX, UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t

from .batch_header cimport LOG_OVERHEAD, MAGIC_POS, MESSAGE_ATTRIBUTES_POS, SIZE_POS
from .output cimport Output, copy_field, ensure_room
from .record_view cimport RecordView
from .span cimport store_u32, store_u64
from .status cimport BAD_SIZE, NO_MEMORY, OK
from .tagged_message cimport (
    KNOWS_BROKER_MS, KNOWS_COUNT, KNOWS_HONOUR_OFFSETS, KNOWS_LARGEST_MS, KNOWS_LAST_DELTA, KNOWS_NO_KEYS,
    KNOWS_TIMESTAMP_TYPE, TAG_BROKER_MS, TAG_COUNT, TAG_HONOUR_OFFSETS, TAG_LARGEST_MS, TAG_LAST_DELTA, TAG_NO_KEYS,
    TAG_TIMESTAMP_TYPE, TAGGED_HEADER_SIZE, TAGS_SIZE_POS, TIMESTAMP_POS, Tags,
)

cdef enum:
    MAX_KNOWN_TAGS_BYTES = 9 + 9 + 5 + 5 + 2 + 2 + 2


# A time in ms as seconds for the int32 field, limited to the field's range.
cdef inline uint32_t seconds_of(int64_t timestamp_ms) noexcept nogil:
    if timestamp_ms <= 0:
        return 0
    timestamp_ms //= 1000
    return <uint32_t>min(timestamp_ms, <int64_t>UINT32_MAX)


cdef inline uint8_t* put_tags(uint8_t* p, const Tags* tags) noexcept nogil:
    """Write the tags that `known` names, by rising id; returns their end. Takes at most MAX_KNOWN_TAGS_BYTES."""
    if tags.known & KNOWS_BROKER_MS:
        p[0] = TAG_BROKER_MS
        store_u64(p + 1, <uint64_t>tags.broker_ms)
        p += 9
    if tags.known & KNOWS_LARGEST_MS:
        p[0] = TAG_LARGEST_MS
        store_u64(p + 1, <uint64_t>tags.largest_ms)
        p += 9
    if tags.known & KNOWS_COUNT:
        p[0] = TAG_COUNT
        store_u32(p + 1, <uint32_t>tags.count)
        p += 5
    if tags.known & KNOWS_LAST_DELTA:
        p[0] = TAG_LAST_DELTA
        store_u32(p + 1, <uint32_t>tags.last_delta)
        p += 5
    if tags.known & KNOWS_HONOUR_OFFSETS:
        p[0] = TAG_HONOUR_OFFSETS
        p[1] = tags.honours_offsets
        p += 2
    if tags.known & KNOWS_NO_KEYS:
        p[0] = TAG_NO_KEYS
        p[1] = tags.has_no_keys
        p += 2
    if tags.known & KNOWS_TIMESTAMP_TYPE:
        p[0] = TAG_TIMESTAMP_TYPE
        p[1] = tags.timestamp_type
        p += 2
    return p


# Append a message, except for its CRC (store_message_crcs). `others`: tags that `tags` does not know, in their stored
# form. The record's timestamp goes into the seconds field, and into tag 0 if `tags` says so.
cdef inline int append_tagged(
    Output* out, uint8_t attributes, const Tags* tags, const uint8_t* others, int64_t others_size,
    const RecordView* record, const uint8_t* readable_end
) noexcept nogil:
    cdef int64_t key_bytes = record.key_size if record.key_size > 0 else 0
    cdef int64_t value_bytes = record.value_size if record.value_size > 0 else 0
    cdef int64_t most = TAGGED_HEADER_SIZE + MAX_KNOWN_TAGS_BYTES + others_size + 4 + key_bytes + 4 + value_bytes
    cdef uint8_t* start
    cdef uint8_t* p
    cdef int64_t size
    if most - LOG_OVERHEAD > INT32_MAX:
        return BAD_SIZE
    if ensure_room(out, most) != OK:
        return NO_MEMORY
    start = out.first + out.size
    p = put_tags(start + TAGGED_HEADER_SIZE, tags)
    copy_field(p, others, others_size, others + others_size)
    p += others_size
    size = p - start - TAGGED_HEADER_SIZE
    store_u32(start + TAGS_SIZE_POS, <uint32_t>(size if size else -1))
    store_u32(p, <uint32_t>record.key_size)
    copy_field(p + 4, record.key, key_bytes, readable_end)
    p += 4 + key_bytes
    store_u32(p, <uint32_t>record.value_size)
    copy_field(p + 4, record.value, value_bytes, readable_end)
    p += 4 + value_bytes
    size = p - start
    store_u64(start, <uint64_t>record.offset)
    store_u32(start + SIZE_POS, <uint32_t>(size - LOG_OVERHEAD))
    start[MAGIC_POS] = 1
    start[MESSAGE_ATTRIBUTES_POS] = attributes
    store_u32(start + TIMESTAMP_POS, seconds_of(record.timestamp))
    out.size += size
    return OK
