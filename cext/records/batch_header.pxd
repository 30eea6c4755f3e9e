"""The first bytes of a batch, parsed into one struct for every format version.

In v0 and v1 each message is a batch of its own: a bare message holds one record; a wrapper (codec bits set) holds a
compressed message set and carries the offset of its LAST record.
See docs/formats/record_batch.md and docs/formats/message.md.
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from .span cimport load_i32
from .status cimport BAD_SIZE, OK, SHORT, ZEROS

# Where the fields of a header are. format/batch_layout.py has the same names for code in Python, and
# tests/format/test_batch_layout.py compares the two.
cdef enum:                      # all formats; the offset is at 0
    SIZE_POS = 8                # four bytes: how many follow them
    LOG_OVERHEAD = 12           # offset and size, which `size` does not count
    MAGIC_POS = 16

cdef enum:                      # v2: a batch
    LEADER_EPOCH_POS = 12
    CRC_POS = 17
    ATTRIBUTES_POS = 21         # two bytes; the CRC covers everything from here on
    LAST_OFFSET_DELTA_POS = 23
    BASE_TIMESTAMP_POS = 27
    MAX_TIMESTAMP_POS = 35
    PRODUCER_ID_POS = 43
    PRODUCER_EPOCH_POS = 51
    BASE_SEQUENCE_POS = 53
    COUNT_POS = 57

cdef enum:                      # v0, v1 and tagged messages; their CRC covers everything from the magic on
    MESSAGE_CRC_POS = 12
    MESSAGE_ATTRIBUTES_POS = 17     # one byte
    MESSAGE_TIMESTAMP_POS = 18  # v1

cdef enum:
    V0_HEADER_SIZE = 18         # up to the key size: offset, size, crc, magic, attributes
    V1_HEADER_SIZE = 26         # the same plus the timestamp
    V2_HEADER_SIZE = 61
    MIN_V0_SIZE = 26            # V0_HEADER_SIZE plus two size fields
    MIN_V1_SIZE = 34
    MIN_V2_RECORD_SIZE = 7      # length, attributes, two deltas, two sizes, header count

cdef enum:
    CODEC_MASK = 0x07
    TIMESTAMP_TYPE_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40

# BatchHeader.magic of the tagged dialect; the byte itself is 1. Treated like v0 and v1: messages and wrappers.
# tagged_message.pxd describes it, and its attributes.
cdef enum:
    TAGGED_MAGIC = -1
    TIME_BOUND_BIT = 0x400

cdef enum Codec:
    CODEC_NONE = 0
    CODEC_GZIP = 1
    CODEC_SNAPPY = 2
    CODEC_LZ4 = 3
    CODEC_ZSTD = 4


cdef struct BatchHeader:
    int64_t position            # of the first byte, in the window
    int64_t size_bytes          # of the whole batch, LOG_OVERHEAD included
    int64_t base_offset         # v2: the header's. v0, v1: the outer offset, same as last_offset
    int64_t last_offset
    int64_t base_timestamp      # v2: the header's (with DELETE_HORIZON_BIT the horizon). v1: the message's. v0: -1
    int64_t max_timestamp       # v2: the header's. v1: the message's. v0: -1
    int64_t producer_id         # -1 below v2, like the next three
    int32_t leader_epoch
    int32_t base_sequence
    int32_t count               # -1 below v2, where a wrapper must be opened to count
    uint32_t crc
    int16_t producer_epoch
    int16_t attributes
    int8_t magic


cdef inline int codec_of(const BatchHeader* header) noexcept nogil:
    return header.attributes & CODEC_MASK


# Is no record of the batch later than max_timestamp? Unknown for a wrapper that was not opened: v0 has no timestamps
# and may hold v1 messages, and brokers before 0.10.1 stored any time that the producer gave its wrapper.
cdef inline bint bounds_time(const BatchHeader* header) noexcept nogil:
    if header.magic == 2 or header.attributes & CODEC_MASK == 0:
        return True
    if header.magic == TAGGED_MAGIC:
        return header.attributes & TIME_BOUND_BIT != 0
    return header.magic == 1 and header.attributes & TIMESTAMP_TYPE_BIT != 0


# Whether this is a wrapper of v0 or v1: until it is opened, only its last offset is known.
cdef inline bint hides_first_offset(const BatchHeader* header) noexcept nogil:
    return header.magic & ~1 == 0 and header.attributes & CODEC_MASK != 0


# No batch begins with 61 zero bytes, but a preallocated file has zeros after its last batch.
cdef bint starts_with_zeros(const uint8_t* p, int64_t size) noexcept nogil

# The size in bytes, at least `least`, of the batch at `position` of bytes[0..size), from its size field. OK, or SHORT
# if the bytes end before the batch, ZEROS, BAD_SIZE.
cdef inline int parse_size(
    const uint8_t* bytes, int64_t size, int64_t position, int64_t least, int64_t* size_bytes
) noexcept nogil:
    cdef int64_t rest = size - position
    cdef int64_t length
    if position < 0 or rest <= 0:
        return SHORT
    # In the order of Kafka's FileLogInputStream: fewer bytes than reach past the magic byte are no batch.
    # (They cannot reveal a preallocated tail either: the offset of a real batch begins with zero bytes.)
    if rest <= MAGIC_POS:
        return SHORT
    length = load_i32(bytes + position + SIZE_POS)
    if length < least - LOG_OVERHEAD:
        return ZEROS if length == 0 and starts_with_zeros(bytes + position, rest) else <int>BAD_SIZE
    if length > rest - LOG_OVERHEAD:
        return SHORT
    size_bytes[0] = length + LOG_OVERHEAD
    return OK


# The end of the message that begins at `p`, from its size field, `least` bytes at least. OK, SHORT or BAD_SIZE.
cdef inline int find_message_end(
    const uint8_t* p, const uint8_t* end, int64_t least, const uint8_t** message_end
) noexcept nogil:
    cdef int32_t size
    if end - p <= MAGIC_POS:
        return SHORT
    size = load_i32(p + SIZE_POS)
    if size < least - LOG_OVERHEAD:
        return BAD_SIZE
    if size > end - p - LOG_OVERHEAD:
        return SHORT
    message_end[0] = p + LOG_OVERHEAD + size
    return OK


# Parse the header at `position` of bytes[0..size). OK, or SHORT if the bytes end before the batch, ZEROS, BAD_SIZE,
# BAD_MAGIC, BAD_COUNT. Checks structure, not the CRC.
cdef int parse_header(const uint8_t* bytes, int64_t size, int64_t position, BatchHeader* out) noexcept nogil

# The correct CRC, and whether the stored one matches. The batch must lie within the bytes (parse_header returned OK).
cdef uint32_t compute_crc(const uint8_t* bytes, const BatchHeader* header) noexcept nogil
cdef bint crc_matches(const uint8_t* bytes, const BatchHeader* header) noexcept nogil
