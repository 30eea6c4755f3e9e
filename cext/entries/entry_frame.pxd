from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from .span cimport Span
from .window cimport Window


# The parts of an entry, inside a span that somebody else keeps alive. Layout: docs/formats/pulsar_entry.md.
cdef struct FrameView:
    const uint8_t* start
    const uint8_t* headers      # where the producer's part begins: behind the broker's, or at `start`
    Span broker                 # BrokerEntryMetadata; p is NULL where there is none
    bint has_checksum
    uint32_t checksum
    const uint8_t* covered      # where the bytes begin that the checksum is of; they end with the entry
    Span metadata               # MessageMetadata
    Span payload


# The bits of `flags`. Python knows them without the underscore.
cdef enum:
    _HAS_BATCH = 1
    _HAS_DELIVER_AT = 2
    _HAS_KEY = 4
    _IS_ENCRYPTED = 8
    _HAS_MARKER = 16
    _IS_CHUNK = 32
    _KEY_IS_BASE64 = 64
    _HAS_BROKER_TIMESTAMP = 128
    _HAS_INDEX = 256
    _HAS_UNCOMPRESSED_SIZE = 512
    _IS_NULL_VALUE = 1024


# BrokerEntryMetadata. -1: not there. Numbers are Java's, signed.
cdef struct BrokerFields:
    int64_t timestamp
    int64_t index
    bint has_timestamp
    bint has_index


# What hot paths need of MessageMetadata.
cdef struct MessageFieldsView:
    int64_t sequence_id
    int64_t publish_time
    int64_t deliver_at_time     # where flags have HAS_DELIVER_AT
    int64_t uncompressed_size
    int32_t num_messages
    int32_t compression         # the number that stands there, known or not
    int32_t flags
    int64_t compacted_count
    Span key                    # where flags have HAS_KEY


# All three leave `out` in any state when they fail. `s` is where they stopped.
cdef int parse_frame(Span* s, FrameView* out) noexcept nogil
cdef int parse_broker_fields(Span* s, BrokerFields* out) noexcept nogil
cdef int parse_message_fields(Span* s, MessageFieldsView* out) noexcept nogil

# compacted_batch_indexes of metadata that parse_message_fields took; `out` has room for all that it counted.
cdef void copy_compacted(Span s, int32_t* out) noexcept nogil

# Point `s` at the bytes of `data`; 1 where `view` is to be released by the caller.
cdef int borrow(object data, Span* s, Py_buffer* view) except -1
# The parsers above with CorruptRecordError; `start`: of the entry, for the error's position.
cdef int read_frame(Span* s, FrameView* frame, object file=*) except -1
cdef int read_broker_fields(Span s, const uint8_t* start, BrokerFields* fields, object file=*) except -1
cdef int read_message_fields(Span s, const uint8_t* start, MessageFieldsView* fields, object file=*) except -1


cdef class EntryFrame:
    cdef Window window
    cdef FrameView frame
