"""Questions about many batches at once, answered from their headers: how much of which format, where the order breaks.

A v1 segment that is not compressed holds a batch a message; a Python object for each would cost
more than converting it. Opens nothing, checks no CRC, raises only for slots outside the table.
"""
from libc.stdint cimport int64_t

from .batch_header cimport CODEC_MASK, CODEC_NONE, BatchHeader
from .segment_scan cimport BatchTable

cdef enum:
    MAGICS = 3
    CODECS = CODEC_MASK + 1     # with the codes that name no codec

cdef struct Tally:
    int64_t batches
    int64_t size_bytes
    int64_t records


def tally(BatchTable table not None, Py_ssize_t first=0, Py_ssize_t stop=-1):
    """{(magic, codec): (batches, size_bytes, records)} of the slots [first, stop); stop -1: to the end.

    A legacy wrapper counts no record, for nobody knows before it is opened. codec is the bits' value, 0 to 7.
    """
    cdef Tally[MAGICS * CODECS] of
    cdef Tally* t
    cdef const BatchHeader* row
    cdef Py_ssize_t i
    stop = checked(table, first, stop)
    with nogil:
        for i in range(MAGICS * CODECS):
            of[i].batches = of[i].size_bytes = of[i].records = 0
        for i in range(first, stop):
            row = &table.rows[i]
            t = &of[row.magic * CODECS + (row.attributes & CODEC_MASK)]
            t.batches += 1
            t.size_bytes += row.size_bytes
            if row.magic == 2:
                t.records += row.count
            elif row.attributes & CODEC_MASK == CODEC_NONE:
                t.records += 1
    return {
        divmod(i, CODECS): (of[i].batches, of[i].size_bytes, of[i].records)
        for i in range(MAGICS * CODECS) if of[i].batches
    }


def first_disorder(BatchTable table not None, int64_t min_offset):
    """The first slot whose batch reaches below `min_offset` or into the batch before it; -1 where none does.

    A wrapper is judged by its last offset: where it begins is inside.
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    cdef const BatchHeader* row
    with nogil:
        for i in range(table.n):
            row = &table.rows[i]
            if row.base_offset < min_offset or row.last_offset < row.base_offset:
                found = i
                break
            min_offset = row.last_offset + 1
    return found


def first_with_producer(BatchTable table not None, Py_ssize_t first=0):
    """The first slot from `first` on whose batch carries a producer id; -1 where none does."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(max(first, 0), table.n):
            if table.rows[i].producer_id >= 0:
                found = i
                break
    return found


def first_of_later_epoch(BatchTable table not None, int epoch, Py_ssize_t first=0):
    """The first slot from `first` on whose batch has a leader epoch above `epoch`; -1 where none has. Legacy: none."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(max(first, 0), table.n):
            if table.rows[i].leader_epoch > epoch:
                found = i
                break
    return found


def first_larger(BatchTable table not None, int64_t size_bytes, Py_ssize_t first=0):
    """The first slot from `first` on whose batch has more than `size_bytes`; -1 where none has."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(max(first, 0), table.n):
            if table.rows[i].size_bytes > size_bytes:
                found = i
                break
    return found


def cut(BatchTable table not None, Py_ssize_t first, int64_t max_bytes, int64_t max_offset):
    """The slot before which to stop, so that [first, stop) has at most `max_bytes` and no offset above `max_offset`.

    `first` itself where not even its batch fits.
    """
    cdef Py_ssize_t i
    cdef int64_t left = max_bytes
    checked(table, first, -1)
    with nogil:
        i = first
        while i < table.n and table.rows[i].size_bytes <= left and table.rows[i].last_offset <= max_offset:
            left -= table.rows[i].size_bytes
            i += 1
    return i


cdef Py_ssize_t checked(BatchTable table, Py_ssize_t first, Py_ssize_t stop) except -1:
    if stop < 0:
        stop = table.n
    if not 0 <= first <= stop <= table.n:
        raise IndexError(f"slots {first} to {stop}: the table has {table.n} batches")
    return stop
