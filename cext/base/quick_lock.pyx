"""A reentrant lock that costs next to nothing as long as no thread waits for it.

threading.RLock takes 150 ns for each `with`, more than adding a delayed message. Here the GIL guards the owner and its
depth, and a real lock is touched only if a thread must wait: the scheme of FastRLock in lxml and others. Kernels that
keep the GIL throughout check `is_open` and take nothing at all.

An asynchronous exception (Ctrl-C, PyThreadState_SetAsyncExc) leaves no lock taken: such exceptions come between the
steps of the interpreter, and `with lock:` acquires and releases it within one step each. threading.Condition takes its
lock in Python code, and keeps it forever if it is interrupted there: threads that wait for a change use a LockCondition
instead. Unlike an RLock, a QuickLock does not react to a signal while a thread waits for it.

A forked child has only the forking thread. A lock that another thread held is free there.
"""
import os

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)
from libc.stdint cimport int64_t

from .ending cimport is_last_thread, others_run

cdef extern from "pythread.h":
    # CPython's own declarations say `enum`, `long long` (microseconds) and `int`.
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int intr_flag) nogil

cdef long forks_of_process = 0


def _forked():
    global forks_of_process
    forks_of_process += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@cython.final
cdef class QuickLock:
    """A reentrant lock. Use `with lock:`, or acquire and release."""

    def __cinit__(self):
        self.door = PyThread_allocate_lock()
        if self.door == NULL:
            raise MemoryError
        self.forks = forks_of_process

    def __dealloc__(self):
        if self.door != NULL:
            if self.is_door_locked:
                PyThread_release_lock(self.door)
            PyThread_free_lock(self.door)

    cdef int forget_the_parent(self) except -1:
        """In a child: forget the parent's threads, and a door at which one of them may have waited."""
        door = PyThread_allocate_lock()
        if door == NULL:
            raise MemoryError
        # The old door stays in the child's memory: its state is unknown.
        self.door = door
        self.is_door_locked = False
        self.waiting = 0
        if self.depth and self.owner != <unsigned long>PyThread_get_thread_ident():
            self.depth = 0
        self.forks = forks_of_process
        return 0

    cdef bint is_open(self) noexcept:
        if self.forks != forks_of_process:
            return False
        if self.depth:
            return self.owner == <unsigned long>PyThread_get_thread_ident()
        return self.waiting == 0

    cdef int take(self) except -1:
        cdef unsigned long me = <unsigned long>PyThread_get_thread_ident()
        if self.forks != forks_of_process:
            self.forget_the_parent()
        if self.depth and self.owner == me:
            self.depth += 1
            return 0
        if self.depth or self.waiting:
            others_run()
            # Threads wait at the door, which the owner then must open: the first one locks it for the owner.
            if self.waiting == 0 and not self.is_door_locked:
                self.is_door_locked = PyThread_acquire_lock(self.door, NOWAIT_LOCK)
            self.waiting += 1
            with nogil:
                PyThread_acquire_lock(self.door, WAIT_LOCK)
            self.waiting -= 1
            self.is_door_locked = True
        self.owner = me
        self.depth = 1
        return 0

    cdef int give(self) except -1:
        if self.depth == 0 or self.owner != <unsigned long>PyThread_get_thread_ident():
            raise RuntimeError("this thread does not have the lock")
        self.depth -= 1
        if self.depth == 0 and self.is_door_locked:
            self.is_door_locked = False
            PyThread_release_lock(self.door)
        return 0

    def acquire(self):
        """Wait for it, and take it. Always returns True, like other locks."""
        self.take()
        return True

    def release(self):
        """Release it, once for each time that it was taken. Raises RuntimeError if another thread has it."""
        self.give()

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, kind, error, trace):
        self.give()


cdef enum:
    # A signal just before the thread falls asleep does not wake it. Its handler then runs after this time at most.
    SLICE_US = 1_000_000


cdef struct Sleeper:
    PyThread_type_lock bed      # locked while it sleeps
    Sleeper* next


@cython.final
cdef class LockCondition:
    """Threads that hold a QuickLock wait here for a change of what it guards.

    `number` counts the changes. Read it, check the condition, then wait for the next change: `notify` needs no lock,
    and one that comes between the check and the wait is not missed.

    `with condition:` takes the lock, as `with lock:` does. When a thread that has waited leaves it, in any way, it
    wakes the next one: so `notify_one` wakes a single thread, and what that one leaves, or does not take because it is
    interrupted, is not left lying.
    """
    cdef QuickLock lock
    cdef Sleeper* first
    cdef readonly int64_t number
    cdef long forks
    cdef bint has_waited        # the owner of the lock, since its outermost `with`

    def __cinit__(self, QuickLock lock not None):
        self.lock = lock
        self.first = NULL
        self.forks = forks_of_process

    def notify(self):
        """Report a change: wake all waiting threads. Any thread may call it, with or without the lock."""
        cdef Sleeper* sleeper
        self.number += 1
        self.forget_the_gone()
        while self.first != NULL:
            sleeper = self.first
            self.first = sleeper.next
            PyThread_release_lock(sleeper.bed)

    cdef void forget_the_gone(self) noexcept:
        """Forget the threads of a parent, and those that were stopped while the interpreter ends: the stack of each,
        where its Sleeper is, may be gone."""
        if self.forks != forks_of_process or is_last_thread():
            self.first = NULL
            self.forks = forks_of_process

    def notify_one(self):
        """Report a change for one thread: wake the one that fell asleep last. For threads that use `with condition:`.
        Any thread may call it, with or without the lock."""
        self.number += 1
        self.wake_one()

    cdef int wake_one(self) except -1:
        cdef Sleeper* sleeper
        self.forget_the_gone()
        sleeper = self.first
        if sleeper != NULL:
            self.first = sleeper.next
            PyThread_release_lock(sleeper.bed)
        return 0

    def __enter__(self):
        self.lock.take()
        if self.lock.depth == 1:
            self.has_waited = False
        return True

    def __exit__(self, kind, error, trace):
        if self.has_waited and self.lock.depth == 1:
            self.has_waited = False
            self.wake_one()
        self.lock.give()

    def wait(self, int64_t seen, timeout_s=None):
        """Release the lock until `number` is not `seen`, for at most `timeout_s`, or forever if None. The thread has
        the lock again afterwards, even if a signal's handler raises. May return early."""
        cdef Sleeper me
        cdef Sleeper** link
        cdef PyLockStatus status
        cdef long long microseconds = -1
        cdef double seconds
        cdef long depth
        if self.number != seen:
            return
        if timeout_s is None:
            others_run()
        else:
            seconds = timeout_s
            # A hundred years count as forever.
            if seconds < 3e9:
                microseconds = <long long>(seconds * 1e6) if seconds > 0 else 0
        if self.lock.depth == 0 or self.lock.owner != <unsigned long>PyThread_get_thread_ident():
            raise RuntimeError("this thread does not have the lock")
        me.bed = PyThread_allocate_lock()
        if me.bed == NULL:
            raise MemoryError
        PyThread_acquire_lock(me.bed, NOWAIT_LOCK)
        me.next = self.first
        self.first = &me
        depth = self.lock.depth
        self.lock.depth = 1
        self.lock.give()
        with nogil:
            status = PyThread_acquire_lock_timed(
                me.bed, microseconds if 0 <= microseconds < SLICE_US else SLICE_US, 1
            )
        # We have the GIL again: no thread wakes another while we wake up.
        link = &self.first
        while link[0] != NULL:
            if link[0] == &me:
                link[0] = me.next
                break
            link = &link[0].next
        if status == PY_LOCK_ACQUIRED:
            PyThread_release_lock(me.bed)
        PyThread_free_lock(me.bed)
        self.lock.take()
        self.lock.depth = depth
        self.has_waited = True
        PyErr_CheckSignals()
