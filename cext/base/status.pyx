"""The messages and exceptions of all statuses."""
from seglog.errors import CorruptIndexError, CorruptRecordError, SeglogError, UnsupportedCompressionTypeError

_WORDS = {
    SHORT: "the bytes end before the field does",
    BAD_VARINT: "a variable-length integer that does not end",
    BAD_SIZE: "a size that is impossible",
    BAD_MAGIC: "an unknown format version (magic)",
    BAD_CRC: "the checksum does not match",
    BAD_COUNT: "a count that the bytes cannot hold",
    BAD_KEY_SIZE: "a key size that the record cannot hold",
    BAD_VALUE_SIZE: "a value size that the record cannot hold",
    BAD_HEADER: "a header that the record cannot hold",
    BAD_CODEC: "a compression codec that this format version does not have",
    BAD_NESTING: "a wrapper contains another wrapper (or, in an append, another format version)",
    TRAILING_BYTES: "bytes left over after the last record",
    OFFSET_BACK: "an offset at or below the one before it",
    OFFSET_AHEAD: "an offset at or above the ones that follow it",
    OFFSET_RANGE: "an offset out of range",
    NOT_SORTED: "entries are not sorted",
    NO_SPACE: "the output buffer is full",
    ZEROS: "zero bytes where a batch should begin",
    LIMIT: "the limit was reached",
    BAD_COMPRESSED: "the codec refused the payload",
    NO_MESSAGES: "a compressed message whose value is null, where its messages should be",
    BAD_TAG: "a list of tags that is inconsistent, or has one twice",
    BAD_FIELD: "an impossible protobuf field, or a required one is missing",
}


def words(int status):
    """Describe a status to an operator."""
    return _WORDS.get(status, f"status {status}")


cdef int raise_status(int status, Py_ssize_t position, int64_t offset, object file=None, object detail=None) except -1:
    """Turn a status into its exception.

    `position` or `offset` -1: unknown. `file`: its name. `detail`: what was found and expected, and which record.
    """
    if status == NO_MEMORY:
        raise MemoryError
    if status == NO_SPACE:
        raise SeglogError(words(status))
    if status == NOT_SORTED:
        error = CorruptIndexError
    elif status == BAD_CODEC:
        error = UnsupportedCompressionTypeError
    else:
        error = CorruptRecordError
    raise error(
        words(status) if detail is None else f"{words(status)}: {detail}",
        file=file,
        position=None if position < 0 else position,
        offset=None if offset < 0 else offset,
    )
