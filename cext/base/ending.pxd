"""Waiting for threads that may have been stopped permanently. See ending.pyx."""

# Call before a wait without a limit. Raises LogFailedError if no other thread can end the wait.
cdef int others_run() except -1
# Whether the interpreter is being finalized, and this is the only thread that runs.
cdef bint is_last_thread() noexcept
