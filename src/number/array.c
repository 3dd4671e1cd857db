/* Conversion of arrays of any element type to and from f32. Pointers into files may be misaligned, hence the memcpy. */
#include <math.h>
#include <string.h>
#include "number/number.h"

/* One routine a type: read element i, convert. */
#define TO_F32(name, type, expr)                                       \
    static void name(float *dst, const uint8_t *src, int64_t n) {      \
        for (int64_t i = 0; i < n; i++) {                              \
            type v;                                                    \
            memcpy(&v, src + (size_t)i * sizeof v, sizeof v);          \
            dst[i] = (expr);                                           \
        }                                                              \
    }

TO_F32(f32_to, float, v)
TO_F32(f16_to, uint16_t, oz_f32_from_f16(v))
TO_F32(bf16_to, uint16_t, oz_f32_from_bf16(v))
TO_F32(f64_to, double, (float)v)
TO_F32(i8_to, int8_t, v)
TO_F32(u8_to, uint8_t, v)
TO_F32(i16_to, int16_t, v)
TO_F32(u16_to, uint16_t, v)
TO_F32(i32_to, int32_t, (float)v)
TO_F32(u32_to, uint32_t, (float)v)
TO_F32(i64_to, int64_t, (float)v)
TO_F32(u64_to, uint64_t, (float)v)
TO_F32(e4m3_to, uint8_t, oz_f32_from_e4m3(v))
TO_F32(e5m2_to, uint8_t, oz_f32_from_e5m2(v))
TO_F32(e8m0_to, uint8_t, v == 255 ? NAN : ldexpf(1.0f, v - 127)) /* a power of two and nothing else */

static void (*const TO[OZ_DTYPE_COUNT])(float *, const uint8_t *, int64_t) = {
    [OZ_DTYPE_F32] = f32_to, [OZ_DTYPE_F16] = f16_to, [OZ_DTYPE_BF16] = bf16_to, [OZ_DTYPE_F64] = f64_to,
    [OZ_DTYPE_I8] = i8_to, [OZ_DTYPE_U8] = u8_to, [OZ_DTYPE_I16] = i16_to, [OZ_DTYPE_U16] = u16_to,
    [OZ_DTYPE_I32] = i32_to, [OZ_DTYPE_U32] = u32_to, [OZ_DTYPE_I64] = i64_to, [OZ_DTYPE_U64] = u64_to,
    [OZ_DTYPE_BOOL] = u8_to, [OZ_DTYPE_F8_E4M3] = e4m3_to, [OZ_DTYPE_F8_E5M2] = e5m2_to, [OZ_DTYPE_F8_E8M0] = e8m0_to,
};

static void blocks_to(float *dst, oz_dtype d, const uint8_t *src, int64_t n) {
    const oz_dtype_info *t = oz_dtype_get(d);
    const oz_block_type *type = oz_block_get(d);
    oz_block b;
    for (int64_t at = 0; at < n; at += t->block_elems, src += t->block_bytes) {
        type->split(&b, src);
        for (int i = 0; i < t->block_elems; i++) {
            float v = (float)(type->codebook ? type->codebook[b.codes[i]] : b.codes[i]) * b.scales[i / type->group];
            dst[at + i] = type->has_offsets ? v + b.offsets[i / type->group] : v;
        }
    }
}

void oz_to_f32(float *dst, oz_dtype d, const void *src, int64_t n) {
    if (TO[d]) TO[d](dst, src, n);
    else blocks_to(dst, d, src, n);
}

static uint8_t e8m0_from_f32(float f) {
    int exponent;
    frexpf(f, &exponent);
    return (uint8_t)(exponent + 126);
}

void oz_from_f32(void *dst, oz_dtype d, const float *src, int64_t n) {
    if (d == OZ_DTYPE_F32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    if (d == OZ_DTYPE_F8_E4M3 || d == OZ_DTYPE_F8_E8M0) {
        uint8_t (*byte)(float) = d == OZ_DTYPE_F8_E4M3 ? oz_e4m3_from_f32 : e8m0_from_f32;
        for (int64_t i = 0; i < n; i++) ((uint8_t *)dst)[i] = byte(src[i]);
        return;
    }
    uint16_t (*narrow)(float) = d == OZ_DTYPE_F16 ? oz_f16_from_f32 : oz_bf16_from_f32;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = narrow(src[i]);
        memcpy((uint8_t *)dst + (size_t)i * 2, &h, 2);
    }
}

float oz_f32_rounded(float x, oz_dtype d) {
    uint8_t stored[8];
    oz_from_f32(stored, d, &x, 1);
    oz_to_f32(&x, d, stored, 1);
    return x;
}

/* Eight bytes at a time, as fast as memory is: where a value is not finite, one more in the last place of its exponent is a carry into its sign. */
bool oz_all_finite(oz_dtype d, const void *src, size_t n_bytes) {
    static const uint64_t EXPONENTS[OZ_DTYPE_COUNT] = {
        [OZ_DTYPE_F32] = 0x7f8000007f800000u, [OZ_DTYPE_F16] = 0x7c007c007c007c00u, [OZ_DTYPE_BF16] = 0x7f807f807f807f80u, [OZ_DTYPE_F64] = 0x7ff0000000000000u};
    const uint64_t exponents = EXPONENTS[d], last = exponents & ~(exponents << 1), signs = exponents << 1 & ~exponents;
    const uint8_t *p = src;
    uint64_t word, seen = 0;
    if (!exponents) return true;
    for (; n_bytes >= sizeof word; p += sizeof word, n_bytes -= sizeof word) {
        memcpy(&word, p, sizeof word);
        seen |= (word & exponents) + last;
    }
    word = 0;
    memcpy(&word, p, n_bytes);
    return !((seen | ((word & exponents) + last)) & signs);
}
