"""Keeps a lock after its descriptor is closed, by a map of the locked file.

A lock of F_OFD_SETLK belongs to the open file description, and lasts until the last reference to it is gone. A map is
such a reference. So a process can hold ten thousand locks without a descriptor for any of them.

The map has one page without any access (PROT_NONE), and a forked child does not get it (MADV_DONTFORK): otherwise the
lock would outlive its owner in the child. Only Linux has both; `LockMap(fd)` raises OSError(ENOTSUP) elsewhere.
"""
cimport cython
from cpython.exc cimport PyErr_SetFromErrno
from libc.stddef cimport size_t

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <sys/mman.h>
    #include <unistd.h>
    /* The map, or NULL with errno. */
    static void *seg_map_for_owner(int fd)
    {
    #if defined(__linux__)
        void *page = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE, fd, 0);
        if (page == MAP_FAILED)
            return NULL;
        if (madvise(page, 1, MADV_DONTFORK) != 0) {
            int number = errno;
            munmap(page, 1);
            errno = number;
            return NULL;
        }
        return page;
    #else
        (void)fd;
        errno = ENOTSUP;
        return NULL;
    #endif
    }
    """
    void* seg_map_for_owner(int fd)
    int munmap(void* address, size_t size)
    int getpid()


@cython.final
cdef class LockMap:
    """Keeps the locks of the open file of `fd` until close(), the end of the process, or an exec."""
    cdef void* page
    cdef int owner      # in another process the address is not ours

    def __cinit__(self, int fd):
        self.owner = getpid()
        self.page = seg_map_for_owner(fd)
        if self.page == NULL:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        self.unmap()

    def close(self):
        """Release the locks. May be called twice, and in a child process, which does not have them."""
        self.unmap()

    cdef void unmap(self) noexcept:
        cdef void* page = self.page
        self.page = NULL
        if page != NULL and self.owner == getpid():
            munmap(page, 1)
