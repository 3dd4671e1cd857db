/* Opening what the options name: device, model, tokenizer, files of ids and of text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/cli.h"

enum { MAX_TEXT_BYTES = 1 << 30 };

oz_status oz_cli_dev_open(oz_dev **out, oz_err *err) {
    const oz_common *c = &oz_cli_common;
    const int cores = oz_cpu_count() / oz_comm_size(oz_cli_comm); /* ranks of one machine share its cores */
    const int threads = c->threads || oz_comm_size(oz_cli_comm) == 1 ? (int)c->threads : cores > 0 ? cores : 1;
    const oz_dev_cfg cfg = {c->device, threads, c->cpu_level, c->deterministic};
    OZ_TRY(oz_dev_open(out, &cfg, err));
    oz_log_info("device: %s", oz_dev_describe(*out));
    return OZ_OK;
}

oz_status oz_cli_of_model(oz_status st, const char *model, oz_err *err) {
    const bool inside = (st == OZ_E_FORMAT || st == OZ_E_UNSUPPORTED) && !oz_str_starts(err->msg, "--"); /* others are about options, or have a path of their own */
    if (inside && !oz_str_starts(err->msg, model)) oz_err_prefix(err, "%s", model);
    return st;
}

oz_status oz_cli_tok_open(oz_tok **out, const oz_text_files *files, const char *path, oz_err *err) {
    OZ_NEED(files->tokenizer, err, OZ_E_NOT_FOUND, "%s: no tokenizer.json, nor a vocabulary in its place (tokenizer.model, *.tiktoken): text needs one, as the model has it that this one was made of (run and logits take --ids)", path);
    if (oz_tok_new(out, files->tokenizer, files->tokenizer_config, err) != OZ_OK) return oz_err_prefix(err, "%s: tokenizer.json", path);
    return OZ_OK;
}

static oz_model_cfg cfg_of(const oz_cli_need *need) {
    const oz_preset *preset = need->as_stored ? NULL : oz_preset_find(oz_cli_common.quantization);
    return (oz_model_cfg){.quantize = preset ? &preset->scheme : NULL, .dtype = oz_cli_common.dtype, .max_len = oz_cli_common.max_len, .max_tok = need->max_tok, .taps = (need->tap_layers ? OZ_TAP_LAYER : 0) | (need->tap_routes ? OZ_TAP_ROUTE : 0), .comm = oz_cli_comm, .need_len = need->len};
}

oz_status oz_cli_model_open(oz_cli_model *m, const char *path, const oz_cli_need *need, oz_err *err) {
    *m = (oz_cli_model){.dev = need->dev, .owns_dev = !need->dev};
    const oz_model_cfg cfg = cfg_of(need);
    oz_status st = need->dev ? OZ_OK : oz_cli_dev_open(&m->dev, err);
    if (st == OZ_OK) st = oz_ckpt_open(&m->ckpt, path, err);
    if (st == OZ_OK && (need->tok || need->tok_if_any)) st = oz_text_files_open(&m->text, path, err);
    if (st == OZ_OK && (need->tok || m->text.tokenizer)) st = oz_cli_tok_open(&m->tok, &m->text, path, err);
    if (st == OZ_OK) st = oz_model_open(&m->model, m->dev, m->ckpt, &cfg, err);
    if (st != OZ_OK) oz_cli_model_close(m);
    return oz_cli_of_model(st, path, err);
}

oz_status oz_cli_model_check(const oz_ckpt *ckpt, oz_err *err) {
    const oz_common *c = &oz_cli_common;
    const char *const of_device[] = {c->device, c->cpu_level, c->dtype};
    const oz_model_cfg cfg = cfg_of(&(oz_cli_need){0});
    oz_dev *dev = NULL; /* opened where something is said of it: a card takes its time */
    for (size_t i = 0; i < sizeof of_device / sizeof *of_device && !dev; i++)
        if (strcmp(of_device[i], "auto") != 0) OZ_TRY(oz_cli_dev_open(&dev, err));
    const oz_status st = ckpt ? oz_model_cfg_check(NULL, &cfg, dev, ckpt, err) : OZ_OK;
    oz_dev_close(&dev);
    return st;
}

void oz_cli_model_close(oz_cli_model *m) {
    oz_model_close(&m->model);
    oz_tok_free(&m->tok);
    oz_text_files_close(&m->text);
    oz_ckpt_close(&m->ckpt);
    if (m->owns_dev) oz_dev_close(&m->dev);
    *m = (oz_cli_model){0};
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; } /* a NUL is none */

oz_status oz_cli_ids_read(oz_ids *out, const char *path, oz_err *err) {
    const char *name = strcmp(path, "-") == 0 ? "stdin" : path;
    oz_buf b = {0};
    oz_status st = oz_file_read(&b, path, MAX_TEXT_BYTES, err);
    *out = (oz_ids){0};
    for (char *p = b.data, *end = p ? p + b.len : p; st == OZ_OK && p < end;) {
        if (is_space(*p)) { p++; continue; }
        char *next;
        errno = 0;
        const long id = strtol(p, &next, 10);
        if (next == p || (next < end && !is_space(*next)) || errno || id < 0 || id > INT32_MAX) {
            const size_t n = strcspn(p, " \t\r\n");
            st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: byte %td: expected a token id, found \"%.*s\"", name, p - b.data, n < 20 ? (int)n : 20, p);
            break;
        }
        oz_grow((void **)&out->data, &out->cap, out->len + 1, sizeof *out->data);
        out->data[out->len++] = (int32_t)id;
        p = next;
    }
    oz_buf_deinit(&b);
    if (st == OZ_OK && out->len == 0) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: no token ids", name);
    if (st != OZ_OK) oz_free(out->data), *out = (oz_ids){0};
    return st;
}

void oz_cli_json_print(json_t *doc) {
    json_dumpf(doc, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(doc);
}

void oz_cli_blame(const oz_ckpt *c, oz_err *err) {
    const oz_tensor *t;
    int64_t at;
    char said[sizeof err->msg], place[OZ_MAX_DIMS * 24] = "";
    snprintf(said, sizeof said, "%s", err->msg);
    const bool found = oz_ckpt_not_finite(&t, &at, c);
    oz_err_clear(err);
    if (!found) {
        oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s; all stored floats are: what is computed grew too large", said);
        return;
    }
    int64_t inner = 1;
    for (int i = 0; i < t->n_dims; i++) inner *= t->dims[i];
    for (int i = 0, n = 0; i < t->n_dims; i++) {
        inner /= t->dims[i];
        n += snprintf(place + n, sizeof place - (size_t)n, "%s%lld", i ? ", " : "", (long long)(at / inner % t->dims[i]));
    }
    oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s; %s[%s] is not finite either (%s)", said, t->name, place, t->file_name);
}
