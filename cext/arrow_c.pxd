from libc.stdint cimport int64_t, uint8_t

from .column_decoder cimport seg_columns


# Capsules of the Arrow PyCapsule interface: the schema, the same for all columns,
cdef object export_schema()

# and a struct array of them. `owner` keeps their memory, and each exported part keeps the owner.
cdef object export_array(object owner, const seg_columns* c, const uint8_t* timestamp_validity, int64_t timestamp_nulls)
