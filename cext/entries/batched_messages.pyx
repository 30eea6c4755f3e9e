"""The messages of an opened batch: their positions, their keys, which of them exist; the batch without some of them.

    message := size:uint32 SingleMessageMetadata[size] value[payload_size]

Nothing is copied until it is requested. No size is trusted. Layout: docs/formats/pulsar_entry.md.
"""
from cpython cimport array as c_array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cimport cython

from seglog.errors import InvalidArgumentError

from .key_map cimport TURN, KeyMap, seg_key_expect, seg_key_get, seg_key_hash, seg_key_put
from .one_at_a_time cimport check_free
from .protobuf_span cimport skip_field, span_bytes, span_tag, span_uvarint
from .span cimport Span, load_u32
from .status cimport BAD_COUNT, BAD_FIELD, BAD_SIZE, OK, SHORT, raise_status
from .window cimport Window

cdef enum:
    # The size of the metadata, and its one required field: payload_size.
    MESSAGE_BYTES_MIN = 6
    # The metadata that replaces a removed message: payload_size 0, compacted_out true.
    PLACEHOLDER_BYTES = 8

cdef const uint8_t* PLACEHOLDER = b"\x00\x00\x00\x04\x18\x00\x20\x01"

cdef enum:
    # The bits of a place: whether the message deletes its key, its number in the batch, the entry's number.
    NUMBER_BITS = 28
    ENTRY_SHIFT = NUMBER_BITS + 1


cdef struct MessageView:
    const uint8_t* start
    const uint8_t* value
    const uint8_t* end
    Span key                    # p is NULL if it has none
    bint is_out                 # compacted_out: it was removed


cdef int parse_message(Span* s, MessageView* out) noexcept nogil:
    """The next message; `s` advances past it, or to the point of the error."""
    cdef Span metadata
    cdef uint64_t tag
    cdef uint64_t value = 0
    cdef Span inner
    cdef int32_t payload_size = -1
    cdef bint has_size = False
    cdef uint32_t size
    cdef int rc
    out.start = s.p
    out.key.p = out.key.end = NULL
    out.is_out = False
    inner.p = inner.end = NULL
    if s.end - s.p < 4:
        return SHORT
    size = load_u32(s.p)
    if size > s.end - s.p - 4:
        return BAD_SIZE
    metadata.p = s.p + 4
    metadata.end = metadata.p + size
    while metadata.p != metadata.end:
        rc = span_tag(&metadata, &tag)
        if rc == OK:
            if tag & 7 == 0:
                rc = span_uvarint(&metadata, &value)
            elif tag & 7 == 2:
                rc = span_bytes(&metadata, &inner)
            else:
                rc = skip_field(&metadata, tag)
        if rc != OK:
            s.p = metadata.p
            return rc
        if tag == 2 << 3 | 2:       # partition_key
            out.key = inner
        elif tag == 3 << 3:
            payload_size = <int32_t><uint32_t>value
            has_size = True
        elif tag == 4 << 3:         # compacted_out
            out.is_out = value != 0
    s.p = metadata.end
    if not has_size:
        return BAD_FIELD
    if payload_size < 0 or payload_size > s.end - s.p:
        return BAD_SIZE
    out.value = s.p
    s.p += payload_size
    out.end = s.p
    return OK


@cython.final
cdef class BatchedMessages:
    """The `count` messages of an opened payload. The batch is borrowed, and never changed.

    Raises CorruptRecordError if the bytes do not hold them; `position` is relative to the payload, `offset` is the
    number of the message. `trailing_bytes`: how many follow the last message; Pulsar ignores them.
    """
    cdef Window window
    cdef MessageView* views
    cdef Py_ssize_t count
    cdef readonly Py_ssize_t trailing_bytes

    def __cinit__(self, opened, int64_t count, name=None):
        cdef Span s
        cdef Py_ssize_t number
        cdef int rc
        self.window = Window(opened, name)
        s.p = self.window.base
        s.end = s.p + self.window.size
        if count < 1 or count > max(self.window.size // MESSAGE_BYTES_MIN, 1) or count >= 1 << NUMBER_BITS:
            raise_status(BAD_COUNT, 0, 0, name, f"{count} messages in a batch of {self.window.size} bytes")
        self.views = <MessageView*>malloc(count * sizeof(MessageView))
        if self.views == NULL:
            raise MemoryError
        for number in range(count):
            rc = parse_message(&s, &self.views[number])
            if rc != OK:
                raise_status(
                    rc, s.p - self.window.base, number, name,
                    f"message {number} of {count} in a batch, {s.end - s.p} bytes before its end")
        self.count = count
        self.trailing_bytes = s.end - s.p

    def __dealloc__(self):
        free(self.views)

    def __len__(self):
        return self.count

    def key(self, Py_ssize_t number):
        """The key as stored, base64 or not; None if it has none."""
        self._check(number)
        return key_of(&self.views[number])

    def value(self, Py_ssize_t number):
        """A view of the value."""
        self._check(number)
        return self.window.view(self.views[number].value, self.views[number].end - self.views[number].value)

    def metadata_bytes(self, Py_ssize_t number):
        """A view of the SingleMessageMetadata."""
        self._check(number)
        return self.window.view(
            self.views[number].start + 4, self.views[number].value - self.views[number].start - 4)

    def is_removed(self, Py_ssize_t number):
        """Whether the message is a placeholder (compacted_out)."""
        self._check(number)
        return self.views[number].is_out

    def last_live(self):
        """The number of the last message that was not removed; -1 if all were."""
        cdef Py_ssize_t number
        for number in range(self.count - 1, -1, -1):
            if not self.views[number].is_out:
                return number
        return -1

    def live(self):
        """The numbers of the messages that were not removed."""
        return [number for number in range(self.count) if not self.views[number].is_out]

    cdef int _check(self, Py_ssize_t number) except -1:
        if not 0 <= number < self.count:
            raise IndexError(f"message {number} of {self.count}")
        return 0

    # --- compaction --------------------------------------------------------------------------

    def note(
        self, KeyMap latest not None, int64_t entry_number, c_array.array counts not None, bint keeps_null_keys
    ):
        """Phase one: record the last place of each key. Returns how many messages would stay if no entry followed.

        `counts`: an int per entry, how many of its messages are the last of their keys so far, or have no key and are
        kept. Raises InvalidArgumentError if the map becomes full: the caller must provide room.
        """
        cdef seg_key_hash[TURN] hashes
        cdef int* count_of = counts.data.as_ints
        cdef Py_ssize_t first, number, stop
        cdef Py_ssize_t put = 0
        cdef int64_t place, before
        cdef MessageView* view
        cdef bint is_deleted
        check_free(&latest.use, latest)
        check_entry(entry_number)
        if counts.ob_descr.itemsize != sizeof(int) or entry_number >= len(counts):
            raise InvalidArgumentError(f"no count of entry {entry_number}")
        for first in range(0, self.count, TURN):
            stop = min(first + TURN, self.count)
            self._hash(latest, first, stop, hashes)
            for number in range(first, stop):
                view = &self.views[number]
                if view.is_out:
                    continue
                if view.key.p == NULL:
                    put += keeps_null_keys
                    count_of[entry_number] += keeps_null_keys
                    continue
                is_deleted = view.end == view.value
                place = place_of(entry_number, number) | is_deleted
                before = seg_key_get(&latest.table, hashes[number - first])
                if seg_key_put(&latest.table, hashes[number - first], place, -1) != OK:
                    raise InvalidArgumentError(f"no room for the keys of {self.count} messages")
                if before >= 0 and not before & 1 and before >> ENTRY_SHIFT <= entry_number:
                    count_of[before >> ENTRY_SHIFT] -= 1
                if not is_deleted:
                    count_of[entry_number] += 1
                    put += 1
        return put

    def kept(self, KeyMap latest not None, int64_t entry_number, bint keeps_null_keys):
        """Phase two: the numbers of the messages that stay. `entry_number` -1: the batch was compacted before, so
        `latest` has its keys only if they came again later."""
        cdef seg_key_hash[TURN] hashes
        cdef Py_ssize_t first, number, stop
        cdef MessageView* view
        cdef int64_t found
        cdef list kept = []
        latest.check_readable()
        if entry_number != -1:
            check_entry(entry_number)
        for first in range(0, self.count, TURN):
            stop = min(first + TURN, self.count)
            self._hash(latest, first, stop, hashes)
            for number in range(first, stop):
                view = &self.views[number]
                if view.is_out:
                    continue
                if view.key.p == NULL:
                    if keeps_null_keys:
                        kept.append(number)
                    continue
                found = seg_key_get(&latest.table, hashes[number - first])
                if found == (-1 if entry_number == -1 else place_of(entry_number, number)):
                    kept.append(number)
        return kept

    cdef void _hash(self, KeyMap latest, Py_ssize_t first, Py_ssize_t stop, seg_key_hash* hashes) noexcept nogil:
        """Hash the keys of a turn, and prefetch their slots."""
        cdef Py_ssize_t number
        cdef MessageView* view
        for number in range(first, stop):
            view = &self.views[number]
            if not view.is_out and view.key.p != NULL:
                hashes[number - first] = latest.hash_of(view.key.p, view.key.end - view.key.p)
                seg_key_expect(&latest.table, hashes[number - first])

    def rebuilt(self, list numbers not None, list places not None, Py_ssize_t total):
        """A payload of `total` messages: those with the `numbers` at the places `places`, placeholders between them.

        Raises InvalidArgumentError unless both lists rise, have the same length, and lie within the batch and `total`.
        """
        cdef Py_ssize_t next_number = 0
        cdef Py_ssize_t next_place = 0
        cdef Py_ssize_t size, number, place, n, _gap
        cdef bytes out
        cdef uint8_t* p
        if len(numbers) != len(places) or not len(places) <= total < 1 << NUMBER_BITS:
            raise InvalidArgumentError(f"{len(numbers)} messages for {len(places)} places of {total}")
        size = (total - len(places)) * PLACEHOLDER_BYTES
        for n in range(len(numbers)):
            number, place = numbers[n], places[n]
            if not next_number <= number < self.count or not next_place <= place < total:
                raise InvalidArgumentError(f"no rising numbers below {self.count} and {total}: {numbers}, {places}")
            next_number, next_place = number + 1, place + 1
            size += self.views[number].end - self.views[number].start
        out = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t*>PyBytes_AS_STRING(out)
        next_place = 0
        for n in range(len(numbers)):
            number, place = numbers[n], places[n]
            for _gap in range(next_place, place):
                memcpy(p, PLACEHOLDER, PLACEHOLDER_BYTES)
                p += PLACEHOLDER_BYTES
            size = self.views[number].end - self.views[number].start
            memcpy(p, self.views[number].start, size)
            p += size
            next_place = place + 1
        for _gap in range(next_place, total):
            memcpy(p, PLACEHOLDER, PLACEHOLDER_BYTES)
            p += PLACEHOLDER_BYTES
        return out


def entry_of(int64_t place):
    """The entry number of a place in a map; -1 if its message deletes the key."""
    return -1 if place < 0 or place & 1 else place >> ENTRY_SHIFT


def message_place(int64_t entry_number, bint is_deleted):
    """The place that `note` stores for message 0 of an entry."""
    check_entry(entry_number)
    return place_of(entry_number, 0) | is_deleted


cdef inline int64_t place_of(int64_t entry_number, int64_t number) noexcept nogil:
    return entry_number << ENTRY_SHIFT | number << 1


cdef int check_entry(int64_t entry_number) except -1:
    if not 0 <= entry_number < <int64_t>1 << 63 - ENTRY_SHIFT - 1:
        raise InvalidArgumentError(f"no number of an entry: {entry_number}")
    return 0


cdef inline bytes key_of(const MessageView* view):
    if view.key.p == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char*>view.key.p, view.key.end - view.key.p)
