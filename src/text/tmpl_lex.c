/* The lexer. Outside of tags it cuts text, with the white-space rules of trim_blocks and lstrip_blocks; inside it cuts tokens.
 * Tokens are slices of the source; nothing is copied. */
#include "text/tmpl_internal.h"
#include <string.h>

enum { TEXT, BLOCK, VARIABLE };

void oz_tm_lex_normalize(oz_buf *out, const char *s, size_t n) {
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '\r') continue;
        oz_buf_append(out, s + from, i - from);
        oz_buf_putc(out, '\n');
        if (i + 1 < n && s[i + 1] == '\n') i++;
        from = i + 1;
    }
    oz_buf_append(out, s + from, n - from);
    if (out->len && out->data[out->len - 1] == '\n') out->data[--out->len] = 0;
}

static bool fail(oz_tm_parser *p, const char *what) {
    p->c.line = p->lex.line;
    OZ_TM_FAIL(&p->c, "%s", what);
    return false;
}

static void go(oz_tm_lexer *l, size_t to) {
    for (; l->i < to; l->i++) l->line += l->s[l->i] == '\n';
}

static bool at(const oz_tm_lexer *l, size_t i, const char *what) {
    size_t k = strlen(what);
    return i <= l->n && l->n - i >= k && memcmp(l->s + i, what, k) == 0;
}

static size_t skip_space(const oz_tm_lexer *l, size_t i) {
    oz_slice rest = oz_tm_strip((oz_slice){l->s + i, l->n - i}, NULL, true, false);
    return (size_t)(rest.p - l->s);
}

static size_t sign_len(const oz_tm_lexer *l, size_t i) { return i < l->n && (l->s[i] == '-' || l->s[i] == '+'); }

/* The end of a tag, `end` behind an optional sign at i: "-" eats white space, "+" nothing, none one line end where `trims`.
 * Returns where the source goes on, 0 if this is no end. */
static size_t tag_end(const oz_tm_lexer *l, size_t i, const char *end, bool plus, bool trims) {
    if (at(l, i, "-") && at(l, i + 1, end)) return skip_space(l, i + 1 + strlen(end));
    if (plus && at(l, i, "+") && at(l, i + 1, end)) return i + 1 + strlen(end);
    if (!at(l, i, end)) return 0;
    i += strlen(end);
    return i + (trims && at(l, i, "\n"));
}

/* Text [from, to) before a tag that carries `sign`. */
static oz_slice cut(const oz_tm_lexer *l, size_t from, size_t to, char sign, bool variable) {
    oz_slice t = {l->s + from, to - from};
    if (sign == '-') return oz_tm_strip(t, NULL, false, true);
    if (sign == '+' || variable) return t;
    size_t line = t.n;
    while (line > 0 && t.p[line - 1] != '\n') line--;
    if (line == 0 && !l->line_start) return t;
    oz_slice last = oz_tm_strip((oz_slice){t.p + line, t.n - line}, NULL, true, false);
    if (last.n == 0) t.n = line;
    return t;
}

/* {% raw %} or, with name "endraw", its end, at i. Returns where the source goes on, 0 if it is not there. */
static size_t raw_tag(const oz_tm_lexer *l, size_t i, const char *name, bool is_end) {
    if (!at(l, i, "{%")) return 0;
    i += 2 + sign_len(l, i + 2);
    i = skip_space(l, i);
    if (!at(l, i, name)) return 0;
    return tag_end(l, skip_space(l, i + strlen(name)), "%}", is_end, is_end);
}

static void arrive(oz_tm_lexer *l, size_t to) {
    l->line_start = to > 0 && l->s[to - 1] == '\n';
    go(l, to);
}

static bool text_token(oz_tm_lexer *l, oz_slice text, oz_tm_token *out) {
    *out = (oz_tm_token){.type = OZ_TM_T_TEXT, .line = l->line, .s = text.p, .n = text.n};
    return text.n > 0;
}

/* The text between {% raw %}, which ends at `from`, and {% endraw %}. *found: there is some. */
static bool lex_raw(oz_tm_parser *p, size_t from, oz_tm_token *out, bool *found) {
    oz_tm_lexer *l = &p->lex;
    arrive(l, from);
    for (size_t i = from; i < l->n; i++) {
        size_t end = raw_tag(l, i, "endraw", true);
        if (!end) continue;
        *found = text_token(l, cut(l, from, i, sign_len(l, i + 2) ? l->s[i + 2] : 0, false), out);
        arrive(l, end);
        return true;
    }
    return from == l->n || fail(p, "Missing end of raw directive"); /* Jinja does not miss an end where nothing follows */
}

static bool lex_comment(oz_tm_parser *p, size_t from) {
    oz_tm_lexer *l = &p->lex;
    if (from == l->n) arrive(l, from);
    for (size_t i = from; i < l->n; i++) {
        size_t end = tag_end(l, i, "#}", true, true);
        if (!end) continue;
        arrive(l, end);
        return true;
    }
    return from == l->n || fail(p, "Missing end of comment tag");
}

/* Outside of tags: the next text, or the beginning of a tag. */
static bool lex_text(oz_tm_parser *p, oz_tm_token *out) {
    oz_tm_lexer *l = &p->lex;
    for (;;) {
        size_t i = l->i;
        while (i < l->n && !(l->s[i] == '{' && i + 1 < l->n && strchr("%{#", l->s[i + 1]) && l->s[i + 1])) i++;
        if (i == l->n) {
            if (!text_token(l, (oz_slice){l->s + l->i, l->n - l->i}, out)) out->type = OZ_TM_T_EOF;
            go(l, l->n);
            return true;
        }
        size_t sign = sign_len(l, i + 2);
        char kind = l->s[i + 1];
        if (text_token(l, cut(l, l->i, i, sign ? l->s[i + 2] : 0, kind == '{'), out)) {
            go(l, i);
            return true;
        }
        go(l, i);
        size_t raw = raw_tag(l, i, "raw", false);
        bool found = false;
        if (raw) {
            if (!lex_raw(p, raw, out, &found)) return false;
        } else if (kind == '#') {
            if (!lex_comment(p, i + 2 + sign)) return false;
        } else {
            *out =
                (oz_tm_token){.type = kind == '{' ? OZ_TM_T_VAR_BEGIN : OZ_TM_T_BLOCK_BEGIN, .line = l->line, .s = l->s + i, .n = 2 + sign};
            l->state = kind == '{' ? VARIABLE : BLOCK;
            arrive(l, i + 2 + sign);
            found = true;
        }
        if (found) return true;
    }
}

static bool digit(const oz_tm_lexer *l, size_t i, int base) {
    if (i >= l->n) return false;
    char ch = l->s[i] | 32;
    int v = l->s[i] >= '0' && l->s[i] <= '9' ? l->s[i] - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : 99;
    return v < base;
}

/* Digits with single underscores between them, from i; i itself if there is none. */
static size_t digits(const oz_tm_lexer *l, size_t i, int base) {
    if (!digit(l, i, base)) return i;
    while (digit(l, i, base) || (at(l, i, "_") && digit(l, i + 1, base))) i++;
    return i;
}

static size_t fraction(const oz_tm_lexer *l, size_t i) {
    size_t end = at(l, i, ".") ? digits(l, i + 1, 10) : i;
    return end > i + 1 ? end : i;
}

static size_t exponent(const oz_tm_lexer *l, size_t i) {
    if (i >= l->n || (l->s[i] | 32) != 'e') return i;
    size_t from = i + 1 + sign_len(l, i + 1), end = digits(l, from, 10);
    return end > from ? end : i;
}

/* A number's end; *type says which. A float does not begin behind a dot: a.1.2 is two steps. */
static size_t lex_number(const oz_tm_lexer *l, uint8_t *type) {
    size_t i = l->i, whole = digits(l, i, 10);
    if (i == 0 || l->s[i - 1] != '.') {
        size_t end = exponent(l, fraction(l, whole));
        *type = OZ_TM_T_FLOAT;
        if (end > whole) return end;
    }
    *type = OZ_TM_T_INT;
    if (l->s[i] != '0') return whole;
    static const struct {
        char letter;
        int base;
    } PREFIX[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    for (size_t k = 0; k < sizeof PREFIX / sizeof *PREFIX; k++) {
        if (i + 1 >= l->n || (l->s[i + 1] | 32) != PREFIX[k].letter) continue;
        size_t from = i + 2 + at(l, i + 2, "_"), end = digits(l, from, PREFIX[k].base);
        if (end > from) return end;
    }
    return digits(l, i, 1);
}

static size_t lex_name(const oz_tm_lexer *l) {
    size_t i = l->i;
    while (i < l->n) {
        uint32_t cp;
        size_t k = oz_utf8_next(l->s + i, l->n - i, &cp, NULL);
        if (!oz_tm_is_word_cp(cp)) break;
        i += k;
    }
    return i;
}

/* The end of a string literal, 0 if it is not closed. */
static size_t lex_quoted(const oz_tm_lexer *l) {
    char quote = l->s[l->i];
    for (size_t i = l->i + 1; i < l->n; i++) {
        if (l->s[i] == '\\')
            i++;
        else if (l->s[i] == quote)
            return i + 1;
    }
    return 0;
}

static size_t lex_op(const oz_tm_lexer *l) {
    static const char *const TWO[] = {"//", "**", "==", "!=", ">=", "<="};
    for (size_t k = 0; k < sizeof TWO / sizeof *TWO; k++)
        if (at(l, l->i, TWO[k])) return l->i + 2;
    return l->s[l->i] && strchr("+-/*%~[](){}><=.:|,;", l->s[l->i]) ? l->i + 1 : 0;
}

/* Brackets must match: a tag does not end while one is open. */
static bool balance(oz_tm_parser *p, char op) {
    oz_tm_lexer *l = &p->lex;
    const char *opens = "([{", *closes = ")]}", *at_open = strchr(opens, op), *at_close = strchr(closes, op);
    char msg[48];
    if (at_open) {
        if (l->n_open == sizeof l->open) return fail(p, "expressions are nested too deeply");
        l->open[l->n_open++] = closes[at_open - opens];
    } else if (at_close) {
        if (l->n_open == 0) {
            snprintf(msg, sizeof msg, "unexpected '%c'", op);
            return fail(p, msg);
        }
        char expected = l->open[--l->n_open];
        if (expected != op) {
            snprintf(msg, sizeof msg, "unexpected '%c', expected '%c'", op, expected);
            return fail(p, msg);
        }
    }
    return true;
}

static bool lex_tag(oz_tm_parser *p, oz_tm_token *out) {
    oz_tm_lexer *l = &p->lex;
    go(l, skip_space(l, l->i));
    *out = (oz_tm_token){.type = OZ_TM_T_EOF, .line = l->line, .s = l->s + l->i};
    if (l->i == l->n) return true;
    bool block = l->state == BLOCK;
    size_t end = l->n_open ? 0 : tag_end(l, l->i, block ? "%}" : "}}", block, block);
    if (end) {
        out->type = block ? OZ_TM_T_BLOCK_END : OZ_TM_T_VAR_END;
        l->state = TEXT;
        arrive(l, end);
        return true;
    }
    char ch = l->s[l->i];
    if (ch >= '0' && ch <= '9')
        end = lex_number(l, &out->type);
    else if ((end = lex_name(l)) > l->i)
        out->type = OZ_TM_T_NAME;
    else if (ch == '\'' || ch == '"')
        out->type = OZ_TM_T_STRING, end = lex_quoted(l);
    else
        out->type = OZ_TM_T_OP, end = lex_op(l);
    if (end <= l->i) {
        char msg[64];
        snprintf(msg, sizeof msg, "unexpected char '%.*s'", (int)oz_tm_char_len(l->s + l->i, l->n - l->i), l->s + l->i);
        return fail(p, msg);
    }
    out->n = end - l->i;
    if (out->type == OZ_TM_T_OP) {
        memcpy(out->op, out->s, out->n);
        if (out->n == 1 && !balance(p, ch)) return false;
    }
    go(l, end);
    return true;
}

bool oz_tm_lex_next(oz_tm_parser *p, oz_tm_token *out) { return p->lex.state == TEXT ? lex_text(p, out) : lex_tag(p, out); }

/* ---- the value of a string literal ---- */

static int hex_value(char ch) {
    return ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
}

/* \x, \u or \U with exactly `k` hexadecimal digits at s. */
static bool hex_escape(oz_tm *c, const char *s, size_t n, size_t k) {
    uint32_t cp = 0;
    for (size_t i = 0; i < k; i++) {
        int v = i < n ? hex_value(s[i]) : -1;
        if (v < 0) {
            OZ_TM_FAIL(c, "a string has an escape with too few hexadecimal digits: expected %zu", k);
            return false;
        }
        cp = cp << 4 | (uint32_t)v;
    }
    if (cp > 0x10ffff)
        OZ_TM_FAIL(c, "a string has an escape beyond U+10FFFF");
    else if (cp >= 0xd800 && cp < 0xe000)
        OZ_TM_UNSUPPORTED(c, "a string has the surrogate U+%04X, which is not supported", cp);
    else
        oz_tm_put_cp(c, cp);
    return c->st == OZ_OK;
}

/* One escape at s, behind the backslash. Returns the bytes it takes. */
static size_t escape(oz_tm *c, const char *s, size_t n) {
    static const char FROM[] = "\\'\"abfnrtv", TO[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = s[0] ? strchr(FROM, s[0]) : NULL;
    if (simple) return oz_tm_put(c, TO + (simple - FROM), 1), 1;
    if (s[0] == '\n') return 1;
    if (s[0] == 'x') return hex_escape(c, s + 1, n - 1, 2) ? 3 : n;
    if (s[0] == 'u') return hex_escape(c, s + 1, n - 1, 4) ? 5 : n;
    if (s[0] == 'U') return hex_escape(c, s + 1, n - 1, 8) ? 9 : n;
    if (s[0] == 'N') return OZ_TM_UNSUPPORTED(c, "the escape \\N in a string is not supported"), n;
    if (s[0] >= '0' && s[0] <= '7') {
        uint32_t cp = 0;
        size_t k = 0;
        for (; k < 3 && k < n && s[k] >= '0' && s[k] <= '7'; k++) cp = cp * 8 + (uint32_t)(s[k] - '0');
        return oz_tm_put_cp(c, cp), k;
    }
    oz_tm_put(c, "\\", 1);
    uint32_t cp;
    size_t k = oz_utf8_next(s, n, &cp, NULL);
    /* Jinja escapes what is not ASCII before it looks for escapes, so that a backslash before it escapes the escape. */
    if (cp >= 0x80)
        oz_tm_printf(c, cp < 0x100 ? "x%02x" : cp < 0x10000 ? "u%04x" : "U%08x", cp);
    else
        oz_tm_put(c, s, 1);
    return k;
}

oz_tm_val oz_tm_lex_string(oz_tm *c, const char *s, size_t n) {
    if (!memchr(s, '\\', n)) return oz_tm_str(s, n);
    size_t mark = oz_tm_mark(c);
    for (size_t i = 0; i < n && c->st == OZ_OK;) {
        const char *b = memchr(s + i, '\\', n - i);
        size_t k = b ? (size_t)(b - s) : n;
        oz_tm_put(c, s + i, k - i);
        i = k < n ? k + 1 + escape(c, s + k + 1, n - k - 1) : n;
    }
    return oz_tm_take(c, mark);
}
