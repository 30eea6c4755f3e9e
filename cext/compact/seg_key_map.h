/* The last offset of each key: SipHash of the key, and a table of slots with open addressing.
 *
 * SipHash (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) is keyed with a secret: without it, nobody
 * can construct two keys that collide. One round a word and three at the end, as in hash tables; the result has
 * 128 bits. Words are little-endian on every machine.
 *
 * A slot has 28 bytes, without padding. The upper bits of the hash choose the first slot; the search then probes the
 * following ones.
 */
#ifndef SEG_KEY_MAP_H
#define SEG_KEY_MAP_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

typedef struct {
    uint64_t a, b;
} seg_key_hash;

#define SEG_ROTATE(x, n) (((x) << (n)) | ((x) >> (64 - (n))))

#define SEG_SIP_ROUND                                                                                                  \
    do {                                                                                                               \
        v0 += v1; v1 = SEG_ROTATE(v1, 13); v1 ^= v0; v0 = SEG_ROTATE(v0, 32);                                          \
        v2 += v3; v3 = SEG_ROTATE(v3, 16); v3 ^= v2;                                                                   \
        v0 += v3; v3 = SEG_ROTATE(v3, 21); v3 ^= v0;                                                                   \
        v2 += v1; v1 = SEG_ROTATE(v1, 17); v1 ^= v2; v2 = SEG_ROTATE(v2, 32);                                          \
    } while (0)

static inline uint64_t seg_load_le64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

/* The last size % 8 of `size` bytes, which begin at `rest`, as a word. Reads no other bytes. */
static inline uint64_t seg_last_bytes(const uint8_t *rest, int64_t size)
{
    int count = (int)(size & 7);
    uint64_t word = 0;
    if (count == 0)
        return 0;
    if (size > 8)
        return seg_load_le64(rest + count - 8) >> (8 * (8 - count));
    for (int i = 0; i < count; i++)
        word |= (uint64_t)rest[i] << (8 * i);
    return word;
}

/* `rounds` a word and `last_rounds` at the end; `is_wide`: 128 bits, else `b` is 0. Callers pass constants for all. */
static inline __attribute__((always_inline)) seg_key_hash seg_siphash(
    seg_key_hash secret, const uint8_t *bytes, int64_t size, int rounds, int last_rounds, int is_wide)
{
    uint64_t v0 = secret.a ^ 0x736f6d6570736575ull;
    uint64_t v1 = secret.b ^ 0x646f72616e646f6dull;
    uint64_t v2 = secret.a ^ 0x6c7967656e657261ull;
    uint64_t v3 = secret.b ^ 0x7465646279746573ull;
    uint64_t word = (uint64_t)size << 56;
    const uint8_t *end = bytes + (size & ~(int64_t)7);
    seg_key_hash hash;
    if (is_wide)
        v1 ^= 0xee;
    for (; bytes != end; bytes += 8) {
        uint64_t m = seg_load_le64(bytes);
        v3 ^= m;
        for (int i = 0; i < rounds; i++)
            SEG_SIP_ROUND;
        v0 ^= m;
    }
    word |= seg_last_bytes(bytes, size);
    v3 ^= word;
    for (int i = 0; i < rounds; i++)
        SEG_SIP_ROUND;
    v0 ^= word;
    v2 ^= is_wide ? 0xee : 0xff;
    for (int i = 0; i < last_rounds; i++)
        SEG_SIP_ROUND;
    hash.a = v0 ^ v1 ^ v2 ^ v3;
    hash.b = 0;
    if (is_wide) {
        v1 ^= 0xdd;
        for (int i = 0; i < last_rounds; i++)
            SEG_SIP_ROUND;
        hash.b = v0 ^ v1 ^ v2 ^ v3;
    }
    return hash;
}

static inline seg_key_hash seg_siphash13(seg_key_hash secret, const uint8_t *bytes, int64_t size)
{
    return seg_siphash(secret, bytes, size, 1, 3, 1);
}

/* --- the table ------------------------------------------------------------------------------------- */

typedef struct __attribute__((packed, aligned(4))) {
    seg_key_hash hash;
    uint64_t offset_plus_1;     /* 0: the slot is empty */
    int32_t position;           /* of the record in its segment; for v0 and v1, -2 - position; -1: unknown */
} seg_key_slot;

typedef struct {
    seg_key_slot *slots;        /* owned */
    int64_t slot_count;         /* 0: no table is allocated yet */
    int64_t max_slots;
    int64_t key_count;
    int64_t key_limit;          /* of the table as allocated now */
    int64_t max_keys;
    double load_factor;
} seg_key_table;

/* Results besides 0: the key does not fit; no memory, with the value that Status gives it. */
#define SEG_KEY_FULL 1
#define SEG_KEY_NO_MEMORY (-17)

static inline int64_t seg_key_home(const seg_key_table *t, seg_key_hash hash)
{
    return (int64_t)(((unsigned __int128)hash.a * (uint64_t)t->slot_count) >> 64);
}

static inline void seg_key_expect(const seg_key_table *t, seg_key_hash hash)
{
    if (t->slot_count)
        __builtin_prefetch(&t->slots[seg_key_home(t, hash)], 1);
}

/* Allocates slots, all empty. A large table uses large pages if the system has some: nearly each lookup goes to another
 * page, and the address translation costs as much as the slot. NULL: no memory. seg_key_free frees it.
 */
#define SEG_LARGE_PAGE ((size_t)2 << 20)

#if defined(__linux__) && defined(MADV_HUGEPAGE)
/* The address space, in bytes, that a table of this size maps; 0: it comes from calloc. */
static inline size_t seg_key_mapped(size_t size)
{
    return size < 2 * SEG_LARGE_PAGE ? 0 : (size + SEG_LARGE_PAGE - 1) / SEG_LARGE_PAGE * SEG_LARGE_PAGE;
}
#else
#define seg_key_mapped(size) ((size_t)0)
#endif

static inline seg_key_slot *seg_key_slots(int64_t slot_count)
{
    size_t size = (size_t)slot_count * sizeof(seg_key_slot);
    size_t mapped = seg_key_mapped(size);
    if (mapped == 0)
        return (seg_key_slot *)calloc((size_t)slot_count, sizeof(seg_key_slot));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    uint8_t *pages = (uint8_t *)mmap(NULL, mapped + SEG_LARGE_PAGE, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t before;
    if (pages == (uint8_t *)MAP_FAILED)
        return NULL;
    /* A large page begins at a multiple of its size. */
    before = (SEG_LARGE_PAGE - (size_t)pages % SEG_LARGE_PAGE) % SEG_LARGE_PAGE;
    if (before)
        munmap(pages, before);
    pages += before;
    if (before < SEG_LARGE_PAGE)
        munmap(pages + mapped, SEG_LARGE_PAGE - before);
    /* Exclude a last page that is partly beyond the table. If the system refuses, lookups are only slower. */
    madvise(pages, size / SEG_LARGE_PAGE * SEG_LARGE_PAGE, MADV_HUGEPAGE);
    return (seg_key_slot *)pages;
#endif
}

static inline void seg_key_free(seg_key_slot *slots, int64_t slot_count)
{
    size_t mapped = seg_key_mapped((size_t)slot_count * sizeof(seg_key_slot));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (mapped != 0 && slots != NULL) {
        munmap(slots, mapped);
        return;
    }
#endif
    (void)mapped;
    free(slots);
}

/* The slot of this key, or the empty slot where it belongs. At least one slot is always empty. */
static inline seg_key_slot *seg_key_find(const seg_key_table *t, seg_key_hash hash)
{
    seg_key_slot *slot = &t->slots[seg_key_home(t, hash)];
    const seg_key_slot *end = t->slots + t->slot_count;
    while (slot->offset_plus_1 && (slot->hash.a != hash.a || slot->hash.b != hash.b))
        if (++slot == end)
            slot = t->slots;
    return slot;
}

/* Replace the table with one of this many slots and the same contents. 0 or SEG_KEY_NO_MEMORY. */
static inline int seg_key_resize(seg_key_table *t, int64_t slot_count)
{
    seg_key_table grown = *t;
    grown.slots = seg_key_slots(slot_count);
    if (grown.slots == NULL)
        return SEG_KEY_NO_MEMORY;
    grown.slot_count = slot_count;
    grown.key_limit = (int64_t)((double)slot_count * t->load_factor);
    if (grown.key_limit >= slot_count)
        grown.key_limit = slot_count - 1;
    for (int64_t i = 0; i < t->slot_count; i++)
        if (t->slots[i].offset_plus_1)
            *seg_key_find(&grown, t->slots[i].hash) = t->slots[i];
    seg_key_free(t->slots, t->slot_count);
    *t = grown;
    return 0;
}

/* Store the offset unless a higher one is known. 0, SEG_KEY_FULL or SEG_KEY_NO_MEMORY; the last two change nothing. */
static inline int seg_key_put(seg_key_table *t, seg_key_hash hash, int64_t offset, int32_t position)
{
    seg_key_slot *slot = t->slot_count ? seg_key_find(t, hash) : NULL;
    if (slot == NULL || slot->offset_plus_1 == 0) {
        if (t->key_count >= t->max_keys)
            return SEG_KEY_FULL;
        if (t->key_count >= t->key_limit) {
            /* Grow eightfold or more, to an eighth of the limit, and then to the limit: while both tables exist, they
             * take an eighth more than the larger one. */
            int64_t wanted = t->max_slots;
            while (wanted / 8 >= 1024 && wanted / 8 >= t->slot_count * 8)
                wanted /= 8;
            if (seg_key_resize(t, wanted) != 0)
                return SEG_KEY_NO_MEMORY;
            slot = seg_key_find(t, hash);
        }
        slot->hash = hash;
        t->key_count++;
    } else if (slot->offset_plus_1 > (uint64_t)offset) {
        return 0;
    }
    slot->offset_plus_1 = (uint64_t)offset + 1;
    slot->position = position;
    return 0;
}

/* The highest offset of the key; -1: the key is unknown. */
static inline int64_t seg_key_get(const seg_key_table *t, seg_key_hash hash)
{
    return t->slot_count ? (int64_t)seg_key_find(t, hash)->offset_plus_1 - 1 : -1;
}

#endif
