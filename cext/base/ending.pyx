"""The end of the interpreter: from some moment on, only the thread that finalizes it runs.

Every other thread is stopped permanently where it takes the GIL next. Locks that it holds stay locked, and its work is
never done: waiting for it without a limit means waiting forever. seglog's own threads end before that moment
(seglog.process_end); but a program has threads, too, and may start some of ours in its last handlers.
"""
from seglog.errors import LogFailedError


cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define seg_is_finalizing() Py_IsFinalizing()
    #else
    #define seg_is_finalizing() _Py_IsFinalizing()
    #endif
    """
    int seg_is_finalizing()


cdef bint is_last_thread() noexcept:
    return seg_is_finalizing()


cdef int others_run() except -1:
    if seg_is_finalizing():
        raise LogFailedError(
            "the process is ending, and a thread that was stopped by that will never finish",
            hint="close what you opened before the program ends; the next opening recovers it",
        )
    return 0


def check_others_run():
    """Call before a wait without a limit. Raises LogFailedError if no other thread can end the wait."""
    others_run()
