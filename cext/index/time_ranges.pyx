"""Builds and searches the time ranges of a segment. For the layout, see docs/formats/time_ranges.md.

Ranges come from records, never from headers: a wrapper may state an earlier time than that of its messages, and no
header has the smallest time. So compressed batches are opened.

Runs are grouped by sixteen, groups by sixteen again, up to a level of sixteen groups or fewer; each group has the
smallest and the largest timestamp of its members. A search climbs from its first run as long as groups exclude the
time, and descends into the first one that may contain it: at most 32 comparisons a level, 160 for a million runs.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from .batch_header cimport CODEC_MASK, CODEC_NONE, TIMESTAMP_TYPE_BIT, BatchHeader
from .batch_payload cimport check_count, open_records, raise_batch
from .crc cimport update_crc32c
from .legacy_records cimport find_inner_base, parse_inner_message
from .one_at_a_time cimport Use, begin_alone, check_free, end_alone
from .output cimport Output, ensure_room
from .record_view cimport RecordView
from .segment_scan cimport BatchTable
from .span cimport Span, load_i32, load_i64, load_u32, span_varint, span_varlong, store_u32, store_u64
from .status cimport BAD_SIZE, NO_MEMORY, OK, SHORT
from .tagged_message cimport header_in
from .window cimport Window, check_whole

from seglog.errors import CorruptIndexError, InvalidArgumentError, UnsupportedVersionError

cdef extern from "<stdint.h>" nogil:
    const int64_t INT64_MIN
    const int64_t INT64_MAX

cdef enum:
    MAGIC = 0x53475452          # "SGTR"
    VERSION = 1
    HEADER_BYTES = 64
    CRC_FROM = 12               # run size to the end
    RUN_BYTES = 32              # position, first offset, smallest and largest timestamp
    RANGE_BYTES = 16            # smallest and largest timestamp
    GROUP = 16

cdef struct Range:
    int64_t smallest
    int64_t largest


cdef inline void widen(Range* total, int64_t smallest, int64_t largest) noexcept nogil:
    total.smallest = min(total.smallest, smallest)
    total.largest = max(total.largest, largest)


cdef inline bint meets(const Range* times, int64_t smallest, int64_t largest) noexcept nogil:
    """Whether one of these times may be in [smallest, largest]."""
    return times.largest >= smallest and times.smallest <= largest


cdef inline int64_t groups_of(int64_t count) noexcept nogil:
    """Return the number of groups of the next level; 0: there is none."""
    return (count + GROUP - 1) // GROUP if count > GROUP else 0


# --- making --------------------------------------------------------------------------------------


@cython.final
cdef class TimeRangesBuilder:
    """TimeRangesBuilder(base_offset, run_bytes): `add` the batches of a segment, in order, then `finish`.

    A run ends with the first batch that brings it to `run_bytes`.
    """
    cdef Output runs
    cdef int64_t base_offset
    cdef int64_t run_bytes
    cdef int64_t position           # of the run that is being filled
    cdef int64_t first_offset
    cdef Range times
    cdef int64_t end                # of the batches seen
    cdef int64_t next_offset
    cdef int64_t last_position
    cdef uint32_t last_crc
    cdef Use use

    def __cinit__(self, int64_t base_offset, int64_t run_bytes):
        if not 0 < run_bytes < 1 << 31:
            raise InvalidArgumentError(f"a run must have 1 to {(1 << 31) - 1} bytes, not {run_bytes}")
        self.base_offset = self.first_offset = self.next_offset = base_offset
        self.run_bytes = run_bytes
        self.begin_run()

    def __dealloc__(self):
        free(self.runs.first)

    def add(self, BatchTable table not None, decompress):
        """Add the next batches, whose checksums were checked. Raises what reading their records raises."""
        cdef Py_ssize_t slot
        cdef const BatchHeader* row
        begin_alone(&self.use, self)
        try:
            for slot in range(table.n):
                row = &table.rows[slot]
                if row.position != self.end:
                    raise InvalidArgumentError(f"a batch at byte {row.position}, expected at {self.end}")
                if row.last_offset < self.next_offset:
                    raise InvalidArgumentError(f"a batch up to {row.last_offset} after offset {self.next_offset - 1}")
                self.add_times(table.window, row, decompress)
                self.end = row.position + row.size_bytes
                self.next_offset = row.last_offset + 1      # (parse_header: never the last int64)
                self.last_position = row.position
                self.last_crc = row.crc
                if self.end - self.position >= self.run_bytes and self.end_run() != OK:
                    raise MemoryError
        finally:
            end_alone(&self.use)

    def finish(self):
        """Return the bytes of the file."""
        cdef int64_t count, below, made, slot
        cdef int64_t size
        cdef uint8_t* to
        cdef const uint8_t* source
        cdef Range total
        cdef int step = RUN_BYTES
        check_free(&self.use, self)
        if self.end > self.position and self.end_run() != OK:
            raise MemoryError
        count = self.runs.size // RUN_BYTES
        size = HEADER_BYTES + self.runs.size
        made = groups_of(count)
        while made:
            size += made * RANGE_BYTES
            made = groups_of(made)
        raw = PyBytes_FromStringAndSize(NULL, size)
        to = <uint8_t*>PyBytes_AS_STRING(raw)
        store_u32(to, MAGIC)
        store_u32(to + 4, VERSION)
        store_u32(to + 12, <uint32_t>self.run_bytes)
        store_u32(to + 16, <uint32_t>count)
        store_u32(to + 20, self.last_crc)
        store_u64(to + 24, <uint64_t>self.base_offset)
        store_u64(to + 32, <uint64_t>self.next_offset)
        store_u64(to + 40, <uint64_t>self.end)
        store_u64(to + 48, <uint64_t>self.last_position)
        store_u64(to + 56, 0)
        source = to + HEADER_BYTES
        if self.runs.size:
            memcpy(to + HEADER_BYTES, self.runs.first, self.runs.size)
        to += HEADER_BYTES + self.runs.size
        below = count
        made = groups_of(below)
        while made:
            for slot in range(made):
                total = range_over(source, below, step, slot)
                store_u64(to + slot * RANGE_BYTES, <uint64_t>total.smallest)
                store_u64(to + slot * RANGE_BYTES + 8, <uint64_t>total.largest)
            source, step, below = to, RANGE_BYTES, made
            to += made * RANGE_BYTES
            made = groups_of(below)
        to = <uint8_t*>PyBytes_AS_STRING(raw)
        store_u32(to + 8, update_crc32c(0, to + CRC_FROM, size - CRC_FROM))
        return raw

    cdef void begin_run(self) noexcept nogil:
        self.position = self.end
        self.first_offset = self.next_offset
        self.times.smallest = INT64_MAX
        self.times.largest = INT64_MIN

    cdef int end_run(self) noexcept nogil:
        cdef uint8_t* to
        if self.runs.size // RUN_BYTES >= 0x7FFFFFFF or ensure_room(&self.runs, RUN_BYTES) != OK:
            return NO_MEMORY
        to = self.runs.first + self.runs.size
        store_u64(to, <uint64_t>self.position)
        store_u64(to + 8, <uint64_t>self.first_offset)
        store_u64(to + 16, <uint64_t>self.times.smallest)
        store_u64(to + 24, <uint64_t>self.times.largest)
        self.runs.size += RUN_BYTES
        self.begin_run()
        return OK

    cdef int add_times(self, Window window, const BatchHeader* row, decompress) except -1:
        cdef Span records
        cdef Window _opened         # keeps the bytes of `records`
        cdef int64_t inner_base = 0
        cdef int64_t count = 0
        cdef int status
        if row.magic == 2 and row.attributes & TIMESTAMP_TYPE_BIT:
            if row.count > 0:       # all of its records have this time, whatever stands in them
                widen(&self.times, row.max_timestamp, row.max_timestamp)
            return 0
        if row.magic < 2 and row.attributes & CODEC_MASK == CODEC_NONE:
            widen(&self.times, row.max_timestamp, row.max_timestamp)
            return 0
        _opened = open_records(window, row, decompress, &records)
        if row.magic == 2:
            status = check_count(row, &records)
            if status == OK:
                with nogil:
                    status = add_records(&self.times, records, row)
        else:
            status = find_inner_base(&records, row, &inner_base, &count)
            if status == OK:
                with nogil:
                    status = add_messages(&self.times, records, row, inner_base, count)
        if status != OK:
            raise_batch(status, window, row)
        check_whole(window)
        return 0


cdef int add_records(Range* total, Span records, const BatchHeader* row) noexcept nogil:
    """The times of a v2 batch of CreateTime; no other field of its records is read."""
    cdef Span record
    cdef int64_t delta, timestamp
    cdef int32_t length
    cdef int32_t _
    cdef int status
    for _ in range(row.count):
        status = span_varint(&records, &length)
        if status != OK:
            return status
        if length < 1:
            return BAD_SIZE
        if length > records.end - records.p:
            return SHORT
        record.p = records.p + 1        # past the attributes
        record.end = records.p + length
        status = span_varlong(&record, &delta)
        if status != OK:
            return status
        # Unsigned: deltas may be anything, and signed overflow would be undefined.
        timestamp = <int64_t>(<uint64_t>row.base_timestamp + <uint64_t>delta)
        widen(total, timestamp, timestamp)
        records.p = record.end
    return OK


cdef int add_messages(
    Range* total, Span records, const BatchHeader* wrapper, int64_t inner_base, int64_t count
) noexcept nogil:
    cdef RecordView message
    cdef int64_t _
    cdef int status
    for _ in range(count):
        status = parse_inner_message(&records, wrapper, &inner_base, &message)
        if status != OK:
            return status
        widen(total, message.timestamp, message.timestamp)
    return OK


cdef inline Range range_at(const uint8_t* entries, int step, int64_t slot) noexcept nogil:
    """Of a run or a group: the last two fields of its entry."""
    cdef const uint8_t* at = entries + (slot + 1) * step - RANGE_BYTES
    cdef Range found
    found.smallest = load_i64(at)
    found.largest = load_i64(at + 8)
    return found


cdef Range range_over(const uint8_t* entries, int64_t count, int step, int64_t group) noexcept nogil:
    """Of the entries of one group of the next level."""
    cdef Range total, part
    cdef int64_t slot
    total.smallest = INT64_MAX
    total.largest = INT64_MIN
    for slot in range(group * GROUP, min((group + 1) * GROUP, count)):
        part = range_at(entries, step, slot)
        widen(&total, part.smallest, part.largest)
    return total


# --- searching -----------------------------------------------------------------------------------


cdef class TimeRangesSearch:
    """TimeRangesSearch(window): a complete file. Its contents are checked once, including positions and groups.

    Raises CorruptIndexError, UnsupportedVersionError. Thread-safe.
    """

    def __cinit__(self, Window window not None):
        self.window = window
        try:
            self.check()
        except CorruptIndexError:
            window.check_size()
            raise
        check_whole(window)

    cdef int check(self) except -1:
        cdef const uint8_t* base = self.window.base
        cdef const uint8_t* end = base + self.window.size
        cdef int64_t wrong
        name = self.window.name
        if self.window.size < CRC_FROM or load_u32(base) != MAGIC:
            raise CorruptIndexError("not a file of time ranges: it does not begin with SGTR", file=name, position=0)
        if load_i32(base + 4) != VERSION:
            raise UnsupportedVersionError(
                f"time ranges of version {load_i32(base + 4)}; this seglog reads version {VERSION}", file=name,
                position=4, hint="a newer seglog wrote them: use it, or remove the file; searches work without it",
            )
        if self.window.size < HEADER_BYTES:
            raise CorruptIndexError(f"invalid size: {self.window.size} bytes", file=name, position=self.window.size)
        with nogil:
            wrong = update_crc32c(0, base + CRC_FROM, self.window.size - CRC_FROM) != load_u32(base + 8)
        if wrong:
            raise CorruptIndexError("the checksum does not match", file=name, position=8)
        self.run_bytes = load_i32(base + 12)
        self.n = load_i32(base + 16)
        self.last_crc = load_u32(base + 20)
        self.base_offset = load_i64(base + 24)
        self.next_offset = load_i64(base + 32)
        self.log_bytes = load_i64(base + 40)
        self.last_position = load_i64(base + 48)
        if self.n < 0 or self.n > (end - base - HEADER_BYTES) // RUN_BYTES:
            raise CorruptIndexError(
                f"{self.n} runs in a file of {self.window.size} bytes", file=name, position=16)
        self.runs = base + HEADER_BYTES
        if not self.place_groups(self.runs + self.n * RUN_BYTES, end):
            raise CorruptIndexError(
                f"{self.window.size} bytes do not fit {self.n} runs and their groups", file=name, position=16)
        with nogil:
            wrong = self.first_wrong()
        if wrong >= 0:
            raise CorruptIndexError(
                f"run {wrong} or one of its groups does not match the others", file=name,
                position=HEADER_BYTES + wrong * RUN_BYTES)
        return 0

    cdef bint place_groups(self, const uint8_t* at, const uint8_t* end) noexcept:
        cdef int64_t count = groups_of(self.n)
        self.levels = 0
        while count:
            if self.levels == LEVELS_MAX or count > (end - at) // RANGE_BYTES:
                return False
            self.groups[self.levels] = at
            self.counts[self.levels] = count
            self.levels += 1
            at += count * RANGE_BYTES
            count = groups_of(count)
        return at == end

    cdef int64_t first_wrong(self) noexcept nogil:
        """The first run that does not follow the one before it, or whose groups do not agree with it; -1: none."""
        cdef int64_t slot
        cdef int64_t position = -1
        cdef int64_t offset = self.base_offset - 1 if self.base_offset > 0 else -1
        cdef Range found, expected
        cdef const uint8_t* entries = self.runs
        cdef int64_t count = self.n
        cdef int64_t size = 1
        cdef int step = RUN_BYTES
        cdef int level
        if (
            self.base_offset < 0 or self.next_offset < self.base_offset
            or not 0 <= self.last_position <= self.log_bytes or (self.n == 0) != (self.log_bytes == 0)
        ):
            return 0
        for slot in range(self.n):
            if (
                (slot == 0 and (self.position_of(0) != 0 or self.offset_of(0) != self.base_offset))
                or not position < self.position_of(slot) < self.log_bytes
                or not offset < self.offset_of(slot) < self.next_offset
            ):
                return slot
            position, offset = self.position_of(slot), self.offset_of(slot)
        for level in range(self.levels):
            size *= GROUP
            for slot in range(self.counts[level]):
                found = range_at(self.groups[level], RANGE_BYTES, slot)
                expected = range_over(entries, count, step, slot)
                if found.smallest != expected.smallest or found.largest != expected.largest:
                    return slot * size
            entries, count, step = self.groups[level], self.counts[level], RANGE_BYTES
        return -1

    cdef int64_t position_of(self, int64_t slot) noexcept nogil:
        return load_i64(self.runs + slot * RUN_BYTES) if slot < self.n else self.log_bytes

    cdef int64_t offset_of(self, int64_t slot) noexcept nogil:
        return load_i64(self.runs + slot * RUN_BYTES + 8) if slot < self.n else self.next_offset

    cdef int64_t slot_of(self, int64_t offset) noexcept nogil:
        cdef int64_t low = 0
        cdef int64_t high = self.n
        cdef int64_t middle
        while low < high:
            middle = (low + high) >> 1
            if self.offset_of(middle) <= offset:
                low = middle + 1
            else:
                high = middle
        return low - 1 if low > 0 else 0

    cdef int64_t first_from(self, int64_t slot, int64_t smallest, int64_t largest) noexcept nogil:
        cdef const uint8_t* entries = self.runs
        cdef int64_t count = self.n
        cdef int64_t stop
        cdef int step = RUN_BYTES
        cdef int level = -1
        cdef Range found
        if slot >= self.n:
            return self.n
        while True:
            # To the end of this group; on the coarsest level, of all.
            stop = min((slot // GROUP + 1) * GROUP, count) if level < self.levels - 1 else count
            while slot < stop:
                found = range_at(entries, step, slot)
                if meets(&found, smallest, largest):
                    break
                slot += 1
            if slot < stop:
                if level < 0:
                    return slot
                level -= 1          # into it: a run in it may match; if none does, the search continues after it
                slot *= GROUP
            elif level == self.levels - 1:
                return self.n
            elif slot == count:
                return self.n
            else:
                level += 1
                slot = slot // GROUP
            if level < 0:
                entries, count, step = self.runs, self.n, RUN_BYTES
            else:
                entries, count, step = self.groups[level], self.counts[level], RANGE_BYTES

    # --- for Python ------------------------------------------------------------------------------

    def __len__(self):
        return self.n

    @property
    def bounds(self):
        """The (smallest, largest) timestamp of all; (2^63 - 1, -2^63) if there is no record."""
        cdef Range total
        cdef int top = self.levels - 1
        if top < 0:
            total = range_over(self.runs, self.n, RUN_BYTES, 0)
        else:       # it has no more than one group could hold
            total = range_over(self.groups[top], self.counts[top], RANGE_BYTES, 0)
        return total.smallest, total.largest

    def run(self, int64_t slot):
        """Return (first offset, offset after it, position, end, smallest, largest timestamp) of a run."""
        cdef Range found
        if slot < 0 or slot >= self.n:
            raise IndexError(f"run {slot} of {self.n}")
        found = range_at(self.runs, RUN_BYTES, slot)
        return (
            self.offset_of(slot), self.offset_of(slot + 1), self.position_of(slot), self.position_of(slot + 1),
            found.smallest, found.largest,
        )

    def slot_at(self, int64_t offset):
        """Return the run with `offset`; the first one for offsets before it, the last one for those after."""
        return self.slot_of(offset)

    def find(self, int64_t slot, int64_t smallest, int64_t largest):
        """Return the first run from `slot` on that may have a timestamp in [smallest, largest]; -1: none."""
        if slot < 0:
            raise IndexError(f"run {slot} of {self.n}")
        slot = self.first_from(slot, smallest, largest)
        return slot if slot < self.n else -1

    def find_end(self, int64_t slot, int64_t smallest, int64_t largest):
        """Return the first run from `slot` on without such a timestamp; the number of runs if all have one."""
        cdef Range found
        if slot < 0:
            raise IndexError(f"run {slot} of {self.n}")
        while slot < self.n:
            found = range_at(self.runs, RUN_BYTES, slot)
            if not meets(&found, smallest, largest):
                break
            slot += 1
        return slot

    def copy(
        self, int64_t first, int64_t[::1] offsets not None, int64_t[::1] positions not None,
        int64_t[::1] smallest not None, int64_t[::1] largest not None,
    ):
        """Copy the runs from `first` on to columns, one for each field; as many as fit."""
        cdef Py_ssize_t i
        cdef Range found
        cdef Py_ssize_t n = offsets.shape[0]
        if not n == positions.shape[0] == smallest.shape[0] == largest.shape[0]:
            raise InvalidArgumentError("the columns have different lengths")
        if first < 0 or first > self.n or n > self.n - first:
            raise InvalidArgumentError(f"runs {first} to {first + n}: there are {self.n}")
        for i in range(n):
            found = range_at(self.runs, RUN_BYTES, first + i)
            offsets[i] = self.offset_of(first + i)
            positions[i] = self.position_of(first + i)
            smallest[i] = found.smallest
            largest[i] = found.largest

    def describes(self, Window log not None):
        """Whether they were made from this log: any change of a log changes its size or its last batch."""
        cdef BatchHeader row
        if log.size != self.log_bytes:
            return False
        if self.log_bytes == 0:
            return True
        return (
            header_in(log, log.size, self.last_position, &row) == OK
            and row.size_bytes == log.size - self.last_position
            and row.crc == self.last_crc and row.last_offset == self.next_offset - 1
        )
