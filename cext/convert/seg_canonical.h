/* Columns as one stream of bytes that represents the records, whatever their format:
 *
 *   record := offset: int64, timestamp: int64, bytes(key), bytes(value), header_count: int32, header*
 *   header := bytes(key), bytes(value)
 *   bytes  := size: int32 (-1: null), data
 *
 * big-endian. The digest that proves a conversion is SHA-256 over this stream. It can leave out what a format cannot
 * hold: without time every timestamp is -1, without headers every header count is 0.
 */
#ifndef SEG_CANONICAL_H
#define SEG_CANONICAL_H

#include "seg_columns.h"

/* The fixed bytes of a record (offset, timestamp, two sizes, header count) and of a header (two sizes). */
#define SEG_CANONICAL_RECORD 28
#define SEG_CANONICAL_HEADER 8

static inline uint8_t *seg_put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
    return p + 4;
}

static inline uint8_t *seg_put_u64(uint8_t *p, uint64_t v)
{
    return seg_put_u32(seg_put_u32(p, (uint32_t)(v >> 32)), (uint32_t)v);
}

enum { SEG_WITHOUT_TIME = 1, SEG_WITHOUT_HEADERS = 2 };

/* The size in bytes of the stream of the rows [row, row + n). */
static inline int64_t seg_canonical_size(const seg_columns *c, int64_t row, int64_t n, int without)
{
    int32_t h0 = c->header_start[row], h1 = without & SEG_WITHOUT_HEADERS ? h0 : c->header_start[row + n];
    int64_t size = n * SEG_CANONICAL_RECORD + (c->key.offsets[row + n] - c->key.offsets[row])
                 + (int64_t)(c->value.offsets[row + n] - c->value.offsets[row]);
    if (h1 > h0)
        size += (int64_t)(h1 - h0) * SEG_CANONICAL_HEADER
              + (c->header_key.offsets[h1] - c->header_key.offsets[h0])
              + (int64_t)(c->header_value.offsets[h1] - c->header_value.offsets[h0]);
    return size;
}

/* How many rows from `row` on fit `limit` bytes; at least one. There must be a row. */
static inline int64_t seg_canonical_rows(const seg_columns *c, int64_t row, int64_t limit, int without)
{
    /* The size grows with n, so bisect. */
    int64_t n = 1, too_many = c->rows - row + 1;
    while (too_many - n > 1) {
        int64_t middle = n + (too_many - n) / 2;
        if (seg_canonical_size(c, row, middle, without) <= limit)
            n = middle;
        else
            too_many = middle;
    }
    return n;
}

static inline __attribute__((always_inline)) uint8_t *seg_put_bytes(uint8_t *out, const seg_binary *column, int64_t row)
{
    int32_t start = column->offsets[row], size = column->offsets[row + 1] - start;
    if (seg_unlikely(size == 0 && !(column->validity[row >> 3] >> (row & 7) & 1)))
        return seg_put_u32(out, UINT32_MAX);
    out = seg_put_u32(out, (uint32_t)size);
    seg_copy_wild(out, column->data + start, size);
    return out + size;
}

/* Write the rows [row, row + n) to `out`, which must have room for seg_canonical_size + SEG_SLACK bytes.
 * Returns the end of the written bytes. */
static inline uint8_t *seg_canonical(const seg_columns *c, int64_t row, int64_t n, int without, uint8_t *out)
{
    for (int64_t end = row + n; row < end; row++) {
        out = seg_put_u64(out, (uint64_t)c->offset[row]);
        out = seg_put_u64(out, without & SEG_WITHOUT_TIME ? UINT64_MAX : (uint64_t)c->timestamp[row]);
        out = seg_put_bytes(out, &c->key, row);
        out = seg_put_bytes(out, &c->value, row);
        int32_t h = c->header_start[row], h1 = without & SEG_WITHOUT_HEADERS ? h : c->header_start[row + 1];
        out = seg_put_u32(out, (uint32_t)(h1 - h));
        for (; h < h1; h++) {
            out = seg_put_bytes(out, &c->header_key, h);
            out = seg_put_bytes(out, &c->header_value, h);
        }
    }
    return out;
}

#endif
