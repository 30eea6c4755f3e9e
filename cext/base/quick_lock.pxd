from cpython.pythread cimport PyThread_type_lock


cdef class QuickLock:
    cdef PyThread_type_lock door    # the owner locks it as soon as a thread waits
    cdef unsigned long owner
    cdef long depth                 # how many times the owner has acquired it; 0: the lock is free
    cdef long waiting
    cdef long forks                 # at its last use: in a forked child the other threads are gone
    cdef bint is_door_locked

    # Whether this thread may continue without waiting. Valid as long as it keeps the GIL.
    cdef bint is_open(self) noexcept
    cdef int take(self) except -1
    cdef int give(self) except -1
    cdef int forget_the_parent(self) except -1
