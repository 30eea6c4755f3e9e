"""The fast path of conversion: a run of v0 or v1 messages into one open v2 batch."""
from libc.stdint cimport int64_t, uint8_t

from .batch_header cimport BatchHeader
from .output cimport Output

# Appends messages like rows[0] (same format and attributes, same presence of a timestamp) to the batch that is open at
# the end of the output, as long as each certainly fits `max_bytes` of batch. Returns how many were appended; 0 means
# that the next one needs the slow path.
# The caller has checked that rows[0] may join the batch; `bytes` are readable up to `end`.
cdef Py_ssize_t append_run(
    Output* out, BatchHeader* batch, int64_t max_bytes, bint has_time,
    const uint8_t* bytes, const uint8_t* end, const BatchHeader* rows, Py_ssize_t n,
) noexcept nogil
