/* The writer of quantized modules: what is written under any scheme of compressed-tensors, with its config, is read back as the same scheme and the same numbers. */
#include "files.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "quantize/internal.h"

#define A8 "{\"num_bits\":8,\"strategy\":\"token\",\"dynamic\":true}"
#define AF8 "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"token\",\"dynamic\":true}"
static const struct { const char *weights, *acts, *format; } CASES[] = {
    {"{\"num_bits\":2,\"group_size\":32}", "null", "pack-quantized"}, {"{\"num_bits\":3,\"group_size\":32}", "null", "pack-quantized"}, {"{\"num_bits\":4,\"group_size\":32}", "null", "pack-quantized"},
    {"{\"num_bits\":5,\"group_size\":48}", "null", "pack-quantized"}, {"{\"num_bits\":6,\"group_size\":96}", "null", "pack-quantized"}, {"{\"num_bits\":7,\"group_size\":32}", "null", "pack-quantized"},
    {"{\"num_bits\":8,\"strategy\":\"channel\"}", "null", "pack-quantized"}, {"{\"num_bits\":3,\"strategy\":\"channel\"}", "null", "pack-quantized"}, {"{\"num_bits\":4,\"strategy\":\"tensor\"}", "null", "pack-quantized"},
    {"{\"num_bits\":2,\"symmetric\":false,\"group_size\":32}", "null", "pack-quantized"}, {"{\"num_bits\":3,\"symmetric\":false,\"group_size\":32}", "null", "pack-quantized"},
    {"{\"num_bits\":4,\"symmetric\":false,\"group_size\":32}", "null", "pack-quantized"}, {"{\"num_bits\":5,\"symmetric\":false,\"group_size\":48}", "null", "pack-quantized"},
    {"{\"num_bits\":6,\"symmetric\":false,\"strategy\":\"channel\"}", "null", "pack-quantized"}, {"{\"num_bits\":7,\"symmetric\":false,\"group_size\":32}", "null", "pack-quantized"},
    {"{\"num_bits\":8,\"symmetric\":false,\"strategy\":\"channel\"}", "null", "pack-quantized"}, {"{\"num_bits\":4,\"symmetric\":false,\"strategy\":\"tensor\"}", "null", "pack-quantized"},
    {"{\"num_bits\":4,\"group_size\":32,\"actorder\":\"group\"}", "null", "pack-quantized"}, {"{\"num_bits\":8,\"symmetric\":false,\"group_size\":48,\"actorder\":true}", "null", "pack-quantized"},
    {"{\"num_bits\":4,\"group_size\":32}", A8, "pack-quantized"}, {"{\"num_bits\":4,\"group_size\":32}", AF8, "int-quantized"}, {"{\"num_bits\":4,\"group_size\":32}", A8, "int-quantized"},
    {"{\"num_bits\":8,\"strategy\":\"channel\"}", A8, "int-quantized"}, {"{\"num_bits\":8,\"strategy\":\"tensor\"}", A8, "int-quantized"},
    {"{\"num_bits\":8,\"symmetric\":false,\"strategy\":\"channel\"}", "{\"num_bits\":8,\"strategy\":\"token\",\"dynamic\":true,\"symmetric\":false}", "int-quantized"},
    {"{\"num_bits\":8,\"strategy\":\"channel\"}", "{\"num_bits\":8,\"strategy\":\"tensor\",\"symmetric\":false}", "int-quantized"}, {"{\"num_bits\":8,\"strategy\":\"channel\"}", "null", "int-quantized"},
    {"{\"num_bits\":3,\"symmetric\":false,\"group_size\":32}", "null", "naive-quantized"}, {"{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"}", "null", "naive-quantized"},
    {"{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"}", AF8, "float-quantized"},
    {"{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\"}", "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\"}", "float-quantized"},
    {"{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[32,40]}", "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32,\"dynamic\":true}", "float-quantized"},
    {"{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16,\"scale_dtype\":\"torch.float8_e4m3fn\"}", "null", "nvfp4-pack-quantized"},
    {"{\"num_bits\":4,\"type\":\"float\",\"group_size\":32,\"scale_dtype\":\"torch.uint8\"}", "null", "mxfp4-pack-quantized"},
    {"{\"num_bits\":6,\"type\":\"float\",\"group_size\":32,\"scale_dtype\":\"torch.uint8\"}", "null", "mxfp6-pack-quantized"},
    {"{\"num_bits\":8,\"type\":\"float\",\"group_size\":32,\"scale_dtype\":\"torch.uint8\"}", "null", "mxfp8-quantized"},
};
enum { N_CASES = sizeof CASES / sizeof *CASES, ROWS = 75, COLS = 96 };

static void must(oz_status st, const oz_err *e) {
    if (st != OZ_OK) fail_msg("%s", e->msg);
}

/* Numbers that a scheme can store, by row, column and group. */
typedef struct numbers { oz_scheme s; oz_dtype scale; int64_t cols; int32_t *g_idx; } numbers;

static uint32_t noise(int64_t a, int64_t b) {
    uint32_t h = (uint32_t)a * 0x9e3779b1u ^ (uint32_t)b * 0x85ebca77u;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    return h ^ h >> 13;
}

static float code_at(const numbers *n, int64_t r, int64_t c) {
    const uint32_t v = noise(r, c);
    if (oz_codec_get(n->s.codec)->codebook) return (float)(v % (1u << n->s.bits));
    if (!n->s.is_float) return (float)((int)(v % (1u << n->s.bits)) - (1 << (n->s.bits - 1)));
    return oz_f32_from_e4m3((uint8_t)(v % 127 + v / 127 % 2 * 128));
}

static float scale_at(const numbers *n, int64_t band, int64_t g) {
    const uint32_t v = n->s.per_tensor ? 5 : noise(band + 1000, g);
    if (n->s.store > OZ_STORE_NVFP4) return v % 2 ? 0x1p-9f : 0x1p-126f;
    if (n->s.store == OZ_STORE_NVFP4) return oz_f32_from_e4m3((uint8_t)(1 + v % 126));
    return (float)(1 + v % 200) * 0x1p-12f;
}

static float zero_at(const numbers *n, int64_t band, int64_t g) {
    return n->s.symmetric ? 0 : (float)((int)((n->s.per_tensor ? 1 : noise(band, g + 77)) % (1u << n->s.bits)) - (1 << (n->s.bits - 1)));
}

static oz_status make_band(void *arg, const oz_band *b, oz_err *err) {
    const numbers *n = arg;
    const int64_t band_rows = n->s.block_rows > 0 ? n->s.block_rows : 1, groups = n->s.group_size > 0 ? (n->cols + n->s.group_size - 1) / n->s.group_size : 1;
    for (int64_t r = 0; r < b->n_rows; r++)
        for (int64_t c = 0; c < n->cols; c++) b->codes[r * n->cols + c] = code_at(n, b->row0 + r, c);
    for (int64_t g = 0; g < groups; g++) b->scales[g] = scale_at(n, b->row0 / band_rows, g), b->zeros[g] = zero_at(n, b->row0 / band_rows, g);
    return OZ_OK;
}

static json_t *config_of(const oz_module *m, const oz_scheme *s) { return json_pack("{so}", "quantization_config", oz_scheme_config(m, s, 1, NULL)); }

static oz_ckpt *write_module(const oz_module *m, numbers *n, int threads) {
    oz_err err = {0};
    oz_part parts[OZ_MAX_PARTS];
    oz_layout *l = oz_layout_new(0);
    oz_pool *pool = oz_pool_new(threads);
    oz_writer *w;
    oz_stream s;
    oz_ckpt *c;
    const int n_parts = oz_scheme_parts(parts, &n->s, m->rows, m->cols, n->scale);
    for (int i = 0; i < n_parts; i++) {
        char *name = oz_asprintf("%s%s", m->name, parts[i].suffix);
        must(oz_layout_add(l, name, parts[i].dtype, parts[i].n_dims, parts[i].dims, &err), &err);
        oz_free(name);
    }
    must(oz_layout_fix(l, &err), &err);
    must(oz_writer_open(&w, l, test_dir, &err), &err);
    oz_stream_init(&s, w, pool, "writing", 1);
    must(oz_stream_made(&s, m, &n->s, n->scale, &(oz_made){make_band, n, n->g_idx, 8.0f, 0.25f, -3}, &err), &err);
    oz_stream_deinit(&s);
    must(oz_writer_finish(w, &err), &err);
    oz_writer_close(&w);
    oz_layout_free(&l);
    oz_pool_free(&pool);
    json_t *config = config_of(m, &n->s);
    must(oz_config_write(config, test_dir, &err), &err);
    json_decref(config);
    must(oz_ckpt_open(&c, test_dir, &err), &err);
    return c;
}

static void check_numbers(const oz_weight *w, const numbers *n) {
    const int64_t groups = oz_weight_groups(w), band_rows = n->s.block_rows > 0 ? n->s.block_rows : 1;
    float *codes = oz_alloc_array((size_t)w->cols + 2 * (size_t)groups, sizeof *codes), *scales = codes + w->cols, *zeros = scales + groups;
    const float divisor = n->s.store == OZ_STORE_NVFP4 ? 8.0f : 1.0f;
    for (int64_t r = 0; r < w->rows; r++) {
        oz_weight_codes(codes, w, r, 0, w->cols);
        oz_weight_scales(scales, zeros, w, r);
        for (int64_t c = 0; c < w->cols; c++)
            if (codes[c] != code_at(n, r, c)) fail_msg("code %g at %d, %d, expected %g", (double)codes[c], (int)r, (int)c, (double)code_at(n, r, c));
        for (int64_t g = 0; g < (w->one_scale ? 1 : groups); g++) {
            const float scale = scale_at(n, r / band_rows, g) / divisor, zero = zero_at(n, r / band_rows, g);
            if (scales[g] != scale || zeros[g] != zero) fail_msg("scale %g, zero %g at %d, %d, expected %g, %g", (double)scales[g], (double)zeros[g], (int)r, (int)g, (double)scale, (double)zero);
        }
    }
    oz_free(codes);
}

/* What devices pack of it means the same, column by column. */
static void check_compact(const oz_weight *w) {
    oz_err err = {0};
    oz_weight all;
    void *mem;
    float want[COLS], got[COLS];
    must(oz_weight_slice(&all, &mem, w, 0, w->rows, 0, w->cols, &err), &err);
    for (int64_t r = 0; r < w->rows; r++) {
        oz_weight_row(want, w, r, 0, w->cols);
        oz_weight_row(got, &all, r, 0, w->cols);
        for (int64_t c = 0; c < w->cols; c++) assert_true(got[c] == want[all.order ? all.order[c] : c]);
    }
    oz_big_free(mem);
}

static void check_same(const oz_scheme *a, const oz_scheme *b) {
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->format, b->format);
    assert_true(a->quantized == b->quantized && a->codec == b->codec && a->bits == b->bits && a->is_float == b->is_float && a->symmetric == b->symmetric);
    assert_true(a->group_size == b->group_size && a->per_tensor == b->per_tensor && a->block_rows == b->block_rows && a->column_order == b->column_order);
    assert_true(a->act == b->act && a->store == b->store && a->static_input == b->static_input && a->input.bits == b->input.bits && a->input.is_float == b->input.is_float);
    assert_true(a->input.symmetric == b->input.symmetric && a->input.group_size == b->input.group_size);
}

static oz_scheme scheme_of(size_t i, const oz_module *m) {
    oz_err err = {0};
    oz_scheme s;
    json_t *config;
    char *text = oz_asprintf("{\"quantization_config\":{\"version\":\"0.18.0\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":%s,\"input_activations\":%s,\"format\":\"%s\"}}}}", CASES[i].weights,
                             CASES[i].acts, CASES[i].format);
    must(oz_json_parse(&config, text, strlen(text), "test", &err), &err);
    must(oz_scheme_resolve(&s, config, m, 1, &err), &err);
    assert_true(s.quantized);
    json_decref(config);
    oz_free(text);
    return s;
}

static void round_trip(size_t i, int64_t rows, int threads) {
    oz_err err = {0};
    const oz_module m = {"model.layers.0.mlp.up_proj", "Linear", rows, COLS, false};
    numbers n = {.s = scheme_of(i, &m), .scale = i % 3 ? i % 3 == 1 ? OZ_DTYPE_F16 : OZ_DTYPE_F32 : OZ_DTYPE_BF16, .cols = COLS};
    int32_t order[COLS];
    for (int c = 0; c < COLS; c++) order[c] = (int32_t)(c * 7 % COLS / (n.s.group_size ? n.s.group_size : COLS));
    if (n.s.column_order) n.g_idx = order;
    oz_ckpt *c = write_module(&m, &n, threads);
    oz_scheme back;
    oz_weight w;
    float scale, zero;
    must(oz_scheme_resolve(&back, oz_ckpt_config(c), &m, 1, &err), &err);
    check_same(&n.s, &back);
    must(oz_scheme_bind(&w, c, &m, &back, &err), &err);
    check_numbers(&w, &n);
    if (rows == ROWS) check_compact(&w);
    assert_true(n.s.column_order ? w.g_idx && memcmp(w.g_idx, order, sizeof order) == 0 : !w.g_idx);
    must(oz_scheme_bind_input(&scale, &zero, c, &m, &back, &err), &err);
    assert_true(!n.s.static_input || scale == 0.25f);
    assert_true(n.s.static_input && !n.s.input.symmetric ? zero == -3 : zero == 0);
    oz_ckpt_close(&c);
}

static void test_round_trip(void **state) {
    for (size_t i = 0; i < N_CASES; i++) round_trip(i, ROWS, 1 + (int)i % 3);
}

/* More than one chunk of rows: zero points go on at a whole word, blocks at a whole block. */
static void test_chunks(void **state) {
    for (size_t i = 0; i < N_CASES; i++) {
        const oz_module m = {"m", "Linear", 1, COLS, false};
        const oz_scheme s = scheme_of(i, &m);
        if ((s.bits == 3 && !s.symmetric) || s.block_rows) round_trip(i, (4 << 20) / COLS + 5, 2);
    }
}

/* Schemes over the modules of some layers, mixed at random: resolution gives them back, whatever the targets look like. */
static void test_mixed(void **state) {
    enum { LAYERS = 12, PER_LAYER = 5, N = LAYERS * PER_LAYER + 2 };
    static const char *const names[PER_LAYER] = {"self_attn.q_proj", "self_attn.v_proj", "mlp.experts.0.up_proj", "mlp.experts.11.up_proj", "mlp.down_proj"};
    oz_module modules[N] = {{"model.embed_tokens", "Embedding", 64, COLS, false}, {"lm_head", "Linear", 64, COLS, false}};
    oz_scheme schemes[N], back[N];
    for (int i = 2; i < N; i++) modules[i] = (oz_module){oz_asprintf("model.layers.%d.%s", (i - 2) / PER_LAYER, names[(i - 2) % PER_LAYER]), "Linear", 64, COLS, false};
    for (int seed = 0; seed < 300; seed++) {
        oz_err err = {0};
        const int kinds = 1 + seed % 4;
        for (int i = 0; i < N; i++) {
            /* by name in all layers; by layer; each for itself */
            const uint32_t v = noise(seed, i < 2 ? -i : seed % 3 == 0 ? (i - 2) % PER_LAYER : seed % 3 == 1 ? (i - 2) / PER_LAYER : i);
            schemes[i] = v % (uint32_t)(kinds + 1) == 0 ? OZ_SCHEME_DENSE : scheme_of((v % (uint32_t)(kinds + 1) * 7 + (uint32_t)seed) % N_CASES, &modules[2]);
            if (i == 0 && (schemes[0].column_order || schemes[0].act)) schemes[0] = OZ_SCHEME_DENSE;
        }
        const oz_kv_scheme kv = {seed % 2, seed % 4 == 1, seed % 8 == 3 || seed % 8 == 5};
        json_t *config = json_pack("{so}", "quantization_config", oz_scheme_config(modules, schemes, N, &kv));
        oz_kv_scheme kv_back;
        must(oz_scheme_resolve(back, config, modules, N, &err), &err);
        for (int i = 0; i < N; i++) {
            assert_int_equal(back[i].quantized, schemes[i].quantized);
            if (schemes[i].quantized) check_same(&schemes[i], &back[i]);
        }
        must(oz_scheme_kv(&kv_back, config, &err), &err);
        assert_true(kv_back.quantized == kv.quantized && kv_back.per_head == (kv.quantized && kv.per_head) && kv_back.is_int == (kv.quantized && kv.is_int));
        json_decref(config);
    }
    for (int i = 2; i < N; i++) oz_free((char *)modules[i].name);
}

/* How it is said: the fewest targets that every reader resolves alike. */
static void test_targets(void **state) {
    static const oz_module modules[] = {{"model.layers.0.mlp.up_proj", "Linear", 64, COLS, false}, {"model.layers.0.mlp.down_proj", "Linear", 64, COLS, false},
                                        {"model.layers.1.mlp.up_proj", "Linear", 64, COLS, false}, {"model.layers.1.mlp.down_proj", "Linear", 64, COLS, false}, {"lm_head", "Linear", 64, COLS, false}};
    const oz_scheme a = scheme_of(2, modules), b = scheme_of(22, modules);
    json_t *one = oz_scheme_config(modules, (oz_scheme[]){a, a, a, a, OZ_SCHEME_DENSE}, 5, NULL), *two = oz_scheme_config(modules, (oz_scheme[]){a, b, a, a, OZ_SCHEME_DENSE}, 5, NULL);
    json_t *want_one = json_pack("[s]", "Linear"), *want_a = json_pack("[s, s]", "re:(.*\\.)?layers\\.\\d+\\.mlp\\.up_proj$", "model.layers.1.mlp.down_proj"), *want_b = json_pack("[s]", "model.layers.0.mlp.down_proj");
    json_t *head = json_pack("[s]", "lm_head");
    assert_true(json_equal(json_object_get(json_object_get(json_object_get(one, "config_groups"), "group_0"), "targets"), want_one));
    assert_true(json_equal(json_object_get(json_object_get(json_object_get(two, "config_groups"), "group_0"), "targets"), want_a));
    assert_true(json_equal(json_object_get(json_object_get(json_object_get(two, "config_groups"), "group_1"), "targets"), want_b));
    assert_true(json_equal(json_object_get(one, "ignore"), head) && json_equal(json_object_get(two, "ignore"), head));
    assert_string_equal(json_string_value(json_object_get(one, "format")), "pack-quantized");
    assert_string_equal(json_string_value(json_object_get(two, "format")), "mixed-precision");
    json_t *all[] = {one, two, want_one, want_a, want_b, head};
    for (int i = 0; i < 6; i++) json_decref(all[i]);
}

/* Experts of a layer, by whatever names: one expression where they are alike, which also has the names that vLLM looks for. */
static void test_expert_targets(void **state) {
    static const oz_module modules[] = {
        {"model.layers.0.moe.experts.0.w1", "Linear", 64, COLS, false}, {"model.layers.0.moe.experts.0.w2", "Linear", 64, COLS, false}, {"model.layers.0.moe.experts.1.w1", "Linear", 64, COLS, false},
        {"model.layers.0.moe.experts.1.w2", "Linear", 64, COLS, false}, {"model.layers.12.moe.experts.0.w1", "Linear", 64, COLS, false}, {"model.layers.12.moe.experts.0.w2", "Linear", 64, COLS, false},
        {"model.layers.12.moe.experts.1.w1", "Linear", 64, COLS, false}, {"model.layers.12.moe.experts.1.w2", "Linear", 64, COLS, false}, {"model.layers.0.moe.w1", "Linear", 64, COLS, false}};
    enum { N = sizeof modules / sizeof *modules };
    const oz_scheme a = scheme_of(2, modules), b = scheme_of(22, modules);
    oz_scheme back[N];
    oz_err err = {0};
    const oz_scheme by_layer[N] = {a, a, a, a, b, a, b, a, a}, by_expert[N] = {a, a, b, a, b, a, b, a, b};
    const struct { const oz_scheme *schemes; const char *a[4], *b[4]; } cases[] = {
        {by_layer, {"re:(.*\\.)?layers\\.0\\.moe\\.experts\\.\\d+\\.(w1|gate_proj)$", "re:(.*\\.)?layers\\.\\d+\\.moe\\.experts\\.\\d+\\.(w2|down_proj)$", "re:(.*\\.)?layers\\.\\d+\\.moe\\.w1$"},
         {"re:(.*\\.)?layers\\.12\\.moe\\.experts\\.\\d+\\.(w1|gate_proj)$"}},
        {by_expert, {"model.layers.0.moe.experts.0.w1", "re:(.*\\.)?layers\\.\\d+\\.moe\\.experts\\.\\d+\\.(w2|down_proj)$"},
         {"model.layers.0.moe.experts.1.w1", "re:(.*\\.)?layers\\.12\\.moe\\.experts\\.\\d+\\.(w1|gate_proj)$", "re:(.*\\.)?layers\\.\\d+\\.moe\\.w1$"}}};
    for (int i = 0; i < 2; i++) {
        json_t *config = json_pack("{s:o}", "quantization_config", oz_scheme_config(modules, cases[i].schemes, N, NULL)), *groups = json_object_get(json_object_get(config, "quantization_config"), "config_groups");
        for (int g = 0; g < 2; g++) {
            json_t *want = json_array();
            for (int k = 0; k < 4 && (g ? cases[i].b : cases[i].a)[k]; k++) json_array_append_new(want, json_string((g ? cases[i].b : cases[i].a)[k]));
            const json_t *found = json_object_get(json_object_get(groups, g ? "group_1" : "group_0"), "targets");
            if (!json_equal(found, want)) fail_msg("case %d, group %d: %s", i, g, json_dumps(found, 0));
            json_decref(want);
        }
        must(oz_scheme_resolve(back, config, modules, N, &err), &err);
        for (int k = 0; k < N; k++) check_same(&cases[i].schemes[k], &back[k]);
        json_decref(config);
    }
}

int main(void) {
    oz_log_quiet(true);
    const struct CMUnitTest tests[] = {UNIT(test_round_trip), UNIT(test_chunks), cmocka_unit_test(test_mixed), cmocka_unit_test(test_targets), cmocka_unit_test(test_expert_targets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
