/* A trie over bytes: all edges in one open-addressed table, (node, byte) to node. */
#include "text/tok_internal.h"
#include <string.h>

enum { MAX_NODES = (1 << 24) - 1 };

/* An edge is parent << 32 | byte << 24 | child; 0 is an empty slot, since no edge leads to the root. */
static uint64_t *slot(const oz_trie *t, uint32_t node, uint8_t byte) {
    uint64_t key = (uint64_t)node << 8 | byte, h = key * t->seed;
    for (size_t i = (size_t)(h ^ h >> 32) & t->mask;; i = (i + 1) & t->mask)
        if (!t->edge[i] || t->edge[i] >> 24 == key) return &t->edge[i];
}

static void grow(oz_trie *t) {
    uint64_t *old = t->edge;
    size_t n = old ? t->mask + 1 : 0;
    t->mask = (n ? 2 * n : 1024) - 1;
    t->edge = oz_alloc_array(t->mask + 1, sizeof *t->edge);
    for (size_t i = 0; i < n; i++)
        if (old[i]) *slot(t, (uint32_t)(old[i] >> 32), (uint8_t)(old[i] >> 24)) = old[i];
    oz_free(old);
}

static uint32_t node_new(oz_trie *t) {
    oz_grow((void **)&t->value, &t->cap, t->n + 1, sizeof *t->value);
    t->value[t->n] = -1;
    return (uint32_t)t->n++;
}

oz_status oz_trie_add(oz_trie *t, oz_slice s, int32_t value, oz_err *err) {
    if (!t->n) {
        t->seed = oz_seed();
        node_new(t);
        grow(t);
    }
    uint32_t node = 0;
    for (size_t i = 0; i < s.n; i++) {
        uint64_t *e = slot(t, node, (uint8_t)s.p[i]);
        if (!*e) {
            OZ_NEED(t->n < MAX_NODES, err, OZ_E_UNSUPPORTED, "model.vocab: more than %d different beginnings of tokens", MAX_NODES);
            if (2 * t->n > t->mask) {
                grow(t);
                e = slot(t, node, (uint8_t)s.p[i]);
            }
            uint32_t to = node_new(t);
            *e = (uint64_t)node << 32 | (uint64_t)(uint8_t)s.p[i] << 24 | to;
        }
        node = (uint32_t)*e & MAX_NODES;
    }
    t->value[node] = value;
    return OZ_OK;
}

uint32_t oz_trie_step(const oz_trie *t, uint32_t node, char byte) { return t->n ? (uint32_t)*slot(t, node, (uint8_t)byte) & MAX_NODES : 0; }

void oz_trie_deinit(oz_trie *t) {
    oz_free(t->edge);
    oz_free(t->value);
    *t = (oz_trie){0};
}
