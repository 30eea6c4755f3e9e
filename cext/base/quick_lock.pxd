from cpython.pythread cimport PyThread_type_lock


cdef class QuickLock:
    cdef PyThread_type_lock door    # locked by the owner as soon as somebody waits for him
    cdef unsigned long owner
    cdef long depth                 # how often the owner has it; 0: it is free
    cdef long waiting
    cdef long forks                 # as of its last use: in a forked child the other threads are gone
    cdef bint is_door_locked

    # Whether this thread may go on without waiting. It holds as long as the GIL is not given away.
    cdef bint is_open(self) noexcept
    cdef int take(self) except -1
    cdef int give(self) except -1
    cdef int forget_the_parent(self) except -1
