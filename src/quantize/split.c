/* A dense model as a mixture of experts with the same function, to test and measure mixtures with weights that mean something. Expert e of E has rows
 * [e f, (e + 1) f) of gate and up and the same columns of down, times E; the router is zero and all experts are chosen, each with weight
 * 1 / E. E is a power of two, so that both factors are exact. What goes where follows from the tensor tables of the two architectures. */
#include "base/file.h"
#include "base/mem.h"
#include "model/model.h"
#include "quantize/internal.h"
#include <string.h>

enum { MAX_EXPERTS = 1024 };
/* Whose defaults new_config writes out. */
static const char SOURCE[] = "llama";
#define SPLITS "what can be split is a dense Llama without biases"

/* One tensor of the result: a part of a source tensor, times a factor; or zeros (weight without codes). */
typedef struct item {
    const oz_arch_tensor *to;
    const oz_tensor *tensor;
    oz_weight weight;
    int64_t row0, col0, cols;
    float factor;
} item;

struct oz_ffn_split {
    const oz_ckpt *ckpt;
    int64_t n_experts;
    oz_dtype dtype;
    oz_arch_list from, to;
    item *items; /* of to */
    oz_layout *layout;
    json_t *config;
};

/* ---- planning ---- */

/* Where the two kinds of config take different things for granted, the dense one's meaning is written out. */
static json_t *new_config(const json_t *config, int64_t n_experts) {
    json_t *c = json_deep_copy(config);
    static const char *const gone[] = {"attention_bias", "mlp_bias", "sliding_window"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) json_object_del(c, gone[i]);
    json_t *defaults = json_pack("{s:O, s:f, s:f, s:i}", "num_key_value_heads", json_object_get(config, "num_attention_heads"), "rms_norm_eps", 1e-6, "rope_theta", 10000.0,
                                 "max_position_embeddings", 2048);
    if (json_object_get(config, "rope_parameters")) json_object_del(defaults, "rope_theta");
    json_object_update_missing(c, defaults);
    json_decref(defaults);
    json_object_set_new(c, "model_type", json_string("mixtral"));
    json_object_set_new(c, "architectures", json_pack("[s]", "MixtralForCausalLM"));
    json_object_set_new(c, "num_local_experts", json_integer(n_experts));
    json_object_set_new(c, "num_experts_per_tok", json_integer(n_experts));
    json_object_set_new(c, "intermediate_size", json_integer(json_integer_value(json_object_get(config, "intermediate_size")) / n_experts));
    return c;
}

static oz_status check_source(const oz_ffn_split *s, oz_err *err) {
    const json_t *c = oz_ckpt_config(s->ckpt), *quantized = json_object_get(c, "quantization_config");
    const char *type = json_string_value(json_object_get(c, "model_type"));
    const int64_t ffn = json_integer_value(json_object_get(c, "intermediate_size"));
    OZ_NEED(!quantized || json_is_null(quantized), err, OZ_E_ARG, "%s: expected a dense checkpoint or a GGUF, found one that is quantized; dequantize it first: ounce convert %s -o DIR --to bf16",
            oz_ckpt_path(s->ckpt), oz_ckpt_path(s->ckpt));
    OZ_NEED(type && strcmp(type, SOURCE) == 0, err, OZ_E_UNSUPPORTED, "config.json.model_type: \"%s\"; " SPLITS, type ? type : "");
    OZ_NEED(s->n_experts >= 1 && s->n_experts <= MAX_EXPERTS && (s->n_experts & (s->n_experts - 1)) == 0, err, OZ_E_USAGE, "--split-ffn: must be a power of two, 1 to %d, found %lld",
            MAX_EXPERTS, (long long)s->n_experts);
    OZ_NEED(ffn % s->n_experts == 0, err, OZ_E_ARG, "--split-ffn: must divide intermediate_size %lld, found %lld", (long long)ffn, (long long)s->n_experts);
    return OZ_OK;
}

/* The role that an expert's matrix is cut from. */
static const struct { oz_role expert, dense; } cut_from[] = {
    {OZ_ROLE_EXPERT_GATE, OZ_ROLE_FFN_GATE}, {OZ_ROLE_EXPERT_UP, OZ_ROLE_FFN_UP}, {OZ_ROLE_EXPERT_DOWN, OZ_ROLE_FFN_DOWN}};

static bool is_source(const oz_arch_tensor *f, const oz_arch_tensor *t) {
    if (f->layer != t->layer || f->is_bias != t->is_bias) return false;
    for (size_t i = 0; i < sizeof cut_from / sizeof *cut_from; i++)
        if (t->role == cut_from[i].expert) return f->role == cut_from[i].dense;
    return f->slot == t->slot;
}

static oz_status bind_item(oz_ffn_split *s, item *it, bool *used, oz_err *err) {
    const oz_arch_tensor *t = it->to, *f = NULL;
    for (size_t i = 0; i < s->from.n && !f; i++)
        if (is_source(&s->from.items[i], t)) f = &s->from.items[i], used[i] = true;
    it->factor = 1;
    it->cols = t->cols ? t->cols : 1;
    if (t->role == OZ_ROLE_ROUTER) return OZ_OK;
    OZ_NEED(f, err, OZ_E_UNSUPPORTED, "%s: the source has nothing to make it of; " SPLITS, t->name);
    it->tensor = oz_ckpt_find(s->ckpt, f->name);
    OZ_NEED(it->tensor, err, OZ_E_FORMAT, "%s: not in the checkpoint (%s)", f->name, oz_ckpt_path(s->ckpt));
    if (t->expert >= 0) {
        if (f->cols > t->cols) it->col0 = t->expert * t->cols, it->factor = (float)s->n_experts;
        else it->row0 = t->expert * t->rows;
    }
    if (f->cols) return oz_scheme_bind(&it->weight, s->ckpt, &(oz_module){f->module, f->class_name, f->rows, f->cols, false}, &OZ_SCHEME_DENSE, err);
    char found[OZ_DIMS_TEXT];
    OZ_NEED(it->tensor->n_dims == 1 && it->tensor->dims[0] == f->rows && oz_codec_plain(&it->weight.codec, it->tensor->dtype), err, OZ_E_FORMAT,
            "%s: expected floats [%lld], found %s %s (%s)", f->name, (long long)f->rows, oz_dtype_get(it->tensor->dtype)->name, oz_dims_show(found, it->tensor->n_dims, it->tensor->dims), it->tensor->file_name);
    it->weight.rows = f->rows, it->weight.cols = 1, it->weight.codes = it->tensor->data;
    it->weight.row_bytes = oz_codec_row_bytes(it->weight.codec, 1);
    return OZ_OK;
}

static oz_status plan(oz_ffn_split *s, oz_err *err) {
    OZ_TRY(oz_arch_list_new(&s->from, oz_ckpt_config(s->ckpt), s->ckpt, err));
    OZ_TRY(check_source(s, err));
    s->config = new_config(oz_ckpt_config(s->ckpt), s->n_experts);
    s->dtype = oz_arch_dtype(s->config);
    OZ_TRY(oz_arch_list_new(&s->to, s->config, NULL, err));
    s->items = oz_alloc_array(s->to.n, sizeof *s->items);
    bool *used = oz_alloc_array(s->from.n, sizeof *used);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < s->to.n && st == OZ_OK; i++) {
        const oz_arch_tensor *t = s->items[i].to = &s->to.items[i];
        st = bind_item(s, &s->items[i], used, err);
        if (st == OZ_OK) st = oz_layout_add(s->layout, t->name, s->dtype, t->cols ? 2 : 1, (const int64_t[]){t->rows, t->cols}, err);
    }
    for (size_t i = 0; i < s->from.n && st == OZ_OK; i++)
        if (!used[i]) st = oz_err_set(err, OZ_E_UNSUPPORTED, __FILE__, __LINE__, "%s: has no place in a mixture of experts; " SPLITS, s->from.items[i].name);
    oz_free(used);
    return st == OZ_OK ? oz_layout_fix(s->layout, err) : st;
}

oz_status oz_ffn_split_new(oz_ffn_split **out, const oz_ckpt *ckpt, int64_t n_experts, size_t shard_bytes, oz_err *err) {
    oz_ffn_split *s = oz_alloc(sizeof *s);
    s->ckpt = ckpt;
    s->n_experts = n_experts;
    s->layout = oz_layout_new(shard_bytes);
    oz_status st = plan(s, err);
    if (st != OZ_OK) oz_ffn_split_free(&s);
    *out = s;
    return st;
}

void oz_ffn_split_free(oz_ffn_split **p) {
    oz_ffn_split *s = *p;
    if (!s) return;
    oz_arch_list_deinit(&s->from);
    oz_arch_list_deinit(&s->to);
    oz_layout_free(&s->layout);
    oz_free(s->items);
    json_decref(s->config);
    oz_free(s);
    *p = NULL;
}

const oz_layout *oz_ffn_split_layout(const oz_ffn_split *s) { return s->layout; }
size_t oz_ffn_split_count(const oz_ffn_split *s) { return s->to.n; }

/* ---- running ---- */

static void fill_part(void *arg, float *dst, int64_t begin, int64_t n) {
    const item *it = arg;
    for (int64_t r = begin / it->cols; r < (begin + n) / it->cols; r++, dst += it->cols) {
        if (it->weight.codes) oz_weight_row(dst, &it->weight, it->row0 + r, it->col0, it->cols);
        for (int64_t i = 0; i < it->cols; i++) dst[i] = it->weight.codes ? dst[i] * it->factor : 0;
    }
}

static oz_status write_tensors(oz_ffn_split *s, const char *dir, oz_pool *pool, oz_err *err) {
    oz_writer *w;
    OZ_TRY(oz_writer_open(&w, s->layout, dir, err));
    oz_stream stream;
    oz_stream_init(&stream, w, pool, "writing", (int64_t)oz_layout_bytes(s->layout));
    oz_status st = OZ_OK;
    for (size_t i = 0; i < s->to.n && st == OZ_OK; i++) {
        item *it = &s->items[i];
        st = oz_stream_put(&stream, it->to->name, s->dtype, it->to->rows * it->cols, it->cols, fill_part, it, err);
        if (it->tensor) oz_ckpt_drop(s->ckpt, it->tensor);
    }
    oz_stream_deinit(&stream);
    if (st == OZ_OK) st = oz_writer_finish(w, err);
    oz_writer_close(&w);
    return st;
}

oz_status oz_ffn_split_run(oz_ffn_split *s, const char *target, bool force, oz_pool *pool, oz_err *err) {
    oz_outdir *dir;
    OZ_TRY(oz_outdir_open(&dir, target, force, err));
    oz_status st = oz_ckpt_copy_side_files(s->ckpt, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = oz_config_write(s->config, oz_outdir_path(dir), err);
    if (st == OZ_OK) st = write_tensors(s, oz_outdir_path(dir), pool, err);
    if (st == OZ_OK) st = oz_outdir_commit(dir, err);
    oz_outdir_close(&dir);
    return st;
}
