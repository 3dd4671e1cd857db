/* Speed of a device's attention, and of its products: the four linear steps of a layer of Qwen3-8B (q/k/v, o, gate + up, down), on as many layers of weights as the L2
 * cannot hold, for each form of weight and number of rows. us a layer, bytes of weights a second, and the share of this device's measured
 * read bandwidth or products a second, whichever binds. Attention of its heads (32 and 8 of 128): operations are those of visible keys. */
#include "device.h"

enum { HIDDEN = 4096, FFN = 12288, KV = 1024, LAYERS = 6, MAX_M = 512, STEPS = 4, TARGET_US = 60000 };
static const struct { int n; int64_t rows[3], cols; } steps[STEPS] = {{3, {HIDDEN, KV, KV}, HIDDEN}, {1, {HIDDEN}, HIDDEN}, {2, {FFN, FFN}, HIDDEN}, {1, {HIDDEN}, FFN}};

typedef struct bench { oz_dev *dev; const oz_ops *ops; oz_packed *w[LAYERS][STEPS][3]; oz_rows x; float *y; size_t bytes; double flop_tok; } bench;

/* Random codes; scales of 0.01. */
static oz_status weight_pack(oz_packed **out, bench *b, oz_codec codec, oz_form form, int64_t group, int64_t rows, int64_t cols, oz_rng *rng, oz_err *err) {
    const oz_codec_info *info = oz_codec_get(codec);
    oz_weight w = {.codec = codec, .rows = rows, .cols = cols, .group_size = group ? group : cols, .row_bytes = oz_codec_row_bytes(codec, cols), .scale_dtype = OZ_DTYPE_F32};
    const size_t n = (size_t)(rows * w.row_bytes), n_scales = (size_t)(rows * oz_weight_groups(&w));
    uint8_t *codes;
    float *scales;
    OZ_TRY(oz_big_new((void **)&codes, n, "weight", err));
    OZ_TRY(oz_big_new((void **)&scales, n_scales * sizeof *scales, "scales", err));
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t v = oz_rng_next(rng);
        if (info->dtype == OZ_DTYPE_BF16) v = (v & 0x80ff80ff80ff80ffull) | 0x3c003c003c003c00ull; /* +-0.008 to 0.03 */
        if (codec == OZ_CODEC_F8E4M3) v &= 0xbfbfbfbfbfbfbfbfull; /* no NaN */
        memcpy(codes + i, &v, 8);
    }
    for (size_t i = 0; i < n_scales; i++) scales[i] = 0.01f;
    w.codes = codes, w.scales = info->plain ? NULL : scales;
    const oz_status st = b->ops->pack(out, b->dev, &w, 0, rows, form, err);
    oz_big_free(codes), oz_big_free(scales);
    return st;
}

static oz_status bench_open(bench *b, oz_codec codec, oz_form form, int64_t group, oz_err *err) {
    oz_rng rng;
    oz_rng_init(&rng, 3);
    b->bytes = 0, b->flop_tok = 0;
    for (int l = 0; l < LAYERS; l++)
        for (int s = 0; s < STEPS; s++)
            for (int p = 0; p < steps[s].n; p++) {
                OZ_TRY(weight_pack(&b->w[l][s][p], b, codec, form, group, steps[s].rows[p], steps[s].cols, &rng, err));
                if (l == 0) b->bytes += oz_packed_bytes(b->w[l][s][p]), b->flop_tok += 2.0 * (double)(steps[s].rows[p] * steps[s].cols);
            }
    float *x = oz_alloc_array((size_t)MAX_M * FFN, sizeof *x);
    for (int64_t i = 0; i < (int64_t)MAX_M * FFN; i++) x[i] = (float)oz_rng_normal(&rng);
    void *xd, *data, *scales;
    OZ_TRY(b->ops->mem_new(&xd, b->dev, (size_t)MAX_M * FFN * 4, "x", err));
    OZ_TRY(b->ops->mem_new(&data, b->dev, (size_t)MAX_M * FFN * (size_t)b->ops->form_bytes(form), "x", err));
    OZ_TRY(b->ops->mem_new(&scales, b->dev, MAX_M * 4, "x", err));
    OZ_TRY(b->ops->mem_new((void **)&b->y, b->dev, (size_t)MAX_M * 2 * FFN * 4, "y", err));
    b->ops->upload(b->dev, xd, x, (size_t)MAX_M * FFN * 4);
    b->x = (oz_rows){form, data, FFN, form == OZ_FORM_Q8 || form == OZ_FORM_F8 ? scales : NULL};
    const oz_rows to = {form, data, FFN, scales};
    b->ops->quantize(b->dev, &to, xd, FFN, MAX_M, FFN);
    oz_free(x);
    b->ops->mem_free(b->dev, xd);
    return b->ops->end(b->dev, err);
}

static void bench_close(bench *b) {
    for (int l = 0; l < LAYERS; l++)
        for (int s = 0; s < STEPS; s++)
            for (int p = 0; p < steps[s].n; p++)
                if (b->w[l][s][p]) b->ops->packed_free(b->dev, &b->w[l][s][p]);
    b->ops->mem_free(b->dev, b->x.data), b->ops->mem_free(b->dev, b->y);
    memset(b->w, 0, sizeof b->w);
}

/* us a layer of steps [s0, s1). */
static double time_steps(bench *b, int s0, int s1, int64_t m, oz_err *err) {
    double best = 0;
    for (int64_t reps = 2, round = 0; round < 6;) {
        const int64_t t0 = oz_clock_us();
        for (int64_t r = 0; r < reps; r++)
            for (int l = 0; l < LAYERS; l++)
                for (int s = s0; s < s1; s++) b->ops->linear(b->dev, &(oz_linear_args){(const oz_packed *const *)b->w[l][s], NULL, steps[s].n, b->x, b->y, 2 * FFN, m});
        if (b->ops->end(b->dev, err) != OZ_OK) return 0;
        const double us = (double)(oz_clock_us() - t0);
        if (us < TARGET_US / 2) {
            reps *= 2;
            continue;
        }
        const double each = us / (double)(reps * LAYERS);
        if (best == 0 || each < best) best = each;
        round++;
    }
    return best;
}

/* Sequences of n_tok tokens behind pos0 others: us of one call of attention. */
enum { HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128, MAX_SEQ = 8 };
typedef struct attn_row { int n_seq; int64_t n_tok, pos0; } attn_row;

static double time_attention(bench *b, const attn_row *r, oz_attn_args *a, oz_err *err) {
    const int64_t n_blocks = (r->pos0 + r->n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    int32_t *blocks = oz_alloc_array((size_t)(r->n_seq * n_blocks), sizeof *blocks);
    oz_seg segs[MAX_SEQ];
    for (int64_t i = 0; i < r->n_seq * n_blocks; i++) blocks[i] = (int32_t)(r->n_seq * n_blocks - 1 - i);
    for (int s = 0; s < r->n_seq; s++) segs[s] = (oz_seg){s * r->n_tok, r->n_tok, r->pos0, blocks + s * n_blocks};
    const oz_batch batch = {.n_tok = r->n_seq * r->n_tok, .segs = segs, .n_segs = r->n_seq};
    double best = 0;
    for (int64_t reps = 1, round = 0; round < 6;) {
        if (b->ops->begin(b->dev, &batch, err) != OZ_OK) break;
        const int64_t t0 = oz_clock_us();
        for (int64_t i = 0; i < reps; i++) b->ops->attention(b->dev, a);
        if (b->ops->end(b->dev, err) != OZ_OK) break;
        const double us = (double)(oz_clock_us() - t0), each = us / (double)reps;
        if (us < TARGET_US / 2) {
            reps *= 2;
            continue;
        }
        if (best == 0 || each < best) best = each;
        round++;
    }
    oz_free(blocks);
    return best;
}

static oz_status bench_attention(bench *b, oz_err *err) {
    static const attn_row rows[] = {{1, 2048, 0}, {4, 2048, 0}, {1, 512, 0}, {8, 512, 0}, {1, 512, 7680}, {8, 64, 0}, {1, 1, 2047}, {8, 1, 2047}};
    enum { MAX_TOK = 8192, MAX_KEYS = 16384, Q_FLOATS = MAX_TOK * HEADS * HEAD_DIM, KV_FLOATS = MAX_KEYS * KV_HEADS * HEAD_DIM }; /* of all sequences */
    oz_rng rng;
    oz_rng_init(&rng, 4);
    void *q, *out, *k, *v;
    OZ_TRY(b->ops->mem_new(&q, b->dev, (size_t)Q_FLOATS * 4, "q", err));
    OZ_TRY(b->ops->mem_new(&out, b->dev, (size_t)Q_FLOATS * 4, "out", err));
    OZ_TRY(b->ops->mem_new(&k, b->dev, (size_t)KV_FLOATS * 4, "k", err));
    OZ_TRY(b->ops->mem_new(&v, b->dev, (size_t)KV_FLOATS * 4, "v", err));
    float *x = oz_alloc_array((size_t)Q_FLOATS, sizeof *x);
    for (int64_t i = 0; i < Q_FLOATS; i++) x[i] = (float)(oz_rng_next(&rng) >> 40) * 0x1p-22f - 2;
    b->ops->upload(b->dev, q, x, (size_t)Q_FLOATS * 4), b->ops->upload(b->dev, k, x + 77, (size_t)KV_FLOATS * 4), b->ops->upload(b->dev, v, x + 5, (size_t)KV_FLOATS * 4);
    oz_free(x);
    const oz_kv kv = {k, v, KV_HEADS, HEAD_DIM, HEAD_DIM, NULL, NULL};
    oz_attn_args a = {q, HEADS * HEAD_DIM, out, HEADS * HEAD_DIM, &kv, HEADS, 0.0883883461f, 0, 0};
    printf("%-12s %4s %9s %9s %9s %9s\n", "attention", "seqs", "tokens", "behind", "us", "TFLOP/s");
    for (int i = 0; i < CK_COUNT(rows); i++) {
        const attn_row *r = &rows[i];
        const double us = time_attention(b, r, &a, err), n = (double)r->n_tok, pairs = n * (double)r->pos0 + 0.5 * n * (n + 1);
        if (us == 0) break;
        printf("%-12s %4d %9lld %9lld %9.1f %9.2f\n", "32/8 x 128", r->n_seq, (long long)r->n_tok, (long long)r->pos0, us, r->n_seq * pairs * HEADS * HEAD_DIM * 4 / us / 1e6);
        fflush(stdout);
    }
    void *all[] = {q, out, k, v};
    for (int i = 0; i < CK_COUNT(all); i++) b->ops->mem_free(b->dev, all[i]);
    return b->ops->end(b->dev, err);
}

int ck_device_bench(const char *name, const char *only, bool deterministic, oz_err *err) {
    static const struct { const char *name; oz_codec codec; oz_form form; int64_t group; } list[] = {
        {"bf16", OZ_CODEC_BF16, OZ_FORM_BF16, 0},       {"W8A16", OZ_CODEC_I8P, OZ_FORM_BF16, 0}, {"W4A16 g128", OZ_CODEC_I4P, OZ_FORM_BF16, 128},
        {"W4A16 g64", OZ_CODEC_I4P, OZ_FORM_BF16, 64}, {"W8A8", OZ_CODEC_I8, OZ_FORM_Q8, 0},     {"FP8_DYNAMIC", OZ_CODEC_F8E4M3, OZ_FORM_F8, 0}};
    static const int64_t ms[] = {1, 2, 8, 16, 64, 512};
    bench b = {0};
    oz_ceiling ceil;
    if (oz_dev_open(&b.dev, &(oz_dev_cfg){name, 1, "auto", deterministic}, err) != OZ_OK) return -1;
    b.ops = oz_dev_ops(b.dev);
    oz_dev_ceiling(b.dev, &ceil);
    printf("%s: reads %.2f TB/s, bf16 %.0f TFLOP/s, int8 %.0f TOP/s\n", oz_dev_describe(b.dev), ceil.read_bytes_s / 1e12, ceil.bf16_flop_s / 1e12, ceil.i8_op_s / 1e12);
    if ((!only || strstr("attention", only)) && bench_attention(&b, err) != OZ_OK) return -1;
    printf("%-12s %4s %9s %9s %9s %9s %9s  %s\n", "weights", "M", "qkv us", "o us", "gate_up", "down", "layer us", "share of the ceiling that binds");
    for (int i = 0; i < CK_COUNT(list); i++) {
        if (only && !strstr(list[i].name, only)) continue;
        oz_status st = bench_open(&b, list[i].codec, list[i].form, list[i].group, err);
        for (int j = 0; st == OZ_OK && j < CK_COUNT(ms); j++) {
            double us[STEPS];
            for (int s = 0; s < STEPS; s++) us[s] = time_steps(&b, s, s + 1, ms[j], err);
            const double all = time_steps(&b, 0, STEPS, ms[j], err), mem = (double)b.bytes / ceil.read_bytes_s * 1e6;
            const double alu = b.flop_tok * (double)ms[j] / (list[i].form == OZ_FORM_Q8 ? ceil.i8_op_s : ceil.bf16_flop_s) * 1e6;
            printf("%-12s %4lld %9.1f %9.1f %9.1f %9.1f %9.1f  %4.0f %% %s, %.2f TB/s of weights, %.0f TFLOP/s\n", list[i].name, (long long)ms[j], us[0], us[1], us[2], us[3], all, 100 * (mem > alu ? mem : alu) / all,
                   mem > alu ? "memory" : "products", (double)b.bytes / all / 1e6, b.flop_tok * (double)ms[j] / all / 1e6);
            fflush(stdout);
        }
        bench_close(&b);
        if (st != OZ_OK) return -1;
    }
    oz_dev_close(&b.dev);
    return 0;
}
