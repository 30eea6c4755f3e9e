"""Gathers entries that wait to be written into one batch: each is a record, with the broker's part put in front.

An entry is first checked, outside of any lock, then copied once, into the batch. The check covers its frame and that
its metadata parses; the metadata's times and message counts are kept.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from seglog.errors import CorruptRecordError, InvalidArgumentError, RecordTooLargeError

from .batch_builder cimport append_record
from .batch_encode cimport EncodedBatch, begin_encoded
from .batch_header cimport BatchHeader
from .entry_frame cimport FrameView, MessageFieldsView, read_frame, read_message_fields
from .one_at_a_time cimport begin_alone, end_alone
from .output cimport ensure_room
from .protobuf_span cimport store_uvarint
from .record_view cimport RecordView
from .span cimport Span, store_u16, store_u32
from .status cimport NO_MEMORY, OK

cdef enum:
    BROKER_MAGIC = 0x0E02       # Commands.magicBrokerEntryMetadata
    BROKER_HEAD_BYTES = 6       # the magic and the size
    MAX_BROKER_BYTES = BROKER_HEAD_BYTES + 22   # two tags, two varints


@cython.final
cdef class CheckedEntries:
    """The result of check_entries. `size_bytes`: of all entries together."""
    cdef list entries
    cdef int64_t* times         # publish times in ms, -1 if beyond int64
    cdef int32_t* counts        # messages per entry, 1 or more
    cdef readonly int64_t size_bytes

    def __cinit__(self):
        self.entries = []

    def __dealloc__(self):
        free(self.times)
        free(self.counts)

    def __len__(self):
        return PyList_GET_SIZE(self.entries)

    def size_between(self, Py_ssize_t first, Py_ssize_t stop):
        """The size of the entries [first, stop) in bytes."""
        if first == 0 and stop == PyList_GET_SIZE(self.entries):
            return self.size_bytes
        return sum(map(len, self.entries[first:stop]))


def check_entries(list entries not None, list counts, int64_t max_bytes):
    """Check that these are headers and payload as producers send them; returns CheckedEntries.

    `entries`: bytes. `counts`: how many messages each entry holds, as ints; None, for the list or for one entry: as its
    metadata says. Raises InvalidArgumentError for bytes that are not an entry, for an entry that already has a broker's
    part (only EntryBatch adds it: Pulsar's #12018) and for a count below 1, RecordTooLargeError above `max_bytes`;
    `offset` is the index of the entry in the list.
    """
    cdef CheckedEntries checked = CheckedEntries.__new__(CheckedEntries)
    cdef Py_ssize_t count = PyList_GET_SIZE(entries)
    cdef Py_ssize_t number
    cdef object entry, given
    cdef Span s
    cdef const uint8_t* start
    cdef FrameView frame
    cdef MessageFieldsView message
    if counts is not None and PyList_GET_SIZE(counts) != count:
        raise InvalidArgumentError(f"{count} entries and {PyList_GET_SIZE(counts)} counts")
    checked.times = <int64_t*>malloc(max(count, 1) * sizeof(int64_t))
    checked.counts = <int32_t*>malloc(max(count, 1) * sizeof(int32_t))
    if checked.times == NULL or checked.counts == NULL:
        raise MemoryError
    for number in range(count):
        entry = <object>PyList_GET_ITEM(entries, number)
        if not PyBytes_CheckExact(entry):
            raise TypeError(f"entry {number} is bytes, not {type(entry).__name__}")
        start = s.p = <const uint8_t*>PyBytes_AS_STRING(entry)
        s.end = s.p + PyBytes_GET_SIZE(entry)
        if s.end - s.p > max_bytes:
            raise RecordTooLargeError(
                f"an entry of {s.end - s.p} bytes: maxMessageSize is {max_bytes}",
                offset=number if count > 1 else None,
                hint='pass config={"maxMessageSize": ...} when you open the queue or ledger, if such data is wanted')
        try:
            read_frame(&s, &frame)
            if frame.broker.p != NULL:
                raise InvalidArgumentError(
                    "the entry begins with a broker's part (0x0e02) already: it gets one here", offset=number)
            read_message_fields(frame.metadata, start, &message)
        except CorruptRecordError as error:
            # Nothing stored is damaged: the caller passed other bytes.
            raise InvalidArgumentError(
                f"not an entry: {error.what}", offset=number,
                hint="pass headers and payload as a producer sends them; seglog.pulsar.build_entry makes them",
            ) from error
        checked.times[number] = message.publish_time if message.publish_time > -1 else -1
        given = None if counts is None else counts[number]
        if given is None:
            checked.counts[number] = message.num_messages if message.num_messages > 1 else 1
        elif not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= 0x7FFFFFFF:
            raise InvalidArgumentError(f"an entry holds one message or more, not {given!r}", offset=number)
        else:
            checked.counts[number] = given
        checked.size_bytes += s.end - start
        # Keep the checked object, because the caller's list may change.
        checked.entries.append(entry)
    return checked


@cython.final
cdef class EntryBatch:
    """An empty batch. One thread at a time. A call that raises changes nothing.

    `taken`: the batch that was taken last; the caller sets it to None.
    """
    def __dealloc__(self):
        free(self.scratch.first)

    def __len__(self):
        """How many entries are waiting."""
        return 0 if self.made is None else self.made.batch.count

    def add(self, list entries not None, list timestamps not None):
        """Add any bytes, each with its time in ms, -1 for none. Raises RecordTooLargeError beyond 2 GiB, TypeError."""
        cdef BatchHeader before
        cdef int64_t size
        cdef Py_ssize_t number
        cdef object entry
        begin_alone(&self.use, self)
        try:
            if PyList_GET_SIZE(timestamps) != PyList_GET_SIZE(entries):
                raise InvalidArgumentError(
                    f"{PyList_GET_SIZE(entries)} entries and {PyList_GET_SIZE(timestamps)} times")
            self._begin(&before, &size)
            try:
                for number in range(PyList_GET_SIZE(entries)):
                    # A number that is not an int is asked for its value, by code that may do anything.
                    if number >= PyList_GET_SIZE(entries) or number >= PyList_GET_SIZE(timestamps):
                        raise InvalidArgumentError("the lists changed while they were read")
                    entry = entries[number]
                    if not PyBytes_CheckExact(entry):
                        raise TypeError(f"entry {number} is bytes, not {type(entry).__name__}")
                    self._append(
                        <const uint8_t*>PyBytes_AS_STRING(entry), PyBytes_GET_SIZE(entry), timestamps[number])
            except BaseException:
                self._undo(&before, size)
                raise
        finally:
            end_alone(&self.use)

    cdef int add_one(self, bytes entry, int64_t timestamp) except -1:
        cdef BatchHeader before
        cdef int64_t size
        begin_alone(&self.use, self)
        try:
            self._begin(&before, &size)
            try:
                self._append(<const uint8_t*>PyBytes_AS_STRING(entry), PyBytes_GET_SIZE(entry), timestamp)
            except BaseException:
                self._undo(&before, size)
                raise
        finally:
            end_alone(&self.use)
        return 0

    def add_checked(
        self, CheckedEntries checked not None, Py_ssize_t first, Py_ssize_t stop, int64_t broker_timestamp,
        int64_t index, bint puts_timestamp, bint puts_index,
    ):
        """Add the entries [first, stop), each with the requested fields of the broker's part in front of it.

        `broker_timestamp` in ms, 0 or above; `index`: of the last message before these, -1 for none. The time of a
        record is the broker's if it is stored, else the publish time. Raises RecordTooLargeError beyond 2 GiB.
        """
        cdef BatchHeader before
        cdef int64_t size
        cdef Py_ssize_t number
        cdef object entry
        cdef const uint8_t* data
        cdef uint8_t* p
        begin_alone(&self.use, self)
        try:
            if not 0 <= first <= stop <= PyList_GET_SIZE(checked.entries):
                raise IndexError(f"entries {first} to {stop} of {PyList_GET_SIZE(checked.entries)}")
            if index < -1 or (puts_timestamp and broker_timestamp < 0):
                raise InvalidArgumentError(f"no broker's part: time {broker_timestamp}, index {index}")
            self._begin(&before, &size)
            try:
                for number in range(first, stop):
                    entry = <object>PyList_GET_ITEM(checked.entries, number)
                    data = <const uint8_t*>PyBytes_AS_STRING(entry)
                    if not puts_timestamp and not puts_index:
                        self._append(data, PyBytes_GET_SIZE(entry), checked.times[number])
                        continue
                    if puts_index:
                        if index > INT64_MAX - checked.counts[number]:
                            raise InvalidArgumentError("no index is left: they are int64")
                        index += checked.counts[number]
                    self.scratch.size = 0
                    if ensure_room(&self.scratch, MAX_BROKER_BYTES + PyBytes_GET_SIZE(entry)) != OK:
                        raise MemoryError
                    p = self.scratch.first + BROKER_HEAD_BYTES
                    if puts_timestamp:
                        p[0] = 0x08
                        p = store_uvarint(p + 1, <uint64_t>broker_timestamp)
                    if puts_index:
                        p[0] = 0x10
                        p = store_uvarint(p + 1, <uint64_t>index)
                    store_u16(self.scratch.first, BROKER_MAGIC)
                    store_u32(self.scratch.first + 2, <uint32_t>(p - self.scratch.first - BROKER_HEAD_BYTES))
                    memcpy(p, data, PyBytes_GET_SIZE(entry))
                    p += PyBytes_GET_SIZE(entry)
                    self._append(
                        self.scratch.first, p - self.scratch.first,
                        broker_timestamp if puts_timestamp else checked.times[number])
            except BaseException:
                self._undo(&before, size)
                raise
            return index
        finally:
            end_alone(&self.use)

    def take(self, int64_t base_offset):
        """Return the waiting entries as one batch, EncodedBatch. Then no entry is waiting.

        Raises InvalidArgumentError if no entry is waiting.
        """
        return self.take_all(base_offset)

    cdef EncodedBatch take_all(self, int64_t base_offset):
        cdef EncodedBatch made = self.made
        begin_alone(&self.use, self)
        try:
            if made is None or made.batch.count == 0:
                raise InvalidArgumentError("a batch of no entries")
            # One statement: if an exception reaches the caller next, the batch is either still waiting or in `taken`.
            self.taken, self.made = made._sealed(None, base_offset), None
            return self.taken
        finally:
            end_alone(&self.use)

    cdef int _begin(self, BatchHeader* before, int64_t* size) except -1:
        if self.made is None:
            self.made = begin_encoded(0, None, -1, None, -1, -1, -1, False, False, None)
        before[0] = self.made.batch
        size[0] = self.made.out.size
        return 0

    cdef int _undo(self, const BatchHeader* before, int64_t size) except -1:
        self.made.batch = before[0]
        self.made.out.size = size
        return 0

    cdef int _append(self, const uint8_t* data, int64_t size, int64_t timestamp) except -1:
        cdef RecordView record
        cdef int status
        if size > 0x7FFFFFFF:
            raise RecordTooLargeError("a batch is larger than its 32-bit size can say")
        if self.made.batch.count == 0:
            self.made.batch.base_timestamp = timestamp
        record.offset = self.made.batch.count
        record.timestamp = timestamp
        record.key = NULL
        record.key_size = -1
        record.value = data
        record.value_size = <int32_t>size
        record.headers = NULL
        record.headers_size = record.header_count = 0
        # NULL for the readable end: copy exactly the entry's bytes, without reading beyond them.
        status = append_record(&self.made.out, &self.made.batch, &record, NULL)
        if status == NO_MEMORY:
            raise MemoryError
        if status != OK:
            raise RecordTooLargeError("a batch is larger than its 32-bit size can say")
        self.made._note(&record)
        return 0
