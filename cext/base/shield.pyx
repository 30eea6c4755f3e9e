"""Calls that no exception from outside reaches: ^C, and what PyThreadState_SetAsyncExc sends to a thread.

The interpreter delivers such an exception between two instructions of Python code, in the thread that it is meant for;
a signal's in the main thread. There is no way to hold it off. So a shielded call runs in a thread of its own, which
nobody knows of, and the caller waits for it in C. What was sent meanwhile reaches the caller behind the call.

A thread costs about as much as a small sync. It is for what is rare and must be whole: rolling, cutting, closing.

A thread that works in the background says so (`work_in_background`), and so does a shielded call on its behalf: an
error that it meets reaches no caller.
"""
cimport cython

import _thread
import sys

from cpython.pythread cimport (
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)


cdef extern from * nogil:
    """
    static _Thread_local int seg_is_shielded = 0;
    static _Thread_local int seg_is_background = 0;
    """
    int seg_is_shielded
    int seg_is_background


cdef bint is_in_background() noexcept:
    return seg_is_background


def work_in_background():
    """This thread works in the background from now on: no caller hears of the errors that it meets."""
    global seg_is_background
    seg_is_background = 1


@cython.final
cdef class unheard:
    """`with unheard():` what fails within is kept from the caller, as in the background."""
    cdef bint before

    def __enter__(self):
        global seg_is_background
        self.before = seg_is_background
        seg_is_background = 1

    def __exit__(self, *_):
        global seg_is_background
        seg_is_background = self.before


cdef class _Errand:
    cdef PyThread_type_lock done        # locked until it is
    cdef object function
    cdef tuple args
    cdef dict named
    cdef object result
    cdef object error
    cdef bint is_background     # whoever sent it

    def __cinit__(self):
        self.is_background = seg_is_background
        self.done = PyThread_allocate_lock()
        if self.done == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.done, WAIT_LOCK)

    def __dealloc__(self):
        if self.done != NULL:
            PyThread_free_lock(self.done)

    def __call__(self):
        global seg_is_shielded, seg_is_background
        seg_is_shielded = 1
        seg_is_background = self.is_background
        try:
            self.result = self.function(*self.args, **self.named)
        except BaseException as error:
            self.error = error
        PyThread_release_lock(self.done)


def shielded(function, *args, **named):
    """`function(*args, **named)`, in which no exception from outside is delivered. Returns and raises what it does.

    Plainly called where it is shielded already, or no thread can be started: at the end of the interpreter, or at a
    limit of the system.
    """
    cdef _Errand errand
    if seg_is_shielded or sys.is_finalizing():
        return function(*args, **named)
    errand = _Errand()
    errand.function, errand.args, errand.named = function, args, named
    try:
        _thread.start_new_thread(errand, ())
    except RuntimeError:
        return function(*args, **named)
    with nogil:
        PyThread_acquire_lock(errand.done, WAIT_LOCK)
    # Released again for __dealloc__; the thread may still hold the object.
    PyThread_release_lock(errand.done)
    error, errand.error = errand.error, None
    if error is not None:
        raise error
    return errand.result
