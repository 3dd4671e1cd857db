/* Round-to-nearest quantization of weight rows, and the dynamic quantization of activations: definitions, not speed. */
#include <math.h>
#include <string.h>
#include "number/number.h"

/* Of integer codes. */
static void code_range(float *lo, float *hi, const oz_rtn *q) {
    const oz_codec_info *info = oz_codec_get(q->codec);
    *lo = q->bits ? (float)-(1 << (q->bits - 1)) : (float)info->code_min;
    *hi = q->bits ? (float)((1 << (q->bits - 1)) - 1) : (float)info->code_max;
}

/* nearbyint: the rounding mode is to nearest, ties to even. A symmetric scheme adds nothing, not even zero: that would take the sign of a zero. */
float oz_rtn_code(const oz_rtn *q, float x, float scale, float zero) {
    const float t = q->asymmetric ? x / scale + zero : x / scale;
    if (oz_codec_get(q->codec)->is_float) return oz_f32_from_e4m3(oz_e4m3_from_f32(t)); /* which clamps */
    float lo, hi;
    code_range(&lo, &hi, q);
    return nearbyintf(t < lo ? lo : t > hi ? hi : t);
}

/* Column c of a row whose storage was zero. */
static void put_code(uint8_t *row, oz_codec codec, int64_t c, float code) {
    const oz_codec_info *info = oz_codec_get(codec);
    switch (codec) {
    case OZ_CODEC_F8E4M3: row[c] = oz_e4m3_from_f32(code); break;
    case OZ_CODEC_I4P: row[c / 2] |= (uint8_t)(((int)code + 8) << (c % 2 * 4)); break;
    case OZ_CODEC_I8P: row[c] = (uint8_t)((int)code + 128); break;
    case OZ_CODEC_I8: row[c] = (uint8_t)(int8_t)code; break;
    case OZ_CODEC_E2M1: row[c / 2] |= (uint8_t)((int)code << (c % 2 * 4)); break;
    default: oz_field_put(row, 4, info->bits, info->order, c, (uint32_t)((int)code - info->code_min));
    }
}

void oz_codes_store(void *codes_row, oz_codec codec, const float *codes, int64_t cols) {
    memset(codes_row, 0, (size_t)oz_codec_row_bytes(codec, cols));
    for (int64_t c = 0; c < cols; c++) put_code(codes_row, codec, c, codes[c]);
}

/* x as a value of a type of floats. */
static float rounded(float x, oz_dtype dtype) {
    uint8_t stored[8];
    oz_from_f32(stored, dtype, &x, 1);
    oz_to_f32(&x, dtype, stored, 1);
    return x;
}

static oz_status widen(float *min, float *max, const float *x, int64_t col0, int64_t n, oz_err *err) {
    for (int64_t i = col0; i < col0 + n; i++) {
        OZ_NEED(isfinite(x[i]), err, OZ_E_FORMAT, "column %lld: expected a finite weight, found %g", (long long)i, (double)x[i]);
        if (x[i] < *min) *min = x[i];
        if (x[i] > *max) *max = x[i];
    }
    return OZ_OK;
}

/* A group so small that its scale rounds to zero takes the smallest one that the type has: its codes stay in range, and no stored
 * scale is zero. */
oz_status oz_rtn_scale(float *scale, float *zero, const oz_rtn *q, float min, float max, oz_err *err) {
    const float amax = max > -min ? max : -min;
    float lo, hi;
    code_range(&lo, &hi, q);
    const float exact = q->asymmetric ? rounded(max - min, q->scale_dtype) / (hi - lo) : amax / (oz_codec_get(q->codec)->is_float ? 448.0f : 0.5f * (hi - lo));
    *scale = amax > 0 ? rounded(exact, q->scale_dtype) : 1.0f;
    *zero = 0;
    if (*scale == 0) *scale = q->scale_dtype == OZ_DTYPE_F16 ? 0x1p-24f : q->scale_dtype == OZ_DTYPE_BF16 ? 0x1p-133f : 0x1p-149f;
    OZ_NEED(isfinite(*scale), err, OZ_E_FORMAT, "scale %g does not fit %s", (double)exact, oz_dtype_get(q->scale_dtype)->name);
    if (!q->asymmetric || !(amax > 0)) return OZ_OK;
    const float z = rounded(lo - rounded(min / *scale, q->scale_dtype), q->scale_dtype);
    *zero = nearbyintf(z < lo ? lo : z > hi ? hi : z);
    return OZ_OK;
}

static int64_t group_of(const oz_rtn *q, int64_t cols) { return q->group_size > 0 ? q->group_size : cols; }

oz_status oz_rtn_observe(float *min, float *max, const oz_rtn *q, const float *src, int64_t cols, oz_err *err) {
    const int64_t step = group_of(q, cols);
    for (int64_t c = 0; c < cols; c += step) OZ_TRY(widen(min++, max++, src, c, c + step < cols ? step : cols - c, err));
    return OZ_OK;
}

void oz_rtn_codes(float *codes, const oz_rtn *q, const float *scales, const float *zeros, const float *src, int64_t cols) {
    const int64_t step = group_of(q, cols);
    for (int64_t c = 0; c < cols; c++) codes[c] = oz_rtn_code(q, src[c], scales[c / step], zeros[c / step]);
}

oz_status oz_rtn_row(void *codes_row, void *scales_row, int8_t *zeros_row, const oz_rtn *q, const float *src, int64_t cols, oz_err *err) {
    const int64_t step = group_of(q, cols);
    const size_t scale_bytes = (size_t)oz_dtype_get(q->scale_dtype)->block_bytes;
    memset(codes_row, 0, (size_t)oz_codec_row_bytes(q->codec, cols));
    for (int64_t c = 0, g = 0; c < cols; c += step, g++) {
        const int64_t n = c + step < cols ? step : cols - c;
        float min = 0, max = 0, scale, zero;
        OZ_TRY(widen(&min, &max, src, c, n, err));
        OZ_TRY(oz_rtn_scale(&scale, &zero, q, min, max, err));
        oz_from_f32((uint8_t *)scales_row + (size_t)g * scale_bytes, q->scale_dtype, &scale, 1);
        if (q->asymmetric) zeros_row[g] = (int8_t)zero;
        for (int64_t i = c; i < c + n; i++) put_code(codes_row, q->codec, i, oz_rtn_code(q, src[i], scale, zero));
    }
    return OZ_OK;
}

float oz_act_amax(const float *x, int64_t n) {
    float amax = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return NAN;
        if (fabsf(x[i]) > amax) amax = fabsf(x[i]);
    }
    return amax;
}

float oz_act_i8_of(int8_t *q, const float *x, int64_t n, float amax) {
    float s = amax / 127.0f;
    if (!(s > 0)) { /* all zero, or not a number: then the scale carries it on */
        for (int64_t i = 0; i < n; i++) q[i] = 0;
        return isnan(s) ? s : 1.0f;
    }
    for (int64_t i = 0; i < n; i++) {
        float t = nearbyintf(x[i] / s);
        q[i] = (int8_t)(t < -127.0f ? -127.0f : t > 127.0f ? 127.0f : t);
    }
    return s;
}

float oz_act_e4m3_of(uint8_t *q, const float *x, int64_t n, float amax) {
    float s = amax / 448.0f;
    if (isnan(s)) {
        for (int64_t i = 0; i < n; i++) q[i] = 0;
        return s;
    }
    if (s < 1.0f / (448.0f * 512.0f)) s = 1.0f / (448.0f * 512.0f);
    for (int64_t i = 0; i < n; i++) q[i] = oz_e4m3_from_f32(x[i] / s); /* which clamps */
    return s;
}

float oz_act_i8(int8_t *q, const float *x, int64_t n) { return oz_act_i8_of(q, x, n, oz_act_amax(x, n)); }
float oz_act_e4m3(uint8_t *q, const float *x, int64_t n) { return oz_act_e4m3_of(q, x, n, oz_act_amax(x, n)); }

static float round_code(float t, const oz_round *q, float lo, float hi) {
    return q->is_float ? oz_f32_from_e4m3(oz_e4m3_from_f32(t)) : nearbyintf(t < lo ? lo : t > hi ? hi : t);
}

/* Scale and zero of a group that says them itself; NaN where it holds one or an infinity. */
static void round_params(float *scale, float *zero, const float *x, int64_t n, const oz_round *q, float lo, float hi) {
    *zero = 0;
    if (q->symmetric) {
        const float amax = oz_act_amax(x, n), least = 1.0f / (448.0f * 512.0f);
        *scale = amax / (q->is_float ? 448.0f : hi);
        if (q->is_float && *scale < least) *scale = least;
        if (*scale == 0) *scale = 1;
        return;
    }
    float min = 0, max = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) min = NAN;
        if (x[i] < min) min = x[i];
        if (x[i] > max) max = x[i];
    }
    *scale = (max - min) / (hi - lo);
    if (*scale == 0) *scale = 1;
    const float z = nearbyintf(lo - min / *scale);
    *zero = z < lo ? lo : z > hi ? hi : z;
}

void oz_act_round(float *y, const float *x, int64_t n, const oz_round *q) {
    const int64_t step = q->group_size > 0 ? q->group_size : n;
    const float hi = (float)((1 << (q->bits - 1)) - 1), lo = q->symmetric && !q->scales ? -hi : -hi - 1;
    for (int64_t c = 0, g = 0; c < n; c += step, g++) {
        const int64_t end = c + step < n ? c + step : n;
        float scale, zero;
        if (q->scales) scale = q->scales[g], zero = q->zeros ? q->zeros[g] : 0;
        else round_params(&scale, &zero, x + c, end - c, q, lo, hi);
        for (int64_t i = c; i < end; i++) y[i] = isfinite(x[i]) && isfinite(scale) ? (round_code(x[i] / scale + zero, q, lo, hi) - zero) * scale : NAN;
    }
}
