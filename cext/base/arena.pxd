from libc.stdint cimport int64_t, uint8_t

cdef extern from "seg_arena.h" nogil:
    size_t SEG_HUGE_PAGE
    void seg_forbid(void* p, size_t n)
    void seg_allow(void* p, size_t n)

cdef struct Stretch:
    uint8_t* base
    int64_t size


cdef class ArenaPool:
    cdef readonly int64_t chunk_bytes
    cdef readonly int64_t max_idle_bytes
    cdef readonly int64_t idle_bytes
    cdef readonly int64_t used_bytes
    cdef readonly int64_t mapped_count      # how many times the pool asked the system for memory
    cdef Stretch* _idle                     # owned: a stack of returned arenas; the last one returned is taken first
    cdef Py_ssize_t _idle_n
    cdef Py_ssize_t _idle_capacity

    cdef int64_t usual_size(self) noexcept
    cdef Arena acquire(self, int64_t size)
    cdef void _give_back(self, Stretch stretch) noexcept
    cdef void _unmap_idle(self) noexcept


cdef class Arena:
    """Memory borrowed from a pool. It returns there with the last reference to this object."""
    cdef ArenaPool _pool
    cdef uint8_t* base
    cdef int64_t size


# A read-only memoryview of `items` items at `start`, in memory of `owner`, which it keeps alive.
# `format`: as in the struct module, a literal. `start` must not be NULL.
cdef object lend(object owner, const void* start, Py_ssize_t items, Py_ssize_t item_size, const char* format_)
