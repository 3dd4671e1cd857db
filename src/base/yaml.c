#include "base/yaml.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>
#include "base/mem.h"

enum { MAX_DEPTH = 64, MAX_VALUES = 100000 };

/* A value that has a name; NULL while it is being read. */
typedef struct anchor { char *name; json_t *value; size_t n_values; } anchor;

typedef struct reader {
    yaml_parser_t parser;
    const char *where;
    anchor *anchors;
    size_t n_anchors, cap_anchors, n_values; /* as many as the result has with its aliases followed */
    int depth;
} reader;

#define BAD(at, ...) return bad(r, &(at), oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, __VA_ARGS__), err)

static oz_status bad(const reader *r, const yaml_mark_t *at, oz_status st, oz_err *err) {
    return oz_err_prefix(err, "%s: line %zu, column %zu", r->where, at->line + 1, at->column + 1), st;
}

static oz_status next(yaml_event_t *e, reader *r, oz_err *err) {
    if (yaml_parser_parse(&r->parser, e)) return OZ_OK;
    OZ_NEED(r->parser.error != YAML_MEMORY_ERROR, err, OZ_E_NOMEM, "%s: no memory for it", r->where);
    const yaml_mark_t at = r->parser.problem_mark;
    BAD(at, "%s%s%s", r->parser.context ? r->parser.context : "", r->parser.context ? ": " : "", r->parser.problem ? r->parser.problem : "this is not YAML");
}

/* ---- scalars ---- */

static bool one_of(const char *s, const char *const *words) {
    while (*words && strcmp(s, *words) != 0) words++;
    return *words != NULL;
}

static bool all_of(const char *s, const char *set) { return s[strspn(s, set)] == 0; }

/* What YAML 1.1 reads as a number, and YAML 1.2 or a person may not: 0x1F, 0b11, 010, 1_000, 1:30, .inf. */
static bool other_notation(const char *s) {
    static const char *const words[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN", NULL};
    s += *s == '-' || *s == '+';
    if (one_of(s, words)) return true;
    if (s[0] < '0' || s[0] > '9') return false;
    if (s[0] == '0' && s[1] == 'x') return s[2] && all_of(s + 2, "0123456789abcdefABCDEF_");
    if (s[0] == '0' && s[1] == 'b') return s[2] && all_of(s + 2, "01_");
    return all_of(s, "0123456789_:.") && (strpbrk(s, "_:") || (s[0] == '0' && s[1] && s[1] != '.'));
}

/* NULL: a string. */
static json_t *plain(const char *s) {
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL}, *const yes[] = {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", NULL};
    static const char *const no[] = {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", NULL};
    char *end;
    if (one_of(s, nulls)) return json_null();
    if (one_of(s, yes)) return json_true();
    if (one_of(s, no)) return json_false();
    if (!all_of(s, "0123456789+-.eE") || !strpbrk(s, "0123456789")) return NULL;
    errno = 0;
    const long long i = strtoll(s, &end, 10);
    if (!*end && errno == 0) return json_integer(i);
    errno = 0;
    const double d = strtod(s, &end);
    return *end || errno == ERANGE ? NULL : json_real(d);
}

static oz_status scalar(json_t **out, reader *r, const yaml_event_t *e, oz_err *err) {
    const char *s = (const char *)e->data.scalar.value;
    const size_t n = e->data.scalar.length;
    const bool is_plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && strlen(s) == n;
    if (e->data.scalar.tag) BAD(e->start_mark, "tags are not read, found %.60s", (const char *)e->data.scalar.tag);
    if (is_plain && other_notation(s)) BAD(e->start_mark, "expected numbers in decimal and strings in quotes, found %.60s", s);
    *out = is_plain ? plain(s) : NULL;
    if (!*out) *out = json_stringn(s, n);
    if (!*out) BAD(e->start_mark, "expected UTF-8");
    return OZ_OK;
}

/* ---- names for values ---- */

static anchor *anchor_find(const reader *r, const char *name) {
    for (size_t i = r->n_anchors; i-- > 0;) /* the last one of a name counts */
        if (strcmp(r->anchors[i].name, name) == 0) return &r->anchors[i];
    return NULL;
}

static size_t anchor_new(reader *r, const yaml_char_t *name) {
    oz_grow((void **)&r->anchors, &r->cap_anchors, r->n_anchors + 1, sizeof *r->anchors);
    r->anchors[r->n_anchors] = (anchor){.name = oz_strdup((const char *)name)};
    return r->n_anchors++;
}

static oz_status alias(json_t **out, reader *r, const yaml_event_t *e, oz_err *err) {
    const char *name = (const char *)e->data.alias.anchor;
    const anchor *a = anchor_find(r, name);
    if (!a) BAD(e->start_mark, "no value before has the name %.60s", name);
    if (!a->value) BAD(e->start_mark, "%.60s would hold itself", name);
    r->n_values += a->n_values;
    if (r->n_values > MAX_VALUES) BAD(e->start_mark, "more than %d values, aliases followed", MAX_VALUES);
    *out = json_incref(a->value);
    return OZ_OK;
}

/* ---- values ---- */

static oz_status value(json_t **out, reader *r, const yaml_event_t *e, oz_err *err);

static oz_status sequence(json_t **out, reader *r, oz_err *err) {
    yaml_event_t e;
    *out = json_array();
    for (;;) {
        json_t *v = NULL;
        OZ_TRY(next(&e, r, err));
        const bool end = e.type == YAML_SEQUENCE_END_EVENT;
        oz_status st = end ? OZ_OK : value(&v, r, &e, err);
        yaml_event_delete(&e);
        if (v) json_array_append_new(*out, v);
        if (end || st != OZ_OK) return st;
    }
}

static oz_status key(const char **out, const json_t *v, const json_t *object, const reader *r, const yaml_event_t *e, oz_err *err) {
    *out = json_string_value(v);
    if (!*out || strlen(*out) != json_string_length(v)) BAD(e->start_mark, "keys must be strings");
    if (strcmp(*out, "<<") == 0) BAD(e->start_mark, "merge keys (<<) are not read");
    if (json_object_get(object, *out)) BAD(e->start_mark, "the key %.60s stands here twice", *out);
    return OZ_OK;
}

static oz_status mapping(json_t **out, reader *r, oz_err *err) {
    yaml_event_t e;
    *out = json_object();
    for (;;) {
        json_t *name = NULL, *v = NULL;
        const char *text = NULL;
        OZ_TRY(next(&e, r, err));
        const bool end = e.type == YAML_MAPPING_END_EVENT;
        oz_status st = end ? OZ_OK : value(&name, r, &e, err);
        if (!end && st == OZ_OK) st = key(&text, name, *out, r, &e, err);
        yaml_event_delete(&e);
        if (!end && st == OZ_OK && (st = next(&e, r, err)) == OZ_OK) {
            st = value(&v, r, &e, err);
            yaml_event_delete(&e);
        }
        if (st == OZ_OK && v) json_object_set_new(*out, text, v);
        else json_decref(v);
        json_decref(name);
        if (end || st != OZ_OK) return st;
    }
}

/* On an error *out may hold a part; the caller has it. */
static oz_status collection(json_t **out, reader *r, const yaml_event_t *e, oz_err *err) {
    const bool list = e->type == YAML_SEQUENCE_START_EVENT;
    const yaml_char_t *tag = list ? e->data.sequence_start.tag : e->data.mapping_start.tag;
    if (tag) BAD(e->start_mark, "tags are not read, found %.60s", (const char *)tag);
    if (++r->depth > MAX_DEPTH) BAD(e->start_mark, "nested more than %d deep", MAX_DEPTH);
    OZ_TRY(list ? sequence(out, r, err) : mapping(out, r, err));
    r->depth--;
    return OZ_OK;
}

static oz_status value(json_t **out, reader *r, const yaml_event_t *e, oz_err *err) {
    *out = NULL;
    if (e->type == YAML_ALIAS_EVENT) return alias(out, r, e, err);
    const size_t before = r->n_values++;
    if (r->n_values > MAX_VALUES) BAD(e->start_mark, "more than %d values", MAX_VALUES);
    const yaml_char_t *name = e->type == YAML_SCALAR_EVENT ? e->data.scalar.anchor : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.anchor : e->data.mapping_start.anchor;
    const size_t a = name ? anchor_new(r, name) : 0;
    OZ_TRY(e->type == YAML_SCALAR_EVENT ? scalar(out, r, e, err) : collection(out, r, e, err));
    if (name) r->anchors[a].value = json_incref(*out), r->anchors[a].n_values = r->n_values - before;
    return OZ_OK;
}

/* The events of the one document around its value. */
static oz_status document(json_t **out, reader *r, oz_err *err) {
    static const yaml_event_type_t begin[] = {YAML_STREAM_START_EVENT, YAML_DOCUMENT_START_EVENT}, end[] = {YAML_DOCUMENT_END_EVENT, YAML_STREAM_END_EVENT};
    yaml_event_t e;
    for (int i = 0; i < 2; i++) {
        OZ_TRY(next(&e, r, err));
        const bool is = e.type == begin[i];
        yaml_event_delete(&e);
        OZ_NEED(is, err, OZ_E_FORMAT, "%s: expected YAML, found nothing", r->where);
    }
    OZ_TRY(next(&e, r, err));
    oz_status st = value(out, r, &e, err);
    yaml_event_delete(&e);
    for (int i = 0; i < 2 && st == OZ_OK; i++) {
        OZ_TRY(next(&e, r, err));
        const bool is = e.type == end[i];
        yaml_event_delete(&e);
        OZ_NEED(is, err, OZ_E_FORMAT, "%s: expected one document, found more", r->where);
    }
    return st;
}

oz_status oz_yaml_parse(json_t **out, const char *text, size_t n, const char *where, oz_err *err) {
    reader r = {.where = where};
    *out = NULL;
    OZ_NEED(yaml_parser_initialize(&r.parser), err, OZ_E_NOMEM, "%s: no memory for it", where);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
    oz_status st = document(out, &r, err);
    if (st != OZ_OK) json_decref(*out), *out = NULL;
    for (size_t i = 0; i < r.n_anchors; i++) oz_free(r.anchors[i].name), json_decref(r.anchors[i].value);
    oz_free(r.anchors);
    yaml_parser_delete(&r.parser);
    return st;
}
