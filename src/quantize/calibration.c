/* Calibration text as sequences of token ids. A plain file is encoded once and cut into consecutive windows; a file called *.jsonl holds a
 * sequence a line: {"ids": [...]} (or input_ids), {"text": "..."} or {"messages": [...]}, longer ones cut off at the end. The first ones are taken, or with a seed some of all,
 * in the file's order: the same file and the same numbers give the same sequences. */
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "base/str.h"
#include "quantize/internal.h"

enum { MAX_BYTES = 1 << 30, TEMPLATE_NOW = 1704067200 /* a template that tells the date must not change a calibration set: 2024-01-01 */ };

typedef struct reader {
    oz_calibration *c;
    const oz_calibration_cfg *cfg;
    const char *path;
    oz_template *template; /* made when the first line needs it */
    json_t *special_tokens;
    size_t cap_ids, cap_seqs;
} reader;

static oz_status need_tok(const reader *r, oz_err *err) {
    OZ_NEED(r->cfg->tok, err, OZ_E_NOT_FOUND, "text needs the model's tokenizer.json, which is not there; lines {\"ids\": [...]} in a .jsonl file need none");
    return OZ_OK;
}

/* Ends the sequence that begins at the last recorded place: its ids were appended. */
static void end_sequence(reader *r, size_t n_ids) {
    oz_calibration *c = r->c;
    oz_grow((void **)&c->begin, &r->cap_seqs, (size_t)c->n_seqs + 2, sizeof *c->begin);
    c->begin[++c->n_seqs] = (int64_t)n_ids;
}

/* What is there, where no number was asked for. */
static int64_t wanted(const reader *r) { return r->cfg->n_samples ? r->cfg->n_samples : OZ_CALIBRATION_SAMPLES; }
static int64_t read_most(const reader *r) { return r->cfg->seed < 0 ? wanted(r) : INT64_MAX; }

/* Lines of JSON, or no text at all, under a name that says plain text. */
static oz_status plain_check(const reader *r, const oz_buf *text, oz_err *err) {
    OZ_NEED(oz_utf8_valid(text->data ? text->data : "", text->len) && (!text->len || !memchr(text->data, 0, text->len)), err, OZ_E_FORMAT, "%s: expected plain text in UTF-8, or *.jsonl, found other bytes", r->path);
    const size_t n = text->data ? strcspn(text->data, "\n") : 0;
    json_t *line = NULL;
    if (n && text->data[0] == '{') oz_json_parse_line(&line, text->data, n, "line 1", NULL);
    const bool is_line = line && (json_object_get(line, "ids") || json_object_get(line, "input_ids") || json_object_get(line, "text") || json_object_get(line, "messages"));
    json_decref(line);
    OZ_NEED(!is_line, err, OZ_E_FORMAT, "%s: its first line is a JSON object as calibration lines are, and its name says plain text; call it *.jsonl", r->path);
    return OZ_OK;
}

static oz_status read_plain(reader *r, const oz_buf *text, oz_err *err) {
    oz_ids ids = {0};
    OZ_TRY(plain_check(r, text, err));
    if (need_tok(r, err) != OZ_OK) return oz_err_prefix(err, "%s", r->path);
    OZ_TRY(oz_tok_encode(&ids, r->cfg->tok, text->data ? text->data : "", text->len, false, err));
    r->c->ids = ids.data;
    const int64_t fit = (int64_t)ids.len / r->cfg->max_len, least = r->cfg->n_samples ? r->cfg->n_samples : 1;
    OZ_NEED(fit >= least, err, OZ_E_ARG, "%s: %zu tokens, and %lld samples of %lld take %lld (--num-calibration-samples, --max-seq-length)", r->path, ids.len, (long long)least, (long long)r->cfg->max_len,
            (long long)(least * r->cfg->max_len));
    for (int64_t i = 1; i <= fit && i <= read_most(r); i++) end_sequence(r, (size_t)(i * r->cfg->max_len));
    return OZ_OK;
}

/* ---- lines ---- */

static oz_status line_ids(oz_ids *out, const json_t *list, oz_err *err) {
    OZ_NEED(json_is_array(list), err, OZ_E_FORMAT, "ids: must be a list, found %s", oz_json_show(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        OZ_NEED(json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX, err, OZ_E_FORMAT, "ids[%zu]: must be a token id, found %s", i, oz_json_show(v));
        oz_grow((void **)&out->data, &out->cap, out->len + 1, sizeof *out->data);
        out->data[out->len++] = (int32_t)json_integer_value(v);
    }
    return OZ_OK;
}

static oz_status line_messages(oz_ids *out, reader *r, const json_t *messages, oz_err *err) {
    const oz_text_files *files = r->cfg->files;
    OZ_NEED(json_is_array(messages), err, OZ_E_FORMAT, "messages: must be a list, found %s", oz_json_show(messages));
    OZ_TRY(need_tok(r, err));
    OZ_NEED(files && files->chat_template, err, OZ_E_NOT_FOUND, "messages need the model's chat template, and it has none");
    if (!r->template) {
        OZ_TRY(oz_template_new(&r->template, files->chat_template, strlen(files->chat_template), err));
        r->special_tokens = oz_template_special_tokens(files->tokenizer_config);
    }
    oz_buf text = {0};
    const oz_template_args args = {.messages = messages, .special_tokens = r->special_tokens, .now = TEMPLATE_NOW};
    oz_status st = oz_template_render(&text, r->template, &args, err);
    if (st == OZ_OK) st = oz_tok_encode(out, r->cfg->tok, text.data ? text.data : "", text.len, false, err);
    oz_buf_deinit(&text);
    return st;
}

static oz_status line_read(oz_ids *out, reader *r, const json_t *line, oz_err *err) {
    OZ_NEED(json_is_object(line), err, OZ_E_FORMAT, "expected an object with ids, text or messages, found %s", oz_json_show(line));
    const json_t *given = json_object_get(line, "ids"), *ids = given ? given : json_object_get(line, "input_ids"), *text = json_object_get(line, "text"), *messages = json_object_get(line, "messages");
    if (ids) return line_ids(out, ids, err);
    if (messages) return line_messages(out, r, messages, err);
    OZ_NEED(json_is_string(text), err, OZ_E_FORMAT, "expected ids, text or messages, found %s", oz_json_show(line));
    OZ_TRY(need_tok(r, err));
    return oz_tok_encode(out, r->cfg->tok, json_string_value(text), json_string_length(text), false, err);
}

static oz_status line_add(reader *r, const char *p, size_t n, int64_t number, oz_err *err) {
    json_t *line = NULL;
    oz_ids ids = {0};
    char where[32];
    snprintf(where, sizeof where, "line %lld", (long long)number);
    OZ_NEED(!memchr(p, 0, n), err, OZ_E_FORMAT, "%s: a NUL byte", where);
    oz_status st = oz_json_parse_line(&line, p, n, where, err);
    if (st == OZ_OK && (st = line_read(&ids, r, line, err)) != OZ_OK) oz_err_prefix(err, "%s", where);
    if (st == OZ_OK && ids.len == 0) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: no tokens", where);
    if (st == OZ_OK) {
        const size_t have = r->c->n_seqs ? (size_t)r->c->begin[r->c->n_seqs] : 0, take = ids.len < (size_t)r->cfg->max_len ? ids.len : (size_t)r->cfg->max_len;
        oz_grow((void **)&r->c->ids, &r->cap_ids, have + take, sizeof *r->c->ids);
        memcpy(r->c->ids + have, ids.data, take * sizeof *ids.data);
        end_sequence(r, have + take);
    }
    oz_free(ids.data);
    json_decref(line);
    return st;
}

static oz_status read_lines(reader *r, const oz_buf *text, oz_err *err) {
    const char *p = text->data, *end = p ? p + text->len : p;
    for (int64_t number = 1; p < end && r->c->n_seqs < read_most(r); number++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        if (strspn(p, " \t\r") < (size_t)(stop - p) && line_add(r, p, (size_t)(stop - p), number, err) != OZ_OK) return oz_err_prefix(err, "%s", r->path);
        p = stop + 1;
    }
    OZ_NEED(r->c->n_seqs > 0, err, OZ_E_ARG, "%s: 0 sequences: there is no line in it", r->path);
    OZ_NEED(r->c->n_seqs >= r->cfg->n_samples, err, OZ_E_ARG, "%s: %lld sequences, and --num-calibration-samples is %lld", r->path, (long long)r->c->n_seqs,
            (long long)r->cfg->n_samples);
    return OZ_OK;
}

/* Keeps n of the sequences, chosen by the seed, in their order. */
static void choose(oz_calibration *c, int64_t n, uint64_t seed) {
    oz_rng rng;
    int64_t kept = 0, at = 0;
    oz_rng_init(&rng, seed);
    for (int64_t i = 0, left = c->n_seqs; i < c->n_seqs && kept < n; i++, left--) { /* each with the share that is still wanted of those that are left */
        if ((int64_t)(oz_rng_next(&rng) % (uint64_t)left) >= n - kept) continue;
        const int64_t begin = c->begin[i], len = c->begin[i + 1] - begin;
        memmove(c->ids + at, c->ids + begin, (size_t)len * sizeof *c->ids);
        c->begin[kept++] = at, at += len;
    }
    c->begin[kept] = at, c->n_seqs = kept;
}

oz_status oz_calibration_read(oz_calibration *c, const char *path, const oz_calibration_cfg *cfg, oz_err *err) {
    reader r = {.c = c, .cfg = cfg, .path = path};
    oz_buf text = {0};
    *c = (oz_calibration){.max_len = cfg->max_len};
    oz_status st = oz_file_read(&text, path, MAX_BYTES, err);
    if (st != OZ_OK) return st;
    const char *slash = strrchr(path, '/');
    c->name = oz_strdup(slash ? slash + 1 : path);
    oz_sha256 sha;
    oz_sha256_init(&sha);
    oz_sha256_add(&sha, text.data, text.len);
    oz_sha256_hex(c->sha256, &sha);
    oz_grow((void **)&c->begin, &r.cap_seqs, 1, sizeof *c->begin);
    c->begin[0] = 0;
    st = oz_str_ends(path, ".jsonl") ? read_lines(&r, &text, err) : read_plain(&r, &text, err);
    if (st == OZ_OK && cfg->seed >= 0 && c->n_seqs > wanted(&r)) choose(c, wanted(&r), (uint64_t)cfg->seed);
    c->seed = cfg->seed;
    if (st == OZ_OK && c->n_seqs < wanted(&r)) oz_log_warn("%s: %lld sequences, fewer than the usual %d: all of them are taken (--num-calibration-samples)", path, (long long)c->n_seqs, OZ_CALIBRATION_SAMPLES);
    oz_template_free(&r.template);
    json_decref(r.special_tokens);
    oz_buf_deinit(&text);
    if (st != OZ_OK) oz_calibration_deinit(c);
    return st;
}

void oz_calibration_deinit(oz_calibration *c) {
    oz_free(c->name);
    oz_free(c->ids);
    oz_free(c->begin);
    *c = (oz_calibration){0};
}
