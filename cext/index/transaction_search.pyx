"""The aborted transactions of a .txnindex, held as numbers and searched for those that concern a range of offsets.

A file of 100 000 entries is parsed in about a millisecond, and what is appended to it is parsed alone (`extend`). The
layout: docs/formats/transaction_index.md. What an entry may not be is refused by the caller, who has the words:
`extend` stops before it.
"""
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

from .span cimport load_i16, load_i64

cdef enum:
    ENTRY_SIZE = 34
    VERSION = 0


cdef struct Aborted:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset
    int64_t last_stable_offset
    int64_t first_from      # the smallest first offset from this entry on


cdef class TransactionSearch:
    """TransactionSearch(): no entries yet. Threads may share it: every call holds the GIL."""

    cdef Aborted* rows
    cdef Py_ssize_t n
    cdef Py_ssize_t room

    def __dealloc__(self):
        PyMem_Free(self.rows)

    def __len__(self):
        return self.n

    def extend(self, const uint8_t[::1] raw not None):
        """Take the entries of `raw`, whole ones; how many were. The one after those is of a newer version, ends before
        it began, or its marker does not rise (TransactionIndex.sanityCheck).
        """
        cdef Py_ssize_t count = raw.shape[0] // ENTRY_SIZE
        cdef Py_ssize_t taken = 0
        cdef Py_ssize_t slot
        cdef const uint8_t* at
        cdef Aborted row
        cdef Aborted* rows
        cdef int64_t marker = self.rows[self.n - 1].last_offset if self.n else -1
        if count == 0:
            return 0
        if count > self.room - self.n:
            room = max(self.n + count, 2 * self.room)
            rows = <Aborted*>PyMem_Realloc(self.rows, <size_t>room * sizeof(Aborted))
            if rows == NULL:
                raise MemoryError()
            self.rows, self.room = rows, room
        at = &raw[0]
        while taken < count:
            if load_i16(at) > VERSION:
                break
            row.producer_id, row.first_offset = load_i64(at + 2), load_i64(at + 10)
            row.last_offset, row.last_stable_offset = load_i64(at + 18), load_i64(at + 26)
            if not 0 <= row.first_offset <= row.last_offset or row.last_offset <= marker:
                break
            marker, row.first_from = row.last_offset, row.first_offset
            self.rows[self.n + taken] = row
            at += ENTRY_SIZE
            taken += 1
        # From the end: of those before, only the ones that began later are concerned.
        slot = self.n + taken - 2
        while slot >= 0 and (slot >= self.n - 1 or self.rows[slot].first_from > self.rows[slot + 1].first_from):
            self.rows[slot].first_from = min(self.rows[slot].first_offset, self.rows[slot + 1].first_from)
            slot -= 1
        self.n += taken
        return taken

    def entry(self, Py_ssize_t slot):
        """(producer id, first offset, offset of the marker, last stable offset)"""
        cdef Aborted* row
        if not 0 <= slot < self.n:
            raise IndexError(f"entry {slot} of {self.n}")
        row = &self.rows[slot]
        return row.producer_id, row.first_offset, row.last_offset, row.last_stable_offset

    def slot_of(self, int64_t offset):
        """The first entry whose marker stands at or behind `offset`."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.n
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) >> 1
            if self.rows[middle].last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def between(self, int64_t from_offset, int64_t to_offset):
        """The slots of those that reach into [from_offset, to_offset), and whether later segments can add none."""
        cdef Py_ssize_t slot = self.slot_of(from_offset)
        cdef bint decided = False
        slots = []
        while slot < self.n and not decided and self.rows[slot].first_from < to_offset:
            if self.rows[slot].first_offset < to_offset:
                slots.append(slot)
            decided = self.rows[slot].last_stable_offset >= to_offset
            slot += 1
        return slots, decided or self._is_decided(slot, to_offset)

    def put_between(self, int64_t from_offset, int64_t to_offset, fields not None):
        """Append producer id, first offset and marker of those of `between` to the array of int64 `fields`."""
        cdef Py_ssize_t slot = self.slot_of(from_offset)
        cdef Aborted row
        while slot < self.n and self.rows[slot].first_from < to_offset:
            row = self.rows[slot]       # a copy: appending may let another thread extend
            if row.first_offset < to_offset:
                fields.append(row.producer_id)
                fields.append(row.first_offset)
                fields.append(row.last_offset)
            if row.last_stable_offset >= to_offset:
                return True
            slot += 1
        return self._is_decided(slot, to_offset)

    cdef bint _is_decided(self, Py_ssize_t slot, int64_t to_offset):
        """Whether an entry from `slot` on says that all before `to_offset` was decided when it was written.

        Last stable offsets rise with the markers, so that the last entry knows best.
        """
        return slot < self.n and self.rows[self.n - 1].last_stable_offset >= to_offset
