"""Filters a batch for compaction: decides which records stay and writes the batch around them, as Kafka's cleaner does.

    the batch                           goes out as
    all its records stay                the same bytes
    some stay, v2                       the same header: base and last offset, producer, sequence, epochs, flags, codec;
                                        base timestamp of the first record that stays, max timestamp of all of them
    some stay, v0 or v1 wrapper         a wrapper of the same version and codec at the offset of the last that stays
    none stays                          nothing, or a v2 header alone (61 bytes) if it carries a producer's state
    a null value, or the marker of a    once with a delete horizon: attribute bit 6, and the time in the place of the
    transaction without data, stays     base timestamp (KIP-534)
    v0, v1 and `upgrade`                always v2, first offset and base timestamp of the first record that stays
    some stay, a wrapper with tags      a wrapper at the offset of the first that stays, covering the same last offset;
                                        it and its messages keep their tags, except those about offsets, keys, count
                                        and largest time
    a control message with tags         the same bytes, because nothing names its producer

Each input batch gives one output batch, never merged or split. (Cleaner.java shouldRetainRecord,
MemoryRecords.filterTo)

A record stays if its offset is above `latest_offset`, the end of what the map covers. Any other record stays if it has
a key, its offset is not below the map's offset for that key, and it is not an expired tombstone.

With `erases` this is not compaction: it removes all records of the keys in the map, at any offset, and no others. Every
v2 batch stays, without records if necessary, so that no offset is assigned twice; no batch gets a delete horizon.
"""
cimport cython
from libc.stdint cimport int8_t, int16_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memset

from seglog.errors import InvalidArgumentError

from .batch_attributes cimport has_bit, has_open_end
from .batch_builder cimport (
    append_bytes, append_inner_messages, append_record, append_wrapper, begin_batch, end_batch, store_batch_crcs,
)
from .batch_header cimport (
    CODEC_NONE, CONTROL_BIT, DELETE_HORIZON_BIT, MAGIC_POS, TAGGED_MAGIC, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT,
    V2_HEADER_SIZE, BatchHeader, codec_of,
)
from .batch_source cimport Source, check_last, check_order, count_records, open_plain, parse_next
from .key_map cimport (
    KeyMap, TURN, is_message, offset_of, position_of, seg_key_expect, seg_key_hash, seg_key_slot,
)
from .legacy_records cimport parse_message
from .one_at_a_time cimport begin_reading, end_reading
from .output cimport Output
from .packer cimport NEEDS_GIL, Packer
from .record_batch cimport parse_record_v2
from .record_view cimport RecordView
from .segment_scan cimport BatchTable
from .span cimport Span
from .status cimport NO_MEMORY, OK, TRAILING_BYTES
from .tagged_message cimport Tags, parse_tagged
from .tagged_set cimport append_set, copy_messages
from .window cimport Window, check_whole

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void* p) nogil

cdef enum:
    # What a caller knows about one batch.
    KEEP_EMPTY = 1          # it carries a producer's state
    DROP_RECORDS = 2        # of an aborted transaction, or a marker that is no longer needed
    EMPTY_TRANSACTION = 4   # the marker of a transaction that has no data left

    # How thoroughly a record's key is compared before the record is removed: `exact`.
    BY_HASH = 0
    WHERE_PLACED = 1        # with the record that the map's slot points to; slots point to uncompressed records only
    ALWAYS = 2              # with compressed records too, by calling `find_key`


# A segment that the map's positions refer to.
cdef struct Place:
    int64_t base_offset
    const uint8_t* bytes
    const uint8_t* end


# A record of a turn whose slot is being prefetched.
cdef struct Asked:
    seg_key_hash hash
    const seg_key_slot* slot
    bint is_asked


@cython.final
cdef class BatchFilter(Packer):
    """Takes batches of a BatchTable, gives what compaction leaves of them. Not thread-safe.

    latest_offset: the map covers all records up to this offset.
    now_ms, delete_retention_ms: their sum is the delete horizon of a tombstone that has none yet.
    upgrade: what is left of v0 and v1 becomes v2.
    decompress: Callable[[codec, magic, memoryview], bytes-like], or None for the table's.
    compress: Callable[[codec, magic, payload], bytes-like].
    places: [(base offset, Window)] of the segments that the map was built from, in order; for `exact`.
    exact: compare keys, not only hashes: 0 never, 1 if the map knows the record's position, 2 always.
    find_key: Callable[[offset], bytes or None], the key of a record, for exact=2.
    erases: remove the records of the map's keys, instead of compacting.

    keeps_legacy_tombstones: whether those of v0 and v1 stay; the caller sets it for each segment.
    """
    cdef KeyMap map
    cdef Output inner               # the records of a batch, before compression
    cdef Output others              # tags of a wrapper that no field of the batch holds
    cdef RecordView* views          # owned: the records of one batch that stay
    cdef int64_t view_capacity
    cdef Place* places              # owned
    cdef Py_ssize_t place_count
    cdef bint places_are_tagged
    cdef list windows               # keep alive what `places` borrow
    cdef object find_key
    cdef int exact
    # About the batch being filtered:
    cdef int64_t kept
    cdef int64_t total
    cdef bint has_null_value
    cdef bint is_mixed              # it holds a message of another version (KAFKA-4298), so it must be rewritten
    cdef readonly int64_t latest_offset
    cdef readonly int64_t now_ms
    cdef readonly int64_t delete_retention_ms
    cdef readonly bint upgrade
    cdef readonly bint erases
    cdef public bint keeps_legacy_tombstones
    cdef readonly int64_t records_read
    cdef readonly int64_t records_kept
    cdef readonly int64_t superseded        # records removed because their key has a later one
    cdef readonly int64_t tombstones        # expired ones, removed
    cdef readonly int64_t keyless           # records removed because they have no key
    cdef readonly int64_t dropped           # removed with their transaction, or as a marker
    cdef readonly int64_t collisions        # records kept because the map's record has another key

    def __cinit__(
        self,
        KeyMap map not None,
        *,
        int64_t latest_offset,
        int64_t now_ms,
        int64_t delete_retention_ms,
        bint upgrade=False,
        bint erases=False,
        decompress=None,
        compress=None,
        places=(),
        int exact=BY_HASH,
        find_key=None,
    ):
        cdef Window window
        cdef Py_ssize_t i
        if not BY_HASH <= exact <= ALWAYS or (exact == ALWAYS and find_key is None):
            raise InvalidArgumentError(f"exact is {exact}: 0, 1, or 2 with find_key")
        if erases and (upgrade or exact != BY_HASH):
            raise InvalidArgumentError("erases keeps formats, and knows no places: not with upgrade or exact")
        self.map = map
        self.latest_offset = latest_offset
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.upgrade = upgrade
        self.erases = erases
        self.decompress = decompress
        self.compress = compress
        self.exact = exact
        self.find_key = find_key
        self.keeps_legacy_tombstones = True
        self.magic = 2
        self.windows = [window for _, window in places]
        self.place_count = len(self.windows)
        self.places = <Place*>realloc(NULL, max(self.place_count, 1) * sizeof(Place))
        if self.places == NULL:
            raise MemoryError
        for i, (base_offset, held) in enumerate(places):
            window = held
            self.places[i].base_offset = base_offset
            self.places[i].bytes = window.base
            self.places[i].end = window.base + window.size
            self.places_are_tagged = window.is_tagged
            if i and base_offset <= self.places[i - 1].base_offset:
                raise InvalidArgumentError(f"a place at offset {base_offset} behind one at or above it")

    def __dealloc__(self):
        free(self.inner.first)
        free(self.others.first)
        free(self.views)
        free(self.places)

    def add_one(
        self, BatchTable table not None, Py_ssize_t slot, *, bint keep_empty=False, bint drop_records=False,
        bint empty_transaction=False,
    ):
        """Filter one batch about which the caller knows more; `add` filters all others.

        keep_empty: the batch stays, without records if necessary. drop_records: none of its records stays.
        empty_transaction: it is the marker of a transaction without data, and gets a delete horizon.
        """
        cdef int flags = (
            (KEEP_EMPTY if keep_empty else 0) | (DROP_RECORDS if drop_records else 0)
            | (EMPTY_TRANSACTION if empty_transaction else 0)
        )
        cdef int status
        if slot < 0 or slot >= table.n:
            raise InvalidArgumentError(f"batch {slot} of a table of {table.n}")
        self.enter()
        try:
            with nogil:
                status = self.filter_plain(table, &table.rows[slot], flags)
            if status == NEEDS_GIL:
                self.filter_with_codec(table, &table.rows[slot], flags)
            elif status != OK:
                self.raise_status_of(status, table, &table.rows[slot])
            if table.window.torn[0]:
                self.is_broken = True
                check_whole(table.window)
        finally:
            self.leave()

    cdef int enter(self) except -1:
        Packer.enter(self)
        try:
            begin_reading(&self.map.use, self.map)
        except BaseException:
            Packer.leave(self)
            raise
        return 0

    cdef void leave(self) noexcept:
        end_reading(&self.map.use)
        Packer.leave(self)

    # --- as a Packer ---------------------------------------------------------------------------

    cdef int add_plain(self, BatchTable table, Py_ssize_t* i, Py_ssize_t last) noexcept nogil:
        cdef int status
        while i[0] < last:
            status = self.filter_plain(table, &table.rows[i[0]], 0)
            if status != OK:
                return status
            i[0] += 1
        return OK

    cdef int add_with_codec(self, BatchTable table, const BatchHeader* row) except -1:
        return self.filter_with_codec(table, row, 0)

    cdef int filter_plain(self, BatchTable table, const BatchHeader* row, int flags) noexcept nogil:
        """Filter a batch without a codec, or one that need not be opened. NEEDS_GIL: it needs a codec."""
        cdef Source source
        cdef int status
        open_plain(&source, row, table.window.base, table.window.base + table.window.size)
        if flags & DROP_RECORDS or row.count == 0:
            self.begin_batch_of(max(row.count, 0))
            self.dropped += self.total
        elif codec_of(row) != CODEC_NONE:
            return NEEDS_GIL
        else:
            status = self.judge(&source, -1)
            if status != OK:
                return status
        if self.kept == 0 and not (self.erases and self.total == 0):
            return self.write_empty(row) if self.keeps_empty(row, flags) else OK
        if self.stays_as_it_is(row, flags):
            return self.copy(source.raw, row.size_bytes)
        if self.becomes_v2(row):
            return self.write_plain(&source, flags)
        return self.copy(source.raw, row.size_bytes)    # one message: it stays or goes

    cdef int filter_with_codec(self, BatchTable table, const BatchHeader* row, int flags) except -1:
        cdef Source source
        cdef Window _opened         # keeps alive what `source` and the views borrow
        cdef int status
        _opened = self.open_source(table, row, &source)
        with nogil:
            # A wrapper's header does not say where it begins.
            status = self.judge(&source, table.end_before(row) if row.magic < 2 else -1)
        self.raise_status_of(status, table, row)
        if self.kept == 0 and not (self.erases and self.total == 0):
            if self.keeps_empty(row, flags):
                self.raise_status_of(self.write_empty(row), table, row)
        elif self.stays_as_it_is(row, flags):
            self.raise_status_of(self.copy(source.raw, row.size_bytes), table, row)
        elif self.becomes_v2(row):
            self.write_compressed(table, &source, flags)
        elif row.magic == TAGGED_MAGIC:
            self.write_tagged_wrapper(table, &source)
        else:
            self.write_wrapper(table, &source)
        return 0

    # --- which records stay --------------------------------------------------------------------

    cdef void begin_batch_of(self, int64_t total) noexcept nogil:
        self.kept = 0
        self.total = total
        self.has_null_value = False
        self.is_mixed = False
        self.records_read += total

    cdef int judge(self, Source* source, int64_t previous) noexcept nogil:
        """Parse the records of an opened batch; those that stay are `views[0:kept]`. OK, or what is wrong with it.

        `previous`: all their offsets are above this one.
        """
        cdef const BatchHeader* row = source.row
        cdef RecordView* views
        cdef Asked[TURN] asked
        cdef int64_t done = 0
        cdef int64_t turn, i
        cdef bint is_control = has_bit(row, CONTROL_BIT)
        cdef bint keeps_tombstones = self.keeps_tombstones_of(row)
        cdef const uint8_t* start
        cdef int status = count_records(source)
        if status != OK:
            return status
        self.begin_batch_of(source.left)
        status = self.reserve_views(source.left + TURN)
        if status != OK:
            return status
        views = self.views
        while done < self.total:
            turn = min(self.total - done, <int64_t>TURN)
            # The turn's records are behind those that stay; each moves up once it is known to stay.
            for i in range(turn):
                start = source.records.p
                status = parse_next(source, &views[self.kept + i])
                if status == OK:
                    status = check_order(row, &views[self.kept + i], previous)
                if status != OK:
                    return status
                previous = views[self.kept + i].offset
                if 0 <= row.magic < 2:
                    self.is_mixed |= <int8_t>start[MAGIC_POS] != row.magic
                asked[i].is_asked = (
                    not is_control and previous <= self.latest_offset and views[self.kept + i].key_size >= 0)
                if asked[i].is_asked:
                    asked[i].hash = self.map.hash_of(views[self.kept + i].key, views[self.kept + i].key_size)
                    seg_key_expect(&self.map.table, asked[i].hash)
            if self.exact != BY_HASH:
                self.expect_records(views + self.kept, asked, turn)
            else:
                for i in range(turn):
                    asked[i].slot = self.map.slot_of(asked[i].hash) if asked[i].is_asked else NULL
            self.choose(views, asked, turn, is_control, keeps_tombstones)
            done += turn
        self.records_kept += self.kept
        if source.records.p != source.records.end:
            return TRAILING_BYTES
        return check_last(row, previous)

    cdef void choose(
        self, RecordView* views, const Asked* asked, int64_t turn, bint is_control, bint keeps_tombstones
    ) noexcept nogil:
        """Move the records of a turn that stay up to `views[kept]`."""
        cdef RecordView* from_ = views + self.kept
        cdef int64_t i
        for i in range(turn):
            if self.erases:
                if asked[i].slot != NULL:
                    self.superseded += 1
                    continue
            elif not is_control and from_[i].offset <= self.latest_offset:
                if from_[i].key_size < 0:
                    self.keyless += 1
                    continue
                if self.is_superseded(&from_[i], asked[i].slot):
                    self.superseded += 1
                    continue
                if from_[i].value_size < 0 and not keeps_tombstones:
                    self.tombstones += 1
                    continue
            self.has_null_value |= from_[i].value_size < 0
            if &views[self.kept] != &from_[i]:
                views[self.kept] = from_[i]
            self.kept += 1

    cdef inline bint is_superseded(self, const RecordView* record, const seg_key_slot* slot) noexcept nogil:
        if slot == NULL or record.offset >= offset_of(slot):
            return False
        if self.exact == BY_HASH or self.has_same_key(record, slot):
            return True
        self.collisions += 1
        return False

    cdef bint keeps_tombstones_of(self, const BatchHeader* row) noexcept nogil:
        if row.magic < 2:
            return self.keeps_legacy_tombstones
        return row.attributes & DELETE_HORIZON_BIT == 0 or self.now_ms < row.base_timestamp

    cdef int reserve_views(self, int64_t count) noexcept nogil:
        cdef RecordView* views
        if count > self.view_capacity:
            views = <RecordView*>realloc(self.views, count * sizeof(RecordView))
            if views == NULL:
                return NO_MEMORY
            self.views = views
            self.view_capacity = count
        return OK

    # --- the same key, or the same hash --------------------------------------------------------

    cdef void expect_records(self, const RecordView* views, Asked* asked, int64_t turn) noexcept nogil:
        """Look up the slots of a turn, and prefetch the records that they point to."""
        cdef const uint8_t* record
        cdef int64_t i
        for i in range(turn):
            asked[i].slot = self.map.slot_of(asked[i].hash) if asked[i].is_asked else NULL
            if asked[i].slot != NULL and views[i].offset < offset_of(asked[i].slot):
                record = self.record_at(asked[i].slot, NULL)
                if record != NULL:
                    prefetch(record)

    cdef const uint8_t* record_at(self, const seg_key_slot* slot, const uint8_t** end) noexcept nogil:
        """Where the record of a slot lies; NULL if the map does not know."""
        cdef int64_t offset = offset_of(slot)
        cdef int64_t position = position_of(slot)
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.place_count
        cdef Py_ssize_t middle
        if position < 0:
            return NULL
        while high - low > 1:
            middle = (low + high) >> 1
            if self.places[middle].base_offset <= offset:
                low = middle
            else:
                high = middle
        if high == 0 or self.places[low].base_offset > offset:
            return NULL
        if position >= self.places[low].end - self.places[low].bytes:
            return NULL
        if end != NULL:
            end[0] = self.places[low].end
        return self.places[low].bytes + position

    cdef bint has_same_key(self, const RecordView* record, const seg_key_slot* slot) noexcept nogil:
        """Does the record have the same key as the one that the slot points to?"""
        cdef BatchHeader nobody
        cdef RecordView other
        cdef Span span
        cdef Tags tags
        cdef int8_t magic = 0
        cdef uint8_t attributes = 0
        cdef int status
        span.end = NULL
        span.p = self.record_at(slot, &span.end)
        if span.p == NULL:
            if self.exact != ALWAYS:
                return True
            with gil:
                return self.found_same_key(record, offset_of(slot))
        if self.places_are_tagged:
            status = parse_tagged(&span, &other, &attributes, &tags)
        elif is_message(slot):
            status = parse_message(&span, &other, &magic, &attributes)
        else:
            memset(&nobody, 0, sizeof(BatchHeader))
            status = parse_record_v2(&span, &nobody, &other)
        # A missing record has no key, so nothing is removed.
        return status == OK and other.key_size == record.key_size and (
            record.key_size == 0 or memcmp(other.key, record.key, record.key_size) == 0)

    cdef bint found_same_key(self, const RecordView* record, int64_t offset) noexcept:
        try:
            return self.find_key(offset) == record.key[:record.key_size]
        except Exception:
            return False        # an unreadable record is no reason to remove another one

    # --- the batch around them -----------------------------------------------------------------

    cdef bint becomes_v2(self, const BatchHeader* row) noexcept nogil:
        return row.magic == 2 or (self.upgrade and row.magic != TAGGED_MAGIC)

    cdef bint keeps_empty(self, const BatchHeader* row, int flags) noexcept nogil:
        return row.magic == 2 and (flags & KEEP_EMPTY != 0 or self.erases)

    cdef bint stays_as_it_is(self, const BatchHeader* row, int flags) noexcept nogil:
        if self.erases:
            return self.kept == self.total
        return (
            self.kept == self.total and not self.is_mixed and (row.magic == 2 or not self.becomes_v2(row))
            and not self.gets_horizon(row, flags)
        )

    cdef bint gets_horizon(self, const BatchHeader* row, int flags) noexcept nogil:
        if self.erases:
            return False
        if row.magic == 2:
            return row.attributes & DELETE_HORIZON_BIT == 0 and (
                self.has_null_value or flags & EMPTY_TRANSACTION != 0)
        return self.becomes_v2(row) and self.has_null_value

    cdef void describe(self, BatchHeader* header, const BatchHeader* row, int flags) noexcept nogil:
        """Set the header fields that describe the rewritten v2 batch as a whole."""
        cdef int16_t shared = TIMESTAMP_TYPE_BIT
        header[0] = row[0]
        if row.magic == 2:
            shared |= TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
        else:
            header.base_offset = self.views[0].offset
        header.attributes = <int16_t>(row.attributes & shared) if row.magic > 0 else 0
        if self.gets_horizon(row, flags):
            header.attributes = <int16_t>(header.attributes | DELETE_HORIZON_BIT)
            header.base_timestamp = self.now_ms + self.delete_retention_ms
        elif header.attributes & DELETE_HORIZON_BIT == 0:
            header.base_timestamp = self.views[0].timestamp
        if header.attributes & TIMESTAMP_TYPE_BIT == 0:
            header.max_timestamp = -1       # append_record raises it

    cdef int append_kept(self, Output* out, BatchHeader* header, const Source* source) noexcept nogil:
        cdef int64_t i
        cdef int status
        for i in range(self.kept):
            status = append_record(out, header, &self.views[i], source.readable_end)
            if status != OK:
                return status
        if source.row.magic == 2:
            # It carries the producer's last sequence.
            header.last_offset = source.row.last_offset
        return OK

    cdef int write_plain(self, Source* source, int flags) noexcept nogil:
        cdef Output* out = &self.chunk.out
        cdef BatchHeader header
        cdef int64_t size = out.size
        cdef int status
        self.describe(&header, source.row, flags)
        status = begin_batch(out, &header)
        if status == OK:
            status = self.append_kept(out, &header, source)
        if status == OK:
            status = end_batch(out, &header)
        if status != OK:
            out.size = size
            return status
        store_batch_crcs(out, size, out.size)
        return OK

    cdef int write_empty(self, const BatchHeader* row) noexcept nogil:
        """Write a header without records, as DefaultRecordBatch.writeEmptyHeader."""
        cdef Output* out = &self.chunk.out
        cdef BatchHeader header = row[0]
        cdef int64_t size = out.size
        header.attributes = <int16_t>(row.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT))
        header.base_timestamp = -1
        if begin_batch(out, &header) != OK:
            return NO_MEMORY
        header.last_offset = row.last_offset
        end_batch(out, &header)
        store_batch_crcs(out, size, out.size)
        return OK

    cdef int write_compressed(self, BatchTable table, Source* source, int flags) except -1:
        cdef const BatchHeader* row = source.row
        cdef Output* out = &self.chunk.out
        cdef BatchHeader header, begun
        cdef int64_t size = out.size
        cdef int status
        with nogil:
            self.inner.size = 0
            self.describe(&header, row, flags)
            status = begin_batch(&self.inner, &header)
            if status == OK:
                status = self.append_kept(&self.inner, &header, source)
        self.raise_status_of(status, table, row)
        compressed = self.packed(
            codec_of(row), 2, self.inner.first + V2_HEADER_SIZE, self.inner.size - V2_HEADER_SIZE)
        header.attributes = <int16_t>(header.attributes | codec_of(row))
        begun = header
        try:
            self.raise_status_of(begin_batch(out, &header), table, row)
            append_bytes(out, compressed)
            header.count, header.last_offset = begun.count, begun.last_offset
            self.raise_status_of(end_batch(out, &header), table, row)
        except BaseException:
            out.size = size
            raise
        store_batch_crcs(out, size, out.size)
        return 0

    cdef int write_wrapper(self, BatchTable table, Source* source) except -1:
        """Write the messages of a wrapper that stay as one wrapper of the same version."""
        cdef const BatchHeader* row = source.row
        cdef Output* out = &self.chunk.out
        cdef int8_t magic = row.magic
        cdef uint8_t attributes = <uint8_t>(row.attributes & TIMESTAMP_TYPE_BIT) if magic == 1 else 0
        cdef int64_t inner_base = self.views[0].offset if magic == 1 else 0
        cdef int64_t max_timestamp = -1
        cdef int status
        cdef Window compressed
        with nogil:
            self.inner.size = 0
            status = append_inner_messages(
                &self.inner, magic, attributes, self.views, self.kept, inner_base, source.readable_end, &max_timestamp)
        self.raise_status_of(status, table, row)
        compressed = Window(self.packed(codec_of(row), magic, self.inner.first, self.inner.size))
        status = append_wrapper(
            out, magic, <uint8_t>(attributes | codec_of(row)), self.views[self.kept - 1].offset,
            row.max_timestamp if attributes else max_timestamp, compressed.base, compressed.size)
        self.raise_status_of(status, table, row)
        return 0

    cdef int write_tagged_wrapper(self, BatchTable table, Source* source) except -1:
        """Write the messages of a tagged wrapper that stay, with all their tags, as one wrapper."""
        cdef const BatchHeader* row = source.row
        cdef int64_t reach = self.views[self.kept - 1].offset if has_open_end(row) else row.last_offset
        cdef Window compressed
        cdef int status
        with nogil:
            status = copy_messages(&self.inner, self.views, self.kept)
        self.raise_status_of(status, table, row)
        compressed = Window(self.packed(codec_of(row), 2, self.inner.first, self.inner.size))
        return self.raise_status_of(append_set(
            &self.chunk.out, row, source.raw, self.views, self.kept, reach, compressed.base, compressed.size,
            &self.others), table, row)

    cdef object packed(self, int codec, int magic, const uint8_t* first, int64_t size):
        if self.compress is None:
            raise InvalidArgumentError(
                f"codec {codec} and no compressor was given", hint="BatchFilter(compress=...)")
        return self.compress(codec, magic, first[:size])
