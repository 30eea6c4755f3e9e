from libc.stdint cimport uint8_t


cdef class FileMap:
    cdef const uint8_t* base    # what a view sees; never NULL
    cdef Py_ssize_t size        # what it shows: all of the file at birth, more after grow_to
    cdef void* _pages           # what munmap gets back; NULL where nothing is mapped
    cdef size_t _pages_size
    cdef Py_ssize_t _exports    # views alive; guarded by the GIL
    cdef bint _closed
    cdef bint _is_copy          # anonymous memory, not the pages of the file

    cdef void _unmap(self) noexcept
