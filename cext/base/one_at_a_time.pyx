"""The refusal of a second thread. See one_at_a_time.pxd."""
from seglog.errors import InvalidArgumentError


cdef int refuse_second(object used) except -1:
    if hasattr(type(used), "__next__"):
        raise ValueError("iterator already executing")      # in the words of a generator
    name = type(used).__name__
    raise InvalidArgumentError(
        f"{'an' if name[0] in 'AEIOU' else 'a'} {name} serves one thread at a time",
        hint="give each thread one of its own, or let them take turns with a lock",
    )
