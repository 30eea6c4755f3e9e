"""What a kernel may answer. 0 is good; the rest say which check failed.

The words for each status are in one place: `status.raise_status` (status.pyx).
"""
cpdef enum Status:
    OK = 0
    SHORT = -1              # the bytes end before the field does
    BAD_VARINT = -2         # more than ten bytes, or more than five for a 32-bit one
    BAD_SIZE = -3           # a size or length that cannot be (negative, below the minimum, above what holds it)
    BAD_MAGIC = -4          # a format version that is none of 0, 1, 2
    BAD_CRC = -5
    BAD_COUNT = -6          # a record or header count that the bytes cannot hold
    BAD_KEY_SIZE = -7
    BAD_VALUE_SIZE = -8
    BAD_HEADER = -9
    BAD_CODEC = -10         # codec bits that name no codec, or one that this magic may not use
    BAD_NESTING = -11       # a compressed message inside a wrapper; in an append, another magic inside it
    TRAILING_BYTES = -12    # bytes left over after the last record of a batch
    OFFSET_BACK = -13       # an offset at or below the one before it
    OFFSET_RANGE = -14      # a record's offset outside its batch, a delta beyond int32, the last int64
    NOT_SORTED = -15        # an index entry smaller than the one before it
    NO_SPACE = -16          # the output buffer is full
    NO_MEMORY = -17
    ZEROS = -18             # zero bytes where a batch should begin: a preallocated tail
    LIMIT = -19             # the caller's limit was reached; no error
    BAD_COMPRESSED = -20    # the codec refused the payload
    BAD_FIELD = -21         # a protobuf field that cannot be, or a required one that is missing
    OFFSET_AHEAD = -22      # an offset above those that follow it
    NO_MESSAGES = -23       # a compressed message whose value is null: there is nothing to decompress
    BAD_TAG = -24           # a message's list of tags that does not add up, names an id twice, or says what cannot be

from libc.stdint cimport int64_t

cdef int raise_status(int status, Py_ssize_t position, int64_t offset, object file=*, object detail=*) except -1
