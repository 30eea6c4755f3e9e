"""What a cursor does for most jobs of a queue: they are read when they are put, and acknowledged in order.

The other cases are those of seglog.ledger.managed.cursor, whose fields these are.
"""
from libc.stdint cimport int64_t

from .pair cimport is_pair, new_pair


cdef class AcknowledgedEnds:
    """What seglog.ledger.managed.acknowledgements.Acknowledgements keeps, and a step in order looks at."""


cdef class QuietCursor:
    """The fields of a ManagedCursor that decide these steps. A subclass fills them, and defines `_pass_slowly`."""

    cdef bint pass_next(self, int64_t ledger_id, int64_t entry_id) except -1:
        cdef AcknowledgedEnds acknowledged
        cdef object extent
        self.check_filled()
        self._lock.take()
        try:
            acknowledged, extent = self._acknowledged, self._shown.extent
            if extent is None or self._is_closed:
                return False
            # Nothing can be between two neighbours of a ledger. (A mark-delete position after the read one is either
            # this neighbour, or not before the entry.)
            if (
                extent.growing_id == ledger_id and not acknowledged.entries
                and is_pair(self._read, ledger_id, entry_id - 1) and acknowledged.mark_delete <= self._read
            ):
                self._read = new_pair(type(self._read), ledger_id, entry_id)
                return True
            return self._pass_slowly(ledger_id, entry_id)
        finally:
            self._lock.give()

    cdef bint acknowledge_next(self, int64_t ledger_id, int64_t entry_id) except -1:
        cdef AcknowledgedEnds acknowledged
        cdef object extent
        self.check_filled()
        self._lock.take()
        try:
            acknowledged, extent = self._acknowledged, self._shown.extent
            if (
                extent is None or self._is_closed or self._is_due or not self._is_journaled
                or acknowledged.entries or acknowledged.batches
                or not is_pair(acknowledged.mark_delete, ledger_id, entry_id - 1) or extent.growing_id != ledger_id
            ):
                return False
            self._is_dirty = True       # first, so that after an interrupt the next flush writes what is left
            acknowledged.mark_delete = new_pair(type(acknowledged.mark_delete), ledger_id, entry_id)
            return True
        finally:
            self._lock.give()

    cdef int check_filled(self) except -1:
        if self._lock is None or self._acknowledged is None:
            raise TypeError("a cursor without its fields")
        return 0
