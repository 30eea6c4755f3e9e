"""Appends one piece to an open file, by one system call with minimal overhead.

The speed of a log of small batches depends on this, and so does that of the syncs of a queue: between two of them all
caches are cold. Everything but the plain case is left to the Python class above (seglog.fs.files.WritableFile), which
alone interprets errors: several pieces, a closed file, one that failed, a short write, a test double without a
descriptor. Nothing here decides what is written where; rooms above fs use that class.

"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from .ending cimport is_last_thread

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pwrite(int fd, const void* buffer, size_t size, long position)
    int fsync(int fd)

cdef extern from * nogil:
    """
    #if defined(__linux__)
    #include <fcntl.h>
    #include <linux/falloc.h>
    static int seg_reserve(int fd, long position, long size)
    {
        return fallocate(fd, FALLOC_FL_KEEP_SIZE, position, size);
    }
    #else
    #include <errno.h>
    static int seg_reserve(int fd, long position, long size)
    {
        (void)fd, (void)position, (void)size;
        errno = ENOTSUP;
        return -1;
    }
    #endif
    #if defined(__linux__)
    #define seg_sync_data fdatasync
    #else
    #define seg_sync_data fsync
    #endif
    #if defined(__APPLE__)      /* there, both leave bytes in the drive's cache */
    #define SEG_SYNCS_PLAINLY 0
    #else
    #define SEG_SYNCS_PLAINLY 1
    #endif
    """
    int seg_reserve(int fd, long position, long size)
    int seg_sync_data(int fd)
    bint SEG_SYNCS_PLAINLY

cdef enum:
    # macOS refuses INT_MAX and more, Linux stops short there: see WritableFile.
    PIECE_BYTES_MAX = 1 << 30


cdef class AppendedFile:
    """The position of the next append, and the descriptor. A subclass defines `append`, `_sync_all`; `_refuse_write`,
    `_refuse_sync` for an errno; `_collected`, for when the object is garbage-collected with an open descriptor (see
    base/unclosed.pyx).
    """

    def __cinit__(self, *args, **kwargs):
        self._fd = -1

    def __del__(self):
        if self._fd >= 0:
            try:
                self._collected()
            except Exception:
                if not is_last_thread():        # otherwise the modules that it uses may be empty already
                    raise

    # No asynchronous exception comes between the work of `open` and `close` (os.open, os.close) and recording its
    # result: otherwise a descriptor would leak, or be closed again when it belongs to another file.

    def open_descriptor(self, open, path, int flags):
        """Store the descriptor that `open(path, flags)` returns."""
        self._fd = open(path, flags)

    def close_descriptor(self, close):
        """Call `close` with the descriptor, if there is one; it is gone even if that fails."""
        cdef int fd = self._fd
        self._fd = -1
        if fd >= 0:
            close(fd)

    def append_bytes(self, data):
        """Append one piece, a contiguous bytes-like object. Returns where it begins."""
        return self.append_piece(data)

    cdef int64_t append_piece(self, object data) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t written
        cdef Py_ssize_t size_bytes
        cdef int64_t begin = self._position
        cdef int number
        if self._fd < 0 or self._closed or self._failure is not None:
            return self.append(data)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        size_bytes = view.len
        if not 0 < size_bytes <= PIECE_BYTES_MAX:
            PyBuffer_Release(&view)
            return self.append(data)
        self._writes += 1
        with nogil:
            written = pwrite(self._fd, view.buf, <size_t>size_bytes, begin)
            number = errno
        self._writes += 1
        PyBuffer_Release(&view)
        if written == size_bytes:
            self._position = begin + written
            return begin
        if written < 0:
            if number != EINTR:
                self._failure = OSError(number, "the write failed")     # until there are better words
                self._refuse_write(number)
            PyErr_CheckSignals()
            written = 0
        # A short write is not an error yet: the next call says why, or continues.
        self._position = begin + written
        self.append(memoryview(data).cast("B")[written:])
        return begin

    # A sync covers the writes that ended before it began. One that another thread makes beside it may land later: so a
    # write counts when it begins and when it ends, and a sync has covered all if no count is newer than its begin.

    @property
    def has_unsynced_writes(self):
        """Whether a write was begun or ended since the last sync that succeeded began."""
        return self._writes != self._synced_writes

    def note_write(self):
        """Note that a write begins or has ended, in one step, whichever thread calls it."""
        self._writes += 1

    def note_sync(self, int64_t writes):
        """Note that a sync succeeded. `writes`: `_writes` when it began."""
        if writes > self._synced_writes:
            self._synced_writes = writes

    def sync(self):
        """Return when the bytes and the length are on the disk (fsync). The name is not: see sync_directory."""
        self.sync_whole(False)

    def sync_data(self):
        """As sync(), but without times (fdatasync): cheaper, for a file that is only appended to."""
        self.sync_whole(True)

    cdef int sync_whole(self, bint data_only) except -1:
        if self._fd < 0 or self._closed or self._failure is not None or not SEG_SYNCS_PLAINLY:
            self._sync_all(data_only)
            return 0
        return self.sync_descriptor(data_only)

    cdef int sync_descriptor(self, bint data_only) except -1:
        """Call fsync or fdatasync, in one step with recording its result."""
        cdef int result
        cdef int number
        cdef int64_t writes = self._writes
        while True:
            with nogil:
                result = seg_sync_data(self._fd) if data_only else fsync(self._fd)
                number = errno
            if result == 0:
                if writes > self._synced_writes:
                    self._synced_writes = writes
                return 0
            if number != EINTR:
                self._failure = OSError(number, "the sync failed")      # until there are better words
                self._refuse_sync(number)
            PyErr_CheckSignals()


def reserve(int fd, int64_t position, int64_t size_bytes):
    """Reserve disk space for the bytes [position, position + size_bytes), without making the file longer.

    False if the system or the file system cannot do this, or has no space.
    """
    with nogil:
        done = seg_reserve(fd, position, size_bytes)
    return done == 0
