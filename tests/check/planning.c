/* What comes before a byte of weight is read: 10,000 modules get their schemes out of a config with groups by expression, and 40,000 tensors are held against
 * them. A mixture of experts with matrices of a block, so that files are small and names many. */
#include <stdlib.h>
#include "base/file.h"
#include "base/json.h"
#include "check.h"
#include "model/model.h"
#include "quantize/quantize.h"

enum { ROUNDS = 5 };
static const char CONFIG[] = "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 32, \"hidden_size\": 32, \"intermediate_size\": 32, \"moe_intermediate_size\": 32, \"num_hidden_layers\": 40, \"num_attention_heads\": 1,"
                             "\"num_key_value_heads\": 1, \"head_dim\": 32, \"num_experts\": 83, \"num_experts_per_tok\": 8, \"torch_dtype\": \"bfloat16\"}";
static const char *const TARGETS[] = {"re:.*self_attn\\.(q|k|v|o)_proj$", "re:.*\\.experts\\.\\d+\\.(gate|up)_proj$", "re:.*\\.down_proj$"};

/* The one group of a written config as one for each of TARGETS. */
static oz_status split_groups(const char *dir, oz_err *err) {
    char *path = oz_path_join(dir, "config.json");
    json_t *config;
    oz_status st = oz_json_load(&config, path, 1 << 20, err);
    oz_free(path);
    if (st != OZ_OK) return st;
    json_t *groups = json_object_get(json_object_get(config, "quantization_config"), "config_groups");
    for (int i = 0; i < CK_COUNT(TARGETS); i++) {
        char name[24];
        json_t *g = json_deep_copy(json_object_get(groups, "group_0"));
        snprintf(name, sizeof name, "part_%d", i);
        json_object_set_new(g, "targets", json_pack("[s]", TARGETS[i]));
        json_object_set_new(groups, name, g);
    }
    json_object_del(groups, "group_0");
    st = oz_config_write(config, dir, err);
    json_decref(config);
    return st;
}

static oz_status make(const char *dir, oz_err *err) {
    const oz_preset *preset = oz_preset_find("W4A16");
    oz_scheme scheme = preset->scheme;
    oz_synth *s;
    scheme.group_size = 32;
    json_t *config = json_loads(CONFIG, 0, NULL);
    oz_pool *pool = oz_pool_new(0);
    oz_status st = oz_synth_new(&s, config, &scheme, 1, 0, err);
    if (st == OZ_OK) st = oz_synth_run(s, dir, true, pool, err);
    oz_synth_free(&s);
    oz_pool_free(&pool);
    json_decref(config);
    return st == OZ_OK ? split_groups(dir, err) : st;
}

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static oz_status measure(const char *dir, oz_err *err) {
    int64_t us[ROUNDS][3], column[ROUNDS];
    size_t n_tensors = 0, n_modules = 0;
    for (int r = 0; r < ROUNDS; r++) {
        oz_ckpt *c;
        oz_arch_list list;
        int64_t at[4] = {oz_clock_us()};
        OZ_TRY(oz_ckpt_open(&c, dir, err));
        at[1] = oz_clock_us();
        oz_status st = oz_arch_list_new(&list, oz_ckpt_config(c), c, err);
        at[2] = oz_clock_us();
        oz_scheme *schemes = oz_alloc_array(list.n + 1, sizeof *schemes);
        if (st == OZ_OK) st = oz_model_check(schemes, c, &list, NULL, err);
        at[3] = oz_clock_us();
        n_tensors = oz_ckpt_count(c), n_modules = 0;
        for (size_t i = 0; i < list.n; i++) n_modules += schemes[i].quantized;
        for (int k = 0; k < 3; k++) us[r][k] = at[k + 1] - at[k];
        oz_free(schemes);
        oz_arch_list_deinit(&list);
        oz_ckpt_close(&c);
        OZ_TRY(st);
    }
    static const char *const what[] = {"headers read", "names of the architecture", "schemes resolved, tensors checked"};
    printf("%zu quantized modules, %zu tensors, median of %d:", n_modules, n_tensors, ROUNDS);
    for (int k = 0; k < 3; k++) {
        for (int r = 0; r < ROUNDS; r++) column[r] = us[r][k];
        qsort(column, ROUNDS, sizeof *column, ascending);
        printf("%s %s %.1f ms", k ? "," : "", what[k], (double)column[ROUNDS / 2] / 1e3);
    }
    putchar('\n');
    return OZ_OK;
}

oz_status ck_bench_planning(oz_err *err) {
    char dir[] = "/tmp/oz-planning-XXXXXX";
    OZ_NEED(mkdtemp(dir), err, OZ_E_IO, "%s cannot be made", dir);
    oz_status st = make(dir, err);
    if (st == OZ_OK) st = measure(dir, err);
    oz_dir_remove(dir, NULL);
    return st;
}
