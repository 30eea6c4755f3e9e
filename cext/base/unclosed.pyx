"""Objects that warn if they were not closed.

The interpreter delivers ^C between two steps of Python code. In a `__del__` written in Python it is printed and lost,
and such a `__del__` runs for each object, closed or not. This one is compiled: no Python code runs for a closed object.
seglog._kernels.appended_file.AppendedFile has its own.
"""
from .ending cimport is_last_thread


cdef class Unclosed:
    """A base class. `_is_unclosed`: whether to call `_collected` when the object is garbage-collected."""
    cdef public bint _is_unclosed

    def __del__(self):
        if self._is_unclosed:
            self._is_unclosed = False
            try:
                self._collected()
            except Exception:
                if not is_last_thread():        # otherwise the modules that it uses may be empty already
                    raise
