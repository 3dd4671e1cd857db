#include "base/json.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/str.h"

enum { MAX_DEPTH = 512 };

/* One look at the text before jansson's: its depth, and the integers beyond int64. Those are legal and common
 * (model_max_length: 10^30 in tokenizer_config.json), and jansson refuses them, so they are rewritten as reals. `out` stays
 * empty where there is none. The text may be ill-formed: jansson says so afterwards. */
static int scan(oz_buf *out, const char *s, size_t n) {
    int depth = 0, deepest = 0;
    size_t copied = 0;
    for (size_t i = 0; i < n;) {
        char c = s[i];
        if (c == '"') {
            for (i++; i < n && s[i] != '"'; i++) i += s[i] == '\\';
            i++;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            size_t j = i + 1;
            while (j < n && s[j] >= '0' && s[j] <= '9') j++;
            if (j - i >= 19 && !(j < n && strchr(".eE", s[j]))) {
                char digits[32] = {0};
                errno = 0;
                memcpy(digits, s + i, j - i < 31 ? j - i : 31);
                if (strtoll(digits, NULL, 10), errno == ERANGE) {
                    oz_buf_append(out, s + copied, j - copied);
                    oz_buf_puts(out, ".0");
                    copied = j;
                }
            }
            while (j < n && s[j] && strchr("0123456789.eE+-", s[j])) j++;
            i = j;
        } else {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            if (depth > deepest) deepest = depth;
            i++;
        }
    }
    if (copied) oz_buf_append(out, s + copied, n - copied);
    return deepest;
}

static oz_status parse(json_t **out, const char *text, size_t n, const char *where, bool one_line, oz_err *err) {
    char line[32] = "";
    *out = NULL;
    OZ_NEED(n > 0, err, OZ_E_FORMAT, "%s: expected JSON, found nothing", where);
    OZ_NEED(n < 3 || memcmp(text, "\xef\xbb\xbf", 3) != 0, err, OZ_E_FORMAT, "%s: expected JSON, found a UTF-8 byte order mark before it", where);
    oz_buf fixed = {0};
    int depth = scan(&fixed, text, n);
    if (depth > MAX_DEPTH) {
        oz_buf_deinit(&fixed);
        OZ_FAIL(err, OZ_E_FORMAT, "%s: expected JSON nested at most %d deep, found %d", where, MAX_DEPTH, depth);
    }
    json_error_t e;
    json_t *v = json_loadb(fixed.len ? fixed.data : text, fixed.len ? fixed.len : n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    oz_buf_deinit(&fixed);
    if (!one_line) snprintf(line, sizeof line, "line %d, ", e.line);
    OZ_NEED(v, err, json_error_code(&e) == json_error_out_of_memory ? OZ_E_NOMEM : OZ_E_FORMAT, "%s: %scolumn %d: %s", where, line, e.column, *e.text ? e.text : "the memory for it could not be had");
    *out = v;
    return OZ_OK;
}

oz_status oz_json_parse(json_t **out, const char *text, size_t n, const char *where, oz_err *err) { return parse(out, text, n, where, false, err); }
oz_status oz_json_parse_line(json_t **out, const char *text, size_t n, const char *where, oz_err *err) { return parse(out, text, n, where, true, err); }

oz_status oz_json_load(json_t **out, const char *path, size_t limit_bytes, oz_err *err) {
    *out = NULL;
    oz_buf text = {0};
    oz_status s = (strcmp(path, "-") == 0 ? oz_file_read : oz_file_read_regular)(&text, path, limit_bytes, err);
    if (s == OZ_OK) s = oz_json_parse(out, text.data, text.len, path, err);
    oz_buf_deinit(&text);
    return s;
}

/* obj[key]; NULL where missing or null. */
static const json_t *member(const json_t *obj, const char *key) {
    const json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

static oz_status wrong(const json_t *v, const char *path, const char *key, const char *expected, oz_err *err) {
    OZ_FAIL(err, OZ_E_FORMAT, "%s%s%s: must be %s, found %s", path, *path ? "." : "", key, expected, oz_json_show(v));
}

oz_status oz_json_int(int64_t *out, const json_t *obj, const char *path, const char *key, int64_t min, int64_t max, oz_err *err) {
    const json_t *v = member(obj, key);
    if (!v) return OZ_OK;
    int64_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < min || i > max) {
        char expected[96];
        if (max == INT64_MAX) snprintf(expected, sizeof expected, "an integer of at least %lld", (long long)min);
        else snprintf(expected, sizeof expected, "%lld..%lld", (long long)min, (long long)max);
        return wrong(v, path, key, expected, err);
    }
    *out = i;
    return OZ_OK;
}

oz_status oz_json_float(double *out, const json_t *obj, const char *path, const char *key, double min, double max, oz_err *err) {
    const json_t *v = member(obj, key);
    if (!v) return OZ_OK;
    double d = json_number_value(v);
    if (!json_is_number(v) || !(d >= min && d <= max)) {
        char expected[96];
        snprintf(expected, sizeof expected, "a number in %g..%g", min, max);
        return wrong(v, path, key, expected, err);
    }
    *out = d;
    return OZ_OK;
}

oz_status oz_json_bool(int *out, const json_t *obj, const char *path, const char *key, oz_err *err) {
    const json_t *v = member(obj, key);
    if (!v) return OZ_OK;
    if (!json_is_boolean(v)) return wrong(v, path, key, "true or false", err);
    *out = json_is_true(v);
    return OZ_OK;
}

oz_status oz_json_str(const char **out, const json_t *obj, const char *path, const char *key, oz_err *err) {
    const json_t *v = member(obj, key);
    if (!v) return OZ_OK;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v)) return wrong(v, path, key, "a string without NUL", err);
    *out = json_string_value(v);
    return OZ_OK;
}

json_t *oz_json_text(const char *s) {
    const size_t n = strlen(s);
    if (oz_utf8_valid(s, n)) return json_stringn(s, n);
    oz_buf b = {0};
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += oz_utf8_next(s + i, n - i, &cp, NULL);
        oz_buf_put_utf8(&b, cp);
    }
    json_t *v = json_stringn(b.data, b.len);
    oz_buf_deinit(&b);
    return v;
}

/* ---- rendering for messages ---- */

enum { SHOW_MAX = 80, N_SHOWN = 4 }; /* so many values may stand in one message */

typedef struct shown { char s[SHOW_MAX + 1]; size_t n; } shown;

static int show_some(const char *p, size_t n, void *arg) {
    shown *o = arg;
    size_t room = SHOW_MAX - o->n, k = n < room ? n : room;
    memcpy(o->s + o->n, p, k);
    o->n += k;
    return k < n ? -1 : 0; /* full: jansson stops */
}

const char *oz_json_show(const json_t *v) {
    static _Thread_local shown ring[N_SHOWN];
    static _Thread_local unsigned turn;
    shown *o = &ring[turn++ % N_SHOWN];
    o->n = 0;
    if (!v) return "nothing";
    if (json_dump_callback(v, show_some, o, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0) {
        o->n = o->n > SHOW_MAX - 3 ? SHOW_MAX - 3 : o->n;
        o->n -= oz_utf8_tail(o->s, o->n);
        memcpy(o->s + o->n, "...", 3);
        o->n += 3;
    }
    o->s[o->n] = 0;
    return o->s;
}
