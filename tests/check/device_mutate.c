/* The mutation run of a device: one operation at a time is replaced by one with a plausible bug that calls the right one; the suite that covers it must
 * turn red. */
#include "device.h"
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
static void silu_swapped(oz_dev *d, float *y, int64_t ld_y, const float *gate, const float *up, int64_t ld_x, int64_t n_tok, int64_t n) { right->silu_mul(d, y, ld_y, up, gate, ld_x, n_tok, n); }
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

typedef struct mutation { const char *name, *suite; void (*apply)(oz_ops *ops); } mutation;
#define MUTATION(fn, slot) \
    static void apply_##fn(oz_ops *ops) { ops->slot = fn; }
MUTATION(pack_group_0, pack) MUTATION(pack_neighbour, pack) MUTATION(pack_code, pack) MUTATION(linear_bias, linear) MUTATION(linear_last_token, linear)
MUTATION(linear_x_scale, linear) MUTATION(linear_one_part, linear) MUTATION(embed_ld, embed) MUTATION(norm_eps, norm) MUTATION(norm_last_head, norm)
MUTATION(quantize_tail, quantize) MUTATION(rope_swapped, rope) MUTATION(rope_table_factor, rope_table) MUTATION(kv_swapped, kv_write)
MUTATION(attention_scale, attention) MUTATION(attention_window, attention) MUTATION(silu_swapped, silu_mul) MUTATION(add_tail, add) MUTATION(gather_row0, gather)
MUTATION(stat_targets, sink_stat) MUTATION(stat_vocab, sink_stat) MUTATION(kl_swapped, sink_kl) MUTATION(combine_one, combine) MUTATION(sort_part, sort)

#define ROW(fn, suite) {#fn, suite, apply_##fn}
static const mutation mutations[] = {
    ROW(pack_group_0, "products"), ROW(pack_neighbour, "products"), ROW(pack_code, "products"), ROW(pack_code, "batch"), ROW(linear_bias, "products"), ROW(linear_last_token, "products"),
    ROW(linear_x_scale, "products"), ROW(linear_one_part, "products"), ROW(embed_ld, "batch"), ROW(norm_eps, "rows"), ROW(norm_last_head, "rows"), ROW(quantize_tail, "rows"), ROW(rope_swapped, "rows"),
    ROW(rope_table_factor, "batch"), ROW(kv_swapped, "attention"), ROW(attention_scale, "attention"), ROW(attention_window, "attention"), ROW(silu_swapped, "rows"), ROW(add_tail, "rows"),
    ROW(gather_row0, "batch"), ROW(stat_targets, "sinks"), ROW(stat_vocab, "sinks"), ROW(kl_swapped, "sinks"), ROW(combine_one, "experts"), ROW(sort_part, "experts")};

int ck_device_mutations(const char *name, uint64_t seed, oz_err *err) {
    dck k = {0};
    int n_green = 0;
    if (oz_dev_open(&k.dev, &(oz_dev_cfg){name, 1, "auto", false}, err) != OZ_OK) return -1;
    right = oz_dev_ops(k.dev);
    for (int i = 0; i < CK_COUNT(mutations); i++) {
        ck c;
        oz_ops wrong = *right;
        mutations[i].apply(&wrong);
        if (ck_init(&c, "auto", seed, err) != OZ_OK) return -1;
        c.slot = mutations[i].suite, c.quiet = true;
        k.c = &c, k.ops = &wrong, k.ref = &c.ref.head, k.ref_ops = c.ref.head.ops;
        for (const dck_suite *s = dck_suites; s->slot; s++)
            if (strcmp(s->slot, mutations[i].suite) == 0) s->run(&k);
        printf("%-4s %-18s %-10s %lld deviations\n", c.n_fail ? "ok" : "FAIL", mutations[i].name, mutations[i].suite, (long long)c.n_fail);
        fflush(stdout);
        n_green += c.n_fail == 0;
        ck_deinit(&c);
    }
    oz_dev_close(&k.dev);
    return n_green;
}
