/* Memory. Two kinds (ARCHITECTURE.md, errors and memory):
 *  - small host objects of start-up and of commands: oz_alloc and friends end the process with a message on no memory;
 *  - anything sized by a user (weights, KV, workspace, text): oz_big_new returns OZ_E_NOMEM.
 * In the token loop nothing may be allocated: between oz_alloc_forbid(true) and (false) any allocation made by the calling
 * thread's own code aborts in builds with sanitizers (the linker wraps malloc there; what libc allocates for itself is not seen). */
#ifndef OZ_BASE_MEM_H
#define OZ_BASE_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

void *oz_alloc(size_t n_bytes);              /* never NULL; zeroed */
void *oz_alloc_array(size_t n, size_t size); /* overflow checked; zeroed */
void *oz_realloc(void *p, size_t n_bytes);
/* Grows *p (elements of `size` bytes) so that index `need - 1` exists; *cap is updated; doubling. */
void oz_grow(void **p, size_t *cap, size_t need, size_t size);
char *oz_strdup(const char *s);
char *oz_strndup(const char *s, size_t n);
char *oz_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void oz_free(void *p);

/* User-sized, 64-byte aligned, zeroed; freed with oz_big_free. `what` names it in the message. */
oz_status oz_big_new(void **out, size_t n_bytes, const char *what, oz_err *err);
void oz_big_free(void *p);
bool oz_mul_size(size_t *out, size_t a, size_t b); /* false on overflow */
bool oz_mul_i64(int64_t *out, int64_t a, int64_t b);

void oz_alloc_forbid(bool forbid);

typedef struct oz_arena oz_arena; /* bump allocation, freed as a whole; grows by chunks up to `limit_bytes` (0: none) */
oz_arena *oz_arena_new(size_t limit_bytes);
void oz_arena_free(oz_arena **a);
void *oz_arena_alloc(oz_arena *a, size_t n_bytes); /* zeroed, 16-byte aligned; NULL above the limit */
char *oz_arena_strndup(oz_arena *a, const char *s, size_t n);
void oz_arena_reset(oz_arena *a);
size_t oz_arena_used_bytes(const oz_arena *a);

#endif
