/* Merges of a vocabulary that has none: SentencePiece's BPE and tiktoken join any two neighbours whose join is a token, the best token first. As a
 * list of pairs that is every split of every token into two tokens, ordered by the token. Among splits of one token the order is that of
 * transformers' converter: where two of them overlap in a text, the original takes the one on the left, and a list cannot say so. */
#include "checkpoint/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct merge { float score; int32_t id, left, right; uint32_t n_left, n_right; } merge; /* n_: characters */

static uint32_t n_chars(oz_slice s) {
    uint32_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += (s.p[i] & 0xC0) != 0x80;
    return n;
}

#define ORDER(a, b) ((a) < (b) ? -1 : (a) > (b) ? 1 : 0)

static int by_score(const void *pa, const void *pb) {
    const merge *a = pa, *b = pb;
    int d = ORDER(b->score, a->score);
    if (!d) d = ORDER(b->n_left, a->n_left);
    if (!d) d = ORDER(b->n_right, a->n_right);
    if (!d) d = ORDER(a->id, b->id);
    return d;
}

static int by_id(const void *pa, const void *pb) {
    const merge *a = pa, *b = pb;
    int d = ORDER(a->id, b->id);
    if (!d) d = ORDER(a->left, b->left);
    if (!d) d = ORDER(a->right, b->right);
    return d;
}

/* The splits of one token. */
static oz_status splits_add(merge **list, size_t *n, size_t *cap, const oz_tokens *t, const oz_map *ids, size_t id, oz_err *err) {
    const oz_slice s = t->text[id];
    OZ_NEED(s.n <= OZ_TOKEN_MAX_BYTES, err, OZ_E_UNSUPPORTED, "%s: token %zu: longer than %d bytes", t->where, id, OZ_TOKEN_MAX_BYTES);
    for (size_t k = 1; k < s.n; k++) {
        int64_t left, right;
        if ((s.p[k] & 0xC0) == 0x80) continue; /* inside a character */
        if (!oz_map_get(ids, s.p, k, &left) || !oz_map_get(ids, s.p + k, s.n - k, &right)) continue;
        OZ_NEED(*n < OZ_MERGES_MAX, err, OZ_E_UNSUPPORTED, "%s: more than %d merges", t->where, OZ_MERGES_MAX);
        oz_grow((void **)list, cap, *n + 1, sizeof **list);
        (*list)[(*n)++] = (merge){t->score ? t->score[id] : 0, (int32_t)id, (int32_t)left, (int32_t)right, n_chars((oz_slice){s.p, k}), n_chars((oz_slice){s.p + k, s.n - k})};
    }
    return OZ_OK;
}

oz_status oz_tokens_merges(json_t **out, const oz_tokens *t, oz_err *err) {
    merge *list = NULL;
    size_t n = 0, cap = 0;
    oz_map *ids = oz_map_new(t->n_model);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < t->n_model; i++)
        if (t->type[i] == OZ_TOKEN_NORMAL) oz_map_add(ids, t->text[i].p, t->text[i].n, (int64_t)i);
    for (size_t i = 0; i < t->n_model && st == OZ_OK; i++)
        if (t->type[i] == OZ_TOKEN_NORMAL) st = splits_add(&list, &n, &cap, t, ids, i, err);
    if (n) qsort(list, n, sizeof *list, t->score ? by_score : by_id);
    *out = json_array();
    for (size_t i = 0; i < n && st == OZ_OK; i++) {
        json_t *pair = json_array();
        json_array_append_new(pair, oz_tokens_text(t, list[i].left));
        json_array_append_new(pair, oz_tokens_text(t, list[i].right));
        json_array_append_new(*out, pair);
    }
    oz_free(list);
    oz_map_free(&ids);
    return st;
}
