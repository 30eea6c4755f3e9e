"""The statuses that kernels return. 0 is OK; the others say which check failed.

Only `status.raise_status` (status.pyx) has the words for each status.
"""
cpdef enum Status:
    OK = 0
    SHORT = -1              # the bytes end before the field does
    BAD_VARINT = -2         # more than ten bytes, or more than five for a 32-bit one
    BAD_SIZE = -3           # an impossible size or length (negative, below the minimum, beyond its container)
    BAD_MAGIC = -4          # a format version other than 0, 1, 2
    BAD_CRC = -5
    BAD_COUNT = -6          # a record or header count for which the bytes are too short
    BAD_KEY_SIZE = -7
    BAD_VALUE_SIZE = -8
    BAD_HEADER = -9
    BAD_CODEC = -10         # codec bits that name no codec, or one that this magic does not allow
    BAD_NESTING = -11       # a compressed message inside a wrapper; in an append, also a message with another magic
    TRAILING_BYTES = -12    # bytes left over after the last record of a batch
    OFFSET_BACK = -13       # an offset at or below the one before it
    OFFSET_RANGE = -14      # a record's offset outside its batch, a delta beyond int32, the last int64
    NOT_SORTED = -15        # an index entry smaller than the one before it
    NO_SPACE = -16          # the output buffer is full
    NO_MEMORY = -17
    ZEROS = -18             # zero bytes where a batch should begin: a preallocated tail
    LIMIT = -19             # the caller's limit was reached; not an error
    BAD_COMPRESSED = -20    # the codec refused the payload
    BAD_FIELD = -21         # an invalid protobuf field, or a required one is missing
    OFFSET_AHEAD = -22      # an offset above the following ones
    NO_MESSAGES = -23       # a compressed message whose value is null, so there is nothing to decompress
    BAD_TAG = -24           # a tag list whose sizes do not add up, that repeats an id, or has an impossible value

from libc.stdint cimport int64_t

cdef int raise_status(int status, Py_ssize_t position, int64_t offset, object file=*, object detail=*) except -1
