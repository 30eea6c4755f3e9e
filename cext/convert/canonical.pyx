"""Records of any format as one stream of bytes, over which a conversion's digest is computed.

    record := offset: int64, timestamp: int64, bytes(key), bytes(value), header_count: int32, header*
    header := bytes(key), bytes(value)
    bytes  := size: int32 (-1: null), data

All big-endian; a missing timestamp is -1. Two logs hold the same records in the same order if and only if their streams
are equal, whatever formats, batches and codecs store them. `with_time=False` and `with_headers=False` leave out what an
older format cannot hold: every timestamp is then -1, every header count 0.
"""
from libc.stdint cimport int64_t, uint8_t

from .arena cimport Arena, lend
from .column_decoder cimport SEG_SLACK, seg_columns
from .columns cimport Columns

from seglog.errors import InvalidArgumentError

cdef extern from "seg_canonical.h" nogil:
    int SEG_WITHOUT_TIME
    int SEG_WITHOUT_HEADERS
    int64_t seg_canonical_size(const seg_columns* c, int64_t row, int64_t n, int without)
    int64_t seg_canonical_rows(const seg_columns* c, int64_t row, int64_t limit, int without)
    uint8_t* seg_canonical(const seg_columns* c, int64_t row, int64_t n, int without, uint8_t* out)

cdef enum:
    # A slice that stays in the second-level cache while it is written and hashed.
    SLICE_BYTES = 256 << 10


cdef int without(bint with_time, bint with_headers):
    return (0 if with_time else SEG_WITHOUT_TIME) | (0 if with_headers else SEG_WITHOUT_HEADERS)


def canonical_bytes(
    Columns columns not None, int64_t start=0, int64_t stop=-1, *, bint with_time=True, bint with_headers=True
):
    """The stream of the rows [start, stop) (-1: to the end), as a read-only memoryview.

    Its memory is an arena of the columns' pool, and returns there with the last view.
    """
    if stop == -1:
        stop = columns.c.rows
    if not 0 <= start <= stop <= columns.c.rows:
        raise InvalidArgumentError(f"rows {start} to {stop} of {columns.c.rows}")
    if start == stop:
        return memoryview(b"")
    cdef int left_out = without(with_time, with_headers)
    cdef int64_t size = seg_canonical_size(&columns.c, start, stop - start, left_out)
    cdef Arena arena = columns.pool.acquire(size + SEG_SLACK)
    with nogil:
        seg_canonical(&columns.c, start, stop - start, left_out, arena.base)
    return lend(arena, arena.base, size, 1, b"B")


def update_digest(
    Columns columns not None, hasher, int64_t start=0, int64_t stop=-1, *, bint with_time=True, bint with_headers=True
):
    """Feed the stream of the rows [start, stop) (-1: to the end) to `hasher.update` (hashlib's) in slices, so that it
    takes memory for one slice, or for one large record."""
    if stop == -1:
        stop = columns.c.rows
    if not 0 <= start <= stop <= columns.c.rows:
        raise InvalidArgumentError(f"rows {start} to {stop} of {columns.c.rows}")
    cdef int64_t row = start
    cdef int64_t n, size
    cdef int left_out = without(with_time, with_headers)
    cdef Arena arena
    update = hasher.update
    while row < stop:
        n = min(seg_canonical_rows(&columns.c, row, SLICE_BYTES, left_out), stop - row)
        size = seg_canonical_size(&columns.c, row, n, left_out)
        arena = None        # returns it to the pool before the next is taken, unless the hasher kept a view
        arena = columns.pool.acquire(size + SEG_SLACK)
        with nogil:
            seg_canonical(&columns.c, row, n, left_out, arena.base)
        update(lend(arena, arena.base, size, 1, b"B"))
        row += n
