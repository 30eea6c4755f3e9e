"""Builds a segment's offset index, time index and minute index from its batch headers.

The rule is the one that Kafka 3.9.1 and 4.1.1 follow on append (LogSegment.append) and on recovery
(LogSegment.recover), so an index is a function of its log, one decision a batch:

    if the batch's max timestamp is above all before it: remember it and the batch's LAST offset
    if more than index.interval.bytes lie between the last indexed batch and this one:
        offset index: (last offset of this batch, position of its first byte)
        time index:   (the remembered timestamp and offset), if above the last entry's timestamp
        minute index: the same pair, if the timestamp lies in a later minute than the last entry's
    at the end: the remembered pair once more into the time index, by the same condition (a closed
    segment names its largest timestamp)

The tagged dialect has a single index for both: (last offset of this batch, the largest timestamp up to its end,
position of its first byte), and a closed segment has no further entry.

The first batch of a segment never gets an entry. Kafka 2.8.2 decided once per append instead, and every
Kafka restarts its count when it opens a log, so its live files may hold other entries than a rebuild
would; readers accept both.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from seglog.errors import CorruptRecordError, InvalidArgumentError

from .index_search cimport TIME_ENTRY_SIZE, entry_size_of
from .one_at_a_time cimport begin_alone, check_free, end_alone
from .output cimport Output, ensure_room
from .segment_scan cimport BatchTable
from .span cimport store_u32, store_u64
from .status cimport NO_MEMORY, NO_SPACE, OFFSET_BACK, OFFSET_RANGE, OK, raise_status


cdef enum:
    MINUTE_MS = 60_000


@cython.final
cdef class IndexBuilder:
    """Makes index entries from batch headers in file order.

    `base_offset` is the segment's; `index_interval_bytes` is index.interval.bytes; `max_index_bytes`
    is segment.index.bytes (-1: no bound), which is what makes an index full. `is_tagged`: entries of the tagged
    dialect; those of the offset index are then the time index's, too, and nothing else is made.
    """
    def __cinit__(self, int64_t base_offset, int64_t index_interval_bytes=4096, *, int64_t max_index_bytes=-1,
                  bint is_tagged=False):
        if base_offset < 0 or index_interval_bytes < 0:
            raise InvalidArgumentError(
                f"a segment's base offset and index.interval.bytes must be 0 or more, not {base_offset}"
                f" and {index_interval_bytes}"
            )
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.is_tagged = is_tagged
        self.offset_entry_size = entry_size_of(is_tagged, timed=False)
        self.max_offset_entries = self.max_time_entries = INT32_MAX
        if max_index_bytes >= 0:
            self.max_offset_entries = max_index_bytes // self.offset_entry_size
            if not is_tagged:       # one index, one bound
                self.max_time_entries = max_index_bytes // TIME_ENTRY_SIZE
        self.now.max_timestamp = -1
        self.now.offset_of_max_timestamp = -1
        self.now.last_entry_timestamp = -1
        self.now.last_minute = -1
        self.now.last_entry_relative_offset = -1

    def __dealloc__(self):
        free(self.offset_index.first)
        free(self.time_index.first)
        free(self.minute_index.first)

    def resume(
        self, int64_t offset_entries, tuple last_offset_entry not None,
        int64_t time_entries, tuple last_time_entry not None,
        int64_t minute_entries, int64_t last_minute_timestamp,
    ):
        """Continue existing index files. Call it on a new builder, before anything is added.

        The files have this many entries, not counting the closing one: the last ones are (offset, position) and
        (timestamp, offset); (base_offset, 0) and (-1, -1) if there are none, and -1 for the minute index. Then add the
        batch to which the last offset entry points, and those after it: the builder is then in the same state as if it
        had added all of them.
        """
        cdef int64_t offset = last_offset_entry[0]
        check_free(&self.use, self)
        if self.now.end_position or self.now.offset_entries or self.now.time_entries:
            raise InvalidArgumentError("only a new index builder can continue existing files")
        self.now.offset_entries = offset_entries
        self.now.last_entry_position = self.now.end_position = last_offset_entry[1]
        if offset_entries:
            self.now.last_entry_relative_offset = <int32_t>(<uint64_t>offset - <uint64_t>self.base_offset)
        self.now.time_entries = time_entries
        self.now.last_entry_timestamp = self.now.max_timestamp = last_time_entry[0]
        self.now.offset_of_max_timestamp = last_time_entry[1]
        self.now.minute_entries = minute_entries
        if minute_entries:
            self.now.last_minute = last_minute_timestamp // MINUTE_MS

    def add(self, BatchTable table not None, Py_ssize_t start, Py_ssize_t stop, int64_t file_position):
        """Index the batches [start, stop) of a table; the first of them is at `file_position` in the file.

        Raises CorruptRecordError if an offset does not fit the segment or goes back, and InvalidArgumentError if an
        index is full (see `is_full`: roll before); nothing is added then.
        """
        cdef Progress before = self.now
        cdef int64_t offset_bytes = self.offset_index.size
        cdef int64_t time_bytes = self.time_index.size
        cdef int64_t minute_bytes = self.minute_index.size
        cdef Py_ssize_t i = start
        cdef int64_t shift
        cdef int status = OK
        if start < 0 or stop > table.n or start > stop or file_position < 0:
            raise InvalidArgumentError(f"invalid batches [{start}, {stop}) at {file_position} of a table of {table.n}")
        if start == stop:
            return
        shift = file_position - table.rows[start].position
        begin_alone(&self.use, self)
        with nogil:
            while i < stop:
                status = self.add_batch(
                    table.rows[i].last_offset, table.rows[i].max_timestamp,
                    table.rows[i].position + shift, table.rows[i].size_bytes)
                if status != OK:
                    break
                i += 1
        end_alone(&self.use)
        if status == OK:
            return
        self.now = before
        self.offset_index.size = offset_bytes
        self.time_index.size = time_bytes
        self.minute_index.size = minute_bytes
        self.raise_refusal(status, table.rows[i].position + shift, table.rows[i].last_offset, table.window.name)

    def add_one(self, int64_t last_offset, int64_t max_timestamp, int64_t size_bytes):
        """Index one batch that follows the last one added. Returns True if it made entries, to be taken.

        Raises what `add` raises.
        """
        cdef int64_t entries = self.now.offset_entries
        cdef int status
        check_free(&self.use, self)
        if size_bytes < 0:
            raise InvalidArgumentError(f"invalid batch size {size_bytes}")
        status = self.try_one(last_offset, max_timestamp, size_bytes)
        if status != OK:
            self.raise_refusal(status, self.now.end_position, last_offset, None)
        return self.now.offset_entries != entries

    cdef int try_one(self, int64_t last_offset, int64_t max_timestamp, int64_t size_bytes) noexcept nogil:
        cdef Progress before
        cdef int64_t time_bytes = self.time_index.size
        cdef int status
        if self.now.end_position - self.now.last_entry_position <= self.index_interval_bytes:
            # No entry: nothing is written that would have to be undone.
            return self.add_batch(last_offset, max_timestamp, self.now.end_position, size_bytes)
        before = self.now
        status = self.add_batch(last_offset, max_timestamp, before.end_position, size_bytes)
        if status != OK:
            # The offset entry comes last, and the minute entry after the time entry: those two did not come to be.
            self.now = before
            self.time_index.size = time_bytes
        return status

    cdef int raise_refusal(self, int status, int64_t position, int64_t offset, object name) except -1:
        if status == NO_SPACE:
            raise InvalidArgumentError(
                f"the indexes of a segment are full at {self.max_offset_entries} offset entries"
                f" and {self.max_time_entries} time entries",
                position=position, offset=offset, file=name,
                hint="raise segment.index.bytes, or start a new segment here",
            )
        if status == OFFSET_RANGE:
            raise CorruptRecordError(
                f"no index entry can express this batch: the segment begins at offset {self.base_offset},"
                " and an entry holds 31 bits of offset and of position",
                position=position, offset=offset, file=name,
            )
        raise_status(status, position, offset, name)
        return -1

    cdef int add_batch(
        self, int64_t last_offset, int64_t max_timestamp, int64_t position, int64_t size_bytes
    ) noexcept nogil:
        cdef Progress* now = &self.now
        cdef uint64_t relative = <uint64_t>last_offset - <uint64_t>self.base_offset
        cdef int status
        if last_offset < self.base_offset or relative > INT32_MAX or position > INT32_MAX:
            return OFFSET_RANGE
        if max_timestamp > now.max_timestamp:
            now.max_timestamp = max_timestamp
            now.offset_of_max_timestamp = last_offset
        if position - now.last_entry_position > self.index_interval_bytes:
            if now.offset_entries >= self.max_offset_entries or now.time_entries >= self.max_time_entries - 1:
                return NO_SPACE
            if <int64_t>relative <= now.last_entry_relative_offset:
                return OFFSET_BACK
            status = self.add_offset_entry(<int64_t>relative, position)
            if status != OK:
                return status
            now.offset_entries += 1
            now.last_entry_relative_offset = <int32_t>relative
            now.last_entry_position = position
        now.end_position = position + size_bytes
        return OK

    cdef int add_offset_entry(self, int64_t relative, int64_t position) noexcept nogil:
        """Make an entry of the offset index, and those of the other indexes that belong to it."""
        cdef uint8_t* entry
        cdef int status = ensure_room(&self.offset_index, self.offset_entry_size)
        if status == OK and not self.is_tagged:
            status = self.add_time_entry()
            if status == OK:
                status = self.add_minute_entry()
        if status != OK:
            return status
        entry = self.offset_index.first + self.offset_index.size
        store_u32(entry, <uint32_t>relative)
        if self.is_tagged:
            store_u64(entry + 4, <uint64_t>self.now.max_timestamp)
            self.now.time_entries += 1
            self.now.last_entry_timestamp = self.now.max_timestamp
        store_u32(entry + self.offset_entry_size - 4, <uint32_t>position)
        self.offset_index.size += self.offset_entry_size
        return OK

    cdef int add_time_entry(self) noexcept nogil:
        # TimeIndex.maybeAppend: only what is strictly above the last entry; so v0, without time, has none.
        cdef Progress* now = &self.now
        if now.max_timestamp <= now.last_entry_timestamp:
            return OK
        if self.put_timestamp(&self.time_index) != OK:
            return NO_MEMORY
        now.time_entries += 1
        now.last_entry_timestamp = now.max_timestamp
        return OK

    cdef int add_minute_entry(self) noexcept nogil:
        # A negative timestamp is none, and the quotient of -1 is 0 in C.
        cdef Progress* now = &self.now
        if now.max_timestamp < 0 or now.max_timestamp // MINUTE_MS <= now.last_minute:
            return OK
        if self.put_timestamp(&self.minute_index) != OK:
            return NO_MEMORY
        now.minute_entries += 1
        now.last_minute = now.max_timestamp // MINUTE_MS
        return OK

    cdef int put_timestamp(self, Output* index) noexcept nogil:
        """Make an entry of the time or minute index, of the largest timestamp and its batch's offset."""
        cdef Progress* now = &self.now
        cdef uint8_t* entry
        if ensure_room(index, TIME_ENTRY_SIZE) != OK:
            return NO_MEMORY
        entry = index.first + index.size
        store_u64(entry, <uint64_t>now.max_timestamp)
        store_u32(entry + 8, <uint32_t>(<uint64_t>now.offset_of_max_timestamp - <uint64_t>self.base_offset))
        index.size += TIME_ENTRY_SIZE
        return OK

    def finish(self):
        """Add the closing time entry, for which the last slot of a full time index is reserved. May be repeated."""
        cdef int status = OK if self.is_tagged else self.add_time_entry()
        check_free(&self.use, self)
        if status != OK:
            raise_status(status, -1, -1)

    def take_offset_entries(self):
        """Return the bytes to append to the `.index` file: all entries since the last call."""
        check_free(&self.use, self)
        taken = PyBytes_FromStringAndSize(<const char*>self.offset_index.first, self.offset_index.size)
        self.offset_index.size = 0
        return taken

    def take_time_entries(self):
        """Return the bytes to append to the `.timeindex` file: all entries since the last call."""
        check_free(&self.use, self)
        taken = PyBytes_FromStringAndSize(<const char*>self.time_index.first, self.time_index.size)
        self.time_index.size = 0
        return taken

    def take_minute_entries(self):
        """Return the bytes to append to the `.time.index` file: all entries since the last call."""
        check_free(&self.use, self)
        taken = PyBytes_FromStringAndSize(<const char*>self.minute_index.first, self.minute_index.size)
        self.minute_index.size = 0
        return taken

    @property
    def is_full(self):
        """No further entry fits: Kafka rolls the segment before the next append (LogSegment.shouldRoll)."""
        return self.has_no_room()

    @property
    def offset_entries(self):
        """The number of entries of the offset index, including those taken."""
        return self.now.offset_entries

    @property
    def time_entries(self):
        """The number of entries of the time index, including those taken."""
        return self.now.time_entries

    @property
    def minute_entries(self):
        """The number of entries of the minute index, including those taken."""
        return self.now.minute_entries

    @property
    def taken_entries(self):
        """The number of entries taken from the offset, time and minute index: those are in files by now."""
        return (
            self.now.offset_entries - self.waiting_entries(),
            self.now.time_entries - (
                self.waiting_entries() if self.is_tagged else self.time_index.size // TIME_ENTRY_SIZE),
            self.now.minute_entries - self.minute_index.size // TIME_ENTRY_SIZE,
        )

    @property
    def max_timestamp(self):
        """The largest max timestamp of a batch so far, -1 if none had one."""
        return self.now.max_timestamp

    @property
    def offset_of_max_timestamp(self):
        """The last offset of the first batch that had the largest timestamp, -1 if none had one."""
        return self.now.offset_of_max_timestamp

    @property
    def bytes_since_last_entry(self):
        """From the start of the last indexed batch (or of the file) to the end of the last batch added."""
        return self.now.end_position - self.now.last_entry_position
