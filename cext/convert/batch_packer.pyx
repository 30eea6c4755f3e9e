"""Turn batches of any format version into v2 batches, without leaving memory.

Without options the result is what Kafka 4.1.1 makes of old data at rest when its cleaner rewrites it
(MemoryRecords.filterTo and buildRetainedRecordsInto, KAFKA-13093), record for record and batch for batch:

    in                      out: one v2 batch
    v2 batch                the same bytes
    v0, v1 message          of one record
    v0, v1 wrapper          of its messages, same codec, first offset = its first message's
    v0                      CreateTime, timestamps -1
    v1                      the timestamp type kept; LogAppendTime: max timestamp = the wrapper's
    v0, v1, tagged          leader epoch, producer and sequence -1
    tagged                  times as in v1; unknown tags as headers; commits and aborts as markers, other control
                            messages not at all

What changes that: `repack_bytes` gathers records into larger batches, `codec` recompresses,
`delete_horizon_ms` sets the flag that the cleaner sets on batches with null values (KIP-534).
Offsets, timestamps, keys, values and headers stay in every case.

Which records share a batch under `repack_bytes` is said in open_batch.pxd.
Control batches and batches without records are copied and end a run. A v2 batch goes into a larger
one whole, never in parts: producer state and transaction indexes name its last offset.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from seglog.errors import InvalidArgumentError, RecordTooLargeError

from .batch_builder cimport DEFERRED_CRCS, append_fields, append_record, end_batch, store_batch_crcs
from .batch_header cimport (
    CODEC_NONE, CODEC_ZSTD, CONTROL_BIT, DELETE_HORIZON_BIT, TAGGED_MAGIC, TRANSACTIONAL_BIT, V2_HEADER_SIZE,
    BatchHeader, codec_of, crc_matches,
)
from .batch_source cimport Source, inspect, open_plain, parse_next
from .legacy_records cimport parse_bare_message
from .message_run cimport append_run
from .open_batch cimport OpenBatch, begin_for, begin_with, headers_join, offsets_join, shared_attributes
from .output cimport Output, ensure_room
from .packer cimport NEEDS_GIL, Packer
from .record_view cimport RecordView
from .segment_scan cimport BatchTable
from .span cimport Span
from .status cimport BAD_CRC, OK
from .tag_headers cimport headers_of_tags
from .tagged_message cimport CONTROL_TYPE_SHIFT, TYPE_ABORT, TYPE_COMMIT, TYPE_LEADER_EPOCH
from .window cimport Window

cdef enum:
    # Beside NEEDS_GIL and the Status of the record parsers: what comes next does not fit the open batch. End it, then
    # ask again.
    NEEDS_CLOSE = 2

    # How far CRCs are checked before the same bytes are converted: they shall still be in the cache.
    CRCS_AHEAD = 64
    CRC_BYTES_AHEAD = 64 << 10


cdef Py_ssize_t count_whole(const uint8_t* bytes, const BatchHeader* rows, Py_ssize_t n) noexcept nogil:
    """How many of these batches have the CRC they should before one has not. Stops early at large ones."""
    cdef Py_ssize_t i
    cdef int64_t size = 0
    for i in range(n):
        if not crc_matches(bytes, &rows[i]):
            return i
        size += rows[i].size_bytes
        if size > CRC_BYTES_AHEAD:
            return i + 1
    return n


@cython.final
cdef class BatchPacker(Packer):
    """Takes batches of a BatchTable, gives v2 batches. One thread at a time.

    repack_bytes: gather records into batches of up to so many bytes before compression (0: do not).
    codec: recompress everything but control batches with this codec (-1: keep each batch's own).
    decompress: Callable[[codec, magic, memoryview], bytes-like]; None: the table's.
    compress: Callable[[codec, payload], bytes-like].
    delete_horizon_ms: the flag of the cleaner's (-1: leave as is). Not together with repack_bytes.
    check_crc: refuse a batch whose checksum does not fit.

    Runs that need no codec convert without the GIL, from message to batch in one pass.
    """
    cdef OpenBatch pack
    cdef int64_t crcs_stored_to     # ended batches from here on lack theirs
    cdef int crcs_lacking
    cdef bytes lone                 # the open, compressed batch as it was read, while it has no more
    cdef int32_t lone_count         # records than these
    cdef Output headers             # of a tagged message
    cdef readonly int64_t repack_bytes
    cdef readonly int64_t delete_horizon_ms

    def __cinit__(
        self,
        *,
        int64_t repack_bytes=0,
        int codec=-1,
        decompress=None,
        compress=None,
        int64_t delete_horizon_ms=-1,
        bint check_crc=True,
    ):
        if codec < -1 or codec > CODEC_ZSTD:
            raise InvalidArgumentError(f"codec {codec}; there are 0 (none) to {CODEC_ZSTD} (zstd)")
        if repack_bytes < 0 or repack_bytes > INT32_MAX:
            raise InvalidArgumentError(f"batches of {repack_bytes} bytes")
        if repack_bytes and delete_horizon_ms >= 0:
            raise InvalidArgumentError("a delete horizon is for the batches that are there: it excludes repack_bytes")
        self.repack_bytes = repack_bytes
        self.codec = codec
        self.decompress = decompress
        self.compress = compress
        self.delete_horizon_ms = delete_horizon_ms
        self.check_crc = check_crc
        self.magic = 2

    def __dealloc__(self):
        free(self.headers.first)

    # --- without the GIL ---------------------------------------------------------------------

    cdef int add_plain(self, BatchTable table, Py_ssize_t* i, Py_ssize_t last) noexcept nogil:
        """Convert from row i[0] on, and count it up. NEEDS_GIL: that row is whole, but needs a codec."""
        cdef const uint8_t* bytes = table.window.base
        cdef const uint8_t* end = bytes + table.window.size
        cdef const BatchHeader* row
        cdef Py_ssize_t checked = i[0]
        cdef Py_ssize_t run
        cdef int status
        while i[0] < last:
            row = &table.rows[i[0]]
            if self.check_crc and i[0] >= checked:
                # Some ahead: the processor then works on several small messages' CRCs at a time.
                checked = i[0] + count_whole(bytes, row, min(last - i[0], CRCS_AHEAD))
                if checked == i[0]:
                    return BAD_CRC
            if self.pack.is_open and self.pack.codec != CODEC_NONE:
                return NEEDS_GIL
            if row.magic == 2 and self.is_copied(row):
                status = self.close_plain()
                if status == OK:
                    status = self.copy_whole(bytes + row.position, row.size_bytes)
            elif row.magic == TAGGED_MAGIC and row.attributes & CONTROL_BIT:
                status = self.close_plain()
                if status == OK:
                    status = self.add_marker(bytes, end, row)
            elif codec_of(row) != CODEC_NONE or self.codec > CODEC_NONE:
                return NEEDS_GIL
            elif row.magic == 2:
                status = self.add_plain_batch(bytes, end, row)
            elif self.goes_on_with(row):
                # Fast path: as many as go into the open batch without a second look.
                run = append_run(
                    &self.chunk.out, &self.pack.header, self.repack_bytes, self.pack.has_time,
                    bytes, end, row, (checked if self.check_crc else last) - i[0],
                )
                i[0] += run
                if run > 0:
                    continue
                status = self.add_plain_message(bytes, end, row)
            else:
                # Slow path: a message that opens a batch, or ends one, or is wrong.
                status = self.add_plain_message(bytes, end, row)
            if status != OK:
                return status
            i[0] += 1
        return OK

    cdef inline bint goes_on_with(self, const BatchHeader* row) noexcept nogil:
        """May a run of messages like this one go into the open batch?"""
        cdef const BatchHeader* header = &self.pack.header
        return (
            self.repack_bytes > 0 and self.pack.is_open and row.magic != TAGGED_MAGIC
            and header.attributes == shared_attributes(row) and header.leader_epoch == -1
            and header.producer_id == -1 and header.producer_epoch == -1 and header.base_sequence == -1
        )

    cdef int add_plain_message(self, const uint8_t* bytes, const uint8_t* end, const BatchHeader* row) noexcept nogil:
        cdef Span span
        cdef RecordView record
        cdef int64_t horizon_ms
        cdef int status
        span.p = bytes + row.position
        span.end = span.p + row.size_bytes
        status = parse_bare_message(&span, row, &record)
        if status != OK:
            return status
        horizon_ms = self.new_horizon_ms(row, record.value_size < 0)
        status = self.put_record(row, &record, end, CODEC_NONE, horizon_ms)
        if status == NEEDS_CLOSE:
            status = self.close_plain()
            if status == OK:
                status = self.put_record(row, &record, end, CODEC_NONE, horizon_ms)
        if status == OK and self.repack_bytes == 0:
            status = self.close_plain()
        return status

    cdef int add_marker(self, const uint8_t* bytes, const uint8_t* end, const BatchHeader* row) noexcept nogil:
        """A control message of the tagged dialect: the marker of a commit or an abort, of nobody. Others have none."""
        cdef Span span
        cdef RecordView record
        cdef int status
        cdef int type_ = (row.attributes >> CONTROL_TYPE_SHIFT & 3) + TYPE_LEADER_EPOCH
        if type_ != TYPE_COMMIT and type_ != TYPE_ABORT:
            return OK
        span.p = bytes + row.position
        span.end = span.p + row.size_bytes
        status = parse_bare_message(&span, row, &record)
        if status == OK:
            status = begin_for(&self.pack, &self.chunk.out, row, &record, CODEC_NONE, -1)
        if status != OK:
            return status
        self.pack.header.attributes |= CONTROL_BIT | TRANSACTIONAL_BIT
        status = append_record(&self.chunk.out, &self.pack.header, &record, end)
        if status != OK:
            self.undo_begin(self.pack.header.position)
            return status
        return self.close_plain()

    cdef int add_plain_batch(self, const uint8_t* bytes, const uint8_t* end, const BatchHeader* row) noexcept nogil:
        cdef Source source
        cdef int status
        open_plain(&source, row, bytes, end)
        status = inspect(&source)
        if status != OK:
            return status
        if self.repack_bytes == 0 and self.new_horizon_ms(row, source.has_null_value) < 0:
            return self.copy_whole(source.raw, row.size_bytes)
        status = self.put_source(&source)
        if status == NEEDS_CLOSE:
            status = self.close_plain()
            if status == OK:
                status = self.put_source(&source)
        if status == OK and self.repack_bytes == 0:
            status = self.close_plain()
        return status

    cdef bint is_copied(self, const BatchHeader* row) noexcept nogil:
        """Does this v2 batch go out as it stands?"""
        if row.attributes & CONTROL_BIT or row.count == 0:
            return True
        if self.codec >= 0 and codec_of(row) != self.codec:
            return False
        if self.repack_bytes:
            return row.size_bytes >= self.repack_bytes
        # Only its records tell whether the cleaner would set its delete horizon.
        return self.delete_horizon_ms < 0 or (row.attributes & DELETE_HORIZON_BIT) != 0

    cdef inline int codec_for(self, const BatchHeader* row) noexcept nogil:
        return codec_of(row) if self.codec < 0 else self.codec

    cdef inline int64_t new_horizon_ms(self, const BatchHeader* row, bint has_null_value) noexcept nogil:
        """The delete horizon that a batch of these records gets; -1: none, or it has one."""
        if has_null_value and not (row.magic == 2 and row.attributes & DELETE_HORIZON_BIT):
            return self.delete_horizon_ms
        return -1

    # --- into the open batch -----------------------------------------------------------------

    cdef int put_source(self, Source* source) noexcept nogil:
        """Write the records that are left. NEEDS_CLOSE: of a v2 batch none, of a wrapper some are written."""
        cdef const BatchHeader* row = source.row
        cdef int codec = self.codec_for(row)
        cdef int64_t horizon_ms = self.new_horizon_ms(row, source.has_null_value)
        cdef RecordView record
        cdef Source ahead = source[0]
        cdef int status
        if row.magic == 2:
            return self.put_batch(source, codec, horizon_ms)
        while source.left:
            status = parse_next(&ahead, &record)
            if status == OK:
                status = self.put_record(row, &record, source.readable_end, codec, horizon_ms)
            if status != OK:
                return status
            source.records = ahead.records
            source.left -= 1
        return OK

    cdef inline int put_record(
        self, const BatchHeader* row, const RecordView* record, const uint8_t* readable_end, int codec,
        int64_t horizon_ms,
    ) noexcept nogil:
        """Write one message's record."""
        cdef OpenBatch* pack = &self.pack
        cdef RecordView with_headers
        cdef const uint8_t* headers_end = readable_end
        cdef int64_t size = self.chunk.out.size
        cdef int64_t last_offset = pack.header.last_offset
        cdef int64_t max_timestamp = pack.header.max_timestamp
        cdef int status
        if row.magic == TAGGED_MAGIC:
            with_headers = record[0]
            status = headers_of_tags(&with_headers, &self.headers)
            if status != OK:
                return status
            record = &with_headers
            headers_end = self.headers.first + self.headers.size
        if not pack.is_open:
            status = begin_for(pack, &self.chunk.out, row, record, codec, horizon_ms)
            if status == OK:
                status = append_fields(
                    &self.chunk.out, &pack.header, record, readable_end, readable_end, headers_end)
                if status != OK:
                    self.undo_begin(size)
            return status
        if not self.joins(row, record.offset, record.offset, record.timestamp != -1, codec):
            return NEEDS_CLOSE
        status = append_fields(&self.chunk.out, &pack.header, record, readable_end, readable_end, headers_end)
        if status == OK and self.repack_bytes and self.chunk.out.size - pack.header.position > self.repack_bytes:
            self.chunk.out.size = size
            pack.header.count -= 1
            pack.header.last_offset = last_offset
            pack.header.max_timestamp = max_timestamp
            return NEEDS_CLOSE
        return status

    cdef int put_batch(self, Source* source, int codec, int64_t horizon_ms) noexcept nogil:
        """Write all records of a v2 batch into one batch."""
        cdef const BatchHeader* row = source.row
        cdef Output* out = &self.chunk.out
        cdef OpenBatch before = self.pack
        cdef int64_t size = out.size
        cdef Source ahead = source[0]
        cdef RecordView record
        cdef int status = OK
        if not before.is_open and horizon_ms < 0:
            status = begin_with(&self.pack, out, source, codec)
            ahead.left = 0
        elif before.is_open and not self.joins(
            row, row.base_offset, row.last_offset, row.max_timestamp != -1, codec
        ):
            return NEEDS_CLOSE
        while status == OK and ahead.left > 0:
            status = parse_next(&ahead, &record)
            if status == OK and not self.pack.is_open:
                status = begin_for(&self.pack, out, row, &record, codec, horizon_ms)
            if status == OK:
                status = append_record(out, &self.pack.header, &record, source.readable_end)
            ahead.left -= 1
        # Too large: alone, and as it was where nothing else asks for a change.
        if status == OK and self.repack_bytes and out.size - self.pack.header.position > self.repack_bytes:
            if before.is_open:
                status = NEEDS_CLOSE
            elif codec == codec_of(row):
                out.size = size
                self.pack = before
                return self.copy_whole(source.raw, row.size_bytes)
        if status != OK:
            out.size = size
            self.pack = before
            return status
        # Offsets that compaction emptied at the end of the batch stay covered.
        self.pack.header.last_offset = row.last_offset
        return OK

    cdef inline void undo_begin(self, int64_t size) noexcept nogil:
        self.pack.is_open = False
        self.chunk.out.size = size

    cdef inline bint joins(
        self, const BatchHeader* row, int64_t first_offset, int64_t last_offset, bint has_time, int codec
    ) noexcept nogil:
        """May records of this row, at these offsets, go into the open batch? Without repacking: of the same wrapper."""
        return offsets_join(&self.pack, first_offset, last_offset) and (
            self.repack_bytes == 0 or headers_join(&self.pack, row, first_offset, has_time, codec)
        )

    # --- ended batches -----------------------------------------------------------------------

    cdef int64_t closed_end(self) noexcept nogil:
        return self.pack.header.position if self.pack.is_open else self.chunk.out.size

    cdef int close_plain(self) noexcept nogil:
        """End the open batch, if there is one, as it stands."""
        cdef int status
        if not self.pack.is_open:
            return OK
        status = end_batch(&self.chunk.out, &self.pack.header)
        if status != OK:
            return status
        self.pack.is_open = False
        self.crcs_lacking += 1
        if self.crcs_lacking >= DEFERRED_CRCS:
            self.store_crcs()
        return OK

    cdef void store_crcs(self) noexcept nogil:
        cdef int64_t end = self.closed_end()
        if self.crcs_stored_to < end:
            store_batch_crcs(&self.chunk.out, self.crcs_stored_to, end)
        self.crcs_stored_to = end
        self.crcs_lacking = 0

    cdef int copy_whole(self, const uint8_t* raw, int64_t size) noexcept nogil:
        """Take a v2 batch over as it stands. No batch is open."""
        cdef int status
        self.store_crcs()
        status = self.copy(raw, size)
        self.crcs_stored_to = self.chunk.out.size
        return status

    cdef void settle(self) noexcept nogil:
        self.store_crcs()

    cdef void leave_chunk(self) noexcept nogil:
        self.pack.header.position = 0
        self.crcs_stored_to = 0

    # --- with codecs, and the GIL ------------------------------------------------------------

    cdef int add_with_codec(self, BatchTable table, const BatchHeader* row) except -1:
        """Convert a row whose CRC add_plain has checked."""
        cdef Source source
        cdef Window _opened         # keeps what `source` borrows
        cdef int status
        if row.magic == 2 and self.is_copied(row):
            self.close()
            with nogil:
                status = self.copy_whole(table.window.base + row.position, row.size_bytes)
            return self.raise_status_of(status, table, row)
        _opened = self.open_source(table, row, &source)
        with nogil:
            status = inspect(&source)
        self.raise_status_of(status, table, row)
        if row.magic == 2 and codec_of(row) == self.codec_for(row) and self.repack_bytes == 0:
            if self.new_horizon_ms(row, source.has_null_value) < 0:
                with nogil:
                    status = self.copy_whole(source.raw, row.size_bytes)
                return self.raise_status_of(status, table, row)
        while True:
            with nogil:
                status = self.put_source(&source)
            if status != NEEDS_CLOSE:
                break
            self.close()
        self.raise_status_of(status, table, row)
        if self.repack_bytes == 0:
            self.close()
        elif row.magic == 2 and self.pack.is_open and self.pack.header.count == row.count:
            if codec_of(row) == self.pack.codec != CODEC_NONE:
                # If nothing joins it, there is no need to compress it again.
                self.lone = PyBytes_FromStringAndSize(<const char*>source.raw, row.size_bytes)
                self.lone_count = row.count
        return 0

    cdef int close(self) except -1:
        """End the open batch, if there is one, through its codec."""
        cdef Output* out = &self.chunk.out
        cdef Window compressed
        cdef int64_t payload
        cdef bytes lone = self.lone
        if not self.pack.is_open:
            return 0
        self.lone = None
        if lone is not None and self.pack.header.count == self.lone_count:
            out.size = self.pack.header.position
            self.pack.is_open = False
            if self.copy_whole(<const uint8_t*>lone, len(lone)) != OK:
                raise MemoryError
            return 0
        if self.pack.codec != CODEC_NONE:
            self.is_broken = True       # until the codec has answered
            payload = self.pack.header.position + V2_HEADER_SIZE
            compressed = self.compressed(
                self.pack.codec, out.first + payload, out.size - payload, self.pack.header.base_offset
            )
            out.size = payload
            if ensure_room(out, compressed.size) != OK:
                raise MemoryError
            if compressed.size:
                memcpy(out.first + payload, compressed.base, compressed.size)
            out.size += compressed.size
            self.is_broken = False
            self.pack.header.attributes = <int16_t>(self.pack.header.attributes | self.pack.codec)
        if self.close_plain() != OK:
            self.is_broken = True
            raise RecordTooLargeError(
                "a batch is larger than its 32-bit size can say", offset=self.pack.header.base_offset
            )
        return 0
