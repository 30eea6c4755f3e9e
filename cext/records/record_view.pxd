"""One record, viewed in place: pointers into bytes that the caller keeps alive."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from .span cimport load_i32
from .status cimport BAD_KEY_SIZE, BAD_VALUE_SIZE, OK


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


# The end of a message: key size, key, value size and value, exactly up to `end`. The bytes must have room for both
# sizes. A negative size is null; a message has no headers.
cdef inline int parse_key_and_value(const uint8_t* p, const uint8_t* end, RecordView* out) noexcept nogil:
    out.key_size = load_i32(p)
    p += 4
    out.key = p
    if out.key_size > 0:
        if out.key_size > end - p - 4:
            return BAD_KEY_SIZE
        p += out.key_size
    elif out.key_size < 0:
        out.key_size = -1
    out.value_size = load_i32(p)
    p += 4
    out.value = p
    if out.value_size < 0:
        out.value_size = -1
        if p != end:
            return BAD_VALUE_SIZE
    elif out.value_size != end - p:
        return BAD_VALUE_SIZE
    out.headers = NULL
    out.headers_size = 0
    out.header_count = 0
    return OK
