"""The positions that a tracker still has to deliver: the only authority on delayed messages.

Other structures (a run of rows, a segment of a snapshot) may hold a position for too long, or twice. A message is
delivered only by the caller that clears its bit here, which succeeds once. `count` is the number of bits.

Bitmaps are of the given class (pyroaring.BitMap), because kernels import no library. Not thread-safe.
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memset

from seglog.errors import InvalidArgumentError

from .due_rows cimport MAX_ENTRY_ID, DueRow, DueRows, first_after
from .one_at_a_time cimport begin_alone, end_alone
from .plain_bitmap cimport Numbers, add_number, forget_numbers, plain_bitmap
from .position_union cimport PositionUnion
from .status cimport OK


@cython.final
cdef class PendingSet:
    """A set of (ledger_id, entry_id), with one bitmap per ledger."""

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
        # One call instead of a test first, because the position is nearly always pending.
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
        """Add a position; returns whether it was new. Raises InvalidArgumentError if it cannot be a position."""
        if ledger_id < 0 or not 0 <= entry_id <= MAX_ENTRY_ID:
            raise InvalidArgumentError(f"no position: ledger {ledger_id}, entry {entry_id}")
        return self.put(ledger_id, entry_id)

    def remove(self, int64_t ledger_id, int64_t entry_id):
        """Remove a position; returns whether it was pending."""
        return 0 <= entry_id <= MAX_ENTRY_ID and self.take(ledger_id, entry_id)

    def keep_pending(self, DueRows rows not None, dict moved not None):
        """Drop those rows whose position is not pending here, or for which `moved` holds another time."""
        cdef int64_t i, kept = 0
        cdef DueRow row
        begin_alone(&rows.use, rows)
        try:
            for i in range(rows.count):
                row = rows.rows[i]
                if self.has(row.ledger_id, row.entry_id) and (
                    not moved or moved.get((row.ledger_id, row.entry_id), row.deliver_at) == row.deliver_at
                ):
                    rows.rows[kept] = row
                    kept += 1
            rows.count = kept
        finally:
            end_alone(&rows.use)

    def remove_due(self, DueRows rows not None, int64_t cutoff):
        """Remove the rows that are due at `cutoff`, and their positions here."""
        cdef int64_t due, i
        begin_alone(&rows.use, rows)
        try:
            due = first_after(rows.rows, rows.count, cutoff)
            for i in range(due):
                self.take(rows.rows[i].ledger_id, rows.rows[i].entry_id)
        finally:
            end_alone(&rows.use)
        rows.keep_after(cutoff)

    def ledger_ids(self):
        """The ledgers that have a bitmap, sorted; a bitmap may have become empty."""
        return sorted(self.bitmaps)

    def bitmap(self, int64_t ledger_id):
        """The bitmap of a ledger, or None. Borrowed: do not change it."""
        return self.bitmaps.get(ledger_id)

    def adopt(self, int64_t ledger_id, bitmap):
        """Add a ledger's bitmap of entry ids. The set owns the bitmap from then on.

        It must be plain, that is consist of arrays and bitsets: removing one bit from a run moves all runs after it, so
        draining in random order takes ten times as long (apache/pulsar#26117). The library creates runs when it
        constructs a bitmap from a sequence; adding single ids, or combining bitmaps without runs, creates none.
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
        """Whether `positions` contains every position here."""
        cdef dict others = {ledger: serialised for ledger, serialised in positions.bitmaps()}
        for ledger_id, mine in self.bitmaps.items():
            if mine and (ledger_id not in others or not mine <= self.new_bitmap.deserialize(others[ledger_id])):
                return False
        return True

    def adopt_all(self, PositionUnion positions not None):
        """Add all `positions`."""
        for ledger_id, serialised in positions.bitmaps():
            self.adopt(ledger_id, self.new_bitmap.deserialize(serialised))

    def hand_over(self, PendingSet other not None, int64_t ledger_id, bitmap=None):
        """Move the ids in `bitmap`, or all if it is None, that are pending here for a ledger to another set."""
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
        """Remove a ledger; returns how many of its positions were pending."""
        cdef int64_t dropped
        bitmap = self.bitmaps.pop(ledger_id, None)
        self.last_ledger_id = -1
        self.last_bitmap = None
        dropped = 0 if bitmap is None else len(bitmap)
        self.count -= dropped
        return dropped

    def clear(self):
        """Remove everything."""
        self.bitmaps.clear()
        self.count = 0
        self.last_ledger_id = -1
        self.last_bitmap = None
