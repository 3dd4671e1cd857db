/* The vocabulary: contents by id and ids by content, and the byte alphabet of byte-level models. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

/* Blobs are indexed with 32 bits; JSON files are limited far below that. */
static oz_status put_text(uint32_t *at, uint32_t *len, oz_buf *b, oz_slice s, const char *path, oz_err *err) {
    OZ_NEED(b->len + s.n <= UINT32_MAX, err, OZ_E_FORMAT, "%s: more than 4 GiB of token texts", path);
    *at = (uint32_t)b->len;
    *len = (uint32_t)s.n;
    oz_buf_append(b, s.p, s.n);
    return OZ_OK;
}

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
    return put_text(&item->at, &item->n, &v->chars, s, path, err);
}

int32_t oz_vocab_find(const oz_vocab *v, oz_slice s, int flags) {
    int64_t id;
    if (!v->ids || !oz_map_get(v->ids, s.p, s.n, &id)) return -1;
    return v->item[id].flags & flags ? (int32_t)id : -1;
}

bool oz_vocab_has(const oz_vocab *v, int32_t id) { return id >= 0 && (size_t)id < v->n && v->item[id].flags; }

oz_slice oz_vocab_content(const oz_vocab *v, int32_t id) { return (oz_slice){v->chars.data + v->item[id].at, v->item[id].n}; }

oz_slice oz_vocab_piece(const oz_vocab *v, int32_t id) { return (oz_slice){v->pieces.data + v->item[id].piece_at, v->item[id].piece_n}; }

oz_status oz_vocab_set_piece(oz_vocab *v, int32_t id, oz_slice piece, oz_err *err) {
    oz_vocab_item *item = &v->item[id];
    return put_text(&item->piece_at, &item->piece_n, &v->pieces, piece, "decoder", err);
}

void oz_vocab_deinit(oz_vocab *v) {
    oz_map_free(&v->ids);
    oz_free(v->item);
    oz_buf_deinit(&v->chars);
    oz_buf_deinit(&v->pieces);
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
