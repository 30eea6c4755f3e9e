"""A pool of large, reused buffers, for data that is decoded in chunks.

An Arena belongs to the holders of references to it, and returns to its pool with the last reference: no call can take
it from a view that is still in use. The pool itself holds only idle memory, at most `max_idle_bytes`. Memory that it
hands out again is not cleared: the user of an arena must show only what it has written.

"""
cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_WRITABLE
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc

from seglog.errors import InvalidArgumentError

cdef extern from "seg_arena.h" nogil:
    uint8_t* seg_arena_map(size_t size)
    void seg_arena_unmap(uint8_t* base, size_t size)

# The usual arena has room for a chunk's bytes twice (all of them may be keys, or all values)
# and as much again for the columns of fixed width, which 10-byte records need.
cdef enum:
    CHUNKS_PER_ARENA = 4
    # Larger chunks would come near what the int32 offsets of a binary column reach.
    MAX_CHUNK_BYTES = 1 << 30


@cython.final
cdef class ArenaPool:
    """Arenas for columns of about `chunk_bytes`; at most `max_idle_bytes` wait for reuse.

    A pool does not limit memory in use: each Columns holds its own arena until its last reader is gone. Thread-safe.

    """
    # The GIL guards every field: no method releases it between a check and the change.

    def __cinit__(self, int64_t chunk_bytes=4 << 20, int64_t max_idle_bytes=64 << 20):
        if not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
            raise InvalidArgumentError(f"chunk_bytes must be 1 to {MAX_CHUNK_BYTES}, not {chunk_bytes}")
        if max_idle_bytes < 0:
            raise InvalidArgumentError(f"max_idle_bytes must be 0 or more, not {max_idle_bytes}")
        self.chunk_bytes = chunk_bytes
        self.max_idle_bytes = max_idle_bytes

    def __dealloc__(self):
        self._unmap_idle()
        free(self._idle)

    @property
    def arena_bytes(self):
        """The size of the arena for a usual chunk. A batch that needs more gets a larger one."""
        return self.usual_size()

    cdef int64_t usual_size(self) noexcept:
        return round_up(self.chunk_bytes * CHUNKS_PER_ARENA)

    def clear(self):
        """Return idle memory to the system."""
        self._unmap_idle()

    cdef Arena acquire(self, int64_t size):
        """Return an arena of at least `size` bytes."""
        cdef Arena arena
        cdef Stretch stretch
        cdef Py_ssize_t slot, best = -1
        # The smallest that is large enough, and of those the last one used: it may still be in cache.
        for slot in range(self._idle_n):
            if self._idle[slot].size >= size and (best == -1 or self._idle[slot].size <= self._idle[best].size):
                best = slot
        if best >= 0:
            stretch = self._idle[best]
            self._idle_n -= 1
            for slot in range(best, self._idle_n):
                self._idle[slot] = self._idle[slot + 1]
            self.idle_bytes -= stretch.size
        else:
            stretch.size = round_up(size)
            stretch.base = seg_arena_map(stretch.size)
            if stretch.base == NULL:
                raise MemoryError(f"no memory for an arena of {stretch.size} bytes")
            self.mapped_count += 1
        self.used_bytes += stretch.size
        arena = Arena.__new__(Arena)
        arena._pool = self
        arena.base = stretch.base
        arena.size = stretch.size
        return arena

    cdef void _give_back(self, Stretch stretch) noexcept:
        cdef Stretch* grown
        self.used_bytes -= stretch.size
        if stretch.size <= self.max_idle_bytes - self.idle_bytes:
            if self._idle_n == self._idle_capacity:
                grown = <Stretch*>realloc(self._idle, (2 * self._idle_n + 8) * sizeof(Stretch))
                if grown != NULL:
                    self._idle = grown
                    self._idle_capacity = 2 * self._idle_n + 8
            if self._idle_n < self._idle_capacity:
                seg_allow(stretch.base, stretch.size)
                self._idle[self._idle_n] = stretch
                self._idle_n += 1
                self.idle_bytes += stretch.size
                return
        seg_arena_unmap(stretch.base, stretch.size)

    cdef void _unmap_idle(self) noexcept:
        while self._idle_n > 0:
            self._idle_n -= 1
            self.idle_bytes -= self._idle[self._idle_n].size
            seg_arena_unmap(self._idle[self._idle_n].base, self._idle[self._idle_n].size)


cdef int64_t round_up(int64_t size) noexcept:
    return (size + <int64_t>SEG_HUGE_PAGE - 1) & ~(<int64_t>SEG_HUGE_PAGE - 1)


@cython.final
@cython.no_gc       # its one reference is to a pool, which refers to nothing
cdef class Arena:

    def __dealloc__(self):
        if self.base != NULL:
            self._pool._give_back(Stretch(self.base, self.size))


@cython.final
@cython.no_gc       # its owner is an Arena or Columns, which cannot refer back
cdef class Lease:
    """Exports an owner's memory, read-only, by the buffer protocol, and keeps the owner alive meanwhile."""
    cdef object _owner
    cdef const void* _start
    cdef const char* _format        # a literal
    cdef Py_ssize_t _items
    cdef Py_ssize_t _item_size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("columns are read-only")
        buffer.buf = <void*>self._start
        buffer.obj = self
        buffer.len = self._items * self._item_size
        buffer.itemsize = self._item_size
        buffer.readonly = 1
        buffer.ndim = 1
        buffer.format = <char*>self._format if flags & PyBUF_FORMAT else NULL
        buffer.shape = &self._items
        buffer.strides = &self._item_size
        buffer.suboffsets = NULL
        buffer.internal = NULL


cdef object lend(object owner, const void* start, Py_ssize_t items, Py_ssize_t item_size, const char* format_):
    cdef Lease lease = Lease.__new__(Lease)
    lease._owner = owner
    lease._start = start
    lease._items = items
    lease._item_size = item_size
    lease._format = format_
    return memoryview(lease)
