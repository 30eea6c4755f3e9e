"""The adds to a managed ledger that need only a write and a sync: nearly all of them.

An add is quiet if the last ledger has room for it, callers wait for syncs, and no broker's part is put in front. All
others take the slow path (seglog.ledger.managed.appender, seglog.ledger.entry_writer); both write the same bytes by the
same calls, under the same locks.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from posix.unistd cimport getpid

from .batch_encode cimport EncodedBatch
from .growing_end cimport EndNumbers, GrowingEnd
from .write_gate cimport ChangeGate

from seglog._kernels.shield import shielded
from seglog.errors import LogFailedError

cdef enum:
    # Batches up to this size are passed to the file as bytes: the fast path saves more than the copy costs.
    SHORT_BYTES = 8 << 10
    SEGMENT_BYTES = 0x7FFFFFFF
    # The most that an entry needs besides its bytes: a record's head, a batch's, and what a full ledger is counted by.
    ENTRY_OVERHEAD_BYTES = 32 + 61
    LEDGER_OVERHEAD_BYTES = 128


cdef class QuietWriter(ChangeGate):
    """The end of a growing ledger, for most entries. A subclass defines `sync_slowly`, and fills the fields."""

    cdef int64_t put_one(self, bytes entry, int64_t timestamp, int64_t most) except -1:
        if self._waiting is None:
            raise TypeError("a writer without its fields")
        self.lock.take()
        if not self.is_open():
            self.lock.give()
            return 0
        self.is_changing = True
        try:
            self._waiting.add_one(entry, timestamp)
            self.size_bytes += most
            self.next_id += 1
            self.number += 1
        except BaseException as error:
            self.give_after(error)
            raise
        self.is_changing = False
        self.lock.give()
        return self.number

    def sync(self):
        """Write what waits, and sync it, as the gate calls it: alone with the files, except for puts. Returns the
        number of the last put in it."""
        cdef EndNumbers end
        cdef int64_t number
        cdef bint is_written
        if not self._waits or self.published is None or self._waiting is None:
            return self.sync_slowly()
        self.lock.take()
        try:
            is_written = self.write_waiting(&end)
            number = self.number
        except BaseException as error:
            self.broke(error)
            self.lock.give()
            raise
        self.is_changing = False
        self.lock.give()
        if not is_written:
            return self.sync_slowly()
        self.active.sync()
        self.published.put(&end)        # only the thread that is alone with the files publishes
        if end.position - self._synced_bytes >= self._told_bytes and self.when_synced is not None:
            self._synced_bytes = end.position
            shielded(self.when_synced, end.position)
        return number

    cdef bint write_waiting(self, EndNumbers* end) except -1:
        """Write what waits as one batch, with the lock, and return whether it did; False: nothing was done."""
        cdef GrowingEnd written
        cdef EncodedBatch made
        cdef object raw
        if self.is_torn or self._waiting.taken is not None or not len(self._waiting):
            return False
        self.is_changing = True
        written = <GrowingEnd?>self.active.written
        made = self._waiting.take_all(written.numbers.next_offset)
        raw = made
        if made.out.size <= SHORT_BYTES:
            raw = PyBytes_FromStringAndSize(<const char*>made.out.first, made.out.size)
        if not self.active.append_quietly(
            raw, made.batch.base_offset, made.batch.last_offset, made.batch.max_timestamp
        ):
            self.active.append_batch(raw, made.batch.base_offset, made.batch.last_offset, made.batch.max_timestamp)
        self._waiting.taken = None
        end[0] = written.numbers
        self.size_bytes = end.position
        return True


cdef class QuietAdds:
    """What an add to a managed ledger looks at. A subclass fills the fields; `_tail` has `shown`, `held` and
    `fail_outside`."""

    def add_quietly(self, bytes entry not None, int64_t timestamp):
        """Add an entry of one message, which is as a producer sends it; `timestamp`: its publish time, now, in ms.
        Returns (ledger id, entry id) when it is as durable as callers wait for; None if that is not quiet, and nothing
        was done. Raises LogFailedError, and what refuses changes."""
        return self.add_one(entry, timestamp)

    cdef object add_one(self, bytes entry, int64_t timestamp):
        cdef ChangeGate tail = self._tail
        cdef QuietWriter writer
        cdef int64_t number = 0, entry_id = 0
        cdef object ledger = None, listener
        if tail is None:
            raise TypeError("adds without a managed ledger")
        if tail.held._pid != getpid():      # another thread of the parent may have had the lock
            return None
        tail.refuse()
        tail.lock.take()
        try:
            ledger = self.ledger_for(PyBytes_GET_SIZE(entry), timestamp) if tail.is_open() else None
            if ledger is not None:
                writer = <QuietWriter?>ledger._writer
                tail.is_changing = True
                number = writer.put_one(entry, timestamp, PyBytes_GET_SIZE(entry) + ENTRY_OVERHEAD_BYTES)
                entry_id = writer.next_id - 1
        except BaseException as error:
            tail.give_after(error)
            raise
        tail.is_changing = False
        tail.lock.give()
        if not number:
            return None
        try:
            writer.wait_for(number)
        except LogFailedError as error:
            tail.fail_outside(error)
            raise
        for listener in self._listeners:
            listener()
        return ledger.ledger_id, entry_id

    cdef object ledger_for(self, int64_t size_bytes, int64_t timestamp):
        """The last ledger, if an add to it is quiet; otherwise None. With the lock."""
        cdef object held = self._tail.held
        cdef object extent = self._tail.shown.extent
        cdef object ledger
        cdef QuietWriter writer
        if (
            held._entry is None or self.interceptors or size_bytes > self._max_message_bytes
            or extent is None or extent.active is None
        ):
            return None
        ledger = extent.active
        if not isinstance(ledger._writer, QuietWriter):     # it is sealed
            return None
        writer = <QuietWriter>ledger._writer
        if (
            not writer._waits or not writer.is_open() or writer.active.is_given_back
            or writer.next_id >= self._most_entries or writer.size_bytes >= self._most_bytes
            or size_bytes + LEDGER_OVERHEAD_BYTES > SEGMENT_BYTES - writer.size_bytes
            or timestamp - <int64_t>ledger.created_ms >= self._most_age_ms
        ):
            return None
        return ledger
