"""The end of a queue's journal, for most appends: records of one message, for which space and zeros are there.

Such an append needs only a write. The journal (seglog.ledger.managed.journal) knows in advance up to where this stays
so, and states it in `_quiet_to`; it makes all others. Both write the same bytes by the same calls.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from .journal_record cimport ONE_ITEM_BYTES, store_one
from .write_gate cimport ChangeGate


cdef class JournalEnd(ChangeGate):
    """A write gate whose numbers count records. A subclass calls `_file`, `journal_id` and the rest its own."""

    cdef bint is_quiet(self) noexcept:
        return self._file is not None and self._file._position + ONE_ITEM_BYTES <= self._quiet_to and self.is_open()

    cdef int append_one(
        self, int kind, int64_t ledger_id, int64_t entry_id, int32_t batch_index, uint32_t number, uint64_t at_ms,
        uint16_t subscription
    ) except -1:
        cdef bytes raw = PyBytes_FromStringAndSize(NULL, ONE_ITEM_BYTES)
        while True:
            self.refuse()
            self.lock.take()
            if self.is_open():
                break
            self.lock.give()
            self.refuse()
            self.reload()
        store_one(
            <uint8_t*>PyBytes_AS_STRING(raw), kind, <uint64_t>ledger_id, <uint64_t>entry_id, batch_index, number, at_ms,
            <uint64_t>self.journal_id, <uint64_t>self._file._position, <uint64_t>self._synced_to,
            subscription)
        self.is_changing = True
        try:
            self._file.append_piece(raw)
            self.number += 1
        except BaseException as error:
            self.give_after(error)
            raise
        self.is_changing = False
        self.lock.give()
        return 0

    def sync(self):
        """Sync the file, as the gate calls it; return the number of the last record in it."""
        cdef int64_t number, position
        if self._file is None:
            raise TypeError("a journal without a file")
        self.lock.take()
        number, position = self.number, self._file._position
        self.lock.give()
        self._file.sync_data()
        self._synced_to = position
        return number

    def await_number(self, int64_t number):
        """Return when the records up to this one are as durable as `fsync` says."""
        if self._waits:
            self.wait(number)
