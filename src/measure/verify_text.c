/* What text needs: the tokenizer and the template are read as `run` reads them, and every number that two files give is compared. */
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "measure/internal.h"

typedef struct text { const oz_verify *v; oz_text_files files; oz_tok *tok; int64_t vocab; /* rows of the embedding; 0: not known */ } text;

/* Of config.json, or of the text part inside it. */
static const json_t *config_get(const oz_verify *v, const char *key) {
    const json_t *config = oz_ckpt_config(v->ckpt), *own = json_object_get(config, key);
    return own ? own : json_object_get(json_object_get(config, "text_config"), key);
}

static const char *content(const json_t *v) { return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v); }

static bool has_id(const json_t *v, int64_t id) {
    if (json_is_integer(v)) return json_integer_value(v) == id;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (has_id(json_array_get(v, i), id)) return true;
    return false;
}

/* -1 stands for none in older configs. What is no id is run without; one that no token has never comes up. */
static void check_id(const text *t, const char *file, const char *key, const json_t *v) {
    if (v && !json_is_integer(v) && !json_is_array(v) && !json_is_null(v)) oz_found_warning(t->v->f, "%s.%s: expected an id or a list of ids, found %s", file, key, oz_json_show(v));
    if (json_is_integer(v) && t->vocab && (json_integer_value(v) < -1 || json_integer_value(v) >= t->vocab))
        oz_found_warning(t->v->f, "%s.%s: expected an id below %lld, the rows of the embedding, found %s", file, key, (long long)t->vocab, oz_json_show(v));
    for (size_t i = 0; i < json_array_size(v); i++) check_id(t, file, key, json_array_get(v, i));
}

static void check_ids(const text *t) {
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        check_id(t, "config.json", keys[i], config_get(t->v, keys[i]));
        check_id(t, "generation_config.json", keys[i], json_object_get(t->files.generation_config, keys[i]));
    }
}

static void check_vocab(const text *t) {
    const int64_t n = oz_tok_vocab_size(t->tok);
    if (t->vocab && n > t->vocab)
        oz_found_warning(t->v->f, "tokenizer.json: expected at most %lld tokens, the rows of the embedding, found ids up to %lld", (long long)t->vocab, (long long)n - 1);
}

/* The tokens that tokenizer_config.json names, by text and by id, are those of tokenizer.json. */
static void check_names(const text *t) {
    static const char *const keys[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    const json_t *config = t->files.tokenizer_config, *added = json_object_get(config, "added_tokens_decoder");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *s = content(json_object_get(config, keys[i]));
        if (s && oz_tok_id(t->tok, s) < 0) oz_found_warning(t->v->f, "tokenizer_config.json.%s: expected a token of tokenizer.json, found \"%.60s\"", keys[i], s);
    }
    const char *id;
    json_t *token;
    json_object_foreach((json_t *)added, id, token) {
        const char *s = content(token);
        const int found = s ? oz_tok_id(t->tok, s) : -1;
        char own[16];
        snprintf(own, sizeof own, "%d", found);
        if (s && strcmp(own, id) != 0) oz_found_warning(t->v->f, "tokenizer_config.json.added_tokens_decoder.%.20s: expected the id of \"%.60s\" in tokenizer.json, which is %s", id, s, found < 0 ? "not there" : own);
    }
}

/* What ends a text and what begins it: the model's config against the tokenizer's. */
static void check_ends(const text *t) {
    const int32_t bos = oz_tok_bos(t->tok), eos = oz_tok_eos(t->tok);
    const json_t *config_bos = config_get(t->v, "bos_token_id"), *config_eos = config_get(t->v, "eos_token_id"), *more = json_object_get(t->files.generation_config, "eos_token_id");
    if (bos >= 0 && json_is_integer(config_bos) && !has_id(config_bos, bos))
        oz_found_warning(t->v->f, "config.json.bos_token_id: expected %d, the tokenizer's bos_token, found %s", bos, oz_json_show(config_bos));
    if (eos >= 0 && (config_eos || more) && !json_is_null(config_eos) && !has_id(config_eos, eos) && !has_id(more, eos))
        oz_found_warning(t->v->f, "config.json.eos_token_id: expected %d, the tokenizer's eos_token, found %s", eos, oz_json_show(config_eos ? config_eos : more));
}

static oz_status read_text(text *t, oz_err *err) {
    OZ_TRY(oz_found(t->v->f, oz_text_files_open(&t->files, t->v->model, err), err));
    oz_status st = t->files.tokenizer ? oz_tok_new(&t->tok, t->files.tokenizer, t->files.tokenizer_config, err) : OZ_OK;
    if (st != OZ_OK) oz_err_prefix(err, "tokenizer.json");
    OZ_TRY(oz_found(t->v->f, st, err));
    oz_template *chat = NULL;
    if (t->files.chat_template && (st = oz_template_new(&chat, t->files.chat_template, strlen(t->files.chat_template), err)) != OZ_OK) oz_err_prefix(err, "chat template");
    oz_template_free(&chat);
    return oz_found(t->v->f, st, err);
}

oz_status oz_verify_text(const oz_verify *v, oz_err *err) {
    text t = {.v = v};
    for (size_t i = 0; i < v->list.n && !t.vocab; i++)
        if (v->list.items[i].role == OZ_ROLE_EMBED) t.vocab = v->list.items[i].rows;
    const oz_status st = read_text(&t, err);
    if (st == OZ_OK) check_ids(&t);
    if (st == OZ_OK && t.tok) {
        check_vocab(&t);
        check_names(&t);
        check_ends(&t);
    }
    oz_tok_free(&t.tok);
    oz_text_files_close(&t.files);
    return st;
}
