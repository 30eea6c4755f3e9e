"""Build one batch of format v2, or a message set of format v0 or v1, from single records.

The payload comes first: append the records, pass `payload()` to a codec if needed, then call `finish()` with the
result. A builder owns what it wrote; bytes that it returns are copies.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from seglog.errors import InvalidArgumentError, RecordTooLargeError, UnsupportedCompressionTypeError

from .batch_header cimport (
    ATTRIBUTES_POS, BASE_SEQUENCE_POS, BASE_TIMESTAMP_POS, CODEC_MASK, CODEC_NONE, CODEC_ZSTD, CONTROL_BIT, COUNT_POS,
    CRC_POS, DELETE_HORIZON_BIT, LAST_OFFSET_DELTA_POS, LEADER_EPOCH_POS, LOG_OVERHEAD, MAGIC_POS, MAX_TIMESTAMP_POS,
    MESSAGE_CRC_POS, PRODUCER_EPOCH_POS, PRODUCER_ID_POS, SIZE_POS, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
    V2_HEADER_SIZE, BatchHeader,
)
from .crc cimport update_crc32, update_crc32c
from .field cimport Field, append_headers, hold_field, hold_key, release_field
from .one_at_a_time cimport Use, begin_alone, check_free, end_alone
from .output cimport Output, ensure_room
from .record_view cimport RecordView
from .span cimport load_u32, store_u16, store_u32, store_u64
from .status cimport BAD_SIZE, NO_MEMORY, OFFSET_RANGE, OK


# --- the parts that neighbours call ----------------------------------------------------------

cdef int end_batch(Output* out, BatchHeader* batch) noexcept nogil:
    cdef uint8_t* p = out.first + batch.position
    batch.size_bytes = out.size - batch.position
    if batch.size_bytes - LOG_OVERHEAD > INT32_MAX:
        return BAD_SIZE
    store_u64(p, <uint64_t>batch.base_offset)
    store_u32(p + SIZE_POS, <uint32_t>(batch.size_bytes - LOG_OVERHEAD))
    store_u32(p + LEADER_EPOCH_POS, <uint32_t>batch.leader_epoch)
    p[MAGIC_POS] = 2
    store_u32(p + CRC_POS, 0)
    store_u16(p + ATTRIBUTES_POS, <uint16_t>batch.attributes)
    store_u32(p + LAST_OFFSET_DELTA_POS, <uint32_t>(<uint64_t>batch.last_offset - <uint64_t>batch.base_offset))
    store_u64(p + BASE_TIMESTAMP_POS, <uint64_t>batch.base_timestamp)
    store_u64(p + MAX_TIMESTAMP_POS, <uint64_t>batch.max_timestamp)
    store_u64(p + PRODUCER_ID_POS, <uint64_t>batch.producer_id)
    store_u16(p + PRODUCER_EPOCH_POS, <uint16_t>batch.producer_epoch)
    store_u32(p + BASE_SEQUENCE_POS, <uint32_t>batch.base_sequence)
    store_u32(p + COUNT_POS, <uint32_t>batch.count)
    return OK


cdef void store_batch_crcs(Output* out, int64_t position, int64_t end) noexcept nogil:
    cdef uint8_t* p = out.first + position
    cdef int64_t size
    while p < out.first + end:
        size = <int64_t>load_u32(p + SIZE_POS) + LOG_OVERHEAD
        store_u32(p + CRC_POS, update_crc32c(0, p + ATTRIBUTES_POS, size - ATTRIBUTES_POS))
        p += size


cdef void store_message_crcs(Output* out, int64_t position) noexcept nogil:
    cdef uint8_t* p = out.first + position
    cdef uint8_t* end = out.first + out.size
    cdef int64_t size
    while p < end:
        size = <int64_t>load_u32(p + SIZE_POS) + LOG_OVERHEAD
        store_u32(p + MESSAGE_CRC_POS, update_crc32(0, p + MAGIC_POS, size - MAGIC_POS))
        p += size


cdef int append_inner_messages(
    Output* out, int8_t magic, uint8_t attributes, const RecordView* records, int64_t count, int64_t inner_base,
    const uint8_t* readable_end, int64_t* max_timestamp,
) noexcept nogil:
    cdef int64_t begin = out.size
    cdef RecordView record
    cdef int64_t i
    cdef int status
    max_timestamp[0] = -1
    for i in range(count):
        record = records[i]
        record.offset -= inner_base
        max_timestamp[0] = max(max_timestamp[0], record.timestamp)
        status = append_message(out, magic, attributes, &record, readable_end)
        if status != OK:
            return status
    store_message_crcs(out, begin)
    return OK


cdef int append_wrapper(
    Output* out, int8_t magic, uint8_t attributes, int64_t last_offset, int64_t timestamp, const uint8_t* payload,
    int64_t payload_size,
) noexcept nogil:
    cdef int64_t begin = out.size
    cdef RecordView record
    cdef int status
    if payload_size > INT32_MAX:
        return BAD_SIZE
    record.offset = last_offset
    record.timestamp = timestamp
    record.key = NULL
    record.key_size = -1
    record.value = payload
    record.value_size = <int32_t>payload_size
    status = append_message(out, magic, attributes, &record, payload + payload_size)
    if status == OK:
        store_message_crcs(out, begin)
    return status


# --- for Python --------------------------------------------------------------------------------

cdef int raise_refusal(int status, int64_t offset, const char* what) except -1:
    """Raise the error of a failed append or finish: the caller's arguments are wrong, not bytes on disk."""
    if status == NO_MEMORY:
        raise MemoryError
    if status == OFFSET_RANGE:
        raise InvalidArgumentError(
            "a record's offset must be above the one before it and within 31 bits of the batch's first",
            offset=offset,
        )
    raise RecordTooLargeError(f"a {what.decode()} is larger than its 32-bit size field allows", offset=offset)


@cython.final
cdef class BatchBuilder:
    """One batch of format v2.

    `base_offset` opens the batch: records may begin above it (compaction leaves such gaps). All other
    arguments are the header fields of docs/formats/record_batch.md. `log_append_time` (ms) makes the
    timestamp type LogAppendTime. `base_timestamp` defaults to the first record's, or to the delete
    horizon if there is one (KIP-534 stores it in that field).
    """
    cdef Output out
    cdef Output headers             # of the record being appended
    cdef BatchHeader batch
    cdef bint base_timestamp_is_set
    cdef bint is_finished
    cdef Use use

    def __cinit__(
        self,
        int64_t base_offset,
        *,
        log_append_time=None,
        base_timestamp=None,
        delete_horizon_ms=None,
        int32_t leader_epoch=-1,
        int64_t producer_id=-1,
        int16_t producer_epoch=-1,
        int32_t base_sequence=-1,
        bint is_transactional=False,
        bint is_control=False,
    ):
        if base_offset < 0:
            raise InvalidArgumentError(f"invalid base offset {base_offset}")
        if delete_horizon_ms is not None and base_timestamp is not None:
            raise InvalidArgumentError("pass a base timestamp or a delete horizon: they share a header field")
        self.batch.attributes = (
            (TIMESTAMP_TYPE_BIT if log_append_time is not None else 0)
            | (TRANSACTIONAL_BIT if is_transactional else 0)
            | (CONTROL_BIT if is_control else 0)
            | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
        )
        self.base_timestamp_is_set = delete_horizon_ms is not None or base_timestamp is not None
        self.batch.base_timestamp = -1
        if self.base_timestamp_is_set:
            self.batch.base_timestamp = base_timestamp if delete_horizon_ms is None else delete_horizon_ms
        self.batch.max_timestamp = -1 if log_append_time is None else log_append_time
        self.batch.base_offset = base_offset
        self.batch.leader_epoch = leader_epoch
        self.batch.producer_id = producer_id
        self.batch.producer_epoch = producer_epoch
        self.batch.base_sequence = base_sequence
        if begin_batch(&self.out, &self.batch) != OK:
            raise MemoryError

    def __dealloc__(self):
        free(self.out.first)
        free(self.headers.first)

    def append(self, int64_t offset, int64_t timestamp, key, value, headers=()):
        """Append a record. `key`, `value`: bytes-like or None; `headers`: pairs of str and bytes-like or None.

        Under LogAppendTime readers answer the batch's time; `timestamp` then only makes the stored delta.
        Raises InvalidArgumentError for an offset that does not rise or lies beyond 31 bits,
        RecordTooLargeError for a record beyond 2 GiB; the batch is as before then.
        """
        cdef RecordView record
        cdef Field key_field
        cdef Field value_field
        cdef int status
        begin_alone(&self.use, self)
        try:
            self.check_open()
            self.headers.size = 0
            record.header_count = append_headers(&self.headers, headers, self.batch.count)
            record.headers = self.headers.first
            record.headers_size = <int32_t>self.headers.size
            record.offset = offset
            record.timestamp = timestamp
            key_field.is_exported = value_field.is_exported = False
            try:
                hold_key(&key_field, key, self.batch.count)
                hold_field(&value_field, value, b"value", self.batch.count)
                record.key, record.key_size = key_field.bytes, key_field.size
                record.value, record.value_size = value_field.bytes, value_field.size
                if self.batch.count and offset <= self.batch.last_offset:
                    raise_refusal(OFFSET_RANGE, offset, "record")
                if not self.base_timestamp_is_set:
                    self.batch.base_timestamp = timestamp
                # No field is readable past its own end.
                status = append_record(&self.out, &self.batch, &record, NULL)
                if status != OK:
                    raise_refusal(status, offset, "record")
            finally:
                release_field(&key_field)
                release_field(&value_field)
            self.base_timestamp_is_set = True
        finally:
            end_alone(&self.use)

    @property
    def count(self):
        """How many records were appended."""
        return self.batch.count

    @property
    def payload_size(self):
        """Bytes of the records so far, not compressed."""
        return self.out.size - V2_HEADER_SIZE

    def payload(self):
        """The encoded records: what a codec compresses."""
        check_free(&self.use, self)
        return PyBytes_FromStringAndSize(<const char*>self.out.first + V2_HEADER_SIZE, self.out.size - V2_HEADER_SIZE)

    def finish(self, compressed=None, int codec=0, *, last_offset=None, max_timestamp=None):
        """The whole batch as bytes. The builder takes no more records.

        `compressed`: what `codec` (1 gzip to 4 zstd) made of `payload()`. `last_offset`: where the batch
        ends, if above its last record. `max_timestamp`: if it is not the largest of the records (a batch
        without records keeps the one it had, as Kafka's cleaner does).
        """
        cdef int64_t end_offset = self.batch.last_offset
        cdef int status
        begin_alone(&self.use, self)
        try:
            self.check_open()
            check_codec(compressed, codec, highest=CODEC_ZSTD)
            if last_offset is not None:
                end_offset = last_offset
            if end_offset < self.batch.last_offset or end_offset - self.batch.base_offset > INT32_MAX:
                raise_refusal(OFFSET_RANGE, end_offset, "batch")
            if compressed is not None:
                self.out.size = V2_HEADER_SIZE
                append_bytes(&self.out, compressed)
            self.batch.last_offset = end_offset
            self.batch.attributes = <int16_t>(self.batch.attributes & ~CODEC_MASK | codec)
            if max_timestamp is not None:
                self.batch.max_timestamp = max_timestamp
            self.is_finished = True
            status = end_batch(&self.out, &self.batch)
            if status != OK:
                raise_refusal(status, self.batch.base_offset, "batch")
            store_batch_crcs(&self.out, 0, self.out.size)
            return PyBytes_FromStringAndSize(<const char*>self.out.first, self.out.size)
        finally:
            end_alone(&self.use)

    cdef int check_open(self) except -1:
        if self.is_finished:
            raise InvalidArgumentError("this batch is finished")
        return 0


@cython.final
cdef class MessageSetBuilder:
    """Messages of format v0 or v1: a run of bare ones, or the inside of a wrapper.

    `wrapped_from` is the first offset of the wrapper to be: inner offsets are then stored as the format
    has it (v0: absolute, v1: relative to it). `timestamp_type` (0 CreateTime, 1 LogAppendTime) is what the
    messages themselves say; v0 has none.
    """
    cdef Output out
    cdef int64_t crcs_stored_to         # messages from here on still lack theirs
    cdef int crcs_lacking
    cdef int64_t inner_base             # taken off each offset that is stored
    cdef int64_t last_offset
    cdef int64_t max_timestamp
    cdef int32_t count_
    cdef readonly int magic
    cdef uint8_t attributes
    cdef bint is_wrapped
    cdef Use use

    def __cinit__(self, int magic, *, int timestamp_type=0, wrapped_from=None):
        if magic not in (0, 1):
            raise InvalidArgumentError(f"messages must have format v0 or v1, not v{magic}")
        if timestamp_type not in (0, 1) or magic < timestamp_type:
            raise InvalidArgumentError(f"invalid timestamp type {timestamp_type} in format v{magic}")
        self.magic = magic
        self.attributes = TIMESTAMP_TYPE_BIT if timestamp_type else 0
        self.is_wrapped = wrapped_from is not None
        if self.is_wrapped and magic == 1:
            self.inner_base = wrapped_from
        self.last_offset = -1
        self.max_timestamp = -1

    def __dealloc__(self):
        free(self.out.first)

    def append(self, int64_t offset, int64_t timestamp, key, value):
        """Append a message. `timestamp` is ignored in v0. Refuses as BatchBuilder.append does."""
        cdef RecordView record
        cdef Field key_field
        cdef Field value_field
        cdef int status
        begin_alone(&self.use, self)
        try:
            if offset <= self.last_offset or offset < self.inner_base:
                raise_refusal(OFFSET_RANGE, offset, "message")
            record.offset = offset - self.inner_base
            record.timestamp = timestamp
            key_field.is_exported = value_field.is_exported = False
            try:
                hold_key(&key_field, key, self.count_)
                hold_field(&value_field, value, b"value", self.count_)
                record.key, record.key_size = key_field.bytes, key_field.size
                record.value, record.value_size = value_field.bytes, value_field.size
                status = append_message(&self.out, <int8_t>self.magic, self.attributes, &record, NULL)
                if status != OK:
                    raise_refusal(status, offset, "message")
            finally:
                release_field(&key_field)
                release_field(&value_field)
            self.last_offset = offset
            self.count_ += 1
            if self.magic == 1 and timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
            self.crcs_lacking += 1
            if self.crcs_lacking > DEFERRED_CRCS:
                self.store_crcs()
        finally:
            end_alone(&self.use)

    cdef void store_crcs(self) noexcept:
        store_message_crcs(&self.out, self.crcs_stored_to)
        self.crcs_stored_to = self.out.size
        self.crcs_lacking = 0

    @property
    def count(self):
        """How many messages were appended."""
        return self.count_

    @property
    def payload_size(self):
        """Bytes of the messages so far."""
        return self.out.size

    def payload(self):
        """The message set: bare messages as they go to a log, or what a codec compresses."""
        check_free(&self.use, self)
        self.store_crcs()
        return PyBytes_FromStringAndSize(<const char*>self.out.first, self.out.size)

    def wrap(self, compressed not None, int codec, *, timestamp=None, int timestamp_type=0):
        """The wrapper message, as bytes, around what `codec` (1 gzip to 3 lz4) made of `payload()`.

        It carries the offset of the last message and, unless `timestamp` is given (LogAppendTime), the
        largest timestamp: AbstractLegacyRecordBatch and MemoryRecordsBuilder.writeLegacyCompressedWrapperHeader.
        """
        cdef Output wrapper
        cdef Field field
        cdef int status
        begin_alone(&self.use, self)
        try:
            check_codec(compressed, codec, highest=CODEC_ZSTD - 1)
            if not self.is_wrapped or self.count_ == 0:
                raise InvalidArgumentError("a wrapper needs `wrapped_from` and at least one message")
            if timestamp_type not in (0, 1) or self.magic < timestamp_type:
                raise InvalidArgumentError(f"invalid timestamp type {timestamp_type} in format v{self.magic}")
            hold_field(&field, compressed, b"compressed payload", -1)
            memset(&wrapper, 0, sizeof(Output))
            status = append_wrapper(
                &wrapper, <int8_t>self.magic, <uint8_t>(codec | (TIMESTAMP_TYPE_BIT if timestamp_type else 0)),
                self.last_offset, self.max_timestamp if timestamp is None else timestamp, field.bytes, field.size,
            )
            release_field(&field)
            if status != OK:
                raise_refusal(status, self.last_offset, "wrapper")
            try:
                return PyBytes_FromStringAndSize(<const char*>wrapper.first, wrapper.size)
            finally:
                free(wrapper.first)
        finally:
            end_alone(&self.use)


cdef int check_codec(object compressed, int codec, int highest) except -1:
    if (compressed is None) != (codec == CODEC_NONE):
        raise InvalidArgumentError(f"codec {codec} with {'no' if compressed is None else 'a'} compressed payload")
    if codec < CODEC_NONE or codec > highest:
        raise UnsupportedCompressionTypeError(f"codec {codec} in a format that has 0 to {highest}")
    return 0


cdef int append_bytes(Output* out, object data) except -1:
    cdef Field field
    hold_field(&field, data, b"compressed payload", -1)
    try:
        if ensure_room(out, max(field.size, 0)) != OK:
            raise MemoryError
        if field.size > 0:
            memcpy(out.first + out.size, field.bytes, field.size)
            out.size += field.size
    finally:
        release_field(&field)
    return 0
