/* Attention over paged keys and values, against f64.
 *
 * Blocks lie in random order, and everything that no query may see (later positions, other blocks, positions before the window) is NaN, so
 * that reading one key too many shows at once. Scores are drawn small and large; the bound grows with them, as the error of exp does. */
#include "suites.h"

typedef struct attn_case { int64_t n_heads, n_kvh, hd, vd, n_segs, window; float spread, softcap; bool in_keys; /* values are the first columns of keys */ } attn_case;

enum { MAX_SEGS = 3 };
typedef struct attn_data {
    oz_kv kv;
    oz_seg segs[MAX_SEGS];
    int32_t *blocks[MAX_SEGS];
    ck_buf out;
    float *q;
    oz_attn_args args;
    int64_t n_tok;
} attn_data;

static int64_t kv_at(const oz_kv *kv, int64_t dim, const oz_seg *s, int64_t h, int64_t pos) {
    return ((s->blocks[pos / OZ_KV_BLOCK] * kv->n_heads_kv + h) * OZ_KV_BLOCK + pos % OZ_KV_BLOCK) * dim;
}

static void fill_kv(ck *c, attn_data *d, const attn_case *k) {
    for (int64_t i = 0; i < k->n_segs; i++) {
        const oz_seg *s = &d->segs[i];
        int64_t first = k->window && s->pos0 >= k->window ? s->pos0 - k->window + 1 : 0;
        for (int64_t pos = first; pos < s->pos0 + s->n_tok; pos++) {
            for (int64_t h = 0; h < k->n_kvh; h++) {
                ck_fill(c, d->kv.k + kv_at(&d->kv, k->hd, s, h, pos), k->hd, CK_NORMAL);
                if (d->kv.v) ck_fill(c, d->kv.v + kv_at(&d->kv, k->vd, s, h, pos), k->vd, CK_NORMAL);
            }
        }
    }
}

static void attn_init(ck *c, attn_data *d, const attn_case *k) {
    static const int64_t starts[] = {0, 0, 1, 15, 16, 17, 63, 64, 100, 300}, lengths[] = {1, 1, 2, 3, 5, 16, 17, 33, 50};
    memset(d, 0, sizeof *d);
    int64_t n_blocks = 1;
    for (int64_t i = 0; i < k->n_segs; i++) {
        oz_seg *s = &d->segs[i];
        *s = (oz_seg){d->n_tok, lengths[ck_int(c, 0, CK_COUNT(lengths) - 1)], starts[ck_int(c, 0, CK_COUNT(starts) - 1)], NULL};
        d->n_tok += s->n_tok;
        n_blocks += (s->pos0 + s->n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    }
    int32_t *order = oz_alloc_array((size_t)n_blocks, sizeof *order);
    for (int64_t i = 0; i < n_blocks; i++) order[i] = (int32_t)i;
    for (int64_t i = n_blocks - 1; i > 0; i--) {
        int64_t j = ck_int(c, 0, i);
        int32_t swap = order[i];
        order[i] = order[j], order[j] = swap;
    }
    for (int64_t i = 0, at = 0; i < k->n_segs; i++) {
        int64_t n = (d->segs[i].pos0 + d->segs[i].n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
        d->blocks[i] = oz_alloc_array((size_t)n, sizeof(int32_t));
        memcpy(d->blocks[i], order + at, (size_t)n * sizeof(int32_t));
        d->segs[i].blocks = d->blocks[i];
        at += n;
    }
    oz_free(order);
    const size_t rows = (size_t)(n_blocks * k->n_kvh * OZ_KV_BLOCK), k_floats = rows * (size_t)k->hd, v_floats = rows * (size_t)k->vd;
    d->kv = (oz_kv){oz_alloc_array(k_floats, sizeof(float)), k->in_keys ? NULL : oz_alloc_array(v_floats, sizeof(float)), k->n_kvh, k->hd, k->vd, NULL, NULL};
    memset(d->kv.k, 0xff, k_floats * sizeof(float));
    if (d->kv.v) memset(d->kv.v, 0xff, v_floats * sizeof(float));
    fill_kv(c, d, k);
    int64_t width = k->n_heads * k->vd, ld_q = k->n_heads * k->hd + ck_int(c, 0, 9), ld_out = width + ck_int(c, 0, 3);
    d->q = oz_alloc_array((size_t)(d->n_tok * ld_q), sizeof(float));
    ck_fill(c, d->q, d->n_tok * ld_q, CK_NORMAL);
    for (int64_t i = 0; i < d->n_tok * ld_q; i++) d->q[i] *= k->spread;
    d->out = ck_buf_new((size_t)((d->n_tok - 1) * ld_out + width) * sizeof(float), 4 * (size_t)ck_int(c, 0, 3));
    d->args = (oz_attn_args){d->q, ld_q, d->out.p, ld_out, &d->kv, k->n_heads, 1 / sqrtf((float)k->hd), k->window, k->softcap};
}

static void attn_deinit(attn_data *d) {
    for (int i = 0; i < MAX_SEGS; i++) oz_free(d->blocks[i]);
    oz_free(d->kv.k), oz_free(d->kv.v), oz_free(d->q);
    ck_buf_free(&d->out);
}

static void check_query(ck *c, const attn_data *d, const attn_case *k, const oz_seg *s, int64_t t, int64_t h) {
    int64_t pos = s->pos0 + t, kvh = h / (k->n_heads / k->n_kvh), first = k->window && pos >= k->window ? pos - k->window + 1 : 0;
    int64_t n = pos + 1 - first;
    const float *q = d->q + (s->tok0 + t) * d->args.ld_q + h * k->hd;
    const float *out = (const float *)d->out.p + (s->tok0 + t) * d->args.ld_out + h * k->vd;
    double *p = oz_alloc_array((size_t)n, sizeof *p), top = -INFINITY, mag = 0, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        const float *key = d->kv.k + kv_at(&d->kv, k->hd, s, kvh, first + j);
        double m = 0;
        for (int64_t i = 0; i < k->hd; i++) p[j] += (double)q[i] * key[i], m += fabs((double)q[i] * key[i]);
        p[j] *= d->args.scale;
        if (k->softcap > 0) p[j] = k->softcap * tanh(p[j] / k->softcap);
        mag = fmax(mag, m * d->args.scale + k->softcap);
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - top);
    for (int64_t i = 0; i < k->vd; i++) {
        double want = 0, most = 0;
        for (int64_t j = 0; j < n; j++) {
            double v = d->kv.v ? d->kv.v[kv_at(&d->kv, k->vd, s, kvh, first + j) + i] : d->kv.k[kv_at(&d->kv, k->hd, s, kvh, first + j) + i];
            want += p[j] / sum * v;
            most = fmax(most, fabs(v));
        }
        ck_bound(c, fabs(out[i] - want), 0x1p-24 * most * (16 + 0.25 * (double)n + 8 * mag),
                 "heads %lld/%lld of %lld, position %lld, window %lld: head %lld [%lld]: expected %.9g, found %.9g", (long long)k->n_heads,
                 (long long)k->n_kvh, (long long)k->hd, (long long)pos, (long long)k->window, (long long)h, (long long)i, want, out[i]);
    }
    oz_free(p);
}

/* One token at a time, and one KV head at a time, gives the same bits as all at once. */
static void check_company(ck *c, const attn_data *d, const attn_case *k) {
    int64_t width = k->n_heads * k->vd;
    float *alone = oz_alloc_array((size_t)(d->n_tok * width), sizeof *alone);
    for (int64_t i = 0; i < k->n_segs; i++) {
        for (int64_t t = 0; t < d->segs[i].n_tok; t++) {
            oz_seg one = {0, 1, d->segs[i].pos0 + t, d->segs[i].blocks};
            oz_attn_args a = d->args;
            a.q = d->q + (d->segs[i].tok0 + t) * d->args.ld_q;
            a.out = alone;
            for (int64_t h = 0; h < k->n_kvh; h++) c->dev.table.attention(&a, &one, 0, 1, h, h + 1);
            ck_same(c, alone, (const float *)d->out.p + (d->segs[i].tok0 + t) * d->args.ld_out, (size_t)width * sizeof *alone,
                    "a token alone and in a prefill");
        }
    }
    oz_free(alone);
}

static attn_case draw(ck *c, int i) {
    static const int64_t heads[][2] = {{1, 1}, {9, 3}, {4, 4}, {8, 1}, {6, 3}, {14, 2}, {19, 1}}, dims[] = {8, 16, 64, 64, 80, 96, 128, 256};
    int h = (int)ck_int(c, 0, CK_COUNT(heads) - 1);
    static const int64_t windows[] = {0, 0, 0, 1, 5, 16, 40};
    const bool in_keys = i % 7 == 4;
    const int64_t hd = i % 21 == 4 ? 576 : i % 9 == 8 ? 2 * ck_int(c, 1, 400) : dims[ck_int(c, 0, CK_COUNT(dims) - 1)];
    const int64_t vd = i % 21 == 4 ? 512 : in_keys ? ck_int(c, 1, hd) : i % 5 == 2 ? ck_int(c, 1, 280) : hd;
    return (attn_case){heads[h][0], heads[h][1], hd, vd, ck_int(c, 1, MAX_SEGS),
                       windows[ck_int(c, 0, CK_COUNT(windows) - 1)], i % 4 == 3 ? 30.0f : 1.0f, i % 3 == 1 ? 3.0f : 0.0f, in_keys};
}

static void run(ck *c, bool ops) {
    for (int i = 0; i < (ops ? 20 : 60) && !ck_enough(c); i++, c->n_cases++) {
        attn_case k = draw(c, i);
        attn_data d;
        attn_init(c, &d, &k);
        if (ops) {
            ck_begin(c, &(oz_batch){.segs = d.segs, .n_segs = k.n_segs});
            c->many.head.ops->attention(&c->many.head, &d.args);
        } else {
            for (int64_t s = 0; s < k.n_segs; s++) c->dev.table.attention(&d.args, &d.segs[s], 0, d.segs[s].n_tok, 0, k.n_kvh);
        }
        ck_buf_check(c, &d.out, "output");
        for (int64_t s = 0; s < k.n_segs; s++) {
            for (int64_t t = 0; t < d.segs[s].n_tok; t++) {
                for (int64_t h = 0; h < k.n_heads; h++) check_query(c, &d, &k, &d.segs[s], t, h);
            }
        }
        check_company(c, &d, &k);
        attn_deinit(&d);
    }
}

void ck_attention(ck *c) { run(c, false); }
void ck_op_attention(ck *c) { run(c, true); }
