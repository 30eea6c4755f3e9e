"""The last offset of each key, within a memory limit: compaction looks up every record here.

A key is identified by 128 bits of its SipHash-1-3, under a secret that each map draws for itself (seg_key_map.h). Kafka
uses the key's MD5, for which anybody who chooses keys can produce collisions.

A map allocates memory as it grows, up to `max_bytes`: 28 bytes a slot, and at most the share `load_factor` of the slots
is used, so a key takes 31.1 bytes at Kafka's default of 0.9. A full map refuses new keys, and still updates known ones.

Keys are hashed and looked up in turns: while one turn is hashed, the slots of the previous one are prefetched.
"""
import os

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint64_t

from seglog.errors import InvalidArgumentError

from .batch_attributes cimport has_bit
from .batch_header cimport CODEC_NONE, CONTROL_BIT, BatchHeader, codec_of
from .batch_source cimport Source, check_last, check_order, count_records, open_plain, parse_next
from .field cimport Field, hold_field, release_field
from .one_at_a_time cimport begin_alone, begin_reading, check_free, end_alone, end_reading
from .batch_payload cimport open_records, raise_batch
from .record_view cimport RecordView
from .segment_scan cimport BatchTable
from .status cimport OK, TRAILING_BYTES
from .window cimport Window, check_whole

cdef enum:
    SECRET_BYTES = 16
    DIGEST_BYTES = 16
    MIN_SLOTS = 16
    # Besides SEG_KEY_FULL and the Status of the parsers: the batch needs a codec.
    NEEDS_CODEC = 2


cdef int put_turn(seg_key_table* table, Turn* turn) noexcept nogil:
    cdef int status
    turn.put = 0
    while turn.put < turn.count:
        status = seg_key_put(table, turn.hash[turn.put], turn.offset[turn.put], turn.position[turn.put])
        if status != OK:
            return status
        turn.put += 1
    turn.count = 0
    return OK


cdef inline int32_t place_of(int64_t position, int magic) noexcept nogil:
    """The position as a slot stores it: the sign says whether the record is a message. `position_of` reverses this."""
    return <int32_t>(position if magic == 2 else -2 - position)


def siphash(data not None, secret not None, *, int rounds=1, int last_rounds=3, int digest_bytes=DIGEST_BYTES):
    """SipHash of `data` under a secret of 16 bytes: 8 or 16 bytes. Rounds are named as in the paper: 1-3 or 2-4."""
    cdef seg_key_hash key, hashed
    cdef Field field
    if (rounds, last_rounds) not in ((1, 3), (2, 4)) or digest_bytes not in (8, DIGEST_BYTES):
        raise InvalidArgumentError(f"SipHash-{rounds}-{last_rounds} of {digest_bytes} bytes")
    key = secret_of(secret)
    hold_field(&field, data, b"data", -1)
    try:
        if field.size < 0:
            raise TypeError("nothing to hash")
        if rounds == 1:
            hashed = seg_siphash(key, field.bytes, field.size, 1, 3, digest_bytes == DIGEST_BYTES)
        else:
            hashed = seg_siphash(key, field.bytes, field.size, 2, 4, digest_bytes == DIGEST_BYTES)
    finally:
        release_field(&field)
    return (<object>hashed.a).to_bytes(8, "little") + (
        (<object>hashed.b).to_bytes(8, "little") if digest_bytes == DIGEST_BYTES else b"")


cdef seg_key_hash secret_of(object secret) except *:
    cdef seg_key_hash key
    cdef bytes whole = bytes(secret)
    if len(whole) != SECRET_BYTES:
        raise InvalidArgumentError(f"a secret of {len(whole)} bytes; SipHash takes {SECRET_BYTES}")
    key.a = int.from_bytes(whole[:8], "little")
    key.b = int.from_bytes(whole[8:], "little")
    return key


@cython.final
cdef class KeyMap:
    """KeyMap(max_bytes): the highest offset of every key. One thread at a time changes it, and none reads it meanwhile.

    load_factor: the largest share of its slots that a map uses (log.cleaner.io.buffer.load.factor).
    expected_keys: allocate memory for this many keys at once, instead of growing to it.
    secret: 16 bytes, only for reproducible tests. identity_bits: fewer than 128 only to force collisions.
    """

    def __cinit__(
        self, int64_t max_bytes=128 << 20, *, double load_factor=0.9, int64_t expected_keys=0, secret=None,
        int identity_bits=128,
    ):
        cdef int64_t wanted
        self.table.max_slots = max_bytes // <int64_t>sizeof(seg_key_slot)
        if self.table.max_slots < MIN_SLOTS:
            raise InvalidArgumentError(
                f"a map of {max_bytes} bytes; {MIN_SLOTS * sizeof(seg_key_slot)} at least")
        if not 0.1 <= load_factor <= 1.0:
            raise InvalidArgumentError(f"a load factor of {load_factor}; 0.1 to 1 expected")
        if not 1 <= identity_bits <= 128:
            raise InvalidArgumentError(f"an identity of {identity_bits} bits; 1 to 128 expected")
        if expected_keys < 0:
            raise InvalidArgumentError(f"{expected_keys} expected keys")
        self.max_bytes = max_bytes
        self.secret = secret_of(os.urandom(SECRET_BYTES) if secret is None else secret)
        self.identity_mask.a = self.identity_mask.b = <uint64_t>-1
        if identity_bits <= 64:
            self.identity_mask.a = <uint64_t>-1 << (64 - identity_bits)
            self.identity_mask.b = 0
        elif identity_bits < 128:
            self.identity_mask.b = <uint64_t>-1 << (128 - identity_bits)
        self.table.load_factor = load_factor
        # One slot stays empty, because that ends a search.
        self.table.max_keys = min(<int64_t>(self.table.max_slots * load_factor), self.table.max_slots - 1)
        if expected_keys:
            wanted = self.table.max_slots
            if expected_keys < self.table.max_keys:
                wanted = min(wanted, max(<int64_t>(expected_keys / load_factor) + 2, MIN_SLOTS))
            if seg_key_resize(&self.table, wanted) != OK:
                raise MemoryError

    def __dealloc__(self):
        seg_key_free(self.table.slots, self.table.slot_count)

    def __len__(self):
        return self.table.key_count

    @property
    def max_keys(self):
        """How many keys fit within `max_bytes`."""
        return self.table.max_keys

    @property
    def is_full(self):
        """Whether no further key fits."""
        return self.table.key_count >= self.table.max_keys

    @property
    def nbytes(self):
        """The bytes of memory that the map has allocated so far."""
        return self.table.slot_count * <int64_t>sizeof(seg_key_slot)

    # --- one key -------------------------------------------------------------------------------

    def put(self, key not None, int64_t offset, int32_t position=-1):
        """Store an offset (0 or above) unless the key has a higher one. False: the key is new and the map is full.

        `position`: of the record in its segment, for a later comparison of the keys themselves.
        """
        cdef seg_key_hash hashed = self.hash_object(key)
        cdef int status
        if offset < 0 or offset == INT64_MAX:
            raise InvalidArgumentError(f"an offset of {offset}")
        check_free(&self.use, self)
        status = seg_key_put(&self.table, hashed, offset, position)
        if status < 0:
            raise MemoryError
        return status == OK

    def get(self, key not None):
        """The highest offset of the key; -1 if it is unknown."""
        cdef seg_key_hash hashed = self.hash_object(key)
        self.check_readable()
        return seg_key_get(&self.table, hashed)

    def position(self, key not None):
        """The position given with the key's highest offset; -1 if none was given."""
        cdef seg_key_hash hashed = self.hash_object(key)
        cdef const seg_key_slot* slot
        self.check_readable()
        slot = self.slot_of(hashed)
        return -1 if slot == NULL else position_of(slot)

    # --- many ----------------------------------------------------------------------------------

    def add_batches(
        self, BatchTable table not None, Py_ssize_t start=0, Py_ssize_t stop=-1, *, int64_t first_offset=0,
        bint with_positions=False,
    ):
        """Put the keys of the batches [start, stop) of a table (stop -1: to its end), at their offsets.

        Skips control batches, records without a key (`keyless` counts them) and those below `first_offset`. Returns the
        first slot that was not added completely: if it is below `stop`, the map is full. Checks no CRC. Raises
        CorruptRecordError (position, offset) for malformed records, and what the table's `decompress` raises.
        with_positions: also store the positions of uncompressed records.
        """
        if stop == -1:
            stop = table.n
        if start < 0 or stop > table.n or start > stop:
            raise InvalidArgumentError(f"batches [{start}, {stop}) of a table of {table.n}")
        begin_alone(&self.use, self)
        try:
            return self.add_table(table, start, stop, first_offset, with_positions)
        finally:
            end_alone(&self.use)

    cdef int check_readable(self) except -1:
        """Before a read that keeps the GIL."""
        begin_reading(&self.use, self)
        end_reading(&self.use)
        return 0

    # --- without the GIL -----------------------------------------------------------------------

    cdef seg_key_hash hash_of(self, const uint8_t* key, int64_t size) noexcept nogil:
        cdef seg_key_hash hashed = seg_siphash13(self.secret, key, size)
        hashed.a &= self.identity_mask.a
        hashed.b &= self.identity_mask.b
        return hashed

    cdef const seg_key_slot* slot_of(self, seg_key_hash hash) noexcept nogil:
        cdef const seg_key_slot* slot
        if self.table.slot_count == 0:
            return NULL
        slot = seg_key_find(&self.table, hash)
        return slot if slot.offset_plus_1 else NULL

    cdef seg_key_hash hash_object(self, object key) except *:
        cdef seg_key_hash hashed
        cdef Field field
        hold_field(&field, key, b"key", -1)
        hashed = self.hash_of(field.bytes, field.size)
        release_field(&field)
        return hashed

    cdef Py_ssize_t add_table(
        self, BatchTable table, Py_ssize_t start, Py_ssize_t stop, int64_t first_offset, bint is_placed
    ) except -1:
        cdef Source source
        cdef Turn turn
        cdef Window _opened     # keeps alive what `source` borrows
        cdef const BatchHeader* row
        cdef Py_ssize_t i = start
        cdef int status
        turn.count = 0
        while True:
            with nogil:
                status = self.add_plain(table, &i, stop, first_offset, is_placed, &turn)
            check_whole(table.window)
            if status == OK or status == SEG_KEY_FULL:
                return i
            row = &table.rows[i]
            if status == NEEDS_CODEC:
                source.row = row
                _opened = open_records(table.window, row, table.decompress, &source.records)
                with nogil:
                    status = self.add_source(
                        &source, table.end_before(row) if row.magic < 2 else -1, first_offset, NULL, &turn)
                    if status == OK:
                        status = put_turn(&self.table, &turn)
                if status == SEG_KEY_FULL:
                    return i
                i += 1
            if status != OK:
                raise_batch(status, table.window, row)

    cdef int add_plain(
        self, BatchTable table, Py_ssize_t* i, Py_ssize_t stop, int64_t first_offset, bint is_placed, Turn* turn
    ) noexcept nogil:
        """Put the keys of rows from i[0] on, and advance it. At SEG_KEY_FULL, i[0] is the first incomplete row."""
        cdef const uint8_t* bytes = table.window.base
        cdef const BatchHeader* row
        cdef Source source
        cdef Py_ssize_t first = i[0]
        cdef int asked = OK
        cdef int status = OK
        while i[0] < stop:
            row = &table.rows[i[0]]
            if has_bit(row, CONTROL_BIT) or row.last_offset < first_offset or row.count == 0:
                i[0] += 1
                continue
            if codec_of(row) != CODEC_NONE:
                asked = NEEDS_CODEC
                break
            open_plain(&source, row, bytes, bytes + table.window.size)
            status = self.add_source(&source, -1, first_offset, bytes if is_placed else NULL, turn)
            if status != OK:
                break
            i[0] += 1
        if status == OK:
            status = put_turn(&self.table, turn)
        if status == SEG_KEY_FULL:
            # The first key refused may belong to an earlier batch, because keys are put in turns.
            while i[0] > first and table.rows[i[0] - 1].last_offset >= turn.offset[turn.put]:
                i[0] -= 1
        return asked if status == OK else status

    cdef int add_source(
        self, Source* source, int64_t previous, int64_t first_offset, const uint8_t* bytes, Turn* turn
    ) noexcept nogil:
        """Hash the keys of an opened batch, and put full turns. `bytes`: the segment's; NULL: store no positions.

        `previous`: all its records' offsets are above this one.
        """
        cdef const BatchHeader* row = source.row
        cdef RecordView record
        cdef const uint8_t* start
        cdef int64_t _
        cdef int status = count_records(source)
        if status != OK:
            return status
        for _ in range(source.left):
            start = source.records.p
            status = parse_next(source, &record)
            if status == OK:
                status = check_order(row, &record, previous)
            if status != OK:
                return status
            previous = record.offset
            if record.key_size < 0 or record.offset < first_offset:
                self.keyless += record.key_size < 0 and record.offset >= first_offset
                continue
            turn.hash[turn.count] = self.hash_of(record.key, record.key_size)
            seg_key_expect(&self.table, turn.hash[turn.count])
            turn.offset[turn.count] = record.offset
            turn.position[turn.count] = -1
            if bytes != NULL and start - bytes < INT32_MAX:
                turn.position[turn.count] = place_of(start - bytes, row.magic)
            turn.count += 1
            if turn.count == TURN:
                status = put_turn(&self.table, turn)
                if status != OK:
                    return status
        if source.records.p != source.records.end:
            return TRAILING_BYTES
        return check_last(row, previous)
