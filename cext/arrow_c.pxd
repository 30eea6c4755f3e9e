"""The two structs of the Arrow C data interface, and the nodes that we fill them from.

https://arrow.apache.org/docs/format/CDataInterface.html
"""
from libc.stdint cimport int64_t

cdef extern from "seg_arrow.h" nogil:
    ctypedef struct ArrowSchema:
        const char* format
        const char* name
        int64_t flags
        int64_t n_children
        ArrowSchema** children
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

cdef enum:
    MAX_BUFFERS = 3
    MAX_CHILDREN = 5

# One column of a schema. `format`, `name`: literals, they are never freed.
cdef int fill_schema(ArrowSchema* out, const char* format, const char* name, bint nullable, int n_children) except -1

# One column of data. Its buffers are memory of `owner`, which it holds until its own release:
# a consumer may move a child out and release the rest.
cdef int fill_array(ArrowArray* out, object owner, int64_t length, int64_t null_count,
                    int n_buffers, int n_children) except -1

cdef ArrowSchema* new_schema() except NULL
cdef ArrowArray* new_array() except NULL

# The capsules of the Arrow PyCapsule interface. They own what they are given.
cdef object schema_capsule(ArrowSchema* schema)
cdef object array_capsule(ArrowArray* array)
