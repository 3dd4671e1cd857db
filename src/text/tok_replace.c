/* Patterns as tokenizer.json writes them, and replacing what they match: for normalisers and decoders. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

enum { MAX_PATTERN_BYTES = 16 << 10, MAX_CONTENT_BYTES = 4096 }; /* a character becomes a set of up to a kilobyte */

oz_status oz_json_text_of(oz_buf *out, const json_t *obj, oz_jpath path, const char *key, oz_err *err) {
    const json_t *v = json_object_get(obj, key);
    OZ_NEED(json_is_string(v) && json_string_length(v) <= MAX_CONTENT_BYTES, err, OZ_E_FORMAT,
            "%s: must be a string of at most %d bytes, found %s", oz_jpath_key(path, key).s, MAX_CONTENT_BYTES, oz_json_show(v));
    oz_buf_append(out, json_string_value(v), json_string_length(v));
    return OZ_OK;
}

oz_status oz_json_char_of(oz_buf *out, const json_t *obj, oz_jpath path, const char *key, oz_err *err) {
    uint32_t c;
    OZ_TRY(oz_json_text_of(out, obj, path, key, err));
    OZ_NEED(out->len && oz_uc_next(out->data, &c) == out->len, err, OZ_E_FORMAT, "%s: must be one character, found %s",
            oz_jpath_key(path, key).s, oz_json_show(json_object_get(obj, key)));
    return OZ_OK;
}

oz_status oz_pattern_json(oz_slice *out, bool *is_regex, const json_t *v, oz_jpath path, oz_err *err) {
    OZ_TRY(oz_json_keys(v, path, "Regex|String", err));
    const json_t *regex = json_object_get(v, "Regex"), *string = json_object_get(v, "String"), *p = regex ? regex : string;
    OZ_NEED(json_is_string(p) && json_object_size(v) == 1, err, OZ_E_FORMAT,
            "%s: must be {\"Regex\": \"..\"} or {\"String\": \"..\"}, found %s", path.s, oz_json_show(v));
    OZ_NEED(json_string_length(p) <= MAX_PATTERN_BYTES, err, OZ_E_UNSUPPORTED, "%s: must be at most %d bytes, found %zu", path.s,
            MAX_PATTERN_BYTES, json_string_length(p));
    *out = (oz_slice){json_string_value(p), json_string_length(p)};
    *is_regex = regex != NULL;
    return OZ_OK;
}

static oz_status regex_new(oz_regex **out, oz_slice pattern, oz_err *err) {
    oz_regex *r = *out = oz_alloc(sizeof *r);
    oz_buf code = {0};
    oz_sets *sets = oz_alloc(sizeof *sets);
    oz_status st = oz_pattern_parse(&code, sets, pattern, err);
    if (st == OZ_OK) st = oz_alphabet_make(&r->alphabet, sets, err);
    if (st == OZ_OK) st = oz_matcher_new(&r->code, &r->alphabet, (oz_slice){code.data, code.len}, err);
    oz_sets_deinit(sets);
    oz_free(sets);
    oz_buf_deinit(&code);
    return st;
}

/* The empty string matches between all characters, as a pattern does. */
static oz_status find_set(oz_replace *r, oz_slice pattern, bool is_regex, oz_jpath path, oz_err *err) {
    if (!is_regex && pattern.n) return oz_buf_append(&r->find, pattern.p, pattern.n), OZ_OK;
    oz_status st = regex_new(&r->regex, pattern, err);
    return st == OZ_OK ? OZ_OK : oz_err_prefix(err, "%s", path.s);
}

oz_status oz_replace_parse(oz_replace *r, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_slice pattern = {0};
    bool is_regex = false;
    oz_jpath at = oz_jpath_key(path, "pattern");
    OZ_TRY(oz_pattern_json(&pattern, &is_regex, json_object_get(obj, "pattern"), at, err));
    OZ_TRY(oz_json_text_of(&r->content, obj, path, "content", err));
    return find_set(r, pattern, is_regex, at, err);
}

oz_status oz_replace_of(oz_replace *r, const json_t *obj, oz_jpath path, const char *key, oz_err *err) {
    oz_buf s = {0};
    oz_status st = oz_json_text_of(&s, obj, path, key, err);
    if (st == OZ_OK) st = find_set(r, (oz_slice){s.data, s.len}, false, oz_jpath_key(path, key), err);
    oz_buf_deinit(&s);
    return st;
}

void oz_replace_deinit(oz_replace *r) {
    if (r->regex) {
        oz_matcher_free(&r->regex->code);
        oz_alphabet_deinit(&r->regex->alphabet);
        oz_free(r->regex);
    }
    oz_buf_deinit(&r->find);
    oz_buf_deinit(&r->content);
    *r = (oz_replace){0};
}

/* What stands before a match, and what takes its place. */
static oz_status put(oz_buf *out, const oz_replace *r, const char *p, size_t n, size_t limit, oz_err *err) {
    OZ_NEED(out->len + n + r->content.len <= limit, err, OZ_E_UNSUPPORTED, "replacing makes a text grow to more than %zu bytes", limit);
    oz_buf_append(out, p, n);
    oz_buf_append(out, r->content.data, r->content.len);
    return OZ_OK;
}

static oz_status replace_string(oz_buf *out, bool *changed, size_t *head, const oz_replace *r, oz_slice in, size_t limit, oz_err *err) {
    const char *p = in.p, *end = in.p + in.n, *hit;
    for (; (hit = memmem(p, (size_t)(end - p), r->find.data, r->find.len)); p = hit + r->find.len) {
        *changed = true;
        if (hit == in.p) *head = r->find.len;
        OZ_TRY(put(out, r, p, (size_t)(hit - p), limit, err));
    }
    if (*changed) oz_buf_append(out, p, (size_t)(end - p));
    return OZ_OK;
}

oz_status oz_replace_run(oz_buf *out, bool *changed, size_t *head, const oz_replace *r, oz_slice in, size_t limit, oz_match_work *w,
                         oz_err *err) {
    *head = SIZE_MAX;
    if (!in.n) return OZ_OK;
    if (!r->regex) return replace_string(out, changed, head, r, in, limit, err);
    OZ_TRY(oz_match_work_room(w, in.n, err));
    oz_matches it = oz_matches_of(r->regex->code, w->kinds, oz_alphabet_map(w->kinds, &r->regex->alphabet, in));
    const char *p = in.p, *end = in.p + in.n;
    for (size_t chars = 0;;) { /* p stands behind the character `chars` */
        oz_match m;
        OZ_TRY(oz_matches_next(&m, &it, w->matching, err));
        if (!m.found) break;
        const char *from = p;
        for (; chars < m.begin; chars++) p += oz_uc_len(*p);
        OZ_TRY(put(out, r, from, (size_t)(p - from), limit, err));
        for (; chars < m.end; chars++) p += oz_uc_len(*p);
        if (!m.begin) *head = (size_t)(p - in.p);
        *changed = true;
    }
    if (*changed) oz_buf_append(out, p, (size_t)(end - p));
    return OZ_OK;
}
