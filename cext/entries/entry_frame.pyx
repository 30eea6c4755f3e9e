"""The frame of a Pulsar entry, and those fields of its metadata that hot paths read.

An entry is borrowed and never changed; its parts are returned as views. No size in it is trusted. The broker's part is
read, added and removed without reading the rest. To get all fields of the metadata, use protobuf (seglog.ledger.entry).
Layout: docs/formats/pulsar_entry.md.

Numbers are signed, as in Java: an unsigned 64-bit field above 2 ** 63 - 1 reads as negative.
"""
from array import array

from cpython cimport array as c_array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cimport cython

from seglog.errors import InvalidArgumentError

from .crc cimport update_crc32c
from .protobuf_span cimport skip_field, span_bytes, span_tag, span_uvarint, store_uvarint
from .span cimport Span, load_u16, load_u32, store_u16, store_u32
from .status cimport BAD_FIELD, BAD_SIZE, OK, SHORT, raise_status
from .window cimport Window

cdef enum:
    BROKER_MAGIC = 0x0E02       # Commands.magicBrokerEntryMetadata
    CHECKSUM_MAGIC = 0x0E01     # Commands.magicCrc32c
    BROKER_HEAD_BYTES = 6       # the magic and the size
    MAX_BROKER_FIELDS_BYTES = 22    # two tags, two varints

cdef enum:
    # Bits set while parsing, for the required fields producer_name, sequence_id and publish_time.
    REQUIRED = 7 << 16

HAS_BATCH = _HAS_BATCH                          # the payload is a batch, even if of one message
HAS_DELIVER_AT = _HAS_DELIVER_AT
HAS_KEY = _HAS_KEY
IS_ENCRYPTED = _IS_ENCRYPTED
HAS_MARKER = _HAS_MARKER                        # not a message, but the broker's own marker
IS_CHUNK = _IS_CHUNK                            # part of a message that was compressed as a whole
KEY_IS_BASE64 = _KEY_IS_BASE64                  # the producer's key is what base64 decodes to
HAS_BROKER_TIMESTAMP = _HAS_BROKER_TIMESTAMP
HAS_INDEX = _HAS_INDEX
HAS_UNCOMPRESSED_SIZE = _HAS_UNCOMPRESSED_SIZE
IS_NULL_VALUE = _IS_NULL_VALUE                  # the message deletes its key


# --- parsing -----------------------------------------------------------------------------

cdef inline int pass_broker_part(Span* s, Span* broker) noexcept nogil:
    """Skip [0x0e02][size][BrokerEntryMetadata], if present."""
    cdef uint32_t size
    broker.p = broker.end = NULL
    if s.end - s.p < 2 or load_u16(s.p) != BROKER_MAGIC:
        return OK
    if s.end - s.p < BROKER_HEAD_BYTES:
        return SHORT
    size = load_u32(s.p + 2)
    if size > s.end - s.p - BROKER_HEAD_BYTES:
        return BAD_SIZE
    broker.p = s.p + BROKER_HEAD_BYTES
    broker.end = broker.p + size
    s.p = broker.end
    return OK


cdef int parse_frame(Span* s, FrameView* out) noexcept nogil:
    """Find the parts of an entry that fills the span."""
    cdef uint32_t size
    cdef int rc
    out.start = s.p
    rc = pass_broker_part(s, &out.broker)
    if rc != OK:
        return rc
    out.headers = s.p
    out.has_checksum = s.end - s.p >= 2 and load_u16(s.p) == CHECKSUM_MAGIC
    out.checksum = 0
    if out.has_checksum:
        if s.end - s.p < 6:
            return SHORT
        out.checksum = load_u32(s.p + 2)
        s.p += 6
    out.covered = s.p
    if s.end - s.p < 4:
        return SHORT
    size = load_u32(s.p)
    if size > s.end - s.p - 4:
        return BAD_SIZE
    out.metadata.p = s.p + 4
    out.metadata.end = out.metadata.p + size
    s.p = out.metadata.end
    out.payload.p = s.p
    out.payload.end = s.end
    return OK


cdef int parse_broker_fields(Span* s, BrokerFields* out) noexcept nogil:
    cdef uint64_t tag, value
    cdef int rc
    out.timestamp = out.index = -1
    out.has_timestamp = out.has_index = False
    while s.p != s.end:
        rc = span_tag(s, &tag)
        if rc != OK:
            return rc
        if tag == 0x08 or tag == 0x10:
            rc = span_uvarint(s, &value)
            if rc != OK:
                return rc
            if tag == 0x08:
                out.timestamp = <int64_t>value
                out.has_timestamp = True
            else:
                out.index = <int64_t>value
                out.has_index = True
        else:
            rc = skip_field(s, tag)
            if rc != OK:
                return rc
    return OK


cdef inline int count_packed(Span packed, int64_t* count) noexcept nogil:
    cdef uint64_t ignored
    cdef int rc
    while packed.p != packed.end:
        rc = span_uvarint(&packed, &ignored)
        if rc != OK:
            return rc
        count[0] += 1
    return OK


cdef int parse_message_fields(Span* s, MessageFieldsView* out) noexcept nogil:
    """As in protobuf, fields may be in any order, and the last of several equal fields counts."""
    cdef uint64_t tag
    cdef uint64_t value = 0
    cdef Span inner
    cdef int32_t flags = 0
    cdef int rc
    memset(out, 0, sizeof(out[0]))
    out.num_messages = 1
    out.deliver_at_time = -1
    inner.p = inner.end = NULL
    while s.p != s.end:
        rc = span_tag(s, &tag)
        if rc != OK:
            return rc
        if tag & 7 == 0:
            rc = span_uvarint(s, &value)
        elif tag & 7 == 2:
            rc = span_bytes(s, &inner)
        else:
            rc = skip_field(s, tag)
        if rc != OK:
            return rc
        if tag == 1 << 3 | 2:               # producer_name
            flags |= 1 << 16
        elif tag == 2 << 3:
            out.sequence_id = <int64_t>value
            flags |= 2 << 16
        elif tag == 3 << 3:
            out.publish_time = <int64_t>value
            flags |= 4 << 16
        elif tag == 6 << 3 | 2:             # partition_key
            out.key = inner
            flags |= _HAS_KEY
        elif tag == 8 << 3:
            out.compression = <int32_t><uint32_t>value
        elif tag == 9 << 3:
            out.uncompressed_size = <uint32_t>value
            flags |= _HAS_UNCOMPRESSED_SIZE
        elif tag == 11 << 3:                # num_messages_in_batch
            out.num_messages = <int32_t><uint32_t>value
            flags |= _HAS_BATCH
        elif tag == 13 << 3 | 2:            # encryption_keys
            flags |= _IS_ENCRYPTED
        elif tag == 17 << 3:                # partition_key_b64_encoded
            flags = flags | _KEY_IS_BASE64 if value else flags & ~_KEY_IS_BASE64
        elif tag == 19 << 3:
            out.deliver_at_time = <int64_t>value
            flags |= _HAS_DELIVER_AT
        elif tag == 20 << 3:                # marker_type
            flags |= _HAS_MARKER
        elif tag == 25 << 3:                # null_value
            flags = flags | _IS_NULL_VALUE if value else flags & ~_IS_NULL_VALUE
        elif tag == 27 << 3:                # num_chunks_from_msg
            flags = flags | _IS_CHUNK if <int32_t><uint32_t>value > 1 else flags & ~_IS_CHUNK
        elif tag == 31 << 3:                # compacted_batch_indexes
            out.compacted_count += 1
        elif tag == 31 << 3 | 2:            # the same, packed
            rc = count_packed(inner, &out.compacted_count)
            if rc != OK:
                return rc
    if flags & REQUIRED != REQUIRED:
        return BAD_FIELD
    out.flags = flags & ~REQUIRED
    return OK


cdef void copy_compacted(Span s, int32_t* out) noexcept nogil:
    """Copy compacted_batch_indexes of metadata that parse_message_fields has checked; `out` has room for its count."""
    cdef uint64_t tag, value
    cdef Span inner
    while s.p != s.end:
        if span_tag(&s, &tag) != OK:
            return
        if tag == 31 << 3:
            if span_uvarint(&s, &value) != OK:
                return
            out[0] = <int32_t><uint32_t>value
            out += 1
        elif tag == 31 << 3 | 2:
            if span_bytes(&s, &inner) != OK:
                return
            while span_uvarint(&inner, &value) == OK:
                out[0] = <int32_t><uint32_t>value
                out += 1
        elif skip_field(&s, tag) != OK:
            return


# --- borrowing, and errors -----------------------------------------------------------------

cdef int borrow(object data, Span* s, Py_buffer* view) except -1:
    """Point `s` at the bytes of `data`. True if the caller must call give_back."""
    if PyBytes_CheckExact(data):
        s.p = <const uint8_t*>PyBytes_AS_STRING(data)
        s.end = s.p + PyBytes_GET_SIZE(data)
        return 0
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    s.p = <const uint8_t*>view.buf
    s.end = s.p + view.len
    return 1


cdef int refuse_frame(int status, const uint8_t* start, Span s, object file=None) except -1:
    """Raise the error: `s.p` is at the invalid part, a magic with its size or checksum, or the metadata's size."""
    cdef Py_ssize_t left = s.end - s.p
    cdef str part = "the metadata's size"
    cdef str found = f"{left} bytes are left"
    # Only the first part can be the broker's: elsewhere these bytes are the beginning of the metadata's size.
    if s.p == start and left >= 2 and load_u16(s.p) == BROKER_MAGIC:
        part = "the broker's part"
        if status == BAD_SIZE:
            found = f"{load_u32(s.p + 2)} bytes of it where {left - BROKER_HEAD_BYTES} are left"
    elif status == BAD_SIZE:
        part = "the metadata"
        found = f"{load_u32(s.p)} bytes of it where {left - 4} are left"
    elif left >= 2 and load_u16(s.p) == CHECKSUM_MAGIC:
        part = "the checksum"
    raise_status(status, s.p - start, -1, file, f"{part} of an entry: {found}")
    return 0


cdef int refuse_fields(int status, str message, const uint8_t* start, Span s, object file=None) except -1:
    cdef str detail = f"in {message}, {s.end - s.p} bytes before its end"
    if status == BAD_FIELD and s.p == s.end:
        detail = f"{message} needs producer_name, sequence_id and publish_time"
    raise_status(status, s.p - start, -1, file, detail)
    return 0


cdef int read_frame(Span* s, FrameView* frame, object file=None) except -1:
    cdef const uint8_t* start = s.p
    cdef int rc = parse_frame(s, frame)
    if rc != OK:
        refuse_frame(rc, start, s[0], file)
    return 0


cdef int read_broker_fields(Span s, const uint8_t* start, BrokerFields* fields, object file=None) except -1:
    cdef int rc
    if s.p == NULL:
        s.p = s.end = start
    rc = parse_broker_fields(&s, fields)
    if rc != OK:
        refuse_fields(rc, "BrokerEntryMetadata", start, s, file)
    return 0


cdef int read_message_fields(Span s, const uint8_t* start, MessageFieldsView* fields, object file=None) except -1:
    cdef int rc = parse_message_fields(&s, fields)
    if rc != OK:
        refuse_fields(rc, "MessageMetadata", start, s, file)
    return 0


# --- the broker's part alone -----------------------------------------------------------------

@cython.final
@cython.freelist(64)
cdef class _Rest:
    """The end of a bytes-like object, exported without a copy."""
    cdef Py_buffer view
    cdef Py_ssize_t skipped

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <char*>self.view.buf + self.skipped, self.view.len - self.skipped, 1, flags)


def strip(data):
    """A view of the entry without the broker's part, as consumers get it (PIP-70). Copies nothing; reads nothing else.

    Raises CorruptRecordError if the broker's part exceeds the entry.
    """
    cdef _Rest rest = _Rest.__new__(_Rest)
    cdef Span s, broker
    cdef int rc
    PyObject_GetBuffer(data, &rest.view, PyBUF_SIMPLE)
    s.p = <const uint8_t*>rest.view.buf
    s.end = s.p + rest.view.len
    rc = pass_broker_part(&s, &broker)
    if rc != OK:
        refuse_frame(rc, s.p, s)
    rest.skipped = s.p - <const uint8_t*>rest.view.buf
    return PyMemoryView_FromObject(rest)


def broker_fields(data):
    """(broker_timestamp, index) of the entry, None if missing; reads nothing else of it.

    Raises CorruptRecordError if the broker's part cannot be parsed.
    """
    cdef Py_buffer view
    cdef Span s, broker
    cdef BrokerFields fields
    cdef const uint8_t* start
    cdef int rc
    cdef int held = borrow(data, &s, &view)
    start = s.p
    try:
        rc = pass_broker_part(&s, &broker)
        if rc != OK:
            refuse_frame(rc, start, s)
        if broker.p == NULL:
            return (None, None)
        read_broker_fields(broker, start, &fields)
    finally:
        if held:
            PyBuffer_Release(&view)
    return (fields.timestamp if fields.has_timestamp else None, fields.index if fields.has_index else None)


def entry_timestamp(data):
    """The broker's time, else the publish time, in ms since 1970 (Commands.getEntryTimestamp).

    The message's metadata is parsed only if the broker stored no time. Raises CorruptRecordError.
    """
    cdef Py_buffer view
    cdef Span s, broker
    cdef BrokerFields fields
    cdef MessageFieldsView message
    cdef FrameView frame
    cdef const uint8_t* start
    cdef int rc
    cdef int held = borrow(data, &s, &view)
    start = s.p
    try:
        rc = pass_broker_part(&s, &broker)
        if rc != OK:
            refuse_frame(rc, start, s)
        if broker.p != NULL:
            read_broker_fields(broker, start, &fields)
            if fields.has_timestamp:
                return fields.timestamp
        s.p = start
        read_frame(&s, &frame)
        read_message_fields(frame.metadata, start, &message)
        return message.publish_time
    finally:
        if held:
            PyBuffer_Release(&view)


def put_broker_metadata(data, broker_timestamp=None, index=None):
    """The entry with the broker's part in front: [0x0e02][size][broker_timestamp 1, index 2].

    `broker_timestamp` in ms since 1970, `index` of the entry's last message; None leaves a field out. Raises
    InvalidArgumentError if the entry has a broker's part already, if both are None, and for negative numbers.
    """
    cdef uint8_t[BROKER_HEAD_BYTES + MAX_BROKER_FIELDS_BYTES] head
    cdef uint8_t* p = head + BROKER_HEAD_BYTES
    cdef Py_buffer view
    cdef Span s
    cdef bytes out
    cdef char* target
    cdef int64_t number
    cdef int held
    if broker_timestamp is None and index is None:
        raise InvalidArgumentError("a broker's part of neither a time nor an index says nothing")
    if broker_timestamp is not None:
        number = checked(broker_timestamp, "broker_timestamp")
        p[0] = 0x08
        p = store_uvarint(p + 1, <uint64_t>number)
    if index is not None:
        number = checked(index, "index")
        p[0] = 0x10
        p = store_uvarint(p + 1, <uint64_t>number)
    store_u16(head, BROKER_MAGIC)
    store_u32(head + 2, <uint32_t>(p - head - BROKER_HEAD_BYTES))
    held = borrow(data, &s, &view)
    try:
        if s.end - s.p >= 2 and load_u16(s.p) == BROKER_MAGIC:
            raise InvalidArgumentError("the entry begins with 0x0e02: it has a broker's part already")
        out = PyBytes_FromStringAndSize(NULL, (p - head) + (s.end - s.p))
        target = PyBytes_AS_STRING(out)
        memcpy(target, head, p - head)
        memcpy(target + (p - head), s.p, s.end - s.p)
    finally:
        if held:
            PyBuffer_Release(&view)
    return out


cdef int64_t checked(object number, str name) except -1:
    if not 0 <= number < 1 << 63:
        raise InvalidArgumentError(f"{name} is 0 to 2 ** 63 - 1, not {number}")
    return number


cdef c_array.array INT32S = array("i")


# --- one entry -------------------------------------------------------------------------------

@cython.final
cdef class MessageFields:
    """The fields of an entry's MessageMetadata that hot paths need. A copy, so the entry may be freed.

    `num_messages` is 1 if the payload is not a batch, `deliver_at_time` None if the message is not delayed;
    `key` is the key as stored, in base64 if `flags` have KEY_IS_BASE64.
    """
    cdef readonly uint64_t sequence_id
    cdef readonly uint64_t publish_time
    cdef readonly object deliver_at_time
    cdef readonly int64_t uncompressed_size
    cdef readonly int num_messages
    cdef readonly int compression
    cdef readonly int flags
    cdef readonly bytes key
    cdef readonly tuple compacted_indexes

    @property
    def is_batch(self):
        return self.flags & _HAS_BATCH != 0

    @property
    def is_encrypted(self):
        return self.flags & _IS_ENCRYPTED != 0

    @property
    def is_chunk(self):
        return self.flags & _IS_CHUNK != 0


cdef class EntryFrame:
    """The parts of an entry, as views into it. Raises CorruptRecordError if they do not fit the entry.

    `name`: the file that the entry comes from, for errors. The constructor reads only sizes: `fields` and
    `broker_fields` parse, `crc_is_valid` computes.
    """

    def __cinit__(self, data, name=None):
        cdef Span s
        self.window = Window(data, name)
        s.p = self.window.base
        s.end = s.p + self.window.size
        read_frame(&s, &self.frame, name)

    def __len__(self):
        return self.window.size

    @property
    def name(self):
        return self.window.name

    @property
    def has_broker_part(self):
        """Whether the entry begins with 0x0e02, even if the broker's part is empty."""
        return self.frame.broker.p != NULL

    @property
    def headers_pos(self):
        """The position of the producer's part: of its checksum, or else of its metadata's size."""
        return self.frame.headers - self.frame.start

    @property
    def payload_pos(self):
        return self.frame.payload.p - self.frame.start

    @property
    def checksum(self):
        """The stored CRC-32C; None if there is none."""
        return self.frame.checksum if self.frame.has_checksum else None

    def crc_is_valid(self):
        """Whether the checksum matches metadata and payload; it does not cover the broker's part. True if missing."""
        cdef uint32_t found
        cdef size_t size = self.frame.payload.end - self.frame.covered
        if not self.frame.has_checksum:
            return True
        with nogil:
            found = update_crc32c(0, self.frame.covered, size)
        return found == self.frame.checksum

    def raw(self):
        return memoryview(self.window)

    def without_broker_part(self):
        """What consumers get: checksum, metadata and payload, as a view."""
        return self.window.view(self.frame.headers, self.frame.payload.end - self.frame.headers)

    def broker_bytes(self):
        """BrokerEntryMetadata; empty if the broker's part is missing or empty."""
        return self.window.view(
            self.frame.headers - (self.frame.broker.end - self.frame.broker.p),
            self.frame.broker.end - self.frame.broker.p,
        )

    def metadata_bytes(self):
        """MessageMetadata, as a view."""
        return self.window.view(self.frame.metadata.p, self.frame.metadata.end - self.frame.metadata.p)

    def payload(self):
        """The payload as stored: compressed, encrypted."""
        return self.window.view(self.frame.payload.p, self.frame.payload.end - self.frame.payload.p)

    def broker_fields(self):
        """(broker_timestamp, index), None if missing. Raises CorruptRecordError."""
        cdef BrokerFields fields
        read_broker_fields(self.frame.broker, self.frame.start, &fields, self.window.name)
        return (fields.timestamp if fields.has_timestamp else None, fields.index if fields.has_index else None)

    def fields(self):
        """The fields of MessageMetadata that hot paths need. Raises CorruptRecordError."""
        cdef MessageFieldsView view
        cdef MessageFields fields
        cdef c_array.array compacted
        read_message_fields(self.frame.metadata, self.frame.start, &view, self.window.name)
        fields = MessageFields.__new__(MessageFields)
        fields.sequence_id = <uint64_t>view.sequence_id
        fields.publish_time = <uint64_t>view.publish_time
        fields.deliver_at_time = view.deliver_at_time if view.flags & _HAS_DELIVER_AT else None
        fields.uncompressed_size = view.uncompressed_size
        fields.num_messages = view.num_messages
        fields.compression = view.compression
        fields.flags = view.flags
        if view.flags & _HAS_KEY:
            fields.key = PyBytes_FromStringAndSize(<const char*>view.key.p, view.key.end - view.key.p)
        fields.compacted_indexes = ()
        if view.compacted_count:
            compacted = c_array.clone(INT32S, view.compacted_count, False)
            copy_compacted(self.frame.metadata, <int32_t*>compacted.data.as_ints)
            fields.compacted_indexes = tuple(compacted)
        return fields
