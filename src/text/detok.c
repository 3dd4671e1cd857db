/* From ids to text one at a time: the pieces of the tokens, cut at whole characters. */
#include "text/tok_internal.h"
#include <string.h>

void oz_utf8_replace(oz_buf *out, const char *p, size_t n) {
    while (n) {
        uint32_t c;
        bool ok = true;
        size_t k = oz_utf8_next(p, n, &c, &ok);
        if (ok)
            oz_buf_append(out, p, k);
        else
            oz_buf_put_utf8(out, 0xFFFD);
        p += k;
        n -= k;
    }
}

void oz_detok_init(oz_detok *d, const oz_tok *t, bool skip_special) { *d = (oz_detok){.tok = t, .skip_special = skip_special, .last = -1}; }

/* How many bytes at the end to hold. The first two of an encoded surrogate are ill-formed already, and yet held until the third has
 * come, as the reference's incremental decoder does. */
static size_t tail_of(const char *p, size_t n) {
    size_t tail = oz_utf8_tail(p, n);
    bool surrogate = n >= 2 && (unsigned char)p[n - 2] == 0xED && (unsigned char)p[n - 1] >= 0xA0 && (unsigned char)p[n - 1] <= 0xBF;
    return surrogate ? 2 : tail;
}

/* Appends p[0..n) but for what may be the beginning of a character, which is held. */
static void feed(oz_buf *out, oz_detok *d, const char *p, size_t n) {
    size_t tail = tail_of(p, n);
    oz_utf8_replace(out, p, n - tail);
    memcpy(d->held, p + n - tail, tail);
    d->n_held = tail;
}

static void feed_all(oz_buf *out, oz_detok *d, oz_slice s) {
    char held[sizeof d->held + 1];
    for (; d->n_held && s.n; s.p++, s.n--) { /* byte by byte, until a character ends or turns out to be none */
        size_t n = d->n_held;
        memcpy(held, d->held, n);
        held[n] = *s.p;
        feed(out, d, held, n + 1);
    }
    if (s.n) feed(out, d, s.p, s.n);
}

void oz_detok_push(oz_buf *out, oz_detok *d, int32_t id) {
    const oz_vocab *v = &d->tok->vocab;
    const oz_decoders *z = &d->tok->decoders;
    if (!oz_vocab_has(v, id) || (d->skip_special && v->item[id].flags & OZ_TOK_SKIPPED)) return;
    bool again = z->dedups && id == d->last, first = d->n_seen++ == 0;
    d->last = id;
    if (again) return;
    oz_slice s = oz_vocab_piece(v, id, first), space = {" ", 1};
    if (d->space || (z->none && !first)) feed_all(out, d, space);
    d->space = v->item[id].flags & OZ_TOK_SPACED; /* not written behind the last token */
    s.n -= d->space;
    feed_all(out, d, s);
}

void oz_detok_flush(oz_buf *out, oz_detok *d) {
    oz_utf8_replace(out, d->held, d->n_held);
    d->n_held = 0;
}
