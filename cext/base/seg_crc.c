/* See seg_crc.h for the specification that every level here must equal.
 *
 * How folding works. Over GF(2) a CRC is the remainder of the message, read as a polynomial, modulo
 * the CRC's own. So a block A that stands D bits before a block B may be replaced: A*x^D + B and
 * (A * (x^D mod P)) + B leave the same remainder, and the second fits in the width of B. One
 * carry-less multiplication by a constant thus moves 64 bits any distance forward. A loop keeps
 * several accumulators, moves each of them past the others and adds fresh input; at the end they are
 * moved onto the last one, whose 16 bytes are reduced by Barrett's method.
 * Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009.
 */
#include "seg_crc.h"

#include <string.h>

#define POLYNOMIAL_CRC32 0xEDB88320u
#define POLYNOMIAL_CRC32C 0x82F63B78u

typedef struct {
    /* fold_D moves 128 bits forward by D bits: [0] multiplies their first half (which has 64 bits
     * further to go), [1] the second. */
    uint64_t fold_128[2], fold_256[2], fold_512[2], fold_1024[2], fold_2048[2];
    /* fold_blocks[16 - n] moves 128 bits by n times as many: in this order four neighbours fit four
     * neighbouring blocks. Those after n = 1 are only ever multiplied by 0. */
    uint64_t fold_blocks[16 + 3][2];
    /* x^64, and for the last 64 bits Barrett's reduction: the polynomial and x^64 divided by it. */
    uint64_t past_64, barrett[2];
    /* table[k][b]: what byte b contributes when k more bytes follow it. */
    uint32_t table[16][256];
} crc_constants;

static crc_constants ieee, castagnoli;

/* x^n modulo the polynomial; bit 31 is x^0, as everywhere in a reflected CRC. */
static uint32_t power_of_x(unsigned n, uint32_t polynomial) {
    uint32_t r = 0x80000000u;
    while (n--)
        r = (r >> 1) ^ ((r & 1) ? polynomial : 0);
    return r;
}

static void set_fold(uint64_t fold[2], unsigned bits, uint32_t polynomial) {
    /* A product of two reflected 64-bit numbers stands one bit too low: hence << 1. The 32-bit
     * constants lie in the low half of 64 bits, which is 32 more: hence the +32 and -32. */
    fold[0] = (uint64_t)power_of_x(bits + 32, polynomial) << 1;
    fold[1] = (uint64_t)power_of_x(bits - 32, polynomial) << 1;
}

/* x^64 divided by the polynomial, 33 bits, reflected. */
static uint64_t quotient_of_x64(uint32_t polynomial) {
    uint64_t quotient = 0;
    uint32_t r = 0;     /* the remainder of the division so far, reflected */
    for (unsigned n = 0; n <= 64; n++) {
        /* Bring down the next coefficient of x^64, which is 1 only at the start. */
        unsigned out = r & 1;
        r = (r >> 1) | (n == 0 ? 0x80000000u : 0);
        if (out)
            r ^= polynomial;
        if (n >= 32)
            quotient |= (uint64_t)out << (n - 32);
    }
    return quotient;
}

static void set_constants(crc_constants *k, uint32_t polynomial) {
    set_fold(k->fold_128, 128, polynomial);
    set_fold(k->fold_256, 256, polynomial);
    set_fold(k->fold_512, 512, polynomial);
    set_fold(k->fold_1024, 1024, polynomial);
    set_fold(k->fold_2048, 2048, polynomial);
    for (unsigned n = 1; n < 16; n++)
        set_fold(k->fold_blocks[16 - n], 128 * n, polynomial);
    k->past_64 = (uint64_t)power_of_x(64, polynomial) << 1;
    k->barrett[0] = (uint64_t)polynomial << 1 | 1;
    k->barrett[1] = quotient_of_x64(polynomial);
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ ((value & 1) ? polynomial : 0);
        k->table[0][byte] = value;
    }
    for (int behind = 1; behind < 16; behind++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t value = k->table[behind - 1][byte];
            k->table[behind][byte] = (value >> 8) ^ k->table[0][value & 0xff];
        }
}

/* ---- level "table": sixteen bytes a step, any machine ------------------------------------- */

static inline uint32_t table_16_bytes(uint32_t value, const uint8_t *p, const crc_constants *k) {
    /* Byte by byte, so that the order of bytes in a word of this machine does not matter. */
    return k->table[15][p[0] ^ (value & 0xff)] ^ k->table[14][p[1] ^ ((value >> 8) & 0xff)]
         ^ k->table[13][p[2] ^ ((value >> 16) & 0xff)] ^ k->table[12][p[3] ^ (value >> 24)]
         ^ k->table[11][p[4]] ^ k->table[10][p[5]] ^ k->table[9][p[6]] ^ k->table[8][p[7]]
         ^ k->table[7][p[8]] ^ k->table[6][p[9]] ^ k->table[5][p[10]] ^ k->table[4][p[11]]
         ^ k->table[3][p[12]] ^ k->table[2][p[13]] ^ k->table[1][p[14]] ^ k->table[0][p[15]];
}

static uint32_t table_crc(uint32_t value, const uint8_t *p, size_t size, const crc_constants *k) {
    value = ~value;
    for (; size >= 16; p += 16, size -= 16)
        value = table_16_bytes(value, p, k);
    for (; size; p++, size--)
        value = (value >> 8) ^ k->table[0][(value ^ *p) & 0xff];
    return ~value;
}

static uint32_t table_crc32(uint32_t value, const uint8_t *bytes, size_t size) {
    return table_crc(value, bytes, size, &ieee);
}

static uint32_t table_crc32c(uint32_t value, const uint8_t *bytes, size_t size) {
    return table_crc(value, bytes, size, &castagnoli);
}

static int always_supported(void) { return 1; }

#if defined(__x86_64__)
#include <immintrin.h>

/* ---- level "sse42": CRC-32 by folding 128 bits, CRC-32C by its own instruction -------------- */

#if defined(__clang__)
#define CRC32_FEATURE ",crc32"      /* a feature of its own there, and not always implied by SSE4.2 */
#else
#define CRC32_FEATURE ""
#endif

#define SSE42 __attribute__((target("sse4.2,pclmul" CRC32_FEATURE)))

SSE42 static inline __m128i load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

SSE42 static inline __m128i fold(__m128i x, __m128i constants, __m128i onto) {
    __m128i first = _mm_clmulepi64_si128(x, constants, 0x00);
    __m128i second = _mm_clmulepi64_si128(x, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), onto);
}

/* Bytes 0..15 between bytes that shuffle to zero: a load at `n` moves bytes by n places. */
static const uint8_t shuffle[48] = {
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};

/* The CRC of 16 bytes onto which everything before has been folded. Uses multiplications, because with many short
 * records 16 table look-ups per record would occupy a third of the first-level cache. */
SSE42 static inline uint32_t reduce(__m128i x, const crc_constants *k) {
    const __m128i low_32 = _mm_cvtsi32_si128(-1);
    /* 128 bits to 96, then to 64: each time the first bits are folded onto the rest. */
    x = _mm_xor_si128(_mm_clmulepi64_si128(x, load_128(k->fold_128), 0x10), _mm_srli_si128(x, 8));
    __m128i past_64 = _mm_loadl_epi64((const __m128i *)&k->past_64);
    x = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low_32), past_64, 0x00), _mm_srli_si128(x, 4));
    /* Barrett: how often the polynomial goes into them, and what is left. */
    __m128i barrett = load_128(k->barrett);
    __m128i times = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low_32), barrett, 0x10), low_32);
    return ~(uint32_t)_mm_extract_epi32(_mm_xor_si128(_mm_clmulepi64_si128(times, barrett, 0x00), x), 1);
}

/* The CRC of 16 bytes in `x` and the `size` bytes after them; p[-16..0) must be readable too. */
SSE42 static inline uint32_t fold_rest(__m128i x, const uint8_t *p, size_t size, const crc_constants *k) {
    __m128i by_128 = load_128(k->fold_128);
    for (; size >= 16; p += 16, size -= 16)
        x = fold(x, by_128, load_128(p));
    if (size) {
        /* x and the last `size` bytes are 16 + size bytes. Split them elsewhere: the first `size` bytes,
         * right-aligned, are folded onto the 16 that follow them. */
        __m128i to_start = load_128(shuffle + 16 + size);
        __m128i head = _mm_shuffle_epi8(x, load_128(shuffle + size));
        __m128i tail = _mm_blendv_epi8(_mm_shuffle_epi8(x, to_start), load_128(p + size - 16), to_start);
        x = fold(head, by_128, tail);
    }
    return reduce(x, k);
}

/* 16 to 255 bytes: each block is moved onto the last one in one step, so that none waits for another.
 * A loop of accumulators would be all latency here, and this is what a small v0 or v1 record is. */
SSE42 static inline uint32_t short_crc(uint32_t value, const uint8_t *p, size_t size, const crc_constants *k) {
    __m128i start = _mm_cvtsi32_si128((int)~value);
    __m128i x = _mm_setzero_si128();
    size_t odd = size & 15, block = size >> 4;
    if (odd) {
        /* The odd bytes come first, as a block with zeros before them; zeros change no remainder. */
        __m128i first = _mm_xor_si128(load_128(p), start);
        x = fold(_mm_shuffle_epi8(first, load_128(shuffle + odd)), load_128(k->fold_blocks[16 - block]), x);
        start = _mm_shuffle_epi8(start, load_128(shuffle + 16 + odd));
        p += odd;
    }
    __m128i next = _mm_xor_si128(load_128(p), start);
    while (--block) {
        x = fold(next, load_128(k->fold_blocks[16 - block]), x);
        p += 16;
        next = load_128(p);
    }
    return reduce(_mm_xor_si128(x, next), k);
}

SSE42 static inline uint32_t fold_128_crc(uint32_t value, const uint8_t *p, size_t size, const crc_constants *k) {
    if (size < 16)
        return table_crc(value, p, size, k);
    if (size < 256)
        return short_crc(value, p, size, k);
    __m128i a = _mm_xor_si128(load_128(p), _mm_cvtsi32_si128((int)~value));
    __m128i b = load_128(p + 16), c = load_128(p + 32), d = load_128(p + 48);
    __m128i by_512 = load_128(k->fold_512);
    for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
        a = fold(a, by_512, load_128(p));
        b = fold(b, by_512, load_128(p + 16));
        c = fold(c, by_512, load_128(p + 32));
        d = fold(d, by_512, load_128(p + 48));
    }
    __m128i by_128 = load_128(k->fold_128);
    b = fold(a, by_128, b);
    d = fold(c, by_128, d);
    d = fold(b, load_128(k->fold_256), d);
    return fold_rest(d, p, size, k);
}

SSE42 static uint32_t sse42_crc32(uint32_t value, const uint8_t *bytes, size_t size) {
    return fold_128_crc(value, bytes, size, &ieee);
}

/* The crc32 instruction takes eight bytes a cycle but answers after three. Three streams fill that
 * wait: each walks its own third of a block, then two carry-less multiplications move the first two
 * results onto the third. Two block sizes, since each move costs as much as some 60 bytes. */
enum { LONG_STREAM = 1024, SHORT_STREAM = 256 };

static uint32_t past_two_long, past_one_long, past_two_short, past_one_short;

static void set_stream_constants(void) {
    /* The instruction itself moves its operand by 64 bits, the product stands 31 off: 33 fewer. */
    past_two_long = power_of_x(2 * 8 * LONG_STREAM - 33, POLYNOMIAL_CRC32C);
    past_one_long = power_of_x(8 * LONG_STREAM - 33, POLYNOMIAL_CRC32C);
    past_two_short = power_of_x(2 * 8 * SHORT_STREAM - 33, POLYNOMIAL_CRC32C);
    past_one_short = power_of_x(8 * SHORT_STREAM - 33, POLYNOMIAL_CRC32C);
}

static inline uint64_t load_64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);   /* x86 is little-endian, as the instruction wants it */
    return v;
}

SSE42 static inline uint64_t move_past(uint64_t value, uint32_t constant) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)value), _mm_cvtsi32_si128((int)constant), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

/* Memory is prefetched this far ahead, also past the end: prefetching an address that is not mapped does nothing.
 * The processor's own prefetching does not follow streams that jump every few pages: without this, bytes that are not
 * in a cache take one and a half times as long. Longer streams, or a greater distance, prefetch less well. */
enum { LINE = 64, AHEAD = 4096 };

SSE42 static inline uint64_t three_streams(uint64_t first, const uint8_t *p, size_t stream,
                                           uint32_t past_two, uint32_t past_one) {
    uint64_t second = 0, third = 0;
    const uint8_t *ahead = p + AHEAD, *last = p + stream - 8;
    for (const uint8_t *line = p + LINE; p < last; line += LINE, ahead += 3 * LINE) {
        _mm_prefetch((const char *)ahead, _MM_HINT_T0);
        _mm_prefetch((const char *)ahead + LINE, _MM_HINT_T0);
        _mm_prefetch((const char *)ahead + 2 * LINE, _MM_HINT_T0);
        for (; p < line && p < last; p += 8) {
            first = _mm_crc32_u64(first, load_64(p));
            second = _mm_crc32_u64(second, load_64(p + stream));
            third = _mm_crc32_u64(third, load_64(p + 2 * stream));
        }
    }
    first = _mm_crc32_u64(first, load_64(p));
    second = _mm_crc32_u64(second, load_64(p + stream));
    uint64_t moved = move_past(first, past_two) ^ move_past(second, past_one);
    return _mm_crc32_u64(third, load_64(p + 2 * stream) ^ moved);
}

SSE42 static uint32_t sse42_crc32c(uint32_t value, const uint8_t *p, size_t size) {
    uint64_t state = ~value;
    for (; size >= 3 * LONG_STREAM; p += 3 * LONG_STREAM, size -= 3 * LONG_STREAM)
        state = three_streams(state, p, LONG_STREAM, past_two_long, past_one_long);
    for (; size >= 3 * SHORT_STREAM; p += 3 * SHORT_STREAM, size -= 3 * SHORT_STREAM)
        state = three_streams(state, p, SHORT_STREAM, past_two_short, past_one_short);
    for (; size >= 8; p += 8, size -= 8)
        state = _mm_crc32_u64(state, load_64(p));
    for (; size; p++, size--)
        state = _mm_crc32_u8((uint32_t)state, *p);
    return ~(uint32_t)state;
}

static int sse42_supported(void) {
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

/* ---- level "avx512": both by folding 512 bits (VPCLMULQDQ) ---------------------------------- */

#define AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq,pclmul,sse4.2" CRC32_FEATURE)))

AVX512 static inline __m512i fold_512_bits(__m512i x, __m512i constants, __m512i onto) {
    __m512i first = _mm512_clmulepi64_epi128(x, constants, 0x00);
    __m512i second = _mm512_clmulepi64_epi128(x, constants, 0x11);
    return _mm512_ternarylogic_epi64(first, second, onto, 0x96);    /* 0x96: xor of three */
}

AVX512 static inline __m512i broadcast(const uint64_t constants[2]) {
    return _mm512_broadcast_i32x4(load_128(constants));
}

/* 64 to 255 bytes, as short_crc, but four blocks a multiplication. */
AVX512 static inline uint32_t short_512_crc(uint32_t value, const uint8_t *p, size_t size, const crc_constants *k) {
    __m128i start = _mm_cvtsi32_si128((int)~value);
    __m128i x = _mm_setzero_si128();
    size_t odd = size & 15, block = size >> 4;
    if (odd) {
        __m128i first = _mm_xor_si128(load_128(p), start);
        x = fold(_mm_shuffle_epi8(first, load_128(shuffle + odd)), load_128(k->fold_blocks[16 - block]), x);
        start = _mm_shuffle_epi8(start, load_128(shuffle + 16 + odd));
        p += odd;
    }
    const uint8_t *last = p + 16 * (block - 1);
    const uint8_t *constants = (const uint8_t *)k->fold_blocks[17 - block];
    __m512i sum = _mm512_zextsi128_si512(_mm_xor_si128(x, load_128(last)));
    __m512i first = _mm512_zextsi128_si512(start);
    for (; p < last; p += 64, constants += 64) {
        /* Blocks from the last one on are left out. */
        unsigned words = last - p < 64 ? (unsigned)(last - p) / 8 : 8;
        __m512i four = _mm512_xor_si512(_mm512_maskz_loadu_epi64((__mmask8)((1u << words) - 1), p), first);
        sum = fold_512_bits(four, _mm512_loadu_si512(constants), sum);
        first = _mm512_setzero_si512();
    }
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    return reduce(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)), k);
}

/* At least 256 bytes. */
AVX512 static inline uint32_t fold_512_crc(uint32_t value, const uint8_t *p, size_t size, const crc_constants *k) {
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~value)));
    __m512i by_2048 = broadcast(k->fold_2048);
    for (p += 256, size -= 256; size >= 256; p += 256, size -= 256) {
        a = fold_512_bits(a, by_2048, _mm512_loadu_si512(p));
        b = fold_512_bits(b, by_2048, _mm512_loadu_si512(p + 64));
        c = fold_512_bits(c, by_2048, _mm512_loadu_si512(p + 128));
        d = fold_512_bits(d, by_2048, _mm512_loadu_si512(p + 192));
    }
    __m512i by_512 = broadcast(k->fold_512);
    b = fold_512_bits(a, by_512, b);
    d = fold_512_bits(c, by_512, d);
    d = fold_512_bits(b, broadcast(k->fold_1024), d);
    for (; size >= 64; p += 64, size -= 64)
        d = fold_512_bits(d, by_512, _mm512_loadu_si512(p));
    __m128i by_128 = load_128(k->fold_128), by_256 = load_128(k->fold_256);
    __m128i second = fold(_mm512_castsi512_si128(d), by_128, _mm512_extracti32x4_epi32(d, 1));
    __m128i fourth = fold(_mm512_extracti32x4_epi32(d, 2), by_128, _mm512_extracti32x4_epi32(d, 3));
    return fold_rest(fold(second, by_256, fourth), p, size, k);
}

AVX512 static uint32_t avx512_crc32(uint32_t value, const uint8_t *bytes, size_t size) {
    if (size < 64)
        return fold_128_crc(value, bytes, size, &ieee);
    if (size < 256)
        return short_512_crc(value, bytes, size, &ieee);
    return fold_512_crc(value, bytes, size, &ieee);
}

AVX512 static uint32_t avx512_crc32c(uint32_t value, const uint8_t *bytes, size_t size) {
    if (size < 160)     /* one stream of the instruction: nothing to set up, nothing to reduce */
        return sse42_crc32c(value, bytes, size);
    if (size < 256)
        return short_512_crc(value, bytes, size, &castagnoli);
    return fold_512_crc(value, bytes, size, &castagnoli);
}

static int avx512_supported(void) {
    return sse42_supported() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("vpclmulqdq");
}

#elif defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

/* ---- level "armv8": instructions for both polynomials --------------------------------------- */

#if defined(__clang__)
#define ARMV8 __attribute__((target("crc")))
#else
#define ARMV8 __attribute__((target("+crc")))
#endif

static inline uint64_t load_64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

ARMV8 static uint32_t armv8_crc32(uint32_t value, const uint8_t *p, size_t size) {
    value = ~value;
    for (; size >= 8; p += 8, size -= 8)
        value = __crc32d(value, load_64(p));
    for (; size; p++, size--)
        value = __crc32b(value, *p);
    return ~value;
}

ARMV8 static uint32_t armv8_crc32c(uint32_t value, const uint8_t *p, size_t size) {
    value = ~value;
    for (; size >= 8; p += 8, size -= 8)
        value = __crc32cd(value, load_64(p));
    for (; size; p++, size--)
        value = __crc32cb(value, *p);
    return ~value;
}

static int armv8_supported(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#elif defined(__APPLE__)
    return 1;   /* every Apple CPU that runs macOS has them */
#else
    return 0;
#endif
}

#endif

/* ---- the choice ------------------------------------------------------------------------------ */

const seg_crc_level seg_crc_levels[] = {
    {"table", always_supported, table_crc32, table_crc32c},
#if defined(__x86_64__)
    {"sse42", sse42_supported, sse42_crc32, sse42_crc32c},
    {"avx512", avx512_supported, avx512_crc32, avx512_crc32c},
#elif defined(__aarch64__)
    {"armv8", armv8_supported, armv8_crc32, armv8_crc32c},
#endif
    {NULL, NULL, NULL, NULL},
};

void seg_crc_init(void) {
    set_constants(&ieee, POLYNOMIAL_CRC32);
    set_constants(&castagnoli, POLYNOMIAL_CRC32C);
#if defined(__x86_64__)
    __builtin_cpu_init();
    set_stream_constants();
#endif
}
