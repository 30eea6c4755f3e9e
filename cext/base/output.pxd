"""Growing bytes that a kernel writes into, and the object that hands them on without a copy."""
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from .status cimport OK


cdef struct Output:
    uint8_t* first              # owned
    int64_t size                # written
    int64_t capacity            # writable; WILD_COPY_SLACK bytes more are allocated

cdef enum:
    # copy_field stores whole steps of this many bytes, past the field's end on both sides.
    WILD_COPY_STEP = 32
    WILD_COPY_SLACK = 64
    WILD_COPY_LIMIT = 512       # above, memcpy's own start-up no longer shows


# Enlarge by at least `more`, doubling. OK or NO_MEMORY; on NO_MEMORY nothing is lost.
cdef int grow_output(Output* out, int64_t more) noexcept nogil


cdef inline int ensure_room(Output* out, int64_t more) noexcept nogil:
    if more <= out.capacity - out.size:
        return OK
    return grow_output(out, more)


# Copy a field of n bytes into room that ensure_room made; the source is readable up to `readable_end`.
# Short fields are most of a log, and a call of memcpy costs more than they do: so they are copied in
# whole steps, where the source goes on far enough, and what is too much is overwritten by the next field.
cdef inline void copy_field(uint8_t* to, const uint8_t* source, int64_t n, const uint8_t* readable_end) noexcept nogil:
    cdef uint8_t* end = to + n
    if n <= 0:
        return                  # a null field has no address at all
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
    cdef int exports            # live buffers: while there are any, the bytes neither move nor change


cdef enum:
    # A chunk that once grew beyond this is not kept to be written again.
    SPARE_BYTES = 32 << 20

# The chunk to go on with where full[0..end) is handed out: what lies behind `end` stands at its start. `spare` where
# nobody looks at it, else a new one. `full` ends at `end` then.
cdef OutputChunk next_chunk(OutputChunk full, OutputChunk spare, int64_t end)
