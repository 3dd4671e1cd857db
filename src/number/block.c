/* GGUF's block types taken apart: a row of the table each. Numbers are little-endian; "half" is an f16.
 *
 * Blocks of 32 have one scale d, those with _1 a minimum m: value = d * code (+ m). Nibbles: value i in the low half of byte i, i + 16 in the high half.
 *   Q8_0    d, int8[32]                 Q4_0    d, nibbles (- 8)            Q4_1    d, m, nibbles
 *   Q5_0    d, fifth bits (u32, bit i of value i), nibbles (- 16)           Q5_1    d, m, fifth bits, nibbles
 *   IQ4_NL  d, nibbles into a codebook  MXFP4   e, nibbles into another one: e2m1 doubled, hence d = 2^(e - 128)
 * Super-blocks of 256 have groups of 16 or 32, whose scales are small integers times d, and whose minima are small integers times dmin:
 *   Q2_K    16 x (scale | min << 4), 2-bit codes [64], d, dmin              Q3_K    third bits [32], 2-bit codes [64], 6-bit scales [12], d
 *   Q4_K    d, dmin, 6-bit scales and mins [12], nibbles [128]              Q5_K    the same with fifth bits [32] before the nibbles
 *   Q6_K    low nibbles [128], high pairs [64], int8 scales [16], d         IQ4_XS  d, high pairs of scales (u16), low nibbles [4], nibbles as IQ4_NL's
 * Everything is exact: a scale is a product of 11 and at most 8 bits. */
#include <math.h>
#include "number/number.h"

static float half_at(const uint8_t *p) { return oz_f32_from_f16((uint16_t)(p[0] | p[1] << 8)); }

/* ---- pieces that several have ---- */

/* 32 codes from 16 bytes. */
static void nibbles(int8_t *codes, const uint8_t *qs, int bias) {
    for (int i = 0; i < 16; i++) codes[i] = (int8_t)((qs[i] & 15) - bias), codes[i + 16] = (int8_t)((qs[i] >> 4) - bias);
}

/* Runs of 64 codes from 32 bytes each: 32 low nibbles, then 32 high ones. */
static void nibbles_k(int8_t *codes, const uint8_t *qs) {
    for (int i = 0; i < 256; i++) codes[i] = (int8_t)(qs[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15);
}

/* Code i of 256 from pairs of bits: runs of 128 from 32 bytes each, the lowest pairs of all bytes first. */
static int pair_k(const uint8_t *qs, int i) { return qs[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3; }

/* Bit i of 256: bit 0 of 32 bytes, then bit 1 ... */
static int bit_k(const uint8_t *qs, int i) { return qs[i % 32] >> i / 32 & 1; }

/* Q4_K's and Q5_K's 8 scales and 8 mins of 6 bits: the first four of each whole, the others' high pairs above those. */
static void scales_k(oz_block *out, const uint8_t *b) {
    const float d = half_at(b), dmin = half_at(b + 2);
    const uint8_t *s = b + 4;
    for (int g = 0; g < 8; g++) {
        const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4, min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
        out->scales[g] = d * (float)scale;
        out->offsets[g] = -(dmin * (float)min);
    }
}

/* ---- blocks of 32 ---- */

static void split_q8_0(oz_block *out, const uint8_t *b) {
    out->scales[0] = half_at(b);
    for (int i = 0; i < 32; i++) out->codes[i] = (int8_t)b[2 + i];
}

static void split_q4_0(oz_block *out, const uint8_t *b) {
    out->scales[0] = half_at(b);
    nibbles(out->codes, b + 2, 8);
}

static void split_q4_1(oz_block *out, const uint8_t *b) {
    out->scales[0] = half_at(b), out->offsets[0] = half_at(b + 2);
    nibbles(out->codes, b + 4, 0);
}

static void fifth_bits(int8_t *codes, const uint8_t *qh) {
    for (int i = 0; i < 32; i++) codes[i] = (int8_t)(codes[i] + ((qh[i / 8] >> i % 8 & 1) << 4));
}

static void split_q5_0(oz_block *out, const uint8_t *b) {
    out->scales[0] = half_at(b);
    nibbles(out->codes, b + 6, 16);
    fifth_bits(out->codes, b + 2);
}

static void split_q5_1(oz_block *out, const uint8_t *b) {
    out->scales[0] = half_at(b), out->offsets[0] = half_at(b + 2);
    nibbles(out->codes, b + 8, 0);
    fifth_bits(out->codes, b + 4);
}

static void split_iq4_nl(oz_block *out, const uint8_t *b) {
    out->scales[0] = half_at(b);
    nibbles(out->codes, b + 2, 0);
}

static void split_mxfp4(oz_block *out, const uint8_t *b) {
    out->scales[0] = ldexpf(1.0f, b[0] - 128);
    nibbles(out->codes, b + 1, 0);
}

/* ---- super-blocks of 256 ---- */

static void split_q2_k(oz_block *out, const uint8_t *b) {
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int g = 0; g < 16; g++) out->scales[g] = d * (float)(b[g] & 15), out->offsets[g] = -(dmin * (float)(b[g] >> 4));
    for (int i = 0; i < 256; i++) out->codes[i] = (int8_t)pair_k(b + 16, i);
}

static void split_q3_k(oz_block *out, const uint8_t *b) {
    const float d = half_at(b + 108);
    const uint8_t *s = b + 96;
    for (int g = 0; g < 16; g++) {
        const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4, high = s[8 + g % 4] >> g / 4 * 2 & 3;
        out->scales[g] = d * (float)((low | high << 4) - 32);
    }
    for (int i = 0; i < 256; i++) out->codes[i] = (int8_t)(pair_k(b + 32, i) + 4 * bit_k(b, i) - 4);
}

static void split_q4_k(oz_block *out, const uint8_t *b) {
    scales_k(out, b);
    nibbles_k(out->codes, b + 16);
}

static void split_q5_k(oz_block *out, const uint8_t *b) {
    scales_k(out, b);
    nibbles_k(out->codes, b + 48);
    for (int i = 0; i < 256; i++) out->codes[i] = (int8_t)(out->codes[i] + (bit_k(b + 16, i) << 4));
}

static void split_q6_k(oz_block *out, const uint8_t *b) {
    const float d = half_at(b + 208);
    for (int g = 0; g < 16; g++) out->scales[g] = d * (float)(int8_t)b[192 + g];
    for (int i = 0; i < 256; i++) {
        const int low = b[i / 128 * 64 + i % 64] >> i / 64 % 2 * 4 & 15;
        out->codes[i] = (int8_t)((low | pair_k(b + 128, i) << 4) - 32);
    }
}

static void split_iq4_xs(oz_block *out, const uint8_t *b) {
    const float d = half_at(b);
    const int high = b[2] | b[3] << 8;
    for (int g = 0; g < 8; g++) {
        const int scale = (b[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4;
        out->scales[g] = d * (float)(scale - 32);
        nibbles(out->codes + 32 * g, b + 8 + 16 * g, 0);
    }
}

/* ---- the table ---- */

static const int8_t CODEBOOK_NL[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t CODEBOOK_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static const oz_block_type TYPES[OZ_DTYPE_COUNT] = {
    [OZ_DTYPE_Q8_0] = {32, false, NULL, split_q8_0},
    [OZ_DTYPE_Q4_0] = {32, false, NULL, split_q4_0},
    [OZ_DTYPE_Q4_1] = {32, true, NULL, split_q4_1},
    [OZ_DTYPE_Q5_0] = {32, false, NULL, split_q5_0},
    [OZ_DTYPE_Q5_1] = {32, true, NULL, split_q5_1},
    [OZ_DTYPE_Q2_K] = {16, true, NULL, split_q2_k},
    [OZ_DTYPE_Q3_K] = {16, false, NULL, split_q3_k},
    [OZ_DTYPE_Q4_K] = {32, true, NULL, split_q4_k},
    [OZ_DTYPE_Q5_K] = {32, true, NULL, split_q5_k},
    [OZ_DTYPE_Q6_K] = {16, false, NULL, split_q6_k},
    [OZ_DTYPE_IQ4_NL] = {32, false, CODEBOOK_NL, split_iq4_nl},
    [OZ_DTYPE_IQ4_XS] = {32, false, CODEBOOK_NL, split_iq4_xs},
    [OZ_DTYPE_MXFP4] = {32, false, CODEBOOK_E2M1, split_mxfp4},
};

const oz_block_type *oz_block_get(oz_dtype d) { return &TYPES[d]; }
