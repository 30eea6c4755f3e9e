"""What a batch's header says about all its records: bits of its attributes, and its producer's sequence numbers."""
from libc.stdint cimport int8_t, int32_t, int64_t, uint32_t

from .batch_header cimport TAGGED_MAGIC, TIMESTAMP_TYPE_BIT, BatchHeader
from .tagged_message cimport OPEN_END_BIT

cdef enum:
    NO_TIMESTAMP_TYPE = -1      # v0 has none
    NO_SEQUENCE = -1


cdef inline bint has_bit(const BatchHeader* batch, int bit) noexcept nogil:
    return batch.magic & ~1 != 0 and batch.attributes & bit != 0      # v2, or tagged


cdef inline bint has_open_end(const BatchHeader* batch) noexcept nogil:
    """Whether it is a tagged wrapper that does not store its last offset: `last_offset` is then too low."""
    return batch.magic == TAGGED_MAGIC and batch.attributes & OPEN_END_BIT != 0


cdef inline bint hides_last_offset(const BatchHeader* batch) noexcept nogil:
    """Whether only opening the wrapper gives its last offset: it has an open end, or is v1 with 0 (legacy_records)."""
    return (batch.magic == 1 and batch.last_offset == 0) or has_open_end(batch)


cdef inline int8_t timestamp_type_of(const BatchHeader* batch) noexcept nogil:
    if batch.magic == 0:
        return NO_TIMESTAMP_TYPE
    return 1 if batch.attributes & TIMESTAMP_TYPE_BIT else 0


cdef inline int32_t sequence_at(const BatchHeader* batch, int64_t offset) noexcept nogil:
    """Kafka's DefaultRecordBatch.incrementSequence: sequences wrap at 2**31."""
    if batch.base_sequence < 0:
        return NO_SEQUENCE
    return <int32_t>((<uint32_t>batch.base_sequence + <uint32_t>offset - <uint32_t>batch.base_offset) & 0x7FFFFFFF)
