/* Guarded memory, inputs, comparison and reports of the checker. */
#include <stdarg.h>
#include "check.h"

enum { GUARD = 128, MAX_PRINTED = 5 };

oz_status ck_init(ck *c, const char *level, uint64_t seed, oz_err *err) {
    memset(c, 0, sizeof *c);
    OZ_TRY(oz_cpu_table_init(&c->dev.table, level, err));
    OZ_TRY(oz_cpu_table_init(&c->ref.table, "ref", err));
    c->many.table = c->dev.table;
    c->dev.head.ops = c->many.head.ops = c->ref.head.ops = &oz_cpu_ops;
    c->dev.pool = c->ref.pool = oz_pool_new(1);
    c->many.pool = oz_pool_new(3);
    c->dev.head.threads = c->ref.head.threads = 1, c->many.head.threads = 3;
    oz_rng_init(&c->rng, seed);
    return OZ_OK;
}

void ck_deinit(ck *c) {
    oz_pool_free(&c->dev.pool);
    oz_pool_free(&c->many.pool);
    oz_big_free(c->dev.gathered);
    oz_big_free(c->many.gathered);
}

void ck_begin(ck *c, const oz_batch *b) { c->many.batch = b; }

static void report(ck *c, const char *fmt, va_list ap) {
    if (c->n_fail++ >= MAX_PRINTED || c->quiet) return;
    printf("    %s: ", c->slot);
    vprintf(fmt, ap);
    printf("\n");
}

void ck_fail(ck *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    report(c, fmt, ap);
    va_end(ap);
}

void ck_bound(ck *c, double error, double bound, const char *fmt, ...) {
    double share = error == 0 ? 0 : error / bound;
    if (!(share <= 1)) {
        va_list ap;
        va_start(ap, fmt);
        report(c, fmt, ap);
        va_end(ap);
    }
    if (share > c->worst) c->worst = share;
}

void ck_same(ck *c, const void *a, const void *b, size_t n_bytes, const char *what) {
    if (memcmp(a, b, n_bytes) == 0) return;
    size_t i = 0;
    while (((const uint8_t *)a)[i] == ((const uint8_t *)b)[i]) i++;
    ck_fail(c, "%s: bytes differ from byte %zu of %zu on", what, i, n_bytes);
}

ck_buf ck_buf_new(size_t n_bytes, size_t skew) {
    ck_buf b = {.n_bytes = n_bytes, .skew = skew};
    size_t total = (2 * GUARD + skew + n_bytes + 63) & ~(size_t)63;
    b.base = aligned_alloc(64, total);
    if (!b.base) {
        fprintf(stderr, "check: no memory for %zu bytes\n", total);
        exit(1);
    }
    memset(b.base, 0xff, total);
    b.p = b.base + GUARD + skew;
    return b;
}

void ck_buf_check(ck *c, const ck_buf *b, const char *what) {
    size_t before = GUARD + b->skew, after = before + b->n_bytes, end = (2 * GUARD + b->skew + b->n_bytes + 63) & ~(size_t)63;
    for (size_t i = 0; i < end; i++) {
        if (i == before) i = after;
        if (b->base[i] == 0xff) continue;
        ck_fail(c, "%s: wrote %lld bytes %s its end", what, i < before ? (long long)(before - i) : (long long)(i - after + 1),
                i < before ? "before its beginning, not" : "behind");
        return;
    }
}

void ck_buf_free(ck_buf *b) {
    free(b->base);
    b->base = NULL;
}

int64_t ck_int(ck *c, int64_t lo, int64_t hi) { return lo + (int64_t)(oz_rng_next(&c->rng) % (uint64_t)(hi - lo + 1)); }

void ck_block_scales(ck *c, oz_dtype d, uint8_t *block) {
    static const struct { int8_t scale; bool has_min; uint8_t at; } places[OZ_DTYPE_COUNT] = {
        [OZ_DTYPE_Q8_0] = {1, false, 0},  [OZ_DTYPE_Q4_0] = {1, false, 0},  [OZ_DTYPE_Q4_1] = {1, true, 0},  [OZ_DTYPE_Q5_0] = {1, false, 0},   [OZ_DTYPE_Q5_1] = {1, true, 0},
        [OZ_DTYPE_Q2_K] = {1, true, 80},  [OZ_DTYPE_Q3_K] = {1, false, 108}, [OZ_DTYPE_Q4_K] = {1, true, 0}, [OZ_DTYPE_Q5_K] = {1, true, 0},    [OZ_DTYPE_Q6_K] = {1, false, 208},
        [OZ_DTYPE_IQ4_NL] = {1, false, 0}, [OZ_DTYPE_IQ4_XS] = {1, false, 0}};
    const uint16_t h[2] = {oz_f16_from_f32((float)oz_rng_normal(&c->rng) * 0.01f), oz_f16_from_f32((float)oz_rng_normal(&c->rng))};
    if (d == OZ_DTYPE_MXFP4) block[0] = (uint8_t)ck_int(c, 115, 130);
    else memcpy(block + places[d].at, h, places[d].has_min ? 4 : 2);
}

void ck_fill(ck *c, float *x, int64_t n, ck_pattern p) {
    for (int64_t i = 0; i < n; i++) {
        double v = oz_rng_normal(&c->rng);
        switch (p) {
        case CK_ZERO: x[i] = 0; break;
        case CK_SIGNED_ZERO: x[i] = v < 0 ? -0.0f : 0.0f; break;
        case CK_LARGE: x[i] = (float)(v * 1e12); break;
        case CK_TINY: x[i] = (float)(v * (i % 2 ? 1e-41 : 1e-28)); break; /* subnormals among them */
        case CK_INTEGER: x[i] = (float)ck_int(c, -127, 127); break;
        default: x[i] = (float)v; break;
        }
    }
    if (p == CK_SPIKE && n > 0) x[ck_int(c, 0, n - 1)] = 3000;
}

double ck_ulp(float a, double want) {
    if (isnan(a) && isnan(want)) return 0;
    if ((double)a == want || (isinf(a) && a == (float)want)) return 0;
    int e;
    frexp(want, &e);
    double unit = ldexp(1, e - 24 < -149 ? -149 : e - 24);
    double d = fabs(a - want) / unit;
    return isnan(d) ? INFINITY : d;
}
