/* tokenizer.json as a whole: the order in which its parts are read, its added tokens, post-processor and decoder. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

/* Far above what exists; a file must not be able to make us large or slow. */
enum { MAX_ADDED_BYTES = 4096, MAX_TEMPLATE_IDS = 1024 };

static const oz_model_row *const models[] = {&oz_model_bpe, NULL};

static oz_status load_model(oz_tok *t, const json_t *obj, oz_err *err) {
    OZ_NEED(json_is_object(obj), err, OZ_E_FORMAT, "model: must be an object, found %s", oz_json_show(obj));
    const char *type = json_object_get(obj, "merges") ? "BPE" : ""; /* older files leave it out */
    OZ_TRY(oz_json_str(&type, obj, "model", "type", err));
    const oz_model_row *const *row = models;
    while (*row && strcmp((*row)->type, type) != 0) row++;
    OZ_NEED(*row, err, OZ_E_UNSUPPORTED, "model.type: \"%.80s\" is not supported", type);
    OZ_TRY(oz_json_keys(obj, (oz_jpath){"model"}, (*row)->keys, err));
    t->row = *row;
    return t->row->load(&t->model, &t->vocab, obj, t->split.byte_level, err);
}

/* ---- decoder */

static oz_status parse_byte_level(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_tok *t = self;
    OZ_NEED(!t->byte_level_decoder, err, OZ_E_UNSUPPORTED, "%s: a second ByteLevel decoder is not supported", path.s);
    t->byte_level_decoder = true;
    return OZ_OK;
}

static const oz_stage_row decoders[] = {
    {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex", NULL, parse_byte_level},
    {"Sequence", "type|decoders", "decoders", NULL},
    {0},
};

/* The bytes that a token stands for; its own text if one of its characters is outside the byte alphabet. */
static oz_slice to_bytes(oz_buf *tmp, oz_slice s) {
    oz_buf_clear(tmp);
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        i += oz_uc_next(s.p + i, &c);
        int byte = oz_char_byte(c);
        if (byte < 0) return s;
        oz_buf_putc(tmp, (char)byte);
    }
    return (oz_slice){tmp->data, tmp->len};
}

static oz_status piece_put(oz_tok *t, size_t id, oz_slice text, oz_err *err) {
    oz_buf tmp = {0};
    oz_status st = oz_vocab_set_piece(&t->vocab, (int32_t)id, t->byte_level_decoder ? to_bytes(&tmp, text) : text, err);
    oz_buf_deinit(&tmp);
    return st;
}

static oz_status load_pieces(oz_tok *t, const json_t *decoder, oz_err *err) {
    OZ_TRY(oz_stage_parse(t, decoders, decoder, (oz_jpath){"decoder"}, err));
    t->spaced = !decoder || json_is_null(decoder);
    for (size_t id = 0; id < t->vocab.n; id++)
        if (t->vocab.item[id].flags) OZ_TRY(piece_put(t, id, oz_vocab_content(&t->vocab, (int32_t)id), err));
    return OZ_OK;
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

/* A normalized token is searched for, and decoded to, as its content looks after normalisation. */
static oz_status added_put(oz_tok *t, const added *a, oz_err *err) {
    oz_buf one = {0}, two = {0};
    oz_slice text = a->normalized ? oz_norms_run(&t->norms, a->content, &one, &two) : a->content;
    if (text.n) oz_added_push(a->normalized ? &t->normalized : &t->raw, a->token, text);
    oz_status st = piece_put(t, (size_t)a->token.id, text, err);
    oz_buf_deinit(&one);
    oz_buf_deinit(&two);
    return st;
}

static oz_status load_added(oz_tok *t, const json_t *list, oz_err *err) {
    if (!list || json_is_null(list)) return OZ_OK;
    oz_jpath path = {"added_tokens"};
    OZ_NEED(json_is_array(list), err, OZ_E_FORMAT, "added_tokens: must be an array, found %s", oz_json_show(list));
    size_t n = json_array_size(list);
    added *all = oz_alloc_array(n, sizeof *all);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < n && st == OZ_OK; i++) st = added_read(&all[i], t, json_array_get(list, i), oz_jpath_at(path, i), err);
    for (int special = 1; special >= 0 && st == OZ_OK; special--) /* of equal texts the special one counts */
        for (size_t i = 0; i < n && st == OZ_OK; i++)
            if (all[i].special == special) st = added_put(t, &all[i], err);
    oz_free(all);
    oz_added_seal(&t->raw);
    oz_added_seal(&t->normalized);
    return st;
}

/* ---- post-processor */

/* Puts the ids of a template's special token behind those in `to`. */
static oz_status template_special(oz_ids *to, const oz_tok *t, const json_t *item, const json_t *specials, oz_jpath path, oz_err *err) {
    const char *name = NULL;
    OZ_TRY(oz_json_keys(item, path, "id|type_id", err));
    OZ_TRY(oz_json_str(&name, item, path.s, "id", err));
    const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
    OZ_NEED(json_is_array(ids), err, OZ_E_FORMAT, "%s.id: must name one of post_processor.special_tokens with ids, found %s", path.s,
            oz_json_show(json_object_get(item, "id")));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;
        OZ_NEED(v >= 0 && v <= OZ_TOK_MAX_ID && oz_vocab_has(&t->vocab, (int32_t)v), err, OZ_E_FORMAT,
                "%s.id: the ids of \"%.60s\" must be in the vocabulary, found %s", path.s, name, oz_json_show(id));
        OZ_NEED(to->len < MAX_TEMPLATE_IDS, err, OZ_E_UNSUPPORTED, "%s: a template of more than %d ids", path.s, MAX_TEMPLATE_IDS);
        oz_ids_push(to, (int32_t)v);
    }
    return OZ_OK;
}

static void put_before(oz_ids *ids, const oz_ids *first) {
    oz_ids joined = {0};
    for (size_t i = 0; i < first->len; i++) oz_ids_push(&joined, first->data[i]);
    for (size_t i = 0; i < ids->len; i++) oz_ids_push(&joined, ids->data[i]);
    oz_free(ids->data);
    *ids = joined;
}

/* One item of a template: {"SpecialToken": ..} or {"Sequence": {"id": "A"}}. */
static oz_status template_item(oz_ids side[2], int *seen, const oz_tok *t, const json_t *item, const json_t *specials, oz_jpath path,
                               oz_err *err) {
    OZ_TRY(oz_json_keys(item, path, "SpecialToken|Sequence", err));
    const json_t *special = json_object_get(item, "SpecialToken"), *sequence = json_object_get(item, "Sequence");
    OZ_NEED(!special != !sequence, err, OZ_E_FORMAT, "%s: must be a SpecialToken or a Sequence, found %s", path.s, oz_json_show(item));
    if (special) return template_special(&side[*seen], t, special, specials, oz_jpath_key(path, "SpecialToken"), err);
    const char *id = "";
    path = oz_jpath_key(path, "Sequence");
    OZ_TRY(oz_json_keys(sequence, path, "id|type_id", err));
    OZ_TRY(oz_json_str(&id, sequence, path.s, "id", err));
    OZ_NEED(strcmp(id, "A") == 0 && *seen == 0, err, OZ_E_UNSUPPORTED, "%s.id: must be A, once; found \"%.20s\"", path.s, id);
    *seen = 1;
    return OZ_OK;
}

static oz_status parse_template(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_tok *t = self;
    oz_ids side[2] = {{0}, {0}};
    int seen = 0;
    const json_t *single = json_object_get(obj, "single"), *specials = json_object_get(obj, "special_tokens");
    oz_jpath at = oz_jpath_key(path, "single");
    OZ_NEED(json_is_array(single), err, OZ_E_FORMAT, "%s: must be an array, found %s", at.s, oz_json_show(single));
    oz_status st = OZ_OK;
    for (size_t i = 0; i < json_array_size(single) && st == OZ_OK; i++)
        st = template_item(side, &seen, t, json_array_get(single, i), specials, oz_jpath_at(at, i), err);
    if (st == OZ_OK && !seen) st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: has no Sequence A", at.s);
    if (st == OZ_OK) {
        put_before(&t->prefix, &side[0]);
        for (size_t i = 0; i < side[1].len; i++) oz_ids_push(&t->suffix, side[1].data[i]);
    }
    oz_free(side[0].data);
    oz_free(side[1].data);
    return st;
}

static oz_status parse_offsets(void *self, const json_t *obj, oz_jpath path, oz_err *err) { return OZ_OK; /* adds no ids */ }

static const oz_stage_row processors[] = {
    {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex", NULL, parse_offsets},
    {"TemplateProcessing", "type|single|pair|special_tokens", NULL, parse_template},
    {"Sequence", "type|processors", "processors", NULL},
    {0},
};

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
    OZ_TRY(load_pieces(t, json_object_get(root, "decoder"), err));
    OZ_TRY(load_added(t, json_object_get(root, "added_tokens"), err));
    OZ_TRY(oz_stage_parse(t, processors, json_object_get(root, "post_processor"), (oz_jpath){"post_processor"}, err));
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
    oz_split_deinit(&t->split);
    oz_added_deinit(&t->raw);
    oz_added_deinit(&t->normalized);
    oz_vocab_deinit(&t->vocab);
    oz_free(t->prefix.data);
    oz_free(t->suffix.data);
    oz_free(t);
    *tok = NULL;
}
