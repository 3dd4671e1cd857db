/* ounce logits: one forward pass over given ids, everything written out. The reference interface that tests compare with. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"

static const char *ids_path, *out_path;
static bool hidden;
static const oz_opt opts[] = {
    {"ids", 0, OZ_OPT_STR, &ids_path, 0, 0, NULL, "FILE", "token ids, decimal, separated by white space; - for stdin"},
    {"output", 'o', OZ_OPT_STR, &out_path, 0, 0, NULL, "FILE", "safetensors file to write: logits F32 [n, vocab]"},
    {"hidden", 0, OZ_OPT_FLAG, &hidden, 0, 0, NULL, NULL, "also hidden_after_layer_I F32 [n, hidden], the residual stream before the final norm"},
    {0}};
static const oz_opt *const tables[] = {opts, oz_cli_opts_model, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {"logits", "MODEL --ids FILE -o OUT.safetensors [--hidden]", "one forward pass; writes every logit", NULL, tables, 1, 1};

typedef struct pass { oz_writer *w; float *logits, *hidden; int64_t n_layers, hidden_size, max_tok; } pass;

static void keep_hidden(void *arg, const oz_tap *t) {
    pass *p = arg;
    memcpy(p->hidden + (int64_t)t->layer * p->max_tok * t->width, t->rows, (size_t)(t->n_tok * t->width) * sizeof(float));
}

static oz_status part_write(pass *p, int64_t at, int64_t n, int64_t vocab, oz_err *err) {
    if (!p->w) return OZ_OK; /* the first rank writes */
    const size_t row = (size_t)vocab * sizeof(float), hrow = (size_t)p->hidden_size * sizeof(float);
    OZ_TRY(oz_writer_put(p->w, "logits", (size_t)at * row, p->logits, (size_t)n * row, err));
    for (int64_t i = 0; hidden && i < p->n_layers; i++) {
        char name[48];
        snprintf(name, sizeof name, "hidden_after_layer_%lld", (long long)i);
        OZ_TRY(oz_writer_put(p->w, name, (size_t)at * hrow, p->hidden + i * p->max_tok * p->hidden_size, (size_t)n * hrow, err));
    }
    return OZ_OK;
}

/* As run: a number that is none ends it. */
static oz_status finite_check(const pass *p, int64_t at, int64_t n, int64_t vocab, oz_err *err) {
    for (int64_t i = 0; i < n * vocab; i++) OZ_NEED(isfinite(p->logits[i]), err, OZ_E_FORMAT, "logits are not finite at position %lld", (long long)(at + i / vocab));
    return OZ_OK;
}

static oz_status pass_run(pass *p, oz_model *m, oz_state *s, const oz_ids *ids, int32_t *blocks, int32_t *rows, oz_err *err) {
    const oz_model_info *f = oz_model_get(m);
    const int64_t n = (int64_t)ids->len;
    for (int64_t at = 0; at < n; at += p->max_tok) {
        OZ_NEED(!oz_interrupted(), err, OZ_E_INTERRUPTED, "interrupted");
        const int64_t k = n - at < p->max_tok ? n - at : p->max_tok;
        const oz_seg seg = {0, k, at, blocks};
        const oz_call call = {.ids = ids->data + at, .n_tok = k, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = k, .tap = hidden ? keep_hidden : NULL, .tap_arg = p};
        OZ_TRY(oz_model_run(m, s, &call, &(oz_sink){OZ_SINK_COPY, p->logits, NULL}, err));
        OZ_TRY(finite_check(p, at, k, f->vocab_size, err));
        OZ_TRY(part_write(p, at, k, f->vocab_size, err));
    }
    return p->w ? oz_writer_finish(p->w, err) : OZ_OK;
}

/* Room for the pass, then the pass, into the file. */
static oz_status write_out(oz_model *m, const oz_ids *ids, const oz_layout *layout, oz_err *err) {
    const oz_model_info *f = oz_model_get(m);
    const int64_t n = (int64_t)ids->len, n_blocks = (n + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK, k = n < f->max_tok ? n : f->max_tok;
    pass p = {.n_layers = f->n_layers, .hidden_size = f->hidden_size, .max_tok = k};
    int32_t *blocks = oz_alloc_array((size_t)n_blocks, sizeof *blocks), *rows = oz_alloc_array((size_t)k, sizeof *rows);
    for (int64_t i = 0; i < n_blocks; i++) blocks[i] = (int32_t)i;
    for (int64_t i = 0; i < k; i++) rows[i] = (int32_t)i;
    oz_state *s = NULL;
    oz_status st = oz_state_new(&s, m, n_blocks, 1, err);
    if (st == OZ_OK) st = oz_big_new((void **)&p.logits, (size_t)(k * f->vocab_size) * sizeof(float), "logits", err);
    if (st == OZ_OK && hidden) st = oz_big_new((void **)&p.hidden, (size_t)(k * f->n_layers * f->hidden_size) * sizeof(float), "hidden states", err);
    if (st == OZ_OK && oz_comm_rank(oz_cli_comm) == 0) st = oz_writer_open_file(&p.w, layout, out_path, err);
    if (st == OZ_OK) st = pass_run(&p, m, s, ids, blocks, rows, err);
    oz_writer_close(&p.w);
    oz_big_free(p.logits);
    oz_big_free(p.hidden);
    oz_state_free(&s);
    oz_free(blocks);
    oz_free(rows);
    return st;
}

static oz_status layout_make(oz_layout *l, const oz_model_info *f, int64_t n, oz_err *err) {
    OZ_TRY(oz_layout_add(l, "logits", OZ_DTYPE_F32, 2, (int64_t[]){n, f->vocab_size}, err));
    for (int64_t i = 0; hidden && i < f->n_layers; i++) {
        char name[48];
        snprintf(name, sizeof name, "hidden_after_layer_%lld", (long long)i);
        OZ_TRY(oz_layout_add(l, name, OZ_DTYPE_F32, 2, (int64_t[]){n, f->hidden_size}, err));
    }
    return oz_layout_fix(l, err);
}

static json_t *tensor_json(const char *name, int64_t n, int64_t width) { return json_pack("{s:s s:s s:[II]}", "name", name, "dtype", "F32", "shape", (json_int_t)n, (json_int_t)width); }

static void report(const oz_cli_model *m, const char *path, int64_t n, size_t n_bytes, double seconds) {
    const oz_model_info *f = oz_model_get(m->model);
    json_t *tensors = json_pack("[o]", tensor_json("logits", n, f->vocab_size));
    for (int64_t i = 0; hidden && i < f->n_layers; i++) {
        char name[48];
        snprintf(name, sizeof name, "hidden_after_layer_%lld", (long long)i);
        json_array_append_new(tensors, tensor_json(name, n, f->hidden_size));
    }
    oz_cli_json_print(json_pack("{s:o s:o s:I s:I s:o s:s s:s s:f s:I}", "model", oz_json_text(path), "output", oz_json_text(out_path), "n_tok", (json_int_t)n, "bytes", (json_int_t)n_bytes, "tensors", tensors,
                                "device", oz_dev_describe(m->dev), "dtype", f->dtype, "seconds", seconds, "peak_rss_bytes", (json_int_t)oz_rss_peak_bytes()));
}

static oz_status write_file(const oz_cli_model *m, const char *path, const oz_ids *ids, oz_err *err) {
    const oz_model_info *f = oz_model_get(m->model);
    const int64_t start = oz_clock_us(), n = (int64_t)ids->len;
    OZ_NEED(n <= f->max_len, err, OZ_E_ARG, "%s: %zu ids, the model takes %lld (--max-model-len)", ids_path, ids->len, (long long)f->max_len);
    oz_layout *l = oz_layout_new(0);
    oz_status st = layout_make(l, f, n, err);
    if (st == OZ_OK) st = write_out(m->model, ids, l, err);
    if (st == OZ_E_FORMAT) oz_cli_blame(m->ckpt, err);
    if (st == OZ_OK) oz_cli_whole = oz_strdup(out_path);
    if (st == OZ_OK && oz_cli_common.json) report(m, path, n, oz_layout_bytes(l), (double)(oz_clock_us() - start) / 1e6);
    oz_layout_free(&l);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    (void)n_args;
    OZ_NEED(ids_path, err, OZ_E_USAGE, "--ids FILE is missing");
    OZ_NEED(out_path, err, OZ_E_USAGE, "-o OUT.safetensors is missing");
    OZ_NEED(strcmp(out_path, "-") != 0, err, OZ_E_USAGE, "-o -: expected a file: tensors are written where they belong in it, which stdout has not (a file of that name is ./-)");
    oz_ids ids;
    OZ_TRY(oz_cli_ids_read(&ids, ids_path, err));
    oz_cli_model m;
    oz_status st = oz_cli_model_open(&m, args[0], &(oz_cli_need){.tap_layers = hidden, .len = (int64_t)ids.len}, err);
    if (st == OZ_OK) {
        if (oz_ckpt_reads(m.ckpt, out_path) || oz_path_same(ids_path, out_path)) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "%s: is an input of this command: write to another file", out_path);
        if (st == OZ_OK) st = write_file(&m, args[0], &ids, err);
        oz_cli_model_close(&m);
    }
    oz_free(ids.data);
    return st;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_logits = {"logits", describe, run, true};
