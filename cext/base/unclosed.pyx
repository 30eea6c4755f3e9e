"""Objects that say so when they were not closed, and are silent else.

The interpreter delivers ^C between two steps of Python code. In a `__del__` written in Python it is printed and lost,
and such a `__del__` runs for each object, closed or not. This one is compiled: no Python code runs for an object that
was closed. seglog._kernels.appended_file.AppendedFile has one of its own.
"""


cdef class Unclosed:
    """A base class. `_is_unclosed`: whether `_collected` is called when nobody has the object any more."""
    cdef public bint _is_unclosed

    def __del__(self):
        if self._is_unclosed:
            self._is_unclosed = False
            self._collected()
