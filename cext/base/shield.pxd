"""Calls that an exception from outside cannot interrupt. See shield.pyx."""

# Whether this thread, or the thread on whose behalf it works, is a background thread.
cdef bint is_in_background() noexcept
