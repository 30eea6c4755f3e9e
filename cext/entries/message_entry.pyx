"""Encodes a message as a Pulsar producer sends it: an entry of one message, not compressed, with a checksum.

Only the metadata that a message put here can have; the fields are in the order of their numbers, so that the bytes are
those of protobuf. Layout: docs/formats/pulsar_entry.md.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from .crc cimport update_crc32c
from .protobuf_span cimport store_uvarint
from .span cimport store_u16, store_u32

cdef enum:
    CHECKSUM_MAGIC = 0x0E01     # Commands.magicCrc32c
    CHECKED_FROM = 6            # after the magic and the checksum: here the size of the metadata begins
    HEAD_BYTES = 10             # all of these

cdef enum:
    # Tags: the number of a field of MessageMetadata, or of KeyValue, and its wire type.
    PRODUCER_NAME = 1 << 3 | 2
    SEQUENCE_ID = 2 << 3
    PUBLISH_TIME = 3 << 3
    PROPERTIES = 4 << 3 | 2
    PARTITION_KEY = 6 << 3 | 2
    UNCOMPRESSED_SIZE = 9 << 3
    PARTITION_KEY_B64_ENCODED = 17 << 3
    DELIVER_AT_TIME = 19 << 3
    NAME = 1 << 3 | 2
    TEXT = 2 << 3 | 2


cdef Py_ssize_t number_size(uint64_t tag, uint64_t number) noexcept:
    """The bytes of a tag and a number, each a varint."""
    cdef Py_ssize_t size = 2 if tag < 0x80 else 3
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


cdef Py_ssize_t bytes_size(uint64_t tag, bytes text) noexcept:
    return number_size(tag, <uint64_t>PyBytes_GET_SIZE(text)) + PyBytes_GET_SIZE(text)


cdef uint8_t* store_number(uint8_t* p, uint64_t tag, uint64_t number) noexcept:
    return store_uvarint(store_uvarint(p, tag), number)


cdef uint8_t* store_bytes(uint8_t* p, uint64_t tag, bytes text) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    p = store_number(p, tag, <uint64_t>size)
    memcpy(p, PyBytes_AS_STRING(text), size)
    return p + size


def encode_message(
    bytes producer_name not None, uint64_t sequence_id, uint64_t publish_time, deliver_at_time, bytes key,
    bint is_key_base64, list properties, value,
):
    """The entry with a value, which is a C-contiguous buffer. `deliver_at_time`: ms since 1970, or None. `properties`:
    a list of (name, text) as bytes, or None. Raises TypeError or BufferError for another value, OverflowError for
    numbers that have no place."""
    cdef bint is_delayed = deliver_at_time is not None
    cdef uint64_t deliver_at = <uint64_t><int64_t>deliver_at_time if is_delayed else 0
    cdef tuple pairs = () if properties is None else tuple(properties)
    cdef Py_ssize_t metadata_bytes, size
    cdef bytes name, text, made
    cdef uint8_t* first
    cdef uint8_t* p
    cdef Py_buffer view
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        metadata_bytes = bytes_size(PRODUCER_NAME, producer_name) + number_size(SEQUENCE_ID, sequence_id)
        metadata_bytes += number_size(PUBLISH_TIME, publish_time)
        for name, text in pairs:
            if name is None or text is None:
                raise TypeError("a property is two bytes objects")
            size = bytes_size(NAME, name) + bytes_size(TEXT, text)
            metadata_bytes += number_size(PROPERTIES, size) + size
        if key is not None:
            metadata_bytes += bytes_size(PARTITION_KEY, key)
        metadata_bytes += number_size(UNCOMPRESSED_SIZE, view.len)
        if key is not None and is_key_base64:
            metadata_bytes += number_size(PARTITION_KEY_B64_ENCODED, 1)
        if is_delayed:
            metadata_bytes += number_size(DELIVER_AT_TIME, deliver_at)
        made = PyBytes_FromStringAndSize(NULL, HEAD_BYTES + metadata_bytes + view.len)
        first = <uint8_t*>PyBytes_AS_STRING(made)
        p = store_bytes(first + HEAD_BYTES, PRODUCER_NAME, producer_name)
        p = store_number(p, SEQUENCE_ID, sequence_id)
        p = store_number(p, PUBLISH_TIME, publish_time)
        for name, text in pairs:
            size = bytes_size(NAME, name) + bytes_size(TEXT, text)
            p = store_bytes(store_bytes(store_number(p, PROPERTIES, size), NAME, name), TEXT, text)
        if key is not None:
            p = store_bytes(p, PARTITION_KEY, key)
        p = store_number(p, UNCOMPRESSED_SIZE, view.len)
        if key is not None and is_key_base64:
            p = store_number(p, PARTITION_KEY_B64_ENCODED, 1)
        if is_delayed:
            p = store_number(p, DELIVER_AT_TIME, deliver_at)
        memcpy(p, view.buf, view.len)
        store_u16(first, CHECKSUM_MAGIC)
        store_u32(first + CHECKED_FROM, <uint32_t>metadata_bytes)
        store_u32(first + 2, update_crc32c(0, first + CHECKED_FROM, PyBytes_GET_SIZE(made) - CHECKED_FROM))
    finally:
        PyBuffer_Release(&view)
    return made
