"""Moves batches of one log to another without opening them: new offsets, another leader epoch, another timestamp.

None of these needs the records. No checksum covers a v2 batch's offset and leader epoch, or a message's offset; a new
timestamp of a wrapper or a v2 batch only needs a new checksum. The exception is a v0 wrapper, whose compressed part
contains offsets.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from seglog.errors import InvalidArgumentError

from .append_result cimport stamp
from .batch_header cimport CODEC_NONE, LEADER_EPOCH_POS, MESSAGE_CRC_POS, BatchHeader, codec_of, compute_crc
from .segment_scan cimport BatchTable
from .span cimport Span, load_i32, store_u32, store_u64
from .status cimport OK
from .tagged_message cimport TAG_COUNT, TAG_HONOUR_OFFSETS, TAG_LAST_DELTA, TAG_NO_KEYS, parse_tag, stored_tags
from .window cimport Window, check_whole

cdef extern from "<stdint.h>" nogil:
    const int64_t INT64_MIN


def first_to_open(BatchTable table not None, Py_ssize_t first=0, *, bint close_gaps=False):
    """The first slot from `first` on that cannot get new offsets through its header; the number of batches if all can.

    That is a v0 wrapper, and a tagged one that lacks its message count or the tag that says whether offsets count from
    it. close_gaps: offsets must become contiguous, so it is also a v1 wrapper, which does not store its record count,
    and a v2 batch with fewer records than offsets.
    """
    cdef Py_ssize_t i = max(first, 0)
    cdef bint is_tagged = table.window.is_tagged
    cdef TagPlaces tags
    while i < table.n:
        if is_tagged:
            if codec_of(&table.rows[i]) != CODEC_NONE and not find_places(
                table.window.base + table.rows[i].position, &tags
            ):
                break
        elif must_be_opened(&table.rows[i], close_gaps):
            break
        i += 1
    return i


def moves_unopened(BatchTable table not None, Py_ssize_t slot):
    """Whether one batch can get new offsets through its header."""
    cdef TagPlaces tags
    check_slots(table, slot, slot + 1)
    if not table.window.is_tagged:
        return not must_be_opened(&table.rows[slot], False)
    return codec_of(&table.rows[slot]) == CODEC_NONE or find_places(
        table.window.base + table.rows[slot].position, &tags)


def says_no_keys(BatchTable table not None, Py_ssize_t slot):
    """Whether a set of tagged messages says that none of them has a key (tag 65)."""
    cdef const BatchHeader* row
    cdef const uint8_t* value = NULL
    cdef int32_t size = 0
    cdef int tag = 0
    cdef Span s
    check_slots(table, slot, slot + 1)
    row = &table.rows[slot]
    if not table.window.is_tagged or codec_of(row) == CODEC_NONE:
        return False
    s = stored_tags(table.window.base + row.position)
    while s.p != s.end and parse_tag(&s, &tag, &value, &size) == OK:
        if tag == TAG_NO_KEYS:
            return value[0] != 0
    return False


cdef bint must_be_opened(const BatchHeader* row, bint close_gaps) noexcept nogil:
    if row.magic == 2:
        return close_gaps and row.last_offset - row.base_offset + 1 != row.count
    return codec_of(row) != CODEC_NONE and (row.magic == 0 or close_gaps)


# The positions of a wrapper's tags that determine its offsets.
cdef struct TagPlaces:
    uint8_t* count
    uint8_t* honours
    uint8_t* last_delta         # NULL: absent


cdef bint find_places(const uint8_t* p, TagPlaces* out) noexcept nogil:
    """For a message whose tags were parsed: whether it has its count, and a tag that makes its offsets contiguous."""
    cdef const uint8_t* value = NULL
    cdef int32_t size = 0
    cdef int tag = 0
    cdef Span s = stored_tags(p)
    out.count = out.honours = out.last_delta = NULL
    while s.p != s.end and parse_tag(&s, &tag, &value, &size) == OK:
        if tag == TAG_COUNT and load_i32(value) > 0:
            out.count = <uint8_t*>value
        elif tag == TAG_HONOUR_OFFSETS:
            out.honours = <uint8_t*>value
        elif tag == TAG_LAST_DELTA:
            out.last_delta = <uint8_t*>value
    return out.count != NULL and out.honours != NULL


cdef int64_t make_contiguous(uint8_t* bytes, BatchHeader* row) noexcept nogil:
    """Clear tag 64 of a wrapper, which then needs a new checksum. Returns how many offsets it takes: its tag 32."""
    cdef uint8_t* p = bytes + row.position
    cdef TagPlaces tags
    cdef int32_t count
    if not find_places(p, &tags):
        return -1
    count = load_i32(tags.count)
    if tags.honours[0]:
        tags.honours[0] = 0
        if tags.last_delta != NULL:
            store_u32(tags.last_delta, <uint32_t>(count - 1))
        row.crc = compute_crc(bytes, row)
        store_u32(p + MESSAGE_CRC_POS, row.crc)
    return count


def moved(
    BatchTable table not None, Py_ssize_t first, Py_ssize_t stop, *, int64_t next_offset=-1, int64_t previous=-1,
    int32_t leader_epoch=-1, log_append_time=None, bint close_gaps=False, int64_t opened_span=-1,
):
    """(the batches [first, stop), which must be adjacent in the window, in newly allocated bytes; one past their last
    offset). Checksums stay as they were, right or wrong, unless a timestamp is replaced.

    next_offset: the first batch's new offset; -1: all keep their offsets and leader epochs. A v2 batch takes as many
        offsets as it has now, inner gaps included. A message takes as many as lie between it and the previous batch,
        so gaps stay; `previous` is the last offset before the first batch.
    close_gaps: a message takes one offset, whatever preceded it; only for batches that need not be opened for this.
    opened_span: how many offsets a single tagged wrapper takes, if only opening it tells; its relative offsets stay.
        Any other takes as many as it has messages (tag 32), and gets contiguous inner offsets (tag 64).
    leader_epoch: for v2 batches that get new offsets.
    log_append_time: ms; replaces the timestamp and sets the type to LogAppendTime. If None, timestamps stay.
    """
    cdef const uint8_t* source = table.window.base
    cdef const BatchHeader* last
    cdef BatchHeader row
    cdef uint8_t* out
    cdef bytes made
    cdef BatchTable placed
    cdef bint is_placed = next_offset >= 0
    cdef bint is_stamped = log_append_time is not None
    cdef int64_t time_ms = log_append_time if is_stamped else -1
    cdef int64_t begin, before, span
    cdef Py_ssize_t i
    if not -1 <= previous < INT64_MAX:
        raise InvalidArgumentError(f"an offset of {previous}")
    check_slots(table, first, stop)
    if table.window.is_tagged and is_stamped:
        raise InvalidArgumentError("the times of messages with tags stay")
    last = &table.rows[stop - 1]
    begin = table.rows[first].position
    made = PyBytes_FromStringAndSize(<const char*>source + begin, last.position + last.size_bytes - begin)
    check_whole(table.window)
    out = <uint8_t*><char*>made
    placed = empty_table(table, Window(made, table.window.name, is_tagged=table.window.is_tagged), len(made))
    for i in range(first, stop):
        row = table.rows[i]
        if i > first and row.position != table.rows[i - 1].position + table.rows[i - 1].size_bytes:
            raise InvalidArgumentError("these batches do not follow each other", position=row.position)
        row.position -= begin
        if is_placed and table.window.is_tagged:
            span = 1 if codec_of(&row) == CODEC_NONE else opened_span if opened_span > 0 else make_contiguous(out, &row)
            if not 0 < span < INT64_MAX - next_offset:
                raise InvalidArgumentError("a wrapper that has to be opened", position=table.rows[i].position)
            row.base_offset = next_offset
            next_offset += span
            row.last_offset = next_offset - 1
            store_u64(out + row.position, <uint64_t>row.base_offset)
        elif is_placed:
            # Unsigned, because offsets may have any value. (No v2 batch of a table ends before its base offset.)
            before = row.base_offset if row.magic == 2 else row.last_offset if close_gaps else previous + 1
            span = <int64_t>(<uint64_t>row.last_offset - <uint64_t>before)
            if (row.magic < 2 and row.last_offset <= previous) or not 0 <= span < INT64_MAX - next_offset:
                raise InvalidArgumentError(
                    f"a batch up to offset {row.last_offset} behind offset {previous}", position=table.rows[i].position
                )
            previous = row.last_offset
            row.last_offset = next_offset + span
            row.base_offset = next_offset if row.magic == 2 else row.last_offset
            store_u64(out + row.position, <uint64_t>row.base_offset)
            if row.magic == 2:
                row.leader_epoch = leader_epoch
                store_u32(out + row.position + LEADER_EPOCH_POS, <uint32_t>leader_epoch)
            next_offset += span + 1
        if is_stamped:
            stamp(out, &row, True, time_ms)
        add_row(placed, &row)
    return placed, next_offset if is_placed else last.last_offset + 1


def kept(BatchTable table not None, Py_ssize_t first, Py_ssize_t stop):
    """A table of the batches [first, stop) alone, over the same bytes."""
    cdef BatchTable part
    cdef Py_ssize_t i
    check_slots(table, first, stop)
    if first == 0 and stop == table.n:
        return table
    part = empty_table(table, table.window, table.rows[stop - 1].position + table.rows[stop - 1].size_bytes)
    for i in range(first, stop):
        add_row(part, &table.rows[i])
    return part


def run_of(BatchTable table not None):
    """The bytes of a table's batches, which must be adjacent, as a memoryview."""
    cdef int64_t begin
    if table.n == 0:
        raise InvalidArgumentError("a table without batches")
    begin = table.rows[0].position
    return table.window.view(table.window.base + begin, table.end - begin)


cdef int check_slots(BatchTable table, Py_ssize_t first, Py_ssize_t stop) except -1:
    if not 0 <= first < stop <= table.n:
        raise InvalidArgumentError(f"batches [{first}, {stop}) of a table of {table.n}")
    return 0


cdef BatchTable empty_table(BatchTable like, Window window, int64_t end):
    """An empty table for batches that end at the position `end`."""
    cdef BatchTable table = BatchTable.__new__(BatchTable)
    table.window, table.decompress = window, like.decompress
    table.end = table.size = end
    table.first_possible = INT64_MIN
    table.stop_ = OK
    return table


cdef int add_row(BatchTable table, const BatchHeader* row) except -1:
    cdef BatchHeader* free_row = table.next_row()
    if free_row == NULL:
        raise MemoryError
    free_row[0] = row[0]
    table.n += 1
    return 0
