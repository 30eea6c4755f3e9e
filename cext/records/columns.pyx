"""Decodes records of every format into columns in Arrow's layout, one chunk at a time.

A Columns owns its memory (an arena of a pool) and, once filled, refers to nothing else: not to the table, and to the
window only if its rows are views of it. The arena returns to the pool when the Columns, its memoryviews and the Arrow
arrays exported from it are all gone; until then nothing overwrites it.

One pass over each batch, while it is cached: CRC, then records. The batch headers limit the size of a decoded batch
(its keys and values are smaller than the batch), so that much is reserved without measuring first. Headers are rare,
and their memory grows on demand.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from .arena cimport Arena, ArenaPool, lend
from .arrow_c cimport export_array, export_schema
from .batch_header cimport CODEC_MASK, BatchHeader
from .column_decoder cimport (
    MAX_CONTENT_BYTES, NEEDS_DECOMPRESSION, NEEDS_HEADER_SPACE, SEG_HEADERS, SEG_KEY, SEG_VALUE, SEG_VIEWS, Run,
    check_offsets, decode_run, seg_binary, seg_columns, seg_columns_cut, seg_mark_none,
    take_inner_messages, take_records,
)
from .column_layout cimport lay_out, lay_out_headers, move_binary, use_up
from .legacy_records cimport find_inner_base
from .batch_payload cimport check_count, open_records, raise_batch
from .one_at_a_time cimport begin_alone, end_alone
from .segment_scan cimport BatchTable
from .span cimport Span
from .status cimport LIMIT, NO_SPACE, OK
from .window cimport Window, check_whole

import seglog._kernels.arena
from seglog.errors import InvalidArgumentError, RecordTooLargeError

# Importable from here, beside decode(); in this file the bare name is the C type.
globals()["ArenaPool"] = seglog._kernels.arena.ArenaPool

cdef enum:
    FIRST_HEADERS = 1024


# --- the columns --------------------------------------------------------------------------

# The memory of columns without rows: each has one offset, 0.
cdef int64_t nothing[1]
nothing[0] = 0
cdef seg_binary empty_binary
hold_nothing(&empty_binary)


cdef void hold_nothing(seg_binary* column) noexcept:
    column.offsets = <int32_t*>nothing
    column.data = column.validity = <uint8_t*>nothing
    column.bytes = column.capacity = column.null_count = 0


@cython.final
@cython.no_gc           # refers to arenas and a pool, which refer to nothing
cdef class Columns:
    """Records as columns, all of `len(columns)` rows.

    offset      int64
    timestamp   int64, ms since 1970; -1: none (v0, or a producer that gave none)
    key, value  byte strings; null and empty are different
    headers     a list of (key, value) per record: the key is never null, the value may be

    `columns[i]` is one record as plain Python, for tests and inspection; use the buffers for anything else. In Arrow,
    timestamps are timestamp[ms, UTC], null if a record has none. Header keys are binary, not utf8: a broker stores what
    a producer sent without checking that it is UTF-8, the proof digest needs the exact bytes, and a schema must not
    depend on the data.
    """

    def __cinit__(self):
        self.c.offset = self.c.timestamp = nothing
        self.c.header_start = <int32_t*>nothing
        self._timestamp_validity = <uint8_t*>nothing
        hold_nothing(&self.c.key)
        hold_nothing(&self.c.value)
        hold_nothing(&self.c.header_key)
        hold_nothing(&self.c.header_value)

    def __init__(self):
        raise TypeError("Columns come from decode() or chunks()")

    def __len__(self):
        return self.c.rows

    @property
    def nbytes(self):
        """Bytes in use, including offsets and validity. The arena that holds them is larger."""
        cdef int64_t fixed = (8 + 8 + 4 + 4 + 4) * self.c.rows + 3 * 4 + 2 * ((self.c.rows + 7) // 8)
        cdef int64_t of_headers = 0
        if self.c.header_rows > 0:
            of_headers = ((4 + 4) * (self.c.header_rows + 1) + 2 * ((self.c.header_rows + 7) // 8)
                          + self.c.header_key.bytes + self.c.header_value.bytes)
        return fixed + self.c.key.bytes + self.c.value.bytes + of_headers

    @property
    def offset(self):
        """memoryview of int64."""
        return lend(self, self.c.offset, self.c.rows, 8, b"q")

    @property
    def timestamp(self):
        """memoryview of int64: ms, -1 if there is none."""
        return lend(self, self.c.timestamp, self.c.rows, 8, b"q")

    @property
    def key(self):
        """The keys, as a binary column; null: no key."""
        return binary(self, &self.c.key, self.c.rows)

    @property
    def value(self):
        """The values, as a binary column; null: a tombstone."""
        return binary(self, &self.c.value, self.c.rows)

    @property
    def header_start(self):
        """memoryview of int32, one more than rows: row i has the headers [header_start[i], header_start[i + 1])."""
        return lend(self, self.c.header_start, self.c.rows + 1, 4, b"i")

    @property
    def header_key(self):
        """The keys of all headers, one after the other: `header_start` says whose they are."""
        return binary(self, &self.c.header_key, self.c.header_rows)

    @property
    def header_value(self):
        """The values of all headers, in the same order."""
        return binary(self, &self.c.header_value, self.c.header_rows)

    def __getitem__(self, Py_ssize_t i):
        """(offset, timestamp, key, value, ((header key, header value), ...)); header keys as str, surrogate-escaped."""
        if i < 0:
            i += self.c.rows
        if not 0 <= i < self.c.rows:
            raise IndexError(f"row {i} of {self.c.rows}")
        headers = []
        for h in range(self.c.header_start[i], self.c.header_start[i + 1]):
            headers.append((bytes_at(&self.c.header_key, h).decode("utf-8", "surrogateescape"),
                            bytes_at(&self.c.header_value, h)))
        return (self.c.offset[i], self.c.timestamp[i], bytes_at(&self.c.key, i), bytes_at(&self.c.value, i),
                tuple(headers))

    def __arrow_c_schema__(self):
        return export_schema()

    def __arrow_c_array__(self, requested_schema=None):
        """A struct array with one field per column. `requested_schema` is ignored, as the interface allows."""
        return export_schema(), export_array(self, &self.c, self._timestamp_validity, self._timestamp_nulls)

    def to_arrow(self):
        """A pyarrow.RecordBatch on the same memory. ImportError if pyarrow is not installed."""
        try:
            import pyarrow
        except ImportError as e:
            raise ImportError("Arrow columns need pyarrow: pip install seglog[arrow]") from e
        return pyarrow.record_batch(self)

    def numpy(self):
        """{name: arrays} of offset, timestamp (ms, -1: none), key and value (BinaryColumn.numpy), on the same memory.

        Pass it to append_columns. The arrays are read-only, and keep the memory as long as one of them lives."""
        import numpy
        return {
            "offset": numpy.asarray(self.offset), "timestamp": numpy.asarray(self.timestamp),
            "key": self.key.numpy(), "value": self.value.numpy(),
        }

    def __repr__(self):
        return f"<Columns of {self.c.rows} records, {self.nbytes} bytes>"

    # --- filling ---

    cdef int _fill(self, BatchTable table, int64_t begin, int64_t first, int64_t last, int64_t stop_bytes,
                   bint check_crc, bint include_control) except -1:
        """Decode batches from `first` to `last`, or until the content reaches `stop_bytes`.

        The range began with the batch `begin`: a wrapper must lie above the one before it in this range.
        self._next_batch is the first batch not decoded. If this raises, exactly the batches before the bad one
        are added.
        """
        cdef Run run
        cdef const BatchHeader* row
        cdef int status
        self._next_batch = first
        if first == last:
            return 0
        if self.c.is_mapped:
            self._window = table.window
            self.c.source = <uint8_t*>table.window.base + table.rows[first].position
        self._reserve_for(table, first, last, stop_bytes)
        run.c = &self.c
        run.rows = table.rows
        run.begin = &table.rows[begin]
        run.bytes = table.window.base
        run.size = table.window.size
        run.last = last
        run.stop_bytes = stop_bytes
        run.check_crc = check_crc
        run.include_control = include_control
        try:
            while True:
                run.batch = self._next_batch
                run.content_bytes = self._content_bytes
                with nogil:
                    status = decode_run(&run)
                if table.window.torn[0]:
                    self.c.rows = 0     # which of them are right is not known
                    check_whole(table.window)
                self._next_batch = run.batch
                self._content_bytes = run.content_bytes
                row = &table.rows[run.batch]        # valid only if run.batch < last
                if status == OK:
                    break
                if status == NO_SPACE:
                    self._reserve(row.count if row.magic >= 2 else 1, row.size_bytes)
                elif status == NEEDS_HEADER_SPACE:
                    self._reserve_headers()
                elif status == NEEDS_DECOMPRESSION:
                    if not self._fill_compressed(table, row, run.begin):
                        break
                    self._next_batch += 1
                elif status == LIMIT:
                    if self._content_bytes == 0:
                        raise_too_large(table, row)
                    break
                else:
                    raise_batch(status, table.window, row)
        finally:
            self._seal()
        return 0

    cdef bint _fill_compressed(self, BatchTable table, const BatchHeader* row, const BatchHeader* begin) except -1:
        """Decode one compressed batch. False, with nothing changed, if it does not fit into this chunk."""
        cdef Span records
        cdef Window opened = open_records(table.window, row, table.decompress, &records)
        cdef int64_t size = records.end - records.p
        cdef int64_t rows_before = self.c.rows
        cdef int64_t count = row.count
        cdef int64_t base = 0
        cdef int status
        if size > MAX_CONTENT_BYTES - self._content_bytes:
            if self._content_bytes == 0:
                raise_too_large(table, row)
            return False
        with nogil:
            if row.magic >= 2:
                status = check_count(row, &records)
            else:
                status = find_inner_base(&records, row, &base, &count)
        if status != OK:
            raise_batch(status, table.window, row)
        self._reserve(count, size)
        while True:
            with nogil:
                if row.magic >= 2:
                    status = take_records(&self.c, records.p, records.end, opened.base + opened.size, row)
                else:
                    status = take_inner_messages(&self.c, records.p, records.end, count, base, row)
                if status == OK:
                    status = check_offsets(&self.c, rows_before, row, begin)
                if status != OK:
                    seg_columns_cut(&self.c, rows_before)
            if status == OK:
                break
            if status != NEEDS_HEADER_SPACE:
                raise_batch(status, table.window, row)
            self._reserve_headers()
        self._content_bytes += size
        return True

    cdef int _reserve_for(self, BatchTable table, int64_t first, int64_t last, int64_t stop_bytes) except -1:
        """Reserve what the batches need: exactly for uncompressed ones, an estimate for compressed ones."""
        cdef int64_t rows = 0
        cdef int64_t plain_bytes = 0
        cdef int64_t packed_bytes = 0
        cdef int64_t i, size
        with nogil:
            for i in range(first, last):
                if plain_bytes + packed_bytes >= stop_bytes:
                    break
                size = table.rows[i].size_bytes
                if table.rows[i].attributes & CODEC_MASK:
                    packed_bytes += size
                    # The header's count is only a claim until the body limits it.
                    rows += min(<int64_t>table.rows[i].count, size // 2) if table.rows[i].magic >= 2 else size // 32
                else:
                    plain_bytes += size
                    rows += table.rows[i].count if table.rows[i].magic >= 2 else 1
        return self._reserve(rows, min(
            max(plain_bytes + packed_bytes, min(plain_bytes + 4 * packed_bytes, stop_bytes)), MAX_CONTENT_BYTES))

    cdef int _reserve(self, int64_t rows, int64_t content_bytes) except -1:
        """Make room for this many more. Columns that grow move to a larger arena."""
        cdef seg_columns c = self.c
        cdef uint8_t* timestamp_validity = NULL
        cdef Arena arena
        cdef int64_t size
        if (self._arena is not None and rows <= c.row_capacity - c.rows
                and content_bytes <= c.key.capacity - self._content_bytes):
            return 0
        rows = grown(c.row_capacity, c.rows + rows)
        content_bytes = min(grown(c.key.capacity, self._content_bytes + content_bytes), MAX_CONTENT_BYTES)
        size = lay_out(NULL, rows, content_bytes, &c, &timestamp_validity)
        arena = self.pool.acquire(max(size, self.pool.usual_size()))
        use_up(arena.size, size, &rows, &content_bytes)
        lay_out(arena.base, rows, content_bytes, &c, &timestamp_validity)
        with nogil:
            memcpy(c.offset, self.c.offset, 8 * c.rows)
            memcpy(c.timestamp, self.c.timestamp, 8 * c.rows)
            if not c.without & SEG_HEADERS:
                memcpy(c.header_start, self.c.header_start, 4 * (c.rows + 1))
            if c.source_bytes > 0 and not c.is_mapped:
                memcpy(c.source, self.c.source, c.source_bytes)
            if not c.without & SEG_KEY:
                move_binary(&c.key, &self.c.key, c.rows, rows)
            if not c.without & SEG_VALUE:
                move_binary(&c.value, &self.c.value, c.rows, rows)
        self.c = c
        self._timestamp_validity = timestamp_validity
        self._arena = arena         # and the previous one returns to the pool
        return 0

    cdef int _reserve_headers(self) except -1:
        """Make room for about twice the headers, or for the first ones."""
        cdef seg_columns c = self.c
        cdef Arena arena
        cdef int64_t rows = max(2 * c.header_capacity, FIRST_HEADERS)
        cdef int64_t content_bytes = min(max(2 * c.header_key.capacity, 16 * FIRST_HEADERS), MAX_CONTENT_BYTES)
        cdef int64_t size = lay_out_headers(NULL, rows, content_bytes, &c)
        arena = self.pool.acquire(size)
        use_up(arena.size, size, &rows, &content_bytes)
        lay_out_headers(arena.base, rows, content_bytes, &c)
        with nogil:
            move_binary(&c.header_key, &self.c.header_key, c.header_rows, rows)
            move_binary(&c.header_value, &self.c.header_value, c.header_rows, rows)
        self.c = c
        self._header_arena = arena
        return 0

    cdef int _seal(self) noexcept:
        with nogil:
            self._timestamp_nulls = seg_mark_none(self.c.timestamp, self.c.rows, self._timestamp_validity)
        return 0


cdef int64_t grown(int64_t capacity, int64_t need) noexcept nogil:
    return capacity if need <= capacity else max(need, 2 * capacity, <int64_t>64)


cdef int raise_too_large(BatchTable table, const BatchHeader* row) except -1:
    raise RecordTooLargeError(
        f"a batch holds more than the {MAX_CONTENT_BYTES} bytes that int32 offsets reach",
        file=table.window.name, position=row.position, offset=row.base_offset,
        hint="read it record by record",
    )


# --- views --------------------------------------------------------------------------------

@cython.final
@cython.no_gc
cdef class BinaryColumn:
    """A column of byte strings: `column[i]` is bytes, or None if null."""
    cdef Columns _owner
    cdef const seg_binary* _column      # inside the owner
    cdef int64_t _rows

    def __cinit__(self):
        self._column = &empty_binary

    def __init__(self):
        raise TypeError("a BinaryColumn comes from Columns")

    def __len__(self):
        return self._rows

    def __getitem__(self, Py_ssize_t i):
        if i < 0:
            i += self._rows
        if not 0 <= i < self._rows:
            raise IndexError(f"row {i} of {self._rows}")
        return bytes_at(self._column, i)

    @property
    def null_count(self):
        return self._column.null_count

    @property
    def offsets(self):
        """memoryview of int32, one more than rows: row i is data[offsets[i]:offsets[i + 1]]."""
        return lend(self._owner, self._column.offsets, self._rows + 1, 4, b"i")

    @property
    def data(self):
        """memoryview of bytes."""
        return lend(self._owner, self._column.data, self._column.bytes, 1, b"B")

    def numpy(self):
        """(offsets, data, validity) as arrays of int32, uint8 and uint8, on the same memory."""
        import numpy
        return numpy.asarray(self.offsets), numpy.asarray(self.data), numpy.asarray(self.validity)

    def matrix(self):
        """All rows as one array of uint8, one row per record, on the same memory.

        InvalidArgumentError unless all have equally many bytes and none is null."""
        import numpy
        cdef int64_t width = self._column.bytes // max(self._rows, 1)
        lengths = numpy.diff(numpy.asarray(self.offsets))
        if self.null_count or (lengths != width).any():
            raise InvalidArgumentError("rows that are null or of different lengths make no matrix",
                                       hint="numpy() gives offsets, data and validity")
        return numpy.asarray(self.data).reshape(self._rows, width)

    @property
    def validity(self):
        """memoryview of a bitmap, least significant bit first, set where not null."""
        return lend(self._owner, self._column.validity, (self._rows + 7) // 8, 1, b"B")


cdef object binary(Columns owner, const seg_binary* column, int64_t rows):
    cdef BinaryColumn view = BinaryColumn.__new__(BinaryColumn)
    view._owner = owner
    view._column = column
    view._rows = rows
    return view


cdef object bytes_at(const seg_binary* column, int64_t row):
    cdef int32_t start = column.offsets[row]
    if not column.validity[row >> 3] >> (row & 7) & 1:
        return None
    return PyBytes_FromStringAndSize(<const char*>column.data + start, column.offsets[row + 1] - start)


# --- decoding -----------------------------------------------------------------------------

cdef int check_range(BatchTable table, int64_t first, int64_t last) except -1:
    if not 0 <= first <= last <= table.n:
        raise InvalidArgumentError(f"batches {first} to {last} of a table of {table.n}")
    return 0


cdef Columns new_columns(ArenaPool pool):
    cdef Columns columns = Columns.__new__(Columns)
    columns.pool = pool
    return columns


def decode(BatchTable table not None, int64_t start, int64_t stop, ArenaPool pool not None, *,
           bint check_crc=True, bint include_control=True):
    """The records of the batches [start, stop) of a table, as Columns.

    Compressed batches are opened with the table's `decompress`. `include_control=False` leaves out the records of
    control batches. The stored CRC is checked, which for a wrapper does not include the CRCs of its messages.

    Raises CorruptRecordError with position and base offset of a malformed batch, RecordTooLargeError if the records
    would exceed 2 GiB (see chunks()), and what `decompress` raises.
    """
    check_range(table, start, stop)
    cdef Columns columns = new_columns(pool)
    columns._fill(table, start, start, stop, MAX_CONTENT_BYTES, check_crc, include_control)
    if columns._next_batch < stop:
        raise_too_large(table, &table.rows[columns._next_batch])
    return columns


def chunks(BatchTable table not None, ArenaPool pool not None, int64_t chunk_bytes=0, *,
           int64_t start=0, int64_t stop=-1, bint check_crc=True, bint include_control=True):
    """Iterate over the batches [start, stop) of a table as Columns of about `chunk_bytes` (default: the pool's).

    A chunk consists of complete batches, at least one; it ends with the batch that fills it, so one large batch makes
    one large chunk. stop -1: to the end of the table.
    """
    if stop == -1:
        stop = table.n
    check_range(table, start, stop)
    if chunk_bytes == 0:
        chunk_bytes = pool.chunk_bytes
    if not 0 < chunk_bytes < MAX_CONTENT_BYTES:
        raise InvalidArgumentError(f"chunk_bytes is {chunk_bytes}; 1 to {MAX_CONTENT_BYTES - 1} expected")
    cdef ColumnChunks it = ColumnChunks.__new__(ColumnChunks)
    it._table = table
    it._pool = pool
    it._chunk_bytes = chunk_bytes
    it.next_batch = it._start = start
    it._stop = stop
    it._check_crc = check_crc
    it._include_control = include_control
    return it


@cython.final
cdef class ColumnChunks:
    """An iterator of Columns; see chunks().

    An error is raised after the chunk of the batches before it, and leaves `next_batch` at the bad batch: add one to
    continue after it, or get the same error again.
    """

    def __init__(self):
        raise TypeError("ColumnChunks come from chunks()")

    def __iter__(self):
        return self

    def __next__(self):
        if self.next_batch < 0:
            raise InvalidArgumentError(f"next_batch is {self.next_batch}")
        cdef Columns columns = self.take(0)
        if columns is None:
            raise StopIteration
        return columns

    cdef Columns take(self, int32_t without):
        cdef Columns columns
        begin_alone(&self.use, self)
        try:
            while self.next_batch < self._stop:
                columns = new_columns(self._pool)
                columns.c.without = without
                columns.c.is_mapped = self._is_mapped and without & SEG_VIEWS != 0
                try:
                    columns._fill(self._table, self._start, self.next_batch, self._stop, self._chunk_bytes,
                                  self._check_crc, self._include_control)
                except Exception:
                    self.next_batch = columns._next_batch
                    if columns.c.rows == 0:
                        self._start = self.next_batch + 1
                        raise
                    # Return the chunk first; the next call meets the same error with nothing before it.
                    return columns
                self.next_batch = columns._next_batch
                if columns.c.rows > 0:
                    return columns
            return None
        finally:
            end_alone(&self.use)
