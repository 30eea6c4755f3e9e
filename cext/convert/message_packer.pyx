"""Converts batches of any format version to messages of v0 or v1, in memory.

The result is what Kafka's FileRecords.downConvert makes for an old consumer (RecordsUtil.downConvert of
3.9.1), record for record and message for message:

    in                          out, of format v0 or v1
    v2 batch, no codec          one bare message for each record
    v2 batch, compressed        one wrapper of the same codec
    v1 message or wrapper       to v0 the same, without its timestamps
    control batch, empty batch  nothing
    already in the format       the same bytes

A wrapper carries the offset of its last record; v1's inner offsets are relative to its first record. LogAppendTime
stays, with the batch's time. Headers, producers and leader epochs do not exist below v2 and are dropped.

Not in Kafka: v0 becomes v1 message by message and wrapper by wrapper, with timestamp -1; `codec` recompresses, and
`repack_bytes` gathers wrappers that already have the format into larger ones: neighbours with the same codec and
timestamp type (under LogAppendTime also the same time), all of whose messages have the format. Offsets and their gaps
stay. zstd does not exist below v2 (KIP-110): such a batch is refused unless `codec` names another codec.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int8_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free

from seglog.errors import InvalidArgumentError, UnsupportedCompressionTypeError

from .batch_attributes cimport has_bit
from .batch_builder cimport append_message, defer_crc, store_message_crcs
from .batch_header cimport (
    CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, CONTROL_BIT, LOG_OVERHEAD, MAGIC_POS, SIZE_POS, TIMESTAMP_TYPE_BIT, BatchHeader,
    codec_of, crc_matches,
)
from .batch_source cimport Source, check_last, count_records, inspect, next_in_order, open_plain
from .output cimport Output
from .packer cimport NEEDS_GIL, Packer
from .record_view cimport RecordView
from .segment_scan cimport BatchTable
from .span cimport Span, load_i32, load_i64
from .status cimport BAD_CRC, BAD_SIZE, OFFSET_RANGE, OK, TRAILING_BYTES, raise_status
from .window cimport Window

# The records of one batch as messages: the destination, and what was written.
cdef struct Run:
    Output* out
    int64_t crcs_stored_to      # the CRCs of messages of `out` from here on are not stored yet
    int64_t first_offset        # records below it are skipped
    int64_t inner_base          # subtracted from each offset
    int64_t last_offset
    int64_t max_timestamp       # of the records; -1 if none has a timestamp
    int64_t count
    bint is_inner               # of a v1 wrapper: offsets are relative to its first record
    int8_t magic
    uint8_t attributes


cdef int append_messages(Run* run, Source* source) noexcept nogil:
    """Write each record of an opened batch. If the status is not OK, `out` is unchanged."""
    cdef int64_t size = run.out.size
    cdef int64_t previous = -1
    cdef int64_t i
    cdef int lacking = 0
    cdef RecordView record
    cdef int status = OK
    for i in range(source.left):
        status = next_in_order(source, i, previous, &record)
        if status != OK:
            break
        previous = record.offset
        if record.offset < run.first_offset:
            continue
        if run.count == 0 and run.is_inner:
            run.inner_base = record.offset
        if record.timestamp > run.max_timestamp:
            run.max_timestamp = record.timestamp
        record.offset -= run.inner_base
        status = append_message(run.out, run.magic, run.attributes, &record, source.readable_end)
        if status != OK:
            break
        run.last_offset = previous
        run.count += 1
        defer_crc(run.out, &run.crcs_stored_to, &lacking)
    if status == OK and source.records.p != source.records.end:
        status = TRAILING_BYTES
    if status != OK:
        run.out.size = size
        return status
    store_message_crcs(run.out, run.crcs_stored_to)
    run.crcs_stored_to = run.out.size
    return OK


cdef bint are_of(const Span* messages, int magic) noexcept nogil:
    """Do all messages of an inspected wrapper have this format? (KAFKA-4298)"""
    cdef const uint8_t* p = messages.p
    while p != messages.end:
        if <int8_t>p[MAGIC_POS] != magic:
            return False
        p += LOG_OVERHEAD + load_i32(p + SIZE_POS)
    return True


@cython.final
cdef class MessagePacker(Packer):
    """Takes batches of a BatchTable, gives messages of format `magic`, 0 or 1. Not thread-safe.

    codec: compress every batch with this one (0 to 3; 0 unwraps; -1: keep each batch's own).
    decompress: Callable[[codec, magic, memoryview], bytes-like], or None for the table's.
    compress: Callable[[codec, payload], bytes-like], which uses the framing of format `magic`.
    check_crc: refuse a batch whose checksum is wrong.
    first_offset: as in a fetch from this offset, skip the records below it in batches converted without a codec, and
    whole compressed batches with no record at or above it.
    repack_bytes: gather wrappers of format `magic` up to this many bytes of messages, before compression; 0: do not.

    Batches that need no codec are converted without the GIL.
    """
    cdef Output inner               # the messages of a wrapper, before compression
    cdef readonly int64_t first_offset
    cdef readonly int64_t repack_bytes
    # The wrapper that others may join, its messages in `inner`; without messages, no wrapper is open.
    cdef Run open
    cdef int open_codec
    cdef int64_t open_time          # under LogAppendTime
    cdef int64_t open_base          # the offset of the open wrapper's first message
    cdef bytes lone                 # its bytes: if nothing joins it, it need not be compressed again

    def __cinit__(
        self, int magic, *, int codec=-1, decompress=None, compress=None, bint check_crc=True, int64_t first_offset=0,
        int64_t repack_bytes=0,
    ):
        if magic not in (0, 1):
            raise InvalidArgumentError(f"messages have format v0 or v1, not v{magic}")
        if codec > CODEC_LZ4:
            raise UnsupportedCompressionTypeError(f"codec {codec} in a format that has 0 to {CODEC_LZ4}")
        if codec < -1:
            raise InvalidArgumentError(f"codec {codec}; there are 0 (none) to {CODEC_LZ4} (lz4)")
        if repack_bytes < 0 or repack_bytes > INT32_MAX:
            raise InvalidArgumentError(f"wrappers of {repack_bytes} bytes")
        self.repack_bytes = repack_bytes
        self.open.count = 0
        self.magic = magic
        self.codec = codec
        self.decompress = decompress
        self.compress = compress
        self.check_crc = check_crc
        self.first_offset = first_offset

    def __dealloc__(self):
        free(self.inner.first)

    cdef int64_t inner_capacity(self) noexcept nogil:
        return self.inner.capacity

    # --- without the GIL ---------------------------------------------------------------------

    cdef int add_plain(self, BatchTable table, Py_ssize_t* i, Py_ssize_t last) noexcept nogil:
        """Convert from row i[0] on, and advance it. NEEDS_GIL: row i[0] is checked, but needs a codec."""
        cdef const uint8_t* bytes = table.window.base
        cdef const BatchHeader* row
        cdef Source source
        cdef int status
        while i[0] < last:
            row = &table.rows[i[0]]
            if self.check_crc and not crc_matches(bytes, row):
                return BAD_CRC
            if has_bit(row, CONTROL_BIT) or (row.magic == 2 and row.count == 0):
                i[0] += 1
                continue
            if self.is_copied(row):
                if self.open.count or self.is_gathered(row):
                    return NEEDS_GIL
                status = self.copy(bytes + row.position, row.size_bytes)
            elif codec_of(row) != CODEC_NONE or self.codec > CODEC_NONE or self.open.count:
                return NEEDS_GIL
            else:
                open_plain(&source, row, bytes, bytes + table.window.size)
                status = self.append_bare(&source)
            if status != OK:
                return status
            i[0] += 1
        return OK

    cdef inline bint is_copied(self, const BatchHeader* row) noexcept nogil:
        """Is this batch copied unchanged?"""
        return row.magic == self.magic and (self.codec < 0 or codec_of(row) == self.codec)

    cdef inline bint is_gathered(self, const BatchHeader* row) noexcept nogil:
        """Is this a wrapper that may be merged with its neighbours?"""
        return row.size_bytes < self.repack_bytes and codec_of(row) != CODEC_NONE

    cdef inline uint8_t attributes_of(self, const BatchHeader* row) noexcept nogil:
        """The timestamp type of a batch's messages; v0 has none."""
        return <uint8_t>(row.attributes & TIMESTAMP_TYPE_BIT) if self.magic == 1 and row.magic != 0 else 0

    cdef int append_bare(self, Source* source) noexcept nogil:
        """Write the records of an opened batch as bare messages."""
        cdef Run run
        cdef int status = count_records(source)
        if status != OK:
            return status
        self.begin(&run, &self.chunk.out, source.row)
        if codec_of(source.row) == CODEC_NONE:
            run.first_offset = self.first_offset
        return append_messages(&run, source)

    cdef void begin(self, Run* run, Output* out, const BatchHeader* row) noexcept nogil:
        run.out = out
        run.crcs_stored_to = out.size
        run.first_offset = 0
        run.inner_base = 0
        run.last_offset = -1
        run.max_timestamp = -1
        run.count = 0
        run.is_inner = False
        run.magic = <int8_t>self.magic
        run.attributes = self.attributes_of(row)

    # --- with codecs, and the GIL ------------------------------------------------------------

    cdef int add_with_codec(self, BatchTable table, const BatchHeader* row) except -1:
        """Convert a row whose CRC add_plain has checked."""
        cdef int codec = codec_of(row) if self.codec < 0 else self.codec
        cdef Source source
        cdef Window _opened         # keeps alive what `source` borrows
        cdef int status
        if self.is_copied(row):
            return self.gather(table, row) if self.is_gathered(row) else self.copy_behind(table, row)
        self.close()
        if codec == CODEC_ZSTD:
            raise UnsupportedCompressionTypeError(
                f"a batch in zstd, which format v{self.magic} does not have (KIP-110)",
                file=table.window.name, position=row.position, offset=row.base_offset,
                hint="choose gzip, snappy, lz4 or none with --codec",
            )
        _opened = self.open_source(table, row, &source)
        if codec == CODEC_NONE:
            with nogil:
                status = self.append_bare(&source)
            return self.raise_status_of(status, table, row)
        return self.append_wrapper(table, &source, codec)

    cdef int append_wrapper(self, BatchTable table, Source* source, int codec) except -1:
        """Write the records of an opened batch as one wrapper (MemoryRecordsBuilder, magic below 2)."""
        cdef const BatchHeader* row = source.row
        cdef Run run
        cdef int status
        with nogil:
            self.inner.size = 0
            status = count_records(source)
            if status == OK:
                self.begin(&run, &self.inner, row)
                run.is_inner = self.magic == 1
                status = append_messages(&run, source)
        self.raise_status_of(status, table, row)
        if run.last_offset < self.first_offset:
            return 0        # compaction removed the rest: a client at first_offset would get this batch again and again
        return self.raise_status_of(self.write_wrapper(&run, codec, row.max_timestamp), table, row)

    cdef int write_wrapper(self, const Run* messages, int codec, int64_t append_time) except? -1:
        """Write the messages in `inner` as one wrapper; `append_time` is its time under LogAppendTime."""
        cdef RecordView wrapper
        cdef Run run
        cdef int status
        cdef Window compressed = self.compressed(
            codec, self.inner.first, self.inner.size, messages.last_offset)
        if compressed.size > INT32_MAX:
            return BAD_SIZE
        wrapper.offset = messages.last_offset
        wrapper.timestamp = append_time if messages.attributes else messages.max_timestamp
        wrapper.key = NULL
        wrapper.key_size = -1
        wrapper.value = compressed.base
        wrapper.value_size = <int>compressed.size
        with nogil:
            run.out = &self.chunk.out
            run.crcs_stored_to = run.out.size
            status = append_message(
                run.out, messages.magic, <uint8_t>(messages.attributes | codec), &wrapper,
                compressed.base + compressed.size)
            if status == OK:
                store_message_crcs(run.out, run.crcs_stored_to)
        return status

    # --- gathered wrappers ---------------------------------------------------------------------

    cdef int copy_behind(self, BatchTable table, const BatchHeader* row) except -1:
        """Copy a batch unchanged, after ending the open wrapper."""
        self.close()
        return self.raise_status_of(self.copy(table.window.base + row.position, row.size_bytes), table, row)

    cdef int gather(self, BatchTable table, const BatchHeader* row) except -1:
        """Add the messages of a wrapper to the open one, or begin a new one with them."""
        cdef Source source
        cdef Window _opened = self.open_source(table, row, &source)
        cdef Source ahead
        cdef Run before
        cdef int64_t size, first_offset
        cdef int status
        with nogil:
            status = inspect(&source)
        self.raise_status_of(status, table, row)
        first_offset = source.inner_base + load_i64(source.records.p)
        if first_offset < 0:
            self.raise_status_of(OFFSET_RANGE, table, row)
        if not are_of(&source.records, self.magic):
            return self.copy_behind(table, row)
        if self.joins(row, first_offset):
            before, size, ahead = self.open, self.inner.size, source
            with nogil:
                status = append_messages(&self.open, &ahead)
                if status == OK:
                    status = check_last(row, self.open.last_offset)
            if status == OK and self.inner.size <= self.repack_bytes:
                self.lone = None
                return 0
            self.open, self.inner.size = before, size
            self.raise_status_of(status, table, row)
        self.close()
        with nogil:
            self.inner.size = 0
            self.begin(&before, &self.inner, row)
            before.is_inner = self.magic == 1
            status = append_messages(&before, &source)
            if status == OK:
                status = check_last(row, before.last_offset)
        self.raise_status_of(status, table, row)
        self.open = before
        self.open_codec = codec_of(row)
        self.open_time = row.max_timestamp
        self.open_base = first_offset
        self.lone = PyBytes_FromStringAndSize(<const char*>source.raw, row.size_bytes)
        return 0

    cdef bint joins(self, const BatchHeader* row, int64_t first_offset) noexcept nogil:
        """May the messages of this wrapper join the open one?"""
        return (
            self.open.count > 0 and self.open_codec == codec_of(row) and self.open.attributes == self.attributes_of(row)
            and (self.open.attributes == 0 or self.open_time == row.max_timestamp)
            and self.open.last_offset < first_offset
            and <uint64_t>row.last_offset - <uint64_t>self.open_base <= INT32_MAX
        )

    cdef int close(self) except -1:
        """End the open wrapper, if any."""
        cdef bytes lone = self.lone
        cdef int status
        if self.open.count == 0:
            return 0
        if lone is not None:
            status = self.copy(<const uint8_t*>lone, len(lone))
        else:
            status = self.write_wrapper(&self.open, self.open_codec, self.open_time)
        if status != OK:
            raise_status(status, -1, self.open.last_offset)
        self.open.count = 0
        self.lone = None
        return 0
