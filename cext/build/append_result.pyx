"""Batches that passed a check: assigned in place, or passed on to be rebuilt. See append_result.pxd."""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from seglog._kernels.segment_scan import scan
from seglog.errors import InvalidArgumentError, RecordTooLargeError, UnsupportedCompressionTypeError

from .batch_builder cimport begin_batch, end_batch, store_batch_crcs
from .batch_header cimport (
    ATTRIBUTES_POS, CODEC_MASK, CODEC_NONE, CODEC_ZSTD, CONTROL_BIT, CRC_POS, DELETE_HORIZON_BIT, LEADER_EPOCH_POS,
    MAX_TIMESTAMP_POS, MESSAGE_ATTRIBUTES_POS, MESSAGE_CRC_POS, MESSAGE_TIMESTAMP_POS, TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT, BatchHeader, codec_of, compute_crc,
)
from .output cimport Output, ensure_room
from .record_batch cimport RecordIterator, iterate
from .segment_scan cimport BatchTable
from .span cimport Span, store_u16, store_u32, store_u64
from .status cimport OK
from .window cimport Window

cdef extern from "<stdint.h>" nogil:
    const int64_t INT64_MIN

cdef enum:
    V2_ATTRIBUTES = CODEC_MASK | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT


# --- headers, in place -------------------------------------------------------------------

cdef void stamp(const uint8_t* bytes, BatchHeader* row, bint is_log_append_time, int64_t max_timestamp) noexcept nogil:
    """MutableRecordBatch.setMaxTimestamp: the CRC is recomputed only if something changes."""
    cdef uint8_t* p = <uint8_t*>bytes + row.position
    cdef bint has_bit = row.attributes & TIMESTAMP_TYPE_BIT != 0
    if row.magic == 0 or (has_bit == is_log_append_time and row.max_timestamp == max_timestamp):
        return
    row.max_timestamp = max_timestamp
    if row.magic == 2:
        row.attributes = row.attributes & V2_ATTRIBUTES & ~TIMESTAMP_TYPE_BIT
    else:
        row.attributes = row.attributes & CODEC_MASK
        row.base_timestamp = max_timestamp
    if is_log_append_time:
        row.attributes = row.attributes | TIMESTAMP_TYPE_BIT
    if row.magic == 2:
        store_u16(p + ATTRIBUTES_POS, <uint16_t>row.attributes)
        store_u64(p + MAX_TIMESTAMP_POS, <uint64_t>max_timestamp)
        row.crc = compute_crc(bytes, row)
        store_u32(p + CRC_POS, row.crc)
    else:
        p[MESSAGE_ATTRIBUTES_POS] = <uint8_t>row.attributes
        store_u64(p + MESSAGE_TIMESTAMP_POS, <uint64_t>max_timestamp)
        row.crc = compute_crc(bytes, row)
        store_u32(p + MESSAGE_CRC_POS, row.crc)


cdef void give_offsets(
    const uint8_t* bytes, BatchHeader* row, int64_t first_offset, int64_t count, int32_t leader_epoch
) noexcept nogil:
    cdef uint8_t* p = <uint8_t*>bytes + row.position
    row.last_offset = first_offset + count - 1
    row.base_offset = first_offset if row.magic == 2 else row.last_offset
    store_u64(p, <uint64_t>row.base_offset)
    if row.magic == 2:
        row.leader_epoch = leader_epoch
        store_u32(p + LEADER_EPOCH_POS, <uint32_t>leader_epoch)


cdef int check_room(int64_t first_offset, int64_t count) except -1:
    if first_offset < 0 or count > INT64_MAX - first_offset:
        raise InvalidArgumentError(f"{count} records from offset {first_offset} on: offsets end at {INT64_MAX - 1}")
    return 0


# --- batches to write --------------------------------------------------------------------------

@cython.final
cdef class Assigned:
    """Batches that may be written as they are: `raw`, a buffer, and `table`, their headers.

    first_offset: of the first record. If a legacy wrapper keeps its offsets, the wrapper's own, which is its last
    record's
        (LogAppendInfo.firstOrLastOffsetOfFirstBatch).
    max_timestamp: the largest of the batches, -1 if none has one.
    offset_of_max_timestamp: the last offset of the first batch that has it, which Kafka's time index uses
        (LogSegment.append); -1 if none has one.
    count: of the records; -1 if unknown.
    suspect: in a replica's batches, the first slot of one that may decompress to too much; -1: none may.
    max_epoch: the largest leader epoch of the batches; -1 if none has one. has_producer: one of them has a producer.
    rebuilt: whether the bytes differ from those given, in more than headers.
    magic: the format of the first batch.
    """

    def __init__(self):
        raise TypeError("an Assigned comes from AppendCheck")

    @property
    def magic(self):
        return self.table.rows.magic

    def place(self, int64_t first_offset, int32_t leader_epoch):
        """Give the batches other offsets and another leader epoch, in place and without reading their records.

        For callers that check outside a lock, with any offset, and learn the right one under it. Not while the bytes
        are being written to a file. InvalidArgumentError: offsets that were kept, or are inside compressed bytes (v0).
        """
        cdef BatchHeader* row = self.table.rows
        if not self.is_ours or (row.magic == 0 and codec_of(row) != CODEC_NONE):
            raise InvalidArgumentError("these batches must keep their offsets")
        check_room(first_offset, self.count)
        self.place_rows(first_offset, leader_epoch)
        self.sum_up()
        self.first_offset = first_offset

    cdef void place_rows(self, int64_t first_offset, int32_t leader_epoch) noexcept nogil:
        cdef Py_ssize_t i
        if self.table.n == 1:
            give_offsets(self.raw.base, self.table.rows, first_offset, self.count, leader_epoch)
        else:
            for i in range(self.table.n):
                give_offsets(self.raw.base, &self.table.rows[i], first_offset + i, 1, leader_epoch)

    cdef void sum_up(self) noexcept nogil:
        """Collect offsets, timestamps, epochs and producers from the rows. There is at least one."""
        cdef const BatchHeader* row = self.table.rows
        cdef const BatchHeader* end = row + self.table.n
        cdef int64_t max_timestamp = -1
        cdef int64_t offset_of_max = -1
        cdef int32_t max_epoch = -1
        cdef bint has_producer = False
        self.first_offset = row.base_offset
        while row != end:
            if row.max_timestamp > max_timestamp:
                max_timestamp = row.max_timestamp
                offset_of_max = row.last_offset
            max_epoch = max(max_epoch, row.leader_epoch)
            has_producer |= row.producer_id >= 0
            row += 1
        self.last_offset = (row - 1).last_offset
        self.max_timestamp = max_timestamp
        self.offset_of_max_timestamp = offset_of_max
        self.max_epoch = max_epoch
        self.has_producer = has_producer

    def __repr__(self):
        return f"<Assigned offsets {self.first_offset} to {self.last_offset}, {len(self.raw)} bytes>"


cdef Assigned assigned_of(BatchTable table, int64_t count, bint is_ours, bint rebuilt):
    cdef Assigned assigned = Assigned.__new__(Assigned)
    assigned.raw = table.window
    assigned.table = table
    assigned.count = count
    assigned.suspect = -1
    assigned.is_ours = is_ours
    assigned.rebuilt = rebuilt
    assigned.sum_up()
    return assigned


def trusted(raw not None):
    """Make an Assigned of batches that already have their final offsets: from our own encoder, or checked before. Only
    checks that they are complete. A Window is scanned; for a BatchTable not even that is checked."""
    cdef BatchTable table
    if type(raw) is BatchTable:
        table = raw
    else:
        table = scan(raw if isinstance(raw, Window) else Window(raw))
    if table.stop_ != OK or table.n == 0:
        raise InvalidArgumentError("not complete batches")
    return assigned_of(table, -1, is_ours=False, rebuilt=False)


# --- batches to build again --------------------------------------------------------------------

cdef class _Opened:
    """A decompressor that already has its one answer."""
    cdef Window records

    def __call__(self, codec, magic, payload):
        return self.records


@cython.final
cdef class Unfit:
    """Batches that passed every check but cannot be stored as they are: another codec or format version is wanted, or
    their offsets do not fit.

    `magic`, `codec`: what they must become; `from_magic`, `from_codec`: what they are. One batch, or bare messages.
    """

    def __init__(self):
        raise TypeError("an Unfit comes from AppendCheck")

    @property
    def from_magic(self):
        return self.table.rows[0].magic

    @property
    def from_codec(self):
        return codec_of(&self.table.rows[0])

    def records(self):
        """Yield all records, without decompressing again."""
        cdef _Opened opened = _Opened.__new__(_Opened)
        cdef RecordIterator records
        opened.records = self.opened
        records = iterate(
            self, self.table.window, opened, self.table.rows, self.table.rows + self.table.n,
            INT64_MIN, INT64_MAX, True)
        records.in_order = False        # they get others
        return records

    def payload(self):
        """Return the uncompressed records of a v2 batch. They do not depend on the offset of the batch."""
        return self.opened.view(self.span.p, self.span.end - self.span.p)

    def batch(self, payload not None, int64_t base_offset, int32_t leader_epoch, log_append_time=None):
        """Return the v2 batch around `payload`, the codec's output for `payload()`, as bytes.

        The rest of the header stays, except for the delete horizon, which a new batch does not have (it remains the
        base of the timestamps). RecordTooLargeError: 2 GiB.
        """
        cdef BatchHeader batch = self.table.rows[0]
        cdef Window records = Window(payload)
        cdef Output out
        check_room(base_offset, self.count)
        memset(&out, 0, sizeof(Output))
        batch.base_offset = base_offset
        batch.leader_epoch = leader_epoch
        batch.attributes = batch.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) | <int16_t>self.codec
        batch.max_timestamp = self.max_timestamp
        if log_append_time is not None:
            batch.attributes = batch.attributes | TIMESTAMP_TYPE_BIT
            batch.max_timestamp = log_append_time
        try:
            if begin_batch(&out, &batch) != OK or ensure_room(&out, records.size) != OK:
                raise MemoryError
            memcpy(out.first + out.size, records.base, records.size)
            out.size += records.size
            batch.count = <int32_t>self.count
            batch.last_offset = base_offset + self.count - 1
            if end_batch(&out, &batch) != OK:
                raise RecordTooLargeError("a batch is larger than its 32-bit size field allows")
            store_batch_crcs(&out, 0, out.size)
            return PyBytes_FromStringAndSize(<const char*>out.first, out.size)
        finally:
            free(out.first)


cdef Unfit unfit_of(
    BatchTable table, Window opened, Span span, int64_t count, int64_t max_timestamp, int codec, int magic
):
    cdef Unfit unfit = Unfit.__new__(Unfit)
    if codec == CODEC_ZSTD and magic < 2:
        raise UnsupportedCompressionTypeError(
            f"zstd is not allowed in format v{magic}: only v2 may use it (KIP-110)",
            hint="choose another codec or compression.type, or store format v2 (message.format.version)",
        )
    unfit.table = table
    unfit.opened = opened
    unfit.span = span
    unfit.max_timestamp = max_timestamp
    unfit.count = count
    unfit.codec = codec
    unfit.magic = magic
    return unfit
