"""The hot fields of many entries, one column each. entry_frame.pyx describes and parses them."""
from array import array

cimport cython
from cpython cimport array as c_array
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from seglog.errors import CorruptRecordError

from .entry_frame cimport (
    _HAS_BROKER_TIMESTAMP,
    _HAS_INDEX,
    _HAS_KEY,
    BrokerFields,
    FrameView,
    MessageFieldsView,
    borrow,
    copy_compacted,
    read_broker_fields,
    read_frame,
    read_message_fields,
)
from .span cimport Span
from .status cimport NO_MEMORY, OK

cdef c_array.array INT64S = array("q")
cdef c_array.array INT32S = array("i")


cdef struct Growing:
    uint8_t* bytes
    int64_t size
    int64_t capacity


cdef int room_for(Growing* g, int64_t more) noexcept nogil:
    cdef int64_t capacity
    cdef uint8_t* bytes
    if more <= g.capacity - g.size:
        return OK
    capacity = g.size + more + (g.capacity >> 1) + 4096
    bytes = <uint8_t*>realloc(g.bytes, capacity)
    if bytes == NULL:
        return NO_MEMORY
    g.bytes = bytes
    g.capacity = capacity
    return OK


@cython.final
cdef class MetadataColumns:
    """The hot fields of many entries, one column each; row n is entry n. Holds copies, so the entries may be freed.

    broker_timestamp, index     int64, -1 if `flags` lack HAS_BROKER_TIMESTAMP, HAS_INDEX
    publish_time, sequence_id   int64
    deliver_at_time             int64, -1 if `flags` lack HAS_DELIVER_AT
    uncompressed_size           int64
    num_messages, compression   int32
    flags                       int32, the bits of entry_frame
    key_offsets, key_data       key n is key_data[key_offsets[n]:key_offsets[n + 1]] if `flags` have HAS_KEY
    compacted_offsets, compacted_indexes    int64 and int32, likewise
    """
    cdef readonly c_array.array broker_timestamp
    cdef readonly c_array.array index
    cdef readonly c_array.array publish_time
    cdef readonly c_array.array sequence_id
    cdef readonly c_array.array deliver_at_time
    cdef readonly c_array.array uncompressed_size
    cdef readonly c_array.array num_messages
    cdef readonly c_array.array compression
    cdef readonly c_array.array flags
    cdef readonly c_array.array key_offsets
    cdef readonly bytes key_data
    cdef readonly c_array.array compacted_offsets
    cdef readonly c_array.array compacted_indexes

    def __len__(self):
        return len(self.flags)

    def key(self, Py_ssize_t row):
        """The key's bytes as stored in the metadata; None if it has none."""
        if not 0 <= row < len(self.flags):
            raise IndexError(f"row {row} of {len(self.flags)}")
        if not self.flags.data.as_ints[row] & _HAS_KEY:
            return None
        return self.key_data[self.key_offsets.data.as_longlongs[row]:self.key_offsets.data.as_longlongs[row + 1]]


def metadata_columns(entries):
    """MetadataColumns of entries (bytes-like). Raises CorruptRecordError, whose `offset` is the row of the entry."""
    cdef tuple items = tuple(entries)
    cdef Py_ssize_t n = len(items)
    cdef MetadataColumns out = MetadataColumns.__new__(MetadataColumns)
    cdef Growing keys, compacted
    cdef Py_ssize_t row = 0
    keys.bytes = compacted.bytes = NULL
    keys.size = keys.capacity = compacted.size = compacted.capacity = 0
    out.broker_timestamp = c_array.clone(INT64S, n, False)
    out.index = c_array.clone(INT64S, n, False)
    out.publish_time = c_array.clone(INT64S, n, False)
    out.sequence_id = c_array.clone(INT64S, n, False)
    out.deliver_at_time = c_array.clone(INT64S, n, False)
    out.uncompressed_size = c_array.clone(INT64S, n, False)
    out.num_messages = c_array.clone(INT32S, n, False)
    out.compression = c_array.clone(INT32S, n, False)
    out.flags = c_array.clone(INT32S, n, False)
    out.key_offsets = c_array.clone(INT64S, n + 1, False)
    out.compacted_offsets = c_array.clone(INT64S, n + 1, False)
    try:
        for row in range(n):
            add_row(out, row, items[row], &keys, &compacted)
        out.key_offsets.data.as_longlongs[n] = keys.size
        out.compacted_offsets.data.as_longlongs[n] = compacted.size // <int64_t>sizeof(int32_t)
        out.key_data = PyBytes_FromStringAndSize(<const char*>keys.bytes, keys.size)
        out.compacted_indexes = c_array.clone(INT32S, compacted.size // <int64_t>sizeof(int32_t), False)
        if compacted.size:
            memcpy(out.compacted_indexes.data.as_chars, compacted.bytes, compacted.size)
    except CorruptRecordError as e:
        e.offset = row
        raise
    finally:
        free(keys.bytes)
        free(compacted.bytes)
    return out


cdef int add_row(
    MetadataColumns out, Py_ssize_t row, object data, Growing* keys, Growing* compacted
) except -1:
    cdef Py_buffer view
    cdef Span s
    cdef FrameView frame
    cdef BrokerFields broker
    cdef MessageFieldsView fields
    cdef int64_t key_size
    cdef int held = borrow(data, &s, &view)
    try:
        read_frame(&s, &frame)
        read_broker_fields(frame.broker, frame.start, &broker)
        read_message_fields(frame.metadata, frame.start, &fields)
        out.broker_timestamp.data.as_longlongs[row] = broker.timestamp
        out.index.data.as_longlongs[row] = broker.index
        out.publish_time.data.as_longlongs[row] = fields.publish_time
        out.sequence_id.data.as_longlongs[row] = fields.sequence_id
        out.deliver_at_time.data.as_longlongs[row] = fields.deliver_at_time
        out.uncompressed_size.data.as_longlongs[row] = fields.uncompressed_size
        out.num_messages.data.as_ints[row] = fields.num_messages
        out.compression.data.as_ints[row] = fields.compression
        out.flags.data.as_ints[row] = (
            fields.flags
            | (_HAS_BROKER_TIMESTAMP if broker.has_timestamp else 0)
            | (_HAS_INDEX if broker.has_index else 0)
        )
        out.key_offsets.data.as_longlongs[row] = keys.size
        out.compacted_offsets.data.as_longlongs[row] = compacted.size // <int64_t>sizeof(int32_t)
        if fields.flags & _HAS_KEY:
            key_size = fields.key.end - fields.key.p
            if room_for(keys, key_size) != OK:
                raise MemoryError
            if key_size:        # the pointer of an empty key may be NULL
                memcpy(keys.bytes + keys.size, fields.key.p, key_size)
            keys.size += key_size
        if fields.compacted_count:
            if room_for(compacted, fields.compacted_count * <int64_t>sizeof(int32_t)) != OK:
                raise MemoryError
            copy_compacted(frame.metadata, <int32_t*>(compacted.bytes + compacted.size))
            compacted.size += fields.compacted_count * <int64_t>sizeof(int32_t)
    finally:
        if held:
            PyBuffer_Release(&view)
    return 0
