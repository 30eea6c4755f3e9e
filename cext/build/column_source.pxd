"""Records as columns in borrowed memory: Arrow arrays, or buffers. See column_source.pyx."""
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from .arrow_c cimport ArrowArray, ArrowSchema


# A column of byte strings. Row i is [offset i, offset i + 1) of `data`; take_field checks that it is.
cdef struct BinarySource:
    const int32_t* narrow       # the offsets, in one of two widths; if both are NULL, every row is null
    const int64_t* wide
    const uint8_t* data
    int64_t data_bytes
    const uint8_t* validity     # one bit per row, set if not null; NULL: no row is null
    int64_t validity_from       # the bit of row 0
    # Instead of offsets: contiguous rows of `width` bytes each in `data` (-1: not so). Or objects: `pointers` to their
    # bytes, and `sizes` in bytes, -1 for null; `data` is then NULL.
    int64_t width
    const uint8_t** pointers
    int32_t* sizes
    int64_t content_bytes       # of these objects

# The headers of all rows: row i has those from start i to start i + 1.
cdef struct HeaderSource:
    const int32_t* narrow       # the starts; if both are NULL, no row has headers
    const int64_t* wide
    int64_t rows                # the number of headers
    const uint8_t* validity     # of the lists: a null list has no headers
    int64_t validity_from
    BinarySource key
    BinarySource value


cdef inline bint is_null(const uint8_t* validity, int64_t bit) noexcept nogil:
    return validity != NULL and not validity[bit >> 3] >> (bit & 7) & 1


# What is wrong with a row; besides Status, whose codes are not positive.
cdef enum:
    BAD_OFFSETS = 1
    TOO_LARGE = 2


# The bytes of one row; size -1: null. OK, BAD_OFFSETS if they are not within `data`, TOO_LARGE beyond int32.
cdef inline int take_field(
    const BinarySource* column, int64_t row, const uint8_t** bytes, int32_t* size
) noexcept nogil:
    cdef int64_t start, end
    bytes[0] = NULL
    size[0] = -1
    if is_null(column.validity, column.validity_from + row):
        return 0
    if column.narrow != NULL:
        start = column.narrow[row]
        end = column.narrow[row + 1]
    elif column.wide != NULL:
        start = column.wide[row]
        end = column.wide[row + 1]
    elif column.pointers != NULL:
        bytes[0] = column.pointers[row]
        size[0] = column.sizes[row]
        return 0
    elif column.width >= 0:
        start = row * column.width      # data_bytes is rows * width: checked when it was taken
        end = start + column.width
    else:
        return 0
    if start < 0 or end < start or end > column.data_bytes:
        return BAD_OFFSETS
    if end - start > INT32_MAX:
        return TOO_LARGE
    bytes[0] = column.data + start
    size[0] = <int32_t>(end - start)
    return 0


# The headers [start, end) of one row. OK or BAD_OFFSETS.
cdef inline int take_headers(const HeaderSource* headers, int64_t row, int64_t* start, int64_t* end) noexcept nogil:
    start[0] = end[0] = 0
    if is_null(headers.validity, headers.validity_from + row):
        return 0
    if headers.narrow != NULL:
        start[0] = headers.narrow[row]
        end[0] = headers.narrow[row + 1]
    elif headers.wide != NULL:
        start[0] = headers.wide[row]
        end[0] = headers.wide[row + 1]
    if start[0] < 0 or end[0] < start[0] or end[0] > headers.rows:
        return BAD_OFFSETS
    return 0


cdef class ColumnSource:
    cdef int64_t rows
    cdef BinarySource key
    cdef BinarySource value
    cdef HeaderSource headers
    cdef const int64_t* timestamps          # NULL: none were given
    cdef const uint8_t* timestamp_validity
    cdef int64_t timestamp_validity_from
    cdef object _timestamp                  # one timestamp for all rows, or None
    cdef list _owners                       # keep the memory alive
    cdef bint _has_rows

    cdef int64_t content_bytes(self) noexcept
    cdef int _take_mapping(self, object columns) except -1
    cdef int _take_struct(self, object capsules) except -1
    cdef int _take_column(self, str name, object column) except -1
    cdef int _take_child(self, str name, const ArrowSchema* schema, const ArrowArray* array, int64_t first,
                         int64_t rows) except -1
    cdef int _take_buffers(self, str name, BinarySource* out, tuple column) except -1
    cdef int _take_timestamps(self, object column) except -1
    cdef int _take_matrix(self, str name, BinarySource* out, object view) except -1
    cdef int _take_objects(self, str name, BinarySource* out, object column) except -1
    cdef int _take_lists(self, object column) except -1
    cdef int _agree(self, str name, int64_t rows) except -1
    cdef const Py_buffer* _borrow(self, str what, object data) except NULL
