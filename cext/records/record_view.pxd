"""One record, seen where it lies: pointers into bytes that somebody else keeps alive."""
from libc.stdint cimport int32_t, int64_t, uint8_t


cdef struct RecordView:
    int64_t offset
    int64_t timestamp               # -1 in v0; the batch's max timestamp under LogAppendTime
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers          # v2: the encoded headers after their count; NULL below v2
    int32_t key_size                # -1: null
    int32_t value_size              # -1: null
    int32_t headers_size            # bytes of `headers`
    int32_t header_count
    int32_t size_bytes              # of the whole record: v2 with its length varint, below v2 with LOG_OVERHEAD
