/* Memory of packed weights: slabs that ask for huge pages.
 *
 * A model's weights are hundreds of pieces of about a megabyte. Each on its own lies on pages of 4 KB, and a product that streams it waits for
 * address translation as much as for memory: one token times an int8 matrix runs at 16 GB/s a core so, and at 23 GB/s on pages of 2 MB. A
 * slab hands out pieces from front to back and is given back when the last of them is; what has not been touched costs nothing. So slabs are far
 * larger than what they will hold: each one ends in a huge page that is filled in part, which of slabs of 32 MB was 5 %. Memory nodes have lists of
 * their own, since a page lies on one. */
#include <sys/mman.h>
#include "base/mem.h"
#include "kernel/cpu.h"

enum { HUGE_PAGE = 2 << 20, ALIGN = 64 };
#define SLAB_BYTES ((size_t)16 << 30) /* of addresses; where so many are not to be had, fewer */

struct oz_slab {
    oz_slab *next;
    uint8_t *mem;
    size_t n_bytes, n_used;
    int64_t n_pieces;
};

/* Huge pages lie on their own boundaries: map one more and return both ends. */
static uint8_t *map_aligned(size_t n_bytes) {
    uint8_t *raw = mmap(NULL, n_bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    size_t head = -(uintptr_t)raw % HUGE_PAGE;
    if (head > 0) munmap(raw, head);
    munmap(raw + head + n_bytes, HUGE_PAGE - head);
    madvise(raw + head, n_bytes, MADV_HUGEPAGE); /* a system without them serves small ones */
    return raw + head;
}

/* For pieces of n bytes and what follows them. */
static uint8_t *map_slab(size_t *n_map, size_t n) {
    const size_t least = (n + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
    for (*n_map = SLAB_BYTES; *n_map > least; *n_map /= 2) {
        uint8_t *mem = map_aligned(*n_map);
        if (mem) return mem;
    }
    *n_map = least;
    return map_aligned(least);
}

oz_status oz_slab_new(void **out, oz_slab **slabs, size_t n_bytes, const char *what, oz_err *err) {
    oz_slab *s = *slabs;
    size_t n = (n_bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!s || s->n_bytes - s->n_used < n) {
        size_t n_map = 0;
        uint8_t *mem = n_bytes > SIZE_MAX / 2 ? NULL : map_slab(&n_map, n);
        OZ_NEED(mem, err, OZ_E_NOMEM, "%s: %.1f MB of memory could not be had", what, (double)n_bytes / 1e6);
        s = oz_alloc(sizeof *s);
        *s = (oz_slab){*slabs, mem, n_map, 0, 0};
        *slabs = s;
    }
    *out = s->mem + s->n_used;
    s->n_used += n;
    s->n_pieces++;
    return OZ_OK;
}

bool oz_slab_free(oz_slab **slabs, void *piece) {
    uint8_t *p = piece;
    for (oz_slab **at = slabs, *s; (s = *at) != NULL; at = &s->next) {
        if (p < s->mem || p >= s->mem + s->n_bytes) continue;
        if (--s->n_pieces == 0) {
            munmap(s->mem, s->n_bytes);
            *at = s->next;
            oz_free(s);
        }
        return true;
    }
    return false;
}
