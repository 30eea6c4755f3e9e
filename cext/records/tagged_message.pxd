"""Messages of the tagged dialect: the first of the two proposals, with a list of tags in each message.

See docs/formats/tagged_message.md. The magic byte is 1, as in v1, which is another format. The bytes do not reveal the
difference, so a Window says which it holds (Window.is_tagged), and a BatchHeader of the dialect has TAGGED_MAGIC.

    offset int64, size int32, crc uint32 (CRC-32 from magic on), magic int8 = 1, attributes int8,
    timestamp uint32 (s), tags_size int32 (-1: none), tag*, key_size int32, key, value_size int32, value

    wrapper's offset      that of its FIRST message
    inner offset          relative to that, with gaps after compaction. If the wrapper's tag HONOUR_OFFSETS is 0:
                          the wrapper's offset + the number of messages before it
    inner timestamp       its own, or the wrapper's under LogAppendTime
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from .batch_header cimport BatchHeader, parse_header
from .record_view cimport RecordView
from .span cimport Span, load_i32, load_u32
from .status cimport BAD_TAG, OK
from .window cimport Window

cdef enum:
    TAGGED_HEADER_SIZE = 26     # up to the tags: by chance the same as v1's
    MIN_TAGGED_SIZE = 34        # plus two size fields
    TIMESTAMP_POS = 18
    TAGS_SIZE_POS = 22

# The id of a tag determines the width of its value.
cdef enum:
    FIRST_INT64 = 0
    FIRST_INT32 = 32
    FIRST_INT8 = 64
    FIRST_BYTES = 96            # int32 length, then this many bytes

cdef enum Tag:
    TAG_BROKER_MS = 0
    TAG_LARGEST_MS = 1
    TAG_COUNT = 32
    TAG_LAST_DELTA = 33         # ours: the last relative offset of a wrapper
    TAG_HONOUR_OFFSETS = 64
    TAG_NO_KEYS = 65
    TAG_TIMESTAMP_TYPE = 66

# Low four bits of the attributes: a codec, or the type of a control message.
cdef enum:
    TYPE_MASK = 0x0F
    TYPE_LEADER_EPOCH = 8
    TYPE_START_TRANSACTION = 9
    TYPE_COMMIT = 10
    TYPE_ABORT = 11

# Bits of BatchHeader.attributes for what v2's bits cannot express. TIME_BOUND_BIT, in batch_header.pxd, is the third:
# max_timestamp is the largest of all its messages.
cdef enum:
    CONTIGUOUS_BIT = 0x100      # inner offsets follow from the wrapper's
    OPEN_END_BIT = 0x200        # a wrapper whose last offset is unknown until it is opened: last_offset is too low
    CONTROL_TYPE_SHIFT = 11     # two bits: the control message's type - TYPE_LEADER_EPOCH


# The tags of a message. A missing tag has its default, and no bit in `known`.
cdef struct Tags:
    int64_t broker_ms
    int64_t largest_ms
    int32_t count
    int32_t last_delta
    uint8_t honours_offsets
    uint8_t has_no_keys
    uint8_t timestamp_type
    uint8_t known               # bit i: the i-th of the seven above, in their order in `Tag`

cdef enum:
    KNOWS_BROKER_MS = 1
    KNOWS_LARGEST_MS = 2
    KNOWS_COUNT = 4
    KNOWS_LAST_DELTA = 8
    KNOWS_HONOUR_OFFSETS = 16
    KNOWS_NO_KEYS = 32
    KNOWS_TIMESTAMP_TYPE = 64


# The tags of a message whose header has been parsed.
cdef inline Span stored_tags(const uint8_t* message) noexcept nogil:
    cdef const uint8_t* first = message + TAGGED_HEADER_SIZE
    return Span(first, first + max(load_i32(message + TAGS_SIZE_POS), 0))


# The next tag of a list: its id, and the position of its value. OK or BAD_TAG.
cdef inline int parse_tag(Span* s, int* tag, const uint8_t** value, int32_t* size) noexcept nogil:
    cdef int64_t left = s.end - s.p
    cdef uint32_t length
    if left < 1 or s.p[0] >= 128:
        return BAD_TAG
    tag[0] = s.p[0]
    value[0] = s.p + 1
    left -= 1
    if tag[0] < FIRST_INT32:
        size[0] = 8
    elif tag[0] < FIRST_INT8:
        size[0] = 4
    elif tag[0] < FIRST_BYTES:
        size[0] = 1
    else:
        if left < 4:
            return BAD_TAG
        length = load_u32(s.p + 1)
        value[0] += 4
        left -= 4
        if length > left:
            return BAD_TAG
        size[0] = <int32_t>length
    if size[0] > left:
        return BAD_TAG
    s.p = value[0] + size[0]
    return OK


# Parse the whole list, [s.p, s.end), with each id at most once. OK or BAD_TAG.
cdef int parse_tags(const Span* list_, Tags* out) noexcept nogil

# Like parse_header, for this dialect. A wrapper that does not store its last offset gets OPEN_END_BIT.
cdef int parse_tagged_header(const uint8_t* bytes, int64_t size, int64_t position, BatchHeader* out) noexcept nogil

# One complete message, from its offset on. Moves past it if OK; takes the offset as stored; does not check the CRC.
cdef int parse_tagged(Span* s, RecordView* out, uint8_t* attributes, Tags* tags) noexcept nogil

# The next message of an opened wrapper. `base`: added to its offset; advances if offsets are contiguous.
cdef int parse_inner_tagged(Span* s, const BatchHeader* wrapper, int64_t* base, RecordView* out) noexcept nogil


# The header at `position` of a window, in the window's format.
cdef inline int header_in(Window window, int64_t size, int64_t position, BatchHeader* out) noexcept nogil:
    if window.is_tagged:
        return parse_tagged_header(window.base, size, position, out)
    return parse_header(window.base, size, position, out)
