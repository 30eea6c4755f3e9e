"""Encodes Python records as complete v2 batches: one record, or many in one pass.

Records are encoded one after another, after room for the header, which is written when everything is known. No checksum
covers a batch's offset and leader epoch: so a batch is made, and compressed, before its place in the log is known, and
`place()` sets them afterwards.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_Check
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from seglog.errors import InvalidArgumentError, RecordTooLargeError, UnsupportedCompressionTypeError

from .batch_builder cimport append_bytes, append_record, begin_batch, end_batch, store_batch_crcs
from .batch_header cimport (
    CODEC_NONE, CODEC_ZSTD, CONTROL_BIT, DELETE_HORIZON_BIT, LEADER_EPOCH_POS, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
    V2_HEADER_SIZE, BatchHeader,
)
from .field cimport Field, append_headers, hold_field, hold_key, release_field, to_timestamp
from .output cimport Output, ensure_room
from .record_batch cimport Record
from .record_view cimport RecordView
from .span cimport store_u32, store_u64
from .status cimport BAD_SIZE, NO_MEMORY, OK

cdef enum:
    # What is kept for the next batch: a few times the usual limit of one, max.message.bytes.
    SPARE_BYTES = 4 << 20
    # Below, dropping and taking the GIL costs more than others gain by it.
    GIL_WORTHY_BYTES = 64 << 10

cdef object NO_HEADERS = ()

# The memory of the last batch freed, for the next one, because fresh pages cost more than encoding into them. One for
# the process, not one per log, because there may be thousands of logs. Only the holder of the GIL takes or returns it.
cdef Output spare


cdef inline void take_output(Output* out) noexcept:
    """Memory to encode into, or none yet."""
    out[0] = spare
    out.size = 0
    memset(&spare, 0, sizeof(Output))


cdef inline void give_back(Output* out) noexcept:
    global spare
    if spare.first == NULL and out.capacity <= SPARE_BYTES:
        spare = out[0]
    else:
        free(out.first)
    out.first = NULL


cdef int raise_refused(int status, Py_ssize_t number) except -1:
    if status == NO_MEMORY:
        raise MemoryError
    raise RecordTooLargeError(
        f"the batch is larger than {INT32_MAX} bytes with record {number}" if number >= 0
        else f"the batch is larger than {INT32_MAX} bytes")


cdef int check_base_offset(int64_t base_offset, int64_t last_offset_delta) except -1:
    # The last int64 is no offset: there would be none for the end of the log.
    if base_offset < 0 or last_offset_delta > INT64_MAX - 1 - base_offset:
        raise InvalidArgumentError(
            f"the offsets {base_offset} to {base_offset} + {last_offset_delta} are out of range")
    return 0


# --- one record ----------------------------------------------------------------------------------

cdef int encode_into(
    Output* out, BatchHeader* batch, int64_t base_offset, int64_t timestamp, object key, object value, object headers,
    int32_t leader_epoch, int16_t attributes
) except -1:
    """Write a batch of one record to `out`, which may have memory; the caller gives that back."""
    cdef Output encoded_headers
    cdef RecordView record
    cdef Field key_field
    cdef Field value_field
    cdef int status
    check_base_offset(base_offset, 0)
    record.timestamp = timestamp
    if attributes & ~TIMESTAMP_TYPE_BIT:
        raise InvalidArgumentError(f"attributes {attributes}: only the timestamp type may be set")
    record.headers_size = 0
    record.header_count = 0
    encoded_headers.first = NULL
    key_field.is_exported = value_field.is_exported = False
    try:
        hold_key(&key_field, key, -1)
        hold_field(&value_field, value, b"value", -1)
        if headers is not NO_HEADERS and headers is not None:
            memset(&encoded_headers, 0, sizeof(Output))
            record.header_count = append_headers(&encoded_headers, headers, -1)
            record.headers_size = <int32_t>encoded_headers.size
            record.headers = encoded_headers.first
        record.key, record.key_size = key_field.bytes, key_field.size
        record.value, record.value_size = value_field.bytes, value_field.size
        record.offset = base_offset
        batch.base_offset = base_offset
        batch.base_timestamp = batch.max_timestamp = record.timestamp
        batch.producer_id = -1
        batch.producer_epoch = -1
        batch.base_sequence = -1
        batch.leader_epoch = leader_epoch
        batch.attributes = attributes
        status = begin_batch(out, batch)
        if status == OK:
            status = append_record(out, batch, &record, NULL)
        if status == OK:
            status = end_batch(out, batch)
        if status != OK:
            raise_refused(status, -1)
        store_batch_crcs(out, 0, out.size)
        return 0
    finally:
        release_field(&key_field)
        release_field(&value_field)
        free(encoded_headers.first)


def encode_one(
    int64_t base_offset, timestamp, key, value, headers=(), int32_t leader_epoch=-1, int16_t attributes=0, /
):
    """One record as an uncompressed batch of its own: bytes.

    `timestamp`: ms, -1 for none. `key`, `value`: bytes-like or None. `headers`: pairs of str and bytes-like or None.
    `attributes`: 0, or 8 where `timestamp` is the log's (LogAppendTime).
    Raises TypeError, InvalidArgumentError, RecordTooLargeError.
    """
    return encode_alone(base_offset, to_timestamp(timestamp, -1), key, value, headers, leader_epoch, attributes)


cdef bytes encode_bytes(int64_t timestamp, object key, object value, object headers):
    return encode_alone(0, timestamp, key, value, headers, -1, 0)


cdef bytes encode_alone(
    int64_t base_offset, int64_t timestamp, object key, object value, object headers, int32_t leader_epoch,
    int16_t attributes
):
    cdef Output out
    cdef BatchHeader batch
    take_output(&out)
    try:
        encode_into(&out, &batch, base_offset, timestamp, key, value, headers, leader_epoch, attributes)
        return PyBytes_FromStringAndSize(<const char*>out.first, out.size)
    finally:
        give_back(&out)


def encode_single(timestamp, key, value, headers=(), int16_t attributes=0, /):
    """As encode_one, as an EncodedBatch, which gets its place later."""
    cdef EncodedBatch made = EncodedBatch.__new__(EncodedBatch)
    take_output(&made.out)
    encode_into(&made.out, &made.batch, 0, to_timestamp(timestamp, -1), key, value, headers, -1, attributes)
    made.min_timestamp = made.batch.max_timestamp
    made.has_null_key = key is None
    return made


# --- many ------------------------------------------------------------------------------------------

@cython.final
@cython.no_gc
cdef class EncodedBatch:
    """A whole batch in memory of its own: any reader of buffers takes it, as bytes that are read-only."""

    def __init__(self):
        raise TypeError("an EncodedBatch comes from encode_records() or encode_columns()")

    def __dealloc__(self):
        give_back(&self.out)

    def __len__(self):
        return self.out.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.out.first, self.out.size, 1, flags)

    @property
    def base_offset(self):
        return self.batch.base_offset

    @property
    def last_offset(self):
        return self.batch.last_offset

    @property
    def leader_epoch(self):
        return self.batch.leader_epoch

    @property
    def count(self):
        """How many records there are."""
        return self.batch.count

    @property
    def max_timestamp(self):
        """The largest timestamp of its records, or the log's under LogAppendTime; ms, -1: none has one."""
        return self.batch.max_timestamp

    def place(self, int64_t base_offset, int32_t leader_epoch):
        """Set the batch's place in the log. In place, because no checksum covers the two fields.

        Call it before its bytes are handed on, not while they are being written. Raises InvalidArgumentError if the
        offsets would exceed int64.
        """
        cdef int32_t last_offset_delta = self.batch.count - 1
        check_base_offset(base_offset, last_offset_delta)
        self.batch.base_offset = base_offset
        self.batch.last_offset = base_offset + last_offset_delta
        self.batch.leader_epoch = leader_epoch
        store_u64(self.out.first, base_offset)
        store_u32(self.out.first + LEADER_EPOCH_POS, leader_epoch)

    def __repr__(self):
        return (f"<EncodedBatch of {self.batch.count} records at {self.batch.base_offset}, {self.out.size} bytes>")

    cdef EncodedBatch _sealed(self, object compress, int64_t base_offset):
        """This batch, or a compressed one of it, with its header written."""
        cdef int codec = self.batch.attributes & 0x07
        cdef EncodedBatch sealed = self
        if codec != CODEC_NONE:
            sealed = EncodedBatch.__new__(EncodedBatch)
            take_output(&sealed.out)
            sealed.batch = self.batch
            sealed.min_timestamp = self.min_timestamp
            sealed.has_null_key = self.has_null_key
            if ensure_room(&sealed.out, V2_HEADER_SIZE) != OK:
                raise MemoryError
            sealed.out.size = V2_HEADER_SIZE
            append_bytes(&sealed.out, compress(codec, memoryview(self)[V2_HEADER_SIZE:]))
        if end_batch(&sealed.out, &sealed.batch) != OK:
            raise_refused(BAD_SIZE, -1)
        if sealed.out.size < GIL_WORTHY_BYTES:
            store_batch_crcs(&sealed.out, 0, sealed.out.size)
        else:
            with nogil:
                store_batch_crcs(&sealed.out, 0, sealed.out.size)
        sealed.place(base_offset, sealed.batch.leader_epoch)
        return sealed


cdef EncodedBatch begin_encoded(
    int codec, object compress, int32_t leader_epoch, object log_append_time, int64_t producer_id,
    int16_t producer_epoch, int32_t base_sequence, bint is_transactional, bint is_control, object delete_horizon_ms,
):
    cdef EncodedBatch made = EncodedBatch.__new__(EncodedBatch)
    if codec < CODEC_NONE or codec > CODEC_ZSTD:
        raise UnsupportedCompressionTypeError(f"codec {codec} in a format that has {CODEC_NONE} to {CODEC_ZSTD}")
    if codec != CODEC_NONE and compress is None:
        raise InvalidArgumentError(f"codec {codec} needs `compress`")
    made.batch.attributes = (
        codec
        | (TIMESTAMP_TYPE_BIT if log_append_time is not None else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
    )
    made.batch.max_timestamp = -1 if log_append_time is None else to_timestamp(log_append_time, -1)
    made.batch.base_timestamp = -1 if delete_horizon_ms is None else to_timestamp(delete_horizon_ms, -1)
    made.batch.leader_epoch = leader_epoch
    made.batch.producer_id = producer_id
    made.batch.producer_epoch = producer_epoch
    made.batch.base_sequence = base_sequence
    made.min_timestamp = -1
    take_output(&made.out)
    if begin_batch(&made.out, &made.batch) != OK:
        raise MemoryError
    return made


def encode_records(
    records, int64_t base_offset, timestamp, *, int codec=0, compress=None, int32_t leader_epoch=-1,
    log_append_time=None, int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1,
    bint is_transactional=False, bint is_control=False, delete_horizon_ms=None, time_of=None,
):
    """Records, numbered from `base_offset` on, as one batch: EncodedBatch.

    records: iterable of (key, value), (key, value, headers) or (key, value, headers, timestamp): bytes-like or None
    both; headers as for encode_one, or None; `timestamp` where a record has none or None. Or Records.
    compress: Callable[[codec, payload], bytes-like], for any codec but 0.
    log_append_time: ms; makes the timestamp type LogAppendTime.
    delete_horizon_ms: takes the place of the base timestamp.
    time_of: Callable[[object, now_ms=`timestamp`], ms], for timestamps that are not ints; if None, these are refused.

    Raises TypeError, InvalidArgumentError (naming the record; no records; a timestamp or offset that cannot be),
    RecordTooLargeError (2 GiB), UnsupportedCompressionTypeError, and what `compress` raises.
    """
    cdef EncodedBatch made = begin_encoded(
        codec, compress, leader_epoch, log_append_time, producer_id, producer_epoch, base_sequence,
        is_transactional, is_control, delete_horizon_ms,
    )
    cdef Output encoded_headers
    cdef RecordView record
    cdef Field key_field
    cdef Field value_field
    cdef tuple fields
    cdef Py_ssize_t size
    cdef Py_ssize_t number = 0
    cdef int64_t default_timestamp = to_timestamp(timestamp, -1)
    cdef int status
    memset(&encoded_headers, 0, sizeof(Output))
    key_field.is_exported = value_field.is_exported = False
    try:
        for item in records:
            # A tuple cannot change while its fields are borrowed, whatever code a strange buffer runs.
            fields = <tuple>item if type(item) is tuple else fields_of(item, number)
            size = PyTuple_GET_SIZE(fields)
            if size < 2 or size > 4:
                fields_of(item, number)
            record.headers_size = 0
            record.header_count = 0
            record.timestamp = default_timestamp
            if size > 2:
                if size == 4 and fields[3] is not None:
                    given = fields[3]
                    if time_of is not None and not PyLong_Check(given):
                        given = time_in_ms(time_of, given, default_timestamp, number)
                    record.timestamp = to_timestamp(given, number)
                if fields[2] is not NO_HEADERS and fields[2] is not None:
                    encoded_headers.size = 0
                    record.header_count = append_headers(&encoded_headers, fields[2], number)
                    record.headers_size = <int32_t>encoded_headers.size
                    record.headers = encoded_headers.first
            hold_key(&key_field, fields[0], number)
            hold_field(&value_field, fields[1], b"value", number)
            record.key, record.key_size = key_field.bytes, key_field.size
            record.value, record.value_size = value_field.bytes, value_field.size
            record.offset = number
            if number == 0 and delete_horizon_ms is None:
                made.batch.base_timestamp = record.timestamp
            status = append_record(&made.out, &made.batch, &record, NULL)
            if status != OK:
                raise_refused(status, number)
            made._note(&record)
            release_field(&key_field)
            release_field(&value_field)
            number += 1
            # So that zip() may use its tuple again.
            item = fields = None
    finally:
        release_field(&key_field)
        release_field(&value_field)
        free(encoded_headers.first)
    if number == 0:
        raise InvalidArgumentError("a batch must contain at least one record")
    return made._sealed(compress, base_offset)


cdef object time_in_ms(object time_of, object given, int64_t now_ms, Py_ssize_t number):
    try:
        return time_of(given, now_ms=now_ms)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the timestamp of record {number}: {error.what}", hint=error.hint) from None


cdef tuple fields_of(object record, Py_ssize_t number):
    """A record that is no tuple, as one; TypeError for what cannot be a record."""
    if isinstance(record, Record):
        return record.key, record.value, record.headers, record.timestamp
    if not isinstance(record, (tuple, list)) or not 2 <= len(record) <= 4:
        raise TypeError(f"record {number} must be (key, value[, headers[, timestamp]]), not {record!r:.60}")
    return tuple(record)
