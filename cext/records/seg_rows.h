/* Changes decoded columns before they are handed out: removes rows, converts time units, checks text.
 * The caller still owns the columns alone. */
#ifndef SEG_ROWS_H
#define SEG_ROWS_H

#include "seg_columns.h"

/* Move the rows [from, to) of a column down to row `row`, whose data begin at byte `bytes`; the rows before stay.
 * Returns the bytes then in use; 0 for views, whose data do not move. */
static inline int64_t seg_binary_move(seg_binary *column, int64_t row, int64_t bytes, int64_t from, int64_t to)
{
    int64_t size = 0;
    if (column->views) {
        memmove(column->views + row, column->views + from, sizeof(seg_view) * (size_t)(to - from));
    } else {
        int64_t start = column->offsets[from], shift = start - bytes;
        size = column->offsets[to] - start;
        if (shift > 0)
            memmove(column->data + bytes, column->data + start, (size_t)size);
        for (int64_t i = 0; i < to - from; i++)
            column->offsets[row + i + 1] = (int32_t)(column->offsets[from + i + 1] - shift);
    }
    if (column->null_count > 0) {
        for (int64_t i = 0; i < to - from; i++) {
            int bit = column->validity[(from + i) >> 3] >> ((from + i) & 7) & 1;
            uint8_t *byte = &column->validity[(row + i) >> 3];
            *byte = (uint8_t)((*byte & ~(1u << ((row + i) & 7))) | (unsigned)bit << ((row + i) & 7));
        }
    }
    return bytes + size;
}

/* How many of the first `rows` are null. */
static inline int64_t seg_count_nulls(const seg_binary *column, int64_t rows)
{
    int64_t nulls = 0;
    if (column->null_count > 0)
        for (int64_t i = 0; i < rows; i++)
            nulls += !(column->validity[i >> 3] >> (i & 7) & 1);
    return nulls;
}

static inline int seg_is_kept(const seg_columns *c, int64_t row, int64_t start, int64_t stop, int64_t low,
                              int64_t high)
{
    return c->offset[row] >= start && c->offset[row] < stop && c->timestamp[row] >= low
           && (c->timestamp[row] < high || high == INT64_MAX);
}

/* Keep the rows with start <= offset < stop and low <= timestamp < high (INT64_MAX: no limit), in their order. */
static inline void seg_keep_rows(seg_columns *c, int64_t start, int64_t stop, int64_t low, int64_t high)
{
    int64_t rows = c->rows, kept = 0, key_bytes = 0, value_bytes = 0;
    int64_t header_rows = 0, header_key_bytes = 0, header_value_bytes = 0;
    const int has_headers = !(c->without & SEG_HEADERS);
    int64_t row = 0;
    /* Offsets increase, and usually all rows are requested. */
    if (rows == 0 || (low == INT64_MIN && high == INT64_MAX && c->offset[0] >= start && c->offset[rows - 1] < stop))
        return;
    while (row < rows) {
        int64_t from = row;
        if (!seg_is_kept(c, row, start, stop, low, high)) {
            row++;
            continue;
        }
        while (row < rows && seg_is_kept(c, row, start, stop, low, high))
            row++;
        int64_t count = row - from;
        if (!(c->without & SEG_KEY))
            key_bytes = seg_binary_move(&c->key, kept, key_bytes, from, row);
        if (!(c->without & SEG_VALUE))
            value_bytes = seg_binary_move(&c->value, kept, value_bytes, from, row);
        if (has_headers) {
            int64_t first = c->header_start[from], last = c->header_start[row];
            if (last > first) {
                header_key_bytes = seg_binary_move(&c->header_key, header_rows, header_key_bytes, first, last);
                header_value_bytes = seg_binary_move(&c->header_value, header_rows, header_value_bytes, first, last);
            }
            for (int64_t i = 0; i < count; i++)
                c->header_start[kept + i + 1] = (int32_t)(c->header_start[from + i + 1] - first + header_rows);
            header_rows += last - first;
        }
        memmove(c->offset + kept, c->offset + from, 8 * (size_t)count);
        memmove(c->timestamp + kept, c->timestamp + from, 8 * (size_t)count);
        kept += count;
    }
    c->rows = kept;
    if (!(c->without & SEG_KEY)) {
        c->key.bytes = key_bytes;
        c->key.null_count = seg_count_nulls(&c->key, kept);
    }
    if (!(c->without & SEG_VALUE)) {
        c->value.bytes = value_bytes;
        c->value.null_count = seg_count_nulls(&c->value, kept);
    }
    if (has_headers) {
        c->header_rows = header_rows;
        c->header_key.bytes = header_key_bytes;
        c->header_value.bytes = header_value_bytes;
        c->header_value.null_count = seg_count_nulls(&c->header_value, header_rows);
    }
}

/* Milliseconds to microseconds; a time out of range becomes the largest or smallest one, so that the order stays. */
static inline void seg_to_micros(int64_t *timestamp, int64_t rows)
{
    const int64_t most = INT64_MAX / 1000, least = INT64_MIN / 1000;
    if (seg_likely(seg_times_are_plain(timestamp, rows))) {
        for (int64_t i = 0; i < rows; i++)
            timestamp[i] *= 1000;
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t t = timestamp[i];
        timestamp[i] = t > most ? INT64_MAX : t < least ? INT64_MIN : t * 1000;
    }
}

/* Is it UTF-8 as Unicode defines it: no overlong form, no surrogate, nothing above U+10FFFF? */
static inline int seg_is_utf8(const uint8_t *p, int64_t size)
{
    const uint8_t *end = p + size;
    while (p < end) {
        uint64_t word;
        if (end - p >= 8 && (memcpy(&word, p, 8), !(word & 0x8080808080808080u))) {
            p += 8;
            continue;
        }
        uint8_t a = *p;
        if (a < 0x80) {
            p++;
            continue;
        }
        int more = a >= 0xC2 && a < 0xE0 ? 1 : a >= 0xE0 && a < 0xF0 ? 2 : a >= 0xF0 && a < 0xF5 ? 3 : 0;
        if (more == 0 || end - p <= more)
            return 0;
        uint8_t b = p[1];
        uint8_t least = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80, most = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
        if (b < least || b > most)
            return 0;
        for (int i = 2; i <= more; i++)
            if ((p[i] & 0xC0) != 0x80)
                return 0;
        p += more + 1;
    }
    return 1;
}

/* Is each row of the column UTF-8? It is if the whole data is, and no row begins inside a character. */
static inline int seg_rows_are_utf8(const seg_binary *column, int64_t rows)
{
    if (!seg_is_utf8(column->data, column->bytes))
        return 0;
    for (int64_t i = 0; i < rows; i++)
        if (column->offsets[i] < column->bytes && (column->data[column->offsets[i]] & 0xC0) == 0x80)
            return 0;
    return 1;
}

/* Make rows null that are not UTF-8; returns how many. Their bytes become spaces: not every reader of a column passes
 * over the bytes of a null. */
static inline int64_t seg_null_what_is_not_utf8(seg_binary *column, int64_t rows)
{
    int64_t found = 0;
    for (int64_t i = 0; i < rows; i++) {
        int32_t start = column->offsets[i], size = column->offsets[i + 1] - start;
        if (!seg_is_utf8(column->data + start, size)) {
            memset(column->data + start, ' ', (size_t)size);
            seg_set_null(column, i);
            found++;
        }
    }
    return found;
}

/* Views of the rows: up to 12 bytes are stored in the view, longer ones refer to the data, their only buffer. */
static inline void seg_make_views(const seg_binary *column, int64_t rows, seg_view *views)
{
    for (int64_t i = 0; i < rows; i++) {
        int32_t start = column->offsets[i], size = column->offsets[i + 1] - start;
        views[i] = seg_view_of(column->data + start, size, column->data);
    }
}

#endif
