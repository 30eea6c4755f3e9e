"""The bytes of a queue's journal. See journal_record.pyx."""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    ONE_ITEM_BYTES = 64     # a record of one item, without a text


# Write such a record, whose holder is 0: ONE_ITEM_BYTES bytes.
cdef void store_one(
    uint8_t* first, int kind, uint64_t ledger_id, uint64_t entry_id, int32_t batch_index, uint32_t number,
    uint64_t at_ms, uint64_t journal_id, uint64_t position, uint64_t synced_to, uint16_t subscription,
) noexcept
