# distutils: sources = cext/base/seg_faults.c
"""The bytes of one file, mapped read-only, which live as long as a view of them.

Python's own `mmap.close()` raises BufferError while a view lives, so its owner must know every view. Here the last view
unmaps: `close()` only means that no new ones are given out. Owning the pages in C also lets a map be longer than its
file, for a log that grows.

A FileMap does not keep the descriptor and never knows the file's name: a removed or renamed file stays readable. A file
that another process truncates under a map is different: a load after its new end would be SIGBUS. A handler puts zeros
there instead and marks the map (seg_faults.h); who read from it then looks at the mark. For small files that others may
truncate there is `copy`. SEGLOG_SIGBUS=off in the environment installs no handler.
"""
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

import os


cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(object text)


cdef extern from "<sys/mman.h>" nogil:
    int PROT_READ
    int PROT_WRITE
    int MAP_SHARED
    int MAP_PRIVATE
    int MAP_ANONYMOUS
    void* MAP_FAILED
    void* mmap(void* address, size_t size, int protection, int flags, int fd, long position)
    int munmap(void* address, size_t size)
    int madvise(void* address, size_t size, int advice)


cdef extern from "<fcntl.h>" nogil:
    int O_RDONLY
    int O_CLOEXEC
    int O_NONBLOCK
    int open(const char* path, int flags)


cdef extern from "<sys/stat.h>" nogil:
    struct c_stat "stat":
        int64_t st_size
    int stat(const char* path, c_stat* status)


cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    Py_ssize_t pread(int fd, void* buffer, size_t size, long position)
    long sysconf(int name)
    int _SC_PAGESIZE


cdef extern from "seg_faults.h" nogil:
    int seg_faults_install()
    int seg_faults_watch(void* pages, size_t size)
    void seg_faults_forget(int slot)
    const int* seg_faults_flag(int slot)


cdef bint has_handler = os.environ.get("SEGLOG_SIGBUS", "on") != "off"

cdef const uint8_t* NOTHING = b""   # where an empty map points: mmap of 0 bytes is an error


cdef Py_ssize_t _fill(int fd, uint8_t* buffer, Py_ssize_t size, Py_ssize_t start) noexcept nogil:
    """Read up to `size` bytes of the file from byte `start` on. Return the count, less at its end, or -1."""
    cdef Py_ssize_t done = 0
    cdef Py_ssize_t n
    while done < size:
        n = pread(fd, buffer + done, <size_t>(size - done), start + done)
        if n < 0:
            if errno == EINTR:
                continue
            return -1
        if n == 0:
            break
        done += n
    return done


cdef bytes _encoded(path):
    """The path in the form that the system takes. `os.fsencode` takes as long as opening a file."""
    return PyUnicode_EncodeFSDefault(path) if type(path) is str else os.fsencode(path)


def file_part(path not None, Py_ssize_t position, Py_ssize_t size):
    """Return the bytes [position, position + size) of a file, fewer at its end. Raises OSError.

    Opens, reads and closes in one step, which no asynchronous exception can interrupt.
    """
    cdef bytes name = _encoded(path)
    cdef bytes part = PyBytes_FromStringAndSize(NULL, size)
    cdef const char* c_name = name
    cdef uint8_t* buffer = <uint8_t*>PyBytes_AS_STRING(part)
    cdef Py_ssize_t done = -1
    cdef int fd, failed
    with nogil:
        # O_NONBLOCK: opening a FIFO of that name must not wait for a writer.
        fd = open(c_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        failed = errno
        if fd >= 0:
            done = _fill(fd, buffer, size, position)
            failed = errno
            close(fd)
    if done < 0:
        raise OSError(failed, os.strerror(failed), path)
    return part if done == size else part[:done]


def file_size(path not None):
    """Return the size of a file in bytes. Raises OSError. `os.stat` returns more, and takes three times as long."""
    cdef bytes name = _encoded(path)
    cdef const char* c_name = name
    cdef c_stat status
    cdef int failed = 0
    with nogil:
        if stat(c_name, &status) != 0:
            failed = errno
    if failed:
        raise OSError(failed, os.strerror(failed), path)
    return status.st_size


cdef class FileMap:
    """FileMap(fd, size, copy=False, reserve=0): the first `size` bytes of an open file, as a read-only buffer.

    `size` must not be beyond the end of the file. With `copy` the bytes are read into our own memory instead, from byte
    `start` on; a file that turns out to be shorter gives a shorter map. With `reserve` the map has room for this many
    bytes: when the file has grown, `grow_to` shows the new bytes without a new map. Raises OSError.
    """

    def __cinit__(self, int fd, Py_ssize_t size, *, bint copy=False, Py_ssize_t reserve=0, Py_ssize_t start=0):
        cdef void* pages
        cdef Py_ssize_t count
        cdef Py_ssize_t room = max(size, 0 if copy else reserve)
        cdef int protection = PROT_READ | PROT_WRITE if copy else PROT_READ
        cdef int flags = MAP_PRIVATE | MAP_ANONYMOUS if copy else MAP_SHARED
        self.base = NOTHING
        self._slot = -1
        self.torn = seg_faults_flag(-1)
        if size < 0:
            raise ValueError(f"invalid map size: {size} bytes")
        if start < 0 or (start and not copy):
            raise ValueError(f"invalid start of a map: byte {start}")
        if room == 0:
            return
        with nogil:
            pages = mmap(NULL, <size_t>room, protection, flags, -1 if copy else fd, 0)
        if pages == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self._is_copy = copy
        self._pages = pages             # from here on __dealloc__ unmaps them
        self._pages_size = <size_t>room
        if not copy and has_handler:
            if seg_faults_install() != 0:
                PyErr_SetFromErrno(OSError)
            self._slot = seg_faults_watch(pages, <size_t>room)
            self.torn = seg_faults_flag(self._slot)
        if copy:
            with nogil:
                count = _fill(fd, <uint8_t*>pages, size, start)
            if count < 0:
                PyErr_SetFromErrno(OSError)
            size = count
        self.base = <const uint8_t*>pages
        self.size = size

    def __dealloc__(self):
        self._unmap()                   # no view can be alive: each has a reference to us

    cdef void _unmap(self) noexcept:
        cdef void* pages = self._pages
        if pages != NULL:
            self._pages = NULL
            self.base = NOTHING
            if self.torn[0]:
                self._was_torn = True
            self.torn = seg_faults_flag(-1)
            seg_faults_forget(self._slot)
            with nogil:
                munmap(pages, self._pages_size)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if self._closed:
            raise ValueError("the map is closed")
        PyBuffer_FillInfo(view, self, <void*>self.base, self.size, 1, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self._let_go()

    cdef void _let_go(self) noexcept:
        self._exports -= 1
        if self._closed and self._exports == 0:
            self._unmap()

    def __len__(self):
        return self.size

    @property
    def is_torn(self):
        """Whether some of its bytes were not there when they were read: zeros were read instead."""
        return self.torn[0] != 0 or self._was_torn

    @property
    def room(self):
        """The number of bytes that it can show at most."""
        return <Py_ssize_t>self._pages_size

    def grow_to(self, Py_ssize_t size):
        """Show `size` bytes, in views taken from now on: the file has at least that many. Never shows less than before.

        The caller must be sure: a load after the end of the file is SIGBUS.
        """
        if size > <Py_ssize_t>self._pages_size or (self._is_copy and size > self.size):
            raise ValueError(f"{size} bytes do not fit into a map of {self._pages_size}")
        self.size = max(self.size, size)

    @property
    def closed(self):
        return self._closed

    def close(self):
        """Give out no more views. The pages are unmapped with the last view, now if there is none. Idempotent."""
        self._closed = True
        if self._exports == 0:
            self._unmap()

    def _advise(self, int advice, Py_ssize_t position, Py_ssize_t size):
        """Pass a MADV_ number for the mapped pages that [position, position + size) touches."""
        cdef Py_ssize_t page = sysconf(_SC_PAGESIZE)
        cdef Py_ssize_t start
        if position < 0 or size < 0:
            raise ValueError(f"invalid range for advice: {size} bytes at {position}")
        # Not for a copy: MADV_DONTNEED would turn its bytes into zeros.
        if self._pages == NULL or self._is_copy or position >= self.size:
            return
        if size > self.size - position:
            size = self.size - position
        start = position - position % page
        # As a view does: meanwhile no other thread unmaps the pages, which may then be somebody else's.
        self._exports += 1
        with nogil:
            # Only a hint: a kernel without it returns EINVAL, and nothing is lost.
            madvise(<uint8_t*>self._pages + start, <size_t>(position + size - start), advice)
        self._let_go()
