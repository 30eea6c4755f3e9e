"""See batch_source.pxd."""
from libc.stdint cimport int64_t

from .status cimport OK, TRAILING_BYTES


cdef int inspect(Source* source) noexcept nogil:
    cdef Source ahead
    cdef RecordView record
    cdef int64_t previous = 0
    cdef int64_t i
    cdef int status = count_records(source)
    if status != OK:
        return status
    source.has_null_value = False
    ahead = source[0]
    for i in range(source.left):
        status = next_in_order(&ahead, i, previous, &record)
        if status != OK:
            return status
        previous = record.offset
        source.has_null_value |= record.value_size < 0
    return OK if ahead.records.p == ahead.records.end else TRAILING_BYTES
