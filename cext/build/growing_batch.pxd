"""A batch to which records are added one by one. See growing_batch.pyx."""
from libc.stdint cimport int64_t

from .batch_encode cimport EncodedBatch
from .one_at_a_time cimport Use
from .output cimport Output


cdef class GrowingBatch:
    cdef EncodedBatch made              # None before the first record
    cdef public EncodedBatch taken
    cdef Output encoded_headers
    cdef object compress
    cdef int codec
    cdef bint is_log_append_time
    cdef int64_t max_bytes
    cdef Use use

    # As `add`, up to `max_bytes`, including the header of the batch.
    cdef bint put(self, object key, object value, object headers, int64_t timestamp, int64_t max_bytes) except -1
    cdef int begin(self, int64_t timestamp) except -1
