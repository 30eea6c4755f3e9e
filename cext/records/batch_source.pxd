"""The records of one batch of any format, opened, inspected and then read one by one. Borrows its bytes."""
from libc.stdint cimport int8_t, int64_t, uint8_t

from .batch_header cimport CODEC_NONE, BatchHeader, codec_of
from .legacy_records cimport parse_inner_message, parse_message
from .record_batch cimport parse_record_v2
from .record_view cimport RecordView
from .span cimport Span


cdef struct Source:
    const BatchHeader* row
    const uint8_t* raw              # the batch's own bytes
    Span records                    # still to come; the opener sets it
    const uint8_t* readable_end     # of the memory they lie in
    int64_t left                    # how many; `inspect` sets this and what follows
    int64_t inner_base              # of a wrapper
    bint has_null_value             # among all of them


# The next record. Does not count `left` down.
cdef inline int parse_next(Source* source, RecordView* record) noexcept nogil:
    cdef int8_t magic = 0
    cdef uint8_t attributes = 0
    if source.row.magic == 2:
        return parse_record_v2(&source.records, source.row, record)
    if codec_of(source.row) == CODEC_NONE:
        return parse_message(&source.records, record, &magic, &attributes)
    return parse_inner_message(&source.records, source.row, source.inner_base, record)


# Parse all of them, so that a batch is converted whole or not at all: OK, or what is wrong with it.
# Beyond what parsing checks, offsets must rise and lie within their batch, and nothing may follow the last.
cdef int inspect(Source* source) noexcept nogil
