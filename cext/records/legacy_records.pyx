"""Opens wrappers of format v0 and v1. See legacy_records.pxd for the rules."""
from libc.stdint cimport int64_t, uint8_t

from .batch_header cimport MAGIC_POS, MESSAGE_CRC_POS, TAGGED_MAGIC
from .crc cimport update_crc32
from .record_view cimport RecordView
from .span cimport Span, load_i64, load_u32
from .status cimport BAD_COUNT, OFFSET_RANGE, OK


cdef int find_inner_base(
    const Span* records, const BatchHeader* wrapper, int64_t* base, int64_t* count
) noexcept nogil:
    cdef Span s = records[0]
    cdef RecordView message
    cdef const uint8_t* last = NULL
    cdef int64_t n = 0
    cdef int64_t last_inner
    cdef int64_t from_zero = 0
    cdef int status
    while s.p != s.end:
        last = s.p
        status = parse_inner_message(&s, wrapper, &from_zero, &message)
        if status != OK:
            return status
        n += 1
    if n == 0:
        return BAD_COUNT
    count[0] = n
    base[0] = 0
    if wrapper.magic == TAGGED_MAGIC:
        base[0] = wrapper.base_offset
    # Wrapper offset 0: some versions of librdkafka produced this, with inner offsets from 0.
    if wrapper.magic == 1 and wrapper.last_offset != 0:
        last_inner = load_i64(last)
        if wrapper.last_offset < last_inner:
            return OFFSET_RANGE
        base[0] = <int64_t>(<uint64_t>wrapper.last_offset - <uint64_t>last_inner)
    return OK


cdef bint message_crc_matches(const uint8_t* start, const RecordView* message) noexcept nogil:
    return update_crc32(0, start + MAGIC_POS, message.size_bytes - MAGIC_POS) == load_u32(start + MESSAGE_CRC_POS)
