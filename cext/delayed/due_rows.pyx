"""Rows of delayed messages: sorted, cut into snapshot segments, encoded and decoded.

A DueRows owns its rows; one thread at a time may change them. Slow operations (sorting, encoding, decoding) run without
the GIL, because they are background work beside a thread that adds messages.

The bytes of a segment are Pulsar's SnapshotSegment, docs/formats/delayed_index_snapshot.md:

    segment := (0x0a size index)*
    index   := 0x08 timestamp 0x10 ledger_id 0x18 entry_id       every number a protobuf varint

Encoding writes exactly this; decoding accepts fields in any order and skips unknown ones, as protobuf does.
"""
cimport cython
from array import array

from cpython cimport array as c_array
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from seglog.errors import CorruptDelayedIndexError, InvalidArgumentError

from .one_at_a_time cimport begin_alone, begin_reading, check_free, end_alone, end_reading
from .protobuf_span cimport skip_field, span_bytes, span_tag, span_uvarint, store_uvarint
from .span cimport Span
from .status cimport NO_MEMORY, OFFSET_RANGE, OK, SHORT
from .window cimport Window

from .status import words

cdef enum:
    # Below this many rows, insertion sort is faster than counting digits.
    FEW_ROWS = 24
    # A digit of 11 bits: three passes sort delays of a day in ms, and 2048 counters stay in the first-level cache.
    # Below this many rows, clearing the counters costs more than passing over the rows: they get digits of 8 bits.
    WIDE_DIGIT_BITS = 11
    NARROW_DIGIT_BITS = 8
    WIDE_FROM_ROWS = 4096


# --- sorting -----------------------------------------------------------------------------

cdef void insertion_sort(DueRow* rows, int64_t n) noexcept nogil:
    cdef int64_t i, j
    cdef DueRow row
    for i in range(1, n):
        row = rows[i]
        j = i
        while j > 0 and row_below(&row, &rows[j - 1]):
            rows[j] = rows[j - 1]
            j -= 1
        rows[j] = row


cdef inline uint64_t field_of(const DueRow* row, int field) noexcept nogil:
    return <uint64_t>(<const int64_t*>row)[field]


cdef bint in_order(const DueRow* rows, int64_t n) noexcept nogil:
    cdef int64_t i
    for i in range(1, n):
        if row_below(&rows[i], &rows[i - 1]):
            return False
    return True


cdef bint positions_rise(const DueRow* rows, int64_t n) noexcept nogil:
    cdef int64_t i
    for i in range(1, n):
        if rows[i].ledger_id < rows[i - 1].ledger_id or (
            rows[i].ledger_id == rows[i - 1].ledger_id and rows[i].entry_id < rows[i - 1].entry_id
        ):
            return False
    return True


cdef int sort_rows(DueRow* rows, int64_t n) noexcept nogil:
    """Radix sort from the least significant digit up, skipping digits in which all rows agree.

    Each pass is stable, so rows that arrived in the order of their positions, as a log gives them, are only
    sorted by time: three passes if delays spread over a day.
    """
    cdef uint64_t differ[3]
    cdef int64_t* counts
    cdef DueRow* scratch
    cdef DueRow* source = rows
    cdef DueRow* target
    cdef DueRow* swap
    cdef int64_t i, place, held
    cdef int field, shift, step
    cdef uint64_t digit
    cdef int bits = WIDE_DIGIT_BITS if n >= WIDE_FROM_ROWS else NARROW_DIGIT_BITS
    cdef int64_t digits = 1 << bits
    cdef uint64_t mask = <uint64_t>digits - 1
    if n <= FEW_ROWS:
        insertion_sort(rows, n)
        return OK
    if in_order(rows, n):
        return OK
    scratch = <DueRow*>malloc(n * sizeof(DueRow))
    counts = <int64_t*>malloc(digits * sizeof(int64_t))
    if scratch == NULL or counts == NULL:
        free(scratch)
        free(counts)
        return NO_MEMORY
    memset(differ, 0, sizeof(differ))
    for i in range(1, n):
        differ[0] |= field_of(&rows[i], 0) ^ field_of(rows, 0)
        differ[1] |= field_of(&rows[i], 1) ^ field_of(rows, 1)
        differ[2] |= field_of(&rows[i], 2) ^ field_of(rows, 2)
    if positions_rise(rows, n):
        differ[1] = differ[2] = 0
    target = scratch
    for step in range(3):
        field = 2 - step
        shift = 0
        while shift < 64 and (differ[field] >> shift) != 0:
            if (differ[field] >> shift) & mask:
                memset(counts, 0, digits * sizeof(int64_t))
                for i in range(n):
                    counts[(field_of(&source[i], field) >> shift) & mask] += 1
                place = 0
                for i in range(digits):
                    held = counts[i]
                    counts[i] = place
                    place += held
                for i in range(n):
                    digit = (field_of(&source[i], field) >> shift) & mask
                    target[counts[digit]] = source[i]
                    counts[digit] += 1
                swap = source
                source = target
                target = swap
            shift += bits
    if source != rows:
        memcpy(rows, source, n * sizeof(DueRow))
    free(scratch)
    free(counts)
    return OK


cdef int64_t first_after(const DueRow* rows, int64_t n, int64_t deliver_at) noexcept nogil:
    cdef int64_t low = 0
    cdef int64_t half
    while n > 0:
        half = n >> 1
        if rows[low + half].deliver_at <= deliver_at:
            low += half + 1
            n -= half + 1
        else:
            n = half
    return low


# --- protobuf ----------------------------------------------------------------------------

cdef int parse_index(Span* s, DueRow* row) noexcept nogil:
    cdef uint64_t tag, value
    cdef uint64_t fields[4]
    cdef int seen = 0
    cdef int rc
    while s.p != s.end:
        rc = span_tag(s, &tag)
        if rc != OK:
            return rc
        if tag == 0x08 or tag == 0x10 or tag == 0x18:
            rc = span_uvarint(s, &value)
            fields[tag >> 3] = value
            seen |= 1 << <int>(tag >> 3)
        else:
            rc = skip_field(s, tag)
        if rc != OK:
            return rc
    if seen != 0b1110:
        return SHORT
    if fields[1] > INT64_MAX or fields[2] > INT64_MAX or fields[3] > MAX_ENTRY_ID:
        return OFFSET_RANGE
    row.deliver_at = <int64_t>fields[1]
    row.ledger_id = <int64_t>fields[2]
    row.entry_id = <int64_t>fields[3]
    return OK


cdef int64_t encode_rows(const DueRow* rows, int64_t n, uint8_t* out) noexcept nogil:
    cdef uint8_t* p = out
    cdef uint8_t* body
    cdef int64_t i
    for i in range(n):
        # An index takes less than 128 bytes, so its size takes one byte, which is written after it.
        body = p + 2
        p[0] = 0x0A
        body[0] = 0x08
        body = store_uvarint(body + 1, <uint64_t>rows[i].deliver_at)
        body[0] = 0x10
        body = store_uvarint(body + 1, <uint64_t>rows[i].ledger_id)
        body[0] = 0x18
        body = store_uvarint(body + 1, <uint64_t>rows[i].entry_id)
        p[1] = <uint8_t>(body - p - 2)
        p = body
    return p - out


cdef int64_t segment_end(
    const DueRow* rows, int64_t n, int64_t first, int64_t time_step_ms, int64_t most
) noexcept nogil:
    cdef int64_t last_at = rows[first].deliver_at
    cdef int64_t end
    last_at = last_at + time_step_ms - 1 if last_at <= INT64_MAX - time_step_ms else INT64_MAX
    # A step of 0 or 1 still includes all rows due at the same time.
    last_at = max(last_at, rows[first].deliver_at)
    end = first + first_after(rows + first, n - first, last_at)
    return min(end, first + max(most, 1)) if end - first > most else end


@cython.final
cdef class DueRows:
    """Rows (deliver_at, ledger_id, entry_id), in the order in which they were appended until `sort`."""

    def __dealloc__(self):
        free(self.rows)

    cdef int reserve(self, int64_t more) except -1:
        cdef int64_t capacity = self.capacity
        cdef DueRow* rows
        if more <= capacity - self.count:
            return 0
        capacity = max(self.count + more, capacity + capacity // 2)
        rows = <DueRow*>realloc(self.rows, capacity * sizeof(DueRow))
        if rows == NULL:
            raise MemoryError
        self.rows = rows
        self.capacity = capacity
        return 0

    cdef void give_back(self) noexcept:
        """Free the memory that the rows do not use."""
        cdef DueRow* rows
        if self.count:
            rows = <DueRow*>realloc(self.rows, self.count * sizeof(DueRow))
            if rows != NULL:
                self.rows = rows
                self.capacity = self.count

    cdef DueRow* give_away(self) noexcept:
        """Transfer the rows to the caller; this object is then empty."""
        cdef DueRow* rows = self.rows
        self.rows = NULL
        self.count = self.capacity = 0
        return rows

    def __len__(self):
        return self.count

    def __getitem__(self, int64_t slot):
        if not 0 <= slot < self.count:
            raise IndexError(f"row {slot} of {self.count}")
        return (self.rows[slot].deliver_at, self.rows[slot].ledger_id, self.rows[slot].entry_id)

    def __iter__(self):
        cdef int64_t slot
        for slot in range(self.count):
            yield self[slot]

    def append(self, int64_t deliver_at, int64_t ledger_id, int64_t entry_id):
        """Add a row. Raises InvalidArgumentError if a number is out of range."""
        check_free(&self.use, self)
        check_row(deliver_at, ledger_id, entry_id)
        self.reserve(1)
        self.rows[self.count] = DueRow(deliver_at, ledger_id, entry_id)
        self.count += 1

    def sort(self):
        """Sort by deliver_at, ledger_id, entry_id."""
        cdef int rc
        begin_alone(&self.use, self)
        try:
            with nogil:
                rc = sort_rows(self.rows, self.count)
            if rc != OK:
                raise MemoryError
        finally:
            end_alone(&self.use)

    def keep_after(self, int64_t deliver_at):
        """Drop the rows due at `deliver_at` or earlier. The rows must be sorted."""
        cdef int64_t due = first_after(self.rows, self.count, deliver_at)
        cdef int64_t i
        check_free(&self.use, self)
        if due:
            for i in range(due, self.count):
                self.rows[i - due] = self.rows[i]
            self.count -= due

    def keep_before(self, deliver_at):
        """Drop the rows due at `deliver_at` (up to 2**63) or later. The rows must be sorted."""
        check_free(&self.use, self)
        self.count = first_after(self.rows, self.count, min(deliver_at - 1, INT64_MAX))

    def drop(self, int64_t n):
        """Drop the first n rows."""
        check_free(&self.use, self)
        self.check_range(0, n)
        if n == 0:
            return
        memmove(self.rows, self.rows + n, (self.count - n) * sizeof(DueRow))
        self.count -= n

    def extend(self, DueRows other not None):
        """Append the rows of another DueRows."""
        check_free(&self.use, self)
        check_free(&other.use, other)
        if other.count == 0:
            return              # its pointer may be NULL
        self.reserve(other.count)
        memcpy(self.rows + self.count, other.rows, other.count * sizeof(DueRow))
        self.count += other.count

    def encode(self, int64_t start, int64_t stop):
        """The rows [start, stop) as the bytes of a SnapshotSegment."""
        cdef uint8_t* scratch
        cdef int64_t size
        begin_reading(&self.use, self)
        try:
            self.check_range(start, stop)
            scratch = <uint8_t*>malloc((stop - start) * MAX_INDEX_BYTES + 1)
            if scratch == NULL:
                raise MemoryError
            try:
                with nogil:
                    size = encode_rows(self.rows + start, stop - start, scratch)
                return PyBytes_FromStringAndSize(<char*>scratch, size)
            finally:
                free(scratch)
        finally:
            end_reading(&self.use)

    def entries_by_ledger(self, int64_t start, int64_t stop):
        """[(ledger_id, sorted array of entry ids), …] of rows [start, stop), ledgers in order of their first row."""
        cdef DueRow* rows
        cdef int64_t n = stop - start
        cdef int64_t i, j, begin
        cdef int rc
        cdef c_array.array entries
        begin_reading(&self.use, self)
        try:
            self.check_range(start, stop)
            rows = <DueRow*>malloc(max(n, 1) * sizeof(DueRow))
            if rows == NULL:
                raise MemoryError
            found = []
            try:
                with nogil:
                    # Sorted by position, with the row's number instead of its time.
                    for i in range(n):
                        rows[i].deliver_at = 0
                        rows[i].ledger_id = self.rows[start + i].ledger_id
                        rows[i].entry_id = (self.rows[start + i].entry_id << 31) | i
                    rc = sort_rows(rows, n)
                if rc != OK:
                    raise MemoryError
                begin = 0
                while begin < n:
                    i = begin
                    j = INT64_MAX
                    while i < n and rows[i].ledger_id == rows[begin].ledger_id:
                        j = min(j, rows[i].entry_id & 0x7FFFFFFF)
                        i += 1
                    entries = c_array.clone(ENTRY_IDS, i - begin, False)
                    for i in range(begin, i):
                        entries.data.as_uints[i - begin] = <uint32_t>(rows[i].entry_id >> 31)
                    found.append((j, rows[begin].ledger_id, entries))
                    begin += len(entries)
            finally:
                free(rows)
            found.sort()            # by first row, which differs for each ledger
            return [(ledger_id, entries) for _, ledger_id, entries in found]
        finally:
            end_reading(&self.use)

    cdef int check_range(self, int64_t start, int64_t stop) except -1:
        if not 0 <= start <= stop <= self.count or stop - start > 0x7FFFFFFF:
            raise IndexError(f"rows {start} to {stop} of {self.count}")
        return 0


cdef c_array.array ENTRY_IDS = array("I")


cdef int check_row(int64_t deliver_at, int64_t ledger_id, int64_t entry_id) except -1:
    if deliver_at < 0 or ledger_id < 0 or not 0 <= entry_id <= MAX_ENTRY_ID:
        raise InvalidArgumentError(
            f"times and ledger ids are 0 or more, entry ids 0 to {<int64_t>MAX_ENTRY_ID}; "
            f"found deliver_at {deliver_at}, ledger_id {ledger_id}, entry_id {entry_id}"
        )
    return 0


def decode_segment(Window window not None):
    """The rows of a SnapshotSegment, sorted. Raises CorruptDelayedIndexError."""
    cdef DueRows found = DueRows()
    cdef Span s
    cdef Span inner
    cdef uint64_t tag
    cdef int rc = OK
    cdef int64_t n = 0
    # Tag, size and three fields of two bytes each: the smallest index.
    cdef int64_t room = window.size // 8 + 1
    s.p = window.base
    s.end = window.base + window.size
    found.reserve(room)
    with nogil:
        while s.p != s.end:
            rc = span_tag(&s, &tag)
            if rc == OK and tag == 0x0A:
                rc = span_bytes(&s, &inner)
                if rc == OK:
                    rc = parse_index(&inner, &found.rows[n])
                    n += 1
            elif rc == OK:
                rc = skip_field(&s, tag)
            if rc != OK:
                break
        if rc == OK:
            found.count = n
            rc = sort_rows(found.rows, n)
    found.give_back()
    if rc == NO_MEMORY:
        raise MemoryError
    if rc != OK:
        what = "a number outside its range" if rc == OFFSET_RANGE else words(rc)
        raise CorruptDelayedIndexError(
            f"index {n} of a snapshot segment: {what}", file=window.name, position=s.p - window.base
        )
    return found
