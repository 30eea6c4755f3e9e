"""Encodes the records of a queue's journal: docs/formats/queue_journal.md.

What they mean, and reading them: seglog.ledger.managed.journal, whose layout this is.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from .crc cimport update_crc32c
from .span cimport store_u16, store_u32, store_u64

cdef enum:
    FRAME_BYTES = 8         # length of the body, CRC-32C
    BODY_BYTES = 32         # kind, 0, subscription, items, synced_to, at_ms, holder
    ITEM_BYTES = 24         # ledger, entry, number in the batch or -1, number
    SEED_BYTES = 20         # what the CRC covers besides the body: journal, position, length
    ALIGNED = 8


cdef void seal_record(
    uint8_t* first, int kind, uint32_t count, uint32_t length, uint64_t at_ms, uint64_t holder, uint64_t journal_id,
    uint64_t position, uint64_t synced_to, uint16_t subscription,
) noexcept:
    """Write what is before the items of a body of `length` bytes, whose items and text are there already."""
    cdef uint8_t seed[SEED_BYTES]
    cdef uint8_t* body = first + FRAME_BYTES
    body[0] = <uint8_t>kind
    body[1] = 0
    store_u16(body + 2, subscription)
    store_u32(body + 4, count)
    store_u64(body + 8, synced_to)
    store_u64(body + 16, at_ms)
    store_u64(body + 24, holder)
    store_u64(seed, journal_id)
    store_u64(seed + 8, position)
    store_u32(seed + 16, length)
    store_u32(first, length)
    store_u32(first + 4, update_crc32c(update_crc32c(0, seed, SEED_BYTES), body, length))


cdef void store_item(
    uint8_t* p, uint64_t ledger_id, uint64_t entry_id, int32_t batch_index, uint32_t number
) noexcept:
    store_u64(p, ledger_id)
    store_u64(p + 8, entry_id)
    store_u32(p + 16, <uint32_t>batch_index)
    store_u32(p + 20, number)


cdef void store_one(
    uint8_t* first, int kind, uint64_t ledger_id, uint64_t entry_id, int32_t batch_index, uint32_t number,
    uint64_t at_ms, uint64_t journal_id, uint64_t position, uint64_t synced_to, uint16_t subscription,
) noexcept:
    store_item(first + FRAME_BYTES + BODY_BYTES, ledger_id, entry_id, batch_index, number)
    seal_record(first, kind, 1, BODY_BYTES + ITEM_BYTES, at_ms, 0, journal_id, position, synced_to, subscription)


def encode_record(
    int kind, items not None, uint64_t at_ms, uint64_t holder, bytes text not None, uint64_t journal_id,
    uint64_t position, uint64_t synced_to, uint16_t subscription=0,
):
    """One record with its frame and padding. `items`: a sequence of (ledger id, entry id, number in the batch or -1,
    number). `text`: what follows them. `subscription`: its number. Raises OverflowError for numbers that have no
    place."""
    cdef tuple listed = tuple(items)
    cdef Py_ssize_t count = len(listed)
    cdef Py_ssize_t length = BODY_BYTES + count * ITEM_BYTES + PyBytes_GET_SIZE(text)
    cdef Py_ssize_t padding = (ALIGNED - length % ALIGNED) % ALIGNED
    cdef bytes made = PyBytes_FromStringAndSize(NULL, FRAME_BYTES + length + padding)
    cdef uint8_t* first = <uint8_t*>PyBytes_AS_STRING(made)
    cdef uint8_t* body = first + FRAME_BYTES
    cdef uint8_t* p = body + BODY_BYTES
    cdef Py_ssize_t number
    cdef uint64_t ledger_id, entry_id
    cdef int32_t batch_index
    cdef uint32_t of_kind
    if not 0 <= kind <= 0xFF or length > 0x7FFFFFFF:
        raise OverflowError(f"a record of kind {kind} with {length} bytes")
    for number in range(count):
        ledger_id, entry_id, batch_index, of_kind = listed[number]
        store_item(p, ledger_id, entry_id, batch_index, of_kind)
        p += ITEM_BYTES
    memcpy(p, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    memset(body + length, 0, padding)
    seal_record(first, kind, <uint32_t>count, <uint32_t>length, at_ms, holder, journal_id, position, synced_to,
                subscription)
    return made
