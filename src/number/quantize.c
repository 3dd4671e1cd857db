/* Round-to-nearest quantization of weight rows, and the dynamic quantization of activations: definitions, not speed. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "number/number.h"

enum { CODES_AT_ONCE = 256 };

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

/* n codes given as numbers, from column c of a row whose storage was zero. */
static void put_codes(uint8_t *row, oz_codec codec, int64_t c, const float *codes, int64_t n) {
    const oz_codec_info *info = oz_codec_get(codec);
    uint8_t *at = row + c;
    switch (codec) {
    case OZ_CODEC_F8E4M3:
        for (int64_t i = 0; i < n; i++) at[i] = oz_e4m3_from_f32(codes[i]);
        break;
    case OZ_CODEC_I4P:
        for (int64_t i = 0; i < n; i++) row[(c + i) / 2] |= (uint8_t)(((int)codes[i] + 8) << ((c + i) % 2 * 4));
        break;
    case OZ_CODEC_I8P:
        for (int64_t i = 0; i < n; i++) at[i] = (uint8_t)((int)codes[i] + 128);
        break;
    case OZ_CODEC_I8:
        for (int64_t i = 0; i < n; i++) at[i] = (uint8_t)(int8_t)codes[i];
        break;
    case OZ_CODEC_E2M1:
        for (int64_t i = 0; i < n; i++) row[(c + i) / 2] |= (uint8_t)((int)codes[i] << ((c + i) % 2 * 4));
        break;
    default:
        for (int64_t i = 0; i < n; i++) oz_field_put(row, 4, info->bits, info->order, c + i, (uint32_t)((int)codes[i] - info->code_min));
    }
}

void oz_codes_store(void *codes_row, oz_codec codec, const float *codes, int64_t cols) {
    memset(codes_row, 0, (size_t)oz_codec_row_bytes(codec, cols));
    put_codes(codes_row, codec, 0, codes, cols);
}

/* What oz_rtn_code does, in forms that compilers turn into vectors: loading a model waits for it. A sum with 1.5 * 2^23 is rounded to a whole number. */
static inline float int_nearest(float v, float lo, float hi) {
    const float whole = 0x1.8p23f;
    v = v < lo ? lo : v;
    v = v > hi ? hi : v;
    return (v + whole) - whole;
}

static inline uint32_t either(bool choose, uint32_t a, uint32_t b) { return (a & -(uint32_t)choose) | (b & ~-(uint32_t)choose); }

/* Three bits of fraction, or below 2^-6 whole steps of 2^-9. Magnitudes are in the order of their bits; they are chosen by masks, since compilers make
 * no vectors of branches. */
static inline float e4m3_nearest(float x) {
    const float steps = 0x1.8p14f, whole = (fabsf(x) + steps) - steps;
    const uint32_t most = 0x43e00000 /* 448 */, least = 0x3c800000 /* 2^-6 */, infinite = 0x7f800000, sign = 1u << 31;
    uint32_t u, subnormal;
    memcpy(&u, &x, sizeof u);
    memcpy(&subnormal, &whole, sizeof subnormal);
    const uint32_t v = u & ~sign, normal = (v + 0x7ffff + (v >> 20 & 1)) & ~0xfffffu, clamped = either(normal > most, most, normal);
    u = (u & sign) | either(v < least, subnormal, either(v > infinite, v, clamped)); /* NaN stays */
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Of a group with one scale. */
static void codes_nearest(float *codes, const float *x, float scale, float zero, int64_t n, const oz_rtn *q) {
    float lo, hi;
    code_range(&lo, &hi, q);
    if (oz_codec_get(q->codec)->is_float)
        for (int64_t i = 0; i < n; i++) codes[i] = e4m3_nearest(x[i] / scale);
    else
        for (int64_t i = 0; i < n; i++) codes[i] = int_nearest(x[i] / scale + zero, lo, hi);
}

void oz_rtn_codes_each(float *codes, const oz_rtn *q, const float *scales, const float *zeros, const float *src, int64_t n) {
    float lo, hi;
    code_range(&lo, &hi, q);
    if (oz_codec_get(q->codec)->is_float)
        for (int64_t i = 0; i < n; i++) codes[i] = e4m3_nearest(src[i] / scales[i]);
    else
        for (int64_t i = 0; i < n; i++) codes[i] = int_nearest(src[i] / scales[i] + zeros[i], lo, hi);
}

/* Of a group; infinity or NaN where one is among them. Magnitudes of floats are in the order of their bits. */
static float amax_of(const float *x, int64_t n) {
    int32_t most = 0, v;
    float amax;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&v, &x[i], sizeof v);
        v &= INT32_MAX;
        most = v > most ? v : most;
    }
    memcpy(&amax, &most, sizeof amax);
    return amax;
}

static oz_status not_finite(const float *src, oz_err *err) {
    int64_t i = 0;
    while (isfinite(src[i])) i++;
    OZ_FAIL(err, OZ_E_FORMAT, "column %lld: expected a finite weight, found %g", (long long)i, (double)src[i]);
}

/* Of a symmetric scheme the range's ends are one number. */
static oz_status widen(float *min, float *max, const oz_rtn *q, const float *x, int64_t begin, int64_t end, oz_err *err) {
    const float amax = amax_of(x + begin, end - begin);
    if (!isfinite(amax)) return not_finite(x, err);
    if (!q->asymmetric && amax > *max) *max = amax;
    for (int64_t i = begin; q->asymmetric && i < end; i++) {
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
    const float exact = q->asymmetric ? oz_f32_rounded(max - min, q->scale_dtype) / (hi - lo) : amax / (q->divisor > 0 ? q->divisor : oz_codec_get(q->codec)->is_float ? 448.0f : 0.5f * (hi - lo));
    *scale = amax > 0 ? oz_f32_rounded(exact, q->scale_dtype) : 1.0f;
    *zero = 0;
    if (*scale == 0) *scale = q->scale_dtype == OZ_DTYPE_F16 ? 0x1p-24f : q->scale_dtype == OZ_DTYPE_BF16 ? 0x1p-133f : 0x1p-149f;
    OZ_NEED(isfinite(*scale), err, OZ_E_FORMAT, "scale %g does not fit %s", (double)exact, oz_dtype_get(q->scale_dtype)->name);
    if (!q->asymmetric || !(amax > 0)) return OZ_OK;
    const float z = oz_f32_rounded(lo - oz_f32_rounded(min / *scale, q->scale_dtype), q->scale_dtype);
    *zero = nearbyintf(z < lo ? lo : z > hi ? hi : z);
    return OZ_OK;
}

static int64_t group_of(const oz_rtn *q, int64_t cols) { return q->group_size > 0 ? q->group_size : cols; }

oz_status oz_rtn_observe(float *min, float *max, const oz_rtn *q, const float *src, int64_t cols, oz_err *err) {
    const int64_t step = group_of(q, cols);
    for (int64_t c = 0; c < cols; c += step) OZ_TRY(widen(min++, max++, q, src, c, c + step < cols ? c + step : cols, err));
    return OZ_OK;
}

void oz_rtn_codes(float *codes, const oz_rtn *q, const float *scales, const float *zeros, const float *src, int64_t cols) {
    const int64_t step = group_of(q, cols);
    for (int64_t c = 0, g = 0; c < cols; c += step, g++) codes_nearest(codes + c, src + c, scales[g], zeros[g], c + step < cols ? step : cols - c, q);
}

oz_status oz_rtn_numbers(float *codes, float *scales, float *zeros, const oz_rtn *q, const float *src, int64_t cols, oz_err *err) {
    const int64_t step = group_of(q, cols);
    for (int64_t c = 0, g = 0; c < cols; c += step, g++) {
        float min = 0, max = 0;
        OZ_TRY(widen(&min, &max, q, src, c, c + step < cols ? c + step : cols, err));
        OZ_TRY(oz_rtn_scale(&scales[g], &zeros[g], q, min, max, err));
    }
    oz_rtn_codes(codes, q, scales, zeros, src, cols);
    return OZ_OK;
}

oz_status oz_rtn_row(void *codes_row, void *scales_row, int8_t *zeros_row, const oz_rtn *q, const float *src, int64_t cols, oz_err *err) {
    const int64_t step = group_of(q, cols);
    const size_t scale_bytes = (size_t)oz_dtype_get(q->scale_dtype)->block_bytes;
    float codes[CODES_AT_ONCE];
    memset(codes_row, 0, (size_t)oz_codec_row_bytes(q->codec, cols));
    for (int64_t c = 0, g = 0; c < cols; c += step, g++) {
        const int64_t end = c + step < cols ? c + step : cols;
        float min = 0, max = 0, scale, zero;
        OZ_TRY(widen(&min, &max, q, src, c, end, err));
        OZ_TRY(oz_rtn_scale(&scale, &zero, q, min, max, err));
        oz_from_f32((uint8_t *)scales_row + (size_t)g * scale_bytes, q->scale_dtype, &scale, 1);
        if (q->asymmetric) zeros_row[g] = (int8_t)zero;
        for (int64_t i = c; i < end; i += CODES_AT_ONCE) {
            const int64_t n = end - i < CODES_AT_ONCE ? end - i : CODES_AT_ONCE;
            codes_nearest(codes, src + i, scale, zero, n, q);
            put_codes(codes_row, q->codec, i, codes, n);
        }
    }
    return OZ_OK;
}

/* ---- a whole weight ---- */

typedef struct quantize_job { const oz_weight *w; const oz_rtn *q; uint8_t *codes, *scales; float *rows; int64_t row_bytes, scale_bytes; oz_err *errs; } quantize_job;

static void quantize_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const quantize_job *j = arg;
    float *row = j->rows + thread * j->w->cols;
    for (int64_t r = begin; r < end; r++) {
        oz_weight_row(row, j->w, r, 0, j->w->cols);
        if (oz_rtn_row(j->codes + r * j->row_bytes, j->scales + r * j->scale_bytes, NULL, j->q, row, j->w->cols, &j->errs[thread]) == OZ_OK) continue;
        oz_err_prefix(&j->errs[thread], "row %lld", (long long)r);
        return;
    }
}

static size_t round_64(size_t n) { return (n + 63) & ~(size_t)63; }

oz_status oz_weight_quantize(oz_weight *out, void **mem, const oz_weight *w, const oz_rtn *q, oz_pool *pool, oz_err *err) {
    const int n_threads = oz_pool_threads(pool);
    quantize_job j = {.w = w, .q = q, .row_bytes = oz_codec_row_bytes(q->codec, w->cols)};
    *out = (oz_weight){.codec = q->codec, .rows = w->rows, .cols = w->cols, .row_bytes = j.row_bytes, .group_size = q->group_size > 0 ? q->group_size : w->cols, .scale_dtype = q->scale_dtype};
    j.scale_bytes = oz_weight_groups(out) * oz_dtype_get(q->scale_dtype)->block_bytes;
    const size_t n_codes = round_64((size_t)(w->rows * j.row_bytes)), n_scales = round_64((size_t)(w->rows * j.scale_bytes));
    OZ_TRY(oz_big_new(mem, n_codes + n_scales + (size_t)n_threads * (size_t)w->cols * sizeof *j.rows, "quantized weight", err));
    out->codes = j.codes = *mem;
    out->scales = j.scales = j.codes + n_codes;
    j.rows = (float *)(j.scales + n_scales);
    j.errs = oz_alloc_array((size_t)n_threads, sizeof *j.errs);
    oz_pool_run(pool, w->rows, 1, quantize_rows, &j);
    oz_status st = OZ_OK;
    for (int t = 0; st == OZ_OK && t < n_threads; t++)
        if (j.errs[t].code != OZ_OK) st = oz_err_set(err, j.errs[t].code, __FILE__, __LINE__, "%s", j.errs[t].msg);
    oz_free(j.errs);
    if (st != OZ_OK) oz_big_free(*mem), *mem = NULL;
    return st;
}

/* ---- activations ---- */

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

static float next_power(float x) {
    int e;
    const float m = frexpf(x, &e);
    return isfinite(x) ? ldexpf(m > 0.5f ? 1.0f : 0.5f, e) : x;
}

/* Scale and zero of a group that says them itself; NaN where it holds one or an infinity. */
static void round_params(float *scale, float *zero, const float *x, int64_t n, const oz_round *q, float lo, float hi) {
    *zero = 0;
    if (q->symmetric) {
        const float amax = oz_act_amax(x, n), least = 1.0f / (448.0f * 512.0f);
        *scale = amax / (q->is_float ? 448.0f : hi);
        if (q->is_float && *scale < least) *scale = least;
        if (*scale == 0) *scale = 1;
        if (q->powers) *scale = next_power(*scale);
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
