"""The tags of a message as Python objects, for display; counts missing ones, and those that messages contradict.

See docs/formats/tagged_message.md.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from .batch_header cimport CODEC_MASK, TAGGED_MAGIC
from .batch_payload cimport raise_batch
from .record_batch cimport RecordBatch
from .segment_scan cimport BatchTable
from .span cimport Span, load_i32, load_i64
from .status cimport OK
from .tagged_message cimport (
    FIRST_BYTES, FIRST_INT8, FIRST_INT32, KNOWS_BROKER_MS, KNOWS_COUNT, KNOWS_HONOUR_OFFSETS, KNOWS_LARGEST_MS,
    KNOWS_LAST_DELTA, KNOWS_NO_KEYS, KNOWS_TIMESTAMP_TYPE, TAG_COUNT, TAG_LARGEST_MS, Tags, parse_tag, parse_tags,
    stored_tags,
)


def tags_of(RecordBatch batch not None):
    """{id: value} of a bare message or a wrapper, in the order of the list: int, or bytes from id 96 on.

    Empty for a batch of another format. Raises CorruptRecordError.
    """
    cdef Span s
    cdef const uint8_t* value = NULL
    cdef int32_t size = 0
    cdef int tag = 0
    cdef int status
    found = {}
    if batch.window is None or batch.header.magic != TAGGED_MAGIC:
        return found
    s = stored_tags(batch.window.base + batch.header.position)
    while s.p != s.end:
        status = parse_tag(&s, &tag, &value, &size)
        if status != OK:
            raise_batch(status, batch.window, &batch.header)
        if tag < FIRST_INT32:
            found[tag] = load_i64(value)
        elif tag < FIRST_INT8:
            found[tag] = load_i32(value)
        elif tag < FIRST_BYTES:
            found[tag] = <signed char>value[0]
        else:
            found[tag] = PyBytes_FromStringAndSize(<const char*>value, size)
    return found


def count_defaults(BatchTable table not None):
    """{id: n}: how many messages of a table lack a tag that they need, so that its default applies.

    Tag 0 for all; 32, 64, 65 and 66 for wrappers. Does not look at messages inside wrappers.
    """
    cdef int64_t[5] missing
    cdef Py_ssize_t i
    cdef Span s
    cdef Tags tags
    cdef bint is_wrapper
    for i in range(5):
        missing[i] = 0
    with nogil:
        for i in range(table.n):
            if table.rows[i].magic != TAGGED_MAGIC:
                continue
            s = stored_tags(table.window.base + table.rows[i].position)
            if parse_tags(&s, &tags) != OK:
                continue
            is_wrapper = table.rows[i].attributes & CODEC_MASK != 0
            missing[0] += not tags.known & KNOWS_BROKER_MS
            missing[1] += is_wrapper and not tags.known & KNOWS_COUNT
            missing[2] += is_wrapper and not tags.known & KNOWS_HONOUR_OFFSETS
            missing[3] += is_wrapper and not tags.known & KNOWS_NO_KEYS
            missing[4] += is_wrapper and not tags.known & KNOWS_TIMESTAMP_TYPE
    return {tag: missing[i] for i, tag in enumerate((0, 32, 64, 65, 66)) if missing[i]}


def first_impossible(BatchTable table not None):
    """The first slot of a wrapper that says it holds more messages (tag 32) than offsets (tag 33); -1: none does."""
    cdef Py_ssize_t found = -1
    cdef Py_ssize_t i
    cdef Span s
    cdef Tags tags
    with nogil:
        for i in range(table.n):
            if table.rows[i].magic != TAGGED_MAGIC or table.rows[i].attributes & CODEC_MASK == 0:
                continue
            s = stored_tags(table.window.base + table.rows[i].position)
            if (
                parse_tags(&s, &tags) == OK and tags.known & KNOWS_COUNT and tags.known & KNOWS_LAST_DELTA
                and tags.honours_offsets and tags.count - 1 > tags.last_delta
            ):
                found = i
                break
    return found


def contradicted(
    BatchTable table not None, const int64_t[::1] offsets not None, const int64_t[::1] timestamps not None,
    Py_ssize_t first=0,
):
    """(wrappers, slot, tag, actual): how many wrappers have a tag 32 or 1 that their messages contradict.

    `slot`, `tag`: the first of them, and which tag, -1 if there is none; `actual`: how many messages it holds, or the
    largest timestamp, which is above that of tag 1. The records are those of whole batches from slot `first` on, as
    `columns.chunks` gives them: control messages too, offsets rising.
    """
    cdef Py_ssize_t n = min(offsets.shape[0], timestamps.shape[0])
    cdef Py_ssize_t wrappers = 0
    cdef Py_ssize_t found = -1
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t slot
    cdef int64_t actual_of_found = -1
    cdef int64_t count, largest, actual
    cdef int tag_of_found = -1
    cdef int tag
    cdef Span s
    cdef Tags tags
    if not 0 <= first <= table.n:
        raise IndexError(f"slot {first}: the table has {table.n} batches")
    with nogil:
        for slot in range(first, table.n):
            if i == n:
                break
            if table.rows[slot].magic != TAGGED_MAGIC or table.rows[slot].attributes & CODEC_MASK == 0:
                continue
            while i < n and offsets[i] < table.rows[slot].base_offset:
                i += 1
            count = 0
            largest = -1
            while i < n and offsets[i] <= table.rows[slot].last_offset:
                largest = max(largest, timestamps[i])
                count += 1
                i += 1
            s = stored_tags(table.window.base + table.rows[slot].position)
            if parse_tags(&s, &tags) != OK:
                continue
            tag = -1
            actual = count
            if tags.known & KNOWS_COUNT and tags.count != count:
                tag = TAG_COUNT
            elif tags.known & KNOWS_LARGEST_MS and not tags.timestamp_type and tags.largest_ms < largest:
                tag = TAG_LARGEST_MS
                actual = largest
            if tag >= 0:
                if wrappers == 0:
                    found, tag_of_found, actual_of_found = slot, tag, actual
                wrappers += 1
    return wrappers, found, tag_of_found, actual_of_found
