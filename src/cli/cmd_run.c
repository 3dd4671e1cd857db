/* ounce run: generates from a text, a conversation or ids, streaming. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "cli/cli.h"
#include "engine/engine.h"

enum { DEFAULT_NEW_TOK = 256 };
static const char *prompt, *ids_path;
static bool chat, ignore_eos, print_ids;
static int64_t n_new = DEFAULT_NEW_TOK, seed = 0;
static oz_sampling sampling = {.temperature = 0.0, .top_p = 1.0};
static oz_opt_list stops;
static const oz_opt opts[] = {
    {"prompt", 'p', OZ_OPT_STR, &prompt, 0, 0, NULL, "TEXT", "continue this text"},
    {"chat", 0, OZ_OPT_FLAG, &chat, 0, 0, NULL, NULL, "a conversation through the model's template; one turn if it is given by -p or stdin is not a terminal"},
    {"ids", 0, OZ_OPT_STR, &ids_path, 0, 0, NULL, "FILE", "continue these token ids (decimal, white space; - for stdin)"},
    {"max-tokens", 'n', OZ_OPT_INT, &n_new, 1, 1 << 30, NULL, "N", "new tokens at most"},
    {"temperature", 0, OZ_OPT_FLOAT, &sampling.temperature, 0, 1e6, NULL, "T", "0 is greedy"},
    {"top-p", 0, OZ_OPT_FLOAT, &sampling.top_p, 1e-9, 1, NULL, "P", "keep the most likely tokens up to this mass"},
    {"top-k", 0, OZ_OPT_INT, &sampling.top_k, 0, 1 << 30, NULL, "K", "keep the K most likely tokens; 0: all"},
    {"min-p", 0, OZ_OPT_FLOAT, &sampling.min_p, 0, 1, NULL, "P", "drop tokens less likely than P times the most likely"},
    {"seed", 0, OZ_OPT_INT, &seed, 0, 9007199254740992.0, NULL, "S", "seed of the sampling"},
    {"stop", 0, OZ_OPT_LIST, &stops, 0, 0, NULL, "S", "stop before this text"},
    {"ignore-eos", 0, OZ_OPT_FLAG, &ignore_eos, 0, 0, NULL, NULL, "go on past end-of-text tokens"},
    {"print-ids", 0, OZ_OPT_FLAG, &print_ids, 0, 0, NULL, NULL, "print the new ids, space separated, instead of text; so it is for --ids where the model has no tokenizer"},
    {0}};
static const oz_opt *const tables[] = {opts, oz_cli_opts_model, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {"run", "MODEL {-p TEXT | --chat [-p TEXT] | --ids FILE} [-n N]", "generate text", NULL, tables, 1, 1};

/* What a generation writes to: text is held back while it may be the beginning of a stop string. */
typedef struct out {
    const oz_tok *tok;
    oz_detok detok;
    oz_buf text, all;       /* not yet printed; everything, for JSON and the conversation */
    oz_ids ids;
    bool stopped;
    int write_errno; /* of stdout; 0: it takes what we write */
    oz_finish finish;
    int64_t first_us;
} out;

/* How many bytes of text[0..len) may be printed: all before a stop string (then *hit), or before what may become one. */
static size_t printable(const oz_buf *text, bool *hit) {
    size_t keep = text->len;
    *hit = false;
    for (size_t s = 0; s < stops.n; s++) {
        const size_t n = strlen(stops.items[s]);
        for (size_t at = 0; n > 0 && at < keep; at++) {
            const size_t k = text->len - at < n ? text->len - at : n;
            if (memcmp(text->data + at, stops.items[s], k) != 0) continue;
            keep = at;
            *hit = k == n;
        }
    }
    return keep;
}

static void text_flush(out *o, bool last) {
    bool hit;
    size_t n = printable(&o->text, &hit);
    if (last && !hit) n = o->text.len;
    o->stopped |= hit;
    if (!oz_cli_common.json && !print_ids) {
        fwrite(o->text.data ? o->text.data : "", 1, n, stdout);
        if (fflush(stdout) != 0) o->write_errno = errno;
    }
    if (n == 0) return;
    oz_buf_append(&o->all, o->text.data, n);
    memmove(o->text.data, o->text.data + n, o->text.len - n + 1);
    o->text.len -= n;
}

static void on_token(void *arg, int64_t id, int32_t token, oz_finish finish) {
    (void)id;
    out *o = arg;
    if (!o->first_us) o->first_us = oz_clock_us();
    oz_grow((void **)&o->ids.data, &o->ids.cap, o->ids.len + 1, sizeof *o->ids.data);
    o->ids.data[o->ids.len++] = token;
    o->finish = finish;
    if (print_ids && !oz_cli_common.json) {
        printf(o->ids.len > 1 ? " %d" : "%d", token);
        if (fflush(stdout) != 0) o->write_errno = errno;
    }
    if (!o->tok) return;
    if (finish != OZ_FINISH_STOP) oz_detok_push(&o->text, &o->detok, token);
    if (finish != OZ_FINISH_NONE) oz_detok_flush(&o->text, &o->detok);
    text_flush(o, finish != OZ_FINISH_NONE);
}

static void stop_add(oz_request *r, int32_t *ids, int64_t id) {
    for (int i = 0; i < r->n_stop_ids; i++)
        if (ids[i] == id) return;
    if (id >= 0 && id <= INT32_MAX && r->n_stop_ids < OZ_MAX_STOP_IDS) ids[r->n_stop_ids++] = (int32_t)id;
}

/* End-of-text ids: those of config.json, of generation_config.json, and the tokenizer's eos token. */
static void stop_ids(oz_request *r, int32_t *ids, const oz_cli_model *m) {
    r->stop_ids = ids;
    if (ignore_eos) return;
    const oz_model_info *f = oz_model_get(m->model);
    for (int i = 0; i < f->n_eos; i++) stop_add(r, ids, f->eos_ids[i]);
    const json_t *g = json_object_get(m->text.generation_config, "eos_token_id");
    if (json_is_integer(g)) stop_add(r, ids, json_integer_value(g));
    for (size_t i = 0; i < json_array_size(g); i++)
        if (json_is_integer(json_array_get(g, i))) stop_add(r, ids, json_integer_value(json_array_get(g, i)));
    if (m->tok) stop_add(r, ids, oz_tok_eos(m->tok));
}

/* Other bytes would become replacement characters, and the answer one to another text. */
static oz_status utf8_check(const char *what, const char *text, size_t n, oz_err *err) {
    const size_t good = oz_utf8_run(text, n);
    OZ_NEED(good == n, err, OZ_E_ARG, "%s: expected UTF-8, found 0x%02x at byte %zu", what, (unsigned char)text[good], good);
    return OZ_OK;
}

static oz_status generate(out *o, const oz_cli_model *m, const oz_ids *in, oz_err *err) {
    const oz_model_info *f = oz_model_get(m->model);
    const int64_t n = (int64_t)in->len, room = f->max_len - n;
    OZ_NEED(room >= 1, err, OZ_E_ARG, "the prompt has %lld tokens, the model takes %lld (--max-model-len)", (long long)n, (long long)f->max_len);
    oz_request r = {.prompt = in->data, .n_prompt = n, .max_new_tok = n_new, .sampling = sampling};
    r.sampling.seed = (uint64_t)seed;
    if (n_new == DEFAULT_NEW_TOK && r.max_new_tok > room) r.max_new_tok = room; /* only the default gives way */
    OZ_NEED(r.max_new_tok <= room, err, OZ_E_ARG, "-n %lld: after a prompt of %lld tokens the model takes %lld more (--max-model-len)", (long long)n_new, (long long)n, (long long)room);
    int32_t ids[OZ_MAX_STOP_IDS];
    stop_ids(&r, ids, m);
    oz_engine *e;
    OZ_TRY(oz_engine_new(&e, m->model, &(oz_engine_cfg){1, n + r.max_new_tok}, err));
    int64_t id, active = 1;
    *o = (out){.tok = m->tok};
    if (m->tok) oz_detok_init(&o->detok, m->tok, true);
    const int64_t t0 = oz_clock_us();
    oz_status st = oz_engine_add(&id, e, &r, err);
    while (st == OZ_OK && active > 0 && !o->stopped && !o->write_errno && !oz_interrupted()) st = oz_engine_step(&active, e, on_token, o, err);
    if (st == OZ_E_FORMAT) oz_cli_blame(m->ckpt, err); /* of a step: logits that are not finite */
    const int64_t t1 = oz_clock_us();
    if (st == OZ_OK && o->write_errno) st = oz_err_set(err, OZ_E_IO, __FILE__, __LINE__, "stdout: %s", strerror(o->write_errno)); /* nobody reads the rest */
    if (st == OZ_OK && oz_interrupted()) st = oz_err_set(err, OZ_E_INTERRUPTED, __FILE__, __LINE__, "interrupted");
    oz_engine_free(&e);
    if (st == OZ_OK && o->ids.len > 0) {
        const double ttft = (double)(o->first_us - t0) / 1e6, rest = (double)(t1 - o->first_us) / 1e6;
        if (!oz_cli_common.json) puts(""), fflush(stdout); /* before what follows on stderr, which may be the same file */
        oz_log_info("prompt %lld tokens, first token after %.3f s; %zu new tokens, %.1f tokens/s", (long long)n, ttft, o->ids.len, o->ids.len > 1 ? (double)(o->ids.len - 1) / rest : 0.0);
    }
    return st;
}

static void out_deinit(out *o) {
    oz_buf_deinit(&o->text);
    oz_buf_deinit(&o->all);
    oz_free(o->ids.data);
}

static void out_json(const out *o, size_t n_prompt) {
    json_t *ids = json_array();
    for (size_t i = 0; i < o->ids.len; i++) json_array_append_new(ids, json_integer(o->ids.data[i]));
    json_t *doc = json_pack("{s:I s:o s:s s:I}", "prompt_tokens", (json_int_t)n_prompt, "ids", ids, "finish_reason", o->stopped || o->finish == OZ_FINISH_STOP ? "stop" : "length",
                            "peak_rss_bytes", (json_int_t)oz_rss_peak_bytes());
    if (o->tok) json_object_set_new(doc, "text", json_stringn(o->all.data ? o->all.data : "", o->all.len));
    oz_cli_json_print(doc);
}

static oz_status once(const oz_cli_model *m, const oz_ids *in, oz_err *err) {
    out o = {0};
    oz_status st = generate(&o, m, in, err);
    if (st == OZ_OK && oz_cli_common.json) out_json(&o, in->len);
    out_deinit(&o);
    return st;
}

/* Renders the conversation and answers it; the answer is appended to messages. */
static oz_status turn(json_t *messages, const oz_cli_model *m, const oz_template *t, oz_err *err) {
    json_t *special = oz_template_special_tokens(m->text.tokenizer_config), *kwargs = json_pack("{s:b}", "add_generation_prompt", 1);
    oz_buf text = {0};
    oz_ids ids = {0};
    out o = {0};
    oz_status st = oz_template_render(&text, t, &(oz_template_args){messages, NULL, kwargs, special, -1}, err);
    if (st == OZ_OK) st = oz_tok_encode(&ids, m->tok, text.data ? text.data : "", text.len, false, err);
    if (st == OZ_OK && ids.len == 0) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "the chat template made an empty prompt");
    if (st == OZ_OK) st = generate(&o, m, &ids, err);
    if (st == OZ_OK) json_array_append_new(messages, json_pack("{s:s s:o}", "role", "assistant", "content", json_stringn(o.all.data ? o.all.data : "", o.all.len)));
    if (st == OZ_OK && oz_cli_common.json) out_json(&o, ids.len);
    out_deinit(&o);
    oz_buf_deinit(&text);
    oz_free(ids.data);
    json_decref(special);
    json_decref(kwargs);
    return st;
}

static oz_status user_add(json_t *messages, const char *text, size_t n, oz_err *err) {
    OZ_TRY(utf8_check("the message", text, n, err));
    json_array_append_new(messages, json_pack("{s:s s:o}", "role", "user", "content", json_stringn(text, n)));
    return OZ_OK;
}

static oz_status conversation(json_t *messages, const oz_cli_model *m, const oz_template *t, oz_err *err) {
    char *line = NULL;
    size_t cap = 0;
    oz_status st = OZ_OK;
    fputs("(end with an empty line or Ctrl-D)\n> ", stderr);
    for (ssize_t n; st == OZ_OK && !oz_interrupted() && (n = getline(&line, &cap, stdin)) > 0 && line[0] != '\n';) {
        if (line[n - 1] == '\n') n--;
        if ((st = user_add(messages, line, (size_t)n, err)) == OZ_OK) st = turn(messages, m, t, err);
        if (st == OZ_OK) fputs("> ", stderr);
    }
    if (st != OZ_OK || !line || line[0] != '\n') fputs("\n", stderr); /* an answer that was broken off, or the prompt: its line is still open */
    free(line);
    return st;
}

static oz_status run_chat(const oz_cli_model *m, oz_err *err) {
    OZ_NEED(m->text.chat_template, err, OZ_E_NOT_FOUND, "the checkpoint has no chat template: use -p TEXT");
    oz_template *t;
    OZ_TRY(oz_template_new(&t, m->text.chat_template, strlen(m->text.chat_template), err));
    json_t *messages = json_array();
    oz_buf text = {0};
    oz_status st = OZ_OK;
    if (!prompt && isatty(STDIN_FILENO)) st = conversation(messages, m, t, err);
    else {
        if (!prompt) st = oz_file_read(&text, "-", (size_t)64 << 20, err);
        while (text.len && text.data[text.len - 1] == '\n') text.len--;
        if (st == OZ_OK && !prompt && text.len == 0) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "stdin: expected a message, found nothing");
        if (st == OZ_OK) st = prompt ? user_add(messages, prompt, strlen(prompt), err) : user_add(messages, text.data ? text.data : "", text.len, err);
        if (st == OZ_OK) st = turn(messages, m, t, err);
    }
    json_decref(messages);
    oz_buf_deinit(&text);
    oz_template_free(&t);
    return st;
}

static oz_status run_text(const oz_cli_model *m, oz_err *err) {
    oz_ids ids = {0};
    oz_status st = oz_tok_encode(&ids, m->tok, prompt, strlen(prompt), true, err);
    if (st == OZ_OK && ids.len == 0) st = oz_err_set(err, OZ_E_ARG, __FILE__, __LINE__, "the prompt is empty: at least one token is needed");
    if (st == OZ_OK) st = once(m, &ids, err);
    oz_free(ids.data);
    return st;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    (void)n_args;
    OZ_NEED((ids_path != NULL) + (prompt != NULL || chat) == 1, err, OZ_E_USAGE, "exactly one of -p TEXT, --chat and --ids FILE is needed");
    OZ_NEED(oz_comm_size(oz_cli_comm) == 1 || (chat ? prompt != NULL : !ids_path || strcmp(ids_path, "-") != 0), err, OZ_E_USAGE, "ranks cannot share stdin: use -p TEXT or --ids FILE");
    OZ_NEED(!ids_path || stops.n == 0, err, OZ_E_USAGE, "--stop needs text: it does not go with --ids");
    for (size_t i = 0; i < stops.n; i++) {
        const size_t n = strlen(stops.items[i]);
        OZ_NEED(n > 0, err, OZ_E_USAGE, "--stop: the text is empty");
        OZ_NEED(oz_utf8_valid(stops.items[i], n), err, OZ_E_USAGE, "--stop: must be UTF-8: half a character would be left before it");
    }
    if (prompt) OZ_TRY(utf8_check("-p", prompt, strlen(prompt), err));
    oz_ids ids = {0};
    if (ids_path) OZ_TRY(oz_cli_ids_read(&ids, ids_path, err));
    oz_cli_model m;
    const oz_cli_need need = {.tok = !ids_path, .tok_if_any = !print_ids && !oz_cli_common.json, .len = ids_path ? (int64_t)ids.len + (n_new == DEFAULT_NEW_TOK ? 1 : n_new) : 0};
    oz_status st = oz_cli_model_open(&m, args[0], &need, err);
    if (st == OZ_OK) {
        if (!m.tok && !print_ids && !oz_cli_common.json) {
            oz_log_warn("%s: no tokenizer.json: the new ids are printed (--print-ids)", args[0]);
            print_ids = true;
        }
        st = oz_cli_of_model(ids_path ? once(&m, &ids, err) : chat ? run_chat(&m, err) : run_text(&m, err), args[0], err);
        oz_cli_model_close(&m);
    }
    oz_free(ids.data);
    return st;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_run = {"run", describe, run, true};
