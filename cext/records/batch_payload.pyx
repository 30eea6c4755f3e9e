"""Finds the bytes of a batch's records, and decompresses them. See batch_payload.pxd."""
from libc.stdint cimport uint8_t

from .batch_header cimport (
    CODEC_MASK, CODEC_NONE, CODEC_ZSTD, MIN_V2_RECORD_SIZE, TAGGED_MAGIC, V2_HEADER_SIZE, BatchHeader,
)
from .legacy_records cimport parse_bare_message
from .record_view cimport RecordView
from .span cimport Span, load_i32
from .status cimport BAD_CODEC, BAD_COUNT, NO_MESSAGES, OK, raise_status
from .window cimport Window, check_whole

from seglog.errors import InvalidArgumentError, SeglogError

cdef enum:
    VALUE_SIZE_BYTES = 4        # of the field before a message's value


cdef int raise_batch(int status, Window window, const BatchHeader* batch, object detail=None) except -1:
    window.check_size()
    return raise_status(status, batch.position, batch.base_offset, window.name, detail)


cdef int check_count(const BatchHeader* batch, const Span* records) noexcept nogil:
    if batch.count < 0 or batch.count > (records.end - records.p) // MIN_V2_RECORD_SIZE:
        return BAD_COUNT
    return OK


cdef int find_payload(const uint8_t* bytes, const BatchHeader* batch, Span* payload) noexcept nogil:
    """Find what follows the header: v2 records as stored, the value of a message."""
    cdef RecordView message
    cdef int status
    payload.p = bytes + batch.position
    payload.end = payload.p + batch.size_bytes
    if batch.magic == 2:
        payload.p += V2_HEADER_SIZE
        return OK
    status = parse_bare_message(payload, batch, &message)
    if status != OK:
        return status
    payload.p = message.value
    payload.end = message.value + max(message.value_size, 0)
    return OK


cdef inline int framing_of(const BatchHeader* batch) noexcept nogil:
    """The format version whose codec framing the batch uses: v2 for the tagged dialect."""
    return 2 if batch.magic == TAGGED_MAGIC else batch.magic


cdef Window open_records(Window window, const BatchHeader* batch, object decompress, Span* records):
    cdef int codec = batch.attributes & CODEC_MASK
    cdef Window opened
    cdef int status
    records.p = window.base + batch.position
    records.end = records.p + batch.size_bytes
    if batch.magic == 2:
        records.p += V2_HEADER_SIZE
    # (Second case: a cleaner removed all records but kept the codec bits.)
    if codec == CODEC_NONE or (batch.count == 0 and records.p == records.end):
        return window
    if codec > CODEC_ZSTD or (codec == CODEC_ZSTD and batch.magic & ~1 == 0):
        raise_batch(BAD_CODEC, window, batch)
    status = find_payload(window.base, batch, records)
    if status == OK and batch.magic < 2 and load_i32(records.p - VALUE_SIZE_BYTES) < 0:
        status = NO_MESSAGES
    if status != OK:
        raise_batch(status, window, batch)
    if decompress is None:
        raise InvalidArgumentError(
            "the batch is compressed and no decompressor was given",
            file=window.name, position=batch.position, offset=batch.base_offset,
            hint="scan(..., decompress=seglog.format.compression.decompressor())",
        )
    try:
        opened = Window(
            decompress(codec, framing_of(batch), window.view(records.p, records.end - records.p)), window.name)
    except SeglogError as e:
        window.check_size()
        if e.position is None:      # the codec does not know the position of its input
            e.file, e.position, e.offset = window.name, batch.position, batch.base_offset
        raise
    check_whole(window)
    records.p = opened.base
    records.end = opened.base + opened.size
    return opened
