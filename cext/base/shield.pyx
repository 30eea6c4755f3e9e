"""Calls that no asynchronous exception reaches: ^C, or what PyThreadState_SetAsyncExc sends to a thread.

The interpreter delivers such an exception between two instructions of Python code, in the thread that it is meant for;
a signal's in the main thread. It cannot be deferred. So a shielded call runs in a hidden thread, and the caller waits
for it in C. An exception that was sent meanwhile reaches the caller after the call.

Until Python 3.11 a thread that is just being started has the number of the thread that starts it, and is found first:
an exception that is sent to the starter at that moment goes to the new thread, and would end it before its first line.
`start_thread` hands it on to the starter.

A signal to the process is meant for the main thread, where Python raises KeyboardInterrupt. The kernel wakes that
thread, but any thread that unblocks signals takes the signal from it, and each start of a thread blocks and unblocks
them in two: the main thread then waits on in `Thread.join` or `Lock.acquire`, and a ^C does nothing. So a start that
the main thread does not make itself leaves signals blocked, in both threads, until the main thread has taken those that
came.

A thread costs about as much as a small sync. Shields are for rare steps that must be complete: rolling, truncating,
closing. If many such calls follow each other, one thread runs them: it waits a moment for the next one before it ends.

A thread that works in the background says so (`work_in_background`), and so does a shielded call on its behalf: its
errors reach no caller.
"""
cimport cython

import _thread
import os
import sys

from cpython.object cimport PyObject
from cpython.pythread cimport (
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.ref cimport Py_DECREF


cdef extern from * nogil:
    """
    static _Thread_local int seg_is_shielded = 0;
    static _Thread_local int seg_is_background = 0;
    """
    int seg_is_shielded
    int seg_is_background

cdef extern from *:
    """
    /* What was sent to this thread and not raised yet: a new reference, or NULL. */
    static PyObject* seg_take_sent(void) {
    #if PY_VERSION_HEX < 0x030C0000
        PyThreadState* state = PyThreadState_Get();
        PyObject* sent = state->async_exc;
        state->async_exc = NULL;
        return sent;
    #else
        return NULL;
    #endif
    }
    """
    PyObject* seg_take_sent()


cdef extern from *:
    """
    #include <signal.h>
    #include <time.h>

    /* Block the signals that others send to the process; `before` is what was blocked. Those that a fault of this
       thread raises stay as they are: blocked, they would end the process. */
    static void seg_block_signals(sigset_t* before) {
        static const int of_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
        sigset_t sent;
        sigfillset(&sent);
        for (size_t i = 0; i < sizeof(of_faults) / sizeof(*of_faults); i++)
            sigdelset(&sent, of_faults[i]);
        pthread_sigmask(SIG_BLOCK, &sent, before);
    }

    /* Whether a signal waits that this thread would take if it had the mask `before`. */
    static int seg_would_take_a_signal(const sigset_t* before) {
        sigset_t waiting;
        if (sigpending(&waiting) != 0)
            return 0;
        for (int number = 1; number < NSIG; number++)
            if (sigismember(&waiting, number) == 1 && sigismember(before, number) == 0)
                return 1;
        return 0;
    }

    /* Undo seg_block_signals once other threads have taken the signals that came. Waits two seconds at most: a process
       whose other threads block a signal for good leaves it to this one. */
    static void seg_unblock_signals(const sigset_t* before) {
        struct timespec moment = {0, 50000};
        for (int tries = 0; tries < 400 && seg_would_take_a_signal(before); tries++) {
            nanosleep(&moment, NULL);
            if (moment.tv_nsec < 5000000)
                moment.tv_nsec *= 2;
        }
        pthread_sigmask(SIG_SETMASK, before, NULL);
    }
    """
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int pthread_sigmask(int, const sigset_t*, sigset_t*) nogil
    void seg_block_signals(sigset_t*) nogil
    void seg_unblock_signals(const sigset_t*) nogil


cdef extern from "Python.h":
    int PyThread_acquire_lock_timed(PyThread_type_lock, long long, int) nogil
    int PY_LOCK_ACQUIRED
    int PyThreadState_SetAsyncExc(unsigned long thread, PyObject* error)

# How long a thread waits for another errand. Starting one costs about 30 us, and as much again for its cold stack.
cdef enum:
    IDLE_US = 100_000


cdef bint is_in_background() noexcept:
    return seg_is_background


def work_in_background():
    """Mark this thread as a background thread: no caller gets its errors."""
    global seg_is_background
    seg_is_background = 1


@cython.final
cdef class unheard:
    """`with unheard():` errors within do not reach the caller, as in the background."""
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
    cdef bint is_background     # its sender

    def __cinit__(self):
        self.is_background = seg_is_background
        self.done = PyThread_allocate_lock()
        if self.done == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.done, WAIT_LOCK)

    def __dealloc__(self):
        if self.done != NULL:
            PyThread_free_lock(self.done)

    cdef void run(self) noexcept:
        global seg_is_background
        seg_is_background = self.is_background
        try:
            self.result = self.function(*self.args, **self.named)
        except BaseException as error:
            self.error = error
        PyThread_release_lock(self.done)


@cython.final
cdef class _Start:
    """What a new thread calls first: no exception is raised before this has looked for one."""
    cdef object function
    cdef tuple args
    cdef unsigned long starter
    cdef sigset_t blocked_before    # in the starter

    def __call__(self):
        with nogil:
            seg_unblock_signals(&self.blocked_before)
        cdef PyObject* sent = seg_take_sent()
        if sent != NULL:
            PyThreadState_SetAsyncExc(self.starter, sent)
            Py_DECREF(<object>sent)
        self.function(*self.args)

    def __repr__(self):
        return repr(self.function)      # in a report of an exception that nobody caught


def start_thread(function, args):
    """Start a thread that calls `function(*args)`, and return its number. Unlike threading.Thread, an interrupted
    caller leaves nothing half-started (bpo-45274). Raises RuntimeError if no thread can be started."""
    cdef _Start start = _Start()
    start.function, start.args = function, args
    start.starter = <unsigned long>PyThread_get_thread_ident()
    seg_block_signals(&start.blocked_before)
    try:
        return _thread.start_new_thread(start, ())
    finally:
        if _thread.get_native_id() == os.getpid():      # the main thread may take what came
            pthread_sigmask(SIG_SETMASK, &start.blocked_before, NULL)
        else:
            with nogil:
                seg_unblock_signals(&start.blocked_before)


@cython.final
cdef class _Runner:
    """A thread that runs one errand after the other, and ends when none has come for a moment."""
    cdef PyThread_type_lock bell        # locked until there is an errand
    cdef _Errand errand

    def __cinit__(self):
        self.bell = PyThread_allocate_lock()
        if self.bell == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.bell, WAIT_LOCK)

    def __dealloc__(self):
        if self.bell != NULL:
            PyThread_free_lock(self.bell)

    def __call__(self):
        global seg_is_shielded, _idle
        cdef bint has_rung
        seg_is_shielded = 1
        while True:
            self.errand.run()
            self.errand = None
            if _idle is not None:
                return
            _idle = self
            with nogil:
                has_rung = PyThread_acquire_lock_timed(self.bell, IDLE_US, 0) == PY_LOCK_ACQUIRED
            if not has_rung:
                if _idle is self:
                    _idle = None
                    return
                # The thread that took it is about to ring.
                with nogil:
                    PyThread_acquire_lock(self.bell, WAIT_LOCK)


# The thread that waits for the next errand: one for all, since logs are mostly opened and closed one by one. Read and
# changed with the GIL, in one step.
cdef _Runner _idle = None


def _forget_runner():
    """Forget the thread in a forked child: it is the parent's."""
    global _idle
    _idle = None


os.register_at_fork(after_in_child=_forget_runner)


def shielded(function, *args, **named):
    """Call `function(*args, **named)` without asynchronous exceptions in it. Returns and raises what it does.

    Calls it directly if it is already shielded, or if no thread can be started: at the end of the interpreter, or at a
    limit of the system.
    """
    global _idle
    cdef _Errand errand
    cdef _Runner runner
    if seg_is_shielded or sys.is_finalizing():
        return function(*args, **named)
    errand = _Errand()
    errand.function, errand.args, errand.named = function, args, named
    runner, _idle = _idle, None
    if runner is not None:
        runner.errand = errand
        PyThread_release_lock(runner.bell)
    else:
        runner = _Runner()
        runner.errand = errand
        try:
            start_thread(runner, ())
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
