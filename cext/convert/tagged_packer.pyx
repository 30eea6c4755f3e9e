"""Converts batches of any format version to messages of the tagged dialect, in memory.

    in                          out
    v2 batch, no codec          one bare message for each record
    compressed batch            one wrapper of the same codec, inner offsets relative to its first
    bare v0, v1 message         one bare message
    commit and abort markers    control messages 10 and 11, with the marker's key and value
    other control batches       nothing
    a batch without records     nothing
    already tagged              the same bytes

Each message gets tag 0, its time in ms, unless `with_ms` is off; a bare message under LogAppendTime gets tag 66, and a
wrapper all seven. A record header `seglog.tag.<id>` whose value has the width of that id becomes that tag again. The
dialect has no other headers, producers, leader epochs or transactions: conversion.losses counts them.
"""
cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from seglog.errors import InvalidArgumentError

from .batch_attributes cimport has_bit
from .batch_builder cimport defer_crc, store_message_crcs
from .batch_header cimport (
    CODEC_NONE, CODEC_ZSTD, CONTROL_BIT, TAGGED_MAGIC, TIMESTAMP_TYPE_BIT, BatchHeader, codec_of, crc_matches,
)
from .batch_source cimport Source, count_records, next_in_order, open_plain, parse_next
from .output cimport Output
from .packer cimport NEEDS_GIL, Packer
from .record_view cimport RecordView
from .segment_scan cimport BatchTable
from .span cimport load_u16
from .status cimport BAD_CRC, BAD_SIZE, OFFSET_RANGE, OK, TRAILING_BYTES
from .tag_headers cimport tags_of_headers
from .tagged_builder cimport append_tagged
from .tagged_message cimport (
    KNOWS_BROKER_MS, KNOWS_COUNT, KNOWS_HONOUR_OFFSETS, KNOWS_LARGEST_MS, KNOWS_LAST_DELTA, KNOWS_NO_KEYS,
    KNOWS_TIMESTAMP_TYPE, TYPE_ABORT, TYPE_COMMIT, Tags,
)
from .window cimport Window

cdef enum:
    MARKER_ABORT = 0            # ControlRecordType
    MARKER_COMMIT = 1

# The records of one batch as messages: the destination, and what was written.
cdef struct Run:
    Output* out
    Output* others              # the tags made of a record's headers
    int64_t crcs_stored_to      # the CRCs of messages of `out` from here on are not stored yet
    int64_t base                # subtracted from each offset: the first record's if `is_inner`
    int64_t last_offset
    int64_t largest_ms
    int64_t count
    int64_t* headers_left_out
    bint is_inner
    bint with_ms
    bint is_log_append_time
    bint has_keys
    uint8_t attributes


cdef int append_messages(Run* run, Source* source) noexcept nogil:
    """Write each record of an opened batch. If the status is not OK, `out` is unchanged."""
    cdef int64_t size = run.out.size
    cdef int64_t previous = -1
    cdef int64_t i
    cdef int lacking = 0
    cdef RecordView record
    cdef Tags tags
    cdef int status = OK
    tags.known = KNOWS_BROKER_MS if run.with_ms else 0
    if run.is_log_append_time and not run.is_inner:
        tags.known |= KNOWS_TIMESTAMP_TYPE
    tags.timestamp_type = run.is_log_append_time
    for i in range(source.left):
        status = next_in_order(source, i, previous, &record)
        if status == OK:
            run.others.size = 0
            if record.header_count > 0:
                status = tags_of_headers(&record, run.others, run.headers_left_out)
        if status != OK:
            break
        previous = record.offset
        if run.count == 0 and run.is_inner:
            run.base = record.offset
        if record.timestamp > run.largest_ms:
            run.largest_ms = record.timestamp
        run.has_keys |= record.key_size >= 0
        record.offset -= run.base
        if run.is_inner and record.offset > INT32_MAX:
            status = OFFSET_RANGE
            break
        tags.broker_ms = record.timestamp
        status = append_tagged(
            run.out, run.attributes, &tags, run.others.first, run.others.size, &record, source.readable_end)
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


@cython.final
cdef class TaggedPacker(Packer):
    """Takes batches of a BatchTable, gives messages of the tagged dialect. Not thread-safe.

    codec: compress every batch with this one (0 to 4; 0 unwraps; -1: keep each batch's own).
    with_ms: give each message tag 0, its time in ms (seglog.message.tagged.timestamp.ms); else only seconds remain.
    headers_left_out: how many record headers were not tags.
    decompress, compress, check_crc: as in MessagePacker, but codecs use v2's framing.
    """
    cdef Output inner               # the messages of a wrapper, before compression
    cdef Output others
    cdef readonly bint with_ms
    cdef readonly int64_t headers_left_out

    def __cinit__(self, *, int codec=-1, bint with_ms=True, decompress=None, compress=None, bint check_crc=True):
        if codec < -1 or codec > CODEC_ZSTD:
            raise InvalidArgumentError(f"codec {codec}; there are 0 (none) to {CODEC_ZSTD} (zstd)")
        self.magic = TAGGED_MAGIC
        self.codec = codec
        self.with_ms = with_ms
        self.decompress = decompress
        self.compress = compress
        self.check_crc = check_crc

    def __dealloc__(self):
        free(self.inner.first)
        free(self.others.first)

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
            if row.magic == TAGGED_MAGIC and (
                has_bit(row, CONTROL_BIT) or self.codec < 0 or codec_of(row) == self.codec
            ):
                status = self.copy(bytes + row.position, row.size_bytes)
            elif row.magic == 2 and row.count == 0:
                status = OK
            elif codec_of(row) != CODEC_NONE or (self.codec > CODEC_NONE and not has_bit(row, CONTROL_BIT)):
                return NEEDS_GIL
            else:
                open_plain(&source, row, bytes, bytes + table.window.size)
                status = self.append_marker(&source) if has_bit(row, CONTROL_BIT) else self.append_bare(&source)
            if status != OK:
                return status
            i[0] += 1
        return OK

    cdef int append_marker(self, Source* source) noexcept nogil:
        """Write a commit or an abort; nothing for another control batch."""
        cdef RecordView record
        cdef Source ahead = source[0]
        cdef Run run
        cdef int type_
        cdef int status = count_records(&ahead)
        if status == OK:
            status = parse_next(&ahead, &record)
        if status != OK:
            return status
        type_ = load_u16(record.key + 2) if record.key_size >= 4 else -1
        if type_ not in (MARKER_ABORT, MARKER_COMMIT):
            return OK
        status = count_records(source)
        if status != OK:
            return status
        self.begin(&run, &self.chunk.out, source.row)
        run.attributes = TYPE_COMMIT if type_ == MARKER_COMMIT else TYPE_ABORT
        return append_messages(&run, source)

    cdef int append_bare(self, Source* source) noexcept nogil:
        """Write the records of an opened batch as bare messages."""
        cdef Run run
        cdef int status = count_records(source)
        if status != OK:
            return status
        self.begin(&run, &self.chunk.out, source.row)
        return append_messages(&run, source)

    cdef void begin(self, Run* run, Output* out, const BatchHeader* row) noexcept nogil:
        run.out = out
        run.others = &self.others
        run.crcs_stored_to = out.size
        run.base = 0
        run.last_offset = -1
        run.largest_ms = -1
        run.count = 0
        run.headers_left_out = &self.headers_left_out
        run.is_inner = False
        run.with_ms = self.with_ms
        run.is_log_append_time = row.magic != 0 and row.attributes & TIMESTAMP_TYPE_BIT != 0
        run.has_keys = False
        run.attributes = 0

    # --- with codecs, and the GIL ------------------------------------------------------------

    cdef int add_with_codec(self, BatchTable table, const BatchHeader* row) except -1:
        """Convert a row whose CRC add_plain has checked."""
        cdef int codec = codec_of(row) if self.codec < 0 else self.codec
        cdef Source source
        cdef Window _opened         # keeps alive what `source` borrows
        cdef int status
        _opened = self.open_source(table, row, &source)
        if has_bit(row, CONTROL_BIT):
            with nogil:
                status = self.append_marker(&source)
            return self.raise_status_of(status, table, row)
        if codec == CODEC_NONE:
            with nogil:
                status = self.append_bare(&source)
            return self.raise_status_of(status, table, row)
        return self.append_wrapper(table, &source, codec)

    cdef int append_wrapper(self, BatchTable table, Source* source, int codec) except -1:
        """Write the records of an opened batch as one wrapper."""
        cdef const BatchHeader* row = source.row
        cdef Window compressed
        cdef RecordView wrapper
        cdef Tags tags
        cdef Run run
        cdef int64_t crcs_stored_to
        cdef int status
        with nogil:
            self.inner.size = 0
            status = count_records(source)
            if status == OK:
                self.begin(&run, &self.inner, row)
                run.is_inner = True
                status = append_messages(&run, source)
        self.raise_status_of(status, table, row)
        if run.count == 0:
            return 0
        compressed = self.compressed(codec, self.inner.first, self.inner.size, row.base_offset)
        if compressed.size > INT32_MAX:
            self.raise_status_of(BAD_SIZE, table, row)
        wrapper.offset = run.base
        wrapper.timestamp = row.max_timestamp if run.is_log_append_time else run.largest_ms
        wrapper.key = NULL
        wrapper.key_size = -1
        wrapper.value = compressed.base
        wrapper.value_size = <int32_t>compressed.size
        tags.known = (
            KNOWS_BROKER_MS | KNOWS_LARGEST_MS | KNOWS_COUNT | KNOWS_LAST_DELTA | KNOWS_HONOUR_OFFSETS | KNOWS_NO_KEYS
            | KNOWS_TIMESTAMP_TYPE
        )
        tags.broker_ms = tags.largest_ms = wrapper.timestamp
        tags.count = <int32_t>run.count
        if row.magic == 2:      # the wrapper still covers the offsets at the end that compaction removed
            run.last_offset = row.last_offset
        if run.last_offset - run.base > INT32_MAX:
            self.raise_status_of(OFFSET_RANGE, table, row)
        tags.last_delta = <int32_t>(run.last_offset - run.base)
        tags.honours_offsets = 1
        tags.has_no_keys = not run.has_keys
        tags.timestamp_type = run.is_log_append_time
        with nogil:
            crcs_stored_to = self.chunk.out.size
            status = append_tagged(
                &self.chunk.out, <uint8_t>codec, &tags, NULL, 0, &wrapper, compressed.base + compressed.size)
            if status == OK:
                store_message_crcs(&self.chunk.out, crcs_stored_to)
        return self.raise_status_of(status, table, row)
