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

static float half_at(const uint8_t *p) { return oz_f32_from_f16((uint16_t)(p[0] | p[1] << 8)); }

/* GGUF blocks of 32. Q8_0: f16 scale, 32 int8. Q4_0: f16 scale, 16 bytes: value i in the low nibble of byte i, i + 16 in the
 * high one; minus 8. Q4_1: f16 scale, f16 minimum, nibbles as Q4_0 without the 8. */
static void q8_0_to(float *dst, const uint8_t *src, int64_t n) {
    for (int64_t b = 0; b < n / 32; b++, src += 34, dst += 32) {
        float d = half_at(src);
        for (int i = 0; i < 32; i++) dst[i] = (float)(int8_t)src[2 + i] * d;
    }
}

static void q4_0_to(float *dst, const uint8_t *src, int64_t n) {
    for (int64_t b = 0; b < n / 32; b++, src += 18, dst += 32) {
        float d = half_at(src);
        for (int i = 0; i < 16; i++) {
            dst[i] = (float)((src[2 + i] & 15) - 8) * d;
            dst[i + 16] = (float)((src[2 + i] >> 4) - 8) * d;
        }
    }
}

static void q4_1_to(float *dst, const uint8_t *src, int64_t n) {
    for (int64_t b = 0; b < n / 32; b++, src += 20, dst += 32) {
        float d = half_at(src), m = half_at(src + 2);
        for (int i = 0; i < 16; i++) {
            dst[i] = (float)(src[4 + i] & 15) * d + m;
            dst[i + 16] = (float)(src[4 + i] >> 4) * d + m;
        }
    }
}

static void (*const TO[OZ_DTYPE_COUNT])(float *, const uint8_t *, int64_t) = {
    [OZ_DTYPE_F32] = f32_to, [OZ_DTYPE_F16] = f16_to, [OZ_DTYPE_BF16] = bf16_to, [OZ_DTYPE_F64] = f64_to,
    [OZ_DTYPE_I8] = i8_to, [OZ_DTYPE_U8] = u8_to, [OZ_DTYPE_I16] = i16_to, [OZ_DTYPE_U16] = u16_to,
    [OZ_DTYPE_I32] = i32_to, [OZ_DTYPE_U32] = u32_to, [OZ_DTYPE_I64] = i64_to, [OZ_DTYPE_U64] = u64_to,
    [OZ_DTYPE_BOOL] = u8_to, [OZ_DTYPE_F8_E4M3] = e4m3_to, [OZ_DTYPE_F8_E5M2] = e5m2_to, [OZ_DTYPE_F8_E8M0] = e8m0_to,
    [OZ_DTYPE_Q8_0] = q8_0_to, [OZ_DTYPE_Q4_0] = q4_0_to, [OZ_DTYPE_Q4_1] = q4_1_to,
};

void oz_to_f32(float *dst, oz_dtype d, const void *src, int64_t n) { TO[d](dst, src, n); }

void oz_from_f32(void *dst, oz_dtype d, const float *src, int64_t n) {
    if (d == OZ_DTYPE_F32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    uint16_t (*narrow)(float) = d == OZ_DTYPE_F16 ? oz_f16_from_f32 : oz_bf16_from_f32;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = narrow(src[i]);
        memcpy((uint8_t *)dst + (size_t)i * 2, &h, 2);
    }
}
