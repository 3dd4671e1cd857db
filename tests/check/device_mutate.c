/* The mutation run of a device: one operation at a time is replaced by one with a plausible bug that calls the right one, or, where the kernels carry bugs
 * (kernel/cuda/mutate.h), one of those is switched on; the suites that cover it must turn red. */
#include "device.h"
#include "kernel/cuda/mutate.h"
#include "kernel/step.h"

static const oz_ops *right;

/* ---- packing: what a product or an embedding then reads ---- */

/* Packs a weight whose scales were changed: group 0's everywhere, or those of the row before. */
static oz_status pack_scales(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n_rows, oz_form form, oz_err *err, bool by_group) {
    if (!w->scales) return right->pack(out, d, w, row0, n_rows, form, err);
    const int64_t g = oz_weight_groups(w);
    float *s = oz_alloc_array((size_t)(w->rows * g), sizeof *s);
    const float *old = w->scales;
    for (int64_t i = 0; i < w->rows * g; i++) s[i] = by_group ? old[i / g * g] : old[(i + g) % (w->rows * g)];
    oz_weight broken = *w;
    broken.scales = s;
    const oz_status st = right->pack(out, d, &broken, row0, n_rows, form, err);
    oz_free(s);
    return st;
}
static oz_status pack_group_0(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n, oz_form f, oz_err *err) { return pack_scales(out, d, w, row0, n, f, err, true); }
static oz_status pack_neighbour(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n, oz_form f, oz_err *err) { return pack_scales(out, d, w, row0, n, f, err, false); }

/* One code of each weight is another. */
static oz_status pack_code(oz_packed **out, oz_dev *d, const oz_weight *w, int64_t row0, int64_t n_rows, oz_form form, oz_err *err) {
    const size_t n_bytes = (size_t)(w->rows * w->row_bytes);
    uint8_t *codes = oz_alloc(n_bytes);
    memcpy(codes, w->codes, n_bytes);
    codes[(size_t)(w->rows - 1) * (size_t)w->row_bytes + (size_t)w->row_bytes - 1] ^= 0x30;
    oz_weight broken = *w;
    broken.codes = codes;
    const oz_status st = right->pack(out, d, &broken, row0, n_rows, form, err);
    oz_free(codes);
    return st;
}

/* ---- operations ---- */

static void linear_bias(oz_dev *d, const oz_linear_args *a) {
    oz_linear_args b = *a;
    b.bias = NULL;
    right->linear(d, &b);
}
static void linear_last_token(oz_dev *d, const oz_linear_args *a) {
    oz_linear_args b = *a;
    if (b.n_tok > 1) b.n_tok--;
    right->linear(d, &b);
}
static void linear_x_scale(oz_dev *d, const oz_linear_args *a) {
    oz_linear_args b = *a;
    b.x.scales = NULL;
    right->linear(d, &b);
}
static void linear_one_part(oz_dev *d, const oz_linear_args *a) {
    oz_linear_args b = *a;
    if (b.n_parts > 1) b.n_parts--;
    right->linear(d, &b);
}
static void embed_ld(oz_dev *d, float *y, int64_t ld, const oz_packed *w) { right->embed(d, y, ld - (ld > 32 ? 1 : 0), w); }
static void norm_eps(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, const float *w, int64_t n_tok, int64_t n_vec, int64_t dim, float eps) { right->norm(d, y, ld_y, x, ld_x, w, n_tok, n_vec, dim, 100 * eps); }
static void norm_last_head(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, const float *w, int64_t n_tok, int64_t n_vec, int64_t dim, float eps) {
    right->norm(d, y, ld_y, x, ld_x, w, n_tok, n_vec > 1 ? n_vec - 1 : 1, dim, eps);
}
static void quantize_tail(oz_dev *d, const oz_rows *y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) { right->quantize(d, y, x, ld_x, n_tok, n - 1); }
static void rope_swapped(oz_dev *d, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok) { right->rope(d, x, ld, n_heads, head_dim, sin, cos, half, n_tok); }
static void rope_pairs_halves(oz_dev *d, float *x, int64_t ld, int64_t n_heads, int64_t head_dim, const float *cos, const float *sin, int64_t half, int64_t n_tok) { right->rope(d, x, ld, n_heads, head_dim, cos, sin, half, n_tok); }
static void mla_rope(oz_dev *d, const oz_kv *kv, const oz_mla_args *a) {
    oz_mla_args b = *a;
    b.ld_rope = 0; /* all tokens take the first one's shared part */
    right->mla_write(d, kv, &b);
}
static void latent_scale(oz_dev *d, const oz_latent_args *a) {
    oz_latent_args b = *a;
    b.scale *= 1.02f;
    right->latent(d, &b);
}
static void latent_window(oz_dev *d, const oz_latent_args *a) {
    oz_latent_args b = *a;
    b.window = 0;
    right->latent(d, &b);
}
static void conv_taps(oz_dev *d, const oz_conv_args *a) {
    oz_conv_args b = *a;
    b.w = a->w + (a->taps > 1 ? a->n : 0), b.taps -= a->taps > 1; /* the oldest one forgotten */
    right->conv(d, &b);
}
static void scan_values(oz_dev *d, const oz_scan_args *a) {
    oz_scan_args b = *a;
    b.n_state -= b.n_state > 1;
    right->scan(d, &b);
}
static void rope_table_factor(oz_dev *d, float *cos, float *sin, const float *inv_freq, int64_t half, float factor) { right->rope_table(d, cos, sin, inv_freq, half, 1.0f); }
static void kv_swapped(oz_dev *d, const oz_kv *kv, const float *k, const float *v, int64_t ld) { right->kv_write(d, kv, v, k, ld); }
static void attention_scale(oz_dev *d, const oz_attn_args *a) {
    oz_attn_args b = *a;
    b.scale *= 1.02f;
    right->attention(d, &b);
}
static void attention_window(oz_dev *d, const oz_attn_args *a) {
    oz_attn_args b = *a;
    if (b.window) b.window++;
    right->attention(d, &b);
}
static void attention_softcap(oz_dev *d, const oz_attn_args *a) {
    oz_attn_args b = *a;
    b.softcap = 0;
    right->attention(d, &b);
}
static void silu_swapped(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n) { right->silu_mul(d, y, ld_y, up, gate, ld_x, n_tok, n); }
static void gelu_silu(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n) { right->silu_mul(d, y, ld_y, gate, up, ld_x, n_tok, n); }
static void scale_tail(oz_dev *d, float *x, int64_t ld, int64_t n_tok, int64_t n, float factor) { right->scale(d, x, ld, n_tok, n - 1, factor); }
static void softcap_last(oz_dev *d, float *x, int64_t ld, int64_t n_tok, int64_t n, float cap) { right->softcap(d, x, ld, n_tok > 1 ? n_tok - 1 : 1, n, cap); }
static void add_tail(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) { right->add(d, y, ld_y, x, ld_x, n_tok, n - 1); }
static void gather_row0(oz_dev *d, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t row0, int64_t n_rows, int64_t n) { right->gather(d, y, ld_y, x, ld_x, 0, n_rows, n); }
static void stat_targets(oz_dev *d, oz_row_stat *out, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab) { right->sink_stat(d, out, logits, ld, NULL, n_rows, vocab); }
static void stat_vocab(oz_dev *d, oz_row_stat *out, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab) { right->sink_stat(d, out, logits, ld, targets, n_rows, vocab - 1); }
static void kl_swapped(oz_dev *d, oz_kl_stat *out, const float *ref, const float *logits, int64_t ld, const int32_t *targets, int64_t n_rows, int64_t vocab) { right->sink_kl(d, out, logits, ref, ld, targets, n_rows, vocab); }

static void combine_one(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    oz_route one = *r;
    one.weights = (float *)(uintptr_t)r->weights + 1; /* the next slot's */
    right->combine(d, &one, y, ld_y, x, ld_x, n_tok > 1 ? n_tok - 1 : 1, n);
}
static void sort_part(oz_dev *d, const oz_route *r, int64_t n_tok) { right->sort(d, r, n_tok > 1 ? n_tok - 1 : 1); }

static void route_last(oz_dev *d, const oz_route *r, const float *logits, int64_t ld, int64_t n_tok) {
    oz_route fewer = *r;
    fewer.n_experts -= r->n_experts > r->top_k;
    right->route(d, &fewer, logits, ld, n_tok);
}
static void spread_unsorted(oz_dev *d, const oz_route *r, float *y, int64_t ld_y, const float *x, int64_t ld_x, int64_t n_tok, int64_t n) {
    oz_route other = *r;
    other.pairs = r->rows;
    right->spread(d, &other, y, ld_y, x, ld_x, n_tok, n);
}
static void grouped_next(oz_dev *d, const oz_grouped_args *a) {
    const oz_packed *experts[256];
    oz_grouped_args b = *a;
    for (int64_t e = 0; e < a->route->n_experts; e++) experts[e] = a->experts[(e + 1) % a->route->n_experts];
    b.experts = experts;
    right->grouped_linear(d, &b);
}
/* Every sequence has the first one's blocks; each token is one position further. */
static oz_status begin_blocks(oz_dev *d, const oz_batch *b, oz_err *err) {
    static oz_seg segs[64];
    static oz_batch other;
    other = *b, other.segs = segs;
    for (int64_t i = 0; i < b->n_segs; i++) segs[i] = b->segs[i], segs[i].blocks = b->segs[i].pos0 + b->segs[i].n_tok <= b->segs[0].pos0 + b->segs[0].n_tok ? b->segs[0].blocks : b->segs[i].blocks;
    return right->begin(d, &other, err);
}
static oz_status begin_position(oz_dev *d, const oz_batch *b, oz_err *err) {
    static oz_seg segs[64];
    static oz_batch other;
    other = *b, other.segs = segs;
    for (int64_t i = 0; i < b->n_segs; i++) segs[i] = b->segs[i], segs[i].pos0 -= b->segs[i].pos0 > 0;
    return right->begin(d, &other, err);
}
static oz_status end_silent(oz_dev *d, oz_err *err) {
    right->end(d, NULL);
    return OZ_OK;
}
static oz_status mem_dirty(void **out, oz_dev *d, size_t n_bytes, const char *what, oz_err *err) {
    const oz_status st = right->mem_new(out, d, n_bytes, what, err);
    const uint8_t one = 1;
    if (st == OZ_OK && n_bytes) right->upload(d, (uint8_t *)*out + n_bytes - 1, &one, 1);
    return st;
}
static void upload_tail(oz_dev *d, void *dst, const void *src, size_t n_bytes) { right->upload(d, dst, src, n_bytes - 1); }
static void download_tail(oz_dev *d, void *dst, const void *src, size_t n_bytes) { right->download(d, dst, src, n_bytes - 1); }
static int form_bytes_wide(oz_form form) { return form == OZ_FORM_BF16 ? 4 : right->form_bytes(form); }
static oz_status lower_scale(oz_lowered **out, oz_dev *d, const oz_program *p, oz_err *err) {
    static oz_program other; /* outlives what is made of it: the last one lowered is the one that runs */
    other = *p, other.attn_scale *= 1.02f;
    return right->lower(out, d, &other, err);
}
static bool lowered_skip(oz_lowered *l, const oz_kv *kv, oz_steps which, int64_t row0, int64_t n_rows) { return which == OZ_STEPS_LAYERS || right->lowered_run(l, kv, which, row0, n_rows); }

typedef struct mutation { const char *name, *suites; void (*apply)(oz_ops *ops); oz_cuda_mutation inside; } mutation;
#define MUTATION(fn, slot) \
    static void apply_##fn(oz_ops *ops) { ops->slot = fn; }
MUTATION(pack_group_0, pack) MUTATION(pack_neighbour, pack) MUTATION(pack_code, pack) MUTATION(linear_bias, linear) MUTATION(linear_last_token, linear)
MUTATION(linear_x_scale, linear) MUTATION(linear_one_part, linear) MUTATION(embed_ld, embed) MUTATION(norm_eps, norm) MUTATION(norm_last_head, norm)
MUTATION(quantize_tail, quantize) MUTATION(rope_swapped, rope) MUTATION(rope_table_factor, rope_table) MUTATION(kv_swapped, kv_write)
MUTATION(attention_scale, attention) MUTATION(attention_window, attention) MUTATION(attention_softcap, attention) MUTATION(gelu_silu, gelu_mul) MUTATION(scale_tail, scale) MUTATION(softcap_last, softcap)
MUTATION(silu_swapped, silu_mul) MUTATION(add_tail, add) MUTATION(gather_row0, gather)
MUTATION(stat_targets, sink_stat) MUTATION(stat_vocab, sink_stat) MUTATION(kl_swapped, sink_kl) MUTATION(combine_one, combine) MUTATION(sort_part, sort)
MUTATION(route_last, route) MUTATION(spread_unsorted, spread) MUTATION(grouped_next, grouped_linear) MUTATION(begin_blocks, begin) MUTATION(begin_position, begin)
MUTATION(end_silent, end) MUTATION(mem_dirty, mem_new) MUTATION(upload_tail, upload) MUTATION(download_tail, download) MUTATION(form_bytes_wide, form_bytes)
MUTATION(lower_scale, lower) MUTATION(lowered_skip, lowered_run) MUTATION(rope_pairs_halves, rope_pairs) MUTATION(mla_rope, mla_write)
MUTATION(latent_scale, latent) MUTATION(latent_window, latent) MUTATION(conv_taps, conv) MUTATION(scan_values, scan)

#define ROW(fn, suites) {#fn, suites, apply_##fn, OZ_MUTATION_NONE},
#define ROW_INSIDE(id, suites, what) {what, suites, NULL, OZ_MUTATION_##id},
static const mutation mutations[] = {
    ROW(mem_dirty, "memory") ROW(upload_tail, "memory") ROW(download_tail, "memory") ROW(form_bytes_wide, "products") ROW(end_silent, "memory")
    ROW(begin_blocks, "attention") ROW(begin_position, "batch")
    ROW(pack_group_0, "products") ROW(pack_neighbour, "products") ROW(pack_code, "products batch")
    ROW(linear_bias, "products") ROW(linear_last_token, "products") ROW(linear_x_scale, "products") ROW(linear_one_part, "products")
    ROW(embed_ld, "batch") ROW(norm_eps, "rows") ROW(norm_last_head, "rows") ROW(quantize_tail, "rows") ROW(rope_swapped, "rows") ROW(rope_table_factor, "batch")
    ROW(kv_swapped, "attention") ROW(attention_scale, "attention") ROW(attention_window, "attention") ROW(attention_softcap, "attention") ROW(gelu_silu, "rows") ROW(scale_tail, "rows") ROW(softcap_last, "rows")
    ROW(rope_pairs_halves, "rows") ROW(mla_rope, "latent") ROW(latent_scale, "latent") ROW(latent_window, "latent") ROW(conv_taps, "scan") ROW(scan_values, "scan")
    ROW(silu_swapped, "rows") ROW(add_tail, "rows") ROW(gather_row0, "batch")
    ROW(route_last, "experts") ROW(sort_part, "experts") ROW(spread_unsorted, "experts") ROW(grouped_next, "experts") ROW(combine_one, "experts")
    ROW(stat_targets, "sinks") ROW(stat_vocab, "sinks") ROW(kl_swapped, "sinks") ROW(lower_scale, "lowered") ROW(lowered_skip, "lowered")
    OZ_CUDA_MUTATIONS(ROW_INSIDE)};

/* One suite under one mutation, on a device of its own: what a broken kernel leaves behind is not the next one's. 1: it stayed green; -1: err */
static int escaped(const char *device, const mutation *m, const dck_suite *s, uint64_t seed, oz_err *err) {
    dck k = {0};
    ck c;
    if (oz_dev_open(&k.dev, &(oz_dev_cfg){device, 1, "auto", false}, err) != OZ_OK || ck_init(&c, "auto", seed, err) != OZ_OK) return -1;
    right = k.dev->ops;
    oz_ops wrong = *right;
    if (m->apply) m->apply(&wrong);
    else oz_cuda_mutate(m->inside);
    k.dev->ops = &wrong; /* for models, which ask the device */
    c.slot = s->slot, c.quiet = true;
    k.c = &c, k.ops = &wrong, k.ref = &c.ref.head, k.ref_ops = c.ref.head.ops;
    s->run(&k);
    if (!m->apply) oz_cuda_mutate(OZ_MUTATION_NONE);
    k.dev->ops = right;
    const int green = c.n_fail == 0;
    printf("%-4s %-10s %s\n", green ? "FAIL" : "ok", s->slot, m->name);
    fflush(stdout);
    ck_deinit(&c);
    oz_dev_close(&k.dev);
    return green;
}

int ck_device_mutations(const char *name, const char *only, uint64_t seed, oz_err *err) {
    int n_green = 0, n = 0, n_inside = 0;
    for (int i = 0; i < CK_COUNT(mutations); i++) {
        const mutation *m = &mutations[i];
        n_inside += !m->apply;
        if (!m->apply && !oz_cuda_mutate) continue;
        for (const dck_suite *s = dck_suites; s->slot; s++) {
            if (!strstr(m->suites, s->slot) || (only && !strstr(s->slot, only))) continue;
            const int green = escaped(name, m, s, seed, err);
            if (green < 0) return -1;
            n_green += green, n++;
        }
    }
    printf("%d of %d mutations escaped\n", n_green, n);
    if (!oz_cuda_mutate) printf("not in this program: %d mutations inside kernels (check-mutated has them)\n", n_inside);
    return n_green;
}
