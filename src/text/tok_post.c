/* Post-processors: what is put before and behind the ids of a text. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

enum { MAX_TEMPLATE_IDS = 1024 }; /* far above what exists; a file must not be able to make us large or slow */

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

/* side[0] in front of all, side[1] behind; both are used up. */
static oz_status put_around(oz_tok *t, oz_ids side[2], oz_jpath path, oz_err *err) {
    bool fits = t->prefix.len + side[0].len <= MAX_TEMPLATE_IDS && t->suffix.len + side[1].len <= MAX_TEMPLATE_IDS;
    for (size_t i = 0; i < t->prefix.len && fits; i++) oz_ids_push(&side[0], t->prefix.data[i]);
    for (size_t i = 0; i < side[1].len && fits; i++) oz_ids_push(&t->suffix, side[1].data[i]);
    oz_free(side[1].data);
    oz_free(fits ? t->prefix.data : side[0].data);
    OZ_NEED(fits, err, OZ_E_UNSUPPORTED, "%s: more than %d ids put before or behind a text", path.s, MAX_TEMPLATE_IDS);
    t->prefix = side[0];
    return OZ_OK;
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
    if (st == OZ_OK) return put_around(t, side, path, err);
    oz_free(side[0].data);
    oz_free(side[1].data);
    return st;
}

static oz_status parse_offsets(void *self, const json_t *obj, oz_jpath path, oz_err *err) { return OZ_OK; /* adds no ids */ }

/* [cls] in front, [sep] behind: ["token", id] each. */
static oz_status around(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    static const char *const keys[] = {"cls", "sep"};
    oz_tok *t = self;
    oz_ids one[2] = {{0}, {0}};
    oz_status st = OZ_OK;
    for (int k = 0; k < 2 && st == OZ_OK; k++) {
        const json_t *v = json_object_get(obj, keys[k]), *id = json_array_get(v, 1);
        json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
        if (json_array_size(v) != 2 || !json_is_string(json_array_get(v, 0)) || n < 0 || n > INT32_MAX ||
            !oz_vocab_has(&t->vocab, (int32_t)n))
            st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: must be [\"token\", id] with an id of the vocabulary, found %s",
                            oz_jpath_key(path, keys[k]).s, oz_json_show(v));
        else
            oz_ids_push(&one[k], (int32_t)n);
    }
    if (st == OZ_OK) return put_around(t, one, path, err);
    oz_free(one[0].data);
    oz_free(one[1].data);
    return st;
}

static const oz_stage_row processors[] = {
    {"BertProcessing", "type|cls|sep", NULL, around},
    {"RobertaProcessing", "type|cls|sep|trim_offsets|add_prefix_space", NULL, around},
    {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex", NULL, parse_offsets},
    {"TemplateProcessing", "type|single|pair|special_tokens", NULL, parse_template},
    {"Sequence", "type|processors", "processors", NULL},
    {0},
};

oz_status oz_post_parse(oz_tok *t, const json_t *v, oz_err *err) {
    return oz_stage_parse(t, processors, v, (oz_jpath){"post_processor"}, err);
}
