"""The append of one piece to an open file, by one system call and with nothing around it.

A log of small batches takes as long as this does. What is not plain is left to the Python class above
(seglog.fs.files.WritableFile), which alone knows what an error means: several pieces, a closed file, one that failed,
a short write, a double of a test that has no descriptor. Here nobody decides what is written where; rooms above
fs go through that class.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stddef cimport size_t
from libc.stdint cimport int64_t

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pwrite(int fd, const void* buffer, size_t size, long position)

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
    """
    int seg_reserve(int fd, long position, long size)

cdef enum:
    # macOS refuses INT_MAX and more, Linux stops short there: see WritableFile.
    PIECE_BYTES_MAX = 1 << 30


cdef class AppendedFile:
    """Where the next append goes, and the descriptor. A subclass has `append`, and `_refuse_write` for an errno."""

    def __cinit__(self, *args, **kwargs):
        self._fd = -1

    def append_bytes(self, data):
        """`append` of one piece: a bytes-like object of which the bytes lie together. Returns where they begin."""
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
        self._unsynced = True
        with nogil:
            written = pwrite(self._fd, view.buf, <size_t>size_bytes, begin)
            number = errno
        PyBuffer_Release(&view)
        if written == size_bytes:
            self._position = begin + written
            return begin
        if written < 0:
            if number != EINTR:
                self._refuse_write(number)
            PyErr_CheckSignals()
            written = 0
        # A short write is no error yet: the next call says why, or goes on.
        self._position = begin + written
        self.append(memoryview(data).cast("B")[written:])
        return begin


def reserve(int fd, int64_t position, int64_t size_bytes):
    """Set disk space aside for the bytes [position, position + size_bytes), without the file growing longer.

    False where the system or the file system cannot, or has no space.
    """
    with nogil:
        done = seg_reserve(fd, position, size_bytes)
    return done == 0
