/* Golden tokenizers and lines of JSON, for the tests of text/. */
#ifndef OZ_TEST_TOK_FILES_H
#define OZ_TEST_TOK_FILES_H
#include "base/json.h"
#include "base/mem.h"
#include "files.h"
#include "sha256.h"
#include "text/text.h"

#define TOK_GOLDEN "tests/golden/tokenizers/"

static inline json_t *tok_json(const char *dir, const char *name) {
    char path[256];
    oz_err err = {0};
    json_t *v;
    snprintf(path, sizeof path, TOK_GOLDEN "%s/%s", dir, name);
    if (oz_json_load(&v, path, 64 << 20, &err) != OZ_OK) fail_msg("%s", err.msg);
    return v;
}

/* The tokenizer of a folder; `change` may edit tokenizer.json before. */
static inline oz_tok *tok_open(const char *dir, void (*change)(json_t *tokenizer, const json_t *row), const json_t *row) {
    json_t *tokenizer = tok_json(dir, "tokenizer.json"), *config = tok_json(dir, "tokenizer_config.json");
    if (change) change(tokenizer, row);
    oz_tok *t = NULL;
    oz_err err = {0};
    if (oz_tok_new(&t, tokenizer, config, &err) != OZ_OK) fail_msg("%s: %s", dir, err.msg);
    json_decref(tokenizer);
    json_decref(config);
    return t;
}

/* All lines of a file as one array. */
static inline json_t *tok_lines(const char *name) {
    char path[256];
    snprintf(path, sizeof path, TOK_GOLDEN "%s", name);
    size_t n;
    char *data = test_read(path, &n);
    json_t *all = json_array();
    for (char *p = data, *end; *p; p = end + (*end == '\n')) {
        end = p + strcspn(p, "\n");
        json_t *row;
        oz_err err = {0};
        if (oz_json_parse(&row, p, (size_t)(end - p), name, &err) != OZ_OK) fail_msg("%s", err.msg);
        json_array_append_new(all, row);
    }
    free(data);
    return all;
}

static inline const char *tok_id_of(const json_t *row) { return json_string_value(json_object_get(row, "id")); }

static inline oz_ids tok_ids(const json_t *list) {
    oz_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        oz_grow((void **)&ids.data, &ids.cap, ids.len + 1, sizeof *ids.data);
        json_int_t id = json_integer_value(json_array_get(list, i));
        ids.data[ids.len++] = id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
    }
    return ids;
}

static inline oz_ids tok_encode(const oz_tok *t, const char *text, size_t n, bool special) {
    oz_ids ids = {0};
    oz_err err = {0};
    if (oz_tok_encode(&ids, t, text, n, special, &err) != OZ_OK) fail_msg("%s", err.msg);
    return ids;
}

/* Ids as text, for messages and comparisons; to be freed. */
static inline char *tok_show(const oz_ids *ids) {
    oz_buf b = {0};
    oz_buf_puts(&b, "");
    for (size_t i = 0; i < ids->len; i++) oz_buf_printf(&b, "%s%d", i ? " " : "", ids->data[i]);
    return b.data;
}

static inline void tok_assert_ids(oz_ids *found, oz_ids *expected, const char *what) {
    char *f = tok_show(found), *e = tok_show(expected);
    if (strcmp(f, e) != 0) fail_msg("%s: found %s, expected %s", what, f, e);
    oz_free(f);
    oz_free(e);
    oz_free(found->data);
    oz_free(expected->data);
}

static inline void tok_assert_text(const oz_buf *found, const json_t *expected, const char *what) {
    size_t n = json_string_length(expected);
    if (found->len != n || (n && memcmp(found->data, json_string_value(expected), n) != 0))
        fail_msg("%s: found \"%s\", expected \"%s\"", what, found->data ? found->data : "", json_string_value(expected));
}

#endif
