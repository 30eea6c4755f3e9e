"""Finds one record of a segment by its offset or its time, in one call: index entry, batch headers, records.

Answers only what a single attempt can answer. If an index misleads, bytes are damaged or the offset has no record, it
just says so; the caller then takes the slow path (segment_scan), which handles these cases.

A batch's checksum is checked before anything in it is trusted, once as long as the segment stays mapped
(CheckedBatches). Bytes that change in the page cache afterwards are not noticed.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from .batch_attributes cimport has_bit, has_open_end, hides_last_offset
from .batch_header cimport (
    CODEC_MASK, CODEC_NONE, CONTROL_BIT, TIMESTAMP_TYPE_BIT, V2_HEADER_SIZE, BatchHeader, bounds_time,
)
from .checked_batches cimport CheckedBatches
from .header_walk cimport HeaderWalk
from .index_search cimport (
    Entries, absolute_offset, floor_slot, hold_entries, key_at, relative_offset, value_at,
)
from .legacy_records cimport find_inner_base, parse_bare_message, parse_inner_message
from .batch_payload cimport check_count, open_records
from .record_batch cimport Record, check_record_headers, parse_record_v2, record_of
from .record_view cimport RecordView
from .span cimport Span, span_varint, span_varlong
from .status cimport LIMIT, OK
from .tagged_message cimport header_in
from .time_ranges cimport TimeRangesSearch
from .window cimport Window, check_whole

from seglog.errors import InvalidArgumentError

cdef extern from "<stdint.h>" nogil:
    const int64_t INT64_MIN
    const int64_t INT64_MAX


cdef enum:
    # The answers of a search besides a Status, which is 0 or less.
    NOT_CHECKED = 1         # a checksum that was not checked yet must be checked first
    UNSURE = 2              # damage, or an index that misleads

    # A search by the minute index may pass this many entries of the offset index: walking over their batches costs
    # about as much as a search in the time index.
    NEAR_ENTRIES = 4


@cython.final
@cython.no_gc           # what it refers to never refers back
@cython.freelist(8)
cdef class OpenedBatch:
    """The records of a batch, decompressed if necessary. Immutable."""

    def __init__(self):
        raise TypeError("an OpenedBatch comes from reading a record")


@cython.final
cdef class LastOpened:
    """The compressed batch that was opened last: its neighbours are likely to be read next.

    One for each log, shared by the readers of its segments: so one batch is kept, not one for each segment.
    """


@cython.final
cdef class PointReader:
    """PointReader(window, base_offset, offsets, checked, last_opened, decompress, end_offset)

    Reads records of one segment.

    window: the .log, up to the published end if it grows.
    offsets: entries of the offset index, without zeros, or None to search from the start.
    end_offset: every batch ends below it.
    checked: belongs to the map of the window, and is as large as that may become.
    """

    def __cinit__(
        self, Window window not None, int64_t base_offset, Window offsets, CheckedBatches checked not None,
        LastOpened last_opened not None, decompress, int64_t end_offset=INT64_MAX,
    ):
        if checked.size < window.size:
            raise InvalidArgumentError(f"`checked` covers {checked.size} bytes, but the window has {window.size}")
        self.window = window
        self.offsets_window = offsets
        self.checked = checked
        self.last_opened = last_opened
        self.decompress = decompress
        self.base_offset = base_offset
        self.end_offset = end_offset
        hold_entries(&self.offsets, offsets, timed=False)

    @property
    def ranges(self):
        """The time ranges of this log, which searches by time use; None if unknown."""
        return self._ranges

    @ranges.setter
    def ranges(self, TimeRangesSearch ranges):
        if ranges is not None and ranges.log_bytes != self.window.size:
            raise InvalidArgumentError(f"time ranges of {ranges.log_bytes} bytes of log, not {self.window.size}")
        self._ranges = ranges

    def get(self, int64_t offset):
        """Return the data record with this offset; None if there is none, or the slow path is needed.

        Raises what opening a compressed batch raises.
        """
        return self.find(offset)

    cdef Record find(self, int64_t offset):
        cdef BatchHeader row
        cdef RecordView view
        cdef OpenedBatch batch
        cdef int status = self.locate(offset, &row, False)
        if status == NOT_CHECKED:
            # The bytes may not be in memory yet, and a large batch's checksum takes long: let other threads run.
            with nogil:
                status = self.locate(offset, &row, True)
        if status != OK or has_bit(&row, CONTROL_BIT):
            return None
        batch = self.open(&row)
        if batch is None or find_record(batch, &row, offset, INT64_MIN, &view) != OK or view.offset != offset:
            return None
        check_whole(self.window)
        return record_of(batch.window, &row, &view)

    def find_batch(self, int64_t offset):
        """Return (last offset, position, size in bytes) of the first batch that ends at or after `offset`.

        None if there is none, or the slow path is needed.
        """
        cdef BatchHeader row
        cdef int status = self.locate(offset, &row, False)
        if status == NOT_CHECKED:
            with nogil:
                status = self.locate(offset, &row, True)
        check_whole(self.window)
        return (row.last_offset, row.position, row.size_bytes) if status == OK else None

    def find_timestamp(self, int64_t timestamp, int64_t start_offset, HeaderWalk walk not None, Window times):
        """Return (timestamp, offset, leader epoch) of the first record with at least this timestamp and offset.

        An offset of -1: there is none; -2: the slow path is needed; -3: the minute index leads too far from it, so ask
        a walk by the time index. `walk` must have reached the end of the window, unless there are ranges; `times`:
        entries of the index that was walked beside it, None without one. Raises what opening a compressed batch raises.
        """
        return self.find_time(timestamp, start_offset, walk, times)

    cdef tuple find_time(self, int64_t timestamp, int64_t start_offset, HeaderWalk walk, Window times):
        cdef BatchHeader row
        cdef RecordView view
        cdef int64_t offset = self.seek(timestamp, start_offset, walk, times, &row, &view)
        check_whole(self.window)
        if offset < 0:
            return (-1, offset, -1)
        return (view.timestamp, offset, row.leader_epoch)

    cdef int64_t seek(
        self, int64_t timestamp, int64_t start_offset, HeaderWalk walk, Window times, BatchHeader* row, RecordView* view
    ) except? -1:
        cdef OpenedBatch batch
        cdef TimeRangesSearch ranges = self._ranges     # another thread may have found them just now
        cdef bint opens_wrappers = ranges is not None
        cdef int64_t position
        cdef int64_t run = -1
        cdef int64_t stop = self.window.size
        cdef int status
        if ranges is not None:
            run = ranges.first_from(ranges.slot_of(start_offset), timestamp, INT64_MAX)
            position = ranges.position_of(run)
            stop = ranges.position_of(run + 1)
        elif walk.walked.damaged or walk.misled or walk.walked.position < self.window.size:
            return -2
        else:
            position = self.position_before(timestamp, start_offset, walk, times)
            if position < 0:
                return -3
        while True:
            status = self.pass_over(timestamp, start_offset, &position, stop, row, opens_wrappers, False)
            if status == NOT_CHECKED:
                with nogil:
                    status = self.pass_over(timestamp, start_offset, &position, stop, row, opens_wrappers, True)
            if status == LIMIT:
                if stop == self.window.size:
                    return -1
                if position != stop:
                    return -2       # no batch begins where the next run does
                run = ranges.first_from(run + 1, timestamp, INT64_MAX)
                position = ranges.position_of(run)
                stop = ranges.position_of(run + 1)
                continue
            batch = self.open(row) if status == OK else None
            if batch is None:
                return -2
            status = find_record(batch, row, start_offset, timestamp, view)
            if status == OK:
                return view.offset
            if status != LIMIT:
                return -2
            position = row.position + row.size_bytes

    cdef int locate(self, int64_t offset, BatchHeader* row, bint may_check) noexcept nogil:
        """Find the first batch that ends at or after `offset`: OK, LIMIT if there is none, NOT_CHECKED or UNSURE."""
        cdef int64_t slot = floor_slot(&self.offsets, relative_offset(offset, self.base_offset))
        cdef int64_t position = 0
        cdef int64_t before = self.base_offset - 1
        cdef int status
        self.expect_next(&self.offsets, slot)
        if slot >= 0 and value_at(&self.offsets, slot) != 0:
            # The entry is a hint: it must point to a batch that begins at or before its offset (Segment._leads_to).
            position = value_at(&self.offsets, slot)
            status = self.header_at(position, row, may_check)
            if status != OK:
                return UNSURE if status == LIMIT else status
            if row.base_offset > absolute_offset(<int32_t>key_at(&self.offsets, slot), self.base_offset):
                return UNSURE
            if not self.base_offset <= row.base_offset <= row.last_offset:
                return UNSURE
            if row.last_offset >= offset:
                return OK if self.is_in_place(slot, row) else UNSURE
            before = row.last_offset
            position += row.size_bytes
        while True:
            status = self.header_at(position, row, may_check)
            if status != OK:
                return status
            if not before < row.base_offset <= row.last_offset:
                return UNSURE
            if row.last_offset >= offset:
                return OK
            before = row.last_offset
            position += row.size_bytes

    cdef bint is_in_place(self, int64_t slot, const BatchHeader* row) noexcept nogil:
        """Whether the batch to which the entry in `slot` points has the offset that it had when the entry was made.

        No checksum covers it. Kafka's entries have the first or the last offset of their batch; if this one has the
        last of an append of several, the headers from the entry before it on decide.
        """
        cdef BatchHeader passed
        cdef int64_t entry = absolute_offset(<int32_t>key_at(&self.offsets, slot), self.base_offset)
        cdef int64_t position = value_at(&self.offsets, slot - 1) if slot > 0 else 0
        cdef int64_t before = self.base_offset - 1
        if entry == row.base_offset or entry == row.last_offset:
            return True
        while position < row.position:
            if position < 0 or header_in(self.window, self.window.size, position, &passed) != OK:
                return False
            if not before < passed.base_offset <= passed.last_offset:
                return False
            before = passed.last_offset
            position += passed.size_bytes
        return position == row.position and before < row.base_offset

    cdef void expect_next(self, const Entries* offsets, int64_t slot) noexcept nogil:
        """The entry in `slot` leads to where a search begins; it usually ends where the next one leads.

        To ask for both before either is there takes half of the time.
        """
        cdef int64_t position
        if slot + 1 < offsets.n:
            position = value_at(offsets, slot + 1)
            if 0 <= position <= self.window.size - V2_HEADER_SIZE:
                self.checked.expect(self.window.base, position)

    cdef int header_at(self, int64_t position, BatchHeader* row, bint may_check) noexcept nogil:
        """Read the header there, and check its batch: OK, LIMIT at the end of the bytes, NOT_CHECKED or UNSURE."""
        if position == self.window.size:
            return LIMIT
        if position < 0 or header_in(self.window, self.window.size, position, row) != OK:
            return UNSURE
        if has_open_end(row):
            return UNSURE
        if not self.checked.holds(position):
            if not may_check:
                return NOT_CHECKED
            if not self.is_followed(row) or not self.checked.check(self.window.base, row):
                return UNSURE
        return OK

    cdef bint is_followed(self, const BatchHeader* row) noexcept nogil:
        """Does the next batch begin after this one, and, if uncompressed, is each of its records in order?"""
        cdef BatchHeader following
        cdef Span records
        cdef int64_t end = row.position + row.size_bytes
        if row.last_offset >= self.end_offset:
            return False
        if header_in(self.window, self.window.size, end, &following) == OK:
            if following.base_offset <= row.last_offset:
                return False
        if row.magic < 2 or row.attributes & CODEC_MASK != CODEC_NONE:
            return True
        records.p = self.window.base + row.position + V2_HEADER_SIZE
        records.end = self.window.base + end
        return offsets_increase(records, row)

    cdef int64_t position_before(
        self, int64_t timestamp, int64_t start_offset, HeaderWalk walk, Window times
    ) noexcept:
        """Find a batch before which nothing is as late as `timestamp`, or nothing has as large an offset.

        -1: the minute index leads further back than the time index might.
        """
        cdef Entries believed
        cdef int64_t slot, relative
        cdef int64_t in_step = -1
        cdef int64_t next_minute = INT64_MAX
        cdef int64_t offset = start_offset
        if times is not None and timestamp > INT64_MIN:
            hold_entries(&believed, times, timed=True)
            believed.n = min(believed.n, walk.walked.time_entries)
            slot = floor_slot(&believed, timestamp - 1)
            if slot >= 0:
                offset = max(offset, absolute_offset(value_at(&believed, slot), self.base_offset))
                in_step = slot
            if slot + 1 < believed.n:
                next_minute = value_at(&believed, slot + 1)
        believed = self.offsets
        believed.n = min(believed.n, walk.walked.offset_entries)
        relative = relative_offset(offset, self.base_offset)
        # While time goes on, the two indexes get their entries together, and no second search is needed.
        if 0 <= in_step < believed.n and key_at(&believed, in_step) == relative:
            slot = in_step
        else:
            slot = floor_slot(&believed, relative)
        # As late a record lies no further than the batch that the next minute's entry names.
        if walk.by_minute and slot + NEAR_ENTRIES < believed.n and key_at(&believed, slot + NEAR_ENTRIES) < next_minute:
            return -1
        self.expect_next(&believed, slot)
        return value_at(&believed, slot) if slot >= 0 else 0

    cdef int pass_over(
        self, int64_t timestamp, int64_t start_offset, int64_t* position, int64_t stop, BatchHeader* row,
        bint opens_wrappers, bint may_check,
    ) noexcept nogil:
        """Move `position` to the next batch before `stop` that may hold such a record: as `locate` answers."""
        cdef int status
        while position[0] < stop:
            status = self.header_at(position[0], row, may_check)
            # (A wrapper's time says nothing of its messages, unless all were opened: see Segment._walk_on.)
            if status != OK or row.last_offset >= start_offset and (
                row.max_timestamp >= timestamp or (opens_wrappers and not bounds_time(row))
            ):
                return status
            position[0] += row.size_bytes
        return LIMIT

    cdef OpenedBatch open(self, const BatchHeader* row):
        """Return the records of the batch; None if it is inconsistent."""
        cdef OpenedBatch batch = self.last_opened.batch
        cdef bint compressed = row.attributes & CODEC_MASK != CODEC_NONE
        if compressed and batch is not None and batch.segment is self.checked and batch.position == row.position:
            return batch
        batch = OpenedBatch.__new__(OpenedBatch)
        batch.segment = self.checked
        batch.position = row.position
        batch.window = open_records(self.window, row, self.decompress, &batch.records)
        batch.count = row.count if row.magic == 2 else 1
        if row.magic == 2:
            if check_count(row, &batch.records) != OK:
                return None
            if compressed and not offsets_increase(batch.records, row):
                return None
        elif compressed:
            if find_inner_base(&batch.records, row, &batch.inner_base, &batch.count) != OK:
                return None
            if not messages_increase(batch, row):
                return None
        if compressed:
            self.last_opened.batch = batch
        return batch


# --- in a batch ------------------------------------------------------------------------------

cdef bint offsets_increase(Span records, const BatchHeader* row) noexcept nogil:
    """Whether the offsets of a v2 batch's records increase, and all are within the batch."""
    cdef Span record
    cdef int64_t timestamp_delta
    cdef int64_t next_delta = 0
    cdef int64_t last_delta = <int32_t>(<uint32_t>row.last_offset - <uint32_t>row.base_offset)
    cdef int32_t length
    cdef int32_t offset_delta = 0
    cdef int32_t _
    for _ in range(row.count):
        if span_varint(&records, &length) != OK or length < 1 or length > records.end - records.p:
            return False
        record.p = records.p + 1        # past the attributes
        record.end = records.p + length
        if span_varlong(&record, &timestamp_delta) != OK or span_varint(&record, &offset_delta) != OK:
            return False
        if not next_delta <= offset_delta <= last_delta:
            return False
        next_delta = <int64_t>offset_delta + 1
        records.p = record.end
    return True


cdef bint messages_increase(OpenedBatch batch, const BatchHeader* wrapper) noexcept:
    """The same for a wrapper, whose offset is that of its last message."""
    cdef Span s = batch.records
    cdef RecordView message
    cdef int64_t base = batch.inner_base
    cdef int64_t last = -1
    cdef int64_t _
    for _ in range(batch.count):
        if parse_inner_message(&s, wrapper, &base, &message) != OK or message.offset <= last:
            return False
        last = message.offset
    return last == wrapper.last_offset or hides_last_offset(wrapper)


cdef int find_record(
    OpenedBatch batch, const BatchHeader* row, int64_t offset, int64_t timestamp, RecordView* out
) noexcept:
    """Find the first record with at least this offset and timestamp: OK, LIMIT if there is none, or an error."""
    cdef Span s = batch.records
    cdef int64_t left = batch.count
    cdef int64_t base = batch.inner_base
    cdef bint in_file = row.attributes & CODEC_MASK == CODEC_NONE
    cdef int status = OK
    if row.magic == 2 and not row.attributes & TIMESTAMP_TYPE_BIT and timestamp != INT64_MIN:
        if in_file and row.base_timestamp >= 0:     # below, a difference may not fit in 64 bits
            left -= batch.segment.approach(
                batch.window.base, row, -1, timestamp - row.base_timestamp, &s)
        status = skip_earlier(&s, row, timestamp, &left)
    elif row.magic == 2 and left == row.last_offset - row.base_offset + 1 and timestamp == INT64_MIN:
        # No offset is missing, so that the record's slot is known. (Where the count lies, the offset will tell.)
        if in_file:
            left -= batch.segment.approach(batch.window.base, row, offset - row.base_offset, 0, &s)
        status = skip(&s, offset - row.base_offset - (batch.count - left), &left)
    while status == OK and left > 0:
        left -= 1
        if row.magic == 2:
            status = parse_record_v2(&s, row, out)
            if status == OK and out.header_count != 0:
                status = check_record_headers(out)
        elif row.attributes & CODEC_MASK:
            status = parse_inner_message(&s, row, &base, out)
        else:
            status = parse_bare_message(&s, row, out)
        if status == OK and out.offset >= offset and out.timestamp >= timestamp:
            return OK
    return LIMIT if status == OK else status


cdef inline int skip(Span* s, int64_t n, int64_t* left) noexcept nogil:
    """Move past n records, only by their lengths."""
    cdef int32_t length
    cdef int status
    while n > 0 and left[0] > 0:
        status = span_varint(s, &length)
        if status != OK:
            return status
        if length < 0 or length > s.end - s.p:
            return UNSURE
        s.p += length
        n -= 1
        left[0] -= 1
    return OK


cdef inline int skip_earlier(Span* s, const BatchHeader* row, int64_t timestamp, int64_t* left) noexcept nogil:
    """Move past records of CreateTime with a timestamp below this one; no other field of theirs is read."""
    cdef Span record
    cdef int32_t length
    cdef int64_t delta
    cdef int status
    while left[0] > 0:
        record = s[0]
        status = span_varint(&record, &length)
        if status != OK:
            return status
        if length < 1 or length > record.end - record.p:
            return UNSURE
        record.end = record.p + length
        record.p += 1
        status = span_varlong(&record, &delta)
        if status != OK:
            return status
        if <int64_t>(<uint64_t>row.base_timestamp + <uint64_t>delta) >= timestamp:
            return OK
        s.p = record.end
        left[0] -= 1
    return OK
