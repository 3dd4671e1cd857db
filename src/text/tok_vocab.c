/* The vocabulary: contents by id and ids by content, and the byte alphabet of byte-level models. */
#include "base/clock.h"
#include "base/json.h"
#include "text/tok_internal.h"
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* Blobs are indexed with 32 bits; JSON files are limited far below that. */
static oz_status put_text(oz_span *span, oz_buf *b, oz_slice s, const char *path, oz_err *err) {
    OZ_NEED(b->len + s.n <= UINT32_MAX, err, OZ_E_FORMAT, "%s: more than 4 GiB of token texts", path);
    *span = (oz_span){(uint32_t)b->len, (uint32_t)s.n};
    oz_buf_append(b, s.p, s.n);
    return OZ_OK;
}

static oz_slice span_view(const oz_vocab *v, oz_span s) { return (oz_slice){v->chars.data + s.at, s.n}; }

/* As much of a token as a message shows. */
#define SHOWN(s) ((s).n < 60 ? (int)(s).n : 60), (s).p

static oz_status add_again(oz_vocab *v, int32_t id, oz_slice s, int flags, const char *path, oz_err *err) {
    oz_slice old = oz_vocab_content(v, id);
    OZ_NEED(oz_slice_eq(old, s), err, OZ_E_FORMAT, "%s: id %d of \"%.*s\" is already that of \"%.*s\"", path, id, SHOWN(s), SHOWN(old));
    OZ_NEED(!(v->item[id].flags & flags), err, OZ_E_FORMAT, "%s: \"%.*s\" is there twice", path, SHOWN(s));
    v->item[id].flags |= (uint8_t)flags;
    return OZ_OK;
}

oz_status oz_vocab_add(oz_vocab *v, int64_t id, oz_slice s, int flags, const char *path, oz_err *err) {
    OZ_NEED(id >= 0 && id <= OZ_TOK_MAX_ID, err, OZ_E_FORMAT, "%s: the id of \"%.*s\" must be 0..%d, found %lld", path, SHOWN(s),
            OZ_TOK_MAX_ID, (long long)id);
    if ((size_t)id < v->n && v->item[id].flags) return add_again(v, (int32_t)id, s, flags, path, err);
    if (!v->ids) v->ids = oz_map_new(0);
    OZ_NEED(oz_map_add(v->ids, s.p, s.n, id), err, OZ_E_FORMAT, "%s: \"%.*s\" has id %lld here and id %d before", path, SHOWN(s),
            (long long)id, oz_vocab_find(v, s, OZ_TOK_ANY));
    oz_grow((void **)&v->item, &v->cap, (size_t)id + 1, sizeof *v->item);
    if ((size_t)id >= v->n) v->n = (size_t)id + 1;
    if (s.n > v->longest) v->longest = s.n;
    oz_vocab_item *item = &v->item[id];
    item->flags = (uint8_t)flags;
    OZ_TRY(put_text(&item->content, &v->chars, s, path, err));
    item->text = item->content;
    return OZ_OK;
}

int32_t oz_vocab_find(const oz_vocab *v, oz_slice s, int flags) {
    int64_t id;
    if (!v->ids || !oz_map_get(v->ids, s.p, s.n, &id)) return -1;
    return v->item[id].flags & flags ? (int32_t)id : -1;
}

bool oz_vocab_has(const oz_vocab *v, int32_t id) { return id >= 0 && (size_t)id < v->n && v->item[id].flags; }

oz_slice oz_vocab_content(const oz_vocab *v, int32_t id) { return span_view(v, v->item[id].content); }

oz_slice oz_vocab_text(const oz_vocab *v, int32_t id) { return span_view(v, v->item[id].text); }

oz_slice oz_vocab_piece(const oz_vocab *v, int32_t id, bool first) { return span_view(v, first ? v->item[id].first : v->item[id].piece); }

oz_status oz_vocab_set(oz_vocab *v, oz_span *span, oz_slice s, oz_err *err) {
    oz_slice old = span_view(v, *span);
    return oz_slice_eq(old, s) ? OZ_OK : put_text(span, &v->chars, s, "decoder", err);
}

oz_status oz_vocab_read(oz_vocab *v, const json_t *vocab, oz_err *err) {
    OZ_NEED(json_is_object(vocab), err, OZ_E_FORMAT, "model.vocab: must be an object, found %s", oz_json_show(vocab));
    if (!v->ids) v->ids = oz_map_new(json_object_size(vocab));
    const char *key;
    size_t n;
    json_t *id;
    json_object_keylen_foreach((json_t *)vocab, key, n, id) {
        OZ_NEED(json_is_integer(id), err, OZ_E_FORMAT, "model.vocab: the id of \"%.60s\" must be an integer, found %s", key,
                oz_json_show(id));
        OZ_TRY(oz_vocab_add(v, json_integer_value(id), (oz_slice){key, n}, OZ_TOK_MODEL, "model.vocab", err));
    }
    return OZ_OK;
}

void oz_vocab_byte_ids(int32_t ids[256], const oz_vocab *v) {
    for (int i = 0; i < 256; i++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)i);
        ids[i] = oz_vocab_find(v, oz_slice_view(s), OZ_TOK_MODEL);
    }
}

uint64_t oz_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) seed = (uint64_t)oz_clock_us() * 0x9e3779b97f4a7c15u;
    return seed | 1;
}

void oz_vocab_deinit(oz_vocab *v) {
    oz_map_free(&v->ids);
    oz_free(v->item);
    oz_buf_deinit(&v->chars);
}

/* Bytes that are printable characters of Latin-1 stand for themselves; the 68 others, in order, for U+0100 and on. */
static bool is_printable(uint32_t b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF); }

uint32_t oz_byte_char(uint8_t byte) {
    if (is_printable(byte)) return byte;
    if (byte <= ' ') return 0x100u + byte;
    if (byte <= 0xA0) return 0x100u + 33 + (byte - 0x7Fu);
    return 0x100u + 67; /* 0xAD */
}

int oz_char_byte(uint32_t c) {
    if (c < 0x100) return is_printable(c) ? (int)c : -1;
    if (c <= 0x100 + ' ') return (int)(c - 0x100);
    if (c <= 0x100 + 66) return (int)(c - 0x100 - 33 + 0x7F);
    return c == 0x100 + 67 ? 0xAD : -1;
}
