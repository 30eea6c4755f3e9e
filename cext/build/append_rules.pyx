"""Checks encoded batches before an append, as a broker does, and assigns their offsets in place.

A leader's append follows Kafka's LogValidator with UnifiedLog.analyzeAndValidateRecords: every record is read, once.
Header values are stored into a copy of the bytes: neither a batch's offsets nor its leader epoch are under its CRC, and
relative offsets stay as they are. A replica's append (appendAsFollower) keeps what the leader gave. Batches that
cannot stay as they are (another codec, another format version) are returned as an Unfit, for format.validate to
rebuild.


Stricter than Kafka 3.9.1 and 4.1.1, which store such batches in a log and then fail on them:

* v2 records whose relative offsets do not run from 0 on (Kafka stores uncompressed ones, renumbers where it changes the
  codec, and otherwise falls over a record whose key it skipped),
* the timestamp type LogAppendTime (Kafka lets it pass in a CreateTime log and forgets what the records' times were),
* a timestamp below -1 (its cleaner stops at one), a producer id without an epoch or below -1, a transaction with none,
* records of a compressed batch that do not fill their length, which Kafka does not see when it skips keys and values,
* of a coordinator: a count that is not that of the offsets.

Less strict: a v2 batch may come with any base offset, because it gets another; and a coordinator's batch without
sequences may be recompressed.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t

from seglog._kernels.segment_scan import scan
from seglog.errors import (
    InvalidArgumentError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError,
    UnsupportedForMessageFormatError,
)

from .append_result cimport Assigned, assigned_of, check_room, stamp, unfit_of
from .batch_header cimport (
    CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, CONTROL_BIT, MAGIC_POS, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, BatchHeader,
    codec_of,
)
from .legacy_records cimport message_crc_matches, parse_inner_message, parse_message
from .batch_payload cimport check_count, open_records
from .record_batch cimport check_record_headers, parse_record_v2
from .record_view cimport RecordView
from .segment_scan cimport BatchTable
from .span cimport Span
from .status cimport BAD_CODEC, BAD_COUNT, BAD_CRC, BAD_NESTING, OFFSET_RANGE, OK, TRAILING_BYTES, raise_status
from .window cimport Window

cdef enum:
    PRODUCER_CODEC = -1         # compression.type=producer: the batch keeps its own
    PRODUCER_MAGIC = -1         # no message.format.version: likewise

# What a broker refuses, beyond what a Status says: above 0, so that an int may be either.
cdef enum Refusal:
    TOO_LARGE = 1
    MIXED_MAGIC
    SEVERAL_BATCHES
    COUNT_AND_RANGE
    CONTROL
    NO_SEQUENCE
    NO_PRODUCER
    APPEND_TIME
    RELATIVE_OFFSET
    NO_KEY
    NEGATIVE_TIME
    TOO_EARLY
    TOO_LATE
    OFFSET_BEHIND
    OTHER_UNIT


cdef struct Rules:
    int64_t max_batch_bytes
    int64_t max_bytes           # of all batches
    int64_t before_max_ms
    int64_t after_max_ms
    int codec                   # PRODUCER_CODEC, or the one to store
    int magic                   # PRODUCER_MAGIC, or the format version to store
    bint is_compacted
    bint is_log_append_time
    bint asks_unit              # of new records: may the timestamp be milliseconds?
    int64_t[CODEC_ZSTD + 1] harmless_bytes      # by codec: batches of up to so many cannot decompress to too much


# What the records of a batch are, and which one was refused.
cdef struct Findings:
    int64_t count               # of those looked at; the refused one's slot
    int64_t max_timestamp       # -1 where none has one
    int64_t timestamp           # of the last one looked at
    int64_t relative_offset     # likewise
    int64_t with_headers        # the slot of the first one that has some; -1: none has
    bint is_sequential          # the relative offsets of a wrapper run from 0 on


# --- records ---------------------------------------------------------------------------------

cdef inline int check_time(const Rules* rules, int64_t now_ms, int64_t timestamp) noexcept nogil:
    if timestamp == -1:
        return OK
    if timestamp < -1:
        return NEGATIVE_TIME
    if not rules.is_log_append_time:
        # Both are at least 0, so no difference overflows.
        if now_ms - timestamp > rules.before_max_ms:
            return TOO_EARLY
        if timestamp - now_ms > rules.after_max_ms:
            return TOO_LATE
    return OK


cdef inline bint is_sane_time(int64_t timestamp) noexcept nogil:
    # What milliseconds since 1970 are between 1973 and 5138. Seconds of our time lie below, finer units above.
    return 100_000_000_000LL <= timestamp <= 100_000_000_000_000LL


# Of a new record, beside check_time. A clock that stands outside of them knows nothing of units: a test's, for example.
cdef inline int check_unit(const Rules* rules, int64_t now_ms, int64_t timestamp) noexcept nogil:
    if not rules.asks_unit or timestamp < 0 or is_sane_time(timestamp) or not is_sane_time(now_ms):
        return OK
    return OTHER_UNIT


cdef inline int check_record(
    const Rules* rules, int64_t now_ms, const RecordView* record, Findings* found
) noexcept nogil:
    found.timestamp = record.timestamp
    if rules.is_compacted and record.key_size < 0:
        return NO_KEY
    if record.timestamp > found.max_timestamp:
        found.max_timestamp = record.timestamp
    return check_time(rules, now_ms, record.timestamp)


cdef int check_v2_records(
    const Rules* rules, int64_t now_ms, const BatchHeader* row, Span records, Findings* found
) noexcept nogil:
    cdef RecordView record
    cdef int64_t i
    cdef int status = check_count(row, &records)
    if status != OK:
        return status
    for i in range(row.count):
        found.count = i
        status = parse_record_v2(&records, row, &record)
        if status == OK and record.header_count:
            status = check_record_headers(&record)
            if found.with_headers < 0:
                found.with_headers = i
        if status != OK:
            return status
        found.relative_offset = <int64_t>(<uint64_t>record.offset - <uint64_t>row.base_offset)
        if found.relative_offset != i:
            return RELATIVE_OFFSET
        status = check_record(rules, now_ms, &record, found)
        if status != OK:
            return status
    found.count = row.count
    return OK if records.p == records.end else TRAILING_BYTES


cdef int check_wrapped_messages(
    const Rules* rules, int64_t now_ms, const BatchHeader* row, Span records, Findings* found
) noexcept nogil:
    cdef RecordView message
    cdef const uint8_t* start
    cdef int64_t from_zero = 0
    cdef int status
    message.offset = -1
    while records.p != records.end:
        start = records.p
        status = parse_inner_message(&records, row, &from_zero, &message)
        # Readers accept another format in there, a broker that appends does not (LogValidator.validateRecord).
        if status == OK and <int8_t>start[MAGIC_POS] != row.magic:
            status = BAD_NESTING
        # The wrapper's CRC covers the compressed bytes only.
        if status == OK and not message_crc_matches(start, &message):
            status = BAD_CRC
        if status == OK:
            status = check_record(rules, now_ms, &message, found)
        if status != OK:
            return status
        found.is_sequential &= message.offset == found.count
        found.count += 1
    if found.count == 0:
        return BAD_COUNT
    # As in legacy_records.find_inner_base; 0 is what some versions of librdkafka send.
    if row.magic == 1 and row.last_offset != 0 and row.last_offset < message.offset:
        return OFFSET_RANGE
    return OK


cdef int check_bare_message(
    const Rules* rules, int64_t now_ms, const uint8_t* bytes, const BatchHeader* row, Findings* found
) noexcept nogil:
    cdef RecordView message
    cdef Span s
    cdef int8_t magic = -1
    cdef uint8_t attributes = 0
    cdef int status
    s.p = bytes + row.position
    s.end = s.p + row.size_bytes
    status = parse_message(&s, &message, &magic, &attributes)
    return status if status != OK else check_record(rules, now_ms, &message, found)


# --- batches ---------------------------------------------------------------------------------

cdef inline int check_codec(const BatchHeader* row) noexcept nogil:
    cdef int highest = CODEC_ZSTD if row.magic == 2 else CODEC_LZ4
    return BAD_CODEC if codec_of(row) > highest else OK


cdef inline int check_header(
    const Rules* rules, const BatchHeader* row, const BatchHeader* first, bint is_coordinator
) noexcept nogil:
    """LogValidator.validateBatch, and of the timestamp type what its validateTimestamp asks of each record."""
    if row.size_bytes > rules.max_batch_bytes:
        return TOO_LARGE
    if row.magic != first.magic:
        return MIXED_MAGIC
    if row.magic > 0 and row.attributes & TIMESTAMP_TYPE_BIT:
        return APPEND_TIME
    if row.magic == 2:
        if row.count <= 0 or <uint64_t>row.last_offset - <uint64_t>row.base_offset != <uint64_t>(row.count - 1):
            return COUNT_AND_RANGE
        if row.attributes & CONTROL_BIT and not is_coordinator:
            return CONTROL
        if row.producer_id >= 0:
            if row.producer_epoch < 0:
                return NO_PRODUCER
            if row.base_sequence < 0 and not is_coordinator:
                return NO_SEQUENCE
        elif row.producer_id < -1 or row.attributes & TRANSACTIONAL_BIT:
            return NO_PRODUCER
    return check_codec(row)


# --- the check -------------------------------------------------------------------------------

@cython.final
cdef class AppendCheck:
    """The rules of one log, in the units and by the names of its configuration. Keeps no state: any thread may ask.

    codec: that of batches in the log, None where each keeps its own (compression.type=producer).
    magic: their format version (message.format.version), None where each keeps its own.
    decompress: Callable[[codec, magic, memoryview], bytes-like], bounded.
    asks_unit: whether a timestamp of records made here must look like milliseconds (seglog.timestamp.check).
    harmless_bytes: for each codec, the size up to which a batch cannot decompress to too much (Assigned.suspect).
    """
    cdef Rules rules
    cdef object decompress

    def __cinit__(
        self, *, int64_t max_message_bytes, int64_t segment_bytes, bint is_compacted, bint is_log_append_time,
        int64_t before_max_ms, int64_t after_max_ms, codec, decompress, magic=None, bint asks_unit=False,
        harmless_bytes=(0,) * (CODEC_ZSTD + 1),
    ):
        cdef int i
        self.rules.max_batch_bytes = max_message_bytes
        self.rules.max_bytes = segment_bytes
        self.rules.is_compacted = is_compacted
        self.rules.is_log_append_time = is_log_append_time
        # Under LogAppendTime the times of records are not stored.
        self.rules.asks_unit = asks_unit and not is_log_append_time
        self.rules.before_max_ms = before_max_ms
        self.rules.after_max_ms = after_max_ms
        self.rules.codec = PRODUCER_CODEC if codec is None else codec
        self.rules.magic = PRODUCER_MAGIC if magic is None else magic
        if self.rules.magic not in (PRODUCER_MAGIC, 0, 1, 2):
            raise InvalidArgumentError(f"unknown record format v{magic}; expected v0, v1 or v2")
        for i in range(CODEC_ZSTD + 1):
            self.rules.harmless_bytes[i] = harmless_bytes[i]
        self.decompress = decompress

    def assign(
        self, raw not None, int64_t first_offset, int64_t now_ms, int32_t leader_epoch, bint is_coordinator=False
    ):
        """Check a producer's batches and assign the offsets from `first_offset` on; return an Assigned, or an Unfit.

        is_coordinator: they come from a coordinator inside (AppendOrigin.COORDINATOR), which writes control batches and
        has no sequences.
        """
        cdef BatchTable table = scanned(copy_of(raw), self.decompress)
        cdef BatchHeader* row = table.rows
        cdef Window opened = table.window
        cdef Assigned assigned
        cdef Findings found
        cdef Span records
        cdef int codec = codec_of(row)
        cdef int target = codec
        cdef int magic = row.magic
        cdef Py_ssize_t i = 0
        cdef int status
        if now_ms < 0:
            raise InvalidArgumentError(f"the clock is before 1970: {now_ms} ms")
        found.count = 0
        found.max_timestamp = -1
        found.is_sequential = True
        found.with_headers = -1
        self.check_total(table.end)
        status = self.check_headers(table, is_coordinator, &i)
        if status == OK:
            if row.magic == 2 or codec != CODEC_NONE:
                opened = open_records(table.window, row, self.decompress, &records)
                with nogil:
                    if row.magic == 2:
                        status = check_v2_records(&self.rules, now_ms, row, records, &found)
                    else:
                        status = check_wrapped_messages(&self.rules, now_ms, row, records, &found)
            else:
                with nogil:
                    status = self.check_messages(table, now_ms, &found)
                i = min(found.count, table.n - 1)
        if status != OK:
            self.refuse(status, table, i, now_ms, &found)
        check_room(first_offset, found.count)
        # A control batch is not compressed unless it came so.
        if self.rules.codec != PRODUCER_CODEC and not (row.magic == 2 and row.attributes & CONTROL_BIT):
            target = self.rules.codec
        if self.rules.magic != PRODUCER_MAGIC:
            magic = self.rules.magic
        if (
            target != codec or magic != row.magic or not found.is_sequential
            or (row.magic == 0 and codec != CODEC_NONE)
        ):
            check_loss(row, magic, found.with_headers)
            return unfit_of(table, opened, records, found.count, found.max_timestamp, target, magic)
        assigned = assigned_of(table, found.count, is_ours=True, rebuilt=False)
        if self.rules.is_log_append_time:
            found.max_timestamp = now_ms
        for i in range(table.n):
            if table.n > 1 and not self.rules.is_log_append_time:
                found.max_timestamp = row[i].max_timestamp      # a bare message is its own largest
            stamp(table.window.base, &row[i], self.rules.is_log_append_time, found.max_timestamp)
        assigned.place_rows(first_offset, leader_epoch)
        assigned.sum_up()
        assigned.first_offset = first_offset
        return assigned

    def follow(self, raw not None, int64_t next_offset):
        """Check batches that keep their offsets and leader epochs, as a replica's; return an Assigned.

        Each begins at or above `next_offset` and above the one before it; gaps are allowed. Records and
        max.message.bytes are not checked: the leader did that. The batches of a BatchTable must have correct checksums,
        in bytes that do not change: they are not copied.
        """
        cdef BatchTable table
        cdef Assigned assigned
        cdef Py_ssize_t i = 0
        cdef Py_ssize_t suspect = -1
        cdef int status
        if type(raw) is BatchTable:
            table = raw
            if table.n == 0:
                raise InvalidRecordError("there is no batch")
        else:
            table = scanned(raw if type(raw) is bytes else copy_of(raw), self.decompress)
        self.check_total(table.end - table.rows[0].position)
        with nogil:
            status = check_order(&self.rules, table, next_offset, &i, &suspect)
        if status == OFFSET_BEHIND:
            raise InvalidRecordError(
                f"batch {i} begins at offset {table.rows[i].base_offset}, expected {next_offset} or above"
                if i == 0 or table.rows[i - 1].last_offset < next_offset else
                f"batch {i} begins at offset {table.rows[i].base_offset}, but the one before it ends at "
                f"{table.rows[i - 1].last_offset}",
                position=table.rows[i].position,
            )
        if status != OK:
            self.refuse(status, table, i, 0, NULL)
        assigned = assigned_of(table, -1, is_ours=False, rebuilt=False)
        assigned.suspect = suspect
        return assigned

    def next_suspect(self, BatchTable table not None, Py_ssize_t slot):
        """The first slot after `slot` of a batch large enough to decompress to more than the limit; -1: none."""
        cdef Py_ssize_t i
        for i in range(max(slot + 1, 0), table.n):
            if is_suspect(&self.rules, &table.rows[i]):
                return i
        return -1

    def accept(self, raw not None, int64_t first_offset, int64_t count):
        """Batches that were built again for `first_offset`: only their sizes are in question still."""
        cdef BatchTable table = scan(Window(raw), decompress=self.decompress)
        cdef Py_ssize_t i
        cdef Assigned assigned
        self.check_total(table.end)
        for i in range(table.n):
            if table.rows[i].size_bytes > self.rules.max_batch_bytes:
                self.refuse(TOO_LARGE, table, i, 0, NULL)
        assigned = assigned_of(table, count, is_ours=True, rebuilt=True)
        assigned.first_offset = first_offset
        return assigned

    def check_encoded(
        self, int64_t size_bytes, int64_t min_timestamp, int64_t max_timestamp, bint has_null_key, int64_t now_ms
    ):
        """Of a batch that was made of records here: its size, and what its records are; -1: none has a time."""
        cdef int status
        if has_null_key and self.rules.is_compacted:
            self.refuse_record(NO_KEY, "a record", -1, now_ms, None)
        status = check_unit(&self.rules, now_ms, min_timestamp)
        if status == OK:
            status = check_time(&self.rules, now_ms, min_timestamp)
        if status != OK:
            self.refuse_record(status, "a record", min_timestamp, now_ms, None)
        status = check_unit(&self.rules, now_ms, max_timestamp)
        if status == OK:
            status = check_time(&self.rules, now_ms, max_timestamp)
        if status != OK:
            self.refuse_record(status, "a record", max_timestamp, now_ms, None)
        if size_bytes > self.rules.max_batch_bytes:
            self.refuse_size(size_bytes, None)
        self.check_total(size_bytes)

    cdef int check_headers(self, BatchTable table, bint is_coordinator, Py_ssize_t* at) noexcept:
        cdef const BatchHeader* row = table.rows
        cdef int status
        for at[0] in range(table.n):
            status = check_header(&self.rules, &row[at[0]], row, is_coordinator)
            if status == OK and at[0] > 0 and (row.magic == 2 or codec_of(row) or codec_of(&row[at[0]])):
                status = SEVERAL_BATCHES
            if status != OK:
                return status
        at[0] = 0
        return OK

    cdef int check_messages(self, BatchTable table, int64_t now_ms, Findings* found) noexcept nogil:
        cdef int status
        while found.count < table.n:
            status = check_bare_message(&self.rules, now_ms, table.window.base, &table.rows[found.count], found)
            if status != OK:
                return status
            found.count += 1
        return OK

    cdef int check_total(self, int64_t size_bytes) except -1:
        if size_bytes > self.rules.max_bytes:
            raise RecordTooLargeError(
                f"an append of {size_bytes} bytes is larger than a segment: segment.bytes = {self.rules.max_bytes}",
                hint="append in smaller pieces, or raise segment.bytes",
            )
        return 0

    cdef int refuse(self, int status, BatchTable table, Py_ssize_t i, int64_t now_ms, const Findings* found) except -1:
        cdef const BatchHeader* row = &table.rows[i]
        where = f"record {found.count}" if found != NULL else f"batch {i}"
        if status < 0:
            raise_status(status, row.position, -1, None, where if status != BAD_CODEC else f"{codec_of(row)}")
        if status == TOO_LARGE:
            self.refuse_size(row.size_bytes, row.position)
        if status in (NEGATIVE_TIME, TOO_EARLY, TOO_LATE, NO_KEY):
            self.refuse_record(status, where, found.timestamp, now_ms, row.position)
        if status == APPEND_TIME:
            raise InvalidTimestampError(
                f"batch {i} has the timestamp type LogAppendTime, which only the log may assign", position=row.position,
                hint="build the batch with CreateTime",
            )
        if status == MIXED_MAGIC:
            why = f"batch {i} has format v{row.magic}, but the first one v{table.rows[0].magic}"
        elif status == SEVERAL_BATCHES:
            why = f"{table.n} batches in one append: only uncompressed messages of v0 and v1 may be several"
        elif status == COUNT_AND_RANGE:
            why = f"{row.count} records do not match the relative offsets 0 to {row.last_offset - row.base_offset}"
        elif status == CONTROL:
            why = "only a coordinator may write a control batch"
        elif status == NO_SEQUENCE:
            why = f"invalid sequence {row.base_sequence} of producer {row.producer_id}"
        elif status == NO_PRODUCER:
            why = f"invalid producer {row.producer_id} with epoch {row.producer_epoch}"
        else:
            why = f"{where} has the wrong relative offset {found.relative_offset}"
        raise InvalidRecordError(why, position=row.position)

    cdef int refuse_size(self, int64_t size_bytes, object position) except -1:
        raise RecordTooLargeError(
            f"a batch of {size_bytes} bytes is larger than max.message.bytes = {self.rules.max_batch_bytes}",
            position=position, hint="send smaller batches, or raise max.message.bytes",
        )

    cdef int refuse_record(self, int status, str where, int64_t timestamp, int64_t now_ms, object position) except -1:
        if status == NO_KEY:
            raise InvalidRecordError(
                f"{where} has no key, but the log is compacted", position=position,
                hint="give each record a key: cleanup.policy compacts by keys; seglog.build_batch makes such batches",
            )
        if status == OTHER_UNIT:
            raise InvalidTimestampError(
                f"{where} has the timestamp {timestamp}, which cannot be milliseconds since 1970",
                position=position, hint=f"{unit_hint(timestamp)}; seglog.timestamp.check=false accepts such times",
            )
        if status == NEGATIVE_TIME:
            why = "a timestamp must be 0 or more, or -1 for none"
        elif status == TOO_EARLY:
            why = (f"{now_ms - timestamp} ms before the clock, {now_ms}: "
                   f"message.timestamp.before.max.ms = {self.rules.before_max_ms}")
        else:
            why = (f"{timestamp - now_ms} ms after the clock, {now_ms}: "
                   f"message.timestamp.after.max.ms = {self.rules.after_max_ms}")
        raise InvalidTimestampError(f"{where} has the timestamp {timestamp}: {why}", position=position)


cdef str unit_hint(int64_t timestamp):
    """Guess the unit of a time that is_sane_time refuses."""
    if is_sane_time(timestamp // 1_000_000):
        return "it looks like nanoseconds: divide by 1_000_000"
    if is_sane_time(timestamp // 1000):
        return "it looks like microseconds: divide by 1000"
    if is_sane_time(timestamp * 1000):
        return "it looks like seconds: multiply by 1000"
    return "time.time_ns() // 1_000_000 is the time in milliseconds"


cdef int check_loss(const BatchHeader* row, int magic, int64_t with_headers) except -1:
    """Refuse what format `magic` cannot store and must not be dropped (LogValidator, MemoryRecordsBuilder)."""
    if row.magic < 2 or magic == 2:
        return 0
    if row.attributes & CONTROL_BIT:
        what = "a control batch"
    elif row.attributes & TRANSACTIONAL_BIT:
        what = "a transactional batch"
    elif row.producer_id >= 0:
        what = f"a batch of the idempotent producer {row.producer_id}"
    elif with_headers >= 0:
        what = f"record {with_headers} has headers"
    else:
        return 0
    raise UnsupportedForMessageFormatError(
        f"{what}, but the log's message.format.version is {magic}: this needs format v2", position=row.position,
        hint="send plain records, or raise message.format.version to 2",
    )


cdef bytes copy_of(object raw):
    """Copy the bytes of a buffer, which another thread may be writing to, and which we must not change."""
    cdef Py_buffer view
    PyObject_GetBuffer(raw, &view, PyBUF_SIMPLE)
    try:
        return PyBytes_FromStringAndSize(<const char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef BatchTable scanned(bytes raw, object decompress):
    """Scan bytes that must be complete batches with correct CRCs. There must be at least one."""
    cdef BatchTable table = scan(Window(raw), check_crc=True, decompress=decompress)
    if table.stop_ != OK:
        found, expected = table.stop_details()
        raise_status(table.stop_, table.end, -1, None, f"{found}, expected {expected}")
    if table.n == 0:
        raise InvalidRecordError("there is no batch")
    return table


cdef inline bint is_suspect(const Rules* rules, const BatchHeader* row) noexcept nogil:
    return codec_of(row) <= CODEC_ZSTD and row.size_bytes > rules.harmless_bytes[codec_of(row)]


cdef int check_order(
    const Rules* rules, BatchTable table, int64_t next_offset, Py_ssize_t* at, Py_ssize_t* suspect
) noexcept nogil:
    cdef const BatchHeader* row = table.rows
    cdef int status
    for at[0] in range(table.n):
        status = check_codec(row)
        if status != OK:
            return status
        if row.base_offset < max(next_offset, 0):
            return OFFSET_BEHIND
        if row.last_offset < row.base_offset or row.count > row.last_offset - row.base_offset + 1:
            return COUNT_AND_RANGE
        if suspect[0] < 0 and is_suspect(rules, row):
            suspect[0] = at[0]
        next_offset = row.last_offset + 1
        row += 1
    return OK
