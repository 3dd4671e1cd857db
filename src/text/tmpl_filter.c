/* Filters of text and of single values, as rows of a table. `v` is what stands before the bar. */
#include "text/tmpl_internal.h"
#include <math.h>
#include <string.h>
#include <utf8proc.h>

#define GIVEN(v) ((v).kind != OZ_TM_ABSENT && (v).kind != OZ_TM_NONE)

static bool flag(oz_tm_val v) { return v.kind != OZ_TM_ABSENT && oz_tm_truth(v); }

static int64_t integer(oz_tm *c, oz_tm_val v, int64_t fallback) {
    int64_t i = fallback;
    if (v.kind != OZ_TM_ABSENT) oz_tm_index(c, v, &i);
    return i;
}

/* ---- text ---- */

/* Escaped text stays escaped text. */
static oz_tm_val like(oz_tm_val v, oz_tm_val made) {
    if (v.kind == OZ_TM_STR && made.kind == OZ_TM_STR) made.flavour = v.flavour;
    return made;
}

static oz_tm_val with_case(oz_tm *c, oz_tm_val v, int how) {
    oz_slice s = oz_tm_text(c, v);
    size_t mark = oz_tm_mark(c);
    oz_tm_put_case(c, s.p, s.n, how);
    return like(v, oz_tm_take(c, mark));
}

static oz_tm_val f_upper(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return with_case(c, v, OZ_TM_UPPER); }
static oz_tm_val f_lower(oz_tm *c, oz_tm_val v, const oz_tm_args *a) { return with_case(c, v, OZ_TM_LOWER); }

static oz_tm_val f_capitalize(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, v);
    size_t first = s.n ? oz_tm_char_len(s.p, s.n) : 0, mark = oz_tm_mark(c);
    oz_tm_put_case(c, s.p, first, OZ_TM_TITLE);
    oz_tm_put_case(c, s.p + first, s.n - first, OZ_TM_LOWER);
    return like(v, oz_tm_take(c, mark));
}

/* A word begins behind white space, a dash or an opening bracket; unlike the method `title`, not behind an apostrophe. */
static oz_tm_val f_title(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, v);
    size_t mark = oz_tm_mark(c);
    for (size_t i = 0; i < s.n && c->st == OZ_OK;) {
        uint32_t cp;
        size_t k = oz_utf8_next(s.p + i, s.n - i, &cp, NULL), end = i + k;
        bool between = oz_tm_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (char)cp));
        oz_tm_put_case(c, s.p + i, k, between ? OZ_TM_LOWER : OZ_TM_UPPER);
        for (; !between && end < s.n; end += k) {
            k = oz_utf8_next(s.p + end, s.n - end, &cp, NULL);
            if (oz_tm_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (char)cp))) break;
        }
        oz_tm_put_case(c, s.p + i + oz_tm_char_len(s.p + i, s.n - i), end - i - oz_tm_char_len(s.p + i, s.n - i), OZ_TM_LOWER);
        i = end;
    }
    return oz_tm_take(c, mark);
}

static oz_tm_val f_trim(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, v), chars = {0};
    if (GIVEN(a->pos[0]) && a->pos[0].kind != OZ_TM_STR) return OZ_TM_FAIL(c, "strip arg must be None or str");
    if (GIVEN(a->pos[0])) chars = (oz_slice){a->pos[0].s, a->pos[0].n};
    s = oz_tm_strip(s, GIVEN(a->pos[0]) ? &chars : NULL, true, true);
    return like(v, oz_tm_str(s.p, s.n));
}

static oz_tm_val method(oz_tm *c, const char *name, oz_slice s, oz_tm_val *pos, size_t n) {
    return oz_tm_call_row(c, oz_tm_find_row(oz_tm_str_methods, oz_slice_view(name)), oz_tm_str(s.p, s.n),
                          &(oz_tm_args){.pos = pos, .n = n});
}

static oz_tm_val f_replace(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice old = oz_tm_text(c, a->pos[0]), to = oz_tm_text(c, a->pos[1]);
    oz_tm_val pos[] = {oz_tm_str(old.p, old.n), oz_tm_str(to.p, to.n), GIVEN(a->pos[2]) ? a->pos[2] : oz_tm_int(-1)};
    return method(c, "replace", oz_tm_text(c, v), pos, 3);
}

static oz_tm_val f_center(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_val width = a->pos[0].kind == OZ_TM_ABSENT ? oz_tm_int(80) : a->pos[0];
    return like(v, method(c, "center", oz_tm_text(c, v), &width, 1));
}

static oz_tm_val f_string(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    if (v.kind == OZ_TM_STR) return v;
    oz_slice s = oz_tm_text(c, v);
    return oz_tm_str(s.p, s.n);
}

static oz_tm_val f_wordcount(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, v);
    int64_t n = 0;
    bool in = false;
    oz_tm_charge(c, s.n / 16);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        i += oz_utf8_next(s.p + i, s.n - i, &cp, NULL);
        bool word = oz_tm_is_word_cp(cp);
        n += word && !in;
        in = word;
    }
    return oz_tm_int(n);
}

static oz_tm_val f_indent(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    if (v.kind != OZ_TM_STR) return OZ_TM_FAIL(c, "indent: expected a string, found '%s'", oz_tm_type(v));
    if (v.flavour == OZ_TM_MARKUP) return OZ_TM_UNSUPPORTED(c, "indent of escaped text is not supported");
    oz_slice unit = {" ", 1};
    int64_t times = 1;
    if (a->pos[0].kind == OZ_TM_STR)
        unit = (oz_slice){a->pos[0].s, a->pos[0].n};
    else
        times = integer(c, a->pos[0], 4);
    bool blank = flag(a->pos[2]);
    /* Jinja splits with a line end added, which makes one more line of an empty text and of a text that ends a line. */
    oz_tm_val whole = oz_tm_concat(c, v, oz_tm_str("\n", 1)), lines = method(c, "splitlines", (oz_slice){whole.s, whole.n}, NULL, 0);
    if (c->st != OZ_OK) return v;
    size_t mark = oz_tm_mark(c);
    for (size_t i = 0; i < lines.seq->n && c->st == OZ_OK; i++) {
        oz_tm_val line = lines.seq->v[i];
        if (i) oz_tm_put(c, "\n", 1);
        if (i == 0 ? flag(a->pos[1]) : blank || line.n > 0) oz_tm_put_repeat(c, unit.p, unit.n, times);
        oz_tm_put(c, line.s, line.n);
    }
    return oz_tm_take(c, mark);
}

static oz_tm_val f_truncate(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    int64_t length = integer(c, a->pos[0], 255), leeway = GIVEN(a->pos[3]) ? integer(c, a->pos[3], 5) : 5;
    oz_slice end = a->pos[2].kind == OZ_TM_ABSENT ? (oz_slice){"...", 3} : oz_tm_text(c, a->pos[2]);
    int64_t n_end = (int64_t)oz_tm_n_chars(end.p, end.n), n = (int64_t)oz_tm_len(c, v);
    if (length < n_end || leeway < 0) return OZ_TM_FAIL(c, "truncate: expected length >= %lld and leeway >= 0", (long long)n_end);
    if (c->st != OZ_OK || length > INT64_MAX - leeway || n <= length + leeway) return v;
    if (v.kind != OZ_TM_STR) return OZ_TM_FAIL(c, "truncate: expected a string, found '%s'", oz_tm_type(v));
    oz_slice cut = {v.s, oz_tm_char_at(v.s, v.n, (size_t)(length - n_end))};
    size_t space = flag(a->pos[1]) ? SIZE_MAX : oz_tm_rfind(c, cut.p, cut.n, " ", 1);
    if (space != SIZE_MAX) cut.n = space;
    size_t mark = oz_tm_mark(c);
    oz_tm_put(c, cut.p, cut.n);
    oz_tm_put(c, end.p, end.n);
    return oz_tm_take(c, mark);
}

/* ---- HTML and URLs ---- */

static oz_tm_val f_safe(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, v);
    v = oz_tm_str(s.p, s.n);
    v.flavour = OZ_TM_MARKUP;
    return v;
}

static oz_tm_val f_forceescape(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice s = oz_tm_text(c, v);
    size_t mark = oz_tm_mark(c);
    oz_tm_put_escaped(c, s);
    v = oz_tm_take(c, mark);
    v.flavour = OZ_TM_MARKUP;
    return v;
}

static oz_tm_val f_escape(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    return v.kind == OZ_TM_STR && v.flavour == OZ_TM_MARKUP ? v : f_forceescape(c, v, a);
}

static oz_tm_val f_xmlattr(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    if (v.kind != OZ_TM_DICT) return OZ_TM_FAIL(c, "xmlattr: expected a dict, found '%s'", oz_tm_type(v));
    size_t mark = oz_tm_mark(c);
    bool space = a->pos[0].kind == OZ_TM_ABSENT || oz_tm_truth(a->pos[0]);
    for (size_t i = 0; i < v.dict->n && c->st == OZ_OK; i++) {
        oz_tm_val key = v.dict->e[i].key, val = v.dict->e[i].val;
        if (val.kind == OZ_TM_NONE || val.kind == OZ_TM_UNDEF) continue;
        bool bad = key.kind != OZ_TM_STR;
        for (size_t k = 0; !bad && k < key.n; k++) bad = key.s[k] && strchr(" \t\n\r\f\v/>=", key.s[k]);
        if (bad) return OZ_TM_FAIL(c, "xmlattr: an attribute's name is no string or has an invalid character");
        if (space) oz_tm_put(c, " ", 1);
        space = true;
        oz_tm_put_escaped(c, (oz_slice){key.s, key.n});
        oz_tm_put(c, "=\"", 2);
        oz_slice text = oz_tm_text(c, val);
        if (val.kind == OZ_TM_STR && val.flavour == OZ_TM_MARKUP)
            oz_tm_put(c, text.p, text.n);
        else
            oz_tm_put_escaped(c, text);
        oz_tm_put(c, "\"", 1);
    }
    return oz_tm_take(c, mark);
}

static void put_url(oz_tm *c, oz_slice s, bool query) {
    oz_tm_charge(c, s.n / 16);
    for (size_t i = 0; i < s.n && c->st == OZ_OK; i++) {
        unsigned char b = (unsigned char)s.p[i];
        bool plain = (b < 0x80 && oz_tm_is_word_cp(b)) || (b && strchr("-.~", b)) || (b == '/' && !query);
        if (plain)
            oz_tm_put(c, s.p + i, 1);
        else if (b == ' ' && query)
            oz_tm_put(c, "+", 1);
        else
            oz_tm_printf(c, "%%%02X", b);
    }
}

static oz_tm_val f_urlencode(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    if (v.kind == OZ_TM_STR || !oz_tm_iterable(v)) {
        oz_slice s = oz_tm_text(c, v);
        size_t mark = oz_tm_mark(c);
        put_url(c, s, false);
        return oz_tm_take(c, mark);
    }
    if (v.kind == OZ_TM_DICT) v = oz_tm_call(c, oz_tm_getattr(c, v, oz_slice_view("items")), &(oz_tm_args){0});
    oz_tm_val list = oz_tm_to_list(c, v);
    size_t mark = oz_tm_mark(c);
    for (size_t i = 0; i < list.seq->n && c->st == OZ_OK; i++) {
        oz_tm_val pair = oz_tm_to_list(c, list.seq->v[i]);
        if (c->st == OZ_OK && pair.seq->n != 2) OZ_TM_FAIL(c, "urlencode: expected pairs");
        for (size_t k = 0; k < 2 && c->st == OZ_OK; k++) {
            oz_slice s = oz_tm_text(c, pair.seq->v[k]);
            if (i || k) oz_tm_put(c, k ? "=" : "&", 1);
            put_url(c, s, true);
        }
    }
    return oz_tm_take(c, mark);
}

/* ---- numbers ---- */

/* Digits of other scripts are digits to Python. */
static bool foreign(oz_tm *c, oz_slice s) {
    for (size_t i = 0; i < s.n; i++) {
        uint32_t cp;
        oz_utf8_next(s.p + i, s.n - i, &cp, NULL);
        if (cp >= 0x80 && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND)
            return OZ_TM_UNSUPPORTED(c, "a number in digits other than 0 to 9 is not supported"), true;
    }
    return false;
}

/* Digits with single underscores, in a base of 2 to 36, base 0 by prefix. False: no integer. */
static bool parse_int(oz_tm *c, oz_slice s, int64_t base, oz_tm_val *out) {
    s = oz_tm_strip(s, NULL, true, true);
    bool negative = s.n && s.p[0] == '-';
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) s.p++, s.n--;
    static const struct {
        char letter;
        int base;
    } PREFIX[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    bool prefixed = false;
    for (size_t i = 0; i < 3; i++)
        if (s.n > 2 && s.p[0] == '0' && (s.p[1] | 32) == PREFIX[i].letter && (base == 0 || base == PREFIX[i].base)) {
            base = PREFIX[i].base;
            prefixed = true;
            s.p += 2, s.n -= 2;
            break;
        }
    bool by_prefix = base == 0;
    if (by_prefix) base = 10;
    if (base < 2 || base > 36) return false;
    char *digits = oz_tm_alloc(c, s.n + 1, 1);
    size_t n = 0;
    for (size_t i = 0; digits && i < s.n; i++) {
        char ch = s.p[i], low = ch | 32;
        int d = ch >= '0' && ch <= '9' ? ch - '0' : low >= 'a' && low <= 'z' ? low - 'a' + 10 : 99;
        if (ch == '_' && (i > 0 || prefixed) && i + 1 < s.n && s.p[i + 1] != '_') continue;
        if (d >= base) return false;
        digits[n++] = ch;
    }
    bool leading_zero = by_prefix && n > 1 && digits[0] == '0';
    if (n == 0 || leading_zero) return false;
    *out = oz_tm_big_parse(c, digits, n, (int)base, negative);
    return c->st == OZ_OK;
}

/* float(v) of a string; false: no float. */
static bool parse_float(oz_tm *c, oz_slice s, double *out) {
    s = oz_tm_strip(s, NULL, true, true);
    char *text = oz_tm_alloc(c, s.n + 1, 1), *end;
    size_t n = 0;
    for (size_t i = 0; text && i < s.n; i++) {
        bool between = i > 0 && i + 1 < s.n && s.p[i - 1] >= '0' && s.p[i - 1] <= '9' && s.p[i + 1] >= '0' && s.p[i + 1] <= '9';
        if (s.p[i] == '_' && between) continue;
        text[n++] = s.p[i];
    }
    if (n == 0 || strpbrk(text, "xXpP(") || strlen(text) != n) return false;
    *out = strtod(text, &end);
    return end == text + n;
}

static oz_tm_val f_int(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_val other = a->pos[0].kind == OZ_TM_ABSENT ? oz_tm_int(0) : a->pos[0], out;
    int64_t base = integer(c, a->pos[1], 10);
    double f = 0;
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    if (v.kind == OZ_TM_BOOL) return oz_tm_int(v.i);
    if (v.kind == OZ_TM_INT || v.kind == OZ_TM_BIG) return v;
    if (v.kind == OZ_TM_FLOAT && isinf(v.f)) return OZ_TM_FAIL(c, "cannot convert float infinity to integer");
    if (v.kind == OZ_TM_FLOAT) return isnan(v.f) ? other : oz_tm_big_from_double(c, v.f);
    if (v.kind != OZ_TM_STR) return other;
    oz_slice s = {v.s, v.n};
    if (foreign(c, s)) return other;
    if (parse_int(c, s, base, &out)) return out;
    return c->st == OZ_OK && parse_float(c, s, &f) && isfinite(f) ? oz_tm_big_from_double(c, f) : other;
}

static oz_tm_val f_float(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    double f;
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    if (oz_tm_is_num(v)) return oz_tm_float(oz_tm_to_double(c, v));
    if (v.kind == OZ_TM_STR && !foreign(c, (oz_slice){v.s, v.n}) && parse_float(c, (oz_slice){v.s, v.n}, &f)) return oz_tm_float(f);
    return a->pos[0].kind == OZ_TM_ABSENT ? oz_tm_float(0) : a->pos[0];
}

static oz_tm_val f_abs(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    if (!oz_tm_is_num(v)) return OZ_TM_FAIL(c, "bad operand type for abs(): '%s'", oz_tm_type(v));
    if (v.kind == OZ_TM_FLOAT) return oz_tm_float(fabs(v.f));
    return oz_tm_negate(c, v, oz_tm_big_negative(v));
}

/* round(): the nearest of so many decimals, ties to the even one of the exact binary value, as printf has it. */
static oz_tm_val round_float(oz_tm *c, double f, int64_t decimals) {
    char text[700];
    if (!isfinite(f) || decimals > 320) return oz_tm_float(f);
    if (decimals < -310) return oz_tm_float(copysign(0, f));
    if (decimals >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)decimals, f);
        return oz_tm_float(strtod(text, NULL));
    }
    double unit = pow(10, (double)-decimals);
    return oz_tm_float(nearbyint(f / unit) * unit);
}

static oz_tm_val round_int(oz_tm *c, oz_tm_val v, int64_t decimals) {
    if (decimals >= 0) return oz_tm_negate(c, v, false);
    oz_tm_val unit = oz_tm_big_binary(c, OZ_TM_POW, oz_tm_int(10), oz_tm_int(decimals < -5000 ? 5000 : -decimals));
    oz_tm_val q = oz_tm_big_binary(c, OZ_TM_FLOORDIV, v, unit), r = oz_tm_big_binary(c, OZ_TM_MOD, v, unit);
    if (c->st != OZ_OK) return v;
    int order = oz_tm_big_compare(c, oz_tm_big_binary(c, OZ_TM_ADD, r, r), unit);
    if (order > 0 || (order == 0 && oz_tm_big_odd(q))) q = oz_tm_big_binary(c, OZ_TM_ADD, q, oz_tm_int(1));
    return oz_tm_big_binary(c, OZ_TM_MUL, q, unit);
}

static oz_tm_val f_round(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    int64_t decimals = integer(c, a->pos[0], 0);
    oz_tm_val how = a->pos[1].kind == OZ_TM_ABSENT ? oz_tm_cstr("common") : a->pos[1];
    bool up = oz_tm_is_str(how, "ceil"), down = oz_tm_is_str(how, "floor");
    if (!up && !down && !oz_tm_is_str(how, "common")) return OZ_TM_FAIL(c, "method must be common, ceil or floor");
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    if (!oz_tm_is_num(v)) return OZ_TM_FAIL(c, "round: expected a number, found '%s'", oz_tm_type(v));
    if (!up && !down) return v.kind == OZ_TM_FLOAT ? round_float(c, v.f, decimals) : round_int(c, v, decimals);
    oz_tm_val unit = oz_tm_binary(c, OZ_TM_POW, oz_tm_int(10), oz_tm_int(decimals)), scaled = oz_tm_binary(c, OZ_TM_MUL, v, unit);
    if (scaled.kind == OZ_TM_FLOAT) {
        if (!isfinite(scaled.f)) return OZ_TM_FAIL(c, "cannot convert float infinity or NaN to integer");
        scaled = oz_tm_big_from_double(c, up ? ceil(scaled.f) : floor(scaled.f));
    }
    return oz_tm_binary(c, OZ_TM_DIV, scaled, unit);
}

static oz_tm_val f_filesizeformat(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    static const char *const UNITS[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    bool binary = flag(a->pos[0]);
    double base = binary ? 1024 : 1000, n = 0, unit = base * base;
    if (v.kind == OZ_TM_STR ? !parse_float(c, (oz_slice){v.s, v.n}, &n) : !oz_tm_is_num(v))
        return OZ_TM_FAIL(c, "filesizeformat: expected a number");
    if (v.kind != OZ_TM_STR) n = oz_tm_to_double(c, v);
    size_t mark = oz_tm_mark(c);
    if (n == 1) return oz_tm_cstr("1 Byte");
    if (n < base)
        oz_tm_printf(c, "%.0f Bytes", trunc(n) + 0.0); /* no -0 */
    else {
        int i = 0;
        while (i < 7 && n >= unit) unit *= base, i++;
        oz_tm_printf(c, "%.1f %s", base * n / unit, UNITS[binary][i]);
    }
    return oz_tm_take(c, mark);
}

/* ---- any value ---- */

static oz_tm_val f_default(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    bool replace = v.kind == OZ_TM_UNDEF || (flag(a->pos[1]) && !oz_tm_truth(v));
    return !replace ? v : a->pos[0].kind == OZ_TM_ABSENT ? oz_tm_str("", 0) : a->pos[0];
}

static oz_tm_val f_attr(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_slice name = oz_tm_text(c, a->pos[0]);
    if (v.kind == OZ_TM_UNDEF) return oz_tm_fail_undef(c, v);
    oz_tm_val r = oz_tm_own_attr(c, v, name);
    if (r.kind != OZ_TM_ABSENT) return r;
    r = oz_tm_undef(OZ_TM_BY_ATTR, name.p, name.n);
    r.owner = v.kind;
    r.owner_flavour = v.flavour;
    return r;
}

static bool separators(oz_tm *c, oz_tm_val v, oz_tm_json *how) {
    oz_tm_val pair = oz_tm_to_list(c, v);
    if (c->st == OZ_OK && (pair.seq->n != 2 || pair.seq->v[0].kind != OZ_TM_STR || pair.seq->v[1].kind != OZ_TM_STR))
        OZ_TM_FAIL(c, "tojson: expected separators of two strings");
    if (c->st != OZ_OK) return false;
    how->item_sep = (oz_slice){pair.seq->v[0].s, pair.seq->v[0].n};
    how->key_sep = (oz_slice){pair.seq->v[1].s, pair.seq->v[1].n};
    return true;
}

static oz_tm_val f_tojson(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    oz_tm_json how = {
        .ascii = flag(a->pos[0]), .pretty = GIVEN(a->pos[1]), .sorted = flag(a->pos[3]), .item_sep = {", ", 2}, .key_sep = {": ", 2}};
    if (how.pretty) {
        how.item_sep = (oz_slice){",", 1};
        if (a->pos[1].kind == OZ_TM_STR)
            how.unit = (oz_slice){a->pos[1].s, a->pos[1].n};
        else {
            size_t mark = oz_tm_mark(c);
            oz_tm_put_repeat(c, " ", 1, integer(c, a->pos[1], 0));
            oz_tm_val unit = oz_tm_take(c, mark);
            how.unit = (oz_slice){unit.s, unit.n};
        }
    }
    if (GIVEN(a->pos[2]) && !separators(c, a->pos[2], &how)) return v;
    size_t mark = oz_tm_mark(c);
    oz_tm_put_json(c, v, &how, 0);
    return oz_tm_take(c, mark);
}

static oz_tm_val f_format(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    if (a->n && a->n_kw) return OZ_TM_FAIL(c, "can't handle positional and keyword arguments at the same time");
    if (v.kind == OZ_TM_STR && v.flavour == OZ_TM_MARKUP) return OZ_TM_UNSUPPORTED(c, "format of escaped text is not supported");
    oz_slice s = oz_tm_text(c, v);
    if (a->n_kw) {
        oz_tm_dict *d = oz_tm_dict_new(c, a->n_kw);
        for (size_t i = 0; i < a->n_kw; i++) oz_tm_dict_set(c, d, oz_tm_str(a->kw[i].name.p, a->kw[i].name.n), a->kw[i].val);
        return oz_tm_percent(c, s, oz_tm_dict_val(d));
    }
    oz_tm_seq *t = oz_tm_seq_new(c, a->n);
    for (size_t i = 0; i < a->n; i++) oz_tm_seq_push(c, t, a->pos[i]);
    return oz_tm_percent(c, s, oz_tm_seq_val(t, OZ_TM_TUPLE));
}

static oz_tm_val refuse(oz_tm *c, oz_tm_val v, const oz_tm_args *a) {
    return OZ_TM_UNSUPPORTED(c, "the filters pprint, random, striptags, urlize and wordwrap are not supported");
}

const oz_tm_row oz_tm_filters[] = {
    {"abs", "", f_abs},
    {"attr", "name", f_attr},
    {"capitalize", "", f_capitalize},
    {"center", "width?", f_center},
    {"d", "default_value? boolean?", f_default},
    {"default", "default_value? boolean?", f_default},
    {"e", "", f_escape},
    {"escape", "", f_escape},
    {"filesizeformat", "binary?", f_filesizeformat},
    {"float", "default?", f_float},
    {"forceescape", "", f_forceescape},
    {"format", "*", f_format},
    {"indent", "width? first? blank?", f_indent},
    {"int", "default? base?", f_int},
    {"lower", "", f_lower},
    {"pprint", "*", refuse},
    {"random", "*", refuse},
    {"replace", "old new count?", f_replace},
    {"round", "precision? method?", f_round},
    {"safe", "", f_safe},
    {"string", "", f_string},
    {"striptags", "*", refuse},
    {"title", "", f_title},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", f_tojson},
    {"trim", "chars?", f_trim},
    {"truncate", "length? killwords? end? leeway?", f_truncate},
    {"upper", "", f_upper},
    {"urlencode", "", f_urlencode},
    {"urlize", "*", refuse},
    {"wordcount", "", f_wordcount},
    {"wordwrap", "*", refuse},
    {"xmlattr", "autospace?", f_xmlattr},
    {0},
};
