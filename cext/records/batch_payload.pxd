"""What a batch's header stands before: the bytes of its records, whatever its format and codec."""
from libc.stdint cimport uint8_t

from .batch_header cimport BatchHeader
from .span cimport Span
from .window cimport Window


# A bound on a hostile v2 count before anything is allocated for it: BAD_COUNT where the bytes
# cannot hold so many records. (parse_header knows it only for batches that are not compressed.)
cdef int check_count(const BatchHeader* batch, const Span* records) noexcept nogil

# The bytes of the batch's records: what lies in `window`, or what `decompress` makes of it. The span is
# valid while the returned window lives. Of a bare v0 or v1 message: the message itself.
# Raises what `decompress` raises; CorruptRecordError or UnsupportedCompressionTypeError otherwise.
cdef Window open_records(Window window, const BatchHeader* batch, object decompress, Span* records)

# What the header stands before: v2 records as stored, the value of a message. OK, or what parse_message says.
cdef int find_payload(const uint8_t* bytes, const BatchHeader* batch, Span* payload) noexcept nogil

# Raise the exception of `status` for this batch; `detail` says which record.
cdef int raise_batch(int status, Window window, const BatchHeader* batch, object detail=*) except -1
