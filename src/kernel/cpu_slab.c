/* Memory of packed weights: slabs that ask for huge pages.
 *
 * A model's weights are hundreds of pieces of about a megabyte. Each on its own lies on pages of 4 KB, and a product that streams it waits for
 * address translation as much as for memory: one token times an int8 matrix runs at 16 GB/s a core so, and at 23 GB/s on pages of 2 MB. A
 * slab hands out pieces from front to back; what has not been touched costs nothing. So slabs are far larger than what they will hold: each one
 * ends in a huge page that is filled in part, which of slabs of 32 MB was 5 %. Memory nodes have lists of their own, since a page lies on one.
 * What is behind the last piece in use is given back: models that come and go beside one that stays (single layers, when modules are measured) take
 * the same memory each time. A slab goes with its last piece. */
#include <string.h>
#include <sys/mman.h>
#include "base/mem.h"
#include "kernel/cpu.h"

enum { HUGE_PAGE = 2 << 20, ALIGN = 64 };
#define SLAB_BYTES ((size_t)16 << 30) /* of addresses; where so many are not to be had, fewer */

typedef struct piece { size_t at; bool is_free; } piece;

struct oz_slab {
    oz_slab *next;
    uint8_t *mem;
    size_t n_bytes, n_used;
    piece *pieces; /* in their order */
    size_t n_pieces, cap;
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
        *s = (oz_slab){.next = *slabs, .mem = mem, .n_bytes = n_map};
        *slabs = s;
    }
    *out = s->mem + s->n_used;
    oz_grow((void **)&s->pieces, &s->cap, s->n_pieces + 1, sizeof *s->pieces);
    s->pieces[s->n_pieces++] = (piece){s->n_used, false};
    s->n_used += n;
    return OZ_OK;
}

static piece *piece_at(const oz_slab *s, size_t at) {
    size_t first = 0, n = s->n_pieces;
    while (n > 1) {
        const size_t half = n / 2;
        if (s->pieces[first + half].at <= at) first += half, n -= half;
        else n = half;
    }
    return &s->pieces[first];
}

/* What is used ends at `end`: the rest of its page is zeroed, and pages behind it are as if untouched. */
static void give_back(oz_slab *s, size_t end) {
    const size_t page = (end + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1), rest = page < s->n_used ? page : s->n_used;
    memset(s->mem + end, 0, rest - end);
    if (page < s->n_used && madvise(s->mem + page, s->n_used - page, MADV_DONTNEED) != 0) memset(s->mem + page, 0, s->n_used - page);
    s->n_used = end;
}

bool oz_slab_free(oz_slab **slabs, void *mem) {
    uint8_t *p = mem;
    for (oz_slab **at = slabs, *s; (s = *at) != NULL; at = &s->next) {
        if (p < s->mem || p >= s->mem + s->n_bytes) continue;
        piece_at(s, (size_t)(p - s->mem))->is_free = true;
        size_t end = s->n_used;
        for (; s->n_pieces > 0 && s->pieces[s->n_pieces - 1].is_free; s->n_pieces--) end = s->pieces[s->n_pieces - 1].at;
        if (s->n_pieces > 0) {
            if (end < s->n_used) give_back(s, end);
            return true;
        }
        munmap(s->mem, s->n_bytes);
        *at = s->next;
        oz_free(s->pieces);
        oz_free(s);
        return true;
    }
    return false;
}
