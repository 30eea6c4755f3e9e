from libc.stdint cimport int32_t, int64_t, uint8_t

from .arena cimport Arena, ArenaPool
from .batch_header cimport BatchHeader
from .column_decoder cimport seg_columns
from .one_at_a_time cimport Use
from .segment_scan cimport BatchTable
from .window cimport Window


cdef class Columns:
    """Records as columns, in memory of their own that lives until its last reader is gone."""
    cdef seg_columns c
    cdef ArenaPool pool
    cdef Arena _arena               # holds c's columns, except those of headers
    cdef Arena _header_arena        # None until a record has a header
    cdef Window _window             # None unless c.is_mapped: then views are of its bytes
    cdef uint8_t* _timestamp_validity
    cdef int64_t _timestamp_nulls
    cdef int64_t _content_bytes     # of the batch bodies decoded so far; limits every int32 in c
    cdef int64_t _next_batch        # the first batch not decoded yet

    cdef int _fill(self, BatchTable table, int64_t begin, int64_t first, int64_t last, int64_t stop_bytes,
                   bint check_crc, bint include_control) except -1
    cdef bint _fill_compressed(self, BatchTable table, const BatchHeader* row, const BatchHeader* begin) except -1
    cdef int _reserve_for(self, BatchTable table, int64_t first, int64_t last, int64_t stop_bytes) except -1
    cdef int _reserve(self, int64_t rows, int64_t content_bytes) except -1
    cdef int _reserve_headers(self) except -1
    cdef int _seal(self) noexcept


cdef class ColumnChunks:
    cdef BatchTable _table
    cdef ArenaPool _pool
    cdef int64_t _chunk_bytes
    cdef int64_t _start
    cdef int64_t _stop
    cdef bint _check_crc
    cdef bint _include_control
    cdef int32_t _is_mapped         # chunks with views are views of the window's bytes
    cdef public int64_t next_batch
    cdef Use use

    # The next chunk, None at the end. Columns decoded `without` some (seg_columns.without) are only for kernels that
    # know this: nothing prevents access to the missing ones.
    cdef Columns take(self, int32_t without)
