"""Records as rows of a table, exported to Arrow: the requested columns of Spark's Kafka source.

    key, value      binary; or utf8, or JSON as in Arrow (utf8 with the extension arrow.json)
    topic           utf8, in a dictionary with one entry
    partition       int32
    offset          int64
    timestamp       timestamp[us, UTC], null if the record has none
    timestampType   int32: 0 CreateTime, 1 LogAppendTime, -1 none (v0)
    headers         a list of (key utf8, value binary)

Built from Columns, whose memory they take over, after removing the rows that were not requested. Buffers with the same
value in each row (topic, partition, usually timestampType) are shared by all batches of a partition.
Views of keys and values refer to the batches as stored if these are not compressed.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t

from .arena cimport Arena
from .arrow_c cimport (
    ArrowArray, ArrowSchema, dictionary_of_array, dictionary_of_schema, fill_array, fill_binary, fill_schema,
    new_array_capsule, new_schema_capsule,
)
from .batch_attributes cimport timestamp_type_of
from .batch_header cimport CODEC_MASK, BatchHeader, bounds_time
from .column_decoder cimport SEG_HEADERS, SEG_KEY, SEG_VALUE, SEG_VIEWS, seg_binary, seg_columns, seg_view
from .columns cimport ColumnChunks, Columns
from .one_at_a_time cimport Use, begin_alone, check_free, end_alone
from .segment_scan cimport BatchTable

import sys

from seglog._kernels.columns import chunks
from seglog.errors import InvalidArgumentError

cdef extern from "seg_rows.h" nogil:
    void seg_keep_rows(seg_columns* c, int64_t start, int64_t stop, int64_t low, int64_t high)
    void seg_to_micros(int64_t* timestamp, int64_t rows)
    bint seg_rows_are_utf8(const seg_binary* column, int64_t rows)
    int64_t seg_null_what_is_not_utf8(seg_binary* column, int64_t rows)
    void seg_make_views(const seg_binary* column, int64_t rows, seg_view* views)

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

cdef enum Column:
    KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS
    COLUMN_COUNT

cdef enum Text:
    BYTES, UTF8, JSON

_TEXTS = {None: BYTES, "utf8": UTF8, "json": JSON}


cdef bytes sized(bytes text):
    return len(text).to_bytes(4, sys.byteorder) + text


# Arrow's key-value metadata, in the machine's byte order: the number of pairs, then each pair's key and value.
cdef bytes json_metadata = (
    (2).to_bytes(4, sys.byteorder) + sized(b"ARROW:extension:name") + sized(b"arrow.json")
    + sized(b"ARROW:extension:metadata") + sized(b"")
)


# --- the layout of a partition's rows --------------------------------------------------------------------------

@cython.final
cdef class RowLayout:
    """The requested columns, and the topic and partition. Thread-safe. `nulls_text`: text that is not UTF-8 is null;
    otherwise it is an error."""
    cdef readonly tuple columns
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef int n
    cdef int kinds[8]
    cdef int key_text
    cdef int value_text
    cdef bint has_views
    cdef bint nulls_text
    cdef int32_t without
    cdef bytes topic_bytes
    cdef int32_t topic_offsets[2]
    # Buffers with the same value in each row: replaced by longer ones, never changed.
    cdef bytes zeros
    cdef bytes partitions
    cdef dict types

    def __cinit__(self, columns, str topic not None, int32_t partition, *, key_text=None, value_text=None,
                  bint nulls_text=False, bint has_views=False):
        self.columns = tuple(columns)
        if not 0 < len(self.columns) <= COLUMN_COUNT or len(set(self.columns)) != len(self.columns):
            raise InvalidArgumentError(f"each column at most once, and one at least: {self.columns!r}")
        if key_text not in _TEXTS or value_text not in _TEXTS:
            raise InvalidArgumentError("text is None, utf8 or json")
        self.n = len(self.columns)
        self.without = SEG_KEY | SEG_VALUE | SEG_HEADERS
        for i, name in enumerate(self.columns):
            if name not in COLUMNS:
                raise InvalidArgumentError(f"no column {name!r}", hint=f"there are {', '.join(COLUMNS)}")
            self.kinds[i] = COLUMNS.index(name)
            if self.kinds[i] == KEY:
                self.without &= ~SEG_KEY
            elif self.kinds[i] == VALUE:
                self.without &= ~SEG_VALUE
            elif self.kinds[i] == HEADERS:
                self.without &= ~SEG_HEADERS
        self.topic, self.partition = topic, partition
        self.key_text, self.value_text, self.has_views = _TEXTS[key_text], _TEXTS[value_text], has_views
        self.nulls_text = nulls_text
        self.topic_bytes = topic.encode(errors="replace")
        self.topic_offsets[0] = 0
        self.topic_offsets[1] = <int32_t>len(self.topic_bytes)
        self.zeros = self.partitions = b""
        self.types = {}

    @property
    def is_narrow(self):
        """Whether all columns have a fixed width, so that rows take a few bytes, whatever the records contain."""
        return self.has_fixed_width()

    cdef bint has_fixed_width(self) noexcept:
        return self.without == SEG_KEY | SEG_VALUE | SEG_HEADERS

    def __arrow_c_schema__(self):
        cdef ArrowSchema* schema = NULL
        cdef object capsule = new_schema_capsule(&schema)
        cdef int i
        fill_schema(schema, b"+s", b"", False, self.n)
        for i in range(self.n):
            self.fill_column(schema.children[i], self.kinds[i])
        return capsule

    cdef int fill_column(self, ArrowSchema* column, int kind) except -1:
        cdef ArrowSchema* item
        if kind == KEY:
            self.fill_bytes(column, b"key", self.key_text)
        elif kind == VALUE:
            self.fill_bytes(column, b"value", self.value_text)
        elif kind == TOPIC:
            fill_schema(column, b"c", b"topic", False, 0)
            fill_schema(dictionary_of_schema(column), b"u", b"", False, 0)
        elif kind == PARTITION:
            fill_schema(column, b"i", b"partition", False, 0)
        elif kind == OFFSET:
            fill_schema(column, b"l", b"offset", False, 0)
        elif kind == TIMESTAMP:
            fill_schema(column, b"tsu:UTC", b"timestamp", True, 0)
        elif kind == TIMESTAMP_TYPE:
            fill_schema(column, b"i", b"timestampType", False, 0)
        else:
            fill_schema(column, b"+l", b"headers", False, 1)
            item = column.children[0]
            fill_schema(item, b"+s", b"item", False, 2)
            fill_schema(item.children[0], b"u", b"key", False, 0)
            fill_schema(item.children[1], b"z", b"value", True, 0)
        return 0

    cdef int fill_bytes(self, ArrowSchema* column, const char* name, int text) except -1:
        if text == BYTES:
            fill_schema(column, b"vz" if self.has_views else b"z", name, True, 0)
        else:
            fill_schema(column, b"vu" if self.has_views else b"u", name, True, 0)
        if text == JSON:
            column.metadata = PyBytes_AS_STRING(json_metadata)      # owned by the module: never freed
        return 0

    # Buffers for at least `rows` rows.

    cdef bytes zeros_of(self, int64_t rows):
        if len(self.zeros) < rows:
            self.zeros = bytes(2 * rows)
        return self.zeros

    cdef bytes partitions_of(self, int64_t rows):
        if len(self.partitions) < 4 * rows:
            self.partitions = filled(self.partition, 2 * rows)
        return self.partitions

    cdef bytes types_of(self, int32_t timestamp_type, int64_t rows):
        cdef bytes known = self.types.get(timestamp_type, b"")
        if len(known) < 4 * rows:
            known = self.types[timestamp_type] = filled(timestamp_type, 2 * rows)
        return known


cdef bytes filled(int32_t value, int64_t rows):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 4 * rows)
    cdef int32_t* items = <int32_t*>PyBytes_AS_STRING(made)
    cdef int64_t i
    for i in range(rows):
        items[i] = value
    return made


# --- rows -------------------------------------------------------------------------------------------------------

@cython.final
cdef class TopicRows:
    """Rows of a partition as an Arrow record batch. Its memory lives as long as anything refers to it."""
    cdef Columns _columns
    cdef readonly RowLayout layout
    cdef readonly dict undecodable  # how many keys and values are no text, and so null, by column
    cdef bytes _types               # int32: the timestampType of each row
    cdef bytes _header_keys         # if a header key is not UTF-8: offsets and bytes of all keys, repaired
    cdef bytes _header_key_offsets

    def __init__(self):
        raise TypeError("TopicRows come from topic_rows()")

    def __len__(self):
        return self._columns.c.rows

    @property
    def nbytes(self):
        """The bytes of keys, values and headers, and of the fixed-width columns."""
        cdef seg_columns* c = &self._columns.c
        return (28 * c.rows + c.key.bytes + c.value.bytes + c.source_bytes
                + c.header_key.bytes + c.header_value.bytes + 8 * c.header_rows)

    @property
    def first_offset(self):
        return self._columns.c.offset[0]

    @property
    def last_offset(self):
        return self._columns.c.offset[self._columns.c.rows - 1]

    def __arrow_c_schema__(self):
        return self.layout.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema=None):
        """A struct array with one field per column. `requested_schema` is ignored, as the interface allows."""
        cdef ArrowArray* array = NULL
        cdef object capsule = new_array_capsule(&array)
        cdef int i
        fill_array(array, self, self._columns.c.rows, 0, 1, self.layout.n)
        for i in range(self.layout.n):
            self.fill_column(array.children[i], self.layout.kinds[i])
        return self.layout.__arrow_c_schema__(), capsule

    cdef int fill_column(self, ArrowArray* out, int kind) except -1:
        cdef seg_columns* c = &self._columns.c
        cdef RowLayout layout = self.layout
        cdef ArrowArray* words
        cdef bytes buffer
        if kind == KEY:
            self.fill_bytes(out, &c.key)
        elif kind == VALUE:
            self.fill_bytes(out, &c.value)
        elif kind == TOPIC:
            buffer = layout.zeros_of(c.rows)
            fill_array(out, buffer, c.rows, 0, 2, 0)
            out.buffers[1] = PyBytes_AS_STRING(buffer)
            words = dictionary_of_array(out)
            fill_array(words, layout, 1, 0, 3, 0)
            words.buffers[1] = layout.topic_offsets
            words.buffers[2] = PyBytes_AS_STRING(layout.topic_bytes)
        elif kind == PARTITION or kind == TIMESTAMP_TYPE:
            buffer = layout.partitions_of(c.rows) if kind == PARTITION else self._types
            fill_array(out, buffer, c.rows, 0, 2, 0)
            out.buffers[1] = PyBytes_AS_STRING(buffer)
        elif kind == OFFSET:
            fill_array(out, self._columns, c.rows, 0, 2, 0)
            out.buffers[1] = c.offset
        elif kind == TIMESTAMP:
            fill_array(out, self._columns, c.rows, self._columns._timestamp_nulls, 2, 0)
            if self._columns._timestamp_nulls > 0:
                out.buffers[0] = self._columns._timestamp_validity
            out.buffers[1] = c.timestamp
        else:
            self.fill_headers(out)
        return 0

    cdef int fill_bytes(self, ArrowArray* out, const seg_binary* column) except -1:
        cdef int64_t rows = self._columns.c.rows
        cdef Arena views
        if not self.layout.has_views:
            return fill_binary(out, self._columns, column, rows)
        if column.views != NULL:
            fill_array(out, self._columns, rows, column.null_count, 4, 0)
            if column.null_count > 0:
                out.buffers[0] = column.validity
            out.buffers[1] = column.views
            out.buffers[2] = column.data
            out.buffers[3] = &self._columns.c.source_bytes
            return 0
        # The sizes of the data buffers (one), and then the views.
        views = self._columns.pool.acquire(16 * rows + 64)
        (<int64_t*>views.base)[0] = column.bytes
        seg_make_views(column, rows, <seg_view*>(views.base + 64))
        fill_array(out, (self._columns, views), rows, column.null_count, 4, 0)
        if column.null_count > 0:
            out.buffers[0] = column.validity
        out.buffers[1] = views.base + 64
        out.buffers[2] = column.data
        out.buffers[3] = views.base
        return 0

    cdef int fill_headers(self, ArrowArray* out) except -1:
        cdef seg_columns* c = &self._columns.c
        cdef ArrowArray* item
        fill_array(out, self._columns, c.rows, 0, 2, 1)
        out.buffers[1] = c.header_start
        item = out.children[0]
        fill_array(item, self._columns, c.header_rows, 0, 1, 2)
        if self._header_keys is None:
            fill_binary(item.children[0], self._columns, &c.header_key, c.header_rows)
        else:
            fill_array(item.children[0], self, c.header_rows, 0, 3, 0)
            item.children[0].buffers[1] = PyBytes_AS_STRING(self._header_key_offsets)
            item.children[0].buffers[2] = PyBytes_AS_STRING(self._header_keys)
        return fill_binary(item.children[1], self._columns, &c.header_value, c.header_rows)

    def __repr__(self):
        return f"<{len(self)} rows of {self.layout.topic}-{self.layout.partition}>"

    # --- making ---

    cdef int finish(self, int64_t first_batch, int64_t stop_batch, BatchTable table) except -1:
        """Check text, and set the timestampType from the batches [first_batch, stop_batch)."""
        cdef seg_columns* c = &self._columns.c
        cdef RowLayout layout = self.layout
        self.undecodable = {}
        if not layout.without & SEG_KEY and layout.key_text != BYTES:
            self.check_text("key", &c.key)
        if not layout.without & SEG_VALUE and layout.value_text != BYTES:
            self.check_text("value", &c.value)
        if not layout.without & SEG_HEADERS and c.header_rows > 0 and not seg_rows_are_utf8(
                &c.header_key, c.header_rows):
            self.repair_header_keys()
        if "timestampType" in layout.columns:
            self.find_types(table, first_batch, stop_batch)
        return 0

    cdef int find_types(self, BatchTable table, int64_t batch, int64_t stop) except -1:
        cdef seg_columns* c = &self._columns.c
        cdef int32_t first = timestamp_type_of(&table.rows[batch])
        cdef int64_t row = 0
        cdef int64_t other
        cdef int32_t* types
        other = batch
        while other < stop and timestamp_type_of(&table.rows[other]) == first:
            other += 1
        if other == stop:
            self._types = self.layout.types_of(first, c.rows)
            return 0
        self._types = PyBytes_FromStringAndSize(NULL, 4 * c.rows)
        types = <int32_t*>PyBytes_AS_STRING(self._types)
        while row < c.rows:
            while batch < stop - 1 and table.rows[batch].last_offset < c.offset[row]:
                batch += 1
            types[row] = timestamp_type_of(&table.rows[batch])
            row += 1
        return 0

    cdef int check_text(self, str name, seg_binary* column) except -1:
        cdef int64_t rows = self._columns.c.rows
        cdef int64_t row
        if seg_rows_are_utf8(column, rows):
            return 0
        if self.layout.nulls_text:
            self.undecodable[name] = seg_null_what_is_not_utf8(column, rows)
            return 0
        for row in range(rows):
            try:
                bytes_of(column, row).decode()
            except UnicodeDecodeError as error:
                raise InvalidArgumentError(
                    f"the {name} at offset {self._columns.c.offset[row]} of "
                    f"{self.layout.topic}-{self.layout.partition} is not UTF-8: {error.reason} at byte {error.start}",
                    hint="on_undecodable='null' makes it null; without decode= it is bytes",
                ) from error
        return 0

    cdef int repair_header_keys(self) except -1:
        """Repair header keys as every Kafka client does: malformed bytes become U+FFFD."""
        cdef seg_columns* c = &self._columns.c
        cdef int64_t row
        cdef int64_t size = 0
        cdef list keys = []
        self._header_key_offsets = PyBytes_FromStringAndSize(NULL, 4 * (c.header_rows + 1))
        cdef int32_t* offsets = <int32_t*>PyBytes_AS_STRING(self._header_key_offsets)
        offsets[0] = 0
        for row in range(c.header_rows):
            keys.append(bytes_of(&c.header_key, row).decode(errors="replace").encode())
            size += len(<bytes>keys[row])
            if size > 0x7FFFFFFF:
                raise InvalidArgumentError("the keys of headers that are no UTF-8 pass 2 GiB in one batch")
            offsets[row + 1] = <int32_t>size
        self._header_keys = b"".join(keys)
        return 0


cdef bytes bytes_of(const seg_binary* column, int64_t row):
    cdef int32_t start = column.offsets[row]
    return PyBytes_FromStringAndSize(<const char*>column.data + start, column.offsets[row + 1] - start)


# --- walking ----------------------------------------------------------------------------------------------------

def topic_rows(BatchTable table not None, pool not None, RowLayout layout not None, *, int64_t start=0,
               int64_t stop=-1, int64_t start_offset=INT64_MIN, int64_t stop_offset=INT64_MAX,
               int64_t low_ms=INT64_MIN, int64_t high_ms=INT64_MAX, bint check_crc=True, int64_t chunk_bytes=0,
               bint is_mapped=False):
    """Iterate over the batches [start, stop) of a table as TopicRows, in chunks as those of columns.chunks().

    The rows are the records with start_offset <= offset < stop_offset and low_ms <= timestamp < high_ms, without those
    of control batches. If a header shows that no record of its batch is in that time range, the batch is skipped
    without checking its CRC. is_mapped: views refer to the window's own bytes, which live as long as the rows, not to
    a copy.
    """
    cdef TopicRowChunks it = TopicRowChunks.__new__(TopicRowChunks)
    it._chunks = chunks(table, pool, chunk_bytes, start=start, stop=stop, check_crc=check_crc, include_control=False)
    it._chunks._is_mapped = is_mapped
    it._table = table
    it._layout = layout
    it._stop = it._chunks._stop
    it._start_offset, it._stop_offset, it._low, it._high = start_offset, stop_offset, low_ms, high_ms
    return it


@cython.final
cdef class TopicRowChunks:
    """An iterator of TopicRows; see topic_rows(), and ColumnChunks about errors."""
    cdef ColumnChunks _chunks
    cdef BatchTable _table
    cdef RowLayout _layout
    cdef int64_t _stop
    cdef int64_t _start_offset
    cdef int64_t _stop_offset
    cdef int64_t _low
    cdef int64_t _high
    cdef Use use

    def __init__(self):
        raise TypeError("TopicRowChunks come from topic_rows()")

    @property
    def next_batch(self):
        return self._chunks.next_batch

    def skip_batch(self):
        """Continue after the batch that raised."""
        check_free(&self.use, self)
        self._chunks.next_batch += 1

    def __iter__(self):
        return self

    def __next__(self):
        cdef TopicRows rows
        begin_alone(&self.use, self)
        try:
            rows = self.advance()
        finally:
            end_alone(&self.use)
        if rows is None:
            raise StopIteration
        return rows

    cdef TopicRows advance(self):
        """The next rows; None at the end."""
        cdef Columns columns
        cdef TopicRows rows
        cdef int64_t first
        cdef int64_t decoded
        while True:
            self.find_run()
            first = self._chunks.next_batch
            columns = self._chunks.take(self._layout.without | (SEG_VIEWS if self.can_view() else 0))
            if columns is None:
                if self._chunks.next_batch >= self._stop:
                    return None
                continue
            decoded = columns.c.rows
            with nogil:
                seg_keep_rows(&columns.c, self._start_offset, self._stop_offset, self._low, self._high)
            if columns.c.rows == 0:
                continue
            if columns.c.rows < decoded:
                columns._seal()         # compute the validity of the timestamps again: rows have moved
            with nogil:
                seg_to_micros(columns.c.timestamp, columns.c.rows)
            rows = TopicRows.__new__(TopicRows)
            rows._columns = columns
            rows.layout = self._layout
            rows.finish(first, max(self._chunks.next_batch, first + 1), self._table)
            return rows

    cdef bint can_view(self) noexcept:
        """Whether keys and values can be views of the batches as stored: all are v2 and not compressed."""
        cdef RowLayout layout = self._layout
        cdef const BatchHeader* row
        cdef int64_t batch
        if (not layout.has_views or layout.has_fixed_width() or not layout.without & SEG_HEADERS
                or layout.key_text != BYTES or layout.value_text != BYTES):
            return False
        for batch in range(self._chunks.next_batch, self._chunks._stop):
            row = &self._table.rows[batch]
            if row.magic != 2 or row.attributes & CODEC_MASK:
                return False
        return True

    cdef void find_run(self) noexcept:
        """Skip batches outside the time range, and end the run before the next such batch."""
        cdef int64_t batch = self._chunks.next_batch
        cdef int64_t end
        if self._low == INT64_MIN and self._high == INT64_MAX:
            return
        while batch < self._stop and self.is_out(&self._table.rows[batch]):
            batch += 1
        end = batch
        while end < self._stop and not self.is_out(&self._table.rows[end]):
            end += 1
        self._chunks.next_batch, self._chunks._stop = batch, end

    cdef bint is_out(self, const BatchHeader* row) noexcept:
        if not bounds_time(row):
            return False
        if row.max_timestamp < self._low:
            return True
        # All records have the same time: a single message, or a batch under LogAppendTime.
        return (self._high <= row.max_timestamp and self._high < INT64_MAX
                and (row.magic == 0 or row.magic == 1 or timestamp_type_of(row) == 1))
