#include "base/str.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

void oz_buf_deinit(oz_buf *b) {
    oz_free(b->data);
    *b = (oz_buf){0};
}

static void reserve(oz_buf *b, size_t n) { oz_grow((void **)&b->data, &b->cap, b->len + n + 1, 1); }

void oz_buf_append(oz_buf *b, const void *p, size_t n) {
    reserve(b, n);
    if (n) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
}

void oz_buf_puts(oz_buf *b, const char *s) { oz_buf_append(b, s, strlen(s)); }
void oz_buf_putc(oz_buf *b, char c) { oz_buf_append(b, &c, 1); }

void oz_buf_printf(oz_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0) {
        reserve(b, (size_t)n);
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void oz_buf_put_utf8(oz_buf *b, uint32_t cp) {
    char c[4];
    oz_buf_append(b, c, oz_utf8_encode(c, cp));
}

static bool is_shown(uint32_t c) {
    static const uint32_t hidden[][2] = {{0, 0x1F}, {0x7F, 0x9F}, {0x61C, 0x61C}, {0x200E, 0x200F}, {0x2028, 0x202E}, {0x2066, 0x2069}};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (c >= hidden[i][0] && c <= hidden[i][1]) return false;
    return true;
}

void oz_buf_put_safe(oz_buf *b, const char *s, size_t n) {
    for (size_t at = 0; at < n;) {
        uint32_t c;
        bool ok = true;
        const size_t len = oz_utf8_next(s + at, n - at, &c, &ok);
        if (ok && is_shown(c)) oz_buf_append(b, s + at, len);
        else
            for (size_t i = 0; i < len; i++) oz_buf_printf(b, "\\x%02x", (unsigned char)s[at + i]);
        at += len;
    }
}

void oz_buf_clear(oz_buf *b) {
    b->len = 0;
    if (b->data) b->data[0] = 0;
}

oz_slice oz_slice_view(const char *cstr) { return (oz_slice){cstr, strlen(cstr)}; }
bool oz_slice_eq(oz_slice a, oz_slice b) { return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0); }

bool oz_str_starts(const char *s, const char *prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

bool oz_str_ends(const char *s, const char *suffix) {
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && memcmp(s + n - k, suffix, k) == 0;
}

size_t oz_str_distance(const char *a, const char *b) {
    enum { MAX = 64 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX || nb > MAX) return na > nb ? na : nb;
    size_t row[MAX + 1];
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

/* ---- UTF-8 ---- */

/* Length and the range of the second byte by lead byte (Unicode, table 3-7). Length 0: no lead byte. */
static int lead(uint8_t c, uint8_t *lo, uint8_t *hi) {
    *lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    *hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    return c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
}

/* How many bytes of p[0..n) continue a sequence that p[0] begins; *len is the length that it calls for (0: none). */
static size_t matched(const uint8_t *p, size_t n, int *len) {
    uint8_t lo, hi;
    *len = lead(p[0], &lo, &hi);
    size_t i = 1;
    while (i < n && (int)i < *len && p[i] >= lo && p[i] <= hi) {
        lo = 0x80, hi = 0xbf;
        i++;
    }
    return i;
}

size_t oz_utf8_next(const char *p, size_t n, uint32_t *cp, bool *ok) {
    const uint8_t *u = (const uint8_t *)p;
    if (u[0] < 0x80) {
        *cp = u[0];
        if (ok) *ok = true;
        return 1;
    }
    int len;
    size_t k = matched(u, n, &len);
    bool good = (int)k == len;
    if (ok) *ok = good;
    *cp = 0xfffd;
    if (good) {
        uint32_t c = u[0] & (0x7fu >> len);
        for (int i = 1; i < len; i++) c = c << 6 | (u[i] & 0x3f);
        *cp = c;
    }
    return k;
}

size_t oz_utf8_encode(char out[4], uint32_t cp) {
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)((0xf00u >> n & 0xff) | cp);
    return n;
}

size_t oz_utf8_tail(const char *p, size_t n) {
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        const uint8_t *u = (const uint8_t *)p + n - k;
        if ((*u & 0xc0) == 0x80) continue;
        int len;
        return matched(u, k, &len) == k && (int)k < len ? k : 0;
    }
    return 0;
}

size_t oz_utf8_run(const char *p, size_t n) {
    bool ok;
    uint32_t cp;
    for (size_t i = 0, k; i < n; i += k) {
        k = oz_utf8_next(p + i, n - i, &cp, &ok);
        if (!ok) return i;
    }
    return n;
}

bool oz_utf8_valid(const char *p, size_t n) { return oz_utf8_run(p, n) == n; }
