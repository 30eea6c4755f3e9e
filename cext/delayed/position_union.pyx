"""Gathers positions from many bitmaps, or from rows, into one bitmap per ledger.

A snapshot describes each segment by one bitmap per ledger, hundreds for a bucket, but a tracker needs one per ledger
for the whole bucket. Creating a library bitmap of each and uniting them takes ten times as long.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from .due_rows cimport DueRows
from .one_at_a_time cimport begin_alone, begin_reading, end_alone, end_reading
from .plain_bitmap cimport add_bitmap, add_number, forget_numbers, plain_bitmap
from .status cimport BAD_FIELD, NO_MEMORY, OK

cdef enum:
    FIRST_SLOTS = 16


cdef inline int32_t home(int64_t ledger_id, int32_t mask) noexcept nogil:
    # Fibonacci hashing spreads consecutive ids.
    return <int32_t>((<uint64_t>ledger_id * <uint64_t>0x9E3779B97F4A7C15) >> 33) & mask


@cython.final
cdef class PositionUnion:
    """A set of (ledger_id, entry_id) that only grows. One thread at a time."""

    def __cinit__(self):
        self.slots = <int32_t*>malloc(FIRST_SLOTS * sizeof(int32_t))
        if self.slots == NULL:
            raise MemoryError
        memset(self.slots, 0xFF, FIRST_SLOTS * sizeof(int32_t))
        self.mask = FIRST_SLOTS - 1

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.n):
            forget_numbers(&self.ledgers[i].entries)
        free(self.ledgers)
        free(self.slots)

    cdef LedgerNumbers* ledger(self, int64_t ledger_id) noexcept nogil:
        """A ledger's numbers, created if missing. NULL: no memory."""
        cdef LedgerNumbers* grown
        cdef int32_t slot
        # Consecutive segments have bitmaps for the same ledgers, often in the same order.
        if self.last < self.n and self.ledgers[self.last].ledger_id == ledger_id:
            return &self.ledgers[self.last]
        slot = home(ledger_id, self.mask)
        while self.slots[slot] >= 0:
            if self.ledgers[self.slots[slot]].ledger_id == ledger_id:
                self.last = self.slots[slot]
                return &self.ledgers[self.last]
            slot = (slot + 1) & self.mask
        if self.n == self.room:
            grown = <LedgerNumbers*>realloc(self.ledgers, (2 * self.room + 4) * sizeof(LedgerNumbers))
            if grown == NULL:
                return NULL
            self.ledgers = grown
            self.room = 2 * self.room + 4
        if 2 * self.n > self.mask:
            if not self.widen():
                return NULL
            slot = home(ledger_id, self.mask)
            while self.slots[slot] >= 0:
                slot = (slot + 1) & self.mask
        self.slots[slot] = self.last = self.n
        memset(&self.ledgers[self.n], 0, sizeof(LedgerNumbers))
        self.ledgers[self.n].ledger_id = ledger_id
        self.ledgers[self.n].group = -1
        self.n += 1
        return &self.ledgers[self.last]

    cdef bint widen(self) noexcept nogil:
        """Double the number of slots; returns whether there was memory."""
        cdef int32_t mask = 2 * self.mask + 1
        cdef int32_t* slots = <int32_t*>malloc((<size_t>mask + 1) * sizeof(int32_t))
        cdef int32_t i, slot
        if slots == NULL:
            return False
        memset(slots, 0xFF, (<size_t>mask + 1) * sizeof(int32_t))
        for i in range(self.n):
            slot = home(self.ledgers[i].ledger_id, mask)
            while slots[slot] >= 0:
                slot = (slot + 1) & mask
            slots[slot] = i
        free(self.slots)
        self.slots = slots
        self.mask = mask
        return True

    cdef int add(self, int64_t group, int64_t ledger_id, const uint8_t* bytes, Py_ssize_t size) noexcept nogil:
        cdef LedgerNumbers* found = self.ledger(ledger_id)
        if found == NULL:
            return NO_MEMORY
        if found.group == group:
            return BAD_FIELD
        found.group = group
        return add_bitmap(&found.entries, bytes, size)

    def add_rows(self, DueRows rows not None):
        """Add the positions of the rows."""
        begin_reading(&rows.use, rows)
        try:
            self.add_all(rows)
        finally:
            end_reading(&rows.use)

    cdef int add_all(self, DueRows rows) except -1:
        cdef LedgerNumbers* found
        cdef int64_t i
        cdef int rc = OK
        begin_alone(&self.use, self)
        with nogil:
            for i in range(rows.count):
                found = self.ledger(rows.rows[i].ledger_id)
                rc = NO_MEMORY if found == NULL else add_number(&found.entries, <uint32_t>rows.rows[i].entry_id)
                if rc != OK:
                    break
        end_alone(&self.use)
        if rc != OK:
            raise MemoryError
        return 0

    def bitmaps(self):
        """[(ledger_id, serialised roaring bitmap of its entry ids), …], ledgers in order of arrival. The bitmaps are
        plain: arrays and bitsets, no runs."""
        cdef int32_t i
        begin_alone(&self.use, self)
        try:
            return [(self.ledgers[i].ledger_id, plain_bitmap(&self.ledgers[i].entries)) for i in range(self.n)]
        finally:
            end_alone(&self.use)
