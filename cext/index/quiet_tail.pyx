"""The appends to a log that need only a write, and the wait for its sync: nearly all of them.

Each is one step, in which the interpreter delivers no exception: so a batch changes the log completely or not at all.
Every other append takes the slow path, `WriteGate.change` and seglog.log.tail, which writes the same bytes.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from .append_result cimport Assigned
from .batch_encode cimport EncodedBatch, encode_bytes
from .batch_header cimport CODEC_NONE, LEADER_EPOCH_POS, V2_HEADER_SIZE, BatchHeader, codec_of
from .field cimport to_timestamp
from .growing_batch cimport GrowingBatch
from .quiet_appender cimport QuietAppender
from .span cimport store_u32, store_u64
from .write_gate cimport ChangeGate

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1


cdef class QuietTail(ChangeGate):
    """The end of a log. Changed only with the lock; each field may be read without it.

    active              the SegmentAppender that grows
    next_offset         one past the last offset written
    durable_offset      one past the last offset that is surely on the disk
    leader_epoch        of the batches to come
    is_epoch_due        `leader_epoch` has not begun yet, or nothing was written since opening
    is_unordered        several batches were unsynced at once, since opening
    publishes_synced    readers see what is durable, and appenders wait for that
    is_old_format       records are stored in format v0 or v1: never quietly
    follows             the last batches kept the offsets of their source: a mirror, a replica
    encoder             makes batches, and checks encoded ones
    announcements       a queue.SimpleQueue that gets the log when readers may see more of it, or None
    is_announced        it is already in there: the next appends need not add it
    batch_bytes_max     a single record that makes a larger batch is not appended quietly
    is_plain            a record is written as it comes: it is not compressed, has its own time, and may have no key
    times_from          the earliest time of a plain record, in ms
    before_max_ms       how long before the clock's time it may be
    lingering           the records that wait to be written together, or None if each append writes its own
    lingering_bytes     they are written when they have this size
    lingering_keys      each of them must have a key
    """
    cdef public QuietAppender active
    cdef public int64_t next_offset
    cdef public int64_t durable_offset
    cdef public int32_t leader_epoch
    cdef public bint is_epoch_due
    cdef public bint is_unordered
    cdef public bint publishes_synced
    cdef public bint is_old_format
    cdef public bint follows
    cdef public object encoder
    cdef public object announcements
    cdef public bint is_announced
    cdef public int64_t batch_bytes_max
    cdef public bint is_plain
    cdef public int64_t times_from
    cdef public int64_t before_max_ms
    cdef public GrowingBatch lingering
    cdef public int64_t lingering_bytes
    cdef public bint lingering_keys

    cpdef announce(self):
        """Announce the log: readers may see more of it, or it was closed. Cheap until the announcement is processed."""
        if self.announcements is not None and not self.is_announced:
            self.is_announced = True
            self.announcements.put(self)

    def append_plain(self, now_ms, key, value, headers, timestamp, bint lingers, bint waits, /):
        """Append a record as its own uncompressed batch, or, if it `lingers`, to those that wait to be written
        together; return its offset. -1: not quiet; then nothing was done.

        `timestamp`: None for `now_ms`. Not quiet, beside what `write` lists: a record that is not plain; of those that
        linger, the first one, and one that may make them due to be written. `waits` as for `write`, if it does not
        linger. Raises what encode_one, GrowingBatch.add and `write` raise.
        """
        cdef object encoder = self.encoder
        cdef int64_t now = to_timestamp(now_ms, -1)
        cdef int64_t at = now
        cdef int overflow = 0
        if timestamp is not None:
            if not PyLong_CheckExact(timestamp):
                return -1
            at = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
            if overflow:
                return -1
        if not self.times_from <= at <= now or now - at > self.before_max_ms:
            return -1
        if lingers:
            if key is None and self.lingering_keys:
                return -1
            return self.let_linger(at, key, value, headers)
        if self.lingering is not None or not self.is_plain or not self.is_quiet():
            return -1
        return self.write_batch(encode_bytes(at, key, value, headers), at, encoder, waits, False)

    def write(self, batch not None, encoder, bint waits=True, bint follows=False):
        """Write a batch that `encoder` made (EncodedBatch) or checked (Assigned), at the next offset; return its last
        offset. -1: not quiet; then nothing was done.

        `waits`: if readers see only durable records, return when it is durable. `follows`: a v2 batch that keeps its
        offset and its epoch, as a replica's, after others of its kind.

        Not quiet: the first batch since opening or of an epoch, and the first one of its kind (`follows`); one of a
        producer, which the log would have to remember; one with tags; several batches; one of another encoder than the
        log's. Raises StorageError, LogFailedError.
        """
        return self.write_batch(batch, 0, encoder, waits, follows)

    cdef int64_t write_batch(
        self, object batch, int64_t timestamp, object encoder, bint waits, bint follows
    ) except -2:
        cdef int64_t last
        cdef int64_t number
        if not self.is_open():
            return -1
        self.lock.take()
        try:
            if encoder is not self.encoder:
                last = -1
            elif type(batch) is bytes:
                last = self.put_one(<bytes>batch, timestamp)
            elif type(batch) is EncodedBatch:
                last = self.put_made(<EncodedBatch>batch)
            elif follows:
                last = self.put_followed(<Assigned?>batch)
            else:
                last = self.put_encoded(<Assigned?>batch)
            number = self.number
        except BaseException as error:
            self.give_after(error)
            raise
        self.lock.give()
        if waits and last >= 0 and self.publishes_synced:
            self.wait(number)
        return last

    cdef int64_t let_linger(self, int64_t timestamp, object key, object value, object headers) except -2:
        cdef int64_t offset
        if not self.is_open():
            return -1
        self.lock.take()
        try:
            offset = self.put_lingering(timestamp, key, value, headers)
        except BaseException as error:
            self.give_after(error)
            raise
        self.lock.give()
        return offset

    # --- with the lock ---------------------------------------------------------------------------

    cdef int64_t put_one(self, bytes made, int64_t timestamp) except -2:
        cdef int64_t offset = self.next_offset
        cdef uint8_t* header = <uint8_t*>PyBytes_AS_STRING(made)
        if not self.is_quiet() or len(made) > self.batch_bytes_max or offset == INT64_MAX:
            return -1
        # In place, as EncodedBatch.place: nobody else has seen these bytes, and no checksum covers the two fields.
        store_u64(header, <uint64_t>offset)
        store_u32(header + LEADER_EPOCH_POS, <uint32_t>self.leader_epoch)
        return offset if self.write_quietly(made, offset, offset, timestamp) else -1

    cdef int64_t put_lingering(self, int64_t timestamp, object key, object value, object headers) except -2:
        cdef GrowingBatch batch = self.lingering
        cdef int64_t bytes_max
        if batch is None or batch.made is None or not self.is_open():
            return -1
        bytes_max = min(batch.max_bytes, self.lingering_bytes - 1 + V2_HEADER_SIZE)
        if not batch.put(key, value, headers, timestamp, bytes_max):
            return -1
        return self.next_offset + batch.made.batch.count - 1

    cdef int64_t put_made(self, EncodedBatch made) except -2:
        cdef int64_t first = self.next_offset
        cdef int64_t last = first + made.batch.count - 1
        if self.is_old_format or not self.is_quiet():
            return -1
        made.place(first, self.leader_epoch)
        return last if self.write_quietly(made, first, last, made.batch.max_timestamp) else -1

    cdef int64_t put_encoded(self, Assigned assigned) except -2:
        cdef const BatchHeader* row = assigned.table.rows
        cdef int64_t first = self.next_offset
        if (
            assigned.table.n != 1 or row.producer_id >= 0 or row.magic < 0 or not self.is_quiet()
        ):
            return -1
        if assigned.is_ours and not (row.magic == 0 and codec_of(row) != CODEC_NONE) and assigned.count > 0:
            assigned.place(first, self.leader_epoch)
        elif assigned.first_offset != first:    # its offsets lie in compressed bytes
            return -1
        if not self.write_quietly(assigned.raw, first, assigned.last_offset, assigned.max_timestamp):
            return -1
        return assigned.last_offset

    cdef int64_t put_followed(self, Assigned assigned) except -2:
        cdef const BatchHeader* row = assigned.table.rows
        # (While no epoch is due, that of the log is the last one in its cache: no other begins with this batch.)
        if (
            assigned.table.n != 1 or row.magic != 2 or row.producer_id >= 0
            or row.leader_epoch != self.leader_epoch or row.position != 0 or row.size_bytes != assigned.raw.size
            or assigned.first_offset < self.next_offset or not self.follows or not self.is_ready()
            or not self.write_quietly(assigned.raw, assigned.first_offset, assigned.last_offset, assigned.max_timestamp)
        ):
            return -1
        return assigned.last_offset

    cdef bint is_quiet(self) noexcept:
        return not self.follows and self.is_ready()

    cdef bint is_ready(self) noexcept:
        return (
            self.is_open() and not self.is_epoch_due and self.active is not None
            and (self.is_unordered or self.durable_offset == self.next_offset)
        )

    cdef bint write_quietly(self, object made, int64_t first, int64_t last, int64_t max_timestamp) except? False:
        self.is_changing = True
        if not self.active.put_quietly(made, first, last, max_timestamp):
            self.is_changing = False
            return False
        self.next_offset = last + 1
        self.number += 1
        self.is_changing = False
        if not self.publishes_synced:
            self.announce()
        return True
