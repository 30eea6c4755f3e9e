from libc.stdint cimport int64_t, uint8_t

from .column_decoder cimport seg_columns

cdef extern from "seg_arrow.h" nogil:
    int ARROW_FLAG_NULLABLE

    ctypedef struct ArrowSchema:
        const char* format
        const char* name
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
        void (*release)(ArrowArray*) noexcept nogil
        void* private_data


# Capsules of the Arrow PyCapsule interface: the schema, the same for all columns,
cdef object export_schema()

# and a struct array of them. `owner` keeps their memory, and each exported part keeps the owner.
cdef object export_array(object owner, const seg_columns* c, const uint8_t* timestamp_validity, int64_t timestamp_nulls)
