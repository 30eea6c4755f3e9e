"""The aborted transactions of a .txnindex in memory, searched for those that overlap a range of offsets.

A file of 100 000 entries is parsed in about a millisecond, and appended entries are parsed separately (`extend`). For
the layout, see docs/formats/transaction_index.md. The caller refuses invalid entries, with its messages: `extend` stops
before them.
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
    """TransactionSearch(): no entries yet. Thread-safe: every call holds the GIL."""

    cdef Aborted* rows
    cdef Py_ssize_t n
    cdef Py_ssize_t room

    def __dealloc__(self):
        PyMem_Free(self.rows)

    def __len__(self):
        return self.n

    def extend(self, const uint8_t[::1] raw not None):
        """Add the complete entries of `raw`; return how many. The entry after those has another version, ends before
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
            if load_i16(at) != VERSION:
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
        """Return (producer id, first offset, offset of the marker, last stable offset) of an entry."""
        cdef Aborted* row
        if not 0 <= slot < self.n:
            raise IndexError(f"entry {slot} is out of range: there are {self.n}")
        row = &self.rows[slot]
        return row.producer_id, row.first_offset, row.last_offset, row.last_stable_offset

    def slot_of(self, int64_t offset):
        """Return the first entry whose marker is at or after `offset`."""
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
        """Return the slots that overlap [from_offset, to_offset), and whether later segments cannot add any."""
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
        """Append producer id, first offset and marker of the entries of `between` to the int64 array `fields`."""
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
        """Whether an entry from `slot` on says that everything before `to_offset` was decided when it was written.

        Last stable offsets rise with the markers, so the last entry decides.
        """
        return slot < self.n and self.rows[self.n - 1].last_stable_offset >= to_offset
