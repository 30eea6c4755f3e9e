"""Snapshots of delayed messages as Pulsar 4.2.4 writes them: MutableBucket.createImmutableBucketAndAsyncPersistent.

    entry of a segment    := SnapshotSegment of its rows
    part of the metadata  := SnapshotMetadata of one SnapshotSegmentMetadata; the metadata is the sequence of all parts

docs/formats/delayed_index_snapshot.md. A ledger's bitmap is the one that RoaringBitmap.runOptimize creates from its
entry ids; bitmaps are in the order of a java.util.HashMap<Long, …>.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from .due_rows cimport DueRow, DueRows, MAX_INDEX_BYTES, encode_rows, segment_end, sort_rows
from .one_at_a_time cimport Use, begin_alone, begin_reading, end_alone, end_reading
from .output cimport Output, ensure_room
from .plain_bitmap cimport (
    BITSET_BYTES,
    COOKIE_WITHOUT_RUNS,
    COOKIE_WITH_RUNS,
    MOST_IN_ARRAY,
    NO_OFFSETS_BELOW,
    set_bit,
    store_le16,
    store_le32,
)
from .protobuf_span cimport store_uvarint, uvarint_size
from .status cimport NO_MEMORY, OK

cdef enum:
    FIRST_BINS = 16
    # The tags and sizes around the contents of a segment's metadata, and its two times.
    MAX_FRAME_BYTES = 4 * 11
    # The limit of one call: turning this much into bytes objects takes the interpreter a quarter of a millisecond.
    ENOUGH_BYTES = 1 << 20


# --- the order of a HashMap<Long, ?> -------------------------------------------------------

cdef struct Node:
    int64_t key
    int32_t next                # in its bin; -1: the last


# A HashMap that computeIfAbsent fills and clear() empties, repeatedly. computeIfAbsent (OpenJDK 17) tests for growth
# before it searches, and puts a new node at the head of its bin; clear() keeps the bins. A bin of eight keys would
# become a tree; consecutive ledger ids never fill one so far.
cdef struct JavaMap:
    int32_t* bins               # owned; the first node of each bin, -1: none
    int32_t n_bins
    Node* nodes                 # owned
    int32_t n
    int32_t room


cdef inline int32_t bin_of(const JavaMap* map, int64_t key) noexcept nogil:
    cdef uint32_t folded = <uint32_t>(<uint64_t>key ^ (<uint64_t>key >> 32))     # Long.hashCode
    return <int32_t>((folded ^ (folded >> 16)) & <uint32_t>(map.n_bins - 1))


cdef int grow_map(JavaMap* map) noexcept nogil:
    """Double the number of bins, 16 at first. The nodes of a bin keep their order."""
    cdef JavaMap wider = map[0]
    cdef int32_t i, node, following, last
    wider.n_bins = 2 * map.n_bins if map.n_bins else FIRST_BINS
    wider.bins = <int32_t*>malloc(wider.n_bins * sizeof(int32_t))
    if wider.bins == NULL:
        return NO_MEMORY
    memset(wider.bins, 0xFF, wider.n_bins * sizeof(int32_t))
    for i in range(map.n_bins):
        node = map.bins[i]
        while node >= 0:
            following = map.nodes[node].next
            map.nodes[node].next = -1
            last = wider.bins[bin_of(&wider, map.nodes[node].key)]
            if last < 0:
                wider.bins[bin_of(&wider, map.nodes[node].key)] = node
            else:
                while map.nodes[last].next >= 0:
                    last = map.nodes[last].next
                map.nodes[last].next = node
            node = following
    free(map.bins)
    map[0] = wider
    return OK


cdef int ask_map(JavaMap* map, int64_t key) noexcept nogil:
    """Add a key unless it is there already."""
    cdef Node* grown
    cdef int32_t node, into
    if (map.n_bins == 0 or map.n > map.n_bins * 3 // 4) and grow_map(map) != OK:
        return NO_MEMORY
    into = bin_of(map, key)
    node = map.bins[into]
    while node >= 0:
        if map.nodes[node].key == key:
            return OK
        node = map.nodes[node].next
    if map.n == map.room:
        grown = <Node*>realloc(map.nodes, (2 * map.room + 16) * sizeof(Node))
        if grown == NULL:
            return NO_MEMORY
        map.nodes = grown
        map.room = 2 * map.room + 16
    map.nodes[map.n].key = key
    map.nodes[map.n].next = map.bins[into]
    map.bins[into] = map.n
    map.n += 1
    return OK


cdef void clear_map(JavaMap* map) noexcept nogil:
    map.n = 0
    memset(map.bins, 0xFF, map.n_bins * sizeof(int32_t))


# --- a bitmap of rows ----------------------------------------------------------------------

# The rows of one container; `end` is one past the last. Adjacent rows may have the same entry id.
cdef struct Box:
    int64_t first
    int64_t end
    uint32_t key
    int32_t count
    int32_t runs
    bint of_runs


cdef inline uint32_t entry_of(const DueRow* rows, int64_t i) noexcept nogil:
    return <uint32_t>rows[i].entry_id


cdef int64_t survey_box(const DueRow* rows, int64_t first, int64_t n, Box* box) noexcept nogil:
    """Describe the container that begins at row `first` of one ledger's sorted rows; returns its size in bytes."""
    cdef int64_t i
    cdef uint32_t entry, last
    box.first = first
    box.key = entry_of(rows, first) >> 16
    box.count = box.runs = 1
    last = entry_of(rows, first)
    i = first + 1
    while i < n:
        entry = entry_of(rows, i)
        if entry >> 16 != box.key:
            break
        box.count += entry != last
        box.runs += entry > last + 1
        last = entry
        i += 1
    box.end = i
    # As ArrayContainer.runOptimize and BitmapContainer.runOptimize do.
    if box.count > MOST_IN_ARRAY:
        box.of_runs = 2 + 4 * box.runs < BITSET_BYTES
    else:
        box.of_runs = 2 + 4 * box.runs < 2 * box.count
    if box.of_runs:
        return 2 + 4 * box.runs
    return BITSET_BYTES if box.count > MOST_IN_ARRAY else 2 * box.count


cdef uint8_t* store_box(const DueRow* rows, const Box* box, uint8_t* p) noexcept nogil:
    cdef int64_t i
    cdef uint32_t value, last = 0xFFFFFFFF
    cdef uint32_t first = 0
    if not box.of_runs and box.count > MOST_IN_ARRAY:
        memset(p, 0, BITSET_BYTES)
        for i in range(box.first, box.end):
            set_bit(p, entry_of(rows, i) & 0xFFFF)
        return p + BITSET_BYTES
    if box.of_runs:
        store_le16(p, <uint32_t>box.runs)
        p += 2
    for i in range(box.first, box.end):
        value = entry_of(rows, i) & 0xFFFF
        if value == last:
            continue
        if not box.of_runs:
            store_le16(p, value)
            p += 2
        elif i == box.first or value != last + 1:
            if i > box.first:
                store_le16(p + 2, last - first)
                p += 4
            first = value
            store_le16(p, first)
        last = value
    if box.of_runs:
        store_le16(p + 2, last - first)
        p += 4
    return p


# --- the encoder -----------------------------------------------------------------------------

cdef struct Encoded:
    int64_t min_at
    int64_t max_at
    int64_t entry               # its beginning in the output
    int64_t part                # the beginning of its metadata, which ends where the next entry begins
    int64_t end


@cython.final
cdef class SegmentEncoder:
    """Encodes the segments of one snapshot in order, and the metadata of each.

    A segment spans less than `time_step_ms` and holds at most `most` rows.
    """
    cdef int64_t time_step_ms
    cdef int64_t most
    cdef JavaMap order
    cdef DueRow* sorted         # owned; of the current segment, by position
    cdef int64_t sorted_room
    cdef Box* boxes             # owned; of the current ledger
    cdef int64_t n_boxes
    cdef int64_t boxes_room
    cdef Output bitmaps         # owned; of the current segment
    cdef Output out             # owned; everything encoded in this call
    cdef Encoded* encoded       # owned
    cdef int64_t n_encoded
    cdef int64_t encoded_room
    cdef Use use

    def __cinit__(self, int64_t time_step_ms, int64_t most):
        self.time_step_ms = time_step_ms
        self.most = most

    def __dealloc__(self):
        free(self.order.bins)
        free(self.order.nodes)
        free(self.sorted)
        free(self.boxes)
        free(self.bitmaps.first)
        free(self.out.first)
        free(self.encoded)

    cdef int survey_ledger(self, const DueRow* rows, int64_t n, int64_t* size) noexcept nogil:
        """Fill `boxes`, and set `size` to the bytes of the ledger's bitmap."""
        cdef Box* grown
        cdef int64_t first = 0
        cdef bint has_runs = False
        self.n_boxes = 0
        size[0] = 0
        while first < n:
            if self.n_boxes == self.boxes_room:
                grown = <Box*>realloc(self.boxes, (2 * self.boxes_room + 16) * sizeof(Box))
                if grown == NULL:
                    return NO_MEMORY
                self.boxes = grown
                self.boxes_room = 2 * self.boxes_room + 16
            size[0] += survey_box(rows, first, n, &self.boxes[self.n_boxes])
            has_runs |= self.boxes[self.n_boxes].of_runs
            first = self.boxes[self.n_boxes].end
            self.n_boxes += 1
        if has_runs:
            size[0] += 4 + (self.n_boxes + 7) // 8 + (8 if self.n_boxes >= NO_OFFSETS_BELOW else 4) * self.n_boxes
        else:
            size[0] += 8 + 8 * self.n_boxes
        return OK

    cdef uint8_t* store_bitmap(self, const DueRow* rows, uint8_t* p) noexcept nogil:
        """Write the bitmap of the rows last passed to `survey_ledger`."""
        cdef uint8_t* first = p
        cdef uint8_t* descriptor
        cdef uint8_t* offset = NULL
        cdef bint has_runs = False
        cdef int64_t i
        for i in range(self.n_boxes):
            has_runs |= self.boxes[i].of_runs
        if has_runs:
            store_le32(p, COOKIE_WITH_RUNS | <uint32_t>(self.n_boxes - 1) << 16)
            p += 4
            memset(p, 0, (self.n_boxes + 7) // 8)
            for i in range(self.n_boxes):
                if self.boxes[i].of_runs:
                    set_bit(p, <uint32_t>i)
            p += (self.n_boxes + 7) // 8
        else:
            store_le32(p, COOKIE_WITHOUT_RUNS)
            store_le32(p + 4, <uint32_t>self.n_boxes)
            p += 8
        descriptor = p
        p += 4 * self.n_boxes
        if not has_runs or self.n_boxes >= NO_OFFSETS_BELOW:
            offset = p
            p += 4 * self.n_boxes
        for i in range(self.n_boxes):
            store_le16(descriptor + 4 * i, self.boxes[i].key)
            store_le16(descriptor + 4 * i + 2, <uint32_t>(self.boxes[i].count - 1))
            if offset != NULL:
                store_le32(offset + 4 * i, <uint32_t>(p - first))
            p = store_box(rows, &self.boxes[i], p)
        return p

    cdef int encode_bitmaps(self, const DueRow* rows, int64_t n) noexcept nogil:
        """Write the bitmaps of a segment into `bitmaps`, as the map entries of its metadata."""
        cdef DueRow* grown
        cdef uint8_t* p
        cdef int64_t i, low, half, end, size, entry_size
        cdef int64_t ledger_id
        cdef int32_t into, node
        if n > self.sorted_room:
            grown = <DueRow*>realloc(self.sorted, n * sizeof(DueRow))
            if grown == NULL:
                return NO_MEMORY
            self.sorted = grown
            self.sorted_room = n
        for i in range(n):
            self.sorted[i].deliver_at = 0
            self.sorted[i].ledger_id = rows[i].ledger_id
            self.sorted[i].entry_id = rows[i].entry_id
            # Pulsar calls computeIfAbsent for every row.
            if ask_map(&self.order, rows[i].ledger_id) != OK:
                return NO_MEMORY
        if sort_rows(self.sorted, n) != OK:
            return NO_MEMORY
        self.bitmaps.size = 0
        for into in range(self.order.n_bins):
            node = self.order.bins[into]
            while node >= 0:
                ledger_id = self.order.nodes[node].key
                low = 0
                end = n
                while low < end:
                    half = (low + end) >> 1
                    if self.sorted[half].ledger_id < ledger_id:
                        low = half + 1
                    else:
                        end = half
                while end < n and self.sorted[end].ledger_id == ledger_id:
                    end += 1
                if self.survey_ledger(self.sorted + low, end - low, &size) != OK:
                    return NO_MEMORY
                if ensure_room(&self.bitmaps, size + MAX_FRAME_BYTES) != OK:
                    return NO_MEMORY
                entry_size = 2 + uvarint_size(<uint64_t>ledger_id) + uvarint_size(<uint64_t>size) + size
                p = self.bitmaps.first + self.bitmaps.size
                p[0] = 0x0A
                p = store_uvarint(p + 1, <uint64_t>entry_size)
                p[0] = 0x08
                p = store_uvarint(p + 1, <uint64_t>ledger_id)
                p[0] = 0x12
                p = store_uvarint(p + 1, <uint64_t>size)
                p = self.store_bitmap(self.sorted + low, p)
                self.bitmaps.size = p - self.bitmaps.first
                node = self.order.nodes[node].next
        clear_map(&self.order)
        return OK

    cdef int encode_segment(self, const DueRow* rows, int64_t n) noexcept nogil:
        cdef Encoded* grown
        cdef Encoded* done
        cdef uint8_t* p
        cdef uint64_t min_at = <uint64_t>rows[0].deliver_at
        cdef uint64_t max_at = <uint64_t>rows[n - 1].deliver_at
        if self.n_encoded == self.encoded_room:
            grown = <Encoded*>realloc(self.encoded, (2 * self.encoded_room + 16) * sizeof(Encoded))
            if grown == NULL:
                return NO_MEMORY
            self.encoded = grown
            self.encoded_room = 2 * self.encoded_room + 16
        if self.encode_bitmaps(rows, n) != OK:
            return NO_MEMORY
        if ensure_room(&self.out, n * MAX_INDEX_BYTES + self.bitmaps.size + MAX_FRAME_BYTES) != OK:
            return NO_MEMORY
        done = &self.encoded[self.n_encoded]
        done.min_at = rows[0].deliver_at
        done.max_at = rows[n - 1].deliver_at
        done.entry = self.out.size
        done.part = self.out.size + encode_rows(rows, n, self.out.first + self.out.size)
        p = self.out.first + done.part
        p[0] = 0x0A
        p = store_uvarint(p + 1, <uint64_t>self.bitmaps.size + 2 + uvarint_size(max_at) + uvarint_size(min_at))
        memcpy(p, self.bitmaps.first, self.bitmaps.size)
        p += self.bitmaps.size
        p[0] = 0x10
        p = store_uvarint(p + 1, max_at)
        p[0] = 0x18
        p = store_uvarint(p + 1, min_at)
        self.out.size = done.end = p - self.out.first
        self.n_encoded += 1
        return OK

    def encode(self, DueRows rows not None, int64_t first, bint whole):
        """Encode the segments of the sorted rows from `first` on, up to the limit of one call. Returns ([(entry, part
        of the metadata, min_schedule_timestamp, max_schedule_timestamp), …], stop): the rows [first, stop) are encoded;
        stop is `first` if none are left. Not `whole`: more rows may follow, so the last segment, which they may extend,
        is left out."""
        cdef const DueRow* held
        cdef Encoded* done
        cdef int64_t n
        cdef int64_t i, end
        cdef int rc = OK
        begin_alone(&self.use, self)
        try:
            if first < 0:
                raise IndexError(f"row {first}")
            self.n_encoded = self.out.size = 0
            begin_reading(&rows.use, rows)
            held, n = rows.rows, rows.count
            with nogil:
                while first < n and self.out.size < ENOUGH_BYTES:
                    end = segment_end(held, n, first, self.time_step_ms, self.most)
                    if end == n and not whole:
                        break
                    rc = self.encode_segment(held + first, end - first)
                    if rc != OK:
                        break
                    first = end
            end_reading(&rows.use)
            if rc != OK:
                raise MemoryError
            found = []
            for i in range(self.n_encoded):
                done = &self.encoded[i]
                found.append((
                    PyBytes_FromStringAndSize(<const char*>self.out.first + done.entry, done.part - done.entry),
                    PyBytes_FromStringAndSize(<const char*>self.out.first + done.part, done.end - done.part),
                    done.min_at,
                    done.max_at,
                ))
            return found, first
        finally:
            end_alone(&self.use)
