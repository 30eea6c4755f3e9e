"""Parses and checks the header of a batch of any format version. See docs/formats/.

Borrows the bytes, keeps nothing, trusts no field: a header that parses OK lies inside the bytes, and so does everything
that its size claims. Its other fields may still be wrong: only the CRC tells, and it does not cover the base offset,
size, leader epoch and magic of a v2 batch.
"""
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t

from .crc cimport update_crc32, update_crc32c
from .span cimport load_i16, load_i32, load_i64, load_u32
from .status cimport BAD_COUNT, BAD_MAGIC, BAD_SIZE, OFFSET_RANGE, OK


cdef bint starts_with_zeros(const uint8_t* p, int64_t size) noexcept nogil:
    cdef int64_t i
    for i in range(min(size, V2_HEADER_SIZE)):
        if p[i] != 0:
            return False
    return True


cdef int parse_header(const uint8_t* bytes, int64_t size, int64_t position, BatchHeader* out) noexcept nogil:
    cdef const uint8_t* p
    cdef int status = parse_size(bytes, size, position, MIN_V0_SIZE, &out.size_bytes)
    if status != OK:
        return status
    p = bytes + position
    out.position = position
    out.magic = <int8_t>p[MAGIC_POS]
    out.base_offset = load_i64(p)
    if out.magic == 2:
        return parse_v2_header(p, out)
    if out.magic == 0 or out.magic == 1:
        return parse_message_header(p, out)
    return BAD_MAGIC


cdef inline int check_last_offset(const BatchHeader* header) noexcept nogil:
    """No log continues after the largest int64, so readers may compute last offset + 1 without overflow."""
    return OFFSET_RANGE if header.last_offset == INT64_MAX else OK


cdef inline int parse_v2_header(const uint8_t* p, BatchHeader* out) noexcept nogil:
    if out.size_bytes < V2_HEADER_SIZE:
        return BAD_SIZE
    out.leader_epoch = load_i32(p + LEADER_EPOCH_POS)
    out.crc = load_u32(p + CRC_POS)
    out.attributes = load_i16(p + ATTRIBUTES_POS)
    # Unsigned, because both may have any value, and signed overflow is undefined.
    out.last_offset = <int64_t>(<uint64_t>out.base_offset + <uint64_t><int64_t>load_i32(p + LAST_OFFSET_DELTA_POS))
    out.base_timestamp = load_i64(p + BASE_TIMESTAMP_POS)
    out.max_timestamp = load_i64(p + MAX_TIMESTAMP_POS)
    out.producer_id = load_i64(p + PRODUCER_ID_POS)
    out.producer_epoch = load_i16(p + PRODUCER_EPOCH_POS)
    out.base_sequence = load_i32(p + BASE_SEQUENCE_POS)
    out.count = load_i32(p + COUNT_POS)
    if out.count < 0:
        return BAD_COUNT
    if out.attributes & CODEC_MASK == CODEC_NONE:
        if out.count > (out.size_bytes - V2_HEADER_SIZE) // MIN_V2_RECORD_SIZE:
            return BAD_COUNT
    return check_last_offset(out)


cdef inline int parse_message_header(const uint8_t* p, BatchHeader* out) noexcept nogil:
    if out.magic == 1 and out.size_bytes < MIN_V1_SIZE:
        return BAD_SIZE
    out.crc = load_u32(p + MESSAGE_CRC_POS)
    out.attributes = p[MESSAGE_ATTRIBUTES_POS]
    out.last_offset = out.base_offset
    out.base_timestamp = load_i64(p + MESSAGE_TIMESTAMP_POS) if out.magic == 1 else -1
    out.max_timestamp = out.base_timestamp
    out.producer_id = -1
    out.producer_epoch = -1
    out.leader_epoch = -1
    out.base_sequence = -1
    out.count = -1
    return check_last_offset(out)


cdef uint32_t compute_crc(const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    cdef const uint8_t* p = bytes + header.position
    if header.magic == 2:
        return update_crc32c(0, p + ATTRIBUTES_POS, header.size_bytes - ATTRIBUTES_POS)
    return update_crc32(0, p + MAGIC_POS, header.size_bytes - MAGIC_POS)


cdef bint crc_matches(const uint8_t* bytes, const BatchHeader* header) noexcept nogil:
    return compute_crc(bytes, header) == header.crc
