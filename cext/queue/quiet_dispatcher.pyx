"""What a dispatcher does for most jobs of a queue: each is the next one that would be read, so it need not be read.

The rest is seglog.topic.dispatcher, whose fields these are.
"""
from libc.stdint cimport int64_t


cdef class QuietDispatcher:
    """The fields of a Dispatcher that decide this. A subclass fills them."""

    def _hand_over(self, position not None):
        """Count an entry that was just added, not delayed, as dispatched if it is the one that would be read next;
        return whether it is. The caller then need not read it back."""
        return self.hand_over(position[0], position[1])

    cdef bint hand_over(self, int64_t ledger_id, int64_t entry_id) except -1:
        if self._lock is None or self._cursor is None or self._read is None or self._taken is None:
            raise TypeError("a dispatcher without its fields")
        self._lock.take()
        try:
            if self._is_closed or self._read or not self._cursor.pass_next(ledger_id, entry_id):
                return False
            self._taken.put(ledger_id, entry_id)
            return True
        finally:
            self._lock.give()
