"""The producers of a log as rows of a .snapshot file: found by id, and frozen in one step without copying them.

Rows are in chunks. `freeze` shares the chunks, and changing a row first copies its chunk: so a snapshot of a million
producers delays no thread, and is encoded without the GIL while the table changes. For the layout of the file, see
docs/formats/producer_snapshot.md.
"""
import os

cimport cython

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from .crc cimport update_crc32c
from .span cimport load_i16, load_i32, load_i64, store_u16, store_u32, store_u64

cdef enum:
    VERSION = 1
    HEADER_SIZE = 10    # version int16, CRC-32C of what follows it, count int32
    CRC_END = 6
    ENTRY_SIZE = 46
    CHUNK_BITS = 10
    CHUNK_ROWS = 1 << CHUNK_BITS
    FEWEST_SLOTS = 16


cdef struct Producer:
    int64_t producer_id
    int64_t last_offset
    int64_t timestamp
    int64_t first_offset        # of its open transaction, else -1
    int32_t last_sequence
    int32_t offset_delta
    int32_t coordinator_epoch
    int16_t producer_epoch


cdef struct Chunk:
    Py_ssize_t holders          # a table and frozen ones. Changed with the GIL; while it is above 1 no row changes
    int64_t oldest              # none of its rows that may expire is older
    Producer rows[CHUNK_ROWS]


cdef struct Ordered:
    int64_t producer_id
    const Producer* row


# The writer of a snapshot chooses the ids: they must not all fall into one slot.
cdef uint64_t seed = int.from_bytes(os.urandom(8), "little")


cdef inline uint64_t mixed(int64_t producer_id) noexcept nogil:
    """The last steps of splitmix64."""
    cdef uint64_t x = <uint64_t>producer_id ^ seed
    x = (x ^ (x >> 30)) * <uint64_t>0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t>0x94d049bb133111eb
    return x ^ (x >> 31)


cdef int by_id(const void* a, const void* b) noexcept nogil:
    cdef int64_t left = (<const Ordered*>a).producer_id
    cdef int64_t right = (<const Ordered*>b).producer_id
    return (left > right) - (left < right)


cdef inline void release(Chunk* chunk) noexcept:
    chunk.holders -= 1
    if chunk.holders == 0:
        free(chunk)


cdef tuple fields(const Producer* row):
    return (
        row.producer_id, row.producer_epoch, row.last_sequence, row.last_offset, row.offset_delta, row.timestamp,
        row.coordinator_epoch, row.first_offset,
    )


@cython.final
cdef class FrozenProducers:
    """The rows of a table at one moment. Thread-safe."""

    cdef Chunk** chunks
    cdef Py_ssize_t chunk_count
    cdef Py_ssize_t n

    def __cinit__(self):
        self.chunks, self.chunk_count, self.n = NULL, 0, 0

    def __dealloc__(self):
        cdef Py_ssize_t slot
        for slot in range(self.chunk_count):
            release(self.chunks[slot])
        free(self.chunks)

    def __len__(self):
        return self.n

    cdef Ordered* ordered(self) noexcept nogil:
        """Return the rows by producer id; the caller frees them. NULL: no memory."""
        cdef Ordered* rows = <Ordered*>malloc(<size_t>max(self.n, 1) * sizeof(Ordered))
        cdef Py_ssize_t slot
        cdef bint rises = True
        if rows == NULL:
            return NULL
        for slot in range(self.n):
            rows[slot].row = &self.chunks[slot >> CHUNK_BITS].rows[slot & (CHUNK_ROWS - 1)]
            rows[slot].producer_id = rows[slot].row.producer_id
            if slot and rows[slot].producer_id < rows[slot - 1].producer_id:
                rises = False
        if not rises:
            qsort(rows, <size_t>self.n, sizeof(Ordered), &by_id)
        return rows

    def rows(self):
        """Return tuples of the fields of an entry, by producer id."""
        cdef Ordered* rows = self.ordered()
        cdef Py_ssize_t slot
        if rows == NULL:
            raise MemoryError()
        try:
            return [fields(rows[slot].row) for slot in range(self.n)]
        finally:
            free(rows)

    def encode(self):
        """Encode the snapshot file, by producer id. Releases the GIL."""
        cdef Py_ssize_t size = HEADER_SIZE + self.n * ENTRY_SIZE
        cdef bytes raw = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(raw)
        cdef uint8_t* at = begin
        cdef Ordered* rows
        cdef const Producer* row
        cdef Py_ssize_t slot
        with nogil:
            rows = self.ordered()
            if rows != NULL:
                store_u16(at, VERSION)
                store_u32(at + CRC_END, <uint32_t>self.n)
                at += HEADER_SIZE
                for slot in range(self.n):
                    row = rows[slot].row
                    store_u64(at, <uint64_t>row.producer_id)
                    store_u16(at + 8, <uint16_t>row.producer_epoch)
                    store_u32(at + 10, <uint32_t>row.last_sequence)
                    store_u64(at + 14, <uint64_t>row.last_offset)
                    store_u32(at + 22, <uint32_t>row.offset_delta)
                    store_u64(at + 26, <uint64_t>row.timestamp)
                    store_u32(at + 34, <uint32_t>row.coordinator_epoch)
                    store_u64(at + 38, <uint64_t>row.first_offset)
                    at += ENTRY_SIZE
                store_u32(begin + 2, update_crc32c(0, begin + CRC_END, <size_t>(size - CRC_END)))
                free(rows)
        if rows == NULL:
            raise MemoryError()
        return raw


@cython.final
cdef class ProducerTable:
    """ProducerTable(): no producers yet. Thread-safe: every call that changes it holds the GIL."""

    cdef Chunk** chunks
    cdef Py_ssize_t chunk_count
    cdef Py_ssize_t n
    cdef uint32_t* slots        # by a hash of the id: row + 1, 0 for none
    cdef Py_ssize_t mask

    def __cinit__(self):
        self.chunks, self.chunk_count, self.n = NULL, 0, 0
        self.slots = <uint32_t*>calloc(FEWEST_SLOTS, sizeof(uint32_t))
        if self.slots == NULL:
            raise MemoryError()
        self.mask = FEWEST_SLOTS - 1

    def __dealloc__(self):
        cdef Py_ssize_t slot
        for slot in range(self.chunk_count):
            release(self.chunks[slot])
        free(self.chunks)
        free(self.slots)

    def __len__(self):
        return self.n

    # --- rows ------------------------------------------------------------------------------------

    cdef inline Producer* row(self, Py_ssize_t row) noexcept nogil:
        return &self.chunks[row >> CHUNK_BITS].rows[row & (CHUNK_ROWS - 1)]

    cdef inline Py_ssize_t home(self, int64_t producer_id) noexcept nogil:
        return <Py_ssize_t>(mixed(producer_id) & <uint64_t>self.mask)

    cdef Py_ssize_t slot_of(self, int64_t producer_id) noexcept nogil:
        """Return the slot that points to its row, or the free one where it would."""
        cdef Py_ssize_t slot = self.home(producer_id)
        while self.slots[slot] and self.row(<Py_ssize_t>self.slots[slot] - 1).producer_id != producer_id:
            slot = (slot + 1) & self.mask
        return slot

    cdef Chunk* own(self, Py_ssize_t row) except NULL:
        """Return the chunk of a row, after making it this table's own."""
        cdef Chunk* shared = self.chunks[row >> CHUNK_BITS]
        cdef Chunk* copy
        if shared.holders == 1:
            return shared
        copy = <Chunk*>malloc(sizeof(Chunk))
        if copy == NULL:
            raise MemoryError()
        memcpy(copy, shared, sizeof(Chunk))
        copy.holders = 1
        self.chunks[row >> CHUNK_BITS] = copy
        release(shared)
        return copy

    cdef int make_room(self) except -1:
        """Make room for one more row, and its slot."""
        cdef Chunk** chunks
        cdef Chunk* chunk
        if self.n == INT32_MAX:
            raise OverflowError("a snapshot cannot have more producers than an int32 can count")
        if self.n == self.chunk_count << CHUNK_BITS:
            chunk = <Chunk*>malloc(sizeof(Chunk))
            if chunk == NULL:
                raise MemoryError()
            chunks = <Chunk**>realloc(self.chunks, <size_t>(self.chunk_count + 1) * sizeof(Chunk*))
            if chunks == NULL:
                free(chunk)
                raise MemoryError()
            memset(chunk, 0, sizeof(Chunk))
            chunk.holders, chunk.oldest = 1, INT64_MAX
            self.chunks = chunks
            self.chunks[self.chunk_count] = chunk
            self.chunk_count += 1
        if self.n >= (self.mask + 1) >> 1:
            self.spread(2 * (self.mask + 1))
        return 0

    cdef int spread(self, Py_ssize_t room) except -1:
        """Rebuild the slots; their number is a power of two."""
        cdef uint32_t* slots = <uint32_t*>calloc(<size_t>room, sizeof(uint32_t))
        cdef Py_ssize_t row, slot
        if slots == NULL:
            raise MemoryError()
        free(self.slots)
        self.slots, self.mask = slots, room - 1
        for row in range(self.n):
            slot = self.home(self.row(row).producer_id)
            while slots[slot]:
                slot = (slot + 1) & self.mask
            slots[slot] = <uint32_t>(row + 1)
        return 0

    cdef int store(self, const Producer* producer) except -1:
        cdef Py_ssize_t slot = self.slot_of(producer.producer_id)
        cdef Py_ssize_t row = <Py_ssize_t>self.slots[slot] - 1
        cdef Py_ssize_t mask = self.mask
        cdef Chunk* chunk
        if row < 0:
            self.make_room()
            if mask != self.mask:
                slot = self.slot_of(producer.producer_id)
            row = self.n
        chunk = self.own(row)
        chunk.rows[row & (CHUNK_ROWS - 1)] = producer[0]
        if producer.first_offset < 0 and producer.timestamp < chunk.oldest:
            chunk.oldest = producer.timestamp
        if row == self.n:
            self.slots[slot] = <uint32_t>(row + 1)
            self.n += 1
        return 0

    cdef int drop(self, int64_t producer_id) except -1:
        """Remove its row; the last row replaces it."""
        cdef Py_ssize_t slot = self.slot_of(producer_id)
        cdef Py_ssize_t row = <Py_ssize_t>self.slots[slot] - 1
        cdef Py_ssize_t last = self.n - 1
        cdef Py_ssize_t at, home, moved
        cdef Chunk* chunk
        if row < 0:
            return 0
        if row != last:
            chunk = self.own(row)
            moved = self.slot_of(self.row(last).producer_id)
            chunk.rows[row & (CHUNK_ROWS - 1)] = self.row(last)[0]
            chunk.oldest = min(chunk.oldest, self.chunks[last >> CHUNK_BITS].oldest)
            self.slots[moved] = <uint32_t>(row + 1)
        # A row that was pushed past this slot moves back into it, because a search ends at a free slot.
        at = slot
        while True:
            at = (at + 1) & self.mask
            if not self.slots[at]:
                break
            home = self.home(self.row(<Py_ssize_t>self.slots[at] - 1).producer_id)
            if ((at - home) & self.mask) >= ((at - slot) & self.mask):
                self.slots[slot] = self.slots[at]
                slot = at
        self.slots[slot] = 0
        self.n = last
        if last & (CHUNK_ROWS - 1) == 0:
            self.chunk_count -= 1
            release(self.chunks[self.chunk_count])
        return 0

    # --- calls -----------------------------------------------------------------------------------

    def load(self, const uint8_t[::1] body not None):
        """Add the complete entries of a snapshot; of two for the same producer, the later one counts.

        In the form that we write: without an offset there is no batch, and no transaction is open below offset 0.
        """
        cdef Py_ssize_t count = body.shape[0] // ENTRY_SIZE
        cdef Py_ssize_t entry
        cdef Py_ssize_t room = self.mask + 1
        cdef const uint8_t* at
        cdef Producer row
        while room >> 1 <= self.n + count:
            room *= 2
        if room > self.mask + 1:
            self.spread(room)
        for entry in range(count):
            at = &body[entry * ENTRY_SIZE]
            row.producer_id, row.producer_epoch = load_i64(at), load_i16(at + 8)
            row.last_sequence, row.last_offset = load_i32(at + 10), load_i64(at + 14)
            row.offset_delta, row.timestamp = load_i32(at + 22), load_i64(at + 26)
            row.coordinator_epoch, row.first_offset = load_i32(at + 34), load_i64(at + 38)
            if row.last_offset < 0:
                row.last_sequence, row.last_offset, row.offset_delta = -1, -1, 0
            row.first_offset = max(row.first_offset, -1)
            self.store(&row)

    def put(
        self, int64_t producer_id, int16_t producer_epoch, int32_t last_sequence, int64_t last_offset,
        int32_t offset_delta, int64_t timestamp, int32_t coordinator_epoch, int64_t first_offset,
    ):
        """Set the state of a producer."""
        cdef Producer row
        row.producer_id, row.producer_epoch = producer_id, producer_epoch
        row.last_sequence, row.last_offset, row.offset_delta = last_sequence, last_offset, offset_delta
        row.timestamp, row.coordinator_epoch, row.first_offset = timestamp, coordinator_epoch, first_offset
        self.store(&row)

    def get(self, int64_t producer_id):
        """Return the fields of its entry; None if the producer is unknown."""
        cdef Py_ssize_t row = <Py_ssize_t>self.slots[self.slot_of(producer_id)] - 1
        return None if row < 0 else fields(self.row(row))

    def open_transactions(self):
        """Return [(first offset, producer id)] of the producers with an open transaction, in no order."""
        cdef Py_ssize_t row = 0
        cdef Producer* producer
        found = []
        while row < self.n:         # asked each time: a new tuple may start a garbage collection, and that anything
            producer = self.row(row)
            row += 1
            if producer.first_offset >= 0:
                found.append((producer.first_offset, producer.producer_id))
        return found

    def expire(self, int64_t until, Py_ssize_t at_most):
        """Forget `at_most` producers without open transactions whose time is up to `until`; return their ids."""
        cdef Py_ssize_t chunk, row
        cdef int64_t oldest
        cdef Producer* producer
        cdef list gone = []
        for chunk in range(self.chunk_count):
            if self.chunks[chunk].oldest > until:
                continue
            oldest = INT64_MAX
            for row in range(chunk << CHUNK_BITS, min((chunk + 1) << CHUNK_BITS, self.n)):
                producer = self.row(row)
                if producer.first_offset >= 0:
                    continue
                if producer.timestamp <= until and len(gone) < at_most:
                    gone.append(producer.producer_id)
                else:
                    oldest = min(oldest, producer.timestamp)
            self.chunks[chunk].oldest = oldest      # (of no row, so that a shared chunk may say it)
            if len(gone) >= at_most:
                break
        for producer_id in gone:
            self.drop(producer_id)
        return gone

    def freeze(self):
        """Return the rows as of now; the table may change afterwards."""
        cdef FrozenProducers frozen = FrozenProducers()
        cdef Py_ssize_t slot
        frozen.chunks = <Chunk**>malloc(<size_t>max(self.chunk_count, 1) * sizeof(Chunk*))
        if frozen.chunks == NULL:
            raise MemoryError()
        for slot in range(self.chunk_count):
            frozen.chunks[slot] = self.chunks[slot]
            self.chunks[slot].holders += 1
        frozen.chunk_count, frozen.n = self.chunk_count, self.n
        return frozen
