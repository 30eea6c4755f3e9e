"""Begins the v2 batches that a conversion writes. See open_batch.pxd."""
from libc.stdint cimport int16_t, int64_t
from libc.string cimport memcpy

from .batch_builder cimport begin_batch
from .batch_header cimport CODEC_MASK, DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT, V2_HEADER_SIZE, BatchHeader
from .batch_source cimport Source
from .output cimport Output, ensure_room
from .record_view cimport RecordView
from .status cimport NO_MEMORY, OK


cdef int begin_for(
    OpenBatch* batch, Output* out, const BatchHeader* row, const RecordView* first, int codec, int64_t horizon_ms
) noexcept nogil:
    cdef BatchHeader* header = &batch.header
    header.attributes = shared_attributes(row)
    header.base_offset = row.base_offset if row.magic == 2 else first.offset
    header.base_timestamp = first.timestamp
    if horizon_ms >= 0:
        header.attributes = <int16_t>(header.attributes | DELETE_HORIZON_BIT)
        header.base_timestamp = horizon_ms
    header.max_timestamp = row.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else -1
    header.leader_epoch = row.leader_epoch
    header.producer_id = row.producer_id
    header.producer_epoch = row.producer_epoch
    header.base_sequence = row.base_sequence
    batch.codec = codec
    batch.has_time = (row.max_timestamp if row.magic == 2 else first.timestamp) != -1
    if begin_batch(out, header) != OK:
        return NO_MEMORY
    batch.is_open = True
    return OK


cdef int begin_with(OpenBatch* batch, Output* out, const Source* source, int codec) noexcept nogil:
    cdef BatchHeader* header = &batch.header
    cdef int64_t size = source.records.end - source.records.p
    header[0] = source.row[0]
    header.attributes = <int16_t>(header.attributes & ~CODEC_MASK)
    if ensure_room(out, V2_HEADER_SIZE + size) != OK or begin_batch(out, header) != OK:
        return NO_MEMORY
    memcpy(out.first + out.size, source.records.p, size)
    out.size += size
    header.count = source.row.count
    header.last_offset = source.row.last_offset
    batch.codec = codec
    batch.has_time = source.row.max_timestamp != -1
    batch.is_open = True
    return OK
