"""Messages of format v0 and v1, bare or in a wrapper; also dispatches to the parsers of the tagged dialect, which is
read wherever these are. See docs/formats/message.md and tagged_message.pxd.

Rules for reading a wrapper (Kafka's AbstractLegacyRecordBatch.DeepRecordsIterator):

                      v0 wrapper              v1 wrapper
    inner offset      absolute                relative; the wrapper's own offset is the LAST message's,
                                              so base = wrapper offset - last inner offset. Gaps after
                                              compaction are legal. Wrapper offset 0: base 0 (librdkafka).
    inner timestamp   its own                 its own, or the wrapper's if the wrapper has LogAppendTime
    inner magic       0 or 1                  0 or 1
    inner codec       none                    none

A v0 message has timestamp -1, whatever its wrapper. A message may have another magic than its wrapper if a client made
it so and a 0.9 broker did not check it (kafka-node: v1 in v0), or if a broker before 0.10.1 compacted a topic whose
format had changed (KAFKA-4298). Kafka reads such messages, and refuses them in an append.

Nothing here owns or keeps bytes.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from .batch_header cimport (
    CODEC_MASK, MAGIC_POS, MESSAGE_ATTRIBUTES_POS, MESSAGE_TIMESTAMP_POS, MIN_V0_SIZE, MIN_V1_SIZE, TAGGED_MAGIC,
    TIMESTAMP_TYPE_BIT, V0_HEADER_SIZE, V1_HEADER_SIZE, BatchHeader, find_message_end,
)
from .record_view cimport RecordView, parse_key_and_value
from .span cimport Span, load_i64
from .status cimport BAD_MAGIC, BAD_NESTING, BAD_SIZE, OK
from .tagged_message cimport Tags, parse_inner_tagged, parse_tagged


# One complete message, from its offset on: sizes must add up to exactly what `size` claims. Moves past it if OK. Takes
# offset and timestamp as stored; does not check the CRC.
cdef inline int parse_message(Span* s, RecordView* out, int8_t* magic, uint8_t* attributes) noexcept nogil:
    cdef const uint8_t* p = s.p
    cdef const uint8_t* end = NULL
    cdef int status = find_message_end(p, s.end, MIN_V0_SIZE, &end)
    if status != OK:
        return status
    out.offset = load_i64(p)
    magic[0] = <int8_t>p[MAGIC_POS]
    attributes[0] = p[MESSAGE_ATTRIBUTES_POS]
    out.size_bytes = <int32_t>(end - p)
    if magic[0] == 1:
        if end - p < MIN_V1_SIZE:
            return BAD_SIZE
        out.timestamp = load_i64(p + MESSAGE_TIMESTAMP_POS)
        p += V1_HEADER_SIZE
    elif magic[0] == 0:
        out.timestamp = -1
        p += V0_HEADER_SIZE
    else:
        return BAD_MAGIC
    # The minimum sizes leave room for both size fields.
    status = parse_key_and_value(p, end, out)
    if status == OK:
        s.p = end
    return status


# The one record of a bare message, of the format that its row states.
cdef inline int parse_bare_message(Span* s, const BatchHeader* row, RecordView* out) noexcept nogil:
    cdef int8_t magic = -1
    cdef uint8_t attributes = 0
    cdef Tags tags
    if row.magic == TAGGED_MAGIC:
        return parse_tagged(s, out, &attributes, &tags)
    return parse_message(s, out, &magic, &attributes)


# The next message of an opened wrapper, with its absolute offset and effective timestamp.
# `base`: from find_inner_base; a tagged wrapper may advance it.
cdef inline int parse_inner_message(
    Span* s, const BatchHeader* wrapper, int64_t* base, RecordView* out
) noexcept nogil:
    cdef const uint8_t* start = s.p
    cdef int8_t magic = -1
    cdef uint8_t attributes = 0
    cdef int status
    if wrapper.magic == TAGGED_MAGIC:
        return parse_inner_tagged(s, wrapper, base, out)
    status = parse_message(s, out, &magic, &attributes)
    if status != OK:
        return status
    if attributes & CODEC_MASK:
        s.p = start
        return BAD_NESTING
    out.offset = <int64_t>(<uint64_t>base[0] + <uint64_t>out.offset)
    if magic == 1 and wrapper.magic == 1 and wrapper.attributes & TIMESTAMP_TYPE_BIT:
        out.timestamp = wrapper.max_timestamp
    return OK


# What to add to the offsets of an opened wrapper's messages, and how many there are. Walks the whole message set
# without moving `records`; OK means that each message parses. BAD_COUNT: no message. OFFSET_RANGE: the last inner
# offset of a v1 wrapper is above the wrapper's.
cdef int find_inner_base(
    const Span* records, const BatchHeader* wrapper, int64_t* base, int64_t* count
) noexcept nogil

# Is the CRC of the message that begins at `start` correct? The message must have parsed OK.
cdef bint message_crc_matches(const uint8_t* start, const RecordView* message) noexcept nogil
