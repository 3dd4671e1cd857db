/* Latent attention, absorbed and expanded, against keys and values in f64 that are made of each latent by the weight as it is stored; on any device.
 *
 * Blocks lie in random order, and what no token may see is NaN: later rows of the cache, and all of the rooms. Rooms are small, so that calls are cut. */
#include "latent.h"

enum { MAX_SEGS = 3, MAX_HEADS = 20 };

typedef struct latent {
    ck *c;
    oz_dev *dev;
    const oz_ops *ops;
    int64_t heads, rank, nope, n_rope, v_dim, hd, wide, n_segs, n_tok, n_blocks, ld_q, ld_out;
    oz_form form;
    oz_seg segs[MAX_SEGS];
    int32_t *blocks[MAX_SEGS];
    uint16_t *codes;   /* kv_b [heads * (nope + v_dim), rank], bf16 */
    float *w, *q, *cache;
    oz_latent latent;
    oz_latent_room room;
    oz_kv kv;
    oz_latent_args args;
    void *mem[16]; int n_mem;
} latent;

static void *on_device(latent *d, size_t n_bytes, const void *host) {
    void *p = NULL;
    if (d->ops->mem_new(&p, d->dev, n_bytes, "check", NULL) != OZ_OK) ck_fail(d->c, "no memory");
    uint8_t *none = oz_alloc(n_bytes);
    memset(none, 0xff, n_bytes);
    if (p) d->ops->upload(d->dev, p, host ? host : none, n_bytes);
    oz_free(none);
    return d->mem[d->n_mem++] = p;
}

static oz_packed *pack(latent *d, const uint16_t *codes, int64_t rows, int64_t cols) {
    const oz_weight w = {.codec = OZ_CODEC_BF16, .rows = rows, .cols = cols, .codes = codes, .row_bytes = 2 * cols, .group_size = cols};
    oz_packed *p = NULL;
    oz_err err = {0};
    if (d->ops->pack(&p, d->dev, &w, 0, rows, d->form, &err) != OZ_OK) ck_fail(d->c, "pack: %s", err.msg);
    return p;
}

static void weights_make(latent *d) {
    const int64_t each = d->nope + d->v_dim, n = d->heads * each * d->rank;
    d->codes = oz_alloc_array((size_t)n, sizeof *d->codes), d->w = oz_alloc_array((size_t)n, sizeof *d->w);
    uint16_t *turned = oz_alloc_array((size_t)(d->rank * d->nope), sizeof *turned);
    ck_fill(d->c, d->w, n, CK_NORMAL);
    for (int64_t i = 0; i < n; i++) d->codes[i] = oz_bf16_from_f32(d->w[i] / sqrtf((float)d->rank)), d->w[i] = oz_f32_from_bf16(d->codes[i]);
    d->latent = (oz_latent){oz_alloc_array((size_t)d->heads, sizeof(oz_packed *)), oz_alloc_array((size_t)d->heads, sizeof(oz_packed *)), pack(d, d->codes, d->heads * each, d->rank), d->form};
    for (int64_t h = 0; h < d->heads; h++) {
        const uint16_t *own = d->codes + h * each * d->rank;
        for (int64_t i = 0; i < d->rank * d->nope; i++) turned[i] = own[i % d->nope * d->rank + i / d->nope];
        d->latent.turned[h] = pack(d, turned, d->rank, d->nope);
        d->latent.values[h] = pack(d, own + d->nope * d->rank, d->v_dim, d->rank);
    }
    oz_free(turned);
}

static void segs_make(latent *d) {
    static const int64_t starts[] = {0, 0, 1, 15, 16, 17, 40, 90}, lengths[] = {1, 1, 1, 2, 5, 17, 33};
    for (int64_t i = 0; i < d->n_segs; i++) {
        oz_seg *s = &d->segs[i];
        *s = (oz_seg){d->n_tok, lengths[ck_int(d->c, 0, CK_COUNT(lengths) - 1)], starts[ck_int(d->c, 0, CK_COUNT(starts) - 1)], NULL};
        d->n_tok += s->n_tok;
        const int64_t n = (s->pos0 + s->n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
        s->blocks = d->blocks[i] = oz_alloc_array((size_t)n, sizeof(int32_t));
        for (int64_t b = 0; b < n; b++) d->blocks[i][b] = (int32_t)(d->n_blocks + n - 1 - b); /* from the last down */
        d->n_blocks += n + 1;
    }
    const int64_t n = d->n_blocks * OZ_KV_BLOCK * d->wide;
    d->cache = oz_alloc_array((size_t)n, sizeof *d->cache);
    memset(d->cache, 0xff, (size_t)n * sizeof *d->cache);
    for (int64_t i = 0; i < d->n_segs; i++)
        for (int64_t p = 0; p < d->segs[i].pos0 + d->segs[i].n_tok; p++)
            ck_fill(d->c, d->cache + (d->blocks[i][p / OZ_KV_BLOCK] * OZ_KV_BLOCK + p % OZ_KV_BLOCK) * d->wide, d->wide, CK_NORMAL);
    d->q = oz_alloc_array((size_t)(d->n_tok * d->ld_q), sizeof *d->q);
    ck_fill(d->c, d->q, d->n_tok * d->ld_q, CK_NORMAL);
}

static void rooms_make(latent *d) {
    const int64_t widest = d->hd > d->rank ? d->hd : d->rank, n_tok = ck_int(d->c, 1, 9), n_rows = ck_int(d->c, 1, 40), each = d->heads * (d->nope + d->v_dim), ld = d->wide + each + ck_int(d->c, 0, 3);
    oz_latent_room *r = &d->room;
    *r = (oz_latent_room){.n_tok = n_tok, .n_rows = n_rows, .ld = ld};
    r->wide = on_device(d, (size_t)(n_tok * d->heads * d->wide) * 4, NULL), r->out = on_device(d, (size_t)(n_tok * d->heads * d->rank) * 4, NULL);
    r->x = (oz_rows){d->form, on_device(d, (size_t)(n_tok * d->heads * widest) * 4, NULL), d->heads * widest, NULL};
    r->rows = on_device(d, (size_t)(n_rows * ld) * 4, NULL), r->heads = r->rows + d->wide;
    const int64_t n = d->ops->latent_room ? ck_int(d->c, 0, 8) : 0;
    r->max_len = n * OZ_KV_BLOCK, r->kv = (oz_kv){.n_heads_kv = d->heads, .head_dim = d->hd, .v_dim = d->v_dim};
    r->blocks = oz_alloc_array((size_t)n + 1, sizeof *r->blocks);
    for (int64_t i = 0; i < n; i++) r->blocks[i] = (int32_t)i;
    r->kv.k = on_device(d, (size_t)(r->max_len * d->heads * d->hd + 1) * 4, NULL), r->kv.v = on_device(d, (size_t)(r->max_len * d->heads * d->v_dim + 1) * 4, NULL);
}

static void latent_init(latent *d, ck *c, oz_dev *dev, const oz_ops *ops, int i) {
    static const int64_t heads[] = {1, 2, 5, 8, 16, 19}, dims[] = {4, 8, 12, 16, 24, 40, 64}, ropes[] = {2, 4, 8, 16, 18};
    *d = (latent){.c = c, .dev = dev, .ops = ops, .heads = heads[ck_int(c, 0, CK_COUNT(heads) - 1)], .rank = dims[ck_int(c, 0, CK_COUNT(dims) - 1)], .nope = dims[ck_int(c, 0, CK_COUNT(dims) - 1)],
                  .n_rope = ropes[ck_int(c, 0, CK_COUNT(ropes) - 1)], .v_dim = dims[ck_int(c, 0, CK_COUNT(dims) - 1)], .n_segs = ck_int(c, 1, MAX_SEGS)};
    if (i % 20 == 7) d->heads = 2, d->rank = 512, d->nope = 128, d->n_rope = 64, d->v_dim = 128; /* DeepSeek-V2's */
    if (i % 10 == 3) d->rank += 3, d->v_dim -= 1;
    const bool bf16 = i % 2 && ops->form_bytes(OZ_FORM_BF16) > 0 && (!ops->multiplies || ops->multiplies(dev, OZ_CODEC_BF16, OZ_FORM_BF16));
    d->form = bf16 ? OZ_FORM_BF16 : OZ_FORM_F32;
    d->hd = d->nope + d->n_rope, d->wide = d->rank + d->n_rope, d->ld_q = d->heads * d->hd + ck_int(c, 0, 5), d->ld_out = d->heads * d->v_dim + ck_int(c, 0, 5);
    segs_make(d);
    weights_make(d);
    rooms_make(d);
    d->kv = (oz_kv){on_device(d, (size_t)(d->n_blocks * OZ_KV_BLOCK * d->wide) * 4, d->cache), NULL, 1, d->wide, d->rank, NULL, NULL};
    const size_t n_out = (size_t)(d->n_tok * d->ld_out) * 4;
    d->args = (oz_latent_args){on_device(d, (size_t)(d->n_tok * d->ld_q) * 4, d->q), d->ld_q, on_device(d, n_out, NULL), d->ld_out, &d->kv, d->heads, d->hd, d->n_rope, d->v_dim, i % 5 == 4 ? 9 : 0,
                               1 / sqrtf((float)d->hd), i % 6 == 5 ? 4.0f : 0, &d->latent, &d->room};
}

static void latent_deinit(latent *d) {
    for (int i = 0; i < d->n_mem; i++) d->ops->mem_free(d->dev, d->mem[i]);
    for (int64_t h = 0; h < d->heads; h++) d->ops->packed_free(d->dev, &d->latent.turned[h]), d->ops->packed_free(d->dev, &d->latent.values[h]);
    d->ops->packed_free(d->dev, &d->latent.whole);
    for (int i = 0; i < MAX_SEGS; i++) oz_free(d->blocks[i]);
    void *all[] = {d->latent.turned, d->latent.values, d->codes, d->w, d->q, d->cache, d->room.blocks};
    for (int i = 0; i < CK_COUNT(all); i++) oz_free(all[i]);
}

/* One query's head. What bf16 inputs lose: 2^-9 of each input of a product, so of a score by the magnitudes that are summed in it, and of the output. */
static void check_head(const latent *d, const float *out, const oz_seg *s, int64_t t, int64_t h) {
    const double u = d->form == OZ_FORM_F32 ? 0x1p-24 : 0x1p-9;
    const int64_t pos = s->pos0 + t, first = d->args.window && pos >= d->args.window ? pos - d->args.window + 1 : 0, n = pos + 1 - first, each = d->nope + d->v_dim;
    const float *q = d->q + (s->tok0 + t) * d->ld_q + h * d->hd, *w = d->w + h * each * d->rank, *got = out + (s->tok0 + t) * d->ld_out + h * d->v_dim;
    double *p = oz_alloc_array((size_t)n, sizeof *p), top = -INFINITY, sum = 0, mag = 0;
    for (int64_t j = 0; j < n; j++) {
        const float *row = d->cache + (s->blocks[(first + j) / OZ_KV_BLOCK] * OZ_KV_BLOCK + (first + j) % OZ_KV_BLOCK) * d->wide;
        double m = 0;
        for (int64_t i = 0; i < d->hd; i++) {
            double key = i < d->nope ? 0 : row[d->rank + i - d->nope], k_mag = fabs(key);
            for (int64_t r = 0; r < d->rank && i < d->nope; r++) key += (double)w[i * d->rank + r] * row[r], k_mag += fabs((double)w[i * d->rank + r] * row[r]);
            p[j] += q[i] * key, m += fabs(q[i]) * k_mag;
        }
        p[j] *= d->args.scale;
        if (d->args.softcap > 0) p[j] = d->args.softcap * tanh(p[j] / d->args.softcap);
        mag = fmax(mag, m * d->args.scale + d->args.softcap), top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - top);
    for (int64_t i = 0; i < d->v_dim; i++) {
        double want = 0, most = 0;
        for (int64_t j = 0; j < n; j++) {
            const float *row = d->cache + (s->blocks[(first + j) / OZ_KV_BLOCK] * OZ_KV_BLOCK + (first + j) % OZ_KV_BLOCK) * d->wide;
            double v = 0, v_mag = 0;
            for (int64_t r = 0; r < d->rank; r++) v += (double)w[(d->nope + i) * d->rank + r] * row[r], v_mag += fabs((double)w[(d->nope + i) * d->rank + r] * row[r]);
            want += p[j] / sum * v, most = fmax(most, v_mag);
        }
        ck_bound(d->c, fabs(got[i] - want), most * (u * (4 + 4 * mag) + 0x1p-24 * (16 + 0.25 * (double)n + (double)d->rank)),
                 "%lld heads of %lld + %lld, rank %lld, position %lld: head %lld [%lld]: expected %.9g, found %.9g", (long long)d->heads, (long long)d->nope, (long long)d->n_rope, (long long)d->rank,
                 (long long)pos, (long long)h, (long long)i, want, got[i]);
    }
    oz_free(p);
}

static void call(latent *d, const oz_seg *segs, int64_t n_segs, int64_t n_tok) {
    oz_err err = {0};
    const oz_batch b = {.n_tok = n_tok, .segs = segs, .n_segs = n_segs};
    if (d->ops->begin(d->dev, &b, &err) != OZ_OK) ck_fail(d->c, "%s", err.msg);
    d->ops->latent(d->dev, &d->args);
    if (d->ops->end(d->dev, &err) != OZ_OK) ck_fail(d->c, "%s", err.msg);
}

/* Its last token alone gives the bits that it gives in company. */
static void check_company(latent *d, const float *out) {
    const oz_seg *s = &d->segs[d->n_segs - 1], one = {0, 1, s->pos0 + s->n_tok - 1, s->blocks};
    const size_t n_bytes = (size_t)(d->heads * d->v_dim) * sizeof *out;
    float *alone = oz_alloc(n_bytes);
    d->args.q += (d->n_tok - 1) * d->ld_q;
    call(d, &one, 1, 1);
    d->args.q -= (d->n_tok - 1) * d->ld_q;
    d->ops->download(d->dev, alone, d->args.out, n_bytes);
    ck_same(d->c, alone, out + (d->n_tok - 1) * d->ld_out, n_bytes, "a token alone and in company");
    oz_free(alone);
}

int ck_latents(ck *c, oz_dev *dev, const oz_ops *ops, int n_cases, bool company) {
    int n_expanded = 0;
    for (int i = 0; i < n_cases; i++) {
        latent d;
        if (ck_skip(c)) continue;
        latent_init(&d, c, dev, ops, i);
        const size_t n_bytes = (size_t)(d.n_tok * d.ld_out) * 4;
        float *out = oz_alloc(n_bytes);
        call(&d, d.segs, d.n_segs, d.n_tok);
        ops->download(dev, out, d.args.out, n_bytes);
        for (int64_t s = 0; s < d.n_segs; s++) n_expanded += oz_latent_expands(&d.args, &d.segs[s]);
        for (int64_t s = 0; s < d.n_segs; s++)
            for (int64_t t = 0; t < d.segs[s].n_tok; t++)
                for (int64_t h = 0; h < d.heads; h += h + 2 < d.heads ? 2 : 1) check_head(&d, out, &d.segs[s], t, h);
        if (company) check_company(&d, out);
        oz_free(out);
        latent_deinit(&d);
        c->n_cases++;
    }
    return n_expanded;
}

void ck_op_latent(ck *c) {
    int n_expanded = 0;
    for (int i = 0; i < 4 && n_expanded < 5; i++) n_expanded += ck_latents(c, &c->many.head, c->many.head.ops, 40, false); /* few are drawn that expand, under some seeds */
    if (n_expanded < 5 && !ck_enough(c)) ck_fail(c, "hardly a case was expanded");
    c->many.deterministic = true;
    ck_latents(c, &c->many.head, c->many.head.ops, 20, true);
}
