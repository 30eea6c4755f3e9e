"""Named pairs, made in one step: the __new__ of a NamedTuple is Python code."""
from libc.stdint cimport int64_t

# A tuple of two ints, of the class `kind`, which is tuple or a class below it.
cdef object new_pair(object kind, int64_t first, int64_t second)
# Whether `pair` is a tuple of these two ints.
cdef bint is_pair(object pair, int64_t first, int64_t second) except -1
