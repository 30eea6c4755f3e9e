/* CRC-32 (IEEE 802.3, as zlib: Kafka's v0 and v1 messages) and CRC-32C (Castagnoli: v2 batches,
 * producer snapshots), each with the fastest implementation ("level") for this machine.
 *
 * Specification, for `polynomial` 0xEDB88320 (CRC-32) or 0x82F63B78 (CRC-32C):
 *
 *     value = ~value
 *     for each byte:
 *         value ^= byte
 *         eight times: value = (value >> 1) ^ (value & 1 ? polynomial : 0)
 *     return ~value
 *
 * so that crc(crc(0, a), b) == crc(0, a + b). All levels return the same results for every length and alignment. They
 * read exactly bytes[0..size), keep no state and may run in parallel.
 */
#ifndef SEG_CRC_H
#define SEG_CRC_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t (*seg_crc_function)(uint32_t value, const uint8_t *bytes, size_t size);

typedef struct {
    const char *name;
    int (*is_supported)(void);
    seg_crc_function crc32;
    seg_crc_function crc32c;
} seg_crc_level;

/* The levels in this build, slowest first; the last entry has no name. */
extern const seg_crc_level seg_crc_levels[];

/* Compute the tables. Call it once, at import, before any other call and while no other thread calls. */
void seg_crc_init(void);

#endif
