/* SentencePiece's compiled character map: a double array (as Darts lays it out) over UTF-8, whose values are places in a list of texts.
 *
 * A cluster (what a reader sees as one character) of less than 6 bytes is looked up as a whole, and the shortest entry that begins it
 * stands for all of it; where there is none, and in longer clusters, each character is looked up by itself. That is what the reference
 * does, the loss of accents behind a mapped letter included. */
#include "base/base64.h"
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

enum { MAX_CLUSTER = 6, MAX_MAP_BYTES = 64 << 20 };

struct oz_charsmap {
    uint32_t *unit;
    size_t n_units;
    char *text; /* NUL behind each entry */
    size_t n_text;
    bool ascii[128]; /* an entry begins with this character alone */
};

/* The value of the shortest entry that begins p[0..n), or -1. */
static int64_t find(const oz_charsmap *m, const char *p, size_t n) {
    if (!m->n_units) return -1;
    uint32_t unit = m->unit[0];
    size_t at = 0;
    for (size_t i = 0; i <= n; i++) {
        at ^= (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
        if (at >= m->n_units) return -1;
        if (i > 0 && unit >> 8 & 1) return m->unit[at] & 0x7FFFFFFF;
        if (i == n || !p[i]) return -1;
        at ^= (unsigned char)p[i];
        if (at >= m->n_units) return -1;
        unit = m->unit[at];
        if ((unit & (1u << 31 | 0xFF)) != (unsigned char)p[i]) return -1;
    }
    return -1;
}

static bool entry(oz_slice *to, const oz_charsmap *m, const char *p, size_t n) {
    int64_t v = find(m, p, n);
    if (v < 0 || (size_t)v > m->n_text) return false;
    *to = (oz_slice){m->text + v, strlen(m->text + v)};
    return true;
}

static oz_status unpack(oz_charsmap *m, const oz_buf *b, oz_jpath path, oz_err *err) {
    const unsigned char *u = (const unsigned char *)b->data;
    OZ_NEED(b->len >= 4, err, OZ_E_FORMAT, "%s: must be a compiled map, found %zu bytes", path.s, b->len);
    size_t size = (size_t)u[0] | (size_t)u[1] << 8 | (size_t)u[2] << 16 | (size_t)u[3] << 24, rest = b->len - 4;
    OZ_NEED(size % 4 == 0 && size <= rest, err, OZ_E_FORMAT, "%s: says %zu bytes of tables, found %zu", path.s, size, rest);
    m->n_units = size / 4;
    m->unit = oz_alloc_array(m->n_units + 1, sizeof *m->unit);
    for (size_t i = 0; i < m->n_units; i++) {
        const unsigned char *p = u + 4 + 4 * i;
        m->unit[i] = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    m->n_text = rest - size;
    m->text = oz_strndup(b->data + 4 + size, m->n_text); /* with a NUL at its end */
    for (size_t i = 0, n; i < m->n_text; i += n + 1) {
        n = strnlen(b->data + 4 + size + i, m->n_text - i);
        OZ_NEED(oz_utf8_valid(b->data + 4 + size + i, n), err, OZ_E_FORMAT, "%s: its texts must be UTF-8", path.s);
    }
    return OZ_OK;
}

oz_status oz_charsmap_new(oz_charsmap **out, const json_t *obj, oz_jpath path, oz_err *err) {
    const json_t *v = json_object_get(obj, "precompiled_charsmap");
    path = oz_jpath_key(path, "precompiled_charsmap");
    OZ_NEED(json_is_string(v) && json_string_length(v) <= MAX_MAP_BYTES, err, OZ_E_FORMAT,
            "%s: must be a base64 string of at most %d bytes, found %s", path.s, MAX_MAP_BYTES, oz_json_show(v));
    oz_buf b = {0};
    oz_charsmap *m = *out = oz_alloc(sizeof *m);
    oz_status st = OZ_OK;
    if (!oz_base64_decode(&b, json_string_value(v), json_string_length(v)))
        st = oz_err_set(err, OZ_E_FORMAT, __FILE__, __LINE__, "%s: must be base64, found %s", path.s, oz_json_show(v));
    if (st == OZ_OK) st = unpack(m, &b, path, err);
    oz_buf_deinit(&b);
    if (st != OZ_OK) {
        oz_charsmap_free(out);
        return st;
    }
    for (int c = 1; c < 128; c++) m->ascii[c] = find(m, (const char[]){(char)c}, 1) >= 0;
    return OZ_OK;
}

void oz_charsmap_free(oz_charsmap **map) {
    oz_charsmap *m = *map;
    if (!m) return;
    oz_free(m->unit);
    oz_free(m->text);
    oz_free(m);
    *map = NULL;
}

/* Which of the new characters come from the first characters of the text: the reference numbers the old ones, and a new one takes the next number, but
 * those that a replacement has more than it had before stay at the last one, and what it has less is skipped after the last one so far. */
typedef struct origin {
    size_t n_old, next, bytes; /* so many old ones are the text's beginning; number of the next; bytes of new ones that come from them */
    size_t len, more, skipped; /* of the last new one, which is not counted yet: bytes, whether it is one more, old ones skipped after it */
    bool over;
} origin;

static void settle(origin *o) {
    if (!o->len || o->over) return;
    const bool more = o->more > o->skipped;
    o->over = more ? o->next > o->n_old : o->next >= o->n_old;
    if (!o->over) o->bytes += o->len;
    if (!more) o->next += 1 + o->skipped - o->more;
}

static size_t n_chars(oz_slice s) {
    size_t n = 0;
    for (size_t i = 0; i < s.n; i += oz_uc_len(s.p[i])) n++;
    return n;
}

static void follow(origin *o, oz_slice from, oz_slice to) {
    if (o->over) return;
    const size_t n_from = n_chars(from), n_to = n_chars(to);
    for (size_t i = 0, at = 0; i < n_to; i++, at += o->len) {
        settle(o);
        o->len = oz_uc_len(to.p[at]), o->more = i >= n_from, o->skipped = 0;
    }
    if (n_to < n_from) o->skipped += n_from - n_to;
}

static void follow_same(origin *o, const char *begin, const char *end) {
    for (const char *p = begin; p < end && !o->over; p += oz_uc_len(*p)) follow(o, (oz_slice){p, oz_uc_len(*p)}, (oz_slice){p, oz_uc_len(*p)});
}

bool oz_charsmap_run(oz_buf *out, const oz_charsmap *m, oz_slice in, size_t *zero) {
    origin o = {.n_old = n_chars((oz_slice){in.p, *zero}), .over = *zero == 0};
    const char *p = in.p, *end = in.p + in.n, *done = p;
    bool changed = false;
    while (p < end) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x80 && c != '\r' && !m->ascii[c] && (end - p < 2 || (unsigned char)p[1] < 0x80)) {
            p++;
            continue;
        }
        size_t n = oz_uc_grapheme(p, (size_t)(end - p)), step;
        oz_slice to;
        bool whole = n < MAX_CLUSTER && entry(&to, m, p, n);
        for (const char *stop = p + n; p < stop; p += step) {
            step = whole ? n : oz_uc_len(*p);
            if (!whole && !entry(&to, m, p, step)) continue;
            follow_same(&o, done, p);
            follow(&o, (oz_slice){p, step}, to);
            oz_buf_append(out, done, (size_t)(p - done));
            oz_buf_append(out, to.p, to.n);
            done = p + step;
            changed = true;
        }
    }
    if (!changed) return false;
    follow_same(&o, done, end);
    settle(&o);
    *zero = o.bytes;
    oz_buf_append(out, done, (size_t)(end - done));
    return true;
}
