"""A batch and its records as Python objects that point into bytes, of any format version.

A RecordBatch, a Record and a RecordIterator hold the Window of their bytes (the file's, or one on decompressed bytes),
never a table or each other: each may outlive its origin. Nothing is decompressed, decoded or checked by CRC until it is
requested.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_REFCNT
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t

from .batch_attributes cimport has_bit, hides_last_offset, sequence_at, timestamp_type_of
from .batch_header cimport (
    CODEC_MASK, CODEC_NONE, CONTROL_BIT, DELETE_HORIZON_BIT, MAGIC_POS, TAGGED_MAGIC, TRANSACTIONAL_BIT, bounds_time,
    crc_matches, hides_first_offset,
)
from .batch_payload cimport check_count, find_payload, open_records, raise_batch
from .legacy_records cimport find_inner_base, message_crc_matches, parse_bare_message, parse_inner_message
from .one_at_a_time cimport begin_alone, end_alone
from .status cimport BAD_COUNT, OFFSET_BACK, OFFSET_RANGE, TRAILING_BYTES, raise_status
from .window cimport check_whole


# Python code can always call __new__: such objects are empty, and none of their methods may crash.
cdef str NOT_SCANNED = "made by __new__, not by a scan: it has no bytes"

cdef tuple FIELDS = ("offset", "timestamp", "timestamp_type", "sequence", "key", "value", "headers")

cdef enum:
    SHOWN_BYTES_MAX = 40        # of a key or value, in `repr`
    HELD_HERE = 2               # references held by RecordIterator.advance: its attribute and its variable


# --- batch -----------------------------------------------------------------------------------

cdef RecordBatch batch_of(Window window, object decompress, const BatchHeader* header):
    cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
    batch.window = window
    batch.decompress = decompress
    batch.header = header[0]
    return batch


@cython.final
@cython.freelist(64)
cdef class RecordBatch:
    """The header of a batch; iterate over it to read its records. Made only by a BatchTable.

    In v0 and v1 each message is a batch: a bare one with one record, or a wrapper. Fields that a format version does
    not have are as Kafka returns them: -1, False, None.
    """

    def __init__(self):
        raise TypeError("a RecordBatch comes from a BatchTable: see seglog._kernels.segment_scan.scan")

    @property
    def position(self):
        """The position of the first byte, in the window."""
        return self.header.position

    @property
    def size_bytes(self):
        """The size of the whole batch, offset and size fields included."""
        return self.header.size_bytes

    @property
    def magic(self):
        """The record format: 0, 1 or 2; -1 for tagged messages."""
        return self.header.magic

    @property
    def attributes(self):
        """The header's attributes: codec, timestamp type and flags as bits."""
        return self.header.attributes

    @property
    def base_offset(self):
        """The first offset. For a wrapper this is its first message's: reading it opens the wrapper."""
        if not hides_first_offset(&self.header):
            return self.header.base_offset
        return next(iter(self)).offset

    @property
    def last_offset(self):
        """The last offset; after compaction there may be no record of it any more."""
        return self.header.last_offset

    @property
    def codec(self):
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are not assigned."""
        return self.header.attributes & CODEC_MASK

    @property
    def timestamp_type(self):
        """-1 none (v0), 0 CreateTime, 1 LogAppendTime."""
        return timestamp_type_of(&self.header)

    @property
    def base_timestamp(self):
        """v2: the header's, which is the delete horizon if there is one. Below v2: the message's."""
        return self.header.base_timestamp

    @property
    def max_timestamp(self):
        """The header's largest timestamp, in ms since 1970; -1 in v0. `largest_timestamp` is that of the records."""
        return self.header.max_timestamp

    @property
    def crc(self):
        """The checksum in the header: CRC-32C in v2, CRC-32 below."""
        return self.header.crc

    @property
    def leader_epoch(self):
        """The leader epoch in which it was appended; -1 below v2, which has none."""
        return self.header.leader_epoch

    @property
    def producer_id(self):
        """The id of the idempotent or transactional producer; -1 if there is none."""
        return self.header.producer_id

    @property
    def producer_epoch(self):
        """The producer's epoch; -1 if there is none."""
        return self.header.producer_epoch

    @property
    def base_sequence(self):
        """The sequence number of the first record; -1 if there is none."""
        return self.header.base_sequence

    @property
    def last_sequence(self):
        """-1 if the batch has no sequence; wraps at 2**31."""
        return sequence_at(&self.header, self.header.last_offset)

    @property
    def last_offset_delta(self):
        """v2: last offset - base offset. 0 below v2."""
        return <int32_t>(<uint32_t>self.header.last_offset - <uint32_t>self.header.base_offset)

    @property
    def count(self):
        """The number of records. -1 below v2: the header does not say."""
        return self.header.count

    @property
    def is_transactional(self):
        """Whether its records belong to a transaction."""
        return has_bit(&self.header, TRANSACTIONAL_BIT)

    @property
    def is_control(self):
        """Whether its records are markers of transactions or of the broker, not data."""
        return has_bit(&self.header, CONTROL_BIT)

    @property
    def delete_horizon_ms(self):
        """When the cleaner may remove the tombstones and markers of this batch (KIP-534), or None if not set."""
        return self.header.base_timestamp if has_bit(&self.header, DELETE_HORIZON_BIT) else None

    def crc_is_valid(self):
        cdef bint valid = False
        if self.window is not None:
            with nogil:
                valid = crc_matches(self.window.base, &self.header)
            check_whole(self.window)
        return valid

    def find_bad_message(self):
        """The slot of the first message in a wrapper whose own CRC is wrong; -1: all are right, or it is not a wrapper.

        The wrapper's CRC covers the compressed bytes only. Kafka's consumer checks both, its broker the outer one.
        Raises what iterating raises.
        """
        return self.survey_wrapper()[0]

    @property
    def bounds_time(self):
        """Whether no record is later than `max_timestamp`. For a wrapper this is unknown until it is opened.

        v0 has no timestamps, and a v0 wrapper may hold v1 messages; brokers before 0.10.1 stored a v1 wrapper with any
        time that its producer gave it.
        """
        return bounds_time(&self.header)

    @property
    def largest_timestamp(self):
        """The largest timestamp of its records: `max_timestamp` if that bounds them, otherwise a wrapper is opened.

        Raises what iterating raises.
        """
        if bounds_time(&self.header):
            return self.header.max_timestamp
        return self.survey_wrapper()[1]

    def survey_wrapper(self):
        """(find_bad_message, the largest timestamp, whether it holds messages of another format), opened only once.

        (-1, max_timestamp, False) if it is not a wrapper. Raises what iterating raises.
        """
        cdef Span records
        cdef Window _opened         # keeps the bytes of `records`
        cdef RecordView message
        cdef const uint8_t* start
        cdef int64_t base = 0
        cdef int64_t count = 0
        cdef int64_t slot
        cdef int64_t bad = -1
        cdef int64_t largest = -1
        cdef bint is_mixed = False
        cdef int status
        if self.window is None or self.header.magic == 2 or self.header.attributes & CODEC_MASK == CODEC_NONE:
            return -1, self.header.max_timestamp, False
        _opened = open_records(self.window, &self.header, self.decompress, &records)
        status = find_inner_base(&records, &self.header, &base, &count)
        if status != OK:
            raise_batch(status, self.window, &self.header)
        for slot in range(count):
            start = records.p
            status = parse_inner_message(&records, &self.header, &base, &message)
            if status != OK:
                return slot, largest, is_mixed
            if bad < 0 and not message_crc_matches(start, &message):
                bad = slot
            largest = max(largest, message.timestamp)
            is_mixed |= self.header.magic != TAGGED_MAGIC and <int8_t>start[MAGIC_POS] != self.header.magic
        return bad, largest, is_mixed

    def raw(self, *, bint copy=False):
        """The whole batch as it is in the file: a view of the mapped file, or with `copy` bytes.

        If another program shortens the file, a view has zeros where bytes were; a copy raises StorageError.
        """
        if self.window is None:
            raise TypeError(NOT_SCANNED)
        if copy:
            return copied(self.window, self.window.base + self.header.position, self.header.size_bytes)
        return self.window.view(self.window.base + self.header.position, self.header.size_bytes)

    def payload(self):
        """What follows the header: v2 records as stored, or the value of a message or wrapper."""
        cdef Span payload
        cdef int status
        if self.window is None:
            raise TypeError(NOT_SCANNED)
        status = find_payload(self.window.base, &self.header, &payload)
        if status != OK:
            raise_batch(status, self.window, &self.header)
        return self.window.view(payload.p, payload.end - payload.p)

    def __iter__(self):
        return iterate(
            self, self.window, self.decompress, &self.header, &self.header + 1, INT64_MIN, INT64_MAX, True)

    def __repr__(self):
        version = "tagged" if self.header.magic == TAGGED_MAGIC else f"v{self.header.magic}"
        # (Opening a wrapper for its first offset could take long, or raise.)
        first = "up to" if hides_first_offset(&self.header) else f"{self.header.base_offset} to"
        return (f"<RecordBatch {version}: offsets {first} {self.header.last_offset}, {self.header.size_bytes} bytes "
                f"at byte {self.header.position}>")


cdef extern from "<stdint.h>" nogil:
    const int64_t INT64_MIN
    const int64_t INT64_MAX


cdef inline bytes copied(Window window, const uint8_t* start, int64_t size):
    cdef bytes made = PyBytes_FromStringAndSize(<const char*>start, size)
    if window is not None:
        check_whole(window)
    return made


cdef object view_of(Window window, const uint8_t* start, int64_t size):
    if window is None:
        raise TypeError(NOT_SCANNED)
    return window.view(start, size)


# --- record ----------------------------------------------------------------------------------

@cython.final
@cython.freelist(256)
@cython.no_gc
cdef class Record:
    """One record, read in place. Made by iterating; reading a field makes the Python object for it.

    Two records are equal if their contents are, whatever their format; `size_bytes` is not compared. A pickled copy
    holds its own bytes.
    """

    def __init__(self):
        raise TypeError("a Record comes from iterating a RecordBatch")

    @property
    def offset(self):
        """Its number in the log."""
        return self.offset_

    @property
    def timestamp(self):
        """ms since 1970; -1 in v0; the batch's largest under LogAppendTime."""
        return self.timestamp_

    @property
    def timestamp_type(self):
        """-1 none (v0), 0 CreateTime, 1 LogAppendTime."""
        return self.timestamp_type_

    @property
    def sequence(self):
        """The sequence number of an idempotent producer; -1 if there is none."""
        return self.sequence_

    @property
    def size_bytes(self):
        """The encoded size, not compressed: in v2 with its length field, below v2 with offset and size fields."""
        return self.size_bytes_

    @property
    def key(self):
        """A copy of the key, or None if the record has none."""
        if self.key_size < 0:
            return None
        return copied(self.window, self.key_, self.key_size)

    @property
    def value(self):
        """A copy of the value, or None if the record is a tombstone."""
        if self.value_size < 0:
            return None
        return copied(self.window, self.value_, self.value_size)

    @property
    def key_view(self):
        """The key as a memoryview, not copied; it keeps the file mapped."""
        if self.key_size < 0:
            return None
        return view_of(self.window, self.key_, self.key_size)

    @property
    def value_view(self):
        """The value as a memoryview, not copied; it keeps the file mapped."""
        if self.value_size < 0:
            return None
        return view_of(self.window, self.value_, self.value_size)

    @property
    def headers(self):
        """((key, value or None), ...) in the order of the record. Keys that are not UTF-8 are surrogate-escaped."""
        cdef Span s
        cdef const uint8_t* key = NULL
        cdef const uint8_t* value = NULL
        cdef int32_t key_size = 0
        cdef int32_t value_size = 0
        cdef int32_t count = 0
        cdef int status
        if self.tail_size <= 1:         # v0, v1; or a count of 0
            return ()
        s.p = self.value_ + max(self.value_size, 0)
        s.end = s.p + self.tail_size
        headers = []
        status = span_varint(&s, &count)
        while status == OK and len(headers) < count:
            status = parse_record_header(&s, &key, &key_size, &value, &value_size)
            if status == OK:
                headers.append((
                    PyUnicode_DecodeUTF8(<char*>key, key_size, b"surrogateescape"),
                    None if value_size < 0 else PyBytes_FromStringAndSize(<const char*>value, value_size),
                ))
        if status != OK or s.p != s.end:    # they were checked; only a writable buffer can change since
            raise_status(BAD_HEADER, -1, self.offset_, self.window.name)
        check_whole(self.window)
        return tuple(headers)

    def _asdict(self):
        """Offset, timestamp, timestamp type, sequence, key, value and headers, by name."""
        return dict(zip(FIELDS, self.fields()))

    cdef tuple fields(self):
        return self.offset_, self.timestamp_, self.timestamp_type_, self.sequence_, self.key, self.value, self.headers

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self.offset_ == (<Record>other).offset_ and self.fields() == (<Record>other).fields()

    def __hash__(self):
        return hash(self.fields())

    def __reduce__(self):
        from seglog._kernels.record_fields import record_of_fields  # which is built on this module
        return record_of_fields, (*self.fields(), self.size_bytes_)

    def __repr__(self):
        """Offset, key and value, of which at most 40 bytes each are read. (It raises nothing: debuggers call it.)"""
        key = shown(self.window, self.key_, self.key_size)
        value = shown(self.window, self.value_, self.value_size)
        return f"<Record offset {self.offset_}: key {key}, value {value}>"


cdef str shown(Window window, const uint8_t* at, int32_t size):
    """Bytes as Python writes them, cut if they are long."""
    if size < 0:
        return "None"
    try:
        start = copied(window, at, min(size, SHOWN_BYTES_MAX))
    except Exception as error:          # the file was shortened
        return f"({error})"
    return repr(start) if size <= SHOWN_BYTES_MAX else f"{start!r}... ({size} bytes)"


cdef inline int fill_record(Record record, Window window, const BatchHeader* batch, const RecordView* view) except -1:
    if record.window is not window:
        record.window = window
    record.offset_ = view.offset
    record.timestamp_ = view.timestamp
    record.key_ = view.key
    record.value_ = view.value
    record.key_size = view.key_size
    record.value_size = view.value_size
    if view.headers != NULL:
        record.tail_size = <int32_t>(view.headers + view.headers_size - view.value) - max(view.value_size, 0)
    else:
        record.tail_size = 0
    record.size_bytes_ = view.size_bytes
    record.sequence_ = sequence_at(batch, view.offset)
    record.timestamp_type_ = timestamp_type_of(batch)
    return 0


cdef Record record_of(Window window, const BatchHeader* batch, const RecordView* view):
    cdef Record record = Record.__new__(Record)
    fill_record(record, window, batch, view)
    return record


# --- iteration -------------------------------------------------------------------------------

cdef RecordIterator iterate(
    object keeper, Window window, object decompress, const BatchHeader* row, const BatchHeader* rows_end,
    int64_t first_offset, int64_t last_offset, bint with_control
):
    cdef RecordIterator it = RecordIterator.__new__(RecordIterator)
    it.keeper = keeper
    it.window = window
    it.decompress = decompress
    it.batch = NULL
    it.first_row = row
    it.next_row = row
    it.rows_end = row if window is None else rows_end
    it.left = 0
    it.first_offset = first_offset
    it.last_offset = last_offset
    it.with_control = with_control
    it.in_order = True
    return it


@cython.final
cdef class RecordIterator:
    """The records of one batch or of many, in order. An error ends it."""

    def __init__(self):
        raise TypeError("a RecordIterator comes from iterating a RecordBatch or a BatchTable")

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record
        begin_alone(&self.use, self)
        try:
            record = self.advance()
        finally:
            end_alone(&self.use)
        if record is None:
            raise StopIteration
        return record

    cdef Record advance(self):
        """The next record; None at the end."""
        cdef RecordView view
        cdef Record record
        cdef int status
        while True:
            while self.left == 0:
                if self.next_row == self.rows_end or not self.open_next():
                    return None
            status = self.parse_next(&view)
            if status != OK:
                self.fail(status)
            if view.offset >= self.first_offset:
                break
        if view.offset > self.last_offset:
            # The rest of the batch may not be below it: a range read reports the same damage as a full read.
            while self.left != 0:
                status = self.parse_next(&view)
                if status != OK:
                    self.fail(status)
            self.next_row = self.rows_end
            check_whole(self.window)
            return None
        # The record before the current one is reused if nothing else refers to it (as zip does with its tuple): this
        # saves a sixth of the time of a loop that keeps no records.
        record = self.given_before
        if record is None or Py_REFCNT(record) > HELD_HERE:
            record = Record.__new__(Record)
        self.given_before = self.given_last
        self.given_last = record
        fill_record(record, self.opened, self.batch, &view)
        # Zeros for lost bytes parse as no record. What they may be is a key or a value, which looks for itself.
        if self.left == 0:
            check_whole(self.window)
        return record

    cdef inline int parse_next(self, RecordView* out) noexcept:
        cdef int status
        self.left -= 1
        if self.batch.magic == 2:
            status = parse_record_v2(&self.records, self.batch, out)
            if status == OK and out.header_count != 0:
                status = check_record_headers(out)
        elif self.batch.attributes & CODEC_MASK:
            status = parse_inner_message(&self.records, self.batch, &self.inner_base, out)
        else:
            status = parse_bare_message(&self.records, self.batch, out)
        if status == OK and self.left == 0 and self.records.p != self.records.end:
            status = TRAILING_BYTES
        if status == OK and self.in_order:
            if out.offset < self.min_offset:
                return OFFSET_BACK
            if out.offset > self.max_offset:
                return OFFSET_RANGE
            self.min_offset = out.offset + 1
            # A wrapper has its last message's offset; a cleaner may have removed a v2 batch's last record.
            if (self.left == 0 and self.batch.magic & ~1 == 0
                    and out.offset < self.max_offset and self.max_offset != INT64_MAX):
                return OFFSET_RANGE
        return status

    cdef int fail(self, int status) except -1:
        """Raise for the record that parse_next refused, and end the iteration."""
        cdef Py_ssize_t rest = self.records.end - self.records.p
        cdef int64_t slot = self.count - self.left
        self.left = 0
        self.next_row = self.rows_end
        if status == TRAILING_BYTES:
            return raise_batch(status, self.window, self.batch, f"{rest} of them")
        return raise_batch(
            status, self.window, self.batch,
            f"record {slot} of {self.count}, {rest} bytes before the end of the records")

    cdef bint open_next(self) except -1:
        """Open the next batch; sets `left` to its number of records. False: the end of the range."""
        cdef const BatchHeader* batch = self.next_row
        cdef int status = OK
        self.batch = batch
        self.next_row += 1
        self.min_offset = batch.base_offset
        self.max_offset = batch.last_offset
        if batch.magic == 2 and batch.base_offset > self.last_offset:
            self.next_row = self.rows_end
            return False
        if not self.with_control and has_bit(batch, CONTROL_BIT):
            return True
        if batch.last_offset < self.first_offset and not hides_last_offset(batch):
            return True
        try:
            self.opened = open_records(self.window, batch, self.decompress, &self.records)
            if batch.magic == 2:
                status = check_count(batch, &self.records)
                if status == OK and batch.count == 0 and self.records.p != self.records.end:
                    status = TRAILING_BYTES
                self.left = batch.count
            elif batch.attributes & CODEC_MASK:
                status = find_inner_base(&self.records, batch, &self.inner_base, &self.left)
                if batch.magic != TAGGED_MAGIC:
                    self.min_offset = 0 if batch == self.first_row else max((batch - 1).last_offset + 1, 0)
                if hides_last_offset(batch):
                    self.max_offset = INT64_MAX
            else:
                self.left = 1
            if status == BAD_COUNT:
                raise_batch(
                    status, self.window, batch, f"{batch.count if batch.magic == 2 else 0} records in "
                    f"{self.records.end - self.records.p} bytes")
            elif status != OK:
                raise_batch(status, self.window, batch)
            self.count = self.left
        except BaseException:
            self.left = 0
            self.next_row = self.rows_end
            raise
        return True
