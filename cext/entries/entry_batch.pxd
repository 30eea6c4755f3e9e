"""Entries that wait to be written as one batch. See entry_batch.pyx."""
from libc.stdint cimport int64_t, uint8_t

from .batch_encode cimport EncodedBatch
from .batch_header cimport BatchHeader
from .one_at_a_time cimport Use
from .output cimport Output


cdef class EntryBatch:
    cdef EncodedBatch made          # None if no entry is waiting
    cdef public EncodedBatch taken
    cdef Output scratch             # an entry with its broker's part
    cdef Use use

    # `add` of one entry, and `take`, for other kernels.
    cdef int add_one(self, bytes entry, int64_t timestamp) except -1
    cdef EncodedBatch take_all(self, int64_t base_offset)
    cdef int _begin(self, BatchHeader* before, int64_t* size) except -1
    cdef int _undo(self, const BatchHeader* before, int64_t size) except -1
    cdef int _append(self, const uint8_t* data, int64_t size, int64_t timestamp) except -1
