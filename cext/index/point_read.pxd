"""Finds one record of a segment. See point_read.pyx."""
from libc.stdint cimport int64_t

from .batch_header cimport BatchHeader
from .checked_batches cimport CheckedBatches
from .header_walk cimport HeaderWalk
from .index_search cimport Entries
from .record_batch cimport Record
from .record_view cimport RecordView
from .span cimport Span
from .time_ranges cimport TimeRangesSearch
from .window cimport Window


cdef class OpenedBatch:
    cdef CheckedBatches segment     # which segment's: the identity is all that counts
    cdef int64_t position
    cdef Window window              # keeps the bytes of `records`
    cdef Span records
    cdef int64_t inner_base         # of a wrapper: see find_inner_base
    cdef int64_t count


cdef class LastOpened:
    cdef OpenedBatch batch


cdef class PointReader:
    cdef Window window
    cdef Window offsets_window
    cdef CheckedBatches checked
    cdef LastOpened last_opened
    cdef object decompress
    cdef int64_t base_offset
    cdef int64_t end_offset
    cdef Entries offsets
    cdef TimeRangesSearch _ranges

    # `get` and `find_timestamp` for other kernels.
    cdef Record find(self, int64_t offset)
    cdef tuple find_time(self, int64_t timestamp, int64_t start_offset, HeaderWalk walk, Window times)

    cdef int64_t seek(
        self, int64_t timestamp, int64_t start_offset, HeaderWalk walk, Window times, BatchHeader* row, RecordView* view
    ) except? -1
    cdef int locate(self, int64_t offset, BatchHeader* row, bint may_check) noexcept nogil
    cdef bint is_in_place(self, int64_t slot, const BatchHeader* row) noexcept nogil
    cdef void expect_next(self, const Entries* offsets, int64_t slot) noexcept nogil
    cdef int header_at(self, int64_t position, BatchHeader* row, bint may_check) noexcept nogil
    cdef bint is_followed(self, const BatchHeader* row) noexcept nogil
    cdef int64_t position_before(self, int64_t timestamp, int64_t start_offset, HeaderWalk walk, Window times) noexcept
    cdef int pass_over(
        self, int64_t timestamp, int64_t start_offset, int64_t* position, int64_t stop, BatchHeader* row,
        bint opens_wrappers, bint may_check,
    ) noexcept nogil
    cdef OpenedBatch open(self, const BatchHeader* row)
