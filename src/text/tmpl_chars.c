/* Text as Python sees it: classes and case of characters, positions counted in characters, white space, HTML escapes. */
#include "text/tmpl_internal.h"
#include <string.h>
#include <utf8proc.h>

bool oz_tm_is_space(uint32_t cp) {
    if (cp < 0x80) return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

bool oz_tm_is_word_cp(uint32_t cp) {
    if (cp < 0x80) return (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z') || cp == '_';
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

bool oz_tm_is_printable(uint32_t cp) {
    if (cp < 0x7f) return cp >= 0x20;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return k != UTF8PROC_CATEGORY_CN && !(k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_CO);
}

size_t oz_tm_char_len(const char *s, size_t n) {
    unsigned char b = (unsigned char)s[0];
    size_t k = b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    return k < n ? k : n;
}

size_t oz_tm_n_chars(const char *s, size_t n) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) k += ((unsigned char)s[i] & 0xc0) != 0x80;
    return k;
}

size_t oz_tm_char_at(const char *s, size_t n, size_t i) {
    size_t at = 0;
    while (i-- > 0 && at < n) at += oz_tm_char_len(s + at, n - at);
    return at;
}

/* The last character of s[0..n), n > 0. */
static uint32_t last_char(const char *s, size_t n, size_t *len) {
    size_t k = 1;
    uint32_t cp;
    while (k < n && k < 4 && ((unsigned char)s[n - k] & 0xc0) == 0x80) k++;
    *len = k;
    oz_utf8_next(s + n - k, k, &cp, NULL);
    return cp;
}

static bool strips(const oz_slice *chars, uint32_t cp) {
    if (!chars) return oz_tm_is_space(cp);
    for (size_t i = 0; i < chars->n;) {
        uint32_t one;
        i += oz_utf8_next(chars->p + i, chars->n - i, &one, NULL);
        if (one == cp) return true;
    }
    return false;
}

oz_slice oz_tm_strip(oz_slice s, const oz_slice *chars, bool left, bool right) {
    uint32_t cp;
    size_t k;
    while (left && s.n > 0) {
        k = oz_utf8_next(s.p, s.n, &cp, NULL);
        if (!strips(chars, cp)) break;
        s.p += k;
        s.n -= k;
    }
    while (right && s.n > 0) {
        cp = last_char(s.p, s.n, &k);
        if (!strips(chars, cp)) break;
        s.n -= k;
    }
    return s;
}

/* First bytes and comparisons, which is the fastest for text; where comparisons go wrong too often the two-way search of memmem takes over,
 * whose time does not depend on the pattern. */
size_t oz_tm_find(const char *s, size_t n, const char *what, size_t n_what) {
    if (n_what == 0) return 0;
    size_t budget = 2 * n;
    for (size_t i = 0; n - i >= n_what && i <= n; i++) {
        const char *at = memchr(s + i, what[0], n - i - n_what + 1);
        if (!at) return SIZE_MAX;
        i = (size_t)(at - s);
        if (memcmp(at, what, n_what) == 0) return i;
        if (budget < n_what) {
            at = memmem(at + 1, n - i - 1, what, n_what);
            return at ? (size_t)(at - s) : SIZE_MAX;
        }
        budget -= n_what;
    }
    return SIZE_MAX;
}

/* From the back, byte by byte: slow for hostile patterns only, and those are charged for. */
size_t oz_tm_rfind(oz_tm *c, const char *s, size_t n, const char *what, size_t n_what) {
    if (n_what == 0) return n;
    for (size_t i = n >= n_what ? n - n_what + 1 : 0; i-- > 0;) {
        if (s[i] != what[0] || s[i + n_what - 1] != what[n_what - 1]) continue;
        if (!oz_tm_charge(c, 1 + n_what / 64)) return SIZE_MAX;
        if (memcmp(s + i, what, n_what) == 0) return i;
    }
    return SIZE_MAX;
}

/* ---- case. utf8proc maps a character to one; where Unicode's full mapping has more, a row of this table ---- */

typedef struct special {
    uint16_t cp, upper[3], title[3];
} special;
static const special SPECIAL[] = {
#include "text/tmpl_case.inc"
};

static const special *find_special(uint32_t cp) {
    size_t lo = 0, hi = sizeof SPECIAL / sizeof *SPECIAL;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (SPECIAL[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof SPECIAL / sizeof *SPECIAL && SPECIAL[lo].cp == cp ? &SPECIAL[lo] : NULL;
}

static bool is_cased(uint32_t cp) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static bool is_ignored(uint32_t cp) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_ME || cp == '\'' ||
           cp == '.' || cp == ':' || cp == 0xb7 || cp == 0x2019;
}

/* A capital sigma at [i] of a word's end becomes the final small one. */
static bool ends_word(const char *s, size_t n, size_t i) {
    uint32_t cp = 0;
    size_t k, before = i;
    bool cased = false;
    while (before > 0 && !cased) {
        cp = last_char(s, before, &k);
        before -= k;
        if (is_cased(cp))
            cased = true;
        else if (!is_ignored(cp))
            break;
    }
    if (!cased) return false;
    for (i += oz_tm_char_len(s + i, n - i); i < n; i += k) {
        k = oz_utf8_next(s + i, n - i, &cp, NULL);
        if (is_cased(cp)) return false;
        if (!is_ignored(cp)) break;
    }
    return true;
}

static void put_one(oz_tm *c, const char *s, size_t n, size_t i, uint32_t cp, int how) {
    const special *sp = how != OZ_TM_LOWER && cp >= 0x80 && cp < 0x10000 ? find_special(cp) : NULL;
    if (sp) {
        const uint16_t *to = how == OZ_TM_UPPER ? sp->upper : sp->title;
        for (int k = 0; k < 3 && to[k]; k++) oz_tm_put_cp(c, to[k]);
    } else if (how == OZ_TM_UPPER)
        oz_tm_put_cp(c, (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp));
    else if (how == OZ_TM_TITLE)
        oz_tm_put_cp(c, (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp));
    else if (cp == 0x130)
        oz_tm_puts(c, "i\xcc\x87");
    else if (cp == 0x3a3)
        oz_tm_put_cp(c, ends_word(s, n, i) ? 0x3c2 : 0x3c3);
    else
        oz_tm_put_cp(c, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

static void fold(oz_tm *c, uint32_t cp) {
    utf8proc_int32_t to[8];
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, to, 8, UTF8PROC_CASEFOLD, &(int){0});
    for (utf8proc_ssize_t i = 0; i < n && i < 8; i++) oz_tm_put_cp(c, (uint32_t)to[i]);
}

void oz_tm_put_case(oz_tm *c, const char *s, size_t n, int how) {
    oz_tm_charge(c, n / 16);
    for (size_t i = 0, k; i < n && c->st == OZ_OK; i += k) {
        uint32_t cp;
        k = oz_utf8_next(s + i, n - i, &cp, NULL);
        if (how == OZ_TM_FOLD)
            fold(c, cp);
        else
            put_one(c, s, n, i, cp, how);
    }
}

void oz_tm_put_escaped(oz_tm *c, oz_slice s) {
    static const struct {
        char ch;
        const char *as;
    } ROWS[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
    size_t from = 0;
    for (size_t i = 0; i < s.n; i++)
        for (size_t k = 0; k < sizeof ROWS / sizeof *ROWS; k++) {
            if (s.p[i] != ROWS[k].ch) continue;
            oz_tm_put(c, s.p + from, i - from);
            oz_tm_puts(c, ROWS[k].as);
            from = i + 1;
        }
    oz_tm_put(c, s.p + from, s.n - from);
}
