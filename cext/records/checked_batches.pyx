"""Remembers, for the batches of a map, which checksums are correct, and where records begin.

A checksum is checked only once as long as a segment stays mapped, because for a warm 16 KiB batch this costs as much as
all the rest of finding a record. The same pass, while the bytes are cached, stores for each KiB of the batch which
record begins there: then a later read of a record need not load half the batch from memory. This takes 1.6 % of the
bytes checked, in pages that stay untouched until then.
"""
cimport cython
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint16_t
from libc.stddef cimport size_t

from .batch_header cimport CODEC_MASK, V2_HEADER_SIZE, BatchHeader, crc_matches
from .span cimport Span, span_varint, span_varlong
from .status cimport OK

from seglog.errors import InvalidArgumentError

cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/mman.h>
    #ifndef MAP_NORESERVE
    #define MAP_NORESERVE 0
    #endif
    #define SEG_MAPPED_ZEROS_MIN (128 << 10)
    /* Zeroed memory whose pages are allocated on first write. calloc provides that only for memory fresh from the
       system: it clears memory that it reuses, which writes to all of it. */
    static void *seg_zeros(size_t size)
    {
        void *p;
        if (size < SEG_MAPPED_ZEROS_MIN)
            return calloc(size, 1);
        p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
        return p == MAP_FAILED ? NULL : p;
    }
    static void seg_free_zeros(void *p, size_t size)
    {
        if (size < SEG_MAPPED_ZEROS_MIN)
            free(p);
        else if (p != NULL)
            munmap(p, size);
    }
    #define seg_note_bits(byte, bits) __atomic_fetch_or(byte, bits, __ATOMIC_RELEASE)
    #define seg_read_bits(byte) __atomic_load_n(byte, __ATOMIC_ACQUIRE)
    """
    void* seg_zeros(size_t size) noexcept nogil
    void seg_free_zeros(void* p, size_t size) noexcept nogil
    void seg_note_bits(uint8_t* byte, uint8_t bits) noexcept nogil
    uint8_t seg_read_bits(const uint8_t* byte) noexcept nogil
    void prefetch "__builtin_prefetch" (const void* p) noexcept nogil


cdef enum:
    GRANULE_BYTES = 16          # two batches never begin closer to each other; one bit for each granule
    BLOCK_BYTES = 1024          # one mark for each block
    SLOT_MAX = 0xFFFF
    CACHE_LINE_BYTES = 64
    LINE_MARKS = CACHE_LINE_BYTES // sizeof(RecordMark)


cdef inline size_t bits_size(int64_t size_bytes) noexcept nogil:
    return <size_t>(size_bytes // (8 * GRANULE_BYTES) + 1)


cdef inline size_t marks_size(int64_t size_bytes) noexcept nogil:
    return <size_t>(size_bytes // BLOCK_BYTES + 2 + LINE_MARKS) * sizeof(RecordMark)


@cython.final
cdef class CheckedBatches:
    """CheckedBatches(size_bytes): for a map of this size. Thread-safe."""

    def __cinit__(self, int64_t size_bytes):
        if size_bytes < 0:
            raise InvalidArgumentError(f"a map of {size_bytes} bytes")
        self.size = size_bytes
        self.bits = <uint8_t*>seg_zeros(bits_size(size_bytes))
        self.marks = <RecordMark*>seg_zeros(marks_size(size_bytes))
        if self.bits == NULL or self.marks == NULL:
            raise MemoryError

    def __dealloc__(self):
        seg_free_zeros(self.bits, bits_size(self.size))
        seg_free_zeros(self.marks, marks_size(self.size))

    cdef bint holds(self, int64_t position) noexcept nogil:
        return seg_read_bits(&self.bits[position // (8 * GRANULE_BYTES)]) >> (position // GRANULE_BYTES & 7) & 1

    cdef bint check(self, const uint8_t* bytes, const BatchHeader* row) noexcept nogil:
        if not crc_matches(bytes, row):
            return False
        if can_be_marked(row):
            mark(self.marks, bytes, row)
        # After the marks: a thread that sees the bit also sees the marks.
        seg_note_bits(
            &self.bits[row.position // (8 * GRANULE_BYTES)], <uint8_t>(1 << (row.position // GRANULE_BYTES & 7)))
        return True

    cdef void expect(self, const uint8_t* bytes, int64_t position) noexcept nogil:
        prefetch(bytes + position)
        prefetch(bytes + position + V2_HEADER_SIZE - 1)
        prefetch(&self.bits[position // (8 * GRANULE_BYTES)])
        prefetch(&self.marks[position // BLOCK_BYTES + 1])
        prefetch(&self.marks[position // BLOCK_BYTES + 1 + LINE_MARKS])

    cdef int64_t approach(
        self, const uint8_t* bytes, const BatchHeader* row, int64_t slot, int64_t delta, Span* records
    ) noexcept nogil:
        cdef int64_t low, high, middle, passed
        cdef const uint8_t* ahead
        cdef const RecordMark* m
        if not can_be_marked(row):
            return 0
        low = first_block(row) - 1          # the answer is `low`, or the start of the batch if it stays
        high = end_block(row)
        while high - low > 1:
            middle = (low + high) >> 1
            m = &self.marks[middle]
            if m.slot != 0 and (m.slot <= slot if slot >= 0 else m.largest_delta < min(delta, <int64_t>INT32_MAX)):
                low = middle
            else:
                high = middle
        if low < first_block(row):
            return 0
        passed = self.marks[low].slot
        records.p = bytes + low * BLOCK_BYTES + self.marks[low].distance
        # Each length gives the next position, so the processor cannot prefetch by itself.
        ahead = records.p
        while records.end - ahead > CACHE_LINE_BYTES and ahead - records.p < BLOCK_BYTES:
            ahead += CACHE_LINE_BYTES
            prefetch(ahead)
        return passed


cdef inline bint can_be_marked(const BatchHeader* row) noexcept nogil:
    """Whether it is uncompressed v2, without gaps, and long: then a record's slot follows from its offset."""
    return (
        row.magic == 2 and row.attributes & CODEC_MASK == 0 and row.size_bytes >= 2 * BLOCK_BYTES
        and row.count == row.last_offset - row.base_offset + 1 and row.count <= SLOT_MAX
    )


# The blocks that lie entirely in the records of the batch: no other batch has marks there.
cdef inline int64_t first_block(const BatchHeader* row) noexcept nogil:
    return (row.position + V2_HEADER_SIZE) // BLOCK_BYTES + 1


cdef inline int64_t end_block(const BatchHeader* row) noexcept nogil:
    return (row.position + row.size_bytes) // BLOCK_BYTES


cdef void mark(RecordMark* marks, const uint8_t* bytes, const BatchHeader* row) noexcept nogil:
    """Mark each block of the batch; if a record is malformed, only the blocks before it."""
    cdef Span s, record
    cdef int64_t block = first_block(row)
    cdef int64_t end = end_block(row)
    cdef int64_t distance, delta
    cdef int64_t largest = INT32_MIN
    cdef int64_t slot = 0
    cdef int32_t length = 0
    s.p = bytes + row.position + V2_HEADER_SIZE
    s.end = bytes + row.position + row.size_bytes
    while slot < row.count and block < end:
        distance = s.p - bytes - block * BLOCK_BYTES
        while distance >= 0 and block < end:
            if distance > SLOT_MAX:
                return
            marks[block].slot = <uint16_t>slot
            marks[block].distance = <uint16_t>distance
            marks[block].largest_delta = <int32_t>largest
            block += 1
            distance -= BLOCK_BYTES
        record = s
        if span_varint(&record, &length) != OK or length < 1 or length > record.end - record.p:
            return
        s.p = record.p + length
        record.end = s.p
        record.p += 1
        if span_varlong(&record, &delta) != OK:
            return
        largest = max(largest, min(max(delta, <int64_t>INT32_MIN), <int64_t>INT32_MAX))
        slot += 1
