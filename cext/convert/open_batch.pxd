"""The v2 batch that a conversion is writing, and which records may join it. See open_batch.pyx.

Records share a batch only if they agree on everything that a batch header stores once for all its records:

    timestamp type; under LogAppendTime the time itself     leader epoch
    whether there is a timestamp at all                     codec, unless one is forced
    producer id and epoch, and sequences without a gap      transactional or not
    delete horizon                                          offset deltas within 31 bits
"""
from libc.stdint cimport INT32_MAX, int16_t, int64_t, uint64_t

from .batch_header cimport DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, BatchHeader
from .batch_source cimport Source
from .output cimport Output
from .record_view cimport RecordView


# The batch at the end of the output.
cdef struct OpenBatch:
    BatchHeader header          # attributes without codec
    int codec
    bint is_open
    bint has_time


# The attributes of a v2 batch on which records that share it must agree.
cdef inline int16_t shared_attributes(const BatchHeader* row) noexcept nogil:
    if row.magic == 2:
        return <int16_t>(row.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | DELETE_HORIZON_BIT))
    return <int16_t>(row.attributes & TIMESTAMP_TYPE_BIT) if row.magic != 0 else 0


# Do the offsets first to last of a batch come after those of the open one, within 31 bits?
cdef inline bint offsets_join(const OpenBatch* batch, int64_t first_offset, int64_t last_offset) noexcept nogil:
    if first_offset <= batch.header.last_offset or last_offset < first_offset:
        return False
    return <uint64_t>last_offset - <uint64_t>batch.header.base_offset <= INT32_MAX


# May records of another row join the open batch? Its first offset must fit.
cdef inline bint headers_join(
    const OpenBatch* batch, const BatchHeader* row, int64_t first_offset, bint has_time, int codec
) noexcept nogil:
    cdef const BatchHeader* header = &batch.header
    cdef int16_t shared = shared_attributes(row)
    if (
        shared_attributes(header) != shared or batch.codec != codec or batch.has_time != has_time
        or header.leader_epoch != row.leader_epoch
        or header.producer_id != row.producer_id or header.producer_epoch != row.producer_epoch
    ):
        return False
    if shared & TIMESTAMP_TYPE_BIT and header.max_timestamp != row.max_timestamp:
        return False
    if shared & DELETE_HORIZON_BIT and header.base_timestamp != row.base_timestamp:
        return False
    if header.base_sequence < 0 or row.base_sequence < 0:
        return header.base_sequence == row.base_sequence and row.producer_id < 0
    # A sequence number per offset, modulo 2^31 (DefaultRecordBatch.incrementSequence).
    return first_offset == header.last_offset + 1 and <uint64_t>row.base_sequence == (
        (<uint64_t>header.base_sequence + <uint64_t>first_offset - <uint64_t>header.base_offset) & INT32_MAX
    )


# Open a batch for the records of `row`, `first` being the first of them, at the end of `out`. A horizon of 0 or above
# sets the cleaner's flag. OK or NO_MEMORY.
cdef int begin_for(
    OpenBatch* batch, Output* out, const BatchHeader* row, const RecordView* first, int codec, int64_t horizon_ms
) noexcept nogil

# Open a batch with the header and the records of a v2 batch: if nothing joins it, only its codec changes.
cdef int begin_with(OpenBatch* batch, Output* out, const Source* source, int codec) noexcept nogil
