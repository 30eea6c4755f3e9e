"""A subset of a tagged message set, written as a set: what compaction keeps, or what goes to one of several logs.

docs/formats/tagged_message.md defines its tags.
"""
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from .batch_builder cimport store_message_crcs
from .batch_header cimport BatchHeader
from .output cimport Output, ensure_room
from .record_view cimport RecordView
from .span cimport Span, load_u32, store_u32, store_u64
from .status cimport BAD_SIZE, NO_MEMORY, OK
from .tagged_builder cimport append_tagged
from .tagged_message cimport (
    KNOWS_COUNT, KNOWS_HONOUR_OFFSETS, KNOWS_LARGEST_MS, KNOWS_LAST_DELTA, KNOWS_NO_KEYS, TAG_BROKER_MS, TAG_COUNT,
    TAG_HONOUR_OFFSETS, TAG_LARGEST_MS, TAG_LAST_DELTA, TAG_NO_KEYS, TAG_TIMESTAMP_TYPE, TIMESTAMP_POS, Tags, parse_tag,
    parse_tagged, stored_tags,
)


# Copy the messages `views` of an opened set, with offsets relative to the first one, which no CRC covers. OK or
# NO_MEMORY.
cdef inline int copy_messages(Output* inner, const RecordView* views, int64_t count) noexcept nogil:
    cdef const RecordView* view
    cdef const uint8_t* end
    cdef int64_t i
    inner.size = 0
    for i in range(count):
        view = &views[i]
        end = view.value + max(view.value_size, 0)
        if ensure_room(inner, view.size_bytes) != OK:
            return NO_MEMORY
        memcpy(inner.first + inner.size, end - view.size_bytes, view.size_bytes)
        store_u64(inner.first + inner.size, <uint64_t>(view.offset - views[0].offset))
        inner.size += view.size_bytes
    return OK


# Copy those tags of the parsed set at `raw` that docs/formats/tagged_message.md does not list.
cdef inline int copy_unknown_tags(Output* others, const uint8_t* raw) noexcept nogil:
    cdef const uint8_t* start
    cdef const uint8_t* value = NULL
    cdef int32_t size = 0
    cdef int tag = 0
    cdef Span span = stored_tags(raw)
    others.size = 0
    while span.p != span.end:
        start = span.p
        if parse_tag(&span, &tag, &value, &size) != OK:
            break
        if tag in (
            TAG_BROKER_MS, TAG_LARGEST_MS, TAG_COUNT, TAG_LAST_DELTA, TAG_HONOUR_OFFSETS, TAG_NO_KEYS,
            TAG_TIMESTAMP_TYPE,
        ):
            continue
        if ensure_room(others, span.p - start) != OK:
            return NO_MEMORY
        memcpy(others.first + others.size, start, span.p - start)
        others.size += span.p - start
    return OK


# Set the tags of a set that describe the remaining messages. The time of its arrival stays.
cdef inline void describe_left(Tags* tags, const RecordView* views, int64_t count) noexcept nogil:
    cdef int64_t i
    tags.known |= KNOWS_LARGEST_MS | KNOWS_COUNT | KNOWS_LAST_DELTA | KNOWS_HONOUR_OFFSETS | KNOWS_NO_KEYS
    tags.count = <int32_t>count
    tags.honours_offsets = 1
    tags.has_no_keys = 1
    tags.largest_ms = views[0].timestamp
    for i in range(count):
        if views[i].key_size >= 0:
            tags.has_no_keys = 0
        if views[i].timestamp > tags.largest_ms:
            tags.largest_ms = views[i].timestamp


# Append the set at `raw` with the remaining messages `views`, or `payload` if compressed. It covers offsets up to
# `reach`. If the status is not OK, `out` is unchanged.
cdef inline int append_set(
    Output* out, const BatchHeader* row, const uint8_t* raw, const RecordView* views, int64_t count, int64_t reach,
    const uint8_t* payload, int64_t payload_size, Output* others
) noexcept nogil:
    cdef int64_t size = out.size
    cdef uint8_t attributes = 0
    cdef RecordView set_
    cdef Tags tags
    cdef Span span
    cdef int status
    span.p = raw
    span.end = raw + row.size_bytes
    status = parse_tagged(&span, &set_, &attributes, &tags)
    if status == OK:
        status = copy_unknown_tags(others, raw)
    if status == OK and payload_size > INT32_MAX:
        status = BAD_SIZE
    if status != OK:
        return status
    describe_left(&tags, views, count)
    set_.offset = views[0].offset
    set_.value = payload
    set_.value_size = <int32_t>payload_size
    # (The messages were within 31 bits of the set's offset, or follow it, and so was the offset it covers.)
    tags.last_delta = <int32_t>(reach - set_.offset)
    # (NULL: key and value are in separate memory, so there is no common end of readable bytes.)
    status = append_tagged(out, attributes, &tags, others.first, others.size, &set_, NULL)
    if status == OK:
        store_u32(out.first + size + TIMESTAMP_POS, load_u32(raw + TIMESTAMP_POS))
        store_message_crcs(out, size)
    return status
