"""See batch_source.pxd."""
from libc.stdint cimport int64_t

from .legacy_records cimport find_inner_base
from .record_batch cimport check_count, check_record_headers
from .status cimport OFFSET_BACK, OFFSET_RANGE, OK, TRAILING_BYTES


cdef int inspect(Source* source) noexcept nogil:
    cdef const BatchHeader* row = source.row
    cdef Source ahead
    cdef RecordView record
    cdef int64_t previous = 0
    cdef int64_t i
    cdef int status
    if row.magic == 2:
        status = check_count(row, &source.records)
        source.left = row.count
    elif codec_of(row) == CODEC_NONE:
        status = OK
        source.left = 1
    else:
        status = find_inner_base(&source.records, row, &source.inner_base, &source.left)
    if status != OK:
        return status
    source.has_null_value = False
    ahead = source[0]
    for i in range(source.left):
        status = parse_next(&ahead, &record)
        if status == OK and row.magic == 2:
            if record.offset < row.base_offset or record.offset > row.last_offset:
                return OFFSET_RANGE
            if record.header_count:
                status = check_record_headers(&record)
        if status != OK:
            return status
        if i > 0 and record.offset <= previous:
            return OFFSET_BACK
        previous = record.offset
        source.has_null_value |= record.value_size < 0
    return OK if ahead.records.p == ahead.records.end else TRAILING_BYTES
