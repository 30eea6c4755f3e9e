"""Whole v2 batches built from records. See batch_encode.pyx."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t

from .batch_header cimport BatchHeader
from .output cimport Output
from .record_view cimport RecordView


cdef class EncodedBatch:
    cdef Output out
    cdef BatchHeader batch          # begins with base_offset 0; place() sets its offset
    cdef readonly int64_t min_timestamp
    cdef readonly bint has_null_key

    cdef EncodedBatch _sealed(self, object compress, int64_t base_offset)

    # Record what a log needs to know about the record just appended.
    cdef inline void _note(self, const RecordView* record) noexcept nogil:
        # Unsigned, so that none (-1) is the largest.
        if <uint64_t>record.timestamp < <uint64_t>self.min_timestamp:
            self.min_timestamp = record.timestamp
        if record.key_size < 0:
            self.has_null_key = True


# encode_one at offset 0, for a time that was checked.
cdef bytes encode_bytes(int64_t timestamp, object key, object value, object headers)

# An empty batch whose header is described by the arguments of encode_records.
cdef EncodedBatch begin_encoded(
    int codec, object compress, int32_t leader_epoch, object log_append_time, int64_t producer_id,
    int16_t producer_epoch, int32_t base_sequence, bint is_transactional, bint is_control, object delete_horizon_ms,
)
