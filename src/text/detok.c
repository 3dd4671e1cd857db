/* From ids back to text, one at a time or all at once: the same steps, so that a stream's deltas always add up to the whole. */
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

void oz_detok_init(oz_detok *d, const oz_tok *t, bool skip_special) { *d = (oz_detok){.tok = t, .skip_special = skip_special}; }

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

void oz_detok_push(oz_buf *out, oz_detok *d, int32_t id) {
    const oz_vocab *v = &d->tok->vocab;
    if (!oz_vocab_has(v, id) || (d->skip_special && v->item[id].flags & OZ_TOK_SPECIAL)) return;
    oz_slice s = oz_vocab_piece(v, id);
    char held[sizeof d->held + 1];
    if (d->tok->spaced && d->n_seen++ > 0) {
        oz_detok_flush(out, d);
        oz_buf_putc(out, ' ');
    }
    for (; d->n_held && s.n; s.p++, s.n--) { /* byte by byte, until a character ends or turns out to be none */
        size_t n = d->n_held;
        memcpy(held, d->held, n);
        held[n] = *s.p;
        feed(out, d, held, n + 1);
    }
    if (s.n) feed(out, d, s.p, s.n);
}

void oz_detok_flush(oz_buf *out, oz_detok *d) {
    oz_utf8_replace(out, d->held, d->n_held);
    d->n_held = 0;
}

void oz_tok_decode(oz_buf *out, const oz_tok *t, const int32_t *ids, size_t n, bool skip_special) {
    oz_detok d;
    oz_detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++) oz_detok_push(out, &d, ids[i]);
    oz_detok_flush(out, &d);
}
