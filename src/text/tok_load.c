/* tokenizer.json as a whole: the order in which its parts are read, its added tokens. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

/* Far above what exists; a file must not be able to make us large or slow. */
enum { MAX_ADDED_BYTES = 4096 };

static const oz_model_row *const models[] = {&oz_model_bpe, &oz_model_unigram, &oz_model_word_piece, &oz_model_word_level, NULL};

static oz_status load_model(oz_tok *t, const json_t *obj, oz_err *err) {
    OZ_NEED(json_is_object(obj), err, OZ_E_FORMAT, "model: must be an object, found %s", oz_json_show(obj));
    const char *type = json_object_get(obj, "merges")                     ? "BPE"
                       : json_object_get(obj, "max_input_chars_per_word") ? "WordPiece"
                                                                          : "WordLevel";
    if (json_is_array(json_object_get(obj, "vocab"))) type = "Unigram"; /* older files leave it out */
    OZ_TRY(oz_json_str(&type, obj, "model", "type", err));
    const oz_model_row *const *row = models;
    while (*row && strcmp((*row)->type, type) != 0) row++;
    OZ_NEED(*row, err, OZ_E_UNSUPPORTED, "model.type: \"%.80s\" is not supported", type);
    OZ_TRY(oz_json_keys(obj, (oz_jpath){"model"}, (*row)->keys, err));
    t->row = *row;
    bool bytes = t->row == &oz_model_bpe && oz_bpe_reads_bytes(obj) && oz_split_take_bytes(&t->split);
    return t->row->load(&t->model, &t->vocab, obj, bytes, err);
}

/* ---- added tokens */

typedef struct added {
    oz_added_token token;
    oz_slice content;
    bool normalized, special;
} added;

static oz_status added_read(added *out, oz_tok *t, const json_t *obj, oz_jpath path, oz_err *err) {
    OZ_TRY(oz_json_keys(obj, path, "id|content|single_word|lstrip|rstrip|normalized|special", err));
    const json_t *id = json_object_get(obj, "id"), *content = json_object_get(obj, "content");
    OZ_NEED(json_is_integer(id), err, OZ_E_FORMAT, "%s.id: must be an integer, found %s", path.s, oz_json_show(id));
    OZ_NEED(json_is_string(content) && json_string_length(content) <= MAX_ADDED_BYTES, err, OZ_E_FORMAT,
            "%s.content: must be a string of at most %d bytes, found %s", path.s, MAX_ADDED_BYTES, oz_json_show(content));
    *out = (added){.content = {json_string_value(content), json_string_length(content)}};
    OZ_TRY(oz_json_flag(&out->special, obj, path, "special", err));
    out->normalized = !out->special;
    OZ_TRY(oz_json_flag(&out->normalized, obj, path, "normalized", err));
    OZ_TRY(oz_json_flag(&out->token.single_word, obj, path, "single_word", err));
    OZ_TRY(oz_json_flag(&out->token.lstrip, obj, path, "lstrip", err));
    OZ_TRY(oz_json_flag(&out->token.rstrip, obj, path, "rstrip", err));
    int flags = OZ_TOK_ADDED | (out->special ? OZ_TOK_SPECIAL : 0);
    OZ_TRY(oz_vocab_add(&t->vocab, json_integer_value(id), out->content, flags, path.s, err));
    out->token.id = (int32_t)json_integer_value(id);
    return OZ_OK;
}

/* A normalized token is searched for, and decoded, as its content looks after normalisation. Whether it is skipped goes by that text. */
static oz_status added_put(oz_tok *t, const added *a, oz_norm_work *w, oz_err *err) {
    oz_slice text = a->content;
    if (a->normalized) OZ_TRY(oz_norms_run(&text, &t->norms, w, err));
    if (text.n) oz_added_push(a->normalized ? &t->normalized : &t->raw, a->token, text);
    int32_t same = oz_vocab_find(&t->vocab, text, OZ_TOK_SPECIAL);
    if (same >= 0) t->vocab.item[a->token.id].flags |= OZ_TOK_SKIPPED;
    return oz_vocab_set(&t->vocab, &t->vocab.item[a->token.id].text, text, err);
}

static oz_status load_added(oz_tok *t, const json_t *list, oz_err *err) {
    if (!list || json_is_null(list)) return OZ_OK;
    oz_jpath path = {"added_tokens"};
    OZ_NEED(json_is_array(list), err, OZ_E_FORMAT, "added_tokens: must be an array, found %s", oz_json_show(list));
    size_t n = json_array_size(list);
    added *all = oz_alloc_array(n, sizeof *all);
    oz_norm_work w = {0};
    oz_status st = OZ_OK;
    for (size_t i = 0; i < n && st == OZ_OK; i++) st = added_read(&all[i], t, json_array_get(list, i), oz_jpath_at(path, i), err);
    for (int special = 1; special >= 0 && st == OZ_OK; special--) /* of equal texts the special one counts */
        for (size_t i = 0; i < n && st == OZ_OK; i++)
            if (all[i].special == special) st = added_put(t, &all[i], &w, err);
    oz_free(all);
    oz_norm_work_deinit(&w);
    oz_added_seal(&t->raw);
    oz_added_seal(&t->normalized);
    return st;
}

/* ---- tokenizer_config.json */

static oz_status load_special(int32_t *id, const oz_tok *t, const json_t *config, const char *key, oz_err *err) {
    const json_t *v = json_object_get(config, key), *content = json_is_object(v) ? json_object_get(v, "content") : v;
    *id = -1;
    if (!v || json_is_null(v)) return OZ_OK;
    OZ_NEED(json_is_string(content), err, OZ_E_FORMAT,
            "tokenizer_config.json: %s: must be a string, an object with content or null, found %s", key, oz_json_show(v));
    *id = oz_vocab_find(&t->vocab, (oz_slice){json_string_value(content), json_string_length(content)}, OZ_TOK_ANY);
    OZ_NEED(*id >= 0, err, OZ_E_FORMAT, "tokenizer_config.json: %s: %s is not in the vocabulary of tokenizer.json", key,
            oz_json_show(content));
    return OZ_OK;
}

static oz_status check_ignored(const json_t *root, const char *key, oz_err *err) { /* read and not applied */
    const json_t *v = json_object_get(root, key);
    OZ_NEED(!v || json_is_null(v) || json_is_object(v), err, OZ_E_FORMAT, "%s: must be an object or null, found %s", key, oz_json_show(v));
    return OZ_OK;
}

static oz_status load(oz_tok *t, const json_t *root, const json_t *config, oz_err *err) {
    const char *version = "1.0";
    OZ_TRY(oz_json_keys(root, (oz_jpath){""},
                        "version|truncation|padding|added_tokens|normalizer|pre_tokenizer|post_processor|decoder|model", err));
    OZ_TRY(oz_json_str(&version, root, "", "version", err));
    OZ_NEED(strcmp(version, "1.0") == 0, err, OZ_E_UNSUPPORTED, "version: must be \"1.0\", found \"%.20s\"", version);
    OZ_TRY(check_ignored(root, "truncation", err));
    OZ_TRY(check_ignored(root, "padding", err));
    OZ_TRY(oz_norms_parse(&t->norms, json_object_get(root, "normalizer"), err));
    OZ_TRY(oz_split_parse(&t->split, json_object_get(root, "pre_tokenizer"), err));
    OZ_TRY(load_model(t, json_object_get(root, "model"), err));
    OZ_TRY(load_added(t, json_object_get(root, "added_tokens"), err));
    OZ_TRY(oz_decoders_parse(&t->decoders, json_object_get(root, "decoder"), err));
    OZ_TRY(oz_decoders_pieces(&t->vocab, &t->decoders, err));
    OZ_TRY(oz_post_parse(t, json_object_get(root, "post_processor"), err));
    OZ_TRY(load_special(&t->bos, t, config, "bos_token", err));
    return load_special(&t->eos, t, config, "eos_token", err);
}

oz_status oz_tok_new(oz_tok **out, const json_t *tokenizer, const json_t *config, oz_err *err) {
    *out = oz_alloc(sizeof **out);
    oz_status st = load(*out, tokenizer, config, err);
    if (st != OZ_OK) oz_tok_free(out);
    return st;
}

void oz_tok_free(oz_tok **tok) {
    oz_tok *t = *tok;
    if (!t) return;
    if (t->model) t->row->free(t->model);
    oz_norms_deinit(&t->norms);
    oz_split_deinit(&t->split);
    oz_decoders_deinit(&t->decoders);
    oz_added_deinit(&t->raw);
    oz_added_deinit(&t->normalized);
    oz_vocab_deinit(&t->vocab);
    oz_free(t->prefix.data);
    oz_free(t->suffix.data);
    oz_free(t);
    *tok = NULL;
}
