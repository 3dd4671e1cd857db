/* The operations above the slots: how a call is cut over threads, rows and parts. One thread and three must give the same bits, and
 * both what the slot gives for each row. */
#include "kernel/step.h"
#include "suites.h"

static float *floats(ck *c, int64_t n) {
    float *x = oz_alloc_array((size_t)n, sizeof *x);
    ck_fill(c, x, n, CK_NORMAL);
    return x;
}

typedef struct part_set { oz_weight w[3]; oz_packed *p[3]; const float *bias[3]; int32_t *order[3]; int n; int64_t rows; } part_set;

static oz_weight dense_weight(ck *c, int64_t rows, int64_t cols) {
    return (oz_weight){.codec = OZ_CODEC_F32, .rows = rows, .cols = cols, .codes = floats(c, rows * cols), .row_bytes = cols * 4};
}

/* Some weights have their columns in an order of their own. */
static int32_t *random_order(ck *c, int64_t cols) {
    int32_t *order = oz_alloc_array((size_t)cols, sizeof *order);
    for (int64_t i = 0; i < cols; i++) order[i] = (int32_t)i;
    for (int64_t i = cols - 1; i > 0; i--) {
        const int64_t j = ck_int(c, 0, i);
        const int32_t swap = order[i];
        order[i] = order[j], order[j] = swap;
    }
    return order;
}

static void parts_init(ck *c, part_set *s, int n, int64_t cols) {
    memset(s, 0, sizeof *s);
    s->n = n;
    for (int i = 0; i < n; i++) {
        s->w[i] = dense_weight(c, ck_int(c, 1, 60), cols);
        s->bias[i] = i == 1 ? NULL : floats(c, s->w[i].rows);
        s->rows += s->w[i].rows;
        if (ck_int(c, 0, 3) == 0) s->w[i].order = s->order[i] = random_order(c, cols);
        for (int many = 1; many >= 0; many--) { /* on both devices: each needs room for inputs in a weight's order */
            oz_cpu_packed_free(&c->many.head, &s->p[i]);
            if (oz_cpu_pack(&s->p[i], many ? &c->many.head : &c->dev.head, &s->w[i], 0, s->w[i].rows, OZ_FORM_F32, NULL) != OZ_OK) ck_fail(c, "pack failed");
        }
    }
}

static void parts_deinit(ck *c, part_set *s) {
    for (int i = 0; i < s->n; i++) {
        oz_cpu_packed_free(&c->dev.head, &s->p[i]);
        oz_free((void *)(uintptr_t)s->w[i].codes);
        oz_free((void *)(uintptr_t)s->bias[i]);
        oz_free(s->order[i]);
    }
}

/* Parts lie side by side in the output, each with its own bias. */
void ck_op_linear(ck *c) {
    for (int i = 0; i < 40 && !ck_enough(c); i++, c->n_cases++) {
        part_set s;
        int64_t cols = ck_int(c, 1, 700), n_tok = ck_int(c, 0, 7) ? ck_int(c, 1, 9) : OZ_GATHER_TOK + ck_int(c, 0, 9);
        parts_init(c, &s, (int)ck_int(c, 1, 3), cols);
        float *x = floats(c, n_tok * cols);
        size_t out_bytes = (size_t)(n_tok * s.rows) * sizeof(float);
        ck_buf one = ck_buf_new(out_bytes, 0), three = ck_buf_new(out_bytes, 0);
        oz_linear_args a = {(const oz_packed *const *)s.p, s.bias, s.n, {OZ_FORM_F32, x, cols, NULL}, one.p, s.rows, n_tok};
        c->dev.head.ops->linear(&c->dev.head, &a);
        a.y = three.p;
        c->many.head.ops->linear(&c->many.head, &a);
        ck_same(c, one.p, three.p, out_bytes, "one thread and three");
        ck_buf_check(c, &three, "output");
        for (int64_t t = 0; t < n_tok; t++) {
            const float *y = (const float *)one.p + t * s.rows;
            for (int part = 0; part < s.n; part++) {
                for (int64_t r = 0; r < s.w[part].rows; r++, y++) {
                    double want = s.bias[part] ? s.bias[part][r] : 0, mag = fabs(want);
                    for (int64_t j = 0; j < cols; j++) {
                        double p = (double)((const float *)s.w[part].codes)[r * cols + j] * x[t * cols + (s.order[part] ? s.order[part][j] : j)];
                        want += p, mag += fabs(p);
                    }
                    ck_bound(c, fabs(*y - want), 0x1p-24 * (double)(cols + 8) * mag, "part %d row %lld: expected %.9g, found %.9g", part, (long long)r,
                             want, *y);
                }
            }
        }
        oz_free(x);
        ck_buf_free(&one), ck_buf_free(&three);
        parts_deinit(c, &s);
    }
}

void ck_op_embed(ck *c) {
    for (int i = 0; i < 20 && !ck_enough(c); i++, c->n_cases++) {
        int64_t rows = ck_int(c, 1, 90), cols = ck_int(c, 1, 2000), n_tok = ck_int(c, 1, 40), ld = cols + ck_int(c, 0, 3);
        oz_weight w = dense_weight(c, rows, cols);
        oz_packed *p = NULL;
        if (oz_cpu_pack(&p, &c->many.head, &w, 0, rows, OZ_FORM_F32, NULL) != OZ_OK) ck_fail(c, "pack failed");
        int32_t *ids = oz_alloc_array((size_t)n_tok, sizeof *ids);
        for (int64_t t = 0; t < n_tok; t++) ids[t] = (int32_t)ck_int(c, 0, rows - 1);
        ck_buf y = ck_buf_new((size_t)((n_tok - 1) * ld + cols) * sizeof(float), 0);
        ck_begin(c, &(oz_batch){.ids = ids, .n_tok = n_tok});
        c->many.head.ops->embed(&c->many.head, y.p, ld, p);
        for (int64_t t = 0; t < n_tok; t++) {
            ck_same(c, (const float *)y.p + t * ld, (const float *)w.codes + ids[t] * cols, (size_t)cols * sizeof(float), "row of the table");
        }
        ck_buf_check(c, &y, "output");
        ck_buf_free(&y);
        oz_cpu_packed_free(&c->many.head, &p);
        oz_free(ids);
        oz_free((void *)(uintptr_t)w.codes);
    }
}

/* Packing rows [row0, row0 + n) gives those rows, whatever the number of threads. */
void ck_op_pack(ck *c) {
    for (int i = 0; i < 20 && !ck_enough(c); i++, c->n_cases++) {
        int64_t rows = ck_int(c, 1, 90), cols = ck_int(c, 1, 300), row0 = ck_int(c, 0, rows - 1), n = ck_int(c, 1, rows - row0);
        oz_weight w = dense_weight(c, rows, cols);
        oz_packed *p = NULL;
        float *row = oz_alloc_array((size_t)cols, sizeof *row);
        if (c->many.head.ops->pack(&p, &c->many.head, &w, row0, n, OZ_FORM_F32, NULL) != OZ_OK) ck_fail(c, "pack failed");
        for (int64_t r = 0; p && r < n; r++) {
            const oz_cpu_packed *q = (const oz_cpu_packed *)p;
            q->row->get_row(row, q, r);
            ck_same(c, row, (const float *)w.codes + (row0 + r) * cols, (size_t)cols * sizeof *row, "row of a slice");
        }
        oz_cpu_packed_free(&c->many.head, &p);
        oz_free(row);
        oz_free((void *)(uintptr_t)w.codes);
    }
}

void ck_op_gather(ck *c) {
    for (int i = 0; i < 20 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n = ck_int(c, 1, 70), ld = n + ck_int(c, 0, 4), n_rows = ck_int(c, 1, 20);
        float *x = floats(c, 50 * ld);
        int32_t rows[20];
        for (int64_t r = 0; r < n_rows; r++) rows[r] = (int32_t)ck_int(c, 0, 49);
        ck_buf y = ck_buf_new((size_t)(n_rows * n) * sizeof(float), 0);
        ck_begin(c, &(oz_batch){.rows = rows, .n_rows = n_rows});
        c->many.head.ops->gather(&c->many.head, y.p, n, x, ld, 0, n_rows, n);
        for (int64_t r = 0; r < n_rows; r++) ck_same(c, (const float *)y.p + r * n, x + rows[r] * ld, (size_t)n * sizeof *x, "gathered row");
        ck_buf_check(c, &y, "output");
        ck_buf_free(&y);
        oz_free(x);
    }
}

/* Inputs rounded to the values of their codes: each row as by itself, in place and elsewhere, whatever lies between rows. */
void ck_op_round(ck *c) {
    static const oz_round KINDS[] = {{8, false, true, 0, NULL, NULL, false}, {8, false, false, 0, NULL, NULL, false}, {4, false, true, 16, NULL, NULL, false},  {8, true, true, 0, NULL, NULL, false},
                                     {8, true, true, 8, NULL, NULL, false},  {8, true, true, 8, NULL, NULL, true}, {8, true, true, 0, NULL, NULL, false},   {8, false, false, 0, NULL, NULL, false}, {5, false, true, 0, NULL, NULL, false}};
    for (int i = 0; i < 40 && !ck_enough(c); i++, c->n_cases++) {
        const float scale = 0.03f, zero = -5;
        oz_round q = KINDS[i % CK_COUNT(KINDS)];
        if (i % CK_COUNT(KINDS) >= 6) q.scales = &scale, q.zeros = q.symmetric ? NULL : &zero; /* static */
        const int64_t n = q.group_size * ck_int(c, 1, 20) + (q.group_size ? 0 : ck_int(c, 1, 300)), ld = n + ck_int(c, 0, 5), n_tok = ck_int(c, 1, 30);
        const bool in_place = ck_int(c, 0, 1);
        ck_buf x = ck_buf_new((size_t)(n_tok * ld) * sizeof(float), 0), y = ck_buf_new((size_t)(n_tok * ld) * sizeof(float), 0), want = ck_buf_new((size_t)(n_tok * ld) * sizeof(float), 0);
        for (int64_t t = 0; t < n_tok; t++) ck_fill(c, (float *)x.p + t * ld, n, (ck_pattern)ck_int(c, 0, CK_PATTERNS - 1));
        if (in_place) memcpy(want.p, x.p, x.n_bytes);
        for (int64_t t = 0; t < n_tok; t++) oz_act_round((float *)want.p + t * ld, (const float *)x.p + t * ld, n, &q);
        c->many.head.ops->round(&c->many.head, in_place ? x.p : y.p, ld, x.p, ld, n_tok, n, &q);
        ck_same(c, in_place ? x.p : y.p, want.p, x.n_bytes, "rounded rows");
        ck_buf_check(c, &x, "input"), ck_buf_check(c, &y, "output");
        ck_buf_free(&x), ck_buf_free(&y), ck_buf_free(&want);
    }
}

/* Each position goes to its slot of its block, and nothing else is touched. */
void ck_op_kv_write(ck *c) {
    for (int i = 0; i < 20 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n_kvh = ck_int(c, 1, 4), hd = 2 * ck_int(c, 1, 20), n_tok = ck_int(c, 1, 40), pos0 = ck_int(c, 0, 40), ld = n_kvh * hd + ck_int(c, 0, 5);
        int32_t blocks[6] = {4, 0, 5, 1, 3, 2};
        oz_seg seg = {0, n_tok, pos0, blocks};
        size_t bytes = (size_t)(6 * n_kvh * OZ_KV_BLOCK * hd) * sizeof(float);
        ck_buf kb = ck_buf_new(bytes, 0), vb = ck_buf_new(bytes, 0), want = ck_buf_new(bytes, 0);
        oz_kv kv = {kb.p, vb.p, n_kvh, hd, hd, NULL, NULL};
        float *k = floats(c, n_tok * ld), *v = floats(c, n_tok * ld);
        ck_begin(c, &(oz_batch){.segs = &seg, .n_segs = 1});
        c->many.head.ops->kv_write(&c->many.head, &kv, k, v, ld);
        for (int which = 0; which < 2; which++) {
            for (int64_t t = 0; t < n_tok; t++) {
                for (int64_t h = 0; h < n_kvh; h++) {
                    int64_t pos = pos0 + t, at = ((blocks[pos / 16] * n_kvh + h) * 16 + pos % 16) * hd;
                    memcpy((float *)want.p + at, (which ? v : k) + t * ld + h * hd, (size_t)hd * sizeof(float));
                }
            }
            ck_same(c, which ? vb.p : kb.p, want.p, bytes, which ? "values" : "keys");
        }
        ck_buf_check(c, &kb, "keys"), ck_buf_check(c, &vb, "values");
        ck_buf_free(&kb), ck_buf_free(&vb), ck_buf_free(&want);
        oz_free(k), oz_free(v);
    }
}

/* Each head's key is its own part and the shared one, and its value follows; nothing else is touched. */
void ck_op_mla_write(ck *c) {
    for (int i = 0; i < 20 && !ck_enough(c); i++, c->n_cases++) {
        const int64_t n_h = ck_int(c, 1, 4), own = ck_int(c, 1, 20), n_rope = 2 * ck_int(c, 1, 9), vd = ck_int(c, 1, 30), hd = own + n_rope, n_tok = ck_int(c, 1, 40), pos0 = ck_int(c, 0, 40);
        const int64_t ld_h = n_h * (own + vd) + ck_int(c, 0, 5), ld_r = n_rope + ck_int(c, 0, 5);
        int32_t blocks[6] = {4, 0, 5, 1, 3, 2};
        oz_seg seg = {0, n_tok, pos0, blocks};
        const size_t rows = (size_t)(6 * n_h * OZ_KV_BLOCK) * sizeof(float);
        ck_buf kb = ck_buf_new(rows * (size_t)hd, 0), vb = ck_buf_new(rows * (size_t)vd, 0), want_k = ck_buf_new(rows * (size_t)hd, 0), want_v = ck_buf_new(rows * (size_t)vd, 0);
        const oz_kv kv = {kb.p, vb.p, n_h, hd, vd, NULL, NULL};
        float *heads = floats(c, n_tok * ld_h), *rope = floats(c, n_tok * ld_r);
        ck_begin(c, &(oz_batch){.segs = &seg, .n_segs = 1});
        c->many.head.ops->mla_write(&c->many.head, &kv, &(oz_mla_args){heads, rope, ld_h, ld_r, n_rope});
        for (int64_t t = 0; t < n_tok; t++) {
            for (int64_t h = 0; h < n_h; h++) {
                const int64_t pos = pos0 + t, row = (blocks[pos / 16] * n_h + h) * 16 + pos % 16;
                for (int64_t j = 0; j < hd; j++) ((float *)want_k.p)[row * hd + j] = j < own ? heads[t * ld_h + h * (own + vd) + j] : rope[t * ld_r + j - own];
                for (int64_t j = 0; j < vd; j++) ((float *)want_v.p)[row * vd + j] = heads[t * ld_h + h * (own + vd) + own + j];
            }
        }
        ck_same(c, kb.p, want_k.p, rows * (size_t)hd, "keys"), ck_same(c, vb.p, want_v.p, rows * (size_t)vd, "values");
        ck_buf_check(c, &kb, "keys"), ck_buf_check(c, &vb, "values");
        ck_buf_free(&kb), ck_buf_free(&vb), ck_buf_free(&want_k), ck_buf_free(&want_v);
        oz_free(heads), oz_free(rope);
    }
}

/* cos and sin of the f32 angle, correctly rounded (long double decides), then times the factor. */
void ck_op_rope_table(ck *c) {
    for (int i = 0; i < 20 && !ck_enough(c); i++, c->n_cases++) {
        int64_t half = ck_int(c, 1, 64);
        oz_seg segs[2] = {{0, ck_int(c, 1, 30), ck_int(c, 0, 100000), NULL}, {0, ck_int(c, 1, 9), 0, NULL}};
        segs[1].tok0 = segs[0].n_tok;
        int64_t n_tok = segs[0].n_tok + segs[1].n_tok;
        float factor = i % 2 ? 1.0f : 1.3f, *inv = oz_alloc_array((size_t)half, sizeof *inv);
        for (int64_t j = 0; j < half; j++) inv[j] = powf(10000, -(float)j / (float)half);
        ck_buf cs = ck_buf_new((size_t)(n_tok * half) * sizeof(float), 0), sn = ck_buf_new((size_t)(n_tok * half) * sizeof(float), 0);
        ck_begin(c, &(oz_batch){.segs = segs, .n_segs = 2});
        c->many.head.ops->rope_table(&c->many.head, cs.p, sn.p, inv, half, factor);
        for (int s = 0; s < 2; s++) {
            for (int64_t t = 0; t < segs[s].n_tok * half; t++) {
                long double angle = (float)(segs[s].pos0 + t / half) * inv[t % half];
                float want_c = (float)cosl(angle) * factor, want_s = (float)sinl(angle) * factor;
                int64_t at = segs[s].tok0 * half + t;
                ck_same(c, (const float *)cs.p + at, &want_c, sizeof want_c, "cos");
                ck_same(c, (const float *)sn.p + at, &want_s, sizeof want_s, "sin");
            }
        }
        ck_buf_check(c, &cs, "cos"), ck_buf_check(c, &sn, "sin");
        ck_buf_free(&cs), ck_buf_free(&sn);
        oz_free(inv);
    }
}

/* norm, quantize, rope, gated activations, scale, softcap, add over rows with gaps: each row is what the slot makes of it. */
void ck_op_rows(ck *c) {
    for (int i = 0; i < 20 && !ck_enough(c); i++, c->n_cases++) {
        const oz_cpu_table *t = &c->dev.table;
        const oz_ops *ops = c->many.head.ops;
        int64_t n_tok = ck_int(c, 1, 40), n_vec = ck_int(c, 1, 9), dim = 2 * ck_int(c, 1, 60), n = n_vec * dim, ld = n + ck_int(c, 0, 3);
        size_t bytes = (size_t)(n_tok * ld) * sizeof(float);
        float *x = floats(c, n_tok * ld), *x2 = floats(c, n_tok * ld), *w = floats(c, dim), *cs = floats(c, n_tok * dim), *sn = floats(c, n_tok * dim);
        float *got = oz_alloc(bytes), *want = oz_alloc(bytes), *s1 = oz_alloc((size_t)n_tok * 4), *s2 = oz_alloc((size_t)n_tok * 4);

        ops->norm(&c->many.head, got, ld, x, ld, w, n_tok, n_vec, dim, 1e-5f);
        for (int64_t r = 0; r < n_tok; r++) for (int64_t v = 0; v < n_vec; v++) t->norm(want + r * ld + v * dim, x + r * ld + v * dim, w, dim, 1e-5f);
        ck_same(c, got, want, bytes, "norm");
        ops->rope(&c->many.head, got, ld, n_vec, dim, cs, sn, dim / 2, n_tok);
        for (int64_t r = 0; r < n_tok; r++)
            for (int64_t v = 0; v < n_vec; v++) t->rope(want + r * ld + v * dim, cs + r * (dim / 2), sn + r * (dim / 2), dim / 2);
        ck_same(c, got, want, bytes, "rope");
        ops->silu_mul(&c->many.head, got, ld, x, x2, ld, n_tok, n);
        for (int64_t r = 0; r < n_tok; r++) t->silu_mul(want + r * ld, x + r * ld, x2 + r * ld, n);
        ck_same(c, got, want, bytes, "silu_mul");
        ops->gelu_mul(&c->many.head, got, ld, x, x2, ld, n_tok, n);
        for (int64_t r = 0; r < n_tok; r++) t->gelu_mul(want + r * ld, x + r * ld, x2 + r * ld, n);
        ck_same(c, got, want, bytes, "gelu_mul");
        ops->scale(&c->many.head, got, ld, n_tok, n, 5.5f);
        for (int64_t r = 0; r < n_tok; r++) t->scale(want + r * ld, n, 5.5f);
        ck_same(c, got, want, bytes, "scale");
        ops->softcap(&c->many.head, got, ld, n_tok, n, 2.5f);
        for (int64_t r = 0; r < n_tok; r++) t->softcap(want + r * ld, n, 2.5f);
        ck_same(c, got, want, bytes, "softcap");
        ops->add(&c->many.head, got, ld, x, ld, n_tok, n);
        for (int64_t r = 0; r < n_tok; r++) t->add(want + r * ld, x + r * ld, n);
        ck_same(c, got, want, bytes, "add");
        for (int form = OZ_FORM_Q8; form <= OZ_FORM_BF16; form++) {
            memset(got, 0, bytes), memset(want, 0, bytes);
            oz_rows q = {(oz_form)form, got, ld, s1};
            ops->quantize(&c->many.head, &q, x, ld, n_tok, n);
            for (int64_t r = 0; r < n_tok; r++) {
                if (form == OZ_FORM_BF16) t->round_bf16((uint16_t *)want + r * ld, x + r * ld, n);
                else s2[r] = form == OZ_FORM_Q8 ? t->quantize_q8((int8_t *)want + r * ld, x + r * ld, n) : t->quantize_f8(want + r * ld, x + r * ld, n);
            }
            ck_same(c, got, want, bytes, "quantize");
            if (form != OZ_FORM_BF16) ck_same(c, s1, s2, (size_t)n_tok * 4, "scales");
        }
        void *all[] = {x, x2, w, cs, sn, got, want, s1, s2};
        for (int j = 0; j < CK_COUNT(all); j++) oz_free(all[j]);
    }
}

void ck_op_sinks(ck *c) {
    for (int i = 0; i < 10 && !ck_enough(c); i++, c->n_cases++) {
        int64_t n_rows = ck_int(c, 1, 9), vocab = ck_int(c, 1, 4000), ld = vocab + ck_int(c, 0, 3);
        float *r = floats(c, n_rows * ld), *x = floats(c, n_rows * ld);
        int32_t targets[9];
        oz_row_stat got[9], want;
        oz_kl_stat got_kl[9], want_kl;
        for (int64_t j = 0; j < n_rows; j++) targets[j] = (int32_t)ck_int(c, 0, vocab - 1);
        memset(got, 0, sizeof got), memset(got_kl, 0, sizeof got_kl);
        c->many.head.ops->sink_stat(&c->many.head, got, x, ld, i ? targets : NULL, n_rows, vocab);
        c->many.head.ops->sink_kl(&c->many.head, got_kl, r, x, ld, i ? targets : NULL, n_rows, vocab);
        for (int64_t j = 0; j < n_rows; j++) {
            memset(&want, 0, sizeof want), memset(&want_kl, 0, sizeof want_kl);
            c->dev.table.stat(&want, x + j * ld, i ? targets[j] : -1, vocab);
            c->dev.table.kl(&want_kl, r + j * ld, x + j * ld, i ? targets[j] : -1, vocab);
            if (got[j].argmax != want.argmax || got[j].lse != want.lse || got[j].logit_target != want.logit_target) ck_fail(c, "stat of row %lld", (long long)j);
            if (got_kl[j].kl != want_kl.kl || got_kl[j].nll != want_kl.nll) ck_fail(c, "kl of row %lld", (long long)j);
        }
        oz_free(r), oz_free(x);
    }
}
