"""Takes keys, values, headers and timestamps from Python objects, and says which record had a wrong one.

A TypeError or InvalidArgumentError here is the caller's mistake, never damage on disk.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.long cimport PyLong_Check
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from seglog.errors import InvalidArgumentError, RecordTooLargeError

from .output cimport Output, ensure_room
from .span cimport store_varlong
from .status cimport OK

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef str named(const char* what, Py_ssize_t number):
    """`the key`, or `the key of record 7`: records are numbered from 0, as in a list."""
    return f"the {what.decode()}" if number < 0 else f"the {what.decode()} of record {number}"


cdef int hold_buffer(Field* field, object data, const char* what, Py_ssize_t number) except -1:
    if not PyObject_CheckBuffer(data):
        raise TypeError(f"{named(what, number)} must be bytes-like or None, not {type(data).__name__}")
    try:
        PyObject_GetBuffer(data, &field.view, PyBUF_SIMPLE)
    except BufferError as e:
        raise InvalidArgumentError(f"{named(what, number)} cannot be read as bytes: {e}") from None
    field.is_exported = True
    if field.view.len > INT32_MAX:
        size = field.view.len
        release_field(field)
        raise RecordTooLargeError(f"{named(what, number)} has {size} bytes: formats allow {INT32_MAX}")
    field.bytes = <const uint8_t*>field.view.buf
    field.size = <int32_t>field.view.len
    return 0


cdef int hold_text(Field* field, str key, Py_ssize_t number) except -1:
    cdef Py_ssize_t size = 0
    field.is_exported = False
    try:
        field.bytes = <const uint8_t*>PyUnicode_AsUTF8AndSize(key, &size)
    except UnicodeEncodeError as e:
        raise InvalidArgumentError(
            f"{named(b'key', number)} is not valid text: {e.reason}", hint="pass its bytes") from None
    if size > INT32_MAX:
        raise RecordTooLargeError(f"{named(b'key', number)} has {size} bytes: formats allow {INT32_MAX}")
    field.size = <int32_t>size
    return 0


cdef int append_sized(Output* out, const uint8_t* bytes, int64_t size) except -1:
    cdef int64_t content = size if size > 0 else 0
    cdef uint8_t* p
    if ensure_room(out, 5 + content) != OK:
        raise MemoryError
    p = store_varlong(out.first + out.size, size)
    if content:
        memcpy(p, bytes, content)
    out.size = p + content - out.first
    return 0


cdef int append_header_key(Output* out, object key, Py_ssize_t number) except -1:
    cdef Py_ssize_t size = 0
    cdef const char* utf8
    cdef bytes escaped
    if not isinstance(key, str):
        raise TypeError(f"{named(b'header key', number)} must be a str, not {type(key).__name__}")
    try:
        utf8 = PyUnicode_AsUTF8AndSize(key, &size)
        return append_sized(out, <const uint8_t*>utf8, size)
    except UnicodeEncodeError:
        pass
    try:
        escaped = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise InvalidArgumentError(f"{named(b'header key', number)} cannot be written as UTF-8: {e}") from None
    return append_sized(out, escaped, len(escaped))


cdef int32_t append_headers(Output* out, object headers, Py_ssize_t number) except -1:
    cdef int32_t count = 0
    cdef Field field
    if headers is None or isinstance(headers, (str, bytes, dict)):      # a dict: iterating it gives keys alone
        raise TypeError(f"{named(b'list of headers', number)} must be a sequence of (str, bytes-like or None), "
                        f"not {type(headers).__name__}")
    try:
        pairs = iter(headers)
    except TypeError:
        raise TypeError(f"{named(b'list of headers', number)} must be a sequence of (str, bytes-like or None), "
                        f"not {type(headers).__name__}") from None
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"{named(b'header', number)} must be a pair of str and bytes-like or None, not {pair!r:.60}")
        key, value = pair
        append_header_key(out, key, number)
        hold_field(&field, value, b"header value", number)
        try:
            append_sized(out, field.bytes, field.size)
        finally:
            release_field(&field)
        if count == INT32_MAX or out.size > INT32_MAX:
            raise RecordTooLargeError(f"{named(b'list of headers', number)} is larger than formats allow")
        count += 1
    return count


cdef int64_t to_timestamp(object timestamp, Py_ssize_t number) except? -1:
    cdef int overflow = 0
    cdef int64_t value
    if not PyLong_Check(timestamp):
        raise TypeError(
            f"{named(b'timestamp', number)} must be an int (ms since 1970) or None, not {type(timestamp).__name__}")
    value = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
    if overflow or value < -1:
        # MemoryRecordsBuilder.appendWithOffset refuses them, too: "Invalid negative timestamp".
        raise InvalidArgumentError(f"{named(b'timestamp', number)} must be -1 (none) to {INT64_MAX}, not {timestamp}")
    return value
