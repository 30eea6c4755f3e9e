"""Parses messages of the tagged dialect. The rules are in tagged_message.pxd and docs/formats/tagged_message.md.

Borrows the bytes, keeps nothing, trusts no field.
"""
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t

from .batch_header cimport (
    CODEC_MASK, CODEC_ZSTD, CONTROL_BIT, MAGIC_POS, MESSAGE_ATTRIBUTES_POS, MESSAGE_CRC_POS, TAGGED_MAGIC,
    TIMESTAMP_TYPE_BIT, TIME_BOUND_BIT, BatchHeader, find_message_end, parse_size,
)
from .record_view cimport RecordView, parse_key_and_value
from .span cimport Span, load_i32, load_i64, load_u32
from .status cimport BAD_KEY_SIZE, BAD_MAGIC, BAD_NESTING, BAD_TAG, BAD_VALUE_SIZE, OFFSET_RANGE, OK

cdef enum:
    UNKNOWN_CODEC = CODEC_MASK      # stands for bits that name neither a codec nor a control type


cdef int parse_tags(const Span* list_, Tags* out) noexcept nogil:
    cdef Span s = list_[0]
    cdef uint64_t[2] seen
    cdef uint64_t bit
    cdef const uint8_t* value = NULL
    cdef int32_t size = 0
    cdef int tag = 0
    seen[0] = seen[1] = 0
    out.broker_ms = out.largest_ms = -1
    out.count = -1
    out.last_delta = -1
    out.honours_offsets = 1
    out.has_no_keys = 0
    out.timestamp_type = 0
    out.known = 0
    while s.p != s.end:
        if parse_tag(&s, &tag, &value, &size) != OK:
            return BAD_TAG
        bit = <uint64_t>1 << (tag & 63)
        if seen[tag >> 6] & bit:
            return BAD_TAG
        seen[tag >> 6] |= bit
        if tag == TAG_BROKER_MS:
            out.broker_ms = load_i64(value)
            out.known |= KNOWS_BROKER_MS
        elif tag == TAG_LARGEST_MS:
            out.largest_ms = load_i64(value)
            out.known |= KNOWS_LARGEST_MS
        elif tag == TAG_COUNT:
            out.count = load_i32(value)
            if out.count < 0:
                return BAD_TAG
            out.known |= KNOWS_COUNT
        elif tag == TAG_LAST_DELTA:
            out.last_delta = load_i32(value)
            if out.last_delta < 0:
                return BAD_TAG
            out.known |= KNOWS_LAST_DELTA
        elif tag == TAG_HONOUR_OFFSETS:
            out.honours_offsets = value[0]
            out.known |= KNOWS_HONOUR_OFFSETS
        elif tag == TAG_NO_KEYS:
            out.has_no_keys = value[0]
            out.known |= KNOWS_NO_KEYS
        elif tag == TAG_TIMESTAMP_TYPE:
            out.timestamp_type = value[0]
            out.known |= KNOWS_TIMESTAMP_TYPE
    if out.honours_offsets > 1 or out.has_no_keys > 1 or out.timestamp_type > 1:
        return BAD_TAG
    return OK


cdef inline int find_tags(const uint8_t* p, const uint8_t* end, Span* list_) noexcept nogil:
    """The tags of the message at `p`, which ends at `end`. OK or BAD_TAG."""
    cdef int32_t size = load_i32(p + TAGS_SIZE_POS)
    list_.p = p + TAGGED_HEADER_SIZE
    if size < -1 or size > end - list_.p - 8:       # the sizes of key and value follow
        return BAD_TAG
    list_.end = list_.p + max(size, 0)
    return OK


cdef inline int64_t timestamp_of(const uint8_t* p, const Tags* tags) noexcept nogil:
    if tags.known & KNOWS_BROKER_MS:
        return tags.broker_ms
    return <int64_t>load_u32(p + TIMESTAMP_POS) * 1000


cdef int parse_tagged(Span* s, RecordView* out, uint8_t* attributes, Tags* tags) noexcept nogil:
    cdef const uint8_t* p = s.p
    cdef const uint8_t* end = NULL
    cdef Span list_
    cdef int status = find_message_end(p, s.end, MIN_TAGGED_SIZE, &end)
    if status != OK:
        return status
    if p[MAGIC_POS] != 1:
        return BAD_MAGIC
    if find_tags(p, end, &list_) != OK or parse_tags(&list_, tags) != OK:
        return BAD_TAG
    attributes[0] = p[MESSAGE_ATTRIBUTES_POS]
    out.offset = load_i64(p)
    out.timestamp = timestamp_of(p, tags)
    out.size_bytes = <int32_t>(end - p)
    status = parse_key_and_value(list_.end, end, out)
    # Only one encoding of null.
    if status == OK and load_i32(list_.end) < -1:
        status = BAD_KEY_SIZE
    if status == OK and load_i32(out.value - 4) < -1:
        status = BAD_VALUE_SIZE
    if status == OK:
        s.p = end
    return status


cdef int parse_inner_tagged(Span* s, const BatchHeader* wrapper, int64_t* base, RecordView* out) noexcept nogil:
    cdef const uint8_t* start = s.p
    cdef uint8_t attributes = 0
    cdef Tags tags
    cdef int status = parse_tagged(s, out, &attributes, &tags)
    if status != OK:
        return status
    if attributes & TYPE_MASK:
        s.p = start
        return BAD_NESTING
    if wrapper.attributes & CONTIGUOUS_BIT:
        out.offset = base[0]
        base[0] = <int64_t>(<uint64_t>base[0] + 1)
    elif out.offset < 0 or out.offset > INT32_MAX:
        s.p = start
        return OFFSET_RANGE
    else:
        out.offset = <int64_t>(<uint64_t>base[0] + <uint64_t>out.offset)
    if wrapper.attributes & TIMESTAMP_TYPE_BIT:
        out.timestamp = wrapper.max_timestamp
    return OK


cdef int parse_tagged_header(const uint8_t* bytes, int64_t size, int64_t position, BatchHeader* out) noexcept nogil:
    cdef const uint8_t* p
    cdef Span list_
    cdef Tags tags
    cdef int status = parse_size(bytes, size, position, MIN_TAGGED_SIZE, &out.size_bytes)
    if status != OK:
        return status
    p = bytes + position
    if p[MAGIC_POS] != 1:
        return BAD_MAGIC
    out.position = position
    if find_tags(p, p + out.size_bytes, &list_) != OK or parse_tags(&list_, &tags) != OK:
        return BAD_TAG
    out.magic = TAGGED_MAGIC
    out.base_offset = load_i64(p)
    out.crc = load_u32(p + MESSAGE_CRC_POS)
    out.producer_id = -1
    out.producer_epoch = -1
    out.leader_epoch = -1
    out.base_sequence = -1
    out.count = -1
    return describe_message(p, &tags, out)


cdef inline int describe_message(const uint8_t* p, const Tags* tags, BatchHeader* out) noexcept nogil:
    """Set the header fields that follow from a message's type and tags: attributes, last offset, times."""
    cdef int type_ = p[MESSAGE_ATTRIBUTES_POS] & TYPE_MASK
    cdef int64_t delta = 0
    cdef int attributes = TIME_BOUND_BIT
    if tags.timestamp_type:
        attributes |= TIMESTAMP_TYPE_BIT
    out.base_timestamp = out.max_timestamp = timestamp_of(p, tags)
    if TYPE_LEADER_EPOCH <= type_ <= TYPE_ABORT:
        attributes |= CONTROL_BIT | (type_ - TYPE_LEADER_EPOCH) << CONTROL_TYPE_SHIFT
    elif type_ > CODEC_ZSTD:
        attributes |= UNKNOWN_CODEC
    elif type_:
        attributes |= type_
        if not tags.honours_offsets:
            attributes |= CONTIGUOUS_BIT
        if tags.known & KNOWS_LARGEST_MS and not tags.timestamp_type:
            out.max_timestamp = tags.largest_ms
        elif not tags.timestamp_type:
            attributes &= ~TIME_BOUND_BIT
        if tags.known & KNOWS_LAST_DELTA and tags.honours_offsets:
            delta = tags.last_delta
        elif tags.known & KNOWS_COUNT and tags.count and not tags.honours_offsets:
            delta = tags.count - 1
        else:
            attributes |= OPEN_END_BIT
            delta = max(tags.count - 1, 0)
    out.attributes = <int16_t>attributes
    if out.base_offset > INT64_MAX - 1 - delta:
        return OFFSET_RANGE
    out.last_offset = out.base_offset + delta
    return OK
