"""Finds the batches of a segment: walks from header to header, and searches for the next batch after damage.

Reads only headers, unless asked to check CRCs; never decompresses. Runs without the GIL.
"""
cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc

from .batch_header cimport (
    ATTRIBUTES_POS, CODEC_LZ4, CODEC_MASK, CODEC_ZSTD, CONTROL_BIT, COUNT_POS, DELETE_HORIZON_BIT, LOG_OVERHEAD,
    MAGIC_POS, MIN_V0_SIZE, MIN_V1_SIZE, MIN_V2_RECORD_SIZE, SIZE_POS, TAGGED_MAGIC, TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT, V2_HEADER_SIZE, BatchHeader, bounds_time, compute_crc, crc_matches, hides_first_offset,
    parse_header,
)
from .batch_payload cimport open_records
from .legacy_records cimport parse_inner_message, parse_message
from .one_at_a_time cimport Use, begin_alone, check_free, end_alone
from .record_batch cimport batch_of, iterate
from .record_view cimport RecordView
from .span cimport Span, load_i16, load_i32, load_i64
from .status cimport (
    BAD_COUNT, BAD_CRC, BAD_MAGIC, BAD_SIZE, BAD_TAG, LIMIT, NO_MEMORY, OFFSET_AHEAD, OFFSET_BACK, OFFSET_RANGE, OK,
    SHORT, ZEROS, raise_status,
)
from .tagged_message cimport MIN_TAGGED_SIZE, OPEN_END_BIT, TAGS_SIZE_POS, header_in, parse_tagged_header
from .window cimport Window, check_whole

from seglog._kernels.status import Status
from seglog.errors import InvalidArgumentError, SeglogError

cdef extern from "<stdint.h>" nogil:
    const int64_t INT64_MIN
    const int64_t INT64_MAX
    const int32_t INT32_MAX

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void* p) nogil


cdef enum:
    FIRST_CAPACITY = 64
    # A walk spends at most this much CRC work on headers that look right but are not: 64 MiB plus eight times the
    # bytes searched. Only malicious bytes need more.
    SEARCH_CRC_BYTES = 64 << 20
    SEARCH_CRC_PASSES = 8
    ABORTED_FIELDS = 3          # producer id, first offset, offset of the marker


# The offsets that a batch may have at its place in the log. No checksum covers a base offset (a message's offset).
cdef struct Order:
    bint is_checked
    int64_t next_offset         # no batch may begin below this
    int64_t before_last         # its value before the last batch was accepted
    int64_t end_offset          # every batch must end below this


# --- table -----------------------------------------------------------------------------------

@cython.final
cdef class BatchTable:
    """The headers of consecutive batches, 80 bytes each. A table does not change once made.

    `end`: the position after its last batch. `stop`: why the scan ended there.
    """

    def __init__(self):
        raise TypeError("a BatchTable comes from scan")

    def __dealloc__(self):
        free(self.rows)

    cdef BatchHeader* next_row(self) noexcept nogil:
        """Room after the last row, which the caller fills, then counts in `n`; NULL: no memory."""
        cdef Py_ssize_t capacity
        cdef BatchHeader* rows
        if self.n == self.capacity:
            capacity = max(self.capacity * 2, FIRST_CAPACITY)
            rows = <BatchHeader*>realloc(self.rows, capacity * sizeof(BatchHeader))
            if rows == NULL:
                return NULL
            self.rows = rows
            self.capacity = capacity
        return &self.rows[self.n]

    @property
    def stop(self):
        """A Status: OK at the end of the bytes, LIMIT after max_batches, otherwise what is wrong at `end`."""
        return Status(self.stop_)

    def stop_details(self):
        """(found, expected) for the bytes at `end`; None if the scan ended normally."""
        if self.stop_ == OK or self.stop_ == LIMIT:
            return None
        return describe(self.window, self.end, self.size, self.stop_)

    def __len__(self):
        return self.n

    def __getitem__(self, Py_ssize_t i):
        if i < 0:
            i += self.n
        if not 0 <= i < self.n:
            raise IndexError(f"the table has {self.n} batches")
        return batch_of(self.window, self.decompress, &self.rows[i])

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(self.n):
            yield batch_of(self.window, self.decompress, &self.rows[i])

    def records(self, int64_t first_offset=INT64_MIN, int64_t stop_offset=INT64_MAX, bint include_control=True):
        """The records with first_offset <= offset < stop_offset of all batches, without creating an object per batch.

        The default, the largest int64, sets no limit.
        """
        cdef int64_t last_offset = stop_offset
        if INT64_MIN < stop_offset < INT64_MAX:
            last_offset = stop_offset - 1
        return iterate(
            self, self.window, self.decompress, self.rows, self.rows + self.n,
            first_offset, last_offset, include_control)

    def without(self, const int64_t[::1] transactions not None):
        """This table without the data of aborted transactions.

        `transactions`: producer id, first offset and abort marker's offset of each, one after another. Leaves out the
        transactional batches of that producer between the two offsets; markers stay.
        """
        cdef BatchTable rest
        cdef BatchHeader* kept
        cdef Py_ssize_t i
        cdef Py_ssize_t n = transactions.shape[0] // ABORTED_FIELDS
        if n == 0:
            return self
        rest = BatchTable.__new__(BatchTable)
        rest.window, rest.decompress, rest.end, rest.size = self.window, self.decompress, self.end, self.size
        rest.stop_, rest.first_possible = self.stop_, self.first_possible
        for i in range(self.n):
            if not is_aborted(&self.rows[i], &transactions[0], n):
                kept = rest.next_row()
                if kept == NULL:
                    raise_status(NO_MEMORY, -1, -1)
                kept[0] = self.rows[i]
                rest.n += 1
        return rest

    def find_offset(self, int64_t offset, Py_ssize_t first=0):
        """The first batch from `first` on whose last offset is at or above `offset`; -1 if there is none."""
        cdef Py_ssize_t i
        for i in range(max(first, 0), self.n):
            if self.rows[i].last_offset >= offset:
                return i
        return -1

    def find_timestamp(self, int64_t timestamp, Py_ssize_t first=0):
        """The first batch from `first` on that may hold a timestamp at or above `timestamp`; -1: none.

        This is a batch whose largest timestamp reaches it, or a wrapper that would have to be opened to know.
        """
        cdef Py_ssize_t i
        for i in range(max(first, 0), self.n):
            if self.rows[i].max_timestamp >= timestamp or not bounds_time(&self.rows[i]):
                return i
        return -1

    def find_unbounded(self, Py_ssize_t first=0):
        """The first batch from `first` on whose max_timestamp is no bound (RecordBatch.bounds_time); -1: none."""
        cdef Py_ssize_t i
        for i in range(max(first, 0), self.n):
            if not bounds_time(&self.rows[i]):
                return i
        return -1

    @property
    def max_timestamp(self):
        """The largest of all batches; -1 if none has a timestamp."""
        cdef int64_t largest = -1
        cdef Py_ssize_t i
        for i in range(self.n):
            largest = max(largest, self.rows[i].max_timestamp)
        return largest

    @property
    def min_timestamp(self):
        """The smallest timestamp that the headers give; -1 if none does.

        A v1 wrapper, LogAppendTime and a base timestamp that is a delete horizon give only the batch's largest.
        """
        cdef int64_t smallest = INT64_MAX, timestamp
        cdef const BatchHeader* row
        cdef Py_ssize_t i
        for i in range(self.n):
            row = &self.rows[i]
            timestamp = row.max_timestamp
            if row.magic == 2 and not row.attributes & (DELETE_HORIZON_BIT | TIMESTAMP_TYPE_BIT):
                timestamp = row.base_timestamp
            if 0 <= timestamp < smallest:
                smallest = timestamp
        return smallest if smallest != INT64_MAX else -1

    def __repr__(self):
        return f"<BatchTable of {self.n} batches, end {self.end}, {self.stop.name}>"


cdef inline bint is_aborted(const BatchHeader* row, const int64_t* transactions, Py_ssize_t n) noexcept nogil:
    cdef const int64_t* t = transactions
    cdef Py_ssize_t _
    if row.magic < 2 or row.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) != TRANSACTIONAL_BIT:
        return False
    for _ in range(n):
        if row.producer_id == t[0] and t[1] <= row.last_offset < t[2]:
            return True
        t += ABORTED_FIELDS
    return False


# --- scan ------------------------------------------------------------------------------------

def scan(
    Window window not None, int64_t position=0, int64_t limit=-1, *,
    bint check_crc=False, Py_ssize_t max_batches=-1, int64_t max_bytes=-1, min_offset=None,
    int64_t end_offset=INT64_MAX, decompress=None,
):
    """The batches from `position`, where one must begin, to the end of the bytes or the first invalid batch.

    limit: the end of the bytes (a published end); -1: the end of the window.
    check_crc: stop with BAD_CRC before the first batch whose checksum is wrong.
    max_batches, max_bytes: stop with LIMIT after this many batches, or after the batch that reaches this many bytes;
        continue from the table's `end`. -1: no limit.
    min_offset, end_offset: offsets must lie in [min_offset, end_offset) and increase. Stop before the first batch that
        violates this, with OFFSET_BACK, OFFSET_AHEAD (it is above the following ones), or OFFSET_RANGE (it ends below
        its beginning). A wrapper is judged by its last offset. If min_offset is None, offsets are not checked.
    decompress: for the records of compressed batches, Callable[[codec, magic, memoryview], bytes-like].

    Damage is not raised: see the table's `end` and `stop`. InvalidArgumentError: `position` is outside the window.
    """
    cdef int64_t size = window.size
    cdef BatchTable table
    cdef Order order
    order.is_checked = min_offset is not None
    order.next_offset = min_offset if order.is_checked else INT64_MIN
    order.before_last = order.next_offset
    order.end_offset = end_offset
    if 0 <= limit < size:
        size = limit
    if not 0 <= position <= size:
        raise InvalidArgumentError(f"position {position} is not within the {size} bytes", file=window.name)
    table = BatchTable.__new__(BatchTable)
    table.window = window
    table.decompress = decompress
    table.end = position
    table.size = size
    table.first_possible = order.next_offset
    with nogil:
        table.stop_ = fill(
            table, size, check_crc, max_batches, position + min(max_bytes, size) if max_bytes >= 0 else -1, &order)
    if table.stop_ == NO_MEMORY:
        raise_status(NO_MEMORY, -1, -1)
    if table.stop_ == OK or table.stop_ == LIMIT:
        check_whole(window)
    else:
        window.check_size()
    return table


cdef int fill(
    BatchTable table, int64_t size, bint check_crc, Py_ssize_t max_batches, int64_t enough, Order* order
) noexcept nogil:
    cdef const uint8_t* bytes = table.window.base
    cdef bint is_tagged = table.window.is_tagged
    cdef BatchHeader* row
    # Locals, not the table's Order: otherwise each round would load what the previous round stored.
    cdef int64_t next_offset = order.next_offset
    cdef int64_t before_last = order.before_last
    cdef int64_t end_offset = order.end_offset
    cdef bint in_order = order.is_checked
    cdef int status
    while table.end != size:
        if table.n == max_batches or (enough >= 0 and table.end >= enough):
            order.next_offset, order.before_last = next_offset, before_last
            return look_ahead(table, size, order) if in_order and table.n > 0 else <int>LIMIT
        # Parsed in place: copying a row right after it was stored in parts stalls for as long as parsing takes.
        row = table.next_row()
        if row == NULL:
            return NO_MEMORY
        status = (
            parse_header(bytes, size, table.end, row) if not is_tagged
            else parse_tagged_header(bytes, size, table.end, row)
        )
        if status != OK:
            return status
        if check_crc:
            # Prefetch the next header while computing this batch's checksum.
            prefetch(bytes + row.position + row.size_bytes)
            if not crc_matches(bytes, row):
                return BAD_CRC
        if is_tagged and row.attributes & OPEN_END_BIT and row.attributes & CODEC_MASK:
            with gil:
                find_end(table, row)
        if in_order:
            if not next_offset <= row.base_offset <= row.last_offset < end_offset:
                order.next_offset, order.before_last = next_offset, before_last
                return misplaced(table, size, order, row)
            before_last = next_offset
            next_offset = row.last_offset + 1
        table.n += 1
        table.end += row.size_bytes
    return OK


cdef int find_end(BatchTable table, BatchHeader* row) noexcept:
    """Open a tagged wrapper that does not store its last offset, to find it. If this fails, reading it tells why."""
    cdef Span records
    cdef Window _opened         # keeps alive the bytes of `records`
    cdef RecordView message
    cdef int64_t base = row.base_offset
    cdef int64_t last = -1
    try:
        _opened = open_records(table.window, row, table.decompress, &records)
    except (SeglogError, MemoryError):
        return 0
    while records.p != records.end:
        if parse_inner_message(&records, row, &base, &message) != OK or message.offset <= last:
            return 0
        last = message.offset
    if last >= 0:
        row.last_offset = last
        row.attributes &= ~OPEN_END_BIT
    return 0


cdef int misplaced(BatchTable table, int64_t size, const Order* order, const BatchHeader* row) noexcept nogil:
    """What is wrong with the offsets of the batch that follows those of the table."""
    if row.last_offset < row.base_offset:
        return OFFSET_RANGE
    return take_back(table, size, order, row) if row.base_offset < order.next_offset else <int>OFFSET_AHEAD


cdef int look_ahead(BatchTable table, int64_t size, Order* order) noexcept nogil:
    """LIMIT, or what is wrong with the last batch accepted, judged by the header of the following one."""
    cdef BatchHeader row
    if header_in(table.window, size, table.end, &row) != OK or row.base_offset >= order.next_offset:
        return LIMIT
    return LIMIT if take_back(table, size, order, &row) == OFFSET_BACK else <int>OFFSET_AHEAD


cdef int take_back(BatchTable table, int64_t size, const Order* order, const BatchHeader* row) noexcept nogil:
    """`row` begins below the end of the last batch: decide which of the two is wrong, and remove the last if it is.

    The last one is wrong if the order is right without it: `row` follows the batch before it without a gap, or the
    batch after `row` lies between `row` and it. Of wrappers, which do not store their first offset, the last one counts
    as wrong too: the batches given are then right, and a caller that continues reads `row` as well.
    """
    cdef BatchHeader following
    cdef const BatchHeader* last
    cdef bint is_ahead
    if table.n == 0 or row.base_offset < order.before_last:
        return OFFSET_BACK
    last = &table.rows[table.n - 1]
    # Unsigned, because offsets may have any value. (No batch of a table ends before its base offset.)
    is_ahead = (
        <uint64_t>row.base_offset - <uint64_t>order.before_last
        == <uint64_t>last.last_offset - <uint64_t>last.base_offset + 1
    )
    is_ahead |= hides_first_offset(last)
    if not is_ahead and header_in(table.window, size, row.position + row.size_bytes, &following) == OK:
        is_ahead = row.last_offset < following.base_offset <= last.last_offset
    if not is_ahead:
        return OFFSET_BACK
    table.n -= 1
    table.end = last.position
    return OFFSET_AHEAD


cdef object describe(Window window, int64_t position, int64_t size, int status):
    """(found, expected) for a status of parsing a header or of crc_matches."""
    cdef const uint8_t* p = window.base + position
    cdef int64_t rest = size - position
    cdef BatchHeader row
    if status == SHORT and rest <= MAGIC_POS:
        return f"{rest} bytes", f"at least {MIN_V0_SIZE} for a batch"
    if status == SHORT:
        return f"{rest} bytes", f"{load_i32(p + SIZE_POS) + <int64_t>LOG_OVERHEAD}, as the size field says"
    if status == ZEROS:
        return "zero bytes", "a batch, or the end of the file"
    if status == BAD_MAGIC:
        return f"magic {<int8_t>p[MAGIC_POS]}", "1" if window.is_tagged else "0, 1 or 2"
    if status == BAD_SIZE:
        least = {1: MIN_V1_SIZE, 2: V2_HEADER_SIZE}.get(p[MAGIC_POS], MIN_V0_SIZE)
        if window.is_tagged:
            least = MIN_TAGGED_SIZE
        return f"size field {load_i32(p + SIZE_POS)}", f"at least {least - LOG_OVERHEAD}"
    if status == BAD_COUNT:
        most = (load_i32(p + SIZE_POS) + LOG_OVERHEAD - V2_HEADER_SIZE) // MIN_V2_RECORD_SIZE
        most = f" to {most}" if load_i16(p + ATTRIBUTES_POS) & CODEC_MASK == 0 else " or more"
        return f"{load_i32(p + COUNT_POS)} records", f"0{most}"
    if status == BAD_TAG:
        return f"{load_i32(p + TAGS_SIZE_POS)} bytes of tags", "a list of tags, each once, or -1 for none"
    if status == OFFSET_RANGE and header_in(window, size, position, &row) == OK:
        return f"last offset {row.last_offset}", f"at least {row.base_offset}, where the batch begins"
    if status == OFFSET_RANGE:
        return f"last offset {INT64_MAX}", f"at most {INT64_MAX - 1}"
    if status == OFFSET_BACK or status == OFFSET_AHEAD:
        return f"offset {load_i64(p)}", "offsets that increase"
    if status == BAD_CRC and header_in(window, size, position, &row) == OK:
        return f"checksum {row.crc:#010x}", f"{compute_crc(window.base, &row):#010x}"
    raise RuntimeError(f"no header check gives status {status}")


# --- resync ----------------------------------------------------------------------------------

def find_batch(Window window not None, int64_t position, int64_t min_offset=-1):
    """The next position, from `position` on, of a complete batch; -1: none.

    Complete: its header is plausible, which is more than parsing requires, its CRC is right, and its last offset is at
    or above `min_offset`. The bytes skipped are lost, or never were a batch.
    """
    return BatchFinder(window).find(position, min_offset)


@cython.final
cdef class BatchFinder:
    """BatchFinder(window): repeated find_batch, for a walk that may meet damage more than once.

    All its searches share one budget of CRC work. Before every small batch, malicious bytes may have a header that
    claims everything after it: a budget per search would be spent once per batch. Once the budget is used up, nothing
    more is found.
    """
    cdef Window window
    cdef int64_t budget
    cdef Use use

    def __cinit__(self, Window window not None):
        self.window = window
        self.budget = SEARCH_CRC_BYTES + SEARCH_CRC_PASSES * window.size

    def find(self, int64_t position, int64_t min_offset=-1):
        """As find_batch."""
        cdef int64_t found
        begin_alone(&self.use, self)
        try:
            with nogil:
                found = self.search(max(position, 0), min_offset)
            check_whole(self.window)
            return found
        finally:
            end_alone(&self.use)

    def behind(self, BatchTable table not None, int64_t min_offset=-1):
        """As find_batch, after the batch that ended the table's scan; counts that batch's checksum in the budget.

        If only a batch's offset is wrong, skips the whole batch, because its records may hold batches of another log.
        """
        cdef BatchHeader row
        cdef int64_t passed = 1
        check_free(&self.use, self)
        if header_in(self.window, self.window.size, table.end, &row) == OK:
            if table.stop_ == BAD_CRC:
                self.budget -= row.size_bytes
            elif table.stop_ == OFFSET_BACK or table.stop_ == OFFSET_AHEAD:
                passed = row.size_bytes
        return self.find(table.end + passed, min_offset)

    cdef int64_t search(self, int64_t position, int64_t min_offset) noexcept nogil:
        cdef const uint8_t* bytes = self.window.base
        cdef int64_t size = self.window.size
        cdef BatchHeader row
        while size - position >= MIN_V0_SIZE:
            if bytes[position + MAGIC_POS] <= 2 and header_in(self.window, size, position, &row) == OK:
                if row.last_offset >= min_offset and is_plausible(bytes, &row) and row.size_bytes <= self.budget:
                    if crc_matches(bytes, &row):
                        return position
                    self.budget -= row.size_bytes
            position += 1
        return -1


cdef bint is_plausible(const uint8_t* bytes, const BatchHeader* row) noexcept nogil:
    """Would a broker have written these fields? Random bytes inside a record rarely pass."""
    cdef Span s
    cdef RecordView message
    cdef int8_t magic = -1
    cdef uint8_t attributes = 0
    cdef int codec = row.attributes & CODEC_MASK
    if row.base_offset < 0:
        return False
    if row.magic == 2:
        return (
            codec <= CODEC_ZSTD
            and 0 <= row.attributes < 2 * DELETE_HORIZON_BIT
            and row.base_offset <= row.last_offset
            and row.last_offset - row.base_offset <= INT32_MAX
            and row.count <= row.last_offset - row.base_offset + 1
            and row.producer_id >= -1 and row.leader_epoch >= -1
        )
    if row.magic == TAGGED_MAGIC:
        return codec <= CODEC_ZSTD
    if codec > CODEC_LZ4 or row.attributes & ~(CODEC_MASK | TIMESTAMP_TYPE_BIT):
        return False
    s.p = bytes + row.position
    s.end = s.p + row.size_bytes
    return parse_message(&s, &message, &magic, &attributes) == OK
