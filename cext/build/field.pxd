"""A key, a value, headers and a timestamp from Python, to be written into a record."""
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from .output cimport Output


# The bytes of a key or value. Those of a `bytes` object are only borrowed: the caller keeps the object alive.
cdef struct Field:
    const uint8_t* bytes
    int32_t size                # -1: null
    bint is_exported            # `view` holds an export
    Py_buffer view


# `data`: bytes-like or None. `what` ("key") and `number` (of the record, -1 if it is the only one) are for the message
# of TypeError, of InvalidArgumentError for a buffer that is not contiguous, of RecordTooLargeError beyond 2 GiB.
cdef inline int hold_field(Field* field, object data, const char* what, Py_ssize_t number) except -1:
    field.is_exported = False
    if PyBytes_CheckExact(data) and PyBytes_GET_SIZE(data) <= INT32_MAX:
        field.bytes = <const uint8_t*>PyBytes_AS_STRING(data)
        field.size = <int32_t>PyBytes_GET_SIZE(data)
        return 0
    if data is None:
        field.bytes = NULL
        field.size = -1
        return 0
    return hold_buffer(field, data, what, number)


cdef int hold_buffer(Field* field, object data, const char* what, Py_ssize_t number) except -1


# A record's key, which may be a str, too: its UTF-8, borrowed from the str.
cdef inline int hold_key(Field* field, object key, Py_ssize_t number) except -1:
    if isinstance(key, str):
        return hold_text(field, key, number)
    return hold_field(field, key, b"key", number)


cdef int hold_text(Field* field, str key, Py_ssize_t number) except -1


cdef inline void release_field(Field* field) noexcept:
    if field.is_exported:
        field.is_exported = False
        PyBuffer_Release(&field.view)


# Append a sequence of (str, bytes-like or None), encoded as after a record's header count. Returns the count.
# Header keys may hold surrogate escapes, which stand for the bytes originally read (docs/formats/record_batch.md).
cdef int32_t append_headers(Output* out, object headers, Py_ssize_t number) except -1

# A timestamp in ms, -1 for none. Must be an int, within int64 and not below -1: TypeError, InvalidArgumentError.
cdef int64_t to_timestamp(object timestamp, Py_ssize_t number) except? -1
