"""The metadata of a snapshot of delayed messages: Pulsar's SnapshotMetadata, docs/formats/delayed_index_snapshot.md.

    metadata := (0x0a size segment)* (0xc0 0x3e entries)?
    segment  := (0x0a size bitmap)* 0x10 max_schedule_timestamp 0x18 min_schedule_timestamp
    bitmap   := 0x08 ledger_id 0x12 size serialised roaring bitmap

Fields are accepted in any order and unknown ones are skipped, as in protobuf.
"""
cimport cython
from array import array

from cpython cimport array as c_array
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc

from seglog.errors import CorruptDelayedIndexError

from .one_at_a_time cimport Use, begin_alone, end_alone
from .position_union cimport PositionUnion
from .protobuf_span cimport skip_field, span_bytes, span_tag, span_uvarint
from .span cimport Span
from .status cimport BAD_FIELD, NO_MEMORY, NOT_SORTED, OFFSET_RANGE, OK
from .window cimport Window

from .status import words

cdef enum:
    BYTES_FIELD = 0x0A
    LEDGER_FIELD = 0x08
    BITMAP_FIELD = 0x12
    MAX_TIME_FIELD = 0x10
    MIN_TIME_FIELD = 0x18
    ENTRIES_FIELD = 1000 << 3       # ours; Pulsar skips it

cdef c_array.array TIMES = array("q")


cdef struct SegmentSpan:
    int64_t min_at
    int64_t max_at
    Span fields                     # all bytes of its fields


cdef int parse_times(const Span* segment, SegmentSpan* out) noexcept nogil:
    """The two times of a segment; skips its bitmaps."""
    cdef Span s = segment[0]
    cdef Span ignored
    cdef uint64_t tag, value = 0
    cdef int seen = 0
    cdef int rc
    out.fields = segment[0]
    while s.p != s.end:
        rc = span_tag(&s, &tag)
        if rc == OK and (tag == MAX_TIME_FIELD or tag == MIN_TIME_FIELD):
            rc = span_uvarint(&s, &value)
            if rc == OK and value > INT64_MAX:
                rc = OFFSET_RANGE
            if tag == MAX_TIME_FIELD:
                out.max_at = <int64_t>value
                seen |= 1
            else:
                out.min_at = <int64_t>value
                seen |= 2
        elif rc == OK and tag == BYTES_FIELD:
            rc = span_bytes(&s, &ignored)
        elif rc == OK:
            rc = skip_field(&s, tag)
        if rc != OK:
            return rc
    return OK if seen == 3 else BAD_FIELD


cdef int next_bitmap(Span* fields, bint* found, int64_t* ledger_id, Span* bitmap) noexcept nogil:
    """The next bitmap of a segment that `parse_times` has checked; a missing ledger is 0, a missing bitmap empty."""
    cdef Span entry
    cdef uint64_t tag, value = 0
    cdef int rc
    found[0] = False
    while fields.p != fields.end:
        rc = span_tag(fields, &tag)
        if rc == OK and tag != BYTES_FIELD:
            rc = skip_field(fields, tag)
        elif rc == OK:
            rc = span_bytes(fields, &entry)
            found[0] = True
            break
        if rc != OK:
            return rc
    if not found[0]:
        return OK
    ledger_id[0] = 0
    bitmap.p = bitmap.end = entry.p
    while entry.p != entry.end:
        rc = span_tag(&entry, &tag)
        if rc == OK and tag == LEDGER_FIELD:
            rc = span_uvarint(&entry, &value)
            if rc == OK and value > INT64_MAX:
                rc = OFFSET_RANGE
            ledger_id[0] = <int64_t>value
        elif rc == OK and tag == BITMAP_FIELD:
            rc = span_bytes(&entry, bitmap)
        elif rc == OK:
            rc = skip_field(&entry, tag)
        if rc != OK:
            return rc
    return OK


@cython.final
cdef class MetadataReader:
    """Reads the metadata entries of one snapshot, one after another. Use the same method for all of them.

    times: array of int64, two numbers for each segment read so far: the times of its first and its last message.
    entries: how many entries the metadata takes, according to the first one.
    """
    cdef readonly object times
    cdef readonly int64_t entries
    cdef SegmentSpan* segments      # of the current entry
    cdef int64_t n
    cdef int64_t room
    cdef int64_t passed             # the number of segments in earlier entries
    cdef int64_t last_at
    cdef bint has_begun
    cdef Use use

    def __cinit__(self):
        self.times = c_array.clone(TIMES, 0, False)
        self.entries = 1

    def __dealloc__(self):
        free(self.segments)

    cdef int add_segment(self, const Span* fields) noexcept nogil:
        cdef SegmentSpan* grown
        cdef int rc
        if self.n == self.room:
            grown = <SegmentSpan*>realloc(self.segments, (2 * self.room + 16) * sizeof(SegmentSpan))
            if grown == NULL:
                return NO_MEMORY
            self.segments = grown
            self.room = 2 * self.room + 16
        rc = parse_times(fields, &self.segments[self.n])
        if rc != OK:
            return rc
        if self.segments[self.n].min_at < self.last_at:
            return NOT_SORTED
        self.last_at = self.segments[self.n].max_at
        self.n += 1
        return OK

    cdef int find_segments(self, Window window) except -1:
        """Fill `segments` and `times`."""
        cdef Span s
        cdef Span fields
        cdef uint64_t tag, value = 0
        cdef int64_t entries = 1
        cdef int64_t before = self.last_at
        cdef int64_t i, first
        cdef int rc = OK
        cdef c_array.array times = self.times
        s.p = window.base
        s.end = window.base + window.size
        self.passed += self.n
        self.n = 0
        with nogil:
            while s.p != s.end:
                rc = span_tag(&s, &tag)
                if rc == OK and tag == BYTES_FIELD:
                    rc = span_bytes(&s, &fields)
                    if rc == OK:
                        before = self.last_at
                        rc = self.add_segment(&fields)
                elif rc == OK and tag == ENTRIES_FIELD:
                    rc = span_uvarint(&s, &value)
                    entries = <int64_t>min(value, <uint64_t>INT64_MAX)
                elif rc == OK:
                    rc = skip_field(&s, tag)
                if rc != OK:
                    break
        if rc == NOT_SORTED:
            raise CorruptDelayedIndexError(
                f"segment {self.passed + self.n + 1} of a snapshot begins at {self.segments[self.n].min_at}, "
                f"before the one before it ends, {before}", file=window.name
            )
        if rc != OK:
            self.refuse(rc, window, s.p)
        if not self.has_begun:
            self.has_begun = True
            self.entries = max(entries, 1)
        first = len(times)
        c_array.resize_smart(times, first + 2 * self.n)
        for i in range(self.n):
            times.data.as_longlongs[first + 2 * i] = self.segments[i].min_at
            times.data.as_longlongs[first + 2 * i + 1] = self.segments[i].max_at
        return 0

    cdef int refuse(self, int rc, Window window, const uint8_t* p) except -1:
        if rc == NO_MEMORY:
            raise MemoryError
        what = "a number outside its range" if rc == OFFSET_RANGE else words(rc)
        raise CorruptDelayedIndexError(
            f"this entry of a snapshot is no metadata: segment {self.passed + self.n + 1}: {what}",
            file=window.name, position=p - window.base,
        )

    def unite(self, Window entry not None, PositionUnion positions not None, int64_t after):
        """Read an entry, and gather the positions of its segments whose last message is due after `after`.

        Raises CorruptDelayedIndexError.
        """
        cdef Span bitmap
        cdef int64_t ledger_id = 0
        cdef int64_t i
        cdef bint found = True
        cdef int rc = OK
        begin_alone(&self.use, self)
        try:
            self.find_segments(entry)
            begin_alone(&positions.use, positions)
            with nogil:
                for i in range(self.n):
                    if self.segments[i].max_at <= after:
                        continue
                    while True:
                        rc = next_bitmap(&self.segments[i].fields, &found, &ledger_id, &bitmap)
                        if rc != OK or not found:
                            break
                        rc = positions.add(self.passed + i, ledger_id, bitmap.p, bitmap.end - bitmap.p)
                        if rc != OK:
                            break
                    if rc != OK:
                        break
            end_alone(&positions.use)
            if rc == NO_MEMORY:
                raise MemoryError
            if rc != OK:
                raise CorruptDelayedIndexError(
                    f"segment {self.passed + i + 1} of a snapshot: the bitmap of ledger {ledger_id} cannot be read: "
                    f"{words(rc)}", file=entry.name
                )
        finally:
            end_alone(&self.use)

    def describe(self, Window entry not None):
        """Read an entry: [(min_schedule_timestamp, max_schedule_timestamp, {ledger_id: serialised bitmap}), …] of its
        segments, bitmaps in their order. Raises CorruptDelayedIndexError."""
        cdef Span bitmap
        cdef int64_t ledger_id = 0
        cdef int64_t i
        cdef bint found = True
        cdef int rc
        begin_alone(&self.use, self)
        try:
            self.find_segments(entry)
            described = []
            for i in range(self.n):
                bitmaps = {}
                while True:
                    rc = next_bitmap(&self.segments[i].fields, &found, &ledger_id, &bitmap)
                    if rc != OK:
                        self.refuse(rc, entry, self.segments[i].fields.p)
                    if not found:
                        break
                    if ledger_id in bitmaps:
                        raise CorruptDelayedIndexError(
                            f"segment {self.passed + i + 1} of a snapshot: ledger {ledger_id} has two bitmaps",
                            file=entry.name,
                        )
                    bitmaps[ledger_id] = PyBytes_FromStringAndSize(<const char*>bitmap.p, bitmap.end - bitmap.p)
                described.append((self.segments[i].min_at, self.segments[i].max_at, bitmaps))
            return described
        finally:
            end_alone(&self.use)
