"""The positions that a tracker has promised to deliver: the one truth about a delayed message.

Whatever else holds a position (a run of rows, a segment of a snapshot) may hold it too long or twice; a
message is delivered when its bit could be taken out of here, once. `count` is the number of bits.

Bitmaps are of the class given (pyroaring.BitMap): kernels import no library. One thread at a time.
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memset

from seglog.errors import InvalidArgumentError

from .due_rows cimport MAX_ENTRY_ID, DueRow, DueRows, first_after
from .plain_bitmap cimport Numbers, add_number, forget_numbers, plain_bitmap
from .position_union cimport PositionUnion
from .status cimport OK


@cython.final
cdef class PendingSet:
    """A set of (ledger_id, entry_id), one bitmap a ledger."""

    def __cinit__(self, new_bitmap):
        self.bitmaps = {}
        self.new_bitmap = new_bitmap
        self.last_ledger_id = -1

    def __len__(self):
        return self.count

    cdef inline object bitmap_of(self, int64_t ledger_id):
        if ledger_id != self.last_ledger_id:
            self.last_bitmap = self.bitmaps.get(ledger_id)
            self.last_ledger_id = ledger_id
        return self.last_bitmap

    cdef bint has(self, int64_t ledger_id, int64_t entry_id) except -1:
        bitmap = self.bitmap_of(ledger_id)
        return bitmap is not None and 0 <= entry_id <= MAX_ENTRY_ID and entry_id in bitmap

    cdef bint put(self, int64_t ledger_id, int64_t entry_id) except -1:
        bitmap = self.bitmap_of(ledger_id)
        if bitmap is None:
            if ledger_id < 0 or not 0 <= entry_id <= MAX_ENTRY_ID:
                raise InvalidArgumentError(f"no position: ledger {ledger_id}, entry {entry_id}")
            bitmap = self.bitmaps[ledger_id] = self.last_bitmap = self.new_bitmap()
        # One call instead of asking first: the answer is nearly always yes.
        try:
            bitmap.add_checked(entry_id)
        except KeyError:
            return False
        self.count += 1
        return True

    cdef bint take(self, int64_t ledger_id, int64_t entry_id) except -1:
        bitmap = self.bitmap_of(ledger_id)
        if bitmap is None:
            return False
        try:
            bitmap.remove(entry_id)
        except KeyError:
            return False
        self.count -= 1
        return True

    cdef bint put_many(self, int64_t ledger_id, const int64_t* entry_ids, int64_t n) except -1:
        cdef Numbers numbers
        cdef int64_t i
        cdef int rc = OK
        memset(&numbers, 0, sizeof(Numbers))
        try:
            with nogil:
                for i in range(n):
                    rc = add_number(&numbers, <uint32_t>entry_ids[i])
                    if rc != OK:
                        break
            if rc != OK:
                raise MemoryError
            new = self.new_bitmap.deserialize(plain_bitmap(&numbers))
        finally:
            forget_numbers(&numbers)
        bitmap = self.bitmap_of(ledger_id)
        if bitmap is None:
            self.bitmaps[ledger_id] = self.last_bitmap = new
        elif bitmap.isdisjoint(new):
            bitmap |= new
        else:
            return False
        self.count += n
        return True

    def contains(self, int64_t ledger_id, int64_t entry_id):
        """Whether the position is pending."""
        return self.has(ledger_id, entry_id)

    def add(self, int64_t ledger_id, int64_t entry_id):
        """Whether the position was not pending yet; it is now. Raises InvalidArgumentError for no position."""
        if ledger_id < 0 or not 0 <= entry_id <= MAX_ENTRY_ID:
            raise InvalidArgumentError(f"no position: ledger {ledger_id}, entry {entry_id}")
        return self.put(ledger_id, entry_id)

    def remove(self, int64_t ledger_id, int64_t entry_id):
        """Whether the position was pending; it is no longer."""
        return 0 <= entry_id <= MAX_ENTRY_ID and self.take(ledger_id, entry_id)

    def keep_pending(self, DueRows rows not None, dict moved not None):
        """Let go of those rows whose position is not pending here, or for which `moved` holds another time."""
        cdef int64_t i, kept = 0
        cdef DueRow row
        for i in range(rows.count):
            row = rows.rows[i]
            if self.has(row.ledger_id, row.entry_id) and (
                not moved or moved.get((row.ledger_id, row.entry_id), row.deliver_at) == row.deliver_at
            ):
                rows.rows[kept] = row
                kept += 1
        rows.count = kept

    def remove_due(self, DueRows rows not None, int64_t cutoff):
        """Remove the positions of those rows that are due at `cutoff`, rows and all."""
        cdef int64_t due = first_after(rows.rows, rows.count, cutoff)
        cdef int64_t i
        for i in range(due):
            self.take(rows.rows[i].ledger_id, rows.rows[i].entry_id)
        rows.keep_after(cutoff)

    def ledger_ids(self):
        """Ledgers that have a bitmap, sorted; the bitmap may have become empty."""
        return sorted(self.bitmaps)

    def bitmap(self, int64_t ledger_id):
        """The bitmap of a ledger, or None. Borrowed: it is not for changing."""
        return self.bitmaps.get(ledger_id)

    def adopt(self, int64_t ledger_id, bitmap):
        """Add a ledger's bitmap of entry ids, which is this set's from now on.

        It must be plain, of arrays and bitsets: taking one bit out of a run means to move all the runs behind it, so
        that draining in random order takes ten times as long (apache/pulsar#26117). The library makes runs of what it
        is constructed of; it makes none where single ids are added, and of sets without runs it makes sets without.
        """
        mine = self.bitmaps.get(ledger_id)
        if mine is None:
            self.bitmaps[ledger_id] = mine = bitmap
            self.last_ledger_id = -1
        else:
            self.count -= len(mine)
            mine |= bitmap
        self.count += len(mine)

    def is_within(self, PositionUnion positions not None):
        """Whether every position here is one of `positions`."""
        cdef dict others = {ledger: serialised for ledger, serialised in positions.bitmaps()}
        for ledger_id, mine in self.bitmaps.items():
            if mine and (ledger_id not in others or not mine <= self.new_bitmap.deserialize(others[ledger_id])):
                return False
        return True

    def adopt_all(self, PositionUnion positions not None):
        """Add all of `positions`."""
        for ledger_id, serialised in positions.bitmaps():
            self.adopt(ledger_id, self.new_bitmap.deserialize(serialised))

    def hand_over(self, PendingSet other not None, int64_t ledger_id, bitmap=None):
        """Move those of a ledger's `bitmap` that are pending here to another set; None: all of the ledger."""
        mine = self.bitmaps.get(ledger_id)
        if mine is None:
            return
        if bitmap is None:
            self.drop(ledger_id)
            other.adopt(ledger_id, mine)
            return
        moving = mine & bitmap
        self.count -= len(moving)
        mine -= moving
        if not mine:
            self.drop(ledger_id)
        other.adopt(ledger_id, moving)

    def drop(self, int64_t ledger_id):
        """Forget a ledger. How many were pending in it."""
        cdef int64_t dropped
        bitmap = self.bitmaps.pop(ledger_id, None)
        self.last_ledger_id = -1
        self.last_bitmap = None
        dropped = 0 if bitmap is None else len(bitmap)
        self.count -= dropped
        return dropped

    def clear(self):
        """Forget everything."""
        self.bitmaps.clear()
        self.count = 0
        self.last_ledger_id = -1
        self.last_bitmap = None
