/* A big block carries the pointer that calloc gave in the word before it: calloc leaves fresh pages untouched, so that zeroing
 * a large workspace costs neither time nor resident memory until it is used. */
#include "base/mem.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void no_memory(size_t n_bytes) {
    fprintf(stderr, "error: out of memory (%zu bytes)\n", n_bytes);
    exit(1);
}

void *oz_alloc(size_t n_bytes) {
    void *p = calloc(1, n_bytes ? n_bytes : 1);
    if (!p) no_memory(n_bytes);
    return p;
}

void *oz_alloc_array(size_t n, size_t size) {
    size_t n_bytes;
    if (!oz_mul_size(&n_bytes, n, size)) no_memory(SIZE_MAX);
    return oz_alloc(n_bytes);
}

void *oz_realloc(void *p, size_t n_bytes) {
    p = realloc(p, n_bytes ? n_bytes : 1);
    if (!p) no_memory(n_bytes);
    return p;
}

void oz_grow(void **p, size_t *cap, size_t need, size_t size) {
    if (need <= *cap) return;
    size_t n = *cap < 8 ? 8 : *cap, n_bytes;
    while (n < need) n = n > SIZE_MAX / 2 ? need : 2 * n;
    if (!oz_mul_size(&n_bytes, n, size)) no_memory(SIZE_MAX);
    *p = oz_realloc(*p, n_bytes);
    memset((char *)*p + *cap * size, 0, n_bytes - *cap * size);
    *cap = n;
}

char *oz_strdup(const char *s) { return oz_strndup(s, strlen(s)); }

char *oz_strndup(const char *s, size_t n) {
    char *p = oz_alloc(n + 1);
    if (n) memcpy(p, s, n);
    return p;
}

char *oz_asprintf(const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = oz_alloc(n < 0 ? 1 : (size_t)n + 1);
    if (n > 0) vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}

void oz_free(void *p) { free(p); }

enum { BIG_ALIGN = 64 };

oz_status oz_big_new(void **out, size_t n_bytes, const char *what, oz_err *err) {
    *out = NULL;
    char *raw = n_bytes > SIZE_MAX / 2 - 2 * BIG_ALIGN ? NULL : calloc(1, n_bytes + BIG_ALIGN + sizeof(void *));
    OZ_NEED(raw, err, OZ_E_NOMEM, "%s: %.1f MB of memory could not be had", what, (double)n_bytes / 1e6);
    uintptr_t at = ((uintptr_t)raw + sizeof(void *) + BIG_ALIGN - 1) & ~(uintptr_t)(BIG_ALIGN - 1);
    char *p = raw + (at - (uintptr_t)raw);
    memcpy(p - sizeof raw, &raw, sizeof raw);
    *out = p;
    return OZ_OK;
}

void oz_big_free(void *p) {
    if (!p) return;
    char *raw;
    memcpy(&raw, (char *)p - sizeof raw, sizeof raw);
    free(raw);
}

bool oz_mul_size(size_t *out, size_t a, size_t b) { return !__builtin_mul_overflow(a, b, out); }
bool oz_mul_i64(int64_t *out, int64_t a, int64_t b) { return !__builtin_mul_overflow(a, b, out); }

/* ---- arena ---- */

typedef struct chunk {
    struct chunk *next; /* older */
    size_t cap, used;
    _Alignas(16) char data[];
} chunk;

struct oz_arena {
    chunk *head;
    size_t limit, used;
};

enum { CHUNK_BYTES = 16 * 1024 };

oz_arena *oz_arena_new(size_t limit_bytes) {
    oz_arena *a = oz_alloc(sizeof *a);
    a->limit = limit_bytes;
    return a;
}

static void chunks_free(chunk *c) {
    while (c) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
}

void oz_arena_free(oz_arena **a) {
    if (!*a) return;
    chunks_free((*a)->head);
    oz_free(*a);
    *a = NULL;
}

void *oz_arena_alloc(oz_arena *a, size_t n_bytes) {
    if (n_bytes > SIZE_MAX / 4) return NULL;
    size_t n = n_bytes ? (n_bytes + 15) & ~(size_t)15 : 16;
    if (a->limit && n > a->limit - a->used) return NULL;
    chunk *c = a->head;
    if (!c || n > c->cap - c->used) {
        size_t cap = c ? 2 * c->cap : CHUNK_BYTES;
        if (cap > 64 * (size_t)CHUNK_BYTES) cap = 64 * (size_t)CHUNK_BYTES;
        if (cap < n) cap = n;
        c = malloc(sizeof *c + cap);
        if (!c) return NULL;
        *c = (chunk){.next = a->head, .cap = cap};
        a->head = c;
    }
    void *p = c->data + c->used;
    c->used += n;
    a->used += n;
    return memset(p, 0, n);
}

char *oz_arena_strndup(oz_arena *a, const char *s, size_t n) {
    char *p = n < SIZE_MAX ? oz_arena_alloc(a, n + 1) : NULL;
    if (p && n) memcpy(p, s, n);
    return p;
}

/* The newest chunk stays: a request that needs as much as the last one allocates nothing. */
void oz_arena_reset(oz_arena *a) {
    if (a->head) {
        chunks_free(a->head->next);
        a->head->next = NULL;
        a->head->used = 0;
    }
    a->used = 0;
}

size_t oz_arena_used_bytes(const oz_arena *a) { return a->used; }

/* ---- guard of the token loop ---- */

#ifndef OZ_ALLOC_GUARD
void oz_alloc_forbid(bool forbid) {}
#else
static _Thread_local bool forbidden;
void oz_alloc_forbid(bool forbid) { forbidden = forbid; }

static void check(const char *what, size_t n_bytes) {
    if (!forbidden) return;
    forbidden = false; /* the message itself may allocate */
    fprintf(stderr, "bug: %s of %zu bytes inside a section that must not allocate\n", what, n_bytes);
    abort();
}

/* The linker sends every call of our objects here (-Wl,--wrap=malloc ...). */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n) {
    check("malloc", n);
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    check("calloc", n * size);
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    check("realloc", n);
    return __real_realloc(p, n);
}

/* Without this the sanitizer ends the process where malloc would return NULL, and the paths that report it go untested. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
#endif
