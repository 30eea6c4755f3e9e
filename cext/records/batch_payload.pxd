"""The bytes of a batch's records, which follow its header, for any format and codec."""
from libc.stdint cimport uint8_t

from .batch_header cimport BatchHeader
from .span cimport Span
from .window cimport Window


# Bound a hostile v2 count before allocating memory for it: BAD_COUNT if the bytes cannot hold this many records.
# (parse_header can check this only for uncompressed batches.)
cdef int check_count(const BatchHeader* batch, const Span* records) noexcept nogil

# The bytes of the batch's records: in `window`, or as `decompress` returns them. The span is valid as long as the
# returned window lives. For a bare v0 or v1 message: the message itself. Raises what `decompress` raises, otherwise
# CorruptRecordError or UnsupportedCompressionTypeError.
cdef Window open_records(Window window, const BatchHeader* batch, object decompress, Span* records)

# What follows the header: v2 records as stored, the value of a message. OK, or the status of parse_message.
cdef int find_payload(const uint8_t* bytes, const BatchHeader* batch, Span* payload) noexcept nogil

# Raise the exception for `status` of this batch; `detail` names the record.
cdef int raise_batch(int status, Window window, const BatchHeader* batch, object detail=*) except -1
