"""Builds indexes from batch headers. See index_build.pyx."""
from libc.stdint cimport int32_t, int64_t

from .one_at_a_time cimport Use
from .output cimport Output


# The state of an index, in one struct, so that assigning the old one undoes a refused batch.
cdef struct Progress:
    int64_t end_position                # in the file, after the last batch added
    int64_t last_entry_position         # of the batch of the last offset entry, 0 before the first
    int64_t max_timestamp
    int64_t offset_of_max_timestamp
    int64_t last_entry_timestamp        # of the time index, -1 before the first entry
    int64_t last_minute                 # of the minute index's last entry, -1 before the first
    int32_t last_entry_relative_offset  # of the offset index, -1 before the first entry
    int64_t offset_entries              # in total, including those already taken
    int64_t time_entries
    int64_t minute_entries


cdef class IndexBuilder:
    cdef Output offset_index
    cdef Output time_index
    cdef Output minute_index
    cdef Progress now
    cdef int64_t max_offset_entries
    cdef int64_t max_time_entries
    cdef readonly int64_t base_offset
    cdef readonly int64_t index_interval_bytes
    cdef readonly bint is_tagged
    cdef int64_t offset_entry_size
    cdef Use use

    # Index one batch, which follows the last one added. If not OK, nothing has changed.
    cdef int try_one(self, int64_t last_offset, int64_t max_timestamp, int64_t size_bytes) noexcept nogil

    cdef int add_batch(
        self, int64_t last_offset, int64_t max_timestamp, int64_t position, int64_t size_bytes
    ) noexcept nogil
    cdef int add_offset_entry(self, int64_t relative, int64_t position) noexcept nogil
    cdef int add_time_entry(self) noexcept nogil
    cdef int add_minute_entry(self) noexcept nogil
    cdef int put_timestamp(self, Output* index) noexcept nogil
    cdef int raise_refusal(self, int status, int64_t position, int64_t offset, object name) except -1

    # How many offset entries were made and not taken yet; the other indexes have at most as many.
    cdef inline int64_t waiting_entries(self) noexcept nogil:
        return self.offset_index.size // self.offset_entry_size

    cdef inline bint has_no_room(self) noexcept nogil:
        return (
            self.now.offset_entries >= self.max_offset_entries
            or self.now.time_entries >= self.max_time_entries - 1
        )
