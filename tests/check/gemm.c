/* Products: packing, reading rows back and multiplying, for each (kind, form).
 *
 * The truth is computed here in f64 from the weight as number/ defines it, so `ref` is checked as well. An output may be off by the bound
 * of a sum in f32: K roundings of the sum of magnitudes. Q8 is exact up to its three last roundings and compared bit by bit. */
#include "check.h"

typedef struct gemm_case {
    oz_codec codec;
    int64_t rows, cols, group_size, n_tok;
    bool zeros, one_scale, bias;
    ck_pattern x, w;
} gemm_case;

typedef struct gemm_data {
    oz_weight w;
    void *codes, *scales, *zeros;
    float *dense;          /* [rows, cols], dequantized */
    float *x;              /* [n_tok, cols] as the product sees it: codes as floats for Q8 and F8 */
    float *x_scale, *bias;
    oz_cpu_packed *packed;
    ck_buf act, y;
    oz_rows rows;
    int64_t ld_x, ld_y;
} gemm_data;

/* Activations that have no scale, and go with groups and offsets. */
static bool is_plain(oz_form form) { return form == OZ_FORM_F32 || form == OZ_FORM_BF16; }

static void make_codes(ck *c, gemm_data *g, const gemm_case *k) {
    oz_weight *w = &g->w;
    const oz_codec_info *info = oz_codec_get(k->codec);
    float *row = oz_alloc_array((size_t)k->cols, sizeof *row);
    for (int64_t r = 0; r < k->rows; r++) {
        uint8_t *out = (uint8_t *)g->codes + r * w->row_bytes;
        if (info->plain && info->is_float) {
            ck_fill(c, row, k->cols, k->w);
            if (k->w == CK_LARGE && info->dtype == OZ_DTYPE_F16) ck_fill(c, row, k->cols, CK_SPIKE);
            oz_from_f32(out, info->dtype, row, k->cols);
            continue;
        }
        for (int64_t i = 0; i < w->row_bytes; i++) {
            out[i] = (uint8_t)oz_rng_next(&c->rng);
            if (k->w == CK_LARGE) out[i] = oz_rng_next(&c->rng) & 1 ? 0x80 : 0x7f; /* the ends of the code range */
            if (k->w == CK_ZERO) out[i] = k->codec == OZ_CODEC_I4P ? 0x88 : k->codec == OZ_CODEC_I8P ? 0x80 : 0;
            if (info->is_float && (out[i] & 0x7f) == 0x7f) out[i] ^= 1; /* no NaN */
        }
        const oz_dtype_info *t = oz_dtype_get(info->dtype);
        for (int64_t b = 0; info->plain && b < k->cols / t->block_elems; b++) ck_block_scales(c, info->dtype, out + b * t->block_bytes);
    }
    oz_free(row);
}

static void make_scales(ck *c, gemm_data *g, const gemm_case *k) {
    if (oz_codec_get(k->codec)->plain) return;
    size_t n = (size_t)(k->rows * oz_weight_groups(&g->w));
    float *s = oz_alloc_array(n, sizeof *s);
    int8_t *z = oz_alloc_array(n, 1);
    for (size_t i = 0; i < n; i++) {
        s[i] = (float)(fabs(oz_rng_normal(&c->rng)) * (k->w == CK_TINY ? 1e-28 : k->w == CK_LARGE ? 1e6 : 0.01));
        z[i] = (int8_t)ck_int(c, -8, 7);
    }
    g->scales = s;
    g->zeros = z;
    g->w.scales = s;
    g->w.scale_dtype = OZ_DTYPE_F32;
    g->w.zeros = k->zeros ? z : NULL;
}

static void make_rows(ck *c, gemm_data *g, const gemm_case *k, oz_form form) {
    int elem = oz_cpu_ops.form_bytes(form);
    g->ld_x = k->cols + ck_int(c, 0, 5);
    g->act = ck_buf_new((size_t)(g->ld_x * k->n_tok * elem), elem < 4 ? (size_t)(elem * ck_int(c, 0, 7)) : 4 * (size_t)ck_int(c, 0, 3));
    g->rows = (oz_rows){form, g->act.p, g->ld_x, g->x_scale};
    for (int64_t t = 0; t < k->n_tok; t++) {
        float *x = g->x + t * k->cols;
        ck_fill(c, x, k->cols, k->x);
        g->x_scale[t] = is_plain(form) ? 1 : (float)fabs(oz_rng_normal(&c->rng)) + 1e-3f;
        for (int64_t i = 0; i < k->cols && form != OZ_FORM_F32; i++) {
            if (form == OZ_FORM_BF16) x[i] = oz_f32_from_bf16(oz_bf16_from_f32(x[i]));
            if (form == OZ_FORM_BF16) ((uint16_t *)g->act.p)[t * g->ld_x + i] = oz_bf16_from_f32(x[i]);
            if (form == OZ_FORM_F8) x[i] = oz_f32_from_e4m3(oz_e4m3_from_f32(x[i]));
            if (form == OZ_FORM_Q8) x[i] = k->x == CK_LARGE ? (x[i] < 0 ? -127 : 127) : (float)ck_int(c, -127, 127);
            if (form == OZ_FORM_Q8) ((int8_t *)g->act.p)[t * g->ld_x + i] = (int8_t)x[i];
        }
        if (elem == 4) memcpy((float *)g->act.p + t * g->ld_x, x, (size_t)k->cols * sizeof *x);
    }
}

static void gemm_data_init(ck *c, gemm_data *g, const gemm_case *k, oz_form form) {
    memset(g, 0, sizeof *g);
    g->w = (oz_weight){.codec = k->codec, .rows = k->rows, .cols = k->cols, .group_size = k->group_size, .one_scale = k->one_scale};
    g->w.row_bytes = oz_codec_row_bytes(k->codec, k->cols);
    g->codes = oz_alloc_array((size_t)k->rows, (size_t)g->w.row_bytes);
    g->w.codes = g->codes;
    make_codes(c, g, k);
    make_scales(c, g, k);
    g->dense = oz_alloc_array((size_t)(k->rows * k->cols), sizeof(float));
    for (int64_t r = 0; r < k->rows; r++) oz_weight_row(g->dense + r * k->cols, &g->w, r, 0, k->cols);
    g->x = oz_alloc_array((size_t)(k->n_tok * k->cols), sizeof(float));
    g->x_scale = oz_alloc_array((size_t)k->n_tok, sizeof(float));
    make_rows(c, g, k, form);
    g->bias = oz_alloc_array((size_t)k->rows, sizeof(float));
    ck_fill(c, g->bias, k->rows, CK_NORMAL);
    g->ld_y = k->rows + ck_int(c, 0, 3);
    g->y = ck_buf_new((size_t)(g->ld_y * (k->n_tok - 1) + k->rows) * sizeof(float), 4 * (size_t)ck_int(c, 0, 3));
}

static void gemm_data_deinit(ck *c, gemm_data *g) {
    oz_cpu_packed_free(&c->dev.head, (oz_packed **)&g->packed);
    ck_buf_free(&g->act);
    ck_buf_free(&g->y);
    void *all[] = {g->codes, g->scales, g->zeros, g->dense, g->x, g->x_scale, g->bias};
    for (int i = 0; i < CK_COUNT(all); i++) oz_free(all[i]);
}

/* Largest scale, or offset, of a row. */
static double largest(const oz_cpu_packed *w, const float *v, int64_t r) {
    double most = 0;
    int64_t lanes = w->row->panel;
    for (int64_t g = 0; v && g < w->n_groups; g++) most = fmax(most, fabs(v[(r / lanes * w->n_groups + g) * lanes + r % lanes]));
    return most;
}

/* Rows read back are the weight's values, but for the rounding of a zero point's offset beside the product. */
static void check_rows(ck *c, const gemm_data *g, const gemm_case *k) {
    ck_buf row = ck_buf_new((size_t)k->cols * sizeof(float), 4 * (size_t)ck_int(c, 0, 3));
    const float *got = row.p;
    for (int64_t r = 0; r < k->rows; r++) {
        double offset = k->zeros ? largest(g->packed, g->packed->offsets, r) : 0;
        g->packed->row->get_row(row.p, g->packed, r);
        for (int64_t i = 0; i < k->cols; i++) {
            double want = g->dense[r * k->cols + i], slack = offset > 0 ? 0x1p-23 * (offset + fabs(want)) : 0;
            ck_bound(c, fabs(got[i] - want), slack, "row %lld column %lld: expected %.9g, read back %.9g", (long long)r, (long long)i, want, got[i]);
        }
    }
    ck_buf_check(c, &row, "row read back");
    ck_buf_free(&row);
}

static float scale_of(const gemm_data *g, const gemm_case *k, int64_t r) {
    float s;
    oz_to_f32(&s, OZ_DTYPE_F32, (const float *)g->scales + (k->one_scale ? 0 : r), 1);
    return s;
}

static void check_q8(ck *c, const gemm_data *g, const gemm_case *k, int64_t t, int64_t r, float got) {
    float *codes = oz_alloc_array((size_t)k->cols, sizeof *codes);
    oz_codec_get(k->codec)->expand(codes, (const uint8_t *)g->codes + r * g->w.row_bytes, 0, k->cols);
    int32_t sum = 0;
    for (int64_t i = 0; i < k->cols; i++) sum += (int32_t)codes[i] * (int32_t)g->x[t * k->cols + i];
    float want = (float)sum * (scale_of(g, k, r) * g->x_scale[t]);
    if (k->bias) want += g->bias[r];
    if (memcmp(&want, &got, 4)) ck_fail(c, "[%lld, %lld] token %lld row %lld: expected %.9g, found %.9g", (long long)k->rows,
                                        (long long)k->cols, (long long)t, (long long)r, want, got);
    oz_free(codes);
}

/* |error| <= u (K + 8) sum |w x|. A kernel may sum an offset's part apart, which adds u 2 (K + 2) |offset| max|x|, and may carry codes times a power
 * of two from 2^-8 to 2^28: what then falls under the smallest f32 is the floor. Products of bf16 take and give no subnormals: then the floor is that of
 * factors and sums under 2^-126. */
static void check_float(ck *c, const gemm_data *g, const gemm_case *k, int64_t t, int64_t r, float got) {
    double sum = 0, mag = 0, most_x = 0, most_w = 0, n = (double)k->cols;
    for (int64_t i = 0; i < k->cols; i++) {
        double x = (double)g->x[t * k->cols + i] * g->x_scale[t], p = g->dense[r * k->cols + i] * x;
        sum += p;
        mag += fabs(p);
        most_x = fmax(most_x, fabs(x));
        most_w = fmax(most_w, fabs(g->dense[r * k->cols + i]));
    }
    double want = sum + (k->bias ? g->bias[r] : 0), scale = largest(g->packed, g->packed->scales, r), offset = largest(g->packed, g->packed->offsets, r);
    double floor = 0x1p-141 * (n + 1) * fmax(1, g->x_scale[t]) * fmax(1, scale) + (g->scales ? 0x1p-118 * most_x * n : 0);
    if (g->rows.form == OZ_FORM_BF16) floor += 0x1p-125 * n * (1 + most_x + most_w) * fmax(1, scale);
    double bound = 0x1p-24 * ((n + 8) * mag + fabs(want) + 2 * (n + 2) * offset * most_x) + floor;
    ck_bound(c, fabs(got - want), bound, "[%lld, %lld] group %lld, %lld tokens: token %lld row %lld: expected %.9g +- %.2g, found %.9g",
             (long long)k->rows, (long long)k->cols, (long long)k->group_size, (long long)k->n_tok, (long long)t, (long long)r, want, bound, got);
}

/* A token's result is the same alone and in company, and however the panels are cut. */
static void check_company(ck *c, const gemm_data *g, const oz_gemm_task *task) {
    const oz_cpu_packed *w = g->packed;
    size_t n = (size_t)w->head.rows * sizeof(float);
    float *alone = oz_alloc_array((size_t)w->head.rows, sizeof *alone);
    for (int64_t t = 0; t < task->n_tok; t++) {
        oz_gemm_task one = *task;
        one.x.data = (uint8_t *)task->x.data + t * task->x.ld * oz_cpu_ops.form_bytes(task->x.form);
        one.x.scales = task->x.scales ? task->x.scales + t : NULL;
        one.y = alone;
        one.n_tok = 1;
        memset(alone, 0xff, n);
        int64_t cut = ck_int(c, 0, w->n_panels);
        w->row->gemm(&one, 0, cut);
        w->row->gemm(&one, cut, w->n_panels);
        ck_same(c, alone, task->y + t * task->ld_y, n, "a token alone and in a batch");
    }
    oz_free(alone);
}

static void run_case(ck *c, const gemm_case *k, oz_form form) {
    gemm_data g;
    oz_err err = {0};
    gemm_data_init(c, &g, k, form);
    c->n_cases++;
    if (oz_cpu_pack((oz_packed **)&g.packed, &c->dev.head, &g.w, 0, k->rows, form, &err) != OZ_OK) {
        ck_fail(c, "[%lld, %lld]: %s", (long long)k->rows, (long long)k->cols, err.msg);
        gemm_data_deinit(c, &g);
        return;
    }
    check_rows(c, &g, k);
    oz_gemm_task task = {g.packed, k->bias ? g.bias : NULL, g.rows, g.y.p, g.ld_y, k->n_tok};
    g.packed->row->gemm(&task, 0, g.packed->n_panels);
    ck_buf_check(c, &g.y, "output");
    for (int64_t t = 0; t < k->n_tok; t++) {
        for (int64_t r = 0; r < k->rows; r++) {
            float got = task.y[t * g.ld_y + r];
            if (form == OZ_FORM_Q8) check_q8(c, &g, k, t, r, got);
            else check_float(c, &g, k, t, r, got);
        }
        for (int64_t r = k->rows; r < g.ld_y && t + 1 < k->n_tok; r++) {
            if (!isnan(task.y[t * g.ld_y + r])) ck_fail(c, "wrote between the rows of the output");
        }
    }
    check_company(c, &g, &task);
    gemm_data_deinit(c, &g);
}

static const struct { int n; oz_codec codecs[7]; } kinds[OZ_WKIND_COUNT] = {
    {1, {OZ_CODEC_F32}}, {1, {OZ_CODEC_F16}}, {1, {OZ_CODEC_BF16}},
    {7, {OZ_CODEC_I8, OZ_CODEC_I8P, OZ_CODEC_Q8_0, OZ_CODEC_Q5_0, OZ_CODEC_Q5_1, OZ_CODEC_Q5_K, OZ_CODEC_Q6_K}},
    {3, {OZ_CODEC_I4P, OZ_CODEC_Q4_0, OZ_CODEC_Q3_K}}, {1, {OZ_CODEC_F8E4M3}},
    {3, {OZ_CODEC_Q4_1, OZ_CODEC_Q4_K, OZ_CODEC_Q2_K}}, {3, {OZ_CODEC_IQ4_NL, OZ_CODEC_IQ4_XS, OZ_CODEC_MXFP4}}};

static gemm_case draw(ck *c, oz_wkind kind, oz_form form) {
    static const int64_t n_tok[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33};
    static const int64_t cols[] = {1, 2, 3, 8, 15, 16, 31, 32, 33, 48, 64, 65, 100, 127, 128, 160, 255, 300};
    gemm_case k = {.rows = ck_int(c, 1, 70), .cols = cols[ck_int(c, 0, CK_COUNT(cols) - 1)], .n_tok = n_tok[ck_int(c, 0, CK_COUNT(n_tok) - 1)]};
    k.bias = ck_int(c, 0, 1);
    k.x = (ck_pattern)ck_int(c, 0, CK_PATTERNS - 1);
    k.w = (ck_pattern)ck_int(c, 0, CK_PATTERNS - 1);
    k.codec = kinds[kind].codecs[ck_int(c, 0, kinds[kind].n - 1)];
    bool plain = oz_codec_get(k.codec)->plain;
    if (!is_plain(form) && plain) k.codec = kinds[kind].codecs[0], plain = false;
    const int64_t block = plain ? oz_dtype_get(oz_codec_get(k.codec)->dtype)->block_elems : 1;
    k.cols = (k.cols + block - 1) / block * block;
    if (plain) return k;
    k.group_size = k.cols;
    if (!is_plain(form)) {
        k.one_scale = ck_int(c, 0, 4) == 0;
    } else if (ck_int(c, 0, 2) > 0) {
        static const int64_t sizes[] = {16, 32, 48, 64, 128};
        k.group_size = sizes[ck_int(c, 0, CK_COUNT(sizes) - 1)];
        if (k.group_size > k.cols) k.group_size = k.cols;
    }
    k.zeros = is_plain(form) && !k.one_scale && ck_int(c, 0, 2) == 0;
    return k;
}

/* A NaN among the codes makes its row NaN, in every token, and no other. */
static void check_nan(ck *c, oz_form form) {
    enum { ROWS = 21, COLS = 40, TOK = 50, BAD_ROW = 13 };
    for (int sign = 0; sign < 2; sign++) {
        gemm_case k = {OZ_CODEC_F8E4M3, ROWS, COLS, COLS, TOK, false, false, true, CK_NORMAL, CK_NORMAL};
        gemm_data g;
        oz_err err = {0};
        gemm_data_init(c, &g, &k, form);
        ((uint8_t *)g.codes)[BAD_ROW * g.w.row_bytes + ck_int(c, 0, COLS - 1)] = sign ? 0xff : 0x7f;
        c->n_cases++;
        if (oz_cpu_pack((oz_packed **)&g.packed, &c->dev.head, &g.w, 0, ROWS, form, &err) != OZ_OK) ck_fail(c, "%s", err.msg);
        for (int64_t n = 1; g.packed && n <= TOK; n += 7) {
            oz_gemm_task task = {g.packed, g.bias, g.rows, g.y.p, g.ld_y, n};
            g.packed->row->gemm(&task, 0, g.packed->n_panels);
            for (int64_t i = 0; i < n * ROWS; i++) {
                float y = task.y[i / ROWS * g.ld_y + i % ROWS];
                if (isnan(y) != (i % ROWS == BAD_ROW)) ck_fail(c, "row %d has a NaN code; row %d of %lld tokens is %g", BAD_ROW, (int)(i % ROWS), (long long)n, y);
            }
        }
        gemm_data_deinit(c, &g);
    }
}

void ck_gemm(ck *c, oz_wkind kind, oz_form form) {
    if (!c->dev.table.gemm[kind][form].gemm) return; /* not at this level: loading says so */
    for (int i = 0; i < 150 && !ck_enough(c); i++) {
        gemm_case k = draw(c, kind, form);
        run_case(c, &k, form);
    }
    if (ck_enough(c)) return;
    gemm_case big = draw(c, kind, form);
    big.x = big.w = CK_NORMAL;
    big.n_tok = 512;
    run_case(c, &big, form);
    static const int64_t groups[] = {0, 128, 96, 1008}; /* 0: one a row; pieces end inside of the last two */
    for (int i = 0; i < CK_COUNT(groups); i++) {
        gemm_case wide = draw(c, kind, form); /* more columns than any piece that a kernel keeps in a cache */
        wide.cols = oz_codec_get(wide.codec)->plain ? 4352 : 4160; /* whole blocks */
        wide.group_size = groups[i] && is_plain(form) ? groups[i] : wide.cols;
        wide.x = wide.w = CK_NORMAL;
        wide.n_tok = 60;
        wide.rows = 149; /* and more panels than are at hand at a time */
        run_case(c, &wide, form);
    }
    if (kind == OZ_WKIND_F8) check_nan(c, form);
    if (form == OZ_FORM_Q8) { /* the longest sum that is allowed, of the largest codes */
        gemm_case longest = {OZ_CODEC_I8, 3, 1 << 17, 1 << 17, 2, false, false, true, CK_LARGE, CK_LARGE};
        run_case(c, &longest, form);
    }
}
