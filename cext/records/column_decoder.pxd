"""Columns in C, and the decoder that fills them from batches. See column_decoder.pyx and seg_columns.h."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from .batch_header cimport BatchHeader

cdef extern from "seg_columns.h" nogil:
    int SEG_SLACK
    # Columns that are not decoded, for seg_columns.without: their memory is not touched.
    int SEG_KEY
    int SEG_VALUE
    int SEG_HEADERS
    # In the same field: keys and values are views of `source`, the batches as stored. Needs SEG_HEADERS.
    int SEG_VIEWS

    ctypedef struct seg_view:
        pass

    ctypedef struct seg_binary:
        int32_t* offsets
        seg_view* views
        uint8_t* data
        uint8_t* validity
        int64_t bytes
        int64_t capacity
        int64_t null_count

    ctypedef struct seg_columns:
        int32_t without
        int64_t rows
        int64_t row_capacity
        int64_t* offset
        int64_t* timestamp
        int32_t* header_start
        seg_binary key
        seg_binary value
        int64_t header_rows
        int64_t header_capacity
        seg_binary header_key
        seg_binary header_value
        uint8_t* source
        int64_t source_bytes
        int32_t is_mapped

    # Remove the rows from `rows` on.
    void seg_columns_cut(seg_columns* c, int64_t rows)
    # How many of the timestamps are missing (-1); if any are, a validity bitmap of all.
    int64_t seg_mark_none(const int64_t* timestamp, int64_t rows, uint8_t* validity)

cdef enum:
    # Every offset into a column is an int32, and a column cannot hold more than the bodies that it was decoded from, so
    # one limit on their sum keeps all of them below 2^31.
    MAX_CONTENT_BYTES = 0x7FFF0000

# Results besides Status: the caller resolves the named problem, and calls again.
cdef enum:
    NEEDS_DECOMPRESSION = 1
    NEEDS_HEADER_SPACE = 2

cdef struct Run:
    seg_columns* c
    const BatchHeader* rows         # of the table
    const BatchHeader* begin        # the row where the caller's range began
    const uint8_t* bytes            # of its window
    int64_t size
    int64_t batch                   # the next one, an index into `rows`
    int64_t last
    int64_t content_bytes           # the size of the bodies decoded so far
    int64_t stop_bytes              # no batch is begun once content_bytes reaches this
    bint check_crc
    bint include_control

# Decode batches until the last, or stop_bytes, or one that needs the GIL: OK, the results above, NO_SPACE (rows or
# bytes for the next batch), LIMIT (it would exceed MAX_CONTENT_BYTES), or what is wrong with it.
cdef int decode_run(Run* run) noexcept nogil

# Append the records of one opened batch: a v2 batch's body [p, end), after which `safe` - `end` more bytes are
# readable; or a wrapper's messages, with `count` and `base` from find_inner_base. If not OK, the caller removes the new
# rows.
cdef int take_records(seg_columns* c, const uint8_t* p, const uint8_t* end, const uint8_t* safe,
                      const BatchHeader* row) noexcept nogil
cdef int take_inner_messages(seg_columns* c, const uint8_t* p, const uint8_t* end, int64_t count, int64_t base,
                             const BatchHeader* wrapper) noexcept nogil

# Do the offsets of the rows from `first` on, which are one batch's, increase, and lie in the batch? A wrapper's must
# also be above the batch before it, if there is one since `begin`. OK, OFFSET_BACK or OFFSET_RANGE.
cdef int check_offsets(
    const seg_columns* c, int64_t first, const BatchHeader* row, const BatchHeader* begin
) noexcept nogil
