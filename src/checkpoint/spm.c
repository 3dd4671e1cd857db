/* SentencePiece's tokenizer.model: a protobuf message (sentencepiece_model.proto, ModelProto). Fields are read as they come; what is not known is
 * passed over, as protobuf wants it. A cursor with a sticky error: every length is checked against what is left of the message around it. */
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct cursor { const uint8_t *p, *end; const uint8_t *begin; bool bad; } cursor;
typedef struct field { uint32_t number; int wire; uint64_t value; oz_slice bytes; } field; /* value: of numbers, fixed32's bits included */
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static uint64_t varint(cursor *c) {
    uint64_t v = 0;
    for (int shift = 0; shift < 70 && c->p < c->end; shift += 7) {
        const uint8_t b = *c->p++;
        if (shift < 64) v |= (uint64_t)(b & 0x7F) << shift;
        if (!(b & 0x80)) return v;
    }
    c->bad = true;
    return 0;
}

static uint64_t fixed(cursor *c, size_t n) {
    uint64_t v = 0;
    if ((size_t)(c->end - c->p) < n) return c->bad = true, 0;
    for (size_t i = 0; i < n; i++) v |= (uint64_t)c->p[i] << 8 * i;
    c->p += n;
    return v;
}

/* The next field; false at the end or where the message is broken (c->bad). */
static bool next(cursor *c, field *f) {
    if (c->bad || c->p == c->end) return false;
    const uint64_t key = varint(c);
    *f = (field){.number = (uint32_t)(key >> 3), .wire = (int)(key & 7)};
    if (key >> 3 == 0 || key >> 32) c->bad = true;
    else if (f->wire == WIRE_VARINT) f->value = varint(c);
    else if (f->wire == WIRE_FIXED64) f->value = fixed(c, 8);
    else if (f->wire == WIRE_FIXED32) f->value = fixed(c, 4);
    else if (f->wire == WIRE_BYTES) {
        const uint64_t n = varint(c);
        if (c->bad || n > (uint64_t)(c->end - c->p)) return c->bad = true, false;
        f->bytes = (oz_slice){(const char *)c->p, (size_t)n};
        c->p += n;
    } else c->bad = true; /* groups: nobody writes them */
    return !c->bad;
}

static cursor inside(oz_slice s) { return (cursor){(const uint8_t *)s.p, (const uint8_t *)s.p + s.n, (const uint8_t *)s.p, false}; }

static oz_status cursor_check(const cursor *c, const char *where, const char *message, oz_err *err) {
    OZ_NEED(!c->bad, err, OZ_E_FORMAT, "%s: %s: no protobuf message: broken at its byte %td", where, message, c->p - c->begin);
    return OZ_OK;
}

/* A field of the expected wire type; another one is a broken file. */
static oz_status wire_check(const field *f, int wire, const char *where, const char *what, oz_err *err) {
    OZ_NEED(f->wire == wire, err, OZ_E_FORMAT, "%s: %s: expected wire type %d, found %d", where, what, wire, f->wire);
    return OZ_OK;
}

/* ---- pieces (field 1) ---- */

enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };

static oz_status piece_read(oz_tokens *t, size_t i, oz_slice message, oz_err *err) {
    cursor c = inside(message);
    field f;
    char what[40];
    snprintf(what, sizeof what, "pieces[%zu]", i);
    while (next(&c, &f)) {
        if (f.number == PIECE_TEXT) {
            OZ_TRY(wire_check(&f, WIRE_BYTES, t->where, what, err));
            t->text[i] = f.bytes;
        } else if (f.number == PIECE_SCORE) {
            OZ_TRY(wire_check(&f, WIRE_FIXED32, t->where, what, err));
            memcpy(&t->score[i], &(uint32_t){(uint32_t)f.value}, 4);
        } else if (f.number == PIECE_TYPE) {
            OZ_TRY(wire_check(&f, WIRE_VARINT, t->where, what, err));
            OZ_NEED(f.value >= OZ_TOKEN_NORMAL && f.value <= OZ_TOKEN_BYTE, err, OZ_E_FORMAT, "%s: %s.type: must be 1..%d, found %" PRIu64, t->where, what, OZ_TOKEN_BYTE, f.value);
            t->type[i] = (uint8_t)f.value;
        }
    }
    OZ_TRY(cursor_check(&c, t->where, what, err));
    const oz_slice s = t->text[i];
    OZ_NEED(s.n && oz_utf8_valid(s.p, s.n) && !memchr(s.p, 0, s.n), err, OZ_E_FORMAT, "%s: %s.piece: must be UTF-8 without NUL, and not empty", t->where, what);
    OZ_NEED(isfinite(t->score[i]), err, OZ_E_FORMAT, "%s: %s.score: must be finite", t->where, what);
    return OZ_OK;
}

/* ---- trainer_spec (2) and normalizer_spec (3): rows of numbers, and two strings ---- */

typedef struct spec { int64_t model_type, suffix, byte_fallback, unk, bos, eos, pad, dummy_prefix, collapse, escape; oz_slice charsmap, back; } spec;
typedef struct row { uint32_t number; size_t at; const char *name; } row;
static const row TRAINER[] = {{3, offsetof(spec, model_type), "model_type"}, {24, offsetof(spec, suffix), "treat_whitespace_as_suffix"}, {35, offsetof(spec, byte_fallback), "byte_fallback"},
                              {40, offsetof(spec, unk), "unk_id"}, {41, offsetof(spec, bos), "bos_id"}, {42, offsetof(spec, eos), "eos_id"}, {43, offsetof(spec, pad), "pad_id"}, {0}};
static const row NORMALIZER[] = {{3, offsetof(spec, dummy_prefix), "add_dummy_prefix"}, {4, offsetof(spec, collapse), "remove_extra_whitespaces"}, {5, offsetof(spec, escape), "escape_whitespaces"}, {0}};
enum { CHARSMAP = 2 }; /* bytes, in a normalizer_spec */

static oz_status spec_read(spec *s, const row *rows, oz_slice *charsmap, oz_slice message, const char *where, const char *what, oz_err *err) {
    cursor c = inside(message);
    field f;
    while (next(&c, &f)) {
        if (charsmap && f.number == CHARSMAP) {
            OZ_TRY(wire_check(&f, WIRE_BYTES, where, what, err));
            *charsmap = f.bytes;
        }
        for (const row *r = rows; r->name; r++) {
            if (r->number != f.number) continue;
            OZ_TRY(wire_check(&f, WIRE_VARINT, where, r->name, err));
            const int64_t v = (int64_t)f.value; /* int32, negative ones as 64 bits */
            OZ_NEED(v >= INT32_MIN && v <= INT32_MAX, err, OZ_E_FORMAT, "%s: %s: must be an int32, found %" PRId64, where, r->name, v);
            *(int64_t *)((char *)s + r->at) = v;
        }
    }
    return cursor_check(&c, where, what, err);
}

static oz_status id_check(int64_t *out, const oz_tokens *t, int64_t id, const char *name, oz_err *err) {
    OZ_NEED(id < (int64_t)t->n, err, OZ_E_FORMAT, "%s: trainer_spec.%s: must be less than %zu, found %" PRId64, t->where, name, t->n, id);
    *out = id < 0 ? -1 : id;
    return OZ_OK;
}

static oz_status rules_make(oz_spm_rules *r, oz_tokens *t, const spec *s, oz_err *err) {
    enum { UNIGRAM = 1, BPE = 2 };
    OZ_NEED(s->model_type == UNIGRAM || s->model_type == BPE, err, OZ_E_UNSUPPORTED, "%s: trainer_spec.model_type: must be 1 (unigram) or 2 (BPE), found %" PRId64, t->where,
            s->model_type);
    OZ_NEED(!s->suffix, err, OZ_E_UNSUPPORTED, "%s: trainer_spec.treat_whitespace_as_suffix: not supported", t->where);
    OZ_NEED(s->escape, err, OZ_E_UNSUPPORTED, "%s: normalizer_spec.escape_whitespaces: must be true, found false", t->where);
    OZ_NEED(!s->back.n, err, OZ_E_UNSUPPORTED, "%s: denormalizer_spec.precompiled_charsmap: not supported", t->where);
    *r = (oz_spm_rules){.is_bpe = s->model_type == BPE, .byte_fallback = s->byte_fallback, .dummy_prefix = s->dummy_prefix, .collapse_spaces = s->collapse, .charsmap = s->charsmap};
    OZ_TRY(id_check(&t->unk, t, s->unk, "unk_id", err));
    OZ_TRY(id_check(&t->bos, t, s->bos, "bos_id", err));
    OZ_TRY(id_check(&t->eos, t, s->eos, "eos_id", err));
    return id_check(&t->pad, t, s->pad, "pad_id", err);
}

enum { FIELD_PIECE = 1, FIELD_TRAINER = 2, FIELD_NORMALIZER = 3, FIELD_DENORMALIZER = 5 };

oz_status oz_spm_read(oz_tokens *t, oz_spm_rules *r, oz_slice file, const char *where, oz_err *err) {
    spec s = {.model_type = 1, .unk = 0, .bos = 1, .eos = 2, .pad = -1, .dummy_prefix = 1, .collapse = 1, .escape = 1};
    spec ignored = s;
    cursor c = inside(file);
    field f;
    size_t n = 0;
    *t = (oz_tokens){0};
    while (next(&c, &f)) n += f.number == FIELD_PIECE && f.wire == WIRE_BYTES;
    OZ_TRY(cursor_check(&c, where, "the file", err));
    OZ_TRY(oz_tokens_new(t, n, where, err));
    t->score = oz_alloc_array(n, sizeof *t->score);
    c = inside(file);
    for (size_t i = 0; next(&c, &f);) {
        if (f.wire != WIRE_BYTES) continue;
        if (f.number == FIELD_PIECE) OZ_TRY(piece_read(t, i++, f.bytes, err));
        if (f.number == FIELD_TRAINER) OZ_TRY(spec_read(&s, TRAINER, NULL, f.bytes, where, "trainer_spec", err));
        if (f.number == FIELD_NORMALIZER) OZ_TRY(spec_read(&s, NORMALIZER, &s.charsmap, f.bytes, where, "normalizer_spec", err));
        if (f.number == FIELD_DENORMALIZER) OZ_TRY(spec_read(&ignored, NORMALIZER, &s.back, f.bytes, where, "denormalizer_spec", err));
    }
    return rules_make(r, t, &s, err);
}
