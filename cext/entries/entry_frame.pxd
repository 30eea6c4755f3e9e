from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from .span cimport Span
from .window cimport Window


# The parts of an entry, in bytes that the caller keeps alive. Layout: docs/formats/pulsar_entry.md.
cdef struct FrameView:
    const uint8_t* start
    const uint8_t* headers      # beginning of the producer's part: after the broker's, or `start`
    Span broker                 # BrokerEntryMetadata; p is NULL if it has none
    bint has_checksum
    uint32_t checksum
    const uint8_t* covered      # beginning of the bytes that the checksum covers; they end with the entry
    Span metadata               # MessageMetadata
    Span payload


# The bits of `flags`. Their Python names have no underscore.
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


# BrokerEntryMetadata. -1: missing. Numbers are signed, as in Java.
cdef struct BrokerFields:
    int64_t timestamp
    int64_t index
    bint has_timestamp
    bint has_index


# The fields of MessageMetadata that hot paths need.
cdef struct MessageFieldsView:
    int64_t sequence_id
    int64_t publish_time
    int64_t deliver_at_time     # if flags have HAS_DELIVER_AT
    int64_t uncompressed_size
    int32_t num_messages
    int32_t compression         # the stored number, known or not
    int32_t flags
    int64_t compacted_count
    Span key                    # if flags have HAS_KEY


# If they fail, all three leave `out` in an undefined state, and `s` at the point of the error.
cdef int parse_frame(Span* s, FrameView* out) noexcept nogil
cdef int parse_broker_fields(Span* s, BrokerFields* out) noexcept nogil
cdef int parse_message_fields(Span* s, MessageFieldsView* out) noexcept nogil

# Copies compacted_batch_indexes from metadata that parse_message_fields has checked; `out` has room for its count.
cdef void copy_compacted(Span s, int32_t* out) noexcept nogil

# Point `s` at the bytes of `data`; returns 1 if the caller must release `view`.
cdef int borrow(object data, Span* s, Py_buffer* view) except -1
# These call the parsers above, and raise CorruptRecordError; `start` of the entry gives the error's position.
cdef int read_frame(Span* s, FrameView* frame, object file=*) except -1
cdef int read_broker_fields(Span s, const uint8_t* start, BrokerFields* fields, object file=*) except -1
cdef int read_message_fields(Span s, const uint8_t* start, MessageFieldsView* fields, object file=*) except -1


cdef class EntryFrame:
    cdef Window window
    cdef FrameView frame
