"""The records of one batch of any format: opened, inspected, then read one by one. Borrows the bytes."""
from libc.stdint cimport int64_t, uint8_t

from .batch_attributes cimport hides_last_offset
from .batch_header cimport CODEC_MASK, CODEC_NONE, TAGGED_MAGIC, V2_HEADER_SIZE, BatchHeader, codec_of
from .legacy_records cimport find_inner_base, parse_bare_message, parse_inner_message
from .batch_payload cimport check_count
from .record_batch cimport check_record_headers, parse_record_v2
from .record_view cimport RecordView
from .span cimport Span
from .status cimport OFFSET_BACK, OFFSET_RANGE, OK


cdef struct Source:
    const BatchHeader* row
    const uint8_t* raw              # the batch's own bytes
    Span records                    # the remaining ones; the opener sets it
    const uint8_t* readable_end     # of the memory that holds them
    int64_t left                    # how many remain; `count_records` sets this and `inner_base`
    int64_t inner_base              # for a wrapper
    bint has_null_value             # among all of them; `inspect` sets it


# Open a batch without a codec, whose records are read in place: in a window of [bytes, end).
cdef inline void open_plain(
    Source* source, const BatchHeader* row, const uint8_t* bytes, const uint8_t* end
) noexcept nogil:
    source.row = row
    source.raw = bytes + row.position
    source.records.p = source.raw + (V2_HEADER_SIZE if row.magic == 2 else 0)
    source.records.end = source.raw + row.size_bytes
    source.readable_end = end


# Count the records of an opened batch, and find the wrapper's base, for parse_next.
cdef inline int count_records(Source* source) noexcept nogil:
    if source.row.magic == 2:
        source.left = source.row.count
        return check_count(source.row, &source.records)
    if codec_of(source.row) == CODEC_NONE:
        source.left = 1
        return OK
    return find_inner_base(&source.records, source.row, &source.inner_base, &source.left)


# The next record. Does not decrement `left`.
cdef inline int parse_next(Source* source, RecordView* record) noexcept nogil:
    if source.row.magic == 2:
        return parse_record_v2(&source.records, source.row, record)
    if codec_of(source.row) == CODEC_NONE:
        return parse_bare_message(&source.records, source.row, record)
    return parse_inner_message(&source.records, source.row, &source.inner_base, record)


# Whether a v2 record lies within its batch, and its headers are complete.
cdef inline int check_placed(const BatchHeader* row, const RecordView* record) noexcept nogil:
    if record.offset < row.base_offset or record.offset > row.last_offset:
        return OFFSET_RANGE
    return check_record_headers(record) if record.header_count else OK


# The i-th record: within its batch, with complete headers, and above `previous`, the offset before it.
cdef inline int next_in_order(Source* source, int64_t i, int64_t previous, RecordView* record) noexcept nogil:
    cdef int status = parse_next(source, record)
    if status == OK and source.row.magic == 2:
        status = check_placed(source.row, record)
    if status == OK and i > 0 and record.offset <= previous:
        status = OFFSET_BACK
    return status


# Whether a record is above the one before it in its batch, lies within the batch, and has complete headers.
cdef inline int check_order(const BatchHeader* row, const RecordView* record, int64_t previous) noexcept nogil:
    if record.offset <= previous:
        return OFFSET_RANGE if record.offset < 0 else <int>OFFSET_BACK
    return check_placed(row, record) if row.magic == 2 else <int>OK


# Whether a batch may end with this record. A wrapper has the offset of its last message, and no checksum covers it; a
# tagged one ends at the offset that it states, even if that message is gone.
cdef inline int check_last(const BatchHeader* row, int64_t last) noexcept nogil:
    if row.magic == TAGGED_MAGIC and last < row.last_offset:
        return OK
    if row.magic == 2 or row.attributes & CODEC_MASK == 0 or last == row.last_offset:
        return OK
    return OK if hides_last_offset(row) else <int>OFFSET_RANGE


# Parse all records first, so that a batch is converted as a whole or not at all: OK, or what is wrong with it.
# Besides parsing, offsets must rise and lie within their batch, and nothing may follow the last record.
cdef int inspect(Source* source) noexcept nogil
