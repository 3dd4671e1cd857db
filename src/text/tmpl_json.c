/* JSON: what tojson writes (json.dumps), and messages in: from jansson's tree, and from text with integers of any size, which jansson
 * does not keep. */
#include "text/tmpl_internal.h"
#include <math.h>
#include <string.h>

/* ---- out ---- */

static void put_string(oz_tm *c, oz_slice s, bool ascii) {
    static const char FROM[] = "\"\\\n\r\t\b\f", TO[] = "\"\\nrtbf";
    size_t from = 0;
    oz_tm_put(c, "\"", 1);
    for (size_t i = 0, k; i < s.n && c->st == OZ_OK; i += k) {
        uint32_t cp = (unsigned char)s.p[i];
        k = 1;
        if (cp >= 0x20 && cp < 0x7f && cp != '"' && cp != '\\') continue;
        if (cp >= 0x7f && !ascii) continue;
        if (cp >= 0x80) k = oz_utf8_next(s.p + i, s.n - i, &cp, NULL);
        oz_tm_put(c, s.p + from, i - from);
        from = i + k;
        const char *simple = cp && cp < 0x80 ? strchr(FROM, (char)cp) : NULL;
        if (simple)
            oz_tm_printf(c, "\\%c", TO[simple - FROM]);
        else if (cp < 0x10000)
            oz_tm_printf(c, "\\u%04x", cp);
        else
            oz_tm_printf(c, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10), 0xdc00 + ((cp - 0x10000) & 0x3ff));
    }
    oz_tm_put(c, s.p + from, s.n - from);
    oz_tm_put(c, "\"", 1);
}

static void put_float(oz_tm *c, double f) {
    char text[40];
    if (isfinite(f))
        oz_tm_put(c, text, oz_tm_format_float(text, f));
    else
        oz_tm_puts(c, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
}

static void put_break(oz_tm *c, const oz_tm_json *how, int level) {
    if (!how->pretty) return;
    oz_tm_put(c, "\n", 1);
    oz_tm_put_repeat(c, how->unit.p, how->unit.n, level);
}

static void put_simple(oz_tm *c, oz_tm_val v) {
    switch (v.kind) {
    case OZ_TM_NONE:
        oz_tm_puts(c, "null");
        break;
    case OZ_TM_BOOL:
        oz_tm_puts(c, v.i ? "true" : "false");
        break;
    case OZ_TM_FLOAT:
        put_float(c, v.f);
        break;
    default:
        oz_tm_big_print(c, v, 10);
    }
}

static void put_key(oz_tm *c, oz_tm_val v, const oz_tm_json *how) {
    if (v.kind == OZ_TM_STR) {
        put_string(c, (oz_slice){v.s, v.n}, how->ascii);
        return;
    }
    if (v.kind != OZ_TM_NONE && !oz_tm_is_num(v)) OZ_TM_FAIL(c, "keys must be str, int, float, bool or None, not %s", oz_tm_type(v));
    oz_tm_put(c, "\"", 1);
    put_simple(c, v);
    oz_tm_put(c, "\"", 1);
}

static void put_dict(oz_tm *c, const oz_tm_dict *d, const oz_tm_json *how, int level) {
    oz_tm_val *keys = oz_tm_alloc(c, d->n, 2 * sizeof *keys), *vals = keys ? keys + d->n : NULL;
    if (!keys) return;
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        vals[i] = d->e[i].val;
    }
    if (how->sorted) oz_tm_sort(c, keys, vals, d->n, false);
    oz_tm_put(c, "{", 1);
    for (size_t i = 0; i < d->n && c->st == OZ_OK; i++) {
        if (i) oz_tm_put(c, how->item_sep.p, how->item_sep.n);
        put_break(c, how, level + 1);
        put_key(c, keys[i], how);
        oz_tm_put(c, how->key_sep.p, how->key_sep.n);
        oz_tm_put_json(c, vals[i], how, level + 1);
    }
    if (d->n) put_break(c, how, level);
    oz_tm_put(c, "}", 1);
}

static void put_seq(oz_tm *c, const oz_tm_seq *s, const oz_tm_json *how, int level) {
    oz_tm_put(c, "[", 1);
    for (size_t i = 0; i < s->n && c->st == OZ_OK; i++) {
        if (i) oz_tm_put(c, how->item_sep.p, how->item_sep.n);
        put_break(c, how, level + 1);
        oz_tm_put_json(c, oz_tm_seq_at(s, i), how, level + 1);
    }
    if (s->n) put_break(c, how, level);
    oz_tm_put(c, "]", 1);
}

void oz_tm_put_json(oz_tm *c, oz_tm_val v, const oz_tm_json *how, int level) {
    if (!oz_tm_enter(c)) return;
    if (v.kind == OZ_TM_STR)
        put_string(c, (oz_slice){v.s, v.n}, how->ascii);
    else if (v.kind == OZ_TM_NONE || oz_tm_is_num(v))
        put_simple(c, v);
    else if (v.kind == OZ_TM_DICT)
        put_dict(c, v.dict, how, level);
    else if (v.kind == OZ_TM_SEQ && v.flavour <= OZ_TM_GROUP)
        put_seq(c, v.seq, how, level);
    else
        OZ_TM_FAIL(c, "Object of type %s is not JSON serializable", oz_tm_type(v));
    oz_tm_leave(c);
}

/* ---- in, from jansson ---- */

oz_tm_val oz_tm_from_json(oz_tm *c, const json_t *j) {
    if (!j || json_is_null(j) || !oz_tm_enter(c)) return oz_tm_none();
    oz_tm_val v = oz_tm_none();
    if (json_is_string(j))
        v = oz_tm_str(json_string_value(j), json_string_length(j));
    else if (json_is_boolean(j))
        v = oz_tm_bool(json_is_true(j));
    else if (json_is_integer(j))
        v = oz_tm_int(json_integer_value(j));
    else if (json_is_real(j))
        v = oz_tm_float(json_real_value(j));
    else if (json_is_array(j)) {
        oz_tm_seq *s = oz_tm_seq_new(c, json_array_size(j));
        for (size_t i = 0; i < json_array_size(j) && c->st == OZ_OK; i++) oz_tm_seq_push(c, s, oz_tm_from_json(c, json_array_get(j, i)));
        v = oz_tm_seq_val(s, OZ_TM_LIST);
    } else {
        oz_tm_dict *d = oz_tm_dict_new(c, json_object_size(j));
        for (void *it = json_object_iter((json_t *)j); it && c->st == OZ_OK; it = json_object_iter_next((json_t *)j, it))
            oz_tm_dict_set(c, d, oz_tm_cstr(json_object_iter_key(it)), oz_tm_from_json(c, json_object_iter_value(it)));
        v = oz_tm_dict_val(d);
    }
    oz_tm_leave(c);
    return v;
}

/* ---- in, from text ---- */

typedef struct reader {
    oz_tm *c;
    const char *s;
    size_t n, i;
} reader;

static oz_tm_val read_value(reader *r);

static oz_tm_val bad(reader *r, const char *expected) { return OZ_TM_FAIL(r->c, "JSON, byte %zu: expected %s", r->i, expected); }

static char peek(reader *r) {
    while (r->i < r->n && r->s[r->i] && strchr(" \t\r\n", r->s[r->i])) r->i++;
    return r->i < r->n ? r->s[r->i] : 0;
}

static bool take(reader *r, char ch) {
    if (peek(r) != ch || r->c->st != OZ_OK) return false;
    r->i++;
    return true;
}

static int hex4(const reader *r, size_t at) {
    int v = 0;
    for (size_t i = at; i < at + 4; i++) {
        char ch = i < r->n ? r->s[i] : 0, low = ch | 32;
        int d = ch >= '0' && ch <= '9' ? ch - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

/* \uXXXX, or two of them that are a surrogate pair, at r->i. */
static void read_unicode(reader *r) {
    int hi = hex4(r, r->i + 2), lo = r->i + 7 < r->n && r->s[r->i + 6] == '\\' && r->s[r->i + 7] == 'u' ? hex4(r, r->i + 8) : -1;
    bool pair = hi >= 0xd800 && hi < 0xdc00 && lo >= 0xdc00 && lo < 0xe000;
    if (hi < 0 || (hi >= 0xd800 && hi < 0xe000 && !pair)) {
        bad(r, "a code point of four hexadecimal digits");
        return;
    }
    oz_tm_put_cp(r->c, pair ? 0x10000 + ((uint32_t)(hi - 0xd800) << 10) + (uint32_t)(lo - 0xdc00) : (uint32_t)hi);
    r->i += pair ? 12 : 6;
}

static oz_tm_val read_string(reader *r) {
    static const char FROM[] = "\"\\/nrtbf", TO[] = "\"\\/\n\r\t\b\f";
    if (!take(r, '"')) return bad(r, "a string");
    size_t from = r->i, mark = oz_tm_mark(r->c);
    while (r->i < r->n && r->s[r->i] != '"' && r->s[r->i] != '\\' && (unsigned char)r->s[r->i] >= 0x20) r->i++;
    if (r->i < r->n && r->s[r->i] == '"') return oz_tm_str(r->s + from, r->i++ - from);
    oz_tm_put(r->c, r->s + from, r->i - from);
    while (r->i < r->n && r->s[r->i] != '"' && (unsigned char)r->s[r->i] >= 0x20 && r->c->st == OZ_OK) {
        if (r->s[r->i] != '\\') {
            oz_tm_put(r->c, r->s + r->i++, 1);
            continue;
        }
        char ch = r->i + 1 < r->n ? r->s[r->i + 1] : 0;
        const char *simple = ch ? strchr(FROM, ch) : NULL;
        if (ch == 'u')
            read_unicode(r);
        else if (simple)
            oz_tm_put(r->c, TO + (simple - FROM), 1), r->i += 2;
        else
            bad(r, "an escape");
    }
    if (!(r->i < r->n && r->s[r->i] == '"')) bad(r, "the end of the string");
    r->i++;
    return oz_tm_take(r->c, mark);
}

static size_t n_digits(const reader *r, size_t i) {
    size_t k = 0;
    while (i + k < r->n && r->s[i + k] >= '0' && r->s[i + k] <= '9') k++;
    return k;
}

static oz_tm_val read_number(reader *r) {
    size_t from = r->i, i = from + (r->s[from] == '-'), n_int = n_digits(r, i), digits = i;
    bool real = false;
    i += n_int;
    if (n_int == 0 || (n_int > 1 && r->s[digits] == '0')) return bad(r, "a number");
    if (i < r->n && r->s[i] == '.' && n_digits(r, i + 1) > 0) real = true, i += 1 + n_digits(r, i + 1);
    if (i < r->n && (r->s[i] | 32) == 'e') {
        size_t e = i + 1 + (i + 1 < r->n && (r->s[i + 1] == '-' || r->s[i + 1] == '+'));
        if (n_digits(r, e) > 0) real = true, i = e + n_digits(r, e);
    }
    r->i = i;
    if (!real) return oz_tm_big_parse(r->c, r->s + digits, n_int, 10, r->s[from] == '-');
    size_t mark = oz_tm_mark(r->c);
    oz_tm_put(r->c, r->s + from, i - from);
    oz_tm_put(r->c, "", 1);
    oz_tm_val text = oz_tm_take(r->c, mark);
    return oz_tm_float(text.n ? strtod(text.s, NULL) : 0);
}

static oz_tm_val read_array(reader *r) {
    oz_tm_seq *s = oz_tm_seq_new(r->c, 4);
    r->i++;
    if (take(r, ']')) return oz_tm_seq_val(s, OZ_TM_LIST);
    do oz_tm_seq_push(r->c, s, read_value(r));
    while (take(r, ','));
    if (!take(r, ']')) bad(r, "',' or ']'");
    return oz_tm_seq_val(s, OZ_TM_LIST);
}

static oz_tm_val read_object(reader *r) {
    oz_tm_dict *d = oz_tm_dict_new(r->c, 4);
    r->i++;
    if (take(r, '}')) return oz_tm_dict_val(d);
    do {
        peek(r);
        oz_tm_val key = read_string(r);
        if (!take(r, ':')) bad(r, "':'");
        oz_tm_dict_set(r->c, d, key, read_value(r));
    } while (take(r, ','));
    if (!take(r, '}')) bad(r, "',' or '}'");
    return oz_tm_dict_val(d);
}

static oz_tm_val read_value(reader *r) {
    static const struct {
        const char *word;
        uint8_t kind;
        int64_t i;
    } WORDS[] = {{"true", OZ_TM_BOOL, 1}, {"false", OZ_TM_BOOL, 0}, {"null", OZ_TM_NONE, 0}};
    char ch = peek(r);
    oz_tm_val v = oz_tm_none();
    if (!oz_tm_enter(r->c)) return v;
    bool found = true;
    if (ch == '{')
        v = read_object(r);
    else if (ch == '[')
        v = read_array(r);
    else if (ch == '"')
        v = read_string(r);
    else if (ch == '-' || (ch >= '0' && ch <= '9'))
        v = read_number(r);
    else
        found = false;
    for (size_t k = 0; k < 3 && !found; k++) {
        size_t n = strlen(WORDS[k].word);
        found = r->n - r->i >= n && memcmp(r->s + r->i, WORDS[k].word, n) == 0;
        if (found) v = (oz_tm_val){.kind = WORDS[k].kind, .i = WORDS[k].i}, r->i += n;
    }
    if (!found) bad(r, "a value");
    oz_tm_leave(r->c);
    return v;
}

oz_tm_val oz_tm_read_json(oz_tm *c, const char *s, size_t n) {
    reader r = {c, s, n, 0};
    if (!oz_utf8_valid(s, n)) return bad(&r, "UTF-8");
    oz_tm_val v = read_value(&r);
    peek(&r);
    if (r.i < n) bad(&r, "the end");
    return v;
}
