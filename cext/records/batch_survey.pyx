"""Questions about many batches at once, answered from headers: how much of each format, where the order breaks.

An uncompressed v1 segment holds a batch per message; a Python object for each would cost more than converting it. Opens
no batch, checks no CRC, raises only for slots outside the table.
"""
from libc.stdint cimport int64_t

from .batch_header cimport (
    CODEC_MASK, CODEC_NONE, TAGGED_MAGIC, TRANSACTIONAL_BIT, BatchHeader, hides_first_offset,
)
from .segment_scan cimport BatchTable

cdef enum:
    MAGICS = 4                  # the tagged dialect, v0, v1, v2
    CODECS = CODEC_MASK + 1     # including the codes without a codec

cdef struct Tally:
    int64_t batches
    int64_t size_bytes
    int64_t records


def tally(BatchTable table not None, Py_ssize_t first=0, Py_ssize_t stop=-1):
    """{(magic, codec): (batches, size_bytes, records)} of the slots [first, stop); stop -1: to the end.

    A wrapper below v2 adds 0 records, because only opening it tells. codec is the value of the bits, 0 to 7.
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
            t = &of[(row.magic - TAGGED_MAGIC) * CODECS + (row.attributes & CODEC_MASK)]
            t.batches += 1
            t.size_bytes += row.size_bytes
            if row.magic == 2:
                t.records += row.count
            elif row.attributes & CODEC_MASK == CODEC_NONE:
                t.records += 1
    return {
        (i // CODECS + TAGGED_MAGIC, i % CODECS): (of[i].batches, of[i].size_bytes, of[i].records)
        for i in range(MAGICS * CODECS) if of[i].batches
    }


def first_disorder(BatchTable table not None, int64_t min_offset, Py_ssize_t first=0):
    """The first slot from `first` on with an offset below `min_offset` or below the previous batch's end; -1: none.

    A wrapper counts by its last offset, because only opening it gives its first one.
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    cdef const BatchHeader* row
    checked(table, first, -1)
    with nogil:
        for i in range(first, table.n):
            row = &table.rows[i]
            if row.base_offset < min_offset or row.last_offset < row.base_offset:
                found = i
                break
            min_offset = row.last_offset + 1
    return found


def first_in_order(BatchTable table not None, int64_t min_offset, Py_ssize_t first=0):
    """The first slot from `first` on whose batch is at or above `min_offset`; -1: none. See first_disorder."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    checked(table, first, -1)
    with nogil:
        for i in range(first, table.n):
            if min_offset <= table.rows[i].base_offset <= table.rows[i].last_offset:
                found = i
                break
    return found


def first_hole(BatchTable table not None, int64_t next_offset=-1):
    """The first slot whose batch has fewer records than offsets, or does not begin where the one before ended, or -1.

    `next_offset`: where the first batch begins if nothing is missing before it; -1: unknown. A wrapper may begin
    anywhere behind the batch before it, and have any number of records: only opening it tells.
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    cdef const BatchHeader* row
    with nogil:
        for i in range(table.n):
            row = &table.rows[i]
            if not hides_first_offset(row):
                if 0 <= next_offset < row.base_offset or (
                    row.magic == 2 and row.count <= row.last_offset - row.base_offset
                ):
                    found = i
                    break
            next_offset = row.last_offset + 1
    return found


def first_with_producer(BatchTable table not None, Py_ssize_t first=0):
    """The first slot from `first` on whose batch has a producer id; -1: none."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(max(first, 0), table.n):
            if table.rows[i].producer_id >= 0:
                found = i
                break
    return found


def first_of_later_epoch(BatchTable table not None, int epoch, Py_ssize_t first=0):
    """The first slot from `first` on whose batch has a leader epoch above `epoch`; -1: none. Below v2 there is none."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(max(first, 0), table.n):
            if table.rows[i].leader_epoch > epoch:
                found = i
                break
    return found


def next_epoch(BatchTable table not None, Py_ssize_t slot):
    """The first slot after `slot` with another leader epoch; the number of batches if there is none."""
    cdef Py_ssize_t i
    checked(table, slot, -1)
    with nogil:
        i = slot + 1
        while i < table.n and table.rows[i].leader_epoch == table.rows[slot].leader_epoch:
            i += 1
    return min(i, table.n)


def next_magic(BatchTable table not None, Py_ssize_t slot):
    """The first slot after `slot` with another format version; the number of batches if there is none."""
    cdef Py_ssize_t i
    checked(table, slot, -1)
    with nogil:
        i = slot + 1
        while i < table.n and table.rows[i].magic == table.rows[slot].magic:
            i += 1
    return min(i, table.n)


def first_transactional(BatchTable table not None, Py_ssize_t first=0):
    """The first slot from `first` on that is part of a transaction, including its marker; -1: none."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(max(first, 0), table.n):
            if table.rows[i].magic == 2 and table.rows[i].attributes & TRANSACTIONAL_BIT:
                found = i
                break
    return found


def first_not_rising(const int64_t[::1] offsets not None, int64_t last):
    """The first index in `offsets` that is not above the previous one (index 0: above `last`); -1: all rise."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(offsets.shape[0]):
            if offsets[i] <= last:
                found = i
                break
            last = offsets[i]
    return found


def later_than_header(
    BatchTable table not None, const int64_t[::1] offsets not None, const int64_t[::1] timestamps not None,
    Py_ssize_t first=0,
):
    """(batches, slot, largest): how many v2 batches have a record later than their max_timestamp.

    `slot`: the first of them, -1 where none has; `largest`: the timestamp of its latest record. The records are those
    of whole batches from slot `first` on, as `columns.chunks` gives them: control records too, offsets rising.
    """
    cdef Py_ssize_t n = min(offsets.shape[0], timestamps.shape[0])
    cdef Py_ssize_t batches = 0
    cdef Py_ssize_t found = -1
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t slot, stop
    cdef int64_t largest_of_found = -1
    cdef int64_t largest
    cdef const BatchHeader* row
    checked(table, first, -1)
    with nogil:
        for slot in range(first, table.n):
            if i == n:
                break
            row = &table.rows[slot]
            if row.magic != 2:
                continue
            # (Nobody knows how many records the wrappers before it hold; their offsets are below.)
            while i < n and offsets[i] < row.base_offset:
                i += 1
            stop = i + min(<Py_ssize_t>max(row.count, 0), n - i)
            largest = row.max_timestamp
            while i < stop:
                largest = max(largest, timestamps[i])
                i += 1
            if largest > row.max_timestamp:
                if batches == 0:
                    found, largest_of_found = slot, largest
                batches += 1
    return batches, found, largest_of_found


def first_beyond(BatchTable table not None, int64_t offset, Py_ssize_t first=0):
    """The first slot from `first` on whose last offset is above `offset`; -1: none."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(max(first, 0), table.n):
            if table.rows[i].last_offset > offset:
                found = i
                break
    return found


def find_position(BatchTable table not None, int64_t position):
    """The slot of the batch that begins at `position`; -1: none."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = table.n
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) >> 1
        if table.rows[middle].position < position:
            low = middle + 1
        else:
            high = middle
    return low if low < table.n and table.rows[low].position == position else -1


def largest_timestamp(BatchTable table not None, Py_ssize_t first=0, Py_ssize_t stop=-1):
    """The largest of the slots [first, stop); -1 if none has a timestamp."""
    cdef Py_ssize_t i
    cdef int64_t largest = -1
    stop = checked(table, first, stop)
    with nogil:
        for i in range(first, stop):
            largest = max(largest, table.rows[i].max_timestamp)
    return largest


def first_above(BatchTable table not None, int magic, Py_ssize_t first=0):
    """The first slot from `first` on whose batch has a later format version than `magic`; -1: none."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    checked(table, first, -1)
    with nogil:
        for i in range(first, table.n):
            if table.rows[i].magic > magic:
                found = i
                break
    return found


def first_larger(BatchTable table not None, int64_t size_bytes, Py_ssize_t first=0):
    """The first slot from `first` on whose batch is larger than `size_bytes`; -1: none."""
    cdef Py_ssize_t i
    cdef Py_ssize_t found = -1
    with nogil:
        for i in range(max(first, 0), table.n):
            if table.rows[i].size_bytes > size_bytes:
                found = i
                break
    return found


def cut(BatchTable table not None, Py_ssize_t first, int64_t max_bytes, int64_t max_offset):
    """The slot to stop before, so that [first, stop) has at most `max_bytes` and no offset above `max_offset`.

    `first` if not even its batch fits.
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


def cut_plain(BatchTable table not None, Py_ssize_t first, int64_t max_bytes):
    """As `cut`, but also stops before the first compressed batch."""
    cdef Py_ssize_t i
    cdef int64_t left = max_bytes
    checked(table, first, -1)
    with nogil:
        i = first
        while (
            i < table.n and table.rows[i].size_bytes <= left
            and table.rows[i].attributes & CODEC_MASK == CODEC_NONE
        ):
            left -= table.rows[i].size_bytes
            i += 1
    return i


cdef Py_ssize_t checked(BatchTable table, Py_ssize_t first, Py_ssize_t stop) except -1:
    if stop < 0:
        stop = table.n
    if not 0 <= first <= stop <= table.n:
        raise IndexError(f"slots {first} to {stop}: the table has {table.n} batches")
    return stop
