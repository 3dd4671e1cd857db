/* A name is a shape ("a.#.b.#") and its numbers. Names of a shape begin as a block each; from the last number to the first, blocks that differ in that
 * number alone become one, with the set of them in its place. So what is left is exact: blocks are products of sets, and disjoint. */
#include "base/names.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"

enum { MAX_NUMBERS = 4, MAX_DIGITS = 9 };
static const char MARK = '\1', END = '\2'; /* a number's place in a shape; what ends a set */

typedef struct block {
    int64_t shape;
    int64_t numbers[MAX_NUMBERS]; /* 0 where joined, and where a name has none */
    int64_t next;                 /* the one that is joined next */
    char *sets;                   /* of those that were, in the order of the name; owned */
    size_t first;                 /* the least index of its names */
    struct block *up;             /* that it became a part of */
} block;

static bool is_number(const char *p, size_t n) { return n > 0 && n <= MAX_DIGITS && strspn(p, "0123456789") >= n && (*p != '0' || n == 1); }

/* The numbers of a name; what is around them to `shape`. */
static void numbers_of(int64_t out[MAX_NUMBERS], oz_buf *shape, const char *name) {
    int k = 0;
    for (const char *p = name; *p;) {
        const size_t n = strcspn(p, ".");
        if (k < MAX_NUMBERS && is_number(p, n)) {
            out[k++] = atoll(p);
            oz_buf_putc(shape, MARK);
            p += n;
        } else
            for (const char *end = p + n; p < end; p++) oz_buf_putc(shape, *p == MARK || *p == END ? '?' : *p);
        if (*p) oz_buf_putc(shape, *p++);
    }
}

static int block_compare(const void *pa, const void *pb) {
    const block *a = *(block *const *)pa, *b = *(block *const *)pb;
    if (a->shape != b->shape) return a->shape < b->shape ? -1 : 1;
    for (int i = 0; i < MAX_NUMBERS; i++)
        if (a->numbers[i] != b->numbers[i]) return a->numbers[i] < b->numbers[i] ? -1 : 1;
    const int by_sets = strcmp(a->sets, b->sets);
    return by_sets ? by_sets : a->next < b->next ? -1 : a->next > b->next;
}

static bool same_but_for_next(const block *a, const block *b) {
    return a->shape == b->shape && memcmp(a->numbers, b->numbers, sizeof a->numbers) == 0 && strcmp(a->sets, b->sets) == 0;
}

/* "7", "{0-2,5}": the numbers of n blocks, ascending. */
static void set_print(oz_buf *out, block *const *b, size_t n) {
    if (n > 1) oz_buf_putc(out, '{');
    for (size_t i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && b[k]->next == b[k - 1]->next + 1; k++) {}
        oz_buf_printf(out, "%s%lld", i ? "," : "", (long long)b[i]->next);
        if (k > i + 1) oz_buf_printf(out, "-%lld", (long long)b[k - 1]->next);
    }
    if (n > 1) oz_buf_putc(out, '}');
}

/* Joins those of n blocks that differ in numbers[level] alone; all then begin there. Returns how many are left in b, new ones. */
static size_t join(block **b, size_t n, int level) {
    for (size_t i = 0; i < n; i++) b[i]->next = b[i]->numbers[level], b[i]->numbers[level] = 0;
    qsort(b, n, sizeof *b, block_compare);
    size_t n_left = 0;
    for (size_t i = 0, k; i < n; i = k) {
        block *up = oz_alloc(sizeof *up);
        *up = *b[i];
        for (k = i; k < n && same_but_for_next(b[i], b[k]); k++) {
            b[k]->up = up;
            if (b[k]->first < up->first) up->first = b[k]->first;
        }
        oz_buf sets = {0};
        set_print(&sets, b + i, k - i);
        oz_buf_printf(&sets, "%c%s", END, b[i]->sets);
        up->sets = sets.data;
        b[n_left++] = up;
    }
    return n_left;
}

static int first_compare(const void *pa, const void *pb) {
    const size_t a = (*(block *const *)pa)->first, b = (*(block *const *)pb)->first;
    return a < b ? -1 : a > b;
}

static char *line_text(const char *shape, const char *sets) {
    oz_buf out = {0};
    for (const char *p = shape; *p && *p != END; p++) {
        if (*p != MARK) {
            oz_buf_putc(&out, *p);
            continue;
        }
        const size_t n = strcspn(sets, (char[]){END, 0});
        oz_buf_append(&out, sets, n);
        sets += n + 1;
    }
    oz_buf safe = {0};
    oz_buf_put_safe(&safe, out.data ? out.data : "", out.len);
    oz_buf_deinit(&out);
    return safe.data ? safe.data : oz_strdup("");
}

static void blocks_new(block **b, char **shapes, const char *const *names, const char *const *keys, size_t n) {
    oz_map *known = oz_map_new(64);
    for (size_t i = 0; i < n; i++) {
        oz_buf shape = {0};
        b[i] = oz_alloc(sizeof *b[i]);
        numbers_of(b[i]->numbers, &shape, names[i]);
        oz_buf_printf(&shape, "%c%s", END, keys ? keys[i] : "");
        const int64_t next = (int64_t)oz_map_count(known);
        if (oz_map_add(known, shape.data, shape.len, next)) shapes[next] = oz_strdup(shape.data);
        oz_map_get(known, shape.data, shape.len, &b[i]->shape);
        b[i]->sets = oz_strdup(""), b[i]->first = i;
        oz_buf_deinit(&shape);
    }
    oz_map_free(&known);
}

static void block_free(block *b) {
    oz_free(b->sets);
    oz_free(b);
}

void oz_names_collapse(oz_name_lines *out, const char *const *names, const char *const *keys, size_t n) {
    block **b = oz_alloc_array(n + 1, sizeof *b), **of = oz_alloc_array(n + 1, sizeof *of);
    char **shapes = oz_alloc_array(n + 1, sizeof *shapes);
    blocks_new(b, shapes, names, keys, n);
    memcpy(of, b, n * sizeof *b);
    size_t n_lines = n;
    for (int level = MAX_NUMBERS - 1; level >= 0; level--) {
        block **old = oz_alloc_array(n_lines + 1, sizeof *old);
        const size_t n_old = n_lines;
        memcpy(old, b, n_old * sizeof *b);
        n_lines = join(b, n_lines, level);
        for (size_t i = 0; i < n; i++) of[i] = of[i]->up;
        for (size_t i = 0; i < n_old; i++) block_free(old[i]);
        oz_free(old);
    }
    qsort(b, n_lines, sizeof *b, first_compare);
    *out = (oz_name_lines){oz_alloc_array(n_lines + 1, sizeof(char *)), n_lines, oz_alloc_array(n + 1, sizeof(size_t))};
    for (size_t i = 0; i < n_lines; i++) out->text[i] = line_text(shapes[b[i]->shape], b[i]->sets), b[i]->next = (int64_t)i;
    for (size_t i = 0; i < n; i++) out->line_of[i] = (size_t)of[i]->next;
    for (size_t i = 0; i < n_lines; i++) block_free(b[i]);
    for (size_t i = 0; i < n; i++) oz_free(shapes[i]);
    oz_free(shapes);
    oz_free(of);
    oz_free(b);
}

void oz_name_lines_deinit(oz_name_lines *l) {
    for (size_t i = 0; i < l->n; i++) oz_free(l->text[i]);
    oz_free(l->text);
    oz_free(l->line_of);
    *l = (oz_name_lines){0};
}
