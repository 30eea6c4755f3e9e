from libc.stdint cimport uint8_t


cdef class FileMap:
    cdef const uint8_t* base    # the first byte of a view; never NULL
    cdef Py_ssize_t size        # the size of a view: all of the file at creation, more after grow_to
    cdef void* _pages           # to be passed to munmap; NULL if nothing is mapped
    cdef size_t _pages_size
    cdef const int* torn        # not 0: some bytes were not there, and zeros were read. Never NULL
    cdef int _slot              # of seg_faults
    cdef bint _was_torn         # before it was unmapped
    cdef Py_ssize_t _exports    # the number of live views; guarded by the GIL
    cdef bint _closed
    cdef bint _is_copy          # anonymous memory, not pages of the file

    cdef void _unmap(self) noexcept
    cdef void _let_go(self) noexcept
