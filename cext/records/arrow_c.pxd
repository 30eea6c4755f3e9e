from libc.stdint cimport int64_t, uint8_t

from .column_decoder cimport seg_binary, seg_columns

cdef extern from "seg_arrow.h" nogil:
    int ARROW_FLAG_NULLABLE

    ctypedef struct ArrowSchema:
        const char* format
        const char* name
        const char* metadata
        int64_t flags
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept nogil
        void* private_data

    ctypedef struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil
        void* private_data

    ctypedef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept nogil
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept nogil
        const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
        void (*release)(ArrowArrayStream*) noexcept nogil
        void* private_data


# Capsules of the Arrow PyCapsule interface: the schema, which is the same for all columns,
cdef object export_schema()

# and a struct array of the columns. `owner` keeps their memory, and each exported part keeps the owner alive.
cdef object export_array(object owner, const seg_columns* c, const uint8_t* timestamp_validity, int64_t timestamp_nulls)

# --- for other exports --------------------------------------------------------------------

# Empty capsules, with the structs that they will free in *out; fill_schema and fill_array fill these.
cdef object new_schema_capsule(ArrowSchema** out)
cdef object new_array_capsule(ArrowArray** out)

# Fill one column of a schema, or of data, with `n_children` (at most MAX_CHILDREN) for the caller to fill. `format` and
# `name` are literals. Each part of the data keeps a reference to its owner; the caller sets its buffers.
cdef int fill_schema(ArrowSchema* out, const char* format, const char* name, bint nullable, int n_children) except -1
cdef int fill_array(ArrowArray* out, object owner, int64_t length, int64_t null_count,
                    int n_buffers, int n_children) except -1
cdef int fill_binary(ArrowArray* array, object owner, const seg_binary* column, int64_t rows) except -1

# The struct to fill for a column's dictionary, which is released with the column.
cdef ArrowSchema* dictionary_of_schema(ArrowSchema* out) noexcept
cdef ArrowArray* dictionary_of_array(ArrowArray* out) noexcept

cdef bint begin_call() noexcept nogil
cdef void end_call() noexcept nogil
