/* Unigram: of all ways to write a word as tokens the one with the highest sum of scores (Viterbi, from left to right, the first found
 * of equals). A character that is no token by itself may also be unknown, at the lowest score less 10; neighbouring unknowns are one. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

typedef struct unigram {
    const oz_vocab *vocab;
    oz_trie trie;
    double *score; /* [id] */
    double unk_score;
    int32_t unk;
    int32_t byte_id[256]; /* with byte fallback: of <0x00> ..; NONE where there is none */
    bool byte_fallback;
} unigram;

/* A score as the reference reads it: its JSON reader divides the digits by a power of ten, which is not always the nearest double, and
 * ties between ways to write a word are decided by the last bit. The digits are the shortest that stand for the number, as files have
 * them. */
static double as_read(double nearest) {
    char s[40], power[16];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*e", digits - 1, nearest);
        if (strtod(s, NULL) == nearest) break;
    }
    uint64_t digits = 0;
    int exponent = 0;
    for (const char *p = s; *p && *p != 'e'; p++) {
        if (*p < '0' || *p > '9') continue;
        digits = digits * 10 + (uint64_t)(*p - '0');
    }
    const char *dot = strchr(s, '.'), *e = strchr(s, 'e');
    if (!e) return nearest;
    exponent = atoi(e + 1);
    if (dot) exponent -= (int)(e - dot) - 1;
    while (digits && digits % 10 == 0) {
        digits /= 10;
        exponent++;
    }
    if (exponent < -300 || exponent > 300) return nearest;
    snprintf(power, sizeof power, "1e%d", abs(exponent));
    double d = exponent < 0 ? (double)digits / strtod(power, NULL) : (double)digits * strtod(power, NULL);
    return nearest < 0 ? -d : d;
}

static oz_status entry_read(unigram *m, oz_vocab *v, const json_t *item, size_t i, double *lowest, oz_err *err) {
    const json_t *s = json_array_get(item, 0), *score = json_array_get(item, 1);
    OZ_NEED(json_is_string(s) && json_is_number(score) && json_array_size(item) == 2, err, OZ_E_FORMAT,
            "model.vocab[%zu]: must be [\"token\", score], found %s", i, oz_json_show(item));
    oz_slice text = {json_string_value(s), json_string_length(s)};
    oz_jpath path = oz_jpath_at((oz_jpath){"model.vocab"}, i);
    OZ_TRY(oz_vocab_add(v, (int64_t)i, text, OZ_TOK_MODEL, path.s, err));
    m->score[i] = json_is_real(score) ? as_read(json_real_value(score)) : json_number_value(score);
    if (m->score[i] < *lowest) *lowest = m->score[i];
    return text.n ? oz_trie_add(&m->trie, text, (int32_t)i, err) : OZ_OK;
}

static oz_status unigram_load(void **self, oz_vocab *v, const json_t *obj, bool byte_level, oz_err *err) {
    unigram *m = oz_alloc(sizeof *m);
    *self = m;
    m->vocab = v;
    const json_t *vocab = json_object_get(obj, "vocab");
    OZ_NEED(json_is_array(vocab), err, OZ_E_FORMAT, "model.vocab: must be an array, found %s", oz_json_show(vocab));
    size_t n = json_array_size(vocab);
    int64_t unk = NONE;
    OZ_TRY(oz_json_int(&unk, obj, "model", "unk_id", 0, (int64_t)n - 1, err));
    OZ_TRY(oz_json_flag(&m->byte_fallback, obj, (oz_jpath){"model"}, "byte_fallback", err));
    m->unk = (int32_t)unk;
    m->score = oz_alloc_array(n + 1, sizeof *m->score);
    double lowest = INFINITY;
    for (size_t i = 0; i < n; i++) OZ_TRY(entry_read(m, v, json_array_get(vocab, i), i, &lowest, err));
    m->unk_score = lowest - 10;
    oz_vocab_byte_ids(m->byte_id, v);
    return OZ_OK;
}

static void unigram_free(void *self) {
    unigram *m = self;
    oz_trie_deinit(&m->trie);
    oz_free(m->score);
    oz_free(m);
}

/* The best way to reach a place in the word; from NONE: none found yet. */
struct oz_place {
    double score;
    int32_t id;
    int64_t from;
};
typedef struct oz_place place;

static bool is_better(const place *to, double score) { return to->from == NONE || score > to->score; }

static oz_status forward(const unigram *m, place *at, oz_slice word, oz_err *err) {
    for (size_t i = 1; i <= word.n; i++) at[i].from = NONE;
    at[0] = (place){0, NONE, 0};
    for (size_t i = 0, len; i < word.n; i += len) {
        len = oz_uc_len(word.p[i]);
        bool single = false;
        uint32_t node = 0;
        for (size_t k = i; k < word.n && (node = oz_trie_step(&m->trie, node, word.p[k]));) {
            k++;
            int32_t id = m->trie.value[node];
            if (id < 0) continue;
            double score = m->score[id] + at[i].score;
            if (is_better(&at[k], score)) at[k] = (place){score, id, (int64_t)i};
            single |= k - i == len;
        }
        double score = m->unk_score + at[i].score;
        if (single || !is_better(&at[i + len], score)) continue;
        OZ_NEED(m->unk != NONE, err, OZ_E_FORMAT, "a character is not in model.vocab, and model.unk_id is missing");
        at[i + len] = (place){score, m->unk, (int64_t)i};
    }
    return OZ_OK;
}

/* A run of unknowns may be a token as a whole; else its bytes are taken if the vocabulary has them all. */
static void put_unknown(oz_ids *out, const unigram *m, oz_slice s) {
    int32_t id = oz_vocab_find(m->vocab, s, OZ_TOK_MODEL);
    bool bytes = id < 0 && m->byte_fallback;
    for (size_t i = 0; i < s.n && bytes; i++) bytes = m->byte_id[(unsigned char)s.p[i]] >= 0;
    if (!bytes) oz_ids_push(out, id >= 0 ? id : m->unk);
    for (size_t i = 0; i < s.n && bytes; i++) oz_ids_push(out, m->byte_id[(unsigned char)s.p[i]]);
}

static oz_status unigram_encode(oz_ids *out, const void *self, oz_model_work *w, oz_slice word, oz_err *err) {
    const unigram *m = self;
    OZ_TRY(oz_model_work_room((void **)&w->places, &w->cap_places, word.n + 1, sizeof *w->places, "the places of a word", err));
    place *at = w->places;
    OZ_TRY(forward(m, at, word, err));
    size_t next = 0; /* turns the links around: at[i].from becomes where the token that begins at i ends */
    for (size_t end = word.n; end > 0;) {
        size_t begin = (size_t)at[end].from;
        at[end].from = (int64_t)next;
        next = end;
        end = begin;
    }
    at[0].from = (int64_t)next;
    for (size_t begin = 0, end; begin < word.n; begin = end) {
        end = (size_t)at[begin].from;
        if (at[end].id != m->unk) {
            oz_ids_push(out, at[end].id);
            continue;
        }
        while (end < word.n && at[at[end].from].id == m->unk) end = (size_t)at[end].from;
        put_unknown(out, m, (oz_slice){word.p + begin, end - begin});
    }
    return OZ_OK;
}

const oz_model_row oz_model_unigram = {"Unigram", "type|unk_id|vocab|byte_fallback", unigram_load, NULL, unigram_encode, unigram_free};
