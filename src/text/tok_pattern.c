/* Patterns: from the reference's syntax (Oniguruma's Ruby syntax) to PCRE2's, with every single-character item turned into a set.
 *
 * The structure of a pattern (groups, alternatives, repeats, looking around) means the same in both and is passed on; what a
 * character is, is decided here: \p{..} and \s by the generated tables, case-insensitive letters by their equivalents, `.`, `^`, `$`
 * and \b by what they mean in Ruby. What the two understand differently, and what published tokenizers do not use, is an error. */
#include "text/tok_internal.h"
#include <string.h>

enum { MAX_DEPTH = 64 };

typedef struct parser {
    const char *begin, *p, *end;
    oz_buf *out;
    oz_sets *sets;
    oz_err *err;
    bool fold[MAX_DEPTH + 1], dot_all[MAX_DEPTH + 1]; /* the options (?i) and (?m), by depth of groups */
    int depth;
    bool fresh;      /* at the beginning of a group or of the pattern */
    bool repeatable; /* the item before can take a repeat */
    uint32_t last;   /* the item before, if it is an ASCII letter under (?i) */
} parser;

#define FAIL_AT(x, what)                                                                                                       \
    OZ_FAIL((x)->err, OZ_E_UNSUPPORTED, "%s is not supported in a pattern (at byte %td: \"%.*s\")", what, (x)->p - (x)->begin, \
            (int)((x)->end - (x)->p < 24 ? (x)->end - (x)->p : 24), (x)->p)

static bool at(const parser *x, const char *s) {
    size_t n = strlen(s);
    return (size_t)(x->end - x->p) >= n && memcmp(x->p, s, n) == 0;
}

static bool take(parser *x, const char *s) {
    if (!at(x, s)) return false;
    x->p += strlen(s);
    return true;
}

static bool one_of(const parser *x, const char *chars) { return x->p < x->end && *x->p && strchr(chars, *x->p); }

/* Whether [lo, hi] holds a letter outside ASCII that has another case. */
static bool has_cased(uint32_t lo, uint32_t hi) {
    static const char *const cased[] = {"Lu", "Ll", "Lt"};
    if (lo < 0x80) lo = 0x80;
    for (int k = 0; k < 3; k++) {
        const oz_uc_class *c = oz_uc_class_find(cased[k], 2);
        for (size_t i = 0; i < c->n; i++)
            if (c->r[i].lo <= hi && c->r[i].hi >= lo) return true;
    }
    return false;
}

/* Adds characters as they are written: under (?i) what is outside ASCII must not have two cases. */
static oz_status add_chars(parser *x, oz_set *s, uint32_t lo, uint32_t hi) {
    if (x->fold[x->depth] && has_cased(lo, hi)) FAIL_AT(x, "a cased letter outside ASCII under (?i)");
    oz_set_add(s, lo, hi);
    return OZ_OK;
}

/* Under (?i) an ASCII letter brings its other case, and two of them one that lies outside ASCII. */
static void fold_set(oz_set *s) {
    for (uint32_t c = 'a'; c <= 'z'; c++) {
        uint32_t other = c == 'k' ? 0x212A : c == 's' ? 0x17F : 0;
        if (!oz_set_has(s, c) && !oz_set_has(s, c - 32)) continue;
        oz_set_add(s, c, c);
        oz_set_add(s, c - 32, c - 32);
        if (other) oz_set_add(s, other, other);
    }
}

static oz_status put_set(parser *x, oz_set *s) {
    int index;
    OZ_TRY(oz_sets_put(&index, x->sets, s, x->err));
    oz_buf_putc(x->out, OZ_SET_MARK);
    oz_buf_putc(x->out, (char)(index + 1));
    return OZ_OK;
}

static oz_status hex(parser *x, uint32_t *c, int min, int max) {
    int n = 0;
    for (*c = 0; n < max && x->p < x->end; n++, x->p++) {
        char d = *x->p;
        int v = d >= '0' && d <= '9' ? d - '0' : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10 : -1;
        if (v < 0) break;
        *c = *c * 16 + (uint32_t)v;
    }
    if (n < min || *c > 0x10FFFF) FAIL_AT(x, "this code point");
    return OZ_OK;
}

/* Behind a backslash: one character. *is_char stays false where the escape is something else. */
static oz_status escape_char(parser *x, uint32_t *c, bool *is_char) {
    static const char from[] = "tnrfvae", to[] = "\t\n\r\f\v\a\x1b";
    *is_char = true;
    if (x->p == x->end) FAIL_AT(x, "a backslash at the end");
    const char *k = strchr(from, *x->p);
    if (k && *k) return x->p++, *c = (uint32_t)to[k - from], OZ_OK;
    if (take(x, "x{")) {
        OZ_TRY(hex(x, c, 1, 8));
        if (!take(x, "}")) FAIL_AT(x, "this code point");
        return OZ_OK;
    }
    if (take(x, "x")) {
        OZ_TRY(hex(x, c, 1, 2));
        if (*c >= 0x80) FAIL_AT(x, "a byte above 7F");
        return OZ_OK;
    }
    if (take(x, "u")) return hex(x, c, 4, 4);
    bool alnum = (*x->p >= '0' && *x->p <= '9') || ((*x->p | 32) >= 'a' && (*x->p | 32) <= 'z');
    if (alnum) return *is_char = false, OZ_OK;
    x->p += oz_uc_next(x->p, c);
    return OZ_OK;
}

/* Behind a backslash: a class such as p{L}, s, D. Adds it to s. in_set: between brackets, where \w is another class. */
static oz_status escape_class(parser *x, oz_set *s, bool in_set) {
    const oz_uc_class *k = NULL;
    bool negate = false;
    if (*x->p == 'p' || *x->p == 'P') {
        const char *start = x->p;
        negate = *x->p++ == 'P';
        if (take(x, "{")) {
            if (take(x, "^")) negate = !negate;
            const char *close = memchr(x->p, '}', (size_t)(x->end - x->p));
            bool named = close && *x->p >= 'A' && *x->p <= 'Z'; /* the table's other rows are for other uses */
            if (named) k = oz_uc_class_find(x->p, (size_t)(close - x->p));
            if (k) x->p = close + 1;
        }
        if (!k) {
            x->p = start - 1;
            FAIL_AT(x, "this character property");
        }
    } else if (strchr("sdwSDW", *x->p)) {
        char name = (char)(*x->p | 32);
        negate = *x->p != name;
        k = in_set && name == 'w' ? oz_uc_class_find("w_in_set", 8) : oz_uc_class_find(&name, 1);
        x->p++;
    } else {
        x->p--;
        FAIL_AT(x, "this escape");
    }
    bool cased = strcmp(k->name, "Lu") == 0 || strcmp(k->name, "Ll") == 0 || strcmp(k->name, "Lt") == 0;
    if (x->fold[x->depth] && cased) FAIL_AT(x, "a cased property under (?i)");
    oz_set_add_class(s, k, negate);
    return OZ_OK;
}

/* One end of a range, or a class (then *is_char is false and it is in s already). */
static oz_status class_item(parser *x, oz_set *s, uint32_t *c, bool *is_char) {
    *is_char = true;
    if (take(x, "\\")) {
        OZ_TRY(escape_char(x, c, is_char));
        return *is_char ? OZ_OK : escape_class(x, s, true);
    }
    x->p += oz_uc_next(x->p, c);
    return OZ_OK;
}

static oz_status class_range(parser *x, oz_set *s) {
    uint32_t lo, hi;
    bool is_char;
    OZ_TRY(class_item(x, s, &lo, &is_char));
    if (!is_char) return OZ_OK;
    hi = lo;
    if (at(x, "-") && x->end - x->p > 1 && x->p[1] != ']') {
        x->p++;
        if (at(x, "[")) FAIL_AT(x, "a range that ends like this");
        OZ_TRY(class_item(x, s, &hi, &is_char));
        if (!is_char || hi < lo) FAIL_AT(x, "a range that ends like this");
    }
    return add_chars(x, s, lo, hi);
}

static oz_status class_items(parser *x, oz_set *s, int depth);

/* Up to ] or &&. */
static oz_status class_union(parser *x, oz_set *s, int depth) {
    while (!at(x, "]") && !at(x, "&&")) {
        if (x->p == x->end) FAIL_AT(x, "a set without an end");
        if (at(x, "[:")) FAIL_AT(x, "a named class between brackets");
        if (!take(x, "[")) {
            OZ_TRY(class_range(x, s));
            continue;
        }
        oz_set inner = {0};
        oz_status st = class_items(x, &inner, depth + 1);
        for (size_t i = 0; i < inner.n; i++) oz_set_add(s, inner.r[i].lo, inner.r[i].hi);
        oz_free(inner.r);
        OZ_TRY(st);
    }
    if (x->fold[x->depth]) fold_set(s);
    return OZ_OK;
}

/* Behind [, up to and with its ]: what is in all of the parts that && separates. */
static oz_status class_items(parser *x, oz_set *s, int depth) {
    bool negate = take(x, "^");
    if (depth == MAX_DEPTH) FAIL_AT(x, "such a depth of sets");
    if (at(x, "]")) FAIL_AT(x, "a set that begins with ]");
    OZ_TRY(class_union(x, s, depth));
    while (take(x, "&&")) {
        oz_set other = {0};
        if (at(x, "]") || at(x, "&&")) FAIL_AT(x, "an intersection with nothing");
        oz_status st = class_union(x, &other, depth);
        oz_set_negate(s); /* both are: not (one of not) */
        oz_set_negate(&other);
        for (size_t i = 0; i < other.n; i++) oz_set_add(s, other.r[i].lo, other.r[i].hi);
        oz_set_negate(s);
        oz_free(other.r);
        OZ_TRY(st);
    }
    x->p++;
    if (negate) oz_set_negate(s);
    return OZ_OK;
}

/* Two letters that under (?i) also match one ligature: the only repeats of that kind in ASCII. */
static oz_status check_ligature(parser *x, uint32_t c) {
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    uint32_t low = c | 32, last = x->last;
    x->last = low < 0x80 ? low : 0;
    for (int k = 0; k < 5; k++)
        if (last == (uint32_t)pairs[k][0] && low == (uint32_t)pairs[k][1]) FAIL_AT(x, "ss, st, ff, fi or fl under (?i)");
    return OZ_OK;
}

/* An item that is one character: a set, an escape, a dot, a literal. */
static oz_status item_set(parser *x, oz_set *s) {
    uint32_t c, last = x->last;
    bool is_char = true;
    x->last = 0;
    if (take(x, "[")) return class_items(x, s, 0);
    if (take(x, ".")) {
        if (!x->dot_all[x->depth]) oz_set_add(s, '\n', '\n');
        oz_set_negate(s);
        return OZ_OK;
    }
    if (take(x, "\\"))
        OZ_TRY(escape_char(x, &c, &is_char));
    else
        x->p += oz_uc_next(x->p, &c);
    if (!is_char) return escape_class(x, s, false);
    OZ_TRY(add_chars(x, s, c, c));
    if (!x->fold[x->depth]) return OZ_OK;
    x->last = last;
    fold_set(s);
    return check_ligature(x, c);
}

static oz_status item(parser *x) {
    oz_set s = {0};
    oz_status st = item_set(x, &s);
    if (st == OZ_OK) st = put_set(x, &s);
    oz_free(s.r);
    x->repeatable = true;
    x->fresh = false;
    return st;
}

/* Letters behind (? up to : or ), for example i, i-m. */
static oz_status options(parser *x) {
    bool on = true, fold = x->fold[x->depth], dot_all = x->dot_all[x->depth];
    for (; x->p < x->end && *x->p != ':' && *x->p != ')'; x->p++) {
        if (*x->p == '-')
            on = false;
        else if (*x->p == 'i')
            fold = on;
        else if (*x->p == 'm')
            dot_all = on;
        else
            FAIL_AT(x, "this option");
    }
    if (x->p == x->end) FAIL_AT(x, "a group without an end");
    if (*x->p++ == ')') { /* for the rest of the enclosing group, which Ruby also makes a group around later alternatives */
        if (!x->fresh) FAIL_AT(x, "an option in the middle of a group");
    } else {
        if (x->depth == MAX_DEPTH) FAIL_AT(x, "such a depth of groups");
        x->depth++;
        oz_buf_puts(x->out, "(?:");
        x->fresh = true;
    }
    x->fold[x->depth] = fold;
    x->dot_all[x->depth] = dot_all;
    x->repeatable = false;
    return OZ_OK;
}

static oz_status group(parser *x) { /* behind ( */
    static const char *const kinds[] = {"?:", "?=", "?!", "?<=", "?<!", "?>"};
    size_t k = 0;
    while (k < sizeof kinds / sizeof *kinds && !at(x, kinds[k])) k++;
    if (k == sizeof kinds / sizeof *kinds) {
        if (at(x, "*")) FAIL_AT(x, "this kind of group");
        if (at(x, "?<") || at(x, "?'") || at(x, "?#") || at(x, "?~") || at(x, "?(")) FAIL_AT(x, "this kind of group");
        if (take(x, "?")) return options(x);
        k = 0; /* what a group captures is of no use here */
    } else {
        x->p += strlen(kinds[k]);
    }
    if (x->depth == MAX_DEPTH) FAIL_AT(x, "such a depth of groups");
    x->depth++;
    x->fold[x->depth] = x->fold[x->depth - 1];
    x->dot_all[x->depth] = x->dot_all[x->depth - 1];
    oz_buf_putc(x->out, '(');
    oz_buf_puts(x->out, kinds[k]);
    x->fresh = true;
    x->repeatable = false;
    return OZ_OK;
}

/* {n}, {n,}, {,m}, {n,m}: appended with both forms normalised. False: not a repeat, the brace is a character. */
static bool braces(parser *x, bool *exact) {
    const char *p = x->p + 1;
    size_t n1 = 0, n2 = 0;
    while (p + n1 < x->end && p[n1] >= '0' && p[n1] <= '9') n1++;
    const char *q = p + n1;
    *exact = q < x->end && *q == '}';
    if (q < x->end && *q == ',') {
        q++;
        while (q + n2 < x->end && q[n2] >= '0' && q[n2] <= '9') n2++;
    } else if (!*exact)
        return false;
    if (q + n2 >= x->end || q[n2] != '}' || (n1 == 0 && n2 == 0)) return false;
    oz_buf_putc(x->out, '{');
    if (n1)
        oz_buf_append(x->out, p, n1);
    else
        oz_buf_putc(x->out, '0');
    if (!*exact) oz_buf_putc(x->out, ',');
    if (n2) oz_buf_append(x->out, q, n2);
    oz_buf_putc(x->out, '}');
    x->p = q + n2 + 1;
    return true;
}

static oz_status repeat(parser *x, bool *taken) {
    bool exact = false, brace = *x->p == '{';
    *taken = true;
    if (brace) {
        *taken = braces(x, &exact);
        if (!*taken) return OZ_OK;
    } else {
        oz_buf_putc(x->out, *x->p++);
    }
    if (!x->repeatable) FAIL_AT(x, "a repeat of nothing");
    x->repeatable = false;
    if (at(x, "?") && !exact) {
        oz_buf_putc(x->out, *x->p++);
        return OZ_OK;
    }
    if (at(x, "+") && !brace) {
        oz_buf_putc(x->out, *x->p++);
        return OZ_OK;
    }
    /* Ruby reads {n}? as an optional {n}, and {n,m}+ as a repeat of a repeat; PCRE2 reads them as lazy and possessive. */
    if (one_of(x, "*+?")) FAIL_AT(x, "a repeat of a repeat");
    return OZ_OK;
}

/* Places: what stands for a position between two characters. `behind`: a newline comes before it. */
static oz_status place(parser *x, bool *taken) {
    static const struct {
        const char *from, *before, *behind;
    } places[] = {
        {"\\A", "\\A", NULL}, {"\\z", "\\z", NULL}, {"\\Z", "(?=", "?\\z)"}, {"^", "(?:\\A|(?<=", ")(?!\\z))"}, {"$", "(?=", "|\\z)"},
    };
    *taken = false;
    for (size_t i = 0; i < sizeof places / sizeof *places && !*taken; i++) {
        if (!take(x, places[i].from)) continue;
        *taken = true;
        x->fresh = x->repeatable = false;
        oz_buf_puts(x->out, places[i].before);
        if (!places[i].behind) continue;
        oz_set newline = {0};
        oz_set_add(&newline, '\n', '\n');
        OZ_TRY(put_set(x, &newline));
        oz_buf_puts(x->out, places[i].behind);
    }
    return OZ_OK;
}

static oz_status step(parser *x) {
    bool taken = false;
    if (one_of(x, "*+?{")) OZ_TRY(repeat(x, &taken));
    if (!taken) OZ_TRY(place(x, &taken));
    if (!taken && !one_of(x, "(|)")) return item(x);
    x->last = 0;
    if (taken) return OZ_OK;
    if (take(x, "(")) return group(x);
    x->fresh = false;
    x->repeatable = *x->p == ')';
    if (*x->p == ')') {
        if (x->depth == 0) FAIL_AT(x, "a ) without its (");
        x->depth--;
    }
    oz_buf_putc(x->out, *x->p++);
    return OZ_OK;
}

oz_status oz_pattern_parse(oz_buf *out, oz_sets *sets, oz_slice pattern, oz_err *err) {
    const char *p = pattern.p;
    parser *x = &(parser){.begin = p, .p = p, .end = p + pattern.n, .out = out, .sets = sets, .err = err, .fresh = true};
    while (x->p < x->end) OZ_TRY(step(x));
    if (x->depth) FAIL_AT(x, "a group without an end");
    return OZ_OK;
}

oz_status oz_pattern_literal(oz_buf *out, oz_sets *sets, oz_slice text, oz_err *err) {
    parser x = {.out = out, .sets = sets, .err = err};
    for (size_t i = 0; i < text.n;) {
        oz_set s = {0};
        uint32_t c;
        i += oz_uc_next(text.p + i, &c);
        oz_set_add(&s, c, c);
        OZ_TRY(put_set(&x, &s));
    }
    return OZ_OK;
}

oz_status oz_pattern_class(oz_buf *out, oz_sets *sets, const char *name, oz_err *err) {
    parser x = {.out = out, .sets = sets, .err = err};
    oz_set s = {0};
    oz_set_add_class(&s, oz_uc_class_find(name, strlen(name)), false);
    return put_set(&x, &s);
}

/* A character in neither class. */
oz_status oz_pattern_classless(oz_buf *out, oz_sets *sets, const char *a, const char *b, oz_err *err) {
    parser x = {.out = out, .sets = sets, .err = err};
    oz_set s = {0};
    oz_set_add_class(&s, oz_uc_class_find(a, strlen(a)), false);
    oz_set_add_class(&s, oz_uc_class_find(b, strlen(b)), false);
    oz_set_negate(&s);
    return put_set(&x, &s);
}
