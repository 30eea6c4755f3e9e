"""Reports when files that another process writes change, by Linux's inotify, which costs nothing until then.

It reports writes, not stores into a map. One instance is enough for a process, and a user may have 128.
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t
from libc.string cimport memcpy, strerror
from posix.unistd cimport close, read

cdef extern from *:
    """
    #include <errno.h>
    #include <stddef.h>
    #include <stdint.h>
    #ifdef __linux__
    #include <sys/inotify.h>
    #define SEG_OF_FILE (IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)
    #define SEG_OF_DIRECTORY (IN_MODIFY | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO \\
                              | IN_DELETE_SELF | IN_MOVE_SELF)
    static int seg_watch_begin(void) { return inotify_init1(IN_CLOEXEC); }
    static int seg_watch_add(int fd, const char *path, uint32_t mask) { return inotify_add_watch(fd, path, mask); }
    static int seg_watch_remove(int fd, int watch) { return inotify_rm_watch(fd, watch); }
    #define SEG_EVENT_BYTES sizeof(struct inotify_event)
    #define SEG_EVENT_WATCH offsetof(struct inotify_event, wd)
    #define SEG_EVENT_NAME offsetof(struct inotify_event, len)
    #else
    #define SEG_OF_FILE 0
    #define SEG_OF_DIRECTORY 0
    static int seg_watch_begin(void) { errno = ENOSYS; return -1; }
    static int seg_watch_add(int fd, const char *path, uint32_t mask) { errno = ENOSYS; return -1; }
    static int seg_watch_remove(int fd, int watch) { errno = ENOSYS; return -1; }
    #define SEG_EVENT_BYTES 16
    #define SEG_EVENT_WATCH 0
    #define SEG_EVENT_NAME 12
    #endif
    """
    const uint32_t SEG_OF_FILE
    const uint32_t SEG_OF_DIRECTORY
    const size_t SEG_EVENT_BYTES
    const size_t SEG_EVENT_WATCH
    const size_t SEG_EVENT_NAME
    int seg_watch_begin() nogil
    int seg_watch_add(int fd, const char* path, uint32_t mask) nogil
    int seg_watch_remove(int fd, int watch) nogil

cdef enum:
    # Some hundred events; one with the longest name fits.
    BUFFER_BYTES = 16384


@cython.final
cdef class FileWatch:
    """Watches added files until they are removed. Raises OSError if the system does not support this."""
    cdef int fd

    def __cinit__(self):
        self.fd = seg_watch_begin()
        if self.fd < 0:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def add(self, bytes path not None, bint is_directory):
        """Watch a file, or a directory and its files; return its number, the same for the same file. Raises OSError."""
        cdef int watch
        cdef const char* name = path
        cdef uint32_t mask = SEG_OF_DIRECTORY if is_directory else SEG_OF_FILE
        with nogil:
            watch = seg_watch_add(self.fd, name, mask)
        if watch < 0:
            PyErr_SetFromErrno(OSError)
        return watch

    def remove(self, int watch):
        """Stop watching; has no effect if it is no longer watched."""
        with nogil:
            seg_watch_remove(self.fd, watch)

    def wait(self):
        """Wait for changes; return the numbers, some perhaps twice; -1: events were lost. One thread at a time.

        A removed file is reported, too, and no longer watched.
        """
        cdef char buffer[BUFFER_BYTES]
        cdef Py_ssize_t size
        cdef Py_ssize_t at = 0
        cdef int watch
        cdef uint32_t name_bytes
        while True:
            with nogil:
                size = read(self.fd, buffer, BUFFER_BYTES)
            if size >= 0:
                break
            if errno != EINTR:
                raise OSError(errno, strerror(errno).decode())
            PyErr_CheckSignals()
        found = []
        while size - at >= <Py_ssize_t>SEG_EVENT_BYTES:
            memcpy(&watch, buffer + at + SEG_EVENT_WATCH, sizeof(watch))
            memcpy(&name_bytes, buffer + at + SEG_EVENT_NAME, sizeof(name_bytes))
            found.append(watch)
            at += SEG_EVENT_BYTES
            if name_bytes > size - at:
                break
            at += name_bytes
        return found
