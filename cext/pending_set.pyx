"""The positions that a tracker has promised to deliver: the one truth about a delayed message.

Whatever else holds a position (a run of rows, a segment of a snapshot) may hold it too long or twice; a
message is delivered when its bit could be taken out of here, once. `count` is the number of bits.

Bitmaps are of the class given (pyroaring.BitMap): kernels import no library. One thread at a time.
"""
cimport cython
from array import array

from cpython cimport array as c_array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

from seglog.errors import InvalidArgumentError

from .due_rows cimport MAX_ENTRY_ID, DueRow, DueRows, first_after


cdef c_array.array ENTRY_IDS = array("I")

# The portable serialisation of a roaring bitmap: https://github.com/RoaringBitmap/RoaringFormatSpec. Little-endian.
cdef enum:
    COOKIE_WITHOUT_RUNS = 12346
    MOST_IN_ARRAY = 4096        # values of a container; more make a bitset
    BITSET_BYTES = 8192


cdef inline void store_le16(uint8_t* p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>v
    p[1] = <uint8_t>(v >> 8)


cdef inline void store_le32(uint8_t* p, uint32_t v) noexcept nogil:
    store_le16(p, v)
    store_le16(p + 2, v >> 16)


cdef bytes serialise_plain(const uint32_t* numbers, Py_ssize_t n):
    """Rising numbers as a roaring bitmap of arrays and bitsets."""
    cdef Py_ssize_t containers = 0
    cdef Py_ssize_t size, begin, end, i
    cdef uint8_t* out
    cdef uint8_t* descriptor
    cdef uint8_t* offset
    cdef uint8_t* body
    cdef bytes serialised
    size = 8
    begin = 0
    while begin < n:
        end = end_of_container(numbers, begin, n)
        size += 8 + (2 * (end - begin) if end - begin <= MOST_IN_ARRAY else BITSET_BYTES)
        containers += 1
        begin = end
    serialised = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*>PyBytes_AS_STRING(serialised)
    store_le32(out, COOKIE_WITHOUT_RUNS)
    store_le32(out + 4, <uint32_t>containers)
    descriptor = out + 8
    offset = descriptor + 4 * containers
    body = offset + 4 * containers
    begin = 0
    while begin < n:
        end = end_of_container(numbers, begin, n)
        store_le16(descriptor, numbers[begin] >> 16)
        store_le16(descriptor + 2, <uint32_t>(end - begin - 1))
        store_le32(offset, <uint32_t>(body - out))
        descriptor += 4
        offset += 4
        if end - begin <= MOST_IN_ARRAY:
            for i in range(begin, end):
                store_le16(body, numbers[i] & 0xFFFF)
                body += 2
        else:
            memset(body, 0, BITSET_BYTES)
            for i in range(begin, end):
                body[(numbers[i] & 0xFFFF) >> 3] |= <uint8_t>(1 << (numbers[i] & 7))
            body += BITSET_BYTES
        begin = end
    return serialised


cdef inline Py_ssize_t end_of_container(const uint32_t* numbers, Py_ssize_t begin, Py_ssize_t n) noexcept nogil:
    """Where the numbers end that share their upper 16 bits with the one at `begin`; they rise."""
    cdef uint32_t key = numbers[begin] >> 16
    cdef Py_ssize_t half
    while n - begin > 1:
        half = begin + (n - begin) // 2
        if numbers[half] >> 16 == key:
            begin = half
        else:
            n = half
    return n


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

    cdef object plain(self, c_array.array numbers):
        """A bitmap of rising numbers without containers of runs.

        The library makes such containers of neighbours. Taking one bit out of a run means to move all the runs behind
        it, so that draining in random order takes ten times as long (apache/pulsar#26117). It has no call against
        that, but it reads containers as they are serialised.
        """
        return self.new_bitmap.deserialize(serialise_plain(numbers.data.as_uints, len(numbers)))

    cdef bint put_many(self, int64_t ledger_id, const int64_t* entry_ids, int64_t n) except -1:
        cdef c_array.array numbers = c_array.clone(ENTRY_IDS, n, False)
        cdef int64_t i
        for i in range(n):
            numbers.data.as_uints[i] = <uint32_t>entry_ids[i]
        new = self.plain(numbers)
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

    def merge(self, int64_t ledger_id, bitmap):
        """Add a ledger's bitmap of entry ids."""
        mine = self.bitmaps.get(ledger_id)
        bitmap = self.plain(bitmap.to_array())
        if mine is None:
            self.bitmaps[ledger_id] = mine = bitmap
            self.last_ledger_id = -1
        else:
            self.count -= len(mine)
            mine |= bitmap
        self.count += len(mine)

    def hand_over(self, int64_t ledger_id, bitmap, PendingSet other not None):
        """Move those of a ledger's `bitmap` that are pending here to another set."""
        mine = self.bitmaps.get(ledger_id)
        if mine is None:
            return
        moving = mine & bitmap
        self.count -= len(moving)
        mine -= moving
        if not mine:
            self.drop(ledger_id)
        other.merge(ledger_id, moving)

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

    def compact(self):
        """Give back what removals left: bitmaps without a bit, and containers larger than their content."""
        for ledger_id, bitmap in list(self.bitmaps.items()):
            if bitmap:
                bitmap.shrink_to_fit()
            else:
                self.drop(ledger_id)
