"""The last offset of each key, within a memory limit. See key_map.pyx and seg_key_map.h."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from .batch_source cimport Source
from .one_at_a_time cimport Use
from .segment_scan cimport BatchTable

cdef enum:
    TURN = 16               # keys whose slots are prefetched together

cdef extern from "seg_key_map.h" nogil:
    ctypedef struct seg_key_hash:
        uint64_t a
        uint64_t b

    ctypedef struct seg_key_slot:
        seg_key_hash hash
        uint64_t offset_plus_1
        int32_t position

    ctypedef struct seg_key_table:
        seg_key_slot* slots
        int64_t slot_count
        int64_t max_slots
        int64_t key_count
        int64_t key_limit
        int64_t max_keys
        double load_factor

    int SEG_KEY_FULL
    seg_key_hash seg_siphash(seg_key_hash secret, const uint8_t* bytes, int64_t size, int rounds, int last_rounds,
                             int is_wide)
    seg_key_hash seg_siphash13(seg_key_hash secret, const uint8_t* bytes, int64_t size)
    void seg_key_expect(const seg_key_table* t, seg_key_hash hash)
    seg_key_slot* seg_key_find(const seg_key_table* t, seg_key_hash hash)
    void seg_key_free(seg_key_slot* slots, int64_t slot_count)
    int seg_key_resize(seg_key_table* t, int64_t slot_count)
    int seg_key_put(seg_key_table* t, seg_key_hash hash, int64_t offset, int32_t position)
    int64_t seg_key_get(const seg_key_table* t, seg_key_hash hash)


# The offset in a slot that is in use.
cdef inline int64_t offset_of(const seg_key_slot* slot) noexcept nogil:
    return <int64_t>slot.offset_plus_1 - 1


# The record's position in its segment; -1: unknown.
cdef inline int32_t position_of(const seg_key_slot* slot) noexcept nogil:
    return slot.position if slot.position >= -1 else -2 - slot.position


# Whether the record is a v0 or v1 message.
cdef inline bint is_message(const seg_key_slot* slot) noexcept nogil:
    return slot.position < -1


# Keys whose slots are being prefetched.
cdef struct Turn:
    int count
    int put                 # how many of them a full map accepted
    seg_key_hash[TURN] hash
    int64_t[TURN] offset
    int32_t[TURN] position


cdef class KeyMap:
    cdef seg_key_table table
    cdef seg_key_hash secret
    cdef seg_key_hash identity_mask     # all ones, except in tests that force collisions
    cdef readonly int64_t max_bytes
    cdef readonly int64_t keyless       # records without a key in the batches added
    cdef Use use                        # a BatchFilter reads it without the GIL

    cdef seg_key_hash hash_of(self, const uint8_t* key, int64_t size) noexcept nogil

    # The slot of a key; NULL: the key is not in the map.
    cdef const seg_key_slot* slot_of(self, seg_key_hash hash) noexcept nogil

    cdef Py_ssize_t add_table(
        self, BatchTable table, Py_ssize_t start, Py_ssize_t stop, int64_t first_offset, bint is_placed
    ) except -1

    cdef int add_plain(
        self, BatchTable table, Py_ssize_t* i, Py_ssize_t stop, int64_t first_offset, bint is_placed, Turn* turn
    ) noexcept nogil
    cdef int add_source(
        self, Source* source, int64_t previous, int64_t first_offset, const uint8_t* bytes, Turn* turn
    ) noexcept nogil
    cdef seg_key_hash hash_object(self, object key) except *
    cdef int check_readable(self) except -1
