"""Makes a Record from its fields, for unpickling. Its bytes are its own, laid out as in a v2 record."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from .field cimport append_headers
from .output cimport Output
from .record_batch cimport Record
from .span cimport store_varlong
from .window cimport Window


def record_of_fields(
    int64_t offset, int64_t timestamp, int8_t timestamp_type, int32_t sequence, key, value, headers,
    int32_t size_bytes, /
):
    """Make a Record: key and value bytes or None, headers as for encode_one. Raises TypeError, RecordTooLargeError."""
    cdef Record record = Record.__new__(Record)
    cdef bytes content = (key or b"") + (value or b"") + tail_of(headers)
    record.window = Window(content)
    record.offset_ = offset
    record.timestamp_ = timestamp
    record.timestamp_type_ = timestamp_type
    record.sequence_ = sequence
    record.size_bytes_ = size_bytes
    record.key_size = -1 if key is None else len(key)
    record.value_size = -1 if value is None else len(value)
    record.key_ = record.window.base
    record.value_ = record.key_ + max(record.key_size, 0)
    record.tail_size = record.window.size - max(record.key_size, 0) - max(record.value_size, 0)
    return record


cdef bytes tail_of(object headers):
    """Encode the count of headers and the headers, as they follow a value; nothing if there are none."""
    cdef Output out
    cdef uint8_t count[10]
    cdef uint8_t* end
    if not headers:
        return b""
    memset(&out, 0, sizeof(Output))
    try:
        end = store_varlong(count, append_headers(&out, headers, -1))
        return PyBytes_FromStringAndSize(<const char*>count, end - count) + PyBytes_FromStringAndSize(
            <const char*>out.first, out.size)
    finally:
        free(out.first)
