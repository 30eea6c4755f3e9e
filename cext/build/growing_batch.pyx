"""A batch to which records are added one by one: what linger.ms keeps in memory.

Records are encoded when they are added, so they cannot change while they wait.
"""
cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free

from seglog.errors import InvalidArgumentError, RecordTooLargeError

from .batch_builder cimport MAX_RECORD_OVERHEAD, append_record
from .batch_encode cimport EncodedBatch, begin_encoded
from .batch_header cimport V2_HEADER_SIZE
from .field cimport Field, append_headers, hold_field, hold_key, release_field
from .one_at_a_time cimport begin_alone, end_alone
from .output cimport Output
from .record_view cimport RecordView
from .status cimport NO_MEMORY, OK

cdef object NO_HEADERS = ()


@cython.final
cdef class GrowingBatch:
    """GrowingBatch(max_bytes, codec, compress, is_log_append_time): empty. One thread at a time.

    It does not grow beyond `max_bytes`, uncompressed. `codec`, `compress`: as in encode_records.
    `taken`: the batch that was taken last, until it is set to None.
    """

    def __cinit__(self, int64_t max_bytes, int codec, compress, bint is_log_append_time, /):
        self.max_bytes = max_bytes
        self.codec = codec
        self.compress = compress
        self.is_log_append_time = is_log_append_time

    def __dealloc__(self):
        free(self.encoded_headers.first)

    def __len__(self):
        """The number of waiting records."""
        return 0 if self.made is None else self.made.batch.count

    @property
    def size_bytes(self):
        """The uncompressed size of the waiting records."""
        return 0 if self.made is None else self.made.out.size - V2_HEADER_SIZE

    def add(self, key, value, headers, int64_t timestamp, /):
        """Add a record, as for encode_one. Returns False if there is no room for it; then nothing has changed.

        Raises TypeError, InvalidArgumentError.
        """
        return self.put(key, value, headers, timestamp, self.max_bytes)

    cdef bint put(
        self, object key, object value, object headers, int64_t timestamp, int64_t max_bytes
    ) except -1:
        cdef RecordView record
        cdef Field key_field
        cdef Field value_field
        cdef int64_t size = MAX_RECORD_OVERHEAD
        cdef int status
        record.headers = NULL
        record.headers_size = 0
        record.header_count = 0
        key_field.is_exported = value_field.is_exported = False
        begin_alone(&self.use, self)
        try:
            if headers is not NO_HEADERS and headers is not None:
                self.encoded_headers.size = 0
                record.header_count = append_headers(&self.encoded_headers, headers, -1)
                record.headers_size = <int>self.encoded_headers.size
                record.headers = self.encoded_headers.first
            hold_key(&key_field, key, -1)
            hold_field(&value_field, value, b"value", -1)
            record.key, record.key_size = key_field.bytes, key_field.size
            record.value, record.value_size = value_field.bytes, value_field.size
            record.timestamp = timestamp
            size += max(record.key_size, 0) + <int64_t>max(record.value_size, 0) + record.headers_size
            if self.made is None:
                if size > max_bytes - V2_HEADER_SIZE:
                    return False
                self.begin(timestamp)
            elif size > max_bytes - self.made.out.size:
                return False
            record.offset = self.made.batch.count
            status = append_record(&self.made.out, &self.made.batch, &record, NULL)
            if status != OK:
                if self.made.batch.count == 0:
                    self.made = None
                if status == NO_MEMORY:
                    raise MemoryError
                raise RecordTooLargeError("a batch is larger than its 32-bit size field allows")
            self.made._note(&record)
            return True
        finally:
            release_field(&key_field)
            release_field(&value_field)
            end_alone(&self.use)

    cdef int begin(self, int64_t timestamp) except -1:
        # The log's time is not known before the batch is taken.
        self.made = begin_encoded(
            self.codec, self.compress, -1, 0 if self.is_log_append_time else None, -1, -1, -1, False, False, None)
        self.made.batch.base_timestamp = timestamp
        return 0

    def take(self, int64_t base_offset, int64_t now_ms, /):
        """Take the waiting records as a batch; nothing waits afterwards.

        Raises InvalidArgumentError if none are waiting, and what `compress` raises.
        """
        cdef EncodedBatch made = self.made
        begin_alone(&self.use, self)
        try:
            if made is None:
                raise InvalidArgumentError("a batch must contain at least one record")
            if self.is_log_append_time:
                made.batch.max_timestamp = now_ms
            # In one step: whatever reaches the caller next, the batch waits, or it is here.
            self.taken, self.made = made._sealed(self.compress, base_offset), None
            return self.taken
        finally:
            end_alone(&self.use)
