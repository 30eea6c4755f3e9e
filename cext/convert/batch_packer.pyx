"""Converts batches of any format version to v2 batches, in memory.

Without options the result equals what the cleaner of Kafka 4.1.1 makes of old data when it rewrites them
(MemoryRecords.filterTo and buildRetainedRecordsInto, KAFKA-13093), record for record and batch for batch:

    in                      out: one v2 batch
    v2 batch                the same bytes
    v0, v1 message          with one record
    v0, v1 wrapper          with its messages, same codec, first offset = its first message's
    v0                      CreateTime, timestamps -1
    v1                      keeps the timestamp type; LogAppendTime: max timestamp = the wrapper's
    v0, v1, tagged          leader epoch, producer and sequence -1
    tagged                  times as in v1; unknown tags become headers, commits and aborts become markers, other
                            control messages are left out

Options change that: `repack_bytes` gathers records into larger batches, `codec` recompresses, `delete_horizon_ms` sets
the flag that the cleaner sets on batches with null values (KIP-534). Offsets, timestamps, keys, values and headers
always stay.

open_batch.pxd says which records may share a batch under `repack_bytes`. Control batches and batches without records
are copied, and end the open batch. A v2 batch goes into a larger one as a whole, never in parts, because producer state
and transaction indexes name its last offset.
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
    # Besides NEEDS_GIL and the Status of the record parsers: the next records do not fit the open batch. End it, then
    # call again.
    NEEDS_CLOSE = 2

    # How many batches' CRCs are checked ahead of conversion: few enough that the bytes stay in the cache.
    CRCS_AHEAD = 64
    CRC_BYTES_AHEAD = 64 << 10


cdef Py_ssize_t count_whole(const uint8_t* bytes, const BatchHeader* rows, Py_ssize_t n) noexcept nogil:
    """The number of leading batches whose CRC is correct. Stops early at large ones."""
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
    """Takes batches of a BatchTable, gives v2 batches. Not thread-safe.

    repack_bytes: gather records into batches of up to this many bytes before compression (0: do not).
    codec: recompress everything but control batches with this codec (-1: keep each batch's own).
    decompress: Callable[[codec, magic, memoryview], bytes-like], or None for the table's.
    compress: Callable[[codec, payload], bytes-like].
    delete_horizon_ms: set the cleaner's flag and horizon (-1: leave as is). Not together with repack_bytes.
    check_crc: refuse a batch whose checksum is wrong.

    Batches that need no codec are converted without the GIL, from message to batch in one pass.
    """
    cdef OpenBatch pack
    cdef int64_t crcs_stored_to     # the CRCs of ended batches from here on are not stored yet
    cdef int crcs_lacking
    cdef bytes lone                 # the open, compressed batch as it was read, as long as it has
    cdef int32_t lone_count         # exactly this many records
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
        """Convert from row i[0] on, and advance it. NEEDS_GIL: row i[0] is checked, but needs a codec."""
        cdef const uint8_t* bytes = table.window.base
        cdef const uint8_t* end = bytes + table.window.size
        cdef const BatchHeader* row
        cdef Py_ssize_t checked = i[0]
        cdef Py_ssize_t run
        cdef int status
        while i[0] < last:
            row = &table.rows[i[0]]
            if self.check_crc and i[0] >= checked:
                # Several ahead, because the processor then overlaps the CRCs of small messages.
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
                # Fast path: as many as certainly fit the open batch.
                run = append_run(
                    &self.chunk.out, &self.pack.header, self.repack_bytes, self.pack.has_time,
                    bytes, end, row, (checked if self.check_crc else last) - i[0],
                )
                i[0] += run
                if run > 0:
                    continue
                status = self.add_plain_message(bytes, end, row)
            else:
                # Slow path: a message that begins or ends a batch, or is malformed.
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
        """Convert a tagged control message: commit or abort to a marker without a producer; leave others out."""
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
        """Is this v2 batch copied unchanged?"""
        if row.attributes & CONTROL_BIT or row.count == 0:
            return True
        if self.codec >= 0 and codec_of(row) != self.codec:
            return False
        if self.repack_bytes:
            return row.size_bytes >= self.repack_bytes
        # Only the records tell whether the cleaner would set a delete horizon.
        return self.delete_horizon_ms < 0 or (row.attributes & DELETE_HORIZON_BIT) != 0

    cdef inline int codec_for(self, const BatchHeader* row) noexcept nogil:
        return codec_of(row) if self.codec < 0 else self.codec

    cdef inline int64_t new_horizon_ms(self, const BatchHeader* row, bint has_null_value) noexcept nogil:
        """The delete horizon for a batch of these records; -1: none, or the batch has one already."""
        if has_null_value and not (row.magic == 2 and row.attributes & DELETE_HORIZON_BIT):
            return self.delete_horizon_ms
        return -1

    # --- into the open batch -----------------------------------------------------------------

    cdef int put_source(self, Source* source) noexcept nogil:
        """Write the remaining records. NEEDS_CLOSE: none of a v2 batch, but maybe some of a wrapper were written."""
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
        # Too large: it gets a batch of its own, unchanged if no option changes it.
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
        # The batch still covers the offsets at its end that compaction removed.
        self.pack.header.last_offset = row.last_offset
        return OK

    cdef inline void undo_begin(self, int64_t size) noexcept nogil:
        self.pack.is_open = False
        self.chunk.out.size = size

    cdef inline bint joins(
        self, const BatchHeader* row, int64_t first_offset, int64_t last_offset, bint has_time, int codec
    ) noexcept nogil:
        """May records of this row, at these offsets, join the open batch? If not repacking: if of the same wrapper."""
        return offsets_join(&self.pack, first_offset, last_offset) and (
            self.repack_bytes == 0 or headers_join(&self.pack, row, first_offset, has_time, codec)
        )

    # --- ended batches -----------------------------------------------------------------------

    cdef int64_t closed_end(self) noexcept nogil:
        return self.pack.header.position if self.pack.is_open else self.chunk.out.size

    cdef int close_plain(self) noexcept nogil:
        """End the open batch, if any, without a codec."""
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
        """Copy a v2 batch unchanged. No batch may be open."""
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
        cdef Window _opened         # keeps alive what `source` borrows
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
                # If nothing joins it, it need not be compressed again.
                self.lone = PyBytes_FromStringAndSize(<const char*>source.raw, row.size_bytes)
                self.lone_count = row.count
        return 0

    cdef int close(self) except -1:
        """End the open batch, if any, compressing it."""
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
            self.is_broken = True       # until the codec has returned
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
