"""Writes records of every format: loops that other kernels call without the GIL.

A batch is written to an Output: first room for its header, then the records, then the header, once all its fields are
known. `BatchHeader.position` is its beginning in the Output. See docs/formats/.
"""
from libc.stdint cimport INT32_MAX, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from .batch_header cimport (
    LOG_OVERHEAD, MAGIC_POS, MESSAGE_ATTRIBUTES_POS, SIZE_POS, TIMESTAMP_TYPE_BIT, V0_HEADER_SIZE, V1_HEADER_SIZE,
    V2_HEADER_SIZE, BatchHeader,
)
from .output cimport Output, copy_field, ensure_room
from .record_view cimport RecordView
from .span cimport store_u32, store_u64, store_varlong, varlong_size
from .status cimport BAD_SIZE, NO_MEMORY, OFFSET_RANGE, OK

cdef enum:
    # A record's length, attributes, two deltas, two sizes and header count, each of maximum size.
    MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
    # Reading bytes back right after writing them stalls the processor, so a message's CRC is computed after some more
    # were written (1.2 times as fast with 100-byte messages, 1.8 times with 10-byte ones).
    DEFERRED_CRCS = 8


# --- format v2 -------------------------------------------------------------------------------

# Begin a batch at the end of the output. The caller sets the fields of `batch` that describe it as a whole (attributes,
# base_offset, base_timestamp, max_timestamp, leader epoch, producer).
cdef inline int begin_batch(Output* out, BatchHeader* batch) noexcept nogil:
    if ensure_room(out, V2_HEADER_SIZE) != OK:
        return NO_MEMORY
    batch.position = out.size
    batch.magic = 2
    batch.count = 0
    batch.last_offset = batch.base_offset
    out.size += V2_HEADER_SIZE
    return OK


# Append a record whose key, value and headers are readable up to these ends. Updates count, last offset and, under
# CreateTime, the max timestamp. If the status is not OK, nothing has changed.
# OFFSET_RANGE: its offset is below the batch's, or more than 31 bits above it. BAD_SIZE: the batch would exceed its
# length field.
cdef inline int append_fields(
    Output* out, BatchHeader* batch, const RecordView* record,
    const uint8_t* key_end, const uint8_t* value_end, const uint8_t* headers_end,
) noexcept nogil:
    # Wraps, like Kafka's own subtraction; the reader's addition wraps back.
    cdef int64_t timestamp_delta = <int64_t>(<uint64_t>record.timestamp - <uint64_t>batch.base_timestamp)
    cdef uint64_t offset_delta = <uint64_t>record.offset - <uint64_t>batch.base_offset
    cdef int64_t key_bytes = record.key_size if record.key_size > 0 else 0
    cdef int64_t value_bytes = record.value_size if record.value_size > 0 else 0
    cdef int64_t size = key_bytes + value_bytes + record.headers_size
    cdef uint8_t* p
    if record.offset < batch.base_offset or offset_delta > INT32_MAX:
        return OFFSET_RANGE
    if size + MAX_RECORD_OVERHEAD > INT32_MAX - (out.size - batch.position):
        return BAD_SIZE
    if ensure_room(out, size + MAX_RECORD_OVERHEAD) != OK:
        return NO_MEMORY
    size += (
        1 + varlong_size(timestamp_delta) + varlong_size(<int64_t>offset_delta)
        + varlong_size(record.key_size) + varlong_size(record.value_size) + varlong_size(record.header_count)
    )
    p = store_varlong(out.first + out.size, size)
    p[0] = 0                    # attributes: none is defined
    p = store_varlong(p + 1, timestamp_delta)
    p = store_varlong(p, <int64_t>offset_delta)
    p = store_varlong(p, record.key_size)
    copy_field(p, record.key, key_bytes, key_end)
    p = store_varlong(p + key_bytes, record.value_size)
    copy_field(p, record.value, value_bytes, value_end)
    p = store_varlong(p + value_bytes, record.header_count)
    if record.headers_size > 0:
        copy_field(p, record.headers, record.headers_size, headers_end)
        p += record.headers_size
    out.size = p - out.first
    batch.count += 1
    batch.last_offset = record.offset
    if record.timestamp > batch.max_timestamp and not batch.attributes & TIMESTAMP_TYPE_BIT:
        batch.max_timestamp = record.timestamp
    return OK


# The same for a record in contiguous memory, readable up to `readable_end`.
cdef inline int append_record(
    Output* out, BatchHeader* batch, const RecordView* record, const uint8_t* readable_end
) noexcept nogil:
    return append_fields(out, batch, record, readable_end, readable_end, readable_end)


# Write the header of a batch, except for its CRC; the payload extends to the end of the output.
# BAD_SIZE: the batch exceeds its length field.
cdef int end_batch(Output* out, BatchHeader* batch) noexcept nogil

# Append the bytes of a compressed payload, a Python object.
cdef int append_bytes(Output* out, object data) except -1

# Compute and store the CRCs of the batches of format v2 in output[position..end).
cdef void store_batch_crcs(Output* out, int64_t position, int64_t end) noexcept nogil


# --- formats v0 and v1 -----------------------------------------------------------------------

# Append a message with the record's offset and (v1) timestamp as given, except for its CRC.
cdef inline int append_message(
    Output* out, int8_t magic, uint8_t attributes, const RecordView* record, const uint8_t* readable_end
) noexcept nogil:
    cdef int64_t key_bytes = record.key_size if record.key_size > 0 else 0
    cdef int64_t value_bytes = record.value_size if record.value_size > 0 else 0
    cdef int64_t size = (V1_HEADER_SIZE if magic == 1 else V0_HEADER_SIZE) + 4 + key_bytes + 4 + value_bytes
    cdef uint8_t* p
    if size - LOG_OVERHEAD > INT32_MAX:
        return BAD_SIZE
    if ensure_room(out, size) != OK:
        return NO_MEMORY
    p = out.first + out.size
    store_u64(p, <uint64_t>record.offset)
    store_u32(p + SIZE_POS, <uint32_t>(size - LOG_OVERHEAD))
    p[MAGIC_POS] = <uint8_t>magic
    p[MESSAGE_ATTRIBUTES_POS] = attributes
    p += V0_HEADER_SIZE
    if magic == 1:
        store_u64(p, <uint64_t>record.timestamp)
        p += V1_HEADER_SIZE - V0_HEADER_SIZE
    store_u32(p, <uint32_t>record.key_size)
    copy_field(p + 4, record.key, key_bytes, readable_end)
    p += 4 + key_bytes
    store_u32(p, <uint32_t>record.value_size)
    copy_field(p + 4, record.value, value_bytes, readable_end)
    out.size += size
    return OK


# Append the contents of a wrapper: these records as messages with CRCs, at offsets relative to `inner_base`.
# `max_timestamp` is set to their largest.
cdef int append_inner_messages(
    Output* out, int8_t magic, uint8_t attributes, const RecordView* records, int64_t count, int64_t inner_base,
    const uint8_t* readable_end, int64_t* max_timestamp,
) noexcept nogil

# Append a wrapper with its CRC around the compressed form of such messages. BAD_SIZE: it exceeds 2 GiB.
cdef int append_wrapper(
    Output* out, int8_t magic, uint8_t attributes, int64_t last_offset, int64_t timestamp, const uint8_t* payload,
    int64_t payload_size,
) noexcept nogil

# Compute and store the CRCs of all messages from `position` on.
cdef void store_message_crcs(Output* out, int64_t position) noexcept nogil


# Call after appending a message: stores the missing CRCs, from `stored_to` on, once there are many.
cdef inline void defer_crc(Output* out, int64_t* stored_to, int* lacking) noexcept nogil:
    lacking[0] += 1
    if lacking[0] >= DEFERRED_CRCS:
        store_message_crcs(out, stored_to[0])
        stored_to[0] = out.size
        lacking[0] = 0
