"""The appends to a segment that need only a write: nearly all of them.

An append is quiet if the segment need not roll for it, no limit of the indexes is near, and disk space is reserved for
it. The appender knows in advance how long this stays so, and states it in `quiet_bytes` and its neighbours; every other
append takes the slow path (seglog.segment.appender), which then updates these. Both write the same bytes by the same
calls. The speed of a log of small batches depends on this: Python's frames around one pwrite cost twice as much as it
does.
"""
from libc.stdint cimport int64_t

from seglog.errors import StorageError

from .growing_end cimport EndNumbers
from .status cimport OK

cdef enum:
    # This many index entries wait to be written together: see SegmentAppender.
    WAITING_ENTRIES = 32


cdef class QuietAppender:
    """A segment's end, for most appends. A subclass defines `write_entries`, `_fail` and `_refuse_sync`.

    written     up to where batches and their index entries are written
    seen        an end that quiet appends move forward, too; None if there is none
    quiet_*     an append of up to this size, time and offset is quiet; -1: none is
    """

    def append_quietly(self, raw not None, int64_t base_offset, int64_t last_offset, int64_t max_timestamp):
        """Write one encoded batch that matches the arguments. Returns False if not quiet; then nothing was done.

        Raises StorageError; nothing can be appended then.
        """
        return self.put_quietly(raw, base_offset, last_offset, max_timestamp) == 1

    cdef int put_quietly(
        self, object raw, int64_t base_offset, int64_t last_offset, int64_t max_timestamp
    ) except -1:
        cdef EndNumbers end = self.written.numbers
        cdef int64_t size_bytes = len(raw)
        cdef int64_t entries = self._builder.now.offset_entries
        if (
            size_bytes > self.quiet_bytes
            or max_timestamp > self.quiet_until_ms
            or last_offset > self.quiet_until_offset
            or base_offset < end.next_offset
            or not self._takes_batches
            or self._builder.use.is_alone
            or self._builder.try_one(last_offset, max_timestamp, size_bytes) != OK
        ):
            return False
        try:
            self._log.append_piece(raw)
            end.position += size_bytes
            end.next_offset = last_offset + 1
            self.written.put(&end)
            self.quiet_bytes -= size_bytes
            if self._builder.now.offset_entries != entries:
                if self.has_enough_entries:
                    self.write_entries()
                if self._builder.has_no_room():
                    self.quiet_bytes = -1
        except BaseException as error:
            self._fail(error)
            raise
        if self.seen is not None:
            self.seen.put(&self.written.numbers)
        return True

    def sync(self):
        """Return when the batches before `end`, as of the call, are on the disk (fdatasync of the .log).

        The indexes are not synced: after a crash they are rebuilt from the log. If a write of another thread was
        interrupted, the data before it is still synced: the file itself remembers failures of the disk.
        """
        if self.failure is not None:
            self._refuse_sync()
        try:
            self._log.sync_data()
        except StorageError as error:       # an interrupt changes nothing: the next caller syncs
            self._fail(error)
            raise

    @property
    def has_enough_entries(self):
        """Whether enough index entries wait to be written."""
        return self._builder.waiting_entries() >= WAITING_ENTRIES
