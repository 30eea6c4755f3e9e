from libc.stdint cimport int64_t, uint8_t

from .column_decoder cimport seg_binary, seg_columns

# Place all columns except those of headers. With SEG_VIEWS, keys and values are views, and their source has room if it
# is a copy. Returns the size in bytes; base NULL: only measures.
cdef int64_t lay_out(uint8_t* base, int64_t rows, int64_t content_bytes, seg_columns* c,
                     uint8_t** timestamp_validity) noexcept nogil
cdef int64_t lay_out_headers(uint8_t* base, int64_t rows, int64_t content_bytes, seg_columns* c) noexcept nogil

# If an arena is larger than the `size` of these rows and bytes, raise both in proportion. Not to all of it if little is
# needed: columns far apart would each touch a huge page.
cdef void use_up(int64_t arena_size, int64_t size, int64_t* rows, int64_t* content_bytes) noexcept nogil

# Copy a column's contents to its new place.
cdef void move_binary(seg_binary* to, const seg_binary* from_, int64_t rows, int64_t row_capacity) noexcept nogil
