"""Refuses a second thread in an object that lets the GIL go between reading its fields and writing them.

Code lets it go in `with nogil`, in every callback (`decompress`, `compress`, an iterable, a buffer's exporter), and
wherever it allocates an object that may start a garbage collection. A second thread that comes in then would find half
a step, and memory that moves. Generators refuse it, so everything here does.

    begin_alone(&self.use, self)
    try:
        ...
    finally:
        end_alone(&self.use)
"""


cdef struct Use:
    bint is_alone               # one thread changes it, or reads what none may change meanwhile
    int readers                 # threads that read without the GIL


# Raise the refusal. `used`: the object.
cdef int refuse_second(object used) except -1


cdef inline int begin_alone(Use* use, object used) except -1:
    if use.is_alone or use.readers:
        return refuse_second(used)
    use.is_alone = True
    return 0


cdef inline void end_alone(Use* use) noexcept:
    use.is_alone = False


# Nobody changes it until the last reader has ended.
cdef inline int begin_reading(Use* use, object used) except -1:
    if use.is_alone:
        return refuse_second(used)
    use.readers += 1
    return 0


cdef inline void end_reading(Use* use) noexcept:
    use.readers -= 1


# Before a step that keeps the GIL throughout.
cdef inline int check_free(const Use* use, object used) except -1:
    return refuse_second(used) if use.is_alone or use.readers else 0
