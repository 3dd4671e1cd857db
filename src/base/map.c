/* Open addressing with linear probing, at most 3/4 full; keys lie one after another in one block. The hash is seeded from the
 * system, so that a file cannot be made whose keys all collide. */
#include "base/map.h"
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include "base/clock.h"
#include "base/mem.h"

typedef struct slot {
    uint64_t hash; /* 0: empty */
    size_t key, n; /* in keys */
    int64_t value;
} slot;

struct oz_map {
    slot *slots;
    size_t mask, count;
    char *keys;
    size_t n_keys, cap_keys;
};

static uint64_t seed;
static pthread_once_t seed_once = PTHREAD_ONCE_INIT;

static void seed_make(void) {
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
        oz_rng r;
        oz_rng_init(&r, (uint64_t)oz_clock_us() ^ (uint64_t)(uintptr_t)&r);
        seed = oz_rng_next(&r);
    }
}

static uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t m = (__uint128_t)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint64_t hash(const char *p, size_t n) {
    uint64_t h = seed ^ mix(n + 1, 0x9e3779b97f4a7c15u), w;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = mix(h ^ w, 0xd6e8feb86659fd93u) + seed;
    }
    w = 0;
    if (n) memcpy(&w, p, n);
    h = mix(h ^ w, 0xa0761d6478bd642fu);
    return h ? h : 1;
}

oz_map *oz_map_new(size_t expected) {
    pthread_once(&seed_once, seed_make);
    oz_map *m = oz_alloc(sizeof *m);
    size_t n = 16;
    while (n / 4 * 3 < expected) n *= 2;
    m->slots = oz_alloc_array(n, sizeof *m->slots);
    m->mask = n - 1;
    return m;
}

void oz_map_free(oz_map **m) {
    if (!*m) return;
    oz_free((*m)->slots);
    oz_free((*m)->keys);
    oz_free(*m);
    *m = NULL;
}

static slot *find(const oz_map *m, const char *key, size_t n, uint64_t h) {
    for (size_t i = h & m->mask;; i = (i + 1) & m->mask) {
        slot *s = &m->slots[i];
        if (!s->hash || (s->hash == h && s->n == n && (n == 0 || memcmp(m->keys + s->key, key, n) == 0))) return s;
    }
}

static void grow(oz_map *m) {
    slot *old = m->slots;
    size_t n_old = m->mask + 1;
    m->slots = oz_alloc_array(2 * n_old, sizeof *m->slots);
    m->mask = 2 * n_old - 1;
    for (size_t j = 0; j < n_old; j++) {
        if (!old[j].hash) continue;
        size_t i = old[j].hash & m->mask;
        while (m->slots[i].hash) i = (i + 1) & m->mask;
        m->slots[i] = old[j];
    }
    oz_free(old);
}

/* The slot of key, made if it was not there. */
static slot *put(oz_map *m, const char *key, size_t n, int64_t value, bool *is_new) {
    if (m->count >= (m->mask + 1) / 4 * 3) grow(m);
    uint64_t h = hash(key, n);
    slot *s = find(m, key, n, h);
    *is_new = !s->hash;
    if (*is_new) {
        oz_grow((void **)&m->keys, &m->cap_keys, m->n_keys + n, 1);
        if (n) memcpy(m->keys + m->n_keys, key, n);
        *s = (slot){h, m->n_keys, n, value};
        m->n_keys += n;
        m->count++;
    }
    return s;
}

bool oz_map_add(oz_map *m, const char *key, size_t n, int64_t value) {
    bool is_new;
    put(m, key, n, value, &is_new);
    return is_new;
}

void oz_map_set(oz_map *m, const char *key, size_t n, int64_t value) {
    bool is_new;
    put(m, key, n, value, &is_new)->value = value;
}

bool oz_map_get(const oz_map *m, const char *key, size_t n, int64_t *value) {
    const slot *s = find(m, key, n, hash(key, n));
    if (s->hash && value) *value = s->value;
    return s->hash != 0;
}

size_t oz_map_count(const oz_map *m) { return m->count; }
