"""Calls that no exception from outside reaches. See shield.pyx."""

# Whether this thread, or the one that it works for, works in the background.
cdef bint is_in_background() noexcept
