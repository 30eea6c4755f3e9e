"""A growing buffer that a kernel writes to, and the object that exports it without a copy."""
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from .status cimport OK


cdef struct Output:
    uint8_t* first              # owned
    int64_t size                # bytes written
    int64_t capacity            # bytes writable; WILD_COPY_SLACK more are allocated

cdef enum:
    # copy_field copies whole steps of this many bytes, on both sides beyond the field's end.
    WILD_COPY_STEP = 32
    WILD_COPY_SLACK = 64
    WILD_COPY_LIMIT = 512       # above this, memcpy's start-up cost is negligible


# Enlarge by at least `more` bytes, doubling. OK or NO_MEMORY; after NO_MEMORY the contents are unchanged.
cdef int grow_output(Output* out, int64_t more) noexcept nogil

# Give back the memory beyond the bytes written. Never fails: what cannot be given back stays.
cdef void trim_output(Output* out) noexcept nogil


cdef inline int ensure_room(Output* out, int64_t more) noexcept nogil:
    if more <= out.capacity - out.size:
        return OK
    return grow_output(out, more)


# Copy a field of n bytes into room that ensure_room reserved; the source is readable up to `readable_end`. Most fields
# of a log are short, and calling memcpy costs more than copying them: so they are copied in whole steps if the source
# is long enough, and the next field overwrites the excess.
cdef inline void copy_field(uint8_t* to, const uint8_t* source, int64_t n, const uint8_t* readable_end) noexcept nogil:
    cdef uint8_t* end = to + n
    if n <= 0:
        return                  # the pointer of a null field may be NULL
    if n <= WILD_COPY_LIMIT and readable_end - source >= n + WILD_COPY_STEP:
        while True:
            memcpy(to, source, WILD_COPY_STEP)
            to += WILD_COPY_STEP
            source += WILD_COPY_STEP
            if to >= end:
                break
    else:
        memcpy(to, source, n)


cdef class OutputChunk:
    cdef Output out
    cdef int exports            # live buffers: while there are any, the bytes must not move or change


cdef enum:
    # A chunk that once grew beyond this size is freed instead of reused.
    SPARE_BYTES = 32 << 20

# The chunk to continue with after full[0..end) is handed out: begins with the bytes after `end`. It is `spare` if no
# view of that exists, otherwise a new one. `full` then ends at `end`.
cdef OutputChunk next_chunk(OutputChunk full, OutputChunk spare, int64_t end)
