/* How fast the slots are, on shapes of a 135M model (hidden 576, 9 heads, 3 KV heads of 64, 1536, vocabulary 49,152) and on large matrices.
 *
 * Each case runs in slices of some milliseconds and the best slice counts. Beside time stand bytes (weights or activations, read once and
 * written once), operations, and the larger of the two shares of this machine's ceilings, measured in the same run. Weights of a
 * one-token product come from copies that together are larger than the caches. */
#include "suites.h"

enum { SLICE_US = 2000, TOTAL_US = 150000, COLD_BYTES = 600 << 20 /* of weights that few tokens meet: more than a last cache holds */, FEW_TOKENS = 32, MAX_COPIES = 4096, VOCAB = 49152 };

typedef struct bench {
    oz_dev *dev;
    oz_ceiling top;
    const char *only, *format;
    oz_rng rng;
    int n_printed;
} bench;

typedef struct bench_case {
    const char *slot, *shape;
    double bytes, ops;
    enum { IN_F32, IN_BF16, IN_INT8 } unit; /* whose ceiling counts */
    void (*run)(const bench *b, void *arg, int64_t i);
    void *arg;
} bench_case;

static double time_us(const bench *b, const bench_case *k) {
    int64_t n = 1, i = 0, spent = 0;
    double best = INFINITY;
    while (spent < TOTAL_US) {
        int64_t start = oz_clock_us();
        for (int64_t j = 0; j < n; j++) k->run(b, k->arg, i++);
        int64_t us = oz_clock_us() - start;
        spent += us;
        if (us < SLICE_US / 2 && us < TOTAL_US) n *= 2;
        else best = fmin(best, (double)us / (double)n);
    }
    return best;
}

static void bench_run(bench *b, const bench_case *k) {
    if (b->only && !strstr(k->slot, b->only)) return;
    double us = time_us(b, k), gb = k->bytes / us * 1e-3, gop = k->ops / us * 1e-3;
    double of_read = b->top.read_bytes_s > 0 ? gb * 1e9 / b->top.read_bytes_s : 0;
    const double tops[] = {b->top.f32_flop_s, b->top.bf16_flop_s, b->top.i8_op_s};
    double of_ops = gop * 1e9 / tops[k->unit], share = fmax(of_read, of_ops);
    static const char *const units[] = {"f32", "bf16", "int8"};
    const char *bound = of_read > of_ops ? "read" : units[k->unit], *level = oz_cpu(b->dev)->table.level;
    if (strcmp(b->format, "csv") == 0) {
        if (!b->n_printed) printf("level,slot,shape,us,gb_s,gop_s,share,bound\n");
        printf("%s,%s,%s,%.3f,%.3f,%.3f,%.4f,%s\n", level, k->slot, k->shape, us, gb, gop, share, bound);
    } else if (strcmp(b->format, "json") == 0) {
        printf("%s{\"level\": \"%s\", \"slot\": \"%s\", \"shape\": \"%s\", \"us\": %.3f, \"gb_s\": %.3f, \"gop_s\": %.3f, \"share\": %.4f, \"bound\": \"%s\"}",
               b->n_printed ? ",\n  " : "  ", level, k->slot, k->shape, us, gb, gop, share, bound);
    } else {
        if (!b->n_printed) printf("%-5s %-14s %-26s %11s %8s %8s %7s\n", "level", "slot", "shape", "us", "GB/s", "GOP/s", "share");
        printf("%-5s %-14s %-26s %11.2f %8.2f %8.2f %4.0f %% %s\n", level, k->slot, k->shape, us, gb, gop, 100 * share, bound);
    }
    fflush(stdout);
    b->n_printed++;
}

static float *normals(bench *b, int64_t n) {
    float *x = oz_alloc_array((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)oz_rng_normal(&b->rng);
    return x;
}

/* ---- products ---- */

typedef struct gemm_arg { oz_packed *copies[MAX_COPIES]; int n_copies; oz_rows x; float *y; int64_t n_tok; } gemm_arg;

static void run_gemm(const bench *b, void *arg, int64_t i) {
    gemm_arg *g = arg;
    const oz_packed *w = g->copies[i % g->n_copies];
    oz_linear_args a = {&w, NULL, 1, g->x, g->y, w->rows, g->n_tok};
    oz_dev_ops(b->dev)->linear(b->dev, &a);
}

static oz_status bench_gemm(bench *b, oz_codec codec, oz_form form, const char *slot, const int64_t shape[3], oz_err *err) {
    if ((b->only && !strstr(slot, b->only)) || !oz_cpu_multiplies(b->dev, codec, form)) return OZ_OK;
    int64_t rows = shape[0], cols = shape[1], n_tok = shape[2];
    if (oz_codec_get(codec)->plain && cols % oz_dtype_get(oz_codec_get(codec)->dtype)->block_elems) return OZ_OK; /* no such weight */
    oz_weight w = {.codec = codec, .rows = rows, .cols = cols, .row_bytes = oz_codec_row_bytes(codec, cols), .scale_dtype = OZ_DTYPE_F32};
    w.group_size = codec == OZ_CODEC_I4P ? 64 : cols;
    uint8_t *codes = oz_alloc_array((size_t)rows, (size_t)w.row_bytes);
    for (int64_t i = 0; i < rows * w.row_bytes; i++) codes[i] = (uint8_t)(oz_rng_next(&b->rng) & 0x3b); /* small and finite in every codec */
    float *scales = normals(b, rows * oz_weight_groups(&w));
    w.codes = codes;
    if (!oz_codec_get(codec)->plain) w.scales = scales;
    gemm_arg *g = oz_alloc(sizeof *g);
    oz_status st = OZ_OK;
    do {
        st = oz_cpu_pack(&g->copies[g->n_copies], b->dev, &w, 0, rows, form, err);
    } while (st == OZ_OK && ++g->n_copies < MAX_COPIES && n_tok <= FEW_TOKENS && oz_packed_bytes(g->copies[0]) * (size_t)g->n_copies < COLD_BYTES);
    float *x = normals(b, n_tok * cols), *x_scale = normals(b, n_tok), *y = oz_alloc_array((size_t)(n_tok * rows), sizeof *y);
    if (st == OZ_OK) {
        g->x = (oz_rows){form, x, cols, x_scale};
        g->y = y;
        g->n_tok = n_tok;
        char text[64];
        snprintf(text, sizeof text, "[%lld %lld] x %lld", (long long)rows, (long long)cols, (long long)n_tok);
        bench_case k = {slot, text, (double)oz_packed_bytes(g->copies[0]), 2.0 * (double)(rows * cols * n_tok), form == OZ_FORM_Q8 ? IN_INT8 : form == OZ_FORM_BF16 ? IN_BF16 : IN_F32, run_gemm, g};
        bench_run(b, &k);
    }
    for (int i = 0; i < g->n_copies; i++) oz_cpu_packed_free(b->dev, &g->copies[i]);
    void *all[] = {x, x_scale, y, scales, codes, g};
    for (int i = 0; i < CK_COUNT(all); i++) oz_free(all[i]);
    return st;
}

static oz_status bench_gemms(bench *b, oz_err *err) {
    static const struct { oz_codec codec; oz_form form; const char *slot; } rows[] = {
        {OZ_CODEC_F32, OZ_FORM_F32, "gemm_f32_f32"},   {OZ_CODEC_F16, OZ_FORM_F32, "gemm_f16_f32"}, {OZ_CODEC_BF16, OZ_FORM_F32, "gemm_bf16_f32"},
        {OZ_CODEC_I8, OZ_FORM_F32, "gemm_i8_f32"},     {OZ_CODEC_I8, OZ_FORM_Q8, "gemm_i8_q8"},     {OZ_CODEC_I4P, OZ_FORM_F32, "gemm_i4_f32"},
        {OZ_CODEC_BF16, OZ_FORM_BF16, "gemm_bf16_bf16"}, {OZ_CODEC_I8, OZ_FORM_BF16, "gemm_i8_bf16"}, {OZ_CODEC_I4P, OZ_FORM_BF16, "gemm_i4_bf16"},
        {OZ_CODEC_F8E4M3, OZ_FORM_BF16, "gemm_f8_bf16"}, {OZ_CODEC_F8E4M3, OZ_FORM_F32, "gemm_f8_f32"}, {OZ_CODEC_F8E4M3, OZ_FORM_F8, "gemm_f8_f8"},
        {OZ_CODEC_Q4_1, OZ_FORM_F32, "gemm_u4_f32"}, {OZ_CODEC_IQ4_NL, OZ_FORM_F32, "gemm_l4_f32"}};
    static const int64_t shapes[][3] = {{1536, 576, 1}, {576, 1536, 1}, {2048, 4096, 1}, {1536, 576, 8}, {1536, 576, 512}, {576, 1536, 512},
                                         {9728, 2560, 1}, {9728, 2560, 128}, {2560, 9728, 128}, /* a 4B model */
                                         {1408, 2048, 1}, {1408, 2048, 2}, {1408, 2048, 4}, {1408, 2048, 6}, {1408, 2048, 16}, {1408, 2048, 32}}; /* an expert */
    for (int i = 0; i < CK_COUNT(rows); i++) {
        for (int s = 0; s < CK_COUNT(shapes); s++) OZ_TRY(bench_gemm(b, rows[i].codec, rows[i].form, rows[i].slot, shapes[s], err));
    }
    return OZ_OK;
}

/* ---- rows: one token on one thread ---- */

typedef struct row_arg { float *x, *y, *z; int64_t n; } row_arg;

static void run_norm(const bench *b, void *arg, int64_t i) { row_arg *r = arg; oz_cpu(b->dev)->table.norm(r->y, r->x, r->z, r->n, 1e-5f); }
static void run_q8(const bench *b, void *arg, int64_t i) { row_arg *r = arg; oz_cpu(b->dev)->table.quantize_q8((int8_t *)r->y, r->x, r->n); }
static void run_f8(const bench *b, void *arg, int64_t i) { row_arg *r = arg; oz_cpu(b->dev)->table.quantize_f8(r->y, r->x, r->n); }
static void run_rope(const bench *b, void *arg, int64_t i) { row_arg *r = arg; oz_cpu(b->dev)->table.rope(r->y, r->x, r->z, r->n); }
static void run_silu(const bench *b, void *arg, int64_t i) { row_arg *r = arg; oz_cpu(b->dev)->table.silu_mul(r->y, r->x, r->z, r->n); }
static void run_gelu(const bench *b, void *arg, int64_t i) { row_arg *r = arg; oz_cpu(b->dev)->table.gelu_mul(r->y, r->x, r->z, r->n); }
static void run_add(const bench *b, void *arg, int64_t i) { row_arg *r = arg; oz_cpu(b->dev)->table.add(r->y, r->x, r->n); }
static void run_stat(const bench *b, void *arg, int64_t i) {
    row_arg *r = arg;
    oz_row_stat s;
    oz_cpu(b->dev)->table.stat(&s, r->x, 1, r->n);
}
static void run_kl(const bench *b, void *arg, int64_t i) {
    row_arg *r = arg;
    oz_kl_stat s;
    oz_cpu(b->dev)->table.kl(&s, r->x, r->z, 1, r->n);
}

static void bench_rows(bench *b) {
    row_arg r = {normals(b, VOCAB), normals(b, VOCAB), normals(b, VOCAB), 0};
    const struct { const char *slot, *shape; int64_t n; double floats, ops; void (*run)(const bench *, void *, int64_t); } rows[] = {
        {"norm", "576", 576, 3, 4, run_norm},        {"quantize_q8", "576", 576, 1.25, 3, run_q8}, {"quantize_f8", "576", 576, 2, 3, run_f8},
        {"rope", "64", 32, 6, 6, run_rope},          {"silu_mul", "1536", 1536, 3, 4, run_silu},   {"gelu_mul", "1536", 1536, 3, 9, run_gelu},   {"add", "576", 576, 3, 1, run_add},
        {"stat", "49152", VOCAB, 1, 3, run_stat},    {"kl", "49152", VOCAB, 2, 8, run_kl}};
    for (int i = 0; i < CK_COUNT(rows); i++) {
        r.n = rows[i].n;
        bench_case k = {rows[i].slot, rows[i].shape, rows[i].floats * 4 * (double)r.n, rows[i].ops * (double)r.n, IN_F32, rows[i].run, &r};
        bench_run(b, &k);
    }
    oz_free(r.x), oz_free(r.y), oz_free(r.z);
}

/* ---- attention ---- */

static void run_attention(const bench *b, void *arg, int64_t i) { oz_dev_ops(b->dev)->attention(b->dev, arg); }

static void bench_attention(bench *b, int64_t n_tok, int64_t pos0, const char *shape) {
    enum { HEADS = 9, KV_HEADS = 3, DIM = 64 };
    int64_t n_pos = n_tok + pos0, n_blocks = (n_pos + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    int32_t *blocks = oz_alloc_array((size_t)n_blocks, sizeof *blocks);
    for (int64_t i = 0; i < n_blocks; i++) blocks[i] = (int32_t)i;
    oz_kv kv = {normals(b, n_blocks * OZ_KV_BLOCK * KV_HEADS * DIM), normals(b, n_blocks * OZ_KV_BLOCK * KV_HEADS * DIM), KV_HEADS, DIM, DIM, NULL, NULL};
    float *q = normals(b, n_tok * HEADS * DIM), *out = normals(b, n_tok * HEADS * DIM);
    oz_seg seg = {0, n_tok, pos0, blocks};
    oz_attn_args a = {q, HEADS * DIM, out, HEADS * DIM, &kv, HEADS, 0.125f, 0, 0};
    oz_cpu(b->dev)->batch = &(oz_batch){.n_tok = n_tok, .segs = &seg, .n_segs = 1};
    double pairs = (double)n_tok * (double)pos0 + 0.5 * (double)n_tok * (double)(n_tok + 1);
    bench_case k = {"attention", shape, 8.0 * (double)(n_pos * KV_HEADS * DIM), 4.0 * pairs * HEADS * DIM, IN_F32, run_attention, &a};
    bench_run(b, &k);
    oz_cpu(b->dev)->batch = NULL;
    oz_free(blocks), oz_free(kv.k), oz_free(kv.v), oz_free(q), oz_free(out);
}

oz_status ck_bench(const ck_bench_cfg *cfg, oz_err *err) {
    bench b = {.only = cfg->only, .format = cfg->format};
    oz_rng_init(&b.rng, 1);
    oz_dev_cfg dev = {.name = "cpu", .threads = cfg->threads, .cpu_level = strcmp(cfg->level, "all") == 0 ? "auto" : cfg->level};
    OZ_TRY(oz_dev_open(&b.dev, &dev, err));
    oz_dev_ceiling(b.dev, &b.top);
    if (strcmp(b.format, "text") == 0) {
        printf("%s: reads %.1f GB/s, f32 %.1f, bf16 %.1f GFLOP/s, int8 %.1f GOP/s\n", oz_dev_describe(b.dev), b.top.read_bytes_s / 1e9,
               b.top.f32_flop_s / 1e9, b.top.bf16_flop_s / 1e9, b.top.i8_op_s / 1e9);
    }
    bool json = strcmp(b.format, "json") == 0;
    if (json) printf("[\n");
    oz_status st = bench_gemms(&b, err);
    bench_rows(&b);
    bench_attention(&b, 512, 0, "prefill 512");
    bench_attention(&b, 1024, 0, "prefill 1024");
    bench_attention(&b, 1, 1023, "decode at 1024");
    if (json) printf("\n]\n");
    oz_dev_close(&b.dev);
    return st;
}
