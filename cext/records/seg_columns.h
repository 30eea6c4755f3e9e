/* Records as columns in Arrow's layout, and the two fast paths that fill them.
 *
 * seg_columns borrows all its memory (an arena owned by columns.pyx). Before appending, the caller
 * reserves rows for the records of a batch, key and value bytes for all bytes of the batch, and
 * SEG_SLACK bytes after each data column, because copies overshoot.
 *
 * The fast paths accept only records that the parsers of record_batch.pxd and legacy_records.pxd
 * would accept, with the same result. They stop at anything else (a record near the end of the
 * bytes, an impossible size, an unusual record), and those parsers decide.
 * So only one place knows what is wrong with a record, and it is not here.
 */
#ifndef SEG_COLUMNS_H
#define SEG_COLUMNS_H

#include <stdint.h>
#include <string.h>

#define SEG_SLACK 64

#define seg_likely(x) __builtin_expect(!!(x), 1)
#define seg_unlikely(x) __builtin_expect(!!(x), 0)

/* A view of Arrow's binary_view and utf8_view types. */
typedef struct {
    int32_t size;
    uint8_t prefix[4];
    int32_t buffer;
    int32_t offset;
} seg_view;

/* A column of byte strings. */
typedef struct {
    int32_t *offsets;       /* rows + 1: the beginning of each row in data, and the end of the last */
    seg_view *views;        /* with SEG_VIEWS, instead of offsets */
    uint8_t *data;
    uint8_t *validity;      /* one bit per row, set if not null */
    int64_t bytes;          /* size of data in use */
    int64_t capacity;       /* size of data in bytes, without SEG_SLACK */
    int64_t null_count;
} seg_binary;

/* Columns that are not decoded, for seg_columns.without: their memory is not touched. */
#define SEG_KEY 1
#define SEG_VALUE 2
#define SEG_HEADERS 4
/* In the same field: keys and values are views of `source`, the batches as stored. Needs SEG_HEADERS. */
#define SEG_VIEWS 8

typedef struct {
    int32_t without;        /* SEG_KEY, SEG_VALUE, SEG_HEADERS; SEG_VIEWS */
    int64_t rows;
    int64_t row_capacity;
    int64_t *offset;
    int64_t *timestamp;     /* ms, -1: none */
    int32_t *header_start;  /* rows + 1: the beginning of each record's headers, and the end of the last */
    seg_binary key;
    seg_binary value;
    int64_t header_rows;
    int64_t header_capacity;
    seg_binary header_key;
    seg_binary header_value;
    uint8_t *source;        /* with SEG_VIEWS: the batches as stored: a copy, or the mapped file, read-only */
    int64_t source_bytes;
    int32_t is_mapped;      /* `source` is the mapped file */
} seg_columns;

/* Copy n bytes in steps of 32. May read and write up to 31 bytes too many; both sides have slack. */
static inline __attribute__((always_inline)) void seg_copy_wild(uint8_t *to, const uint8_t *from, int64_t n)
{
    if (seg_likely(n <= 32)) {
        memcpy(to, from, 32);
    } else if (n <= 512) {
        for (int64_t i = 0; i < n; i += 32)
            memcpy(to + i, from + i, 32);
    } else {
        memcpy(to, from, (size_t)n);
    }
}

/* The view of `size` bytes at `bytes`. Longer ones than 12 bytes lie in `data`. Reads 12 bytes, also if `size` is
 * smaller. */
static inline __attribute__((always_inline)) seg_view seg_view_of(const uint8_t *bytes, int32_t size,
                                                                  const uint8_t *data)
{
    static const uint8_t mask[24] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    seg_view view = {size, {0}, 0, 0};
    if (size > 12) {
        memcpy(view.prefix, bytes, 4);
        view.offset = (int32_t)(bytes - data);
    } else {
        uint64_t first, first_mask;
        uint32_t last, last_mask;
        memcpy(&first, bytes, 8);
        memcpy(&last, bytes + 8, 4);
        memcpy(&first_mask, mask + 12 - size, 8);
        memcpy(&last_mask, mask + 20 - size, 4);
        first &= first_mask;
        last &= last_mask;
        memcpy((uint8_t *)&view + 4, &first, 8);
        memcpy((uint8_t *)&view + 12, &last, 4);
    }
    return view;
}

/* Make row number `row`, which is new, null. */
static inline void seg_set_null(seg_binary *column, int64_t row)
{
    column->validity[row >> 3] &= (uint8_t)~(1u << (row & 7));
    column->null_count++;
}

/* Append one byte string as row number `row`; size -1 is null. The caller has reserved room. */
static inline void seg_binary_append(seg_binary *column, int64_t row, const uint8_t *bytes, int32_t size)
{
    if (column->views) {
        seg_view view = {0, {0}, 0, 0};
        if (size > 12)
            view = seg_view_of(bytes, size, column->data);
        else if (size > 0) {        /* no byte may follow it */
            view.size = size;
            memcpy((uint8_t *)&view + 4, bytes, (size_t)size);
        }
        column->views[row] = view;
        if (size < 0)
            seg_set_null(column, row);
        return;
    }
    if (size > 0) {
        memcpy(column->data + column->bytes, bytes, (size_t)size);
        column->bytes += size;
    } else if (size < 0) {
        seg_set_null(column, row);
    }
    column->offsets[row + 1] = (int32_t)column->bytes;
}

/* The same for a field of an ordinary record: it reads and writes up to 31 bytes too many, and views, which `as_views`
 * requests as a constant, refer to column->data. */
static inline __attribute__((always_inline)) void seg_take_field(const int as_views, seg_binary *column, int64_t row,
                                                                 const uint8_t *bytes, int32_t size)
{
    if (as_views) {
        column->views[row] = seg_view_of(bytes, size < 0 ? 0 : size, column->data);
        if (seg_unlikely(size < 0))
            seg_set_null(column, row);
        return;
    }
    if (seg_likely(size >= 0)) {
        seg_copy_wild(column->data + column->bytes, bytes, size);
        column->bytes += size;
    } else {
        seg_set_null(column, row);
    }
    column->offsets[row + 1] = (int32_t)column->bytes;
}

/* Remove the rows from `row` on; `rows` is how many there are. */
static inline void seg_binary_cut(seg_binary *column, int64_t row, int64_t rows)
{
    for (int64_t i = row; i < rows; i++) {
        uint8_t bit = (uint8_t)(1u << (i & 7));
        column->null_count -= !(column->validity[i >> 3] & bit);
        column->validity[i >> 3] |= bit;
    }
    if (!column->views)
        column->bytes = column->offsets[row];
}

static inline void seg_columns_cut(seg_columns *c, int64_t rows)
{
    if (!(c->without & SEG_KEY))
        seg_binary_cut(&c->key, rows, c->rows);
    if (!(c->without & SEG_VALUE))
        seg_binary_cut(&c->value, rows, c->rows);
    if (!(c->without & SEG_HEADERS) && c->header_rows > c->header_start[rows]) {
        seg_binary_cut(&c->header_key, c->header_start[rows], c->header_rows);
        seg_binary_cut(&c->header_value, c->header_start[rows], c->header_rows);
        c->header_rows = c->header_start[rows];
    }
    c->rows = rows;
}

/* Read a varint without bounds checks: the caller guarantees five readable bytes for a 32-bit one, ten for a 64-bit
 * one. NULL if it does not end: `last_shift`, a constant, is the place of its last byte's bits. */
static inline __attribute__((always_inline)) const uint8_t *seg_raw_varint(const uint8_t *p, const int last_shift,
                                                                           uint64_t *out)
{
    uint64_t raw = p[0];
    if (seg_likely(raw < 0x80)) {
        p += 1;
    } else {
        uint64_t b = p[1];
        raw = (raw & 0x7f) | (b & 0x7f) << 7;
        if (seg_likely(b < 0x80)) {
            p += 2;
        } else {
            int shift = 14;
            p += 2;
            do {
                if (shift > last_shift)
                    return NULL;
                b = *p++;
                raw |= (b & 0x7f) << shift;
                shift += 7;
            } while (b >= 0x80);
        }
    }
    *out = raw;
    return p;
}

/* Read zigzag varints, likewise. */
static inline __attribute__((always_inline)) const uint8_t *seg_varint(const uint8_t *p, int32_t *out)
{
    uint64_t raw;
    if ((p = seg_raw_varint(p, 28, &raw)))
        *out = (int32_t)((uint32_t)raw >> 1 ^ (0 - ((uint32_t)raw & 1)));
    return p;
}

static inline __attribute__((always_inline)) const uint8_t *seg_varlong(const uint8_t *p, uint64_t *out)
{
    uint64_t raw;
    if ((p = seg_raw_varint(p, 63, &raw)))
        *out = raw >> 1 ^ (0 - (raw & 1));
    return p;
}

/* The base values that the deltas of one v2 batch's records refer to. */
typedef struct {
    int64_t base_offset;
    uint64_t base_timestamp;    /* LogAppendTime: the timestamp of all records */
    uint64_t delta_mask;        /* 0 under LogAppendTime, all ones otherwise */
} seg_batch_base;

/* Take the headers of one record, from q to the record's end. NULL: refused, nothing changed. */
static inline const uint8_t *seg_take_headers(seg_columns *c, const uint8_t *q, const uint8_t *end, int32_t count)
{
    int64_t room = end - q, row = c->header_rows;
    seg_binary *key = &c->header_key, *value = &c->header_value;
    if (count > c->header_capacity - row || room > key->capacity - key->bytes || room > value->capacity - value->bytes)
        return NULL;
    int64_t key_bytes = key->bytes, value_bytes = value->bytes;
    for (int32_t i = 0; i < count; i++, row++) {
        int32_t size;
        /* A varint that began inside ends at most 5 bytes after `end`: in the slack. */
        if (q >= end || !(q = seg_varint(q, &size)) || size < 0 || size > end - q)
            goto undo;
        seg_copy_wild(key->data + key_bytes, q, size);
        key_bytes += size;
        q += size;
        if (q >= end || !(q = seg_varint(q, &size)) || size < -1 || size > end - q)
            goto undo;
        if (size >= 0) {
            seg_copy_wild(value->data + value_bytes, q, size);
            value_bytes += size;
            q += size;
        } else {
            seg_set_null(value, row);
        }
        key->offsets[row + 1] = (int32_t)key_bytes;
        value->offsets[row + 1] = (int32_t)value_bytes;
    }
    if (q != end)
        goto undo;
    key->bytes = key_bytes;
    value->bytes = value_bytes;
    c->header_rows = row;
    return q;
undo:
    seg_binary_cut(value, c->header_rows, row);
    return NULL;
}

/* Take records of one uncompressed v2 body [p, end), at most `count`, as long as they are ordinary and end SEG_SLACK
 * bytes before `safe`, the end of readable memory. Returns where it stopped; c->rows counts the rows taken. `without`
 * is c->without, as a constant. */
static inline __attribute__((always_inline)) const uint8_t *seg_take_records_but(
    const int without, seg_columns *restrict c, const uint8_t *p, const uint8_t *end, const uint8_t *safe,
    int32_t count, const seg_batch_base *base)
{
    /* Locals stay in registers during the loop; stores through uint8_t* might change any field of *c. */
    const int64_t base_offset = base->base_offset;
    const uint64_t base_timestamp = base->base_timestamp, delta_mask = base->delta_mask;
    int64_t *offset = c->offset, *timestamp = c->timestamp;
    int32_t *header_start = without & SEG_HEADERS ? NULL : c->header_start + 1;
    seg_binary key_column = c->key, value_column = c->value;
    int64_t row = c->rows;
    const int64_t stop = row + count;
    if (safe - end < SEG_SLACK) {   /* leave the last few records to the checked parser */
        if (safe - p < SEG_SLACK)
            return p;
        end = safe - SEG_SLACK;
    }
    for (; row < stop; row++) {
        int32_t size, offset_delta, key_size, value_size, header_count;
        uint64_t delta;
        /* Unchecked from here on: a record that does not end before `end` is not taken, and its varints read at most
         * 1 + 10 + 4 * 5 bytes after `end`, which is within the slack. */
        const uint8_t *q = p;
        if (seg_unlikely(p >= end) || !(q = seg_varint(q, &size)) || size < 6 || size > end - q)
            break;
        const uint8_t *record_end = q + size;
        q += 1;                     /* attributes: none are defined */
        if (!(q = seg_varlong(q, &delta)) || !(q = seg_varint(q, &offset_delta)) || !(q = seg_varint(q, &key_size)))
            break;
        const uint8_t *key = q;
        if (seg_likely(key_size >= 0)) {
            if (key_size > record_end - q)
                break;
            q += key_size;
        } else if (key_size != -1) {
            break;
        }
        if (!(q = seg_varint(q, &value_size)))
            break;
        const uint8_t *value = q;
        if (seg_likely(value_size >= 0)) {
            if (value_size > record_end - q)
                break;
            q += value_size;
        } else if (value_size != -1) {
            break;
        }
        if (!(q = seg_varint(q, &header_count)))
            break;
        if (seg_unlikely(q != record_end || header_count != 0)) {
            if (q >= record_end || header_count <= 0)
                break;
            if (!(without & SEG_HEADERS) && !seg_take_headers(c, q, record_end, header_count))
                break;
        }
        offset[row] = (int64_t)((uint64_t)base_offset + (uint64_t)(int64_t)offset_delta);
        timestamp[row] = (int64_t)(base_timestamp + (delta & delta_mask));
        if (!(without & SEG_KEY))
            seg_take_field(without & SEG_VIEWS, &key_column, row, key, key_size);
        if (!(without & SEG_VALUE))
            seg_take_field(without & SEG_VIEWS, &value_column, row, value, value_size);
        if (!(without & SEG_HEADERS))
            header_start[row] = (int32_t)c->header_rows;
        p = record_end;
    }
    c->rows = row;
    c->key = key_column;
    c->value = value_column;
    return p;
}

/* The same for the columns requested of `c`: one loop for each choice, so that no branch per record is added. */
static inline const uint8_t *seg_take_records(seg_columns *restrict c, const uint8_t *p, const uint8_t *end,
                                              const uint8_t *safe, int32_t count, const seg_batch_base *base)
{
    switch (c->without) {
    case 0:
        return seg_take_records_but(0, c, p, end, safe, count, base);
    case SEG_HEADERS:
        return seg_take_records_but(SEG_HEADERS, c, p, end, safe, count, base);
    case SEG_HEADERS | SEG_KEY:
        return seg_take_records_but(SEG_HEADERS | SEG_KEY, c, p, end, safe, count, base);
    case SEG_HEADERS | SEG_VALUE:
        return seg_take_records_but(SEG_HEADERS | SEG_VALUE, c, p, end, safe, count, base);
    case SEG_HEADERS | SEG_KEY | SEG_VALUE:
        return seg_take_records_but(SEG_HEADERS | SEG_KEY | SEG_VALUE, c, p, end, safe, count, base);
    case SEG_VIEWS | SEG_HEADERS:
        return seg_take_records_but(SEG_VIEWS | SEG_HEADERS, c, p, end, safe, count, base);
    case SEG_VIEWS | SEG_HEADERS | SEG_KEY:
        return seg_take_records_but(SEG_VIEWS | SEG_HEADERS | SEG_KEY, c, p, end, safe, count, base);
    default:
        return seg_take_records_but(c->without, c, p, end, safe, count, base);
    }
}

static inline uint32_t seg_load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

/* Take the key and value of one v0 or v1 message, [p, end) from its key size on. Returns whether it did; if not,
 * nothing changed. `safe` as above. */
static inline __attribute__((always_inline)) int seg_take_message(seg_columns *restrict c, const uint8_t *p,
                                                                  const uint8_t *end, const uint8_t *safe,
                                                                  int64_t offset, int64_t timestamp)
{
    if (seg_unlikely(safe - end < SEG_SLACK || end - p < 8))
        return 0;
    int32_t key_size = (int32_t)seg_load_u32(p);
    int64_t room = end - p - 8;
    const uint8_t *key = p + 4;
    if (key_size < -1 || key_size > room)
        return 0;
    int64_t key_bytes = key_size > 0 ? key_size : 0;
    int32_t value_size = (int32_t)seg_load_u32(key + key_bytes);
    const uint8_t *value = key + key_bytes + 4;
    int64_t value_bytes = room - key_bytes;
    if (seg_unlikely(value_size != value_bytes && !(value_size == -1 && value_bytes == 0)))
        return 0;
    int64_t row = c->rows;
    if (seg_likely(!(c->without & SEG_KEY)))
        seg_take_field(0, &c->key, row, key, key_size);
    if (seg_likely(!(c->without & SEG_VALUE)))
        seg_take_field(0, &c->value, row, value, value_size);
    if (seg_likely(!(c->without & SEG_HEADERS)))
        c->header_start[row + 1] = (int32_t)c->header_rows;
    c->offset[row] = offset;
    c->timestamp[row] = timestamp;
    c->rows = row + 1;
    return 1;
}

/* Is every timestamp 0 or above, and small enough to multiply by 1000? Nearly always; this test is one OR of all of
 * them, without comparisons. */
static inline int seg_times_are_plain(const int64_t *timestamp, int64_t rows)
{
    uint64_t a = 0, b = 0, c = 0, d = 0;
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        a |= (uint64_t)timestamp[i];
        b |= (uint64_t)timestamp[i + 1];
        c |= (uint64_t)timestamp[i + 2];
        d |= (uint64_t)timestamp[i + 3];
    }
    for (; i < rows; i++)
        a |= (uint64_t)timestamp[i];
    return (a | b | c | d) >> 53 == 0;      /* 2^53 * 1000 < 2^63 */
}

/* How many of the timestamps are missing (-1); if any are, a validity bitmap of all. */
static inline int64_t seg_mark_none(const int64_t *timestamp, int64_t rows, uint8_t *validity)
{
    int64_t none = 0;
    if (seg_times_are_plain(timestamp, rows))
        return 0;
    for (int64_t i = 0; i < rows; i++)
        none += timestamp[i] == -1;
    if (none > 0) {
        memset(validity, 0, (size_t)((rows + 7) / 8));
        for (int64_t i = 0; i < rows; i++)
            validity[i >> 3] |= (uint8_t)((timestamp[i] != -1) << (i & 7));
    }
    return none;
}

#endif
