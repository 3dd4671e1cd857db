/* Another device beside the CPU's `ref`: every operation of its table, and every row of its list of products, on the same inputs.
 *   check --device cuda
 * What both define exactly (codes, layouts, gathered rows) is compared bit by bit. Sums are compared with f64: u is the rounding of the sums (f32, or
 * the matrix units' f32, which truncate), K their length. Where the device expands a grouped weight to 16 bits for many rows, that rounding is
 * in the bound. In deterministic mode a token alone and in company must give the same bits. */
#include "device.h"
#include "latent.h"
#include "kernel/step.h"

/* ---- device memory with guards ---- */

enum { GUARD = 256 };
typedef struct dbuf { uint8_t *base; void *p; size_t n_bytes; } dbuf;

static dbuf dbuf_new(dck *k, size_t n_bytes, const void *host) {
    dbuf b = {.n_bytes = n_bytes};
    void *mem = NULL;
    if (k->ops->mem_new(&mem, k->dev, n_bytes + 2 * GUARD, "check", NULL) != OZ_OK) {
        fprintf(stderr, "check: no memory on the device\n");
        exit(1);
    }
    uint8_t *fill = malloc(n_bytes + 2 * GUARD);
    memset(fill, 0xff, n_bytes + 2 * GUARD);
    if (host) memcpy(fill + GUARD, host, n_bytes);
    k->ops->upload(k->dev, mem, fill, n_bytes + 2 * GUARD);
    free(fill);
    b.base = mem, b.p = b.base + GUARD;
    return b;
}

/* Back to the host (malloc), guards checked. */
static void *dbuf_take(dck *k, const dbuf *b, const char *what) {
    uint8_t *all = malloc(b->n_bytes + 2 * GUARD), *out = malloc(b->n_bytes + 1);
    k->ops->download(k->dev, all, b->base, b->n_bytes + 2 * GUARD);
    for (size_t i = 0; i < GUARD; i++)
        if (all[i] != 0xff || all[GUARD + b->n_bytes + i] != 0xff) {
            ck_fail(k->c, "%s: wrote outside its memory", what);
            break;
        }
    memcpy(out, all + GUARD, b->n_bytes);
    free(all);
    return out;
}
static void dbuf_free(dck *k, dbuf *b) { k->ops->mem_free(k->dev, b->base); }

static float *floats(ck *c, int64_t n, ck_pattern p) {
    float *x = oz_alloc_array((size_t)n + 1, sizeof *x);
    ck_fill(c, x, n, p);
    return x;
}

static void ended(dck *k) {
    oz_err err = {0};
    if (k->ops->end(k->dev, &err) != OZ_OK) ck_fail(k->c, "%s", err.msg);
}

/* ---- products ---- */

typedef struct weight { oz_weight w; void *codes, *scales, *zeros; int32_t *order; float *dense; } weight;

static void weight_make(ck *c, weight *x, oz_codec codec, int64_t rows, int64_t cols, int64_t group, bool ordered) {
    const oz_codec_info *info = oz_codec_get(codec);
    *x = (weight){.w = {.codec = codec, .rows = rows, .cols = cols, .group_size = group ? group : cols, .row_bytes = oz_codec_row_bytes(codec, cols)}};
    uint8_t *codes = oz_alloc_array((size_t)rows, (size_t)x->w.row_bytes);
    float *row = oz_alloc_array((size_t)cols, sizeof *row);
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *out = codes + r * x->w.row_bytes;
        ck_fill(c, row, cols, CK_NORMAL);
        if (info->plain && info->is_float && info->dtype <= OZ_DTYPE_BF16) {
            oz_from_f32(out, info->dtype, row, cols);
            continue;
        }
        for (int64_t i = 0; i < x->w.row_bytes; i++) {
            out[i] = (uint8_t)oz_rng_next(&c->rng);
            if (codec == OZ_CODEC_F8E4M3 && (out[i] & 0x7f) == 0x7f) out[i] ^= 1; /* no NaN */
        }
        const oz_dtype_info *t = oz_dtype_get(info->dtype);
        for (int64_t b = 0; info->plain && b < cols / t->block_elems; b++) ck_block_scales(c, info->dtype, out + b * t->block_bytes);
    }
    oz_free(row);
    x->codes = codes, x->w.codes = codes;
    if (!info->plain) {
        const int64_t n = rows * oz_weight_groups(&x->w);
        float *s = oz_alloc_array((size_t)n, sizeof *s);
        for (int64_t i = 0; i < n; i++) s[i] = (float)fabs(oz_rng_normal(&c->rng)) * 0.01f + 1e-4f;
        x->scales = s, x->w.scales = s, x->w.scale_dtype = OZ_DTYPE_F32;
    }
    if (ordered) {
        x->w.order = x->order = oz_alloc_array((size_t)cols, sizeof *x->order);
        for (int64_t i = 0; i < cols; i++) {
            const int64_t j = ck_int(c, 0, i);
            x->order[i] = x->order[j], x->order[j] = (int32_t)i;
        }
    }
    x->dense = oz_alloc_array((size_t)(rows * cols), sizeof(float));
    row = oz_alloc_array((size_t)cols, sizeof *row);
    for (int64_t r = 0; r < rows; r++) {
        oz_weight_row(row, &x->w, r, 0, cols);
        for (int64_t i = 0; i < cols; i++) x->dense[r * cols + (ordered ? x->order[i] : i)] = row[i];
    }
    oz_free(row);
}
static void weight_free(weight *x) {
    oz_free(x->codes), oz_free(x->scales), oz_free(x->order), oz_free(x->dense);
}

/* Rows of activations in a form: what the device gets, and the numbers that it means. */
typedef struct acts { dbuf data, scales; float *value; oz_rows rows; } acts;

static void acts_make(dck *k, acts *a, oz_form form, int64_t n_tok, int64_t cols) {
    const int64_t ld = (cols + 15) / 16 * 16 + 16 * ck_int(k->c, 0, 2), size = k->ops->form_bytes(form);
    uint8_t *raw = oz_alloc_array((size_t)(n_tok * ld), (size_t)size);
    memset(raw, 0xff, (size_t)(n_tok * ld * size)); /* NaN between the rows */
    float *x = floats(k->c, n_tok * cols, CK_NORMAL), *s = oz_alloc_array((size_t)n_tok, sizeof *s);
    for (int64_t t = 0; t < n_tok; t++) {
        float *v = x + t * cols;
        uint8_t *out = raw + t * ld * size;
        s[t] = 1;
        if (form == OZ_FORM_Q8) s[t] = oz_act_i8((int8_t *)out, v, cols);
        if (form == OZ_FORM_F8) s[t] = oz_act_e4m3(out, v, cols);
        for (int64_t i = 0; i < cols; i++) {
            uint16_t h = form == OZ_FORM_BF16 ? oz_bf16_from_f32(v[i]) : oz_f16_from_f32(v[i]);
            if (form == OZ_FORM_F32) memcpy(out + 4 * i, &v[i], 4);
            else if (form == OZ_FORM_Q8) v[i] = (float)((int8_t *)out)[i] * s[t];
            else if (form == OZ_FORM_F8) v[i] = oz_f32_from_e4m3(out[i]) * s[t];
            else memcpy(out + 2 * i, &h, 2), v[i] = form == OZ_FORM_BF16 ? oz_f32_from_bf16(h) : oz_f32_from_f16(h);
        }
    }
    a->value = x;
    a->data = dbuf_new(k, (size_t)(n_tok * ld * size), raw);
    a->scales = dbuf_new(k, (size_t)n_tok * 4, s);
    a->rows = (oz_rows){form, a->data.p, ld, form == OZ_FORM_Q8 || form == OZ_FORM_F8 ? a->scales.p : NULL};
    oz_free(raw), oz_free(s);
}
static void acts_free(dck *k, acts *a) {
    dbuf_free(k, &a->data), dbuf_free(k, &a->scales);
    oz_free(a->value);
}

static void outputs_check(dck *k, const weight *w, const acts *a, const float *bias, const float *y, int64_t ld, int64_t n_tok, double rel) {
    const int64_t cols = w->w.cols;
    for (int64_t t = 0; t < n_tok; t++)
        for (int64_t r = 0; r < w->w.rows; r++) {
            double want = bias ? bias[r] : 0, mag = fabs(want);
            for (int64_t i = 0; i < cols; i++) {
                const double p = (double)w->dense[r * cols + i] * a->value[t * cols + i];
                want += p, mag += fabs(p);
            }
            ck_bound(k->c, fabs(y[t * ld + r] - want), (0x1p-22 * sqrt((double)cols) + 0x1p-20 + rel) * mag, "[%lld, %lld] token %lld of %lld, row %lld: expected %.9g, found %.9g", (long long)w->w.rows,
                     (long long)cols, (long long)t, (long long)n_tok, (long long)r, want, y[t * ld + r]);
        }
}

typedef struct product { oz_codec codec; oz_form form; int64_t group; } product;
enum { MAX_TOK = 20 };

/* Which row of the list runs a packed weight: its kernel's name ends in the row for up to 8 tokens and, if another, "over 8 rows" the one for more. */
static const char *const product_rows[] = {"stream", "lt", "expand_lt", "plain", "gathered"};
static void row_met(dck *k, const oz_packed *p, int64_t n_tok) {
    const char *name = oz_packed_kernel(p), *few = strchr(name, ' '), *many = strstr(name, ", over "), *at = n_tok > 8 && many ? strrchr(many, ' ') : few;
    const size_t n = at ? strcspn(at + 1, ",") : 0;
    for (int i = 0; i < CK_COUNT(product_rows) && at; i++)
        if (strlen(product_rows[i]) == n && strncmp(product_rows[i], at + 1, n) == 0) {
            k->met |= 1u << i;
            return;
        }
    ck_fail(k->c, "\"%s\" names no row that is known here", name);
}

/* Two parts and a bias on the first; a number of tokens on each side of every bucket. */
static void product_case(dck *k, const product *p, int64_t cols, int64_t n_tok, bool ordered) {
    weight w[2];
    oz_packed *packed[2] = {NULL, NULL};
    const int64_t rows[2] = {16 * ck_int(k->c, 1, 5), p->form == OZ_FORM_F32 ? ck_int(k->c, 1, 70) : 16 * ck_int(k->c, 1, 3) + (n_tok <= 8 || ck_int(k->c, 0, 3) == 0 ? ck_int(k->c, 0, 15) : 0)};
    oz_err err = {0};
    bool good = true;
    for (int i = 0; i < 2; i++) {
        weight_make(k->c, &w[i], p->codec, rows[i], cols, p->group, ordered);
        if (k->ops->pack(&packed[i], k->dev, &w[i].w, 0, rows[i], p->form, &err) != OZ_OK) ck_fail(k->c, "pack: %s", err.msg), good = false;
    }
    const int64_t ld = rows[0] + rows[1] + ck_int(k->c, 0, 2) * 4;
    float *bias = floats(k->c, rows[0], CK_NORMAL);
    dbuf b = dbuf_new(k, (size_t)rows[0] * 4, bias), y = dbuf_new(k, (size_t)((n_tok - 1) * ld + rows[0] + rows[1]) * 4, NULL);
    acts a;
    acts_make(k, &a, p->form, n_tok, cols);
    const float *biases[2] = {b.p, NULL};
    oz_linear_args args = {(const oz_packed *const *)packed, biases, 2, a.rows, y.p, ld, n_tok};
    if (good) {
        k->ops->linear(k->dev, &args);
        ended(k);
        for (int i = 0; i < 2; i++) row_met(k, packed[i], n_tok);
        float *got = dbuf_take(k, &y, "output");
        const bool rounds = !k->deterministic && n_tok > 8 && p->form >= OZ_FORM_BF16 && p->group; /* expanded to 16 bits */
        outputs_check(k, &w[0], &a, bias, got, ld, n_tok, rounds ? 0x1p-8 : 0);
        outputs_check(k, &w[1], &a, NULL, got + rows[0], ld, n_tok, rounds ? 0x1p-8 : 0);
        if (k->deterministic || n_tok <= 8) { /* the last token alone */
            args.n_tok = 1;
            args.x.data = (uint8_t *)a.rows.data + (n_tok - 1) * a.rows.ld * k->ops->form_bytes(p->form);
            if (args.x.scales) args.x.scales += n_tok - 1;
            k->ops->linear(k->dev, &args);
            float *alone = dbuf_take(k, &y, "output");
            ck_same(k->c, alone, got + (n_tok - 1) * ld, (size_t)(rows[0] + rows[1]) * 4, "a token alone and in company");
            free(alone);
        }
        free(got);
    }
    acts_free(k, &a);
    dbuf_free(k, &b), dbuf_free(k, &y);
    oz_free(bias);
    for (int i = 0; i < 2; i++) {
        if (packed[i]) k->ops->packed_free(k->dev, &packed[i]);
        weight_free(&w[i]);
    }
    k->c->n_cases++;
}

static void products(dck *k) {
    static const product list[] = {
        {OZ_CODEC_F32, OZ_FORM_F32, 0},    {OZ_CODEC_F16, OZ_FORM_F32, 0},    {OZ_CODEC_BF16, OZ_FORM_F32, 0},    {OZ_CODEC_I8, OZ_FORM_F32, 0},      {OZ_CODEC_I8P, OZ_FORM_F32, 0},
        {OZ_CODEC_I4P, OZ_FORM_F32, 64},   {OZ_CODEC_I4P, OZ_FORM_F32, 128},  {OZ_CODEC_F8E4M3, OZ_FORM_F32, 0},  {OZ_CODEC_Q8_0, OZ_FORM_F32, 0},    {OZ_CODEC_Q4_0, OZ_FORM_F32, 0},
        {OZ_CODEC_Q4_1, OZ_FORM_F32, 0},   {OZ_CODEC_BF16, OZ_FORM_BF16, 0},  {OZ_CODEC_F16, OZ_FORM_F16, 0},     {OZ_CODEC_I8, OZ_FORM_BF16, 0},     {OZ_CODEC_I8, OZ_FORM_F16, 0},
        {OZ_CODEC_I8P, OZ_FORM_BF16, 32},  {OZ_CODEC_I8P, OZ_FORM_BF16, 64},  {OZ_CODEC_I8P, OZ_FORM_BF16, 128},  {OZ_CODEC_I8P, OZ_FORM_F16, 32},    {OZ_CODEC_I8P, OZ_FORM_F16, 64},
        {OZ_CODEC_I4P, OZ_FORM_BF16, 0},   {OZ_CODEC_I4P, OZ_FORM_BF16, 32},  {OZ_CODEC_I4P, OZ_FORM_BF16, 64},   {OZ_CODEC_I4P, OZ_FORM_BF16, 128},  {OZ_CODEC_I4P, OZ_FORM_BF16, 256},
        {OZ_CODEC_I4P, OZ_FORM_F16, 0},    {OZ_CODEC_I4P, OZ_FORM_F16, 32},   {OZ_CODEC_I4P, OZ_FORM_F16, 64},    {OZ_CODEC_I4P, OZ_FORM_F16, 128},   {OZ_CODEC_Q8_0, OZ_FORM_BF16, 32},
        {OZ_CODEC_Q4_0, OZ_FORM_BF16, 32}, {OZ_CODEC_Q4_1, OZ_FORM_BF16, 32}, {OZ_CODEC_F8E4M3, OZ_FORM_BF16, 0}, {OZ_CODEC_F8E4M3, OZ_FORM_F16, 0},  {OZ_CODEC_I8, OZ_FORM_Q8, 0},
        {OZ_CODEC_F8E4M3, OZ_FORM_F8, 0}};
    static const product ordered[] = {{OZ_CODEC_I4P, OZ_FORM_BF16, 128}, {OZ_CODEC_I8P, OZ_FORM_F32, 64}, {OZ_CODEC_I8, OZ_FORM_Q8, 0}, {OZ_CODEC_I4P, OZ_FORM_F16, 32}};
    static const int64_t cols[] = {32, 64, 96, 128, 576, 1024, 1536, 4160}, toks[] = {1, 2, 7, 8, 9, MAX_TOK};
    for (int i = 0; i < CK_COUNT(list); i++)
        for (int t = 0; t < CK_COUNT(toks); t++)
            for (int n = 0; n < 3; n++)
                if (!ck_skip(k->c)) product_case(k, &list[i], cols[ck_int(k->c, 0, CK_COUNT(cols) - 1)], toks[t], false);
    for (int i = 0; i < CK_COUNT(ordered); i++)
        for (int t = 0; t < CK_COUNT(toks); t++)
            if (!ck_skip(k->c)) product_case(k, &ordered[i], cols[ck_int(k->c, 0, CK_COUNT(cols) - 1)], toks[t], true);
    const product any = {OZ_CODEC_BF16, OZ_FORM_F32, 0}, odd = {OZ_CODEC_I8, OZ_FORM_BF16, 0};
    for (int n = 0; n < 10; n++)
        if (!ck_skip(k->c)) product_case(k, &any, ck_int(k->c, 1, 300), ck_int(k->c, 1, MAX_TOK), false);
    for (int n = 0; n < 10; n++)
        if (!ck_skip(k->c)) product_case(k, &odd, 8 * ck_int(k->c, 1, 90), ck_int(k->c, 1, MAX_TOK), false);
    for (int i = 0; i < CK_COUNT(product_rows) && !k->deterministic && !k->c->quiet && k->c->every <= 1; i++)
        if (!(k->met >> i & 1)) ck_fail(k->c, "no case ran the row \"%s\"", product_rows[i]);
}

/* ---- rows ---- */

typedef struct rows_case { int64_t n_tok, n_vec, dim, n, ld, nan_at; float *x, *x2, *w, *cs, *sn; } rows_case;

static void compare(dck *k, const dbuf *got_dev, const float *want, int64_t n_tok, int64_t ld, int64_t n, double ulp, double abs_slack, const char *what) {
    float *got = dbuf_take(k, got_dev, what);
    for (int64_t t = 0; t < n_tok; t++)
        for (int64_t i = 0; i < n; i++)
            ck_bound(k->c, fabs((double)got[t * ld + i] - want[t * ld + i]), ulp * 0x1p-24 * fabs(want[t * ld + i]) + abs_slack + 0x1p-149, "%s [%lld, %lld]: expected %.9g, found %.9g", what, (long long)t, (long long)i,
                     want[t * ld + i], got[t * ld + i]);
    free(got);
}

static void quantize_case(dck *k, const rows_case *r, const dbuf *x, oz_form form) {
    const int size = k->ops->form_bytes(form);
    dbuf q = dbuf_new(k, (size_t)(r->n_tok * r->ld * size), NULL), s = dbuf_new(k, (size_t)r->n_tok * 4, NULL);
    const oz_rows y = {form, q.p, r->ld, s.p};
    k->ops->quantize(k->dev, &y, x->p, r->ld, r->n_tok, r->n);
    if (isnan(r->x[r->nan_at]) && form != OZ_FORM_Q8 && form != OZ_FORM_F8) { /* a NaN's bits are not defined */
        dbuf_free(k, &q), dbuf_free(k, &s);
        return;
    }
    uint8_t *codes = dbuf_take(k, &q, "codes"), *want = oz_alloc((size_t)(r->n * size));
    float *scales = dbuf_take(k, &s, "scales");
    for (int64_t t = 0; t < r->n_tok; t++) {
        const float *v = r->x + t * r->ld;
        float scale = scales[t];
        if (form == OZ_FORM_Q8) scale = oz_act_i8((int8_t *)want, v, r->n);
        else if (form == OZ_FORM_F8) scale = oz_act_e4m3(want, v, r->n);
        else for (int64_t i = 0; i < r->n; i++) ((uint16_t *)want)[i] = form == OZ_FORM_BF16 ? oz_bf16_from_f32(v[i]) : oz_f16_from_f32(v[i]);
        if ((form == OZ_FORM_Q8 || form == OZ_FORM_F8) && ck_ulp(scales[t], scale) > 0) ck_fail(k->c, "scale: expected %.9g, found %.9g", scale, scales[t]);
        ck_same(k->c, codes + t * r->ld * size, want, (size_t)(r->n * size), "codes");
    }
    free(codes), free(scales), oz_free(want);
    dbuf_free(k, &q), dbuf_free(k, &s);
}

/* Inputs rounded to values, in place and elsewhere: static and dynamic, int and float, whole rows and groups. */
static void round_case(dck *k, const rows_case *r, const dbuf *x, oz_round q) {
    const int64_t total = r->n_tok * r->ld, groups = q.group_size ? (r->n + q.group_size - 1) / q.group_size : 1;
    float *want = oz_alloc_array((size_t)total, sizeof *want), *scales = floats(k->c, groups, CK_NORMAL), *zeros = oz_alloc_array((size_t)groups, sizeof *zeros);
    for (int64_t g = 0; g < groups; g++) scales[g] = fabsf(scales[g]) * 0.02f + 1e-3f, zeros[g] = q.symmetric ? 0 : (float)ck_int(k->c, -20, 20);
    if (q.scales) q.scales = scales, q.zeros = q.symmetric ? NULL : zeros;
    dbuf y = dbuf_new(k, (size_t)total * 4, r->x);
    k->ops->round(k->dev, y.p, r->ld, ck_int(k->c, 0, 1) ? x->p : y.p, r->ld, r->n_tok, r->n, &q);
    float *got = dbuf_take(k, &y, "rounded");
    for (int64_t t = 0; t < r->n_tok; t++) {
        oz_act_round(want, r->x + t * r->ld, r->n, &q);
        for (int64_t i = 0; i < r->n; i++)
            if (isnan(want[i]) ? !isnan(got[t * r->ld + i]) : got[t * r->ld + i] != want[i])
                ck_fail(k->c, "round to %d bits, %s %s groups of %lld, [%lld, %lld]: expected %.9g, found %.9g", q.bits, q.is_float ? "float" : "int", q.scales ? "static" : "dynamic", (long long)q.group_size, (long long)t,
                        (long long)i, want[i], got[t * r->ld + i]);
    }
    free(got);
    dbuf_free(k, &y);
    oz_free(want), oz_free(scales), oz_free(zeros);
}

static void rounds(dck *k, const rows_case *r, const dbuf *x) {
    static const float given;
    static const oz_round list[] = {{8, false, true, 0, NULL, NULL, false}, {8, false, false, 0, NULL, NULL, false}, {4, false, true, 16, NULL, NULL, false}, {8, true, true, 0, NULL, NULL, false}, {8, true, true, 3, NULL, NULL, false}, {8, true, true, 16, NULL, NULL, true},
                                    {8, false, true, 0, &given, NULL, false}, {8, false, false, 7, &given, NULL, false}, {8, true, true, 0, &given, NULL, false}, {8, true, true, 64, &given, NULL, false}, {5, false, false, 1, NULL, NULL, false}};
    for (int i = 0; i < CK_COUNT(list); i++) round_case(k, r, x, list[i]);
}

static void rows_run(dck *k) {
    for (int i = 0; i < 40; i++) {
        if (ck_skip(k->c)) continue;
        k->c->n_cases++;
        ck *c = k->c;
        rows_case r = {.n_tok = ck_int(c, 1, 20), .n_vec = ck_int(c, 1, 9), .dim = 2 * ck_int(c, 1, i % 4 ? 70 : 1300)};
        r.n = r.n_vec * r.dim, r.ld = r.n + ck_int(c, 0, 3);
        const int64_t total = r.n_tok * r.ld;
        r.x = floats(c, total, i % 3 == 2 ? CK_SPIKE : CK_NORMAL), r.x2 = floats(c, total, CK_NORMAL), r.w = floats(c, r.dim, CK_NORMAL);
        r.cs = floats(c, r.n_tok * r.dim, CK_NORMAL), r.sn = floats(c, r.n_tok * r.dim, CK_NORMAL);
        r.nan_at = ck_int(c, 0, r.n - 1);
        if (i % 11 == 3) r.x[r.nan_at] = NAN;
        float *want = oz_alloc_array((size_t)total, sizeof *want);
        dbuf x = dbuf_new(k, (size_t)total * 4, r.x), x2 = dbuf_new(k, (size_t)total * 4, r.x2), w = dbuf_new(k, (size_t)r.dim * 4, r.w), y = dbuf_new(k, (size_t)total * 4, NULL);
        dbuf cs = dbuf_new(k, (size_t)(r.n_tok * r.dim) * 4, r.cs), sn = dbuf_new(k, (size_t)(r.n_tok * r.dim) * 4, r.sn);
        for (int f = OZ_FORM_Q8; f < OZ_FORM_COUNT; f++) quantize_case(k, &r, &x, (oz_form)f);
        rounds(k, &r, &x);
        if (i % 11 != 3) {
            k->ref_ops->norm(k->ref, want, r.ld, r.x, r.ld, r.w, r.n_tok, r.n_vec, r.dim, 1e-5f);
            k->ops->norm(k->dev, y.p, r.ld, x.p, r.ld, w.p, r.n_tok, r.n_vec, r.dim, 1e-5f);
            compare(k, &y, want, r.n_tok, r.ld, r.n, 16 + (double)r.dim / 8, 0, "norm");
            k->ops->upload(k->dev, y.p, want, (size_t)total * 4);
            k->ref_ops->rope(k->ref, want, r.ld, r.n_vec, r.dim, r.cs, r.sn, r.dim / 2, r.n_tok);
            k->ops->rope(k->dev, y.p, r.ld, r.n_vec, r.dim, cs.p, sn.p, r.dim / 2, r.n_tok);
            compare(k, &y, want, r.n_tok, r.ld, r.n, 4, 1e-5, "rope");
            k->ops->upload(k->dev, y.p, want, (size_t)total * 4);
            k->ref_ops->rope_pairs(k->ref, want, r.ld, r.n_vec, r.dim, r.cs, r.sn, r.dim / 2, r.n_tok);
            k->ops->rope_pairs(k->dev, y.p, r.ld, r.n_vec, r.dim, cs.p, sn.p, r.dim / 2, r.n_tok);
            compare(k, &y, want, r.n_tok, r.ld, r.n, 4, 1e-5, "rope of pairs");
            k->ref_ops->silu_mul(k->ref, want, r.ld, r.x, r.x2, r.ld, r.n_tok, r.n);
            k->ops->silu_mul(k->dev, y.p, r.ld, x.p, x2.p, r.ld, r.n_tok, r.n);
            compare(k, &y, want, r.n_tok, r.ld, r.n, 24, 1e-30, "silu_mul");
            k->ref_ops->gelu_mul(k->ref, want, r.ld, r.x, r.x2, r.ld, r.n_tok, r.n);
            k->ops->gelu_mul(k->dev, y.p, r.ld, x.p, x2.p, r.ld, r.n_tok, r.n);
            compare(k, &y, want, r.n_tok, r.ld, r.n, 400, 1e-30, "gelu_mul"); /* exp's argument is a cube, and exp's error grows with it */
            k->ops->upload(k->dev, y.p, want, (size_t)total * 4);
            k->ref_ops->scale(k->ref, want, r.ld, r.n_tok, r.n, 5.5f);
            k->ops->scale(k->dev, y.p, r.ld, r.n_tok, r.n, 5.5f);
            compare(k, &y, want, r.n_tok, r.ld, r.n, 0, 0, "scale");
            k->ref_ops->softcap(k->ref, want, r.ld, r.n_tok, r.n, 2.5f);
            k->ops->softcap(k->dev, y.p, r.ld, r.n_tok, r.n, 2.5f);
            compare(k, &y, want, r.n_tok, r.ld, r.n, 8, 1e-30, "softcap");
            k->ops->upload(k->dev, y.p, want, (size_t)total * 4);
            k->ref_ops->add(k->ref, want, r.ld, r.x, r.ld, r.n_tok, r.n);
            k->ops->add(k->dev, y.p, r.ld, x.p, r.ld, r.n_tok, r.n);
            compare(k, &y, want, r.n_tok, r.ld, r.n, 0, 0, "add");
        }
        ended(k);
        dbuf *all[] = {&x, &x2, &w, &y, &cs, &sn};
        for (int j = 0; j < CK_COUNT(all); j++) dbuf_free(k, all[j]);
        void *host[] = {r.x, r.x2, r.w, r.cs, r.sn, want};
        for (int j = 0; j < CK_COUNT(host); j++) oz_free(host[j]);
    }
}

/* ---- what reads the batch ---- */

enum { MAX_SEGS = 5, N_BLOCKS = 400 };
typedef struct batch { oz_batch b; oz_seg segs[MAX_SEGS]; int32_t blocks[N_BLOCKS], ids[256], rows[256]; } batch;

static void batch_make(ck *c, batch *x, int64_t vocab, bool decode) {
    memset(x, 0, sizeof *x);
    int64_t n_tok = 0, block = 0, n_segs = ck_int(c, 1, MAX_SEGS);
    for (int i = 0; i < N_BLOCKS; i++) x->blocks[i] = i;
    for (int i = N_BLOCKS - 1; i > 0; i--) {
        const int j = (int)ck_int(c, 0, i);
        const int32_t t = x->blocks[i];
        x->blocks[i] = x->blocks[j], x->blocks[j] = t;
    }
    for (int64_t s = 0; s < n_segs; s++) {
        oz_seg *g = &x->segs[s];
        *g = (oz_seg){n_tok, decode ? 1 : ck_int(c, 1, 40), ck_int(c, 0, decode ? 700 : 90), x->blocks + block};
        n_tok += g->n_tok, block += (g->pos0 + g->n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    }
    for (int64_t t = 0; t < n_tok; t++) x->ids[t] = (int32_t)ck_int(c, 0, vocab - 1), x->rows[t] = (int32_t)ck_int(c, 0, n_tok - 1);
    x->b = (oz_batch){x->ids, n_tok, x->segs, n_segs, NULL, x->rows, n_tok};
}

static void begun(dck *k, const batch *b) {
    oz_err err = {0};
    if (k->ops->begin(k->dev, &b->b, &err) != OZ_OK) ck_fail(k->c, "%s", err.msg);
    k->ref_ops->begin(k->ref, &b->b, NULL);
}

static void attention_case(dck *k, int i) {
    k->c->n_cases++;
    static const int64_t heads[][2] = {{1, 1}, {9, 3}, {4, 4}, {8, 1}, {6, 3}, {14, 2}, {32, 8}, {19, 1}}, dims[] = {8, 16, 64, 80, 128, 200, 256}, windows[] = {0, 0, 0, 1, 5, 64, 100};
    ck *c = k->c;
    const int h = (int)ck_int(c, 0, CK_COUNT(heads) - 1);
    const bool in_keys = heads[h][1] == 1 && i % 2; /* values are the first columns of keys, as of latents */
    const int64_t n_h = heads[h][0], n_kvh = heads[h][1], hd = in_keys && i % 4 == 1 ? 576 : dims[ck_int(c, 0, CK_COUNT(dims) - 1)], vdim = !in_keys ? hd : hd == 576 ? 512 : ck_int(c, 1, hd);
    const int64_t n_kv = n_kvh * hd, width = n_h * hd, out_width = n_h * vdim, kv_floats = N_BLOCKS * n_kv * OZ_KV_BLOCK;
    batch b;
    batch_make(c, &b, 10, i % 2);
    const int64_t n = b.b.n_tok;
    float *kh = floats(c, kv_floats, CK_NORMAL), *vh = floats(c, kv_floats, CK_NORMAL), *q = floats(c, n * width, CK_NORMAL), *rows = floats(c, n * 2 * n_kv, CK_NORMAL), *want = oz_alloc_array((size_t)(n * out_width), 4);
    dbuf kd = dbuf_new(k, (size_t)kv_floats * 4, kh), vd = dbuf_new(k, (size_t)kv_floats * 4, vh), qd = dbuf_new(k, (size_t)(n * width) * 4, q), rd = dbuf_new(k, (size_t)(n * 2 * n_kv) * 4, rows),
         out = dbuf_new(k, (size_t)(n * out_width) * 4, NULL);
    const oz_kv host = {kh, in_keys ? NULL : vh, n_kvh, hd, vdim, NULL, NULL}, dev = {kd.p, in_keys ? NULL : vd.p, n_kvh, hd, vdim, NULL, NULL};
    begun(k, &b);
    k->ref_ops->kv_write(k->ref, &host, rows, rows + n_kv, 2 * n_kv);
    k->ops->kv_write(k->dev, &dev, rd.p, (float *)rd.p + n_kv, 2 * n_kv);
    float *kk = dbuf_take(k, &kd, "keys"), *vv = dbuf_take(k, &vd, "values");
    ck_same(c, kk, kh, (size_t)kv_floats * 4, "keys");
    ck_same(c, vv, vh, (size_t)kv_floats * 4, "values");
    free(kk), free(vv);
    oz_attn_args a = {q, width, want, out_width, &host, n_h, (i % 5 ? 1.0f : 20.0f) / sqrtf((float)hd), windows[ck_int(c, 0, CK_COUNT(windows) - 1)], i % 3 == 1 ? 3.0f : 0.0f};
    k->ref_ops->attention(k->ref, &a);
    a.q = qd.p, a.out = out.p, a.kv = &dev;
    k->ops->attention(k->dev, &a);
    compare(k, &out, want, n, out_width, out_width, 64, i % 5 ? 2e-5 : 2e-4, "attention");
    float *all = dbuf_take(k, &out, "attention");
    ended(k);
    /* the last token alone: the same bits, however the keys are cut */
    batch one = b;
    const oz_seg *last = &b.segs[b.b.n_segs - 1];
    one.segs[0] = (oz_seg){0, 1, last->pos0 + last->n_tok - 1, last->blocks};
    one.b = (oz_batch){one.ids, 1, one.segs, 1, NULL, one.rows, 0};
    begun(k, &one);
    a.q = (float *)qd.p + (n - 1) * width;
    k->ops->attention(k->dev, &a);
    float *alone = dbuf_take(k, &out, "attention");
    ck_same(c, alone, all + (n - 1) * out_width, (size_t)out_width * 4, "a query alone and in company");
    ended(k);
    free(alone), free(all);
    dbuf *bufs[] = {&kd, &vd, &qd, &rd, &out};
    for (int j = 0; j < CK_COUNT(bufs); j++) dbuf_free(k, bufs[j]);
    void *hosts[] = {kh, vh, q, rows, want};
    for (int j = 0; j < CK_COUNT(hosts); j++) oz_free(hosts[j]);
}

/* Segments of many tokens, which may have a kernel of their own, between short ones. Spread: of the scores. */
typedef struct prefill { int64_t n_h, n_kvh, hd, vd, window; float softcap, spread; bool in_keys; int n; struct { int64_t pos0, n_tok; } at[4]; } prefill;
static const prefill prefills[] = {
    {4, 1, 64, 64, 0, 0, 1, false, 1, {{0, 333}}},
    {8, 8, 64, 64, 0, 0, 1, false, 2, {{0, 70}, {37, 100}}},
    {9, 3, 64, 64, 40, 0, 1, false, 3, {{0, 66}, {100, 90}, {5, 64}}},
    {6, 2, 128, 128, 0, 3, 1, false, 4, {{5, 3}, {0, 130}, {250, 66}, {1, 64}}},
    {8, 2, 128, 128, 100, 0, 1, false, 4, {{300, 75}, {0, 1}, {64, 65}, {700, 1}}},
    {8, 1, 128, 128, 0, 0, 20, false, 1, {{0, 310}}},
    {32, 8, 128, 128, 64, 2, 1, false, 1, {{31, 97}}},
    {1, 1, 128, 128, 0, 0, 1, false, 1, {{0, 400}}},
    {3, 1, 96, 96, 0, 0, 1, false, 2, {{17, 129}, {0, 80}}},
    {4, 4, 80, 80, 1, 0, 1, false, 1, {{0, 80}}},
    {8, 2, 256, 256, 33, 2, 1, false, 2, {{31, 95}, {0, 66}}},
    {2, 2, 256, 256, 0, 0, 1, false, 1, {{0, 200}}},
    {4, 4, 192, 128, 0, 0, 1, false, 1, {{100, 130}}},
    {2, 1, 200, 100, 0, 0, 1, false, 1, {{0, 70}}},
    {5, 1, 128, 50, 0, 0, 1, true, 1, {{0, 70}}},
    {7, 1, 8, 8, 64, 0, 1, false, 1, {{70, 70}}},
    {4, 2, 66, 66, 0, 0, 1, false, 1, {{0, 90}}},
    {2, 1, 320, 320, 0, 0, 1, false, 1, {{0, 70}}}};

/* NaN where no query may look; the last token of a segment is NaN too, which is seen by itself alone. What lies before a window is NaN up to a multiple of 64 keys: such a piece may be multiplied by zero. */
static void prefill_fill(ck *c, const prefill *r, const oz_seg *g, const oz_kv *kv) {
    for (int64_t pos = r->window && g->pos0 >= r->window ? (g->pos0 - r->window + 1) / 64 * 64 : 0; pos < g->pos0 + g->n_tok - (g->n_tok > 1); pos++)
        for (int64_t h = 0; h < r->n_kvh; h++) {
            const int64_t row = (g->blocks[pos / OZ_KV_BLOCK] * r->n_kvh + h) * OZ_KV_BLOCK + pos % OZ_KV_BLOCK;
            ck_fill(c, kv->k + row * r->hd, r->hd, CK_NORMAL);
            if (kv->v) ck_fill(c, kv->v + row * r->vd, r->vd, CK_NORMAL);
        }
}

/* The long segment s from `skip` tokens on, alone: what its tokens get has the same bits, wherever in a tile they are. */
static void prefill_moved(dck *k, oz_attn_args a, const oz_seg *s, int64_t skip, const dbuf *out, const float *all) {
    const oz_seg moved = {0, s->n_tok - skip, s->pos0 + skip, s->blocks};
    const oz_batch b = {.n_tok = moved.n_tok, .segs = &moved, .n_segs = 1};
    if (k->ops->begin(k->dev, &b, NULL) != OZ_OK) ck_fail(k->c, "begin failed");
    a.q += (s->tok0 + skip) * a.ld_q;
    k->ops->attention(k->dev, &a);
    float *part = dbuf_take(k, out, "attention");
    const int64_t n = moved.n_tok > 1 ? moved.n_tok - 1 : 0; /* not the NaN, whose bits are not defined */
    ck_same(k->c, part, all + (s->tok0 + skip) * a.ld_out, (size_t)(n * a.ld_out) * 4, "a prefill from another token on");
    free(part);
    ended(k);
}

static void prefill_case(dck *k, const prefill *r) {
    ck *c = k->c;
    c->n_cases++;
    oz_seg segs[4];
    int32_t blocks[256];
    int64_t n = 0, n_blocks = 1, longest = 0; /* block 0 is nobody's */
    for (int s = 0; s < r->n; s++) {
        segs[s] = (oz_seg){n, r->at[s].n_tok, r->at[s].pos0, blocks + n_blocks};
        n += segs[s].n_tok, n_blocks += (segs[s].pos0 + segs[s].n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
        if (segs[s].n_tok > segs[longest].n_tok) longest = s;
    }
    for (int64_t i = 0; i < n_blocks; i++) blocks[i] = (int32_t)i;
    for (int64_t i = n_blocks - 1; i > 0; i--) {
        const int64_t j = ck_int(c, 1, i);
        const int32_t t = blocks[i];
        blocks[i] = blocks[j], blocks[j] = t;
    }
    const int64_t width = r->n_h * r->hd, out_width = r->n_h * r->vd, rows = n_blocks * r->n_kvh * OZ_KV_BLOCK;
    const size_t k_bytes = (size_t)(rows * r->hd) * 4, v_bytes = (size_t)(rows * r->vd) * 4;
    float *kh = oz_alloc(k_bytes), *vh = oz_alloc(v_bytes), *q = floats(c, n * width, CK_NORMAL), *want = oz_alloc_array((size_t)(n * out_width), 4);
    memset(kh, 0xff, k_bytes), memset(vh, 0xff, v_bytes);
    for (int64_t i = 0; i < n * width; i++) q[i] *= r->spread;
    const oz_kv host = {kh, r->in_keys ? NULL : vh, r->n_kvh, r->hd, r->vd, NULL, NULL};
    for (int s = 0; s < r->n; s++) prefill_fill(c, r, &segs[s], &host);
    dbuf kd = dbuf_new(k, k_bytes, kh), vd = dbuf_new(k, v_bytes, vh), qd = dbuf_new(k, (size_t)(n * width) * 4, q), out = dbuf_new(k, (size_t)(n * out_width) * 4, NULL);
    const oz_kv dev = {kd.p, r->in_keys ? NULL : vd.p, r->n_kvh, r->hd, r->vd, NULL, NULL};
    const oz_batch b = {.n_tok = n, .segs = segs, .n_segs = r->n};
    if (k->ops->begin(k->dev, &b, NULL) != OZ_OK) ck_fail(c, "begin failed");
    k->ref_ops->begin(k->ref, &b, NULL);
    oz_attn_args a = {q, width, want, out_width, &host, r->n_h, 1 / sqrtf((float)r->hd), r->window, r->softcap};
    k->ref_ops->attention(k->ref, &a);
    a.q = qd.p, a.out = out.p, a.kv = &dev;
    k->ops->attention(k->dev, &a);
    float *all = dbuf_take(k, &out, "attention");
    ended(k);
    for (int64_t i = 0; i < n * out_width; i++) {
        if (isnan(want[i]) && isnan(all[i])) continue;
        ck_bound(c, fabs((double)all[i] - want[i]), 64 * 0x1p-24 * fabs(want[i]) + (r->spread > 1 ? 2e-4 : 2e-5), "prefill of heads %lld/%lld of %lld, row %lld [%lld]: expected %.9g, found %.9g", (long long)r->n_h,
                 (long long)r->n_kvh, (long long)r->hd, (long long)(i / out_width), (long long)(i % out_width), want[i], all[i]);
    }
    prefill_moved(k, a, &segs[longest], 3, &out, all);
    if (k->deterministic) prefill_moved(k, a, &segs[longest], segs[longest].n_tok - 2, &out, all); /* decoded, too */
    free(all);
    dbuf *bufs[] = {&kd, &vd, &qd, &out};
    for (int j = 0; j < CK_COUNT(bufs); j++) dbuf_free(k, bufs[j]);
    void *hosts[] = {kh, vh, q, want};
    for (int j = 0; j < CK_COUNT(hosts); j++) oz_free(hosts[j]);
}

static void attention_run(dck *k) {
    for (int i = 0; i < 40; i++)
        if (!ck_skip(k->c)) attention_case(k, i);
    for (int i = 0; i < CK_COUNT(prefills); i++)
        if (!ck_skip(k->c)) prefill_case(k, &prefills[i]);
}

/* Keys and values expanded from latents: where they go, and attention whose values have a width of their own. */
static void mla_case(dck *k) {
    ck *c = k->c;
    const int64_t n_h = ck_int(c, 1, 9), own = ck_int(c, 1, 70), n_rope = 2 * ck_int(c, 1, 20), vdim = ck_int(c, 1, 150), hd = own + n_rope, each = own + vdim, ld = n_h * each + n_rope + ck_int(c, 0, 3);
    batch b;
    batch_make(c, &b, 10, false);
    k->c->n_cases++;
    const int64_t n = b.b.n_tok, k_floats = N_BLOCKS * n_h * hd * OZ_KV_BLOCK, v_floats = N_BLOCKS * n_h * vdim * OZ_KV_BLOCK;
    float *kh = floats(c, k_floats, CK_NORMAL), *vh = floats(c, v_floats, CK_NORMAL), *rows = floats(c, n * ld, CK_NORMAL), *q = floats(c, n * n_h * hd, CK_NORMAL), *want = oz_alloc_array((size_t)(n * n_h * vdim), 4);
    dbuf kd = dbuf_new(k, (size_t)k_floats * 4, kh), vd = dbuf_new(k, (size_t)v_floats * 4, vh), rd = dbuf_new(k, (size_t)(n * ld) * 4, rows), qd = dbuf_new(k, (size_t)(n * n_h * hd) * 4, q),
         out = dbuf_new(k, (size_t)(n * n_h * vdim) * 4, NULL);
    const oz_kv host = {kh, vh, n_h, hd, vdim, NULL, NULL}, dev = {kd.p, vd.p, n_h, hd, vdim, NULL, NULL};
    begun(k, &b);
    k->ref_ops->mla_write(k->ref, &host, &(oz_mla_args){rows, rows + n_h * each, ld, ld, n_rope});
    k->ops->mla_write(k->dev, &dev, &(oz_mla_args){rd.p, (float *)rd.p + n_h * each, ld, ld, n_rope});
    float *kk = dbuf_take(k, &kd, "keys"), *vv = dbuf_take(k, &vd, "values");
    ck_same(c, kk, kh, (size_t)k_floats * 4, "keys"), ck_same(c, vv, vh, (size_t)v_floats * 4, "values");
    oz_attn_args a = {q, n_h * hd, want, n_h * vdim, &host, n_h, 1 / sqrtf((float)hd), 0, 0};
    k->ref_ops->attention(k->ref, &a);
    a.q = qd.p, a.out = out.p, a.kv = &dev;
    k->ops->attention(k->dev, &a);
    compare(k, &out, want, n, n_h * vdim, n_h * vdim, 64, 2e-5, "attention");
    ended(k);
    dbuf *bufs[] = {&kd, &vd, &rd, &qd, &out};
    for (int j = 0; j < CK_COUNT(bufs); j++) dbuf_free(k, bufs[j]);
    void *hosts[] = {kh, vh, rows, q, want};
    for (int j = 0; j < CK_COUNT(hosts); j++) oz_free(hosts[j]);
    free(kk), free(vv);
}

static void latent_run(dck *k) {
    for (int i = 0; i < 15; i++)
        if (!ck_skip(k->c)) mla_case(k);
    ck_latents(k->c, k->dev, k->ops, 40, k->deterministic);
}

/* Convolution and scan of segments with slots of their own: what comes out, and the slots. y of the first is written beside x, in the same rows. */
static void scan_case(dck *k, int i) {
    ck *c = k->c;
    const int64_t n = i % 3 ? ck_int(c, 1, 90) : 64 * ck_int(c, 1, 3), taps = ck_int(c, 1, 5), n_state = ck_int(c, 1, 20), ld = 4 * n + 2 * n_state + ck_int(c, 0, 3), kept = (taps - 1) * n, held = n_state * n;
    batch b;
    batch_make(c, &b, 10, i % 4 == 3);
    for (int s = 0; s < b.b.n_segs; s++) b.segs[s].pos0 *= ck_int(c, 0, 1);
    static const int32_t slots[MAX_SEGS] = {3, 0, 5, 1, 2};
    b.b.slots = slots;
    k->c->n_cases++;
    const int64_t n_tok = b.b.n_tok;
    float *in = floats(c, n_tok * ld, CK_NORMAL), *w = floats(c, taps * n, CK_NORMAL), *bias = floats(c, n, CK_NORMAL), *own = floats(c, held, CK_NORMAL), *skip = floats(c, n, CK_NORMAL);
    float *conv = floats(c, 6 * kept, CK_NORMAL), *scan = floats(c, 6 * held, CK_NORMAL), *y = oz_alloc_array((size_t)(n_tok * n), 4);
    for (int64_t j = 0; j < held; j++) own[j] = -expf(own[j]);
    for (int64_t t = 0; t < n_tok && i % 5 == 2; t++) in[t * ld + 2 * n] = 30; /* where softplus is the value itself */
    dbuf ind = dbuf_new(k, (size_t)(n_tok * ld) * 4, in), wd = dbuf_new(k, (size_t)(taps * n) * 4, w), bd = dbuf_new(k, (size_t)n * 4, bias), ownd = dbuf_new(k, (size_t)held * 4, own), skipd = dbuf_new(k, (size_t)n * 4, skip),
         convd = dbuf_new(k, (size_t)(6 * kept) * 4, conv), scand = dbuf_new(k, (size_t)(6 * held) * 4, scan), yd = dbuf_new(k, (size_t)(n_tok * n) * 4, NULL);
    float *di = ind.p;
    begun(k, &b);
    k->ref_ops->conv(k->ref, &(oz_conv_args){in, in + n, ld, w, i % 4 ? bias : NULL, conv, n, taps});
    k->ops->conv(k->dev, &(oz_conv_args){di, di + n, ld, wd.p, i % 4 ? bd.p : NULL, convd.p, n, taps});
    compare(k, &ind, in, n_tok, ld, ld, 64, 2e-6, "conv");
    compare(k, &convd, conv, 6, kept, kept, 0, 0, "the convolution's slots");
    k->ops->upload(k->dev, ind.p, in, (size_t)(n_tok * ld) * 4); /* from here on the same inputs */
    k->ref_ops->scan(k->ref, &(oz_scan_args){in + n, in + 2 * n, in + 4 * n, in + 4 * n + n_state, in + 3 * n, ld, y, n, own, skip, scan, n, n_state});
    k->ops->scan(k->dev, &(oz_scan_args){di + n, di + 2 * n, di + 4 * n, di + 4 * n + n_state, di + 3 * n, ld, yd.p, n, ownd.p, skipd.p, scand.p, n, n_state});
    compare(k, &yd, y, n_tok, n, n, 64, 1e-4, "scan");
    compare(k, &scand, scan, 6, held, held, 64, 2e-5, "the scan's slots");
    ended(k);
    dbuf *bufs[] = {&ind, &wd, &bd, &ownd, &skipd, &convd, &scand, &yd};
    for (int j = 0; j < CK_COUNT(bufs); j++) dbuf_free(k, bufs[j]);
    void *hosts[] = {in, w, bias, own, skip, conv, scan, y};
    for (int j = 0; j < CK_COUNT(hosts); j++) oz_free(hosts[j]);
}

static void scan_run(dck *k) {
    for (int i = 0; i < 30; i++)
        if (!ck_skip(k->c)) scan_case(k, i);
}

static void batch_run(dck *k) {
    static const struct { oz_codec codec; int64_t group; oz_form form; } tables[] = {{OZ_CODEC_BF16, 0, OZ_FORM_F32}, {OZ_CODEC_F32, 0, OZ_FORM_F32}, {OZ_CODEC_I8, 0, OZ_FORM_BF16}, {OZ_CODEC_I4P, 64, OZ_FORM_BF16},
                                                                                  {OZ_CODEC_Q8_0, 0, OZ_FORM_F16}, {OZ_CODEC_Q4_0, 0, OZ_FORM_F32}, {OZ_CODEC_F8E4M3, 0, OZ_FORM_BF16}};
    for (int i = 0; i < 21; i++) {
        if (ck_skip(k->c)) continue;
        k->c->n_cases++;
        ck *c = k->c;
        const int64_t vocab = ck_int(c, 1, 90), cols = 32 * ck_int(c, 1, 20), half = ck_int(c, 1, 64);
        batch b;
        batch_make(c, &b, vocab, false);
        const int64_t n = b.b.n_tok;
        weight w;
        oz_packed *p = NULL;
        weight_make(c, &w, tables[i % 7].codec, vocab, cols, tables[i % 7].group, i % 7 == 3);
        if (k->ops->pack(&p, k->dev, &w.w, 0, vocab, tables[i % 7].form, NULL) != OZ_OK) ck_fail(c, "pack failed");
        dbuf y = dbuf_new(k, (size_t)(n * cols) * 4, NULL), g = dbuf_new(k, (size_t)(n * cols) * 4, NULL), cs = dbuf_new(k, (size_t)(n * half) * 4, NULL), sn = dbuf_new(k, (size_t)(n * half) * 4, NULL);
        float *inv = oz_alloc_array((size_t)half, 4), *wc = oz_alloc_array((size_t)(n * half), 4), *ws = oz_alloc_array((size_t)(n * half), 4);
        for (int64_t j = 0; j < half; j++) inv[j] = powf(10000, -(float)j / (float)half);
        dbuf inv_dev = dbuf_new(k, (size_t)half * 4, inv);
        begun(k, &b);
        k->ops->embed(k->dev, y.p, cols, p);
        k->ops->gather(k->dev, g.p, cols, y.p, cols, 1, n - 1, cols);
        k->ops->rope_table(k->dev, cs.p, sn.p, inv_dev.p, half, 1.25f);
        k->ref_ops->rope_table(k->ref, wc, ws, inv, half, 1.25f);
        float *rows = dbuf_take(k, &y, "rows"), *picked = dbuf_take(k, &g, "gathered");
        for (int64_t t = 0; t < n; t++) ck_same(c, rows + t * cols, w.dense + b.ids[t] * cols, (size_t)cols * 4, "embedded row");
        for (int64_t t = 0; t + 1 < n; t++) ck_same(c, picked + t * cols, rows + b.rows[t + 1] * cols, (size_t)cols * 4, "gathered row");
        compare(k, &cs, wc, n, half, half, 2, 0, "cos");
        compare(k, &sn, ws, n, half, half, 2, 0, "sin");
        ended(k);
        free(rows), free(picked);
        dbuf *bufs[] = {&y, &g, &cs, &sn, &inv_dev};
        for (int j = 0; j < CK_COUNT(bufs); j++) dbuf_free(k, bufs[j]);
        oz_free(inv), oz_free(wc), oz_free(ws);
        if (p) k->ops->packed_free(k->dev, &p);
        weight_free(&w);
    }
}

static void sinks_run(dck *k) {
    for (int i = 0; i < 20; i++) {
        if (ck_skip(k->c)) continue;
        k->c->n_cases++;
        ck *c = k->c;
        const int64_t n = ck_int(c, 1, 9), vocab = i == 0 ? 151936 : ck_int(c, 2, 4000), ld = vocab + ck_int(c, 0, 3);
        float *r = floats(c, n * ld, CK_NORMAL), *x = floats(c, n * ld, CK_NORMAL);
        for (int64_t j = 0; j < n * ld; j++) r[j] *= i % 3 ? 4 : 60, x[j] = i % 4 == 3 ? r[j] : r[j] + x[j] * 0.1f;
        if (i % 5 == 4) r[0] = -INFINITY;
        if (i % 2) x[ck_int(c, 0, vocab - 1)] = x[ck_int(c, 0, vocab - 1)] = 500; /* the largest twice */
        int32_t targets[9];
        for (int64_t j = 0; j < n; j++) targets[j] = (int32_t)ck_int(c, 0, vocab - 1);
        const int32_t *t = i % 3 ? targets : NULL;
        oz_row_stat got[9], want[9];
        oz_kl_stat got_kl[9], want_kl[9];
        dbuf rd = dbuf_new(k, (size_t)(n * ld) * 4, r), xd = dbuf_new(k, (size_t)(n * ld) * 4, x);
        k->ops->sink_stat(k->dev, got, xd.p, ld, t, n, vocab);
        k->ref_ops->sink_stat(k->ref, want, x, ld, t, n, vocab);
        k->ops->sink_kl(k->dev, got_kl, rd.p, xd.p, ld, t, n, vocab);
        k->ref_ops->sink_kl(k->ref, want_kl, r, x, ld, t, n, vocab);
        ended(k);
        for (int64_t j = 0; j < n; j++) {
            if (got[j].argmax != want[j].argmax || got[j].max_logit != want[j].max_logit || got[j].logit_target != want[j].logit_target) ck_fail(c, "argmax: expected %d, found %d", want[j].argmax, got[j].argmax);
            ck_bound(c, fabs(got[j].lse - want[j].lse), 1e-13 * (1 + fabs(want[j].lse)), "lse: expected %.17g, found %.17g", want[j].lse, got[j].lse);
            if (got_kl[j].argmax != want_kl[j].argmax || got_kl[j].argmax_ref != want_kl[j].argmax_ref) ck_fail(c, "argmax of kl");
            ck_bound(c, fabs(got_kl[j].kl - want_kl[j].kl), 1e-12 * (1 + fabs(want[j].lse)), "kl: expected %.17g, found %.17g", want_kl[j].kl, got_kl[j].kl);
            if (i % 4 == 3 && i % 2 == 0 && got_kl[j].kl != 0) ck_fail(c, "kl of equal rows: expected 0, found %.17g", got_kl[j].kl);
            const bool both_inf = isinf(got_kl[j].nll_ref) && isinf(want_kl[j].nll_ref); /* the target is one that ref excludes */
            if (!both_inf) ck_bound(c, fabs(got_kl[j].nll_ref - want_kl[j].nll_ref), 1e-12 * (1 + fabs(want[j].lse)), "nll of ref");
            ck_bound(c, (isinf(want_kl[j].nll) ? 0 : fabs(got_kl[j].nll - want_kl[j].nll)) + fabs(got_kl[j].p - want_kl[j].p) + fabs(got_kl[j].p_ref - want_kl[j].p_ref), 1e-12 * (1 + fabs(want[j].lse)), "nll, p");
        }
        dbuf_free(k, &rd), dbuf_free(k, &xd);
        oz_free(r), oz_free(x);
    }
}

/* ---- experts: the whole way of a call through them, against the reference's own steps ---- */

enum { MAX_PAIRS = 160, MAX_EXPERTS = 12 };
typedef struct host_route { int32_t experts[MAX_PAIRS], pairs[MAX_PAIRS], rows[MAX_PAIRS], starts[MAX_EXPERTS + 1]; float weights[MAX_PAIRS]; } host_route;

static void experts_case(dck *k) {
    ck *c = k->c;
    c->n_cases++;
    const bool ordered = ck_int(c, 0, 4) == 0;
    const int64_t n_e = ck_int(c, 1, MAX_EXPERTS), top = ck_int(c, 1, n_e < 4 ? n_e : 4), n_tok = ck_int(c, 1, 40), n = 16 * ck_int(c, 1, 9), rows = ck_int(c, 1, 70), pairs = n_tok * top;
    float *logits = floats(c, n_tok * n_e, ck_int(c, 0, 3) ? CK_NORMAL : CK_INTEGER), *x = floats(c, n_tok * n, CK_NORMAL), *spread = oz_alloc_array((size_t)(pairs * n), 4);
    host_route h, g;
    const bool grouped = n_e % 2 == 0 && top <= n_e / 2 && ck_int(c, 0, 1), sigmoid = ck_int(c, 0, 1);
    float *bias = floats(c, n_e, CK_NORMAL);
    dbuf bd = dbuf_new(k, (size_t)n_e * 4, bias);
    const oz_route host = {.n_experts = n_e, .top_k = top, .experts = h.experts, .weights = h.weights, .pairs = h.pairs, .rows = h.rows, .starts = h.starts, .raw = ck_int(c, 0, 1),
                           .scale = ck_int(c, 0, 1) ? 2.5f : 0, .n_groups = grouped ? 2 : 0, .top_groups = grouped, .sigmoid = sigmoid, .best_two = sigmoid && grouped && n_e > 2, .bias = sigmoid ? bias : NULL};
    dbuf mem[5] = {dbuf_new(k, (size_t)pairs * 4, NULL), dbuf_new(k, (size_t)pairs * 4, NULL), dbuf_new(k, (size_t)pairs * 4, NULL), dbuf_new(k, (size_t)pairs * 4, NULL), dbuf_new(k, (size_t)(n_e + 1) * 4, NULL)};
    oz_route dev = host;
    if (dev.bias) dev.bias = bd.p;
    dev.experts = mem[0].p, dev.weights = mem[1].p, dev.pairs = mem[2].p, dev.rows = mem[3].p, dev.starts = mem[4].p;
    dbuf ld = dbuf_new(k, (size_t)(n_tok * n_e) * 4, logits), xd = dbuf_new(k, (size_t)(n_tok * n) * 4, x), sd = dbuf_new(k, (size_t)(pairs * n) * 4, NULL), yd = dbuf_new(k, (size_t)(pairs * rows) * 4, NULL),
         od = dbuf_new(k, (size_t)(n_tok * n) * 4, NULL);
    k->ref_ops->route(k->ref, &host, logits, n_e, n_tok), k->ref_ops->sort(k->ref, &host, n_tok);
    k->ops->route(k->dev, &dev, ld.p, n_e, n_tok), k->ops->sort(k->dev, &dev, n_tok);
    int32_t *const to[5] = {g.experts, (int32_t *)g.weights, g.pairs, g.rows, g.starts};
    const int32_t *const want[5] = {h.experts, (int32_t *)h.weights, h.pairs, h.rows, h.starts};
    for (int i = 0; i < 5; i++) {
        void *got = dbuf_take(k, &mem[i], "route");
        memcpy(to[i], got, mem[i].n_bytes);
        if (i != 1) ck_same(c, got, want[i], mem[i].n_bytes, "route and sort");
        free(got);
    }
    for (int64_t i = 0; i < pairs; i++) ck_bound(c, fabs(g.weights[i] - h.weights[i]), 0x1p-23 * h.weights[i], "weight of a pair: expected %.9g, found %.9g", h.weights[i], g.weights[i]);
    k->ref_ops->spread(k->ref, &host, spread, n, x, n, n_tok, n);
    k->ops->spread(k->dev, &dev, sd.p, n, xd.p, n, n_tok, n);
    float *got = dbuf_take(k, &sd, "spread");
    ck_same(c, got, spread, (size_t)(pairs * n) * 4, "spread rows");
    free(got);
    weight w[MAX_EXPERTS];
    oz_packed *packed[MAX_EXPERTS] = {NULL};
    for (int64_t e = 0; e < n_e; e++) {
        weight_make(c, &w[e], OZ_CODEC_I8, rows, n, 0, ordered);
        if (k->ops->pack(&packed[e], k->dev, &w[e].w, 0, rows, OZ_FORM_F32, NULL) != OZ_OK) ck_fail(c, "pack failed");
    }
    k->ops->grouped_linear(k->dev, &(oz_grouped_args){(const oz_packed *const *)packed, &dev, {OZ_FORM_F32, sd.p, n, NULL}, yd.p, rows, n_tok});
    got = dbuf_take(k, &yd, "grouped product");
    for (int64_t e = 0; e < n_e; e++) {
        const acts a = {.value = spread + h.starts[e] * n};
        outputs_check(k, &w[e], &a, NULL, got + h.starts[e] * rows, rows, h.starts[e + 1] - h.starts[e], 0);
    }
    free(got);
    float *sum = oz_alloc_array((size_t)(n_tok * n), 4);
    k->ref_ops->combine(k->ref, &host, sum, n, spread, n, n_tok, n);
    k->ops->combine(k->dev, &dev, od.p, n, sd.p, n, n_tok, n);
    compare(k, &od, sum, n_tok, n, n, 8, 1e-5, "combine");
    ended(k);
    for (int64_t e = 0; e < n_e; e++) {
        if (packed[e]) k->ops->packed_free(k->dev, &packed[e]);
        weight_free(&w[e]);
    }
    oz_free(bias);
    dbuf *bufs[] = {&bd, &mem[0], &mem[1], &mem[2], &mem[3], &mem[4], &ld, &xd, &sd, &yd, &od};
    for (int j = 0; j < CK_COUNT(bufs); j++) dbuf_free(k, bufs[j]);
    oz_free(logits), oz_free(x), oz_free(spread), oz_free(sum);
}

static void experts_run(dck *k) {
    for (int i = 0; i < 30; i++)
        if (!ck_skip(k->c)) experts_case(k);
}

/* ---- memory and errors ---- */

static void memory_run(dck *k) {
    for (int i = 0; i < 8; i++) {
        if (ck_skip(k->c)) continue;
        k->c->n_cases++;
        const size_t n = (size_t)ck_int(k->c, 1, 70000);
        uint8_t *sent = malloc(n), *got = malloc(n), *zeros = calloc(1, n);
        void *p = NULL;
        for (size_t j = 0; j < n; j++) sent[j] = (uint8_t)(1 + oz_rng_next(&k->c->rng) % 255);
        if (k->ops->mem_new(&p, k->dev, n, "check", NULL) != OZ_OK) ck_fail(k->c, "no memory");
        memset(got, 0xff, n);
        k->ops->download(k->dev, got, p, n);
        ck_same(k->c, got, zeros, n, "new memory");
        k->ops->upload(k->dev, p, sent, n);
        k->ops->download(k->dev, got, p, n);
        ck_same(k->c, got, sent, n, "there and back");
        k->ops->mem_free(k->dev, p);
        free(sent), free(got), free(zeros);
        ended(k);
    }
    /* more rows than a launch can have: the end of the call says so, once (a device without a lowering launches nothing) */
    oz_err err = {0};
    if (!k->ops->lower) return;
    k->ops->norm(k->dev, NULL, 1, NULL, 1, NULL, 1 << 20, 1, 1, 0);
    if (k->ops->end(k->dev, &err) == OZ_OK) ck_fail(k->c, "a launch that failed: expected an error from end");
    ended(k);
}

const dck_suite dck_suites[] = {
    {"products", "2^-22 sqrt(K) sum|wx|", products}, {"rows", "exact, or ULPs", rows_run},          {"batch", "exact, or ULPs", batch_run},
    {"attention", "ref, 2e-5", attention_run},       {"sinks", "1e-12", sinks_run},
    {"latent", "u |wv| 4 (1 + |s|)", latent_run},    {"scan", "ref, 1e-4", scan_run},
    {"experts", "exact, or ULPs", experts_run},      {"memory", "exact", memory_run},
    {"lowered", "plain executor", ck_lowered},       {"calibration", "host, see calib.c", ck_calibration},
    {NULL, NULL, NULL},
};

int ck_device(const char *name, const char *only, int64_t every, uint64_t seed, oz_err *err) {
    int n_red = 0;
    for (int det = 0; det < 2; det++) {
        dck k = {.deterministic = det};
        if (oz_dev_open(&k.dev, &(oz_dev_cfg){name, 1, "auto", det}, err) != OZ_OK) return -1;
        k.ops = oz_dev_ops(k.dev);
        if (!det) printf("%s\n", oz_dev_describe(k.dev));
        for (const dck_suite *s = dck_suites; s->slot; s++) {
            if (only && !strstr(s->slot, only)) continue;
            ck c;
            if (ck_init(&c, "auto", seed, err) != OZ_OK) return -1;
            c.slot = s->slot, c.every = every;
            k.c = &c, k.ref = &c.ref.head, k.ref_ops = c.ref.head.ops;
            s->run(&k);
            printf("%-4s %-13s %-10s %6lld cases  bound %-22s used %.2f\n", c.n_fail ? "FAIL" : "ok", det ? "deterministic" : "default", s->slot, (long long)c.n_cases, s->metric, c.worst);
            if (c.n_fail) printf("    %lld deviations\n", (long long)c.n_fail);
            fflush(stdout);
            n_red += c.n_fail > 0;
            ck_deinit(&c);
        }
        oz_dev_close(&k.dev);
    }
    return n_red;
}
