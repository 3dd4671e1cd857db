/* Narrow floats to and from f32. One integer routine rounds to any of them, since f16, bf16 and e4m3 differ only in their
 * number of mantissa bits, their bias and what they do above their largest value. */
#include <string.h>
#include "number/number.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Rounds a finite magnitude (f32 bits, no sign) to nearest, ties to even. Returns the exponent and mantissa fields side by
 * side; a result above the format's largest value comes out as if the exponent had more bits. */
static uint32_t narrow(uint32_t mag, int n_mantissa, int bias) {
    int exponent = (int)(mag >> 23), shift = 23 - n_mantissa;
    int target = exponent - 127 + bias;
    uint32_t m = mag;
    if (target >= 1) {
        m -= (uint32_t)(127 - bias) << 23;
    } else { /* a subnormal of the narrow format: its mantissa counts steps of 2^(1 - bias - n_mantissa) */
        m = (mag & 0x7fffff) | 0x800000u;
        shift += 1 - target;
        if (shift > 24) return 0; /* below half a step, as all subnormals of f32 are */
    }
    return (m + (1u << (shift - 1)) - 1 + ((m >> shift) & 1)) >> shift;
}

static bool is_nan(uint32_t mag) { return mag > 0x7f800000u; }

uint16_t oz_f16_from_f32(float f) {
    uint32_t u = bits_of(f), mag = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    if (is_nan(mag)) return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x1ffu)); /* quiet, the payload's upper bits kept */
    if (mag == 0x7f800000u) return (uint16_t)(sign | 0x7c00u);
    uint32_t h = narrow(mag, 10, 15);
    return (uint16_t)(sign | (h < 0x7c00u ? h : 0x7c00u));
}

uint16_t oz_bf16_from_f32(float f) {
    uint32_t u = bits_of(f);
    if (is_nan(u & 0x7fffffffu)) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16); /* bf16 is the upper half of f32: subnormals and infinity need no care */
}

uint8_t oz_e4m3_from_f32(float f) {
    uint32_t u = bits_of(f), mag = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
    if (is_nan(mag)) return (uint8_t)(sign | 0x7fu);
    uint32_t v = mag < 0x43e00000u ? narrow(mag, 3, 7) : 0x7eu; /* 448 and above, infinity too */
    return (uint8_t)(sign | v);
}

float oz_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
    if (e == 31) return float_of(sign | 0x7f800000u | m << 13);
    if (e > 0) return float_of(sign | (e + 112) << 23 | m << 13);
    float v = (float)m * 0x1p-24f;
    return sign ? -v : v;
}

float oz_f32_from_e4m3(uint8_t v) {
    uint32_t sign = (uint32_t)(v & 0x80u) << 24, e = v >> 3 & 15u, m = v & 7u;
    if (e == 15 && m == 7) return float_of(sign | 0x7fc00000u);
    if (e > 0) return float_of(sign | (e + 120) << 23 | m << 20);
    float x = (float)m * 0x1p-9f;
    return sign ? -x : x;
}

float oz_f32_from_e5m2(uint8_t v) { return oz_f32_from_f16((uint16_t)(v << 8)); } /* e5m2 is the upper half of f16 */
