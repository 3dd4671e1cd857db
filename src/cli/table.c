/* Tables of modules on the terminal, out of the JSON that holds each of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "cli/cli.h"
#include "model/model.h"

static const char *str_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static long long int_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static const char *same_or_mixed(const char *have, const char *next) { return have && next && strcmp(have, next) != 0 ? "mixed" : next; }

/* "q4_k, q6_k": each name once, in the order of the modules. */
static void list_name(oz_buf *list, const char *name) {
    for (const char *p = list->len ? list->data : ""; *p; p += strspn(p, ", ")) {
        const size_t n = strcspn(p, ",");
        if (n == strlen(name) && memcmp(p, name, n) == 0) return;
        p += n;
    }
    oz_buf_printf(list, "%s%s", list->len ? ", " : "", name);
}

void oz_cli_roles_print(const json_t *modules) {
    const bool stored = json_object_get(json_array_get(modules, 0), "codec") != NULL;
    printf("%-13s %8s %14s  %s\n", "role", "modules", "bytes", stored ? "scheme         stored as" : "scheme");
    for (int r = 0; r < OZ_ROLE_COUNT; r++) {
        size_t i;
        long long n = 0, bytes = 0;
        const json_t *m;
        const char *scheme = NULL;
        oz_buf codecs = {0};
        json_array_foreach(modules, i, m) {
            if (strcmp(str_of(m, "role"), oz_role_name((oz_role)r)) != 0) continue;
            n++, bytes += int_of(m, "bytes");
            scheme = same_or_mixed(scheme, str_of(m, "scheme"));
            if (stored) list_name(&codecs, str_of(m, "codec"));
        }
        if (n) printf("%-13s %8lld %14lld  %-*s%s\n", oz_role_name((oz_role)r), n, bytes, stored ? 15 : 0, scheme, codecs.len ? codecs.data : "");
        oz_buf_deinit(&codecs);
    }
}

/* ---- kernels: modules that differ in their numbers alone share a line ---- */

enum { MAX_NUMBERS = 4 };
typedef struct line { const json_t *first; long long n, bytes, low[MAX_NUMBERS], high[MAX_NUMBERS]; } line;

static bool is_number(const char *part, size_t n) { return n > 0 && strspn(part, "0123456789") >= n; }

/* The numbers among the parts of a.3.b.12.c; they and what is between them to `shape`. */
static int numbers_of(long long out[MAX_NUMBERS], oz_buf *shape, const char *name) {
    int k = 0;
    for (const char *p = name; *p;) {
        const size_t n = strcspn(p, ".");
        if (k < MAX_NUMBERS && is_number(p, n)) {
            out[k++] = atoll(p);
            oz_buf_putc(shape, '#');
        } else oz_buf_append(shape, p, n);
        p += n;
        if (*p) oz_buf_putc(shape, *p++);
    }
    return k;
}

static void line_print(const line *l, const char *shape) {
    oz_buf name = {0};
    int k = 0;
    for (const char *p = shape; *p != '|'; p++) {
        if (*p != '#') oz_buf_putc(&name, *p);
        else if (l->low[k] == l->high[k]) oz_buf_printf(&name, "%lld", l->low[k]), k++;
        else oz_buf_printf(&name, "[%lld-%lld]", l->low[k], l->high[k]), k++;
    }
    printf("%-50s %6lld  %-12s %-24s %14lld\n", name.data, l->n, str_of(l->first, "scheme"), str_of(l->first, "kernel"), l->bytes);
    oz_buf_deinit(&name);
}

void oz_cli_kernels_print(const json_t *kernels) {
    const size_t n = json_array_size(kernels);
    line *lines = oz_alloc_array(n + 1, sizeof *lines);
    char **shapes = oz_alloc_array(n + 1, sizeof *shapes);
    size_t i, n_lines = 0;
    const json_t *x;
    json_array_foreach(kernels, i, x) {
        oz_buf shape = {0};
        long long numbers[MAX_NUMBERS];
        const int k = numbers_of(numbers, &shape, str_of(x, "name"));
        oz_buf_printf(&shape, "|%s|%s", str_of(x, "scheme"), str_of(x, "kernel"));
        size_t at = 0;
        while (at < n_lines && strcmp(shapes[at], shape.data) != 0) at++;
        line *l = &lines[at];
        if (at == n_lines) {
            shapes[n_lines++] = oz_strdup(shape.data);
            *l = (line){.first = x};
            for (int j = 0; j < k; j++) l->low[j] = l->high[j] = numbers[j];
        }
        for (int j = 0; j < k; j++) {
            if (numbers[j] < l->low[j]) l->low[j] = numbers[j];
            if (numbers[j] > l->high[j]) l->high[j] = numbers[j];
        }
        l->n++, l->bytes += int_of(x, "packed_bytes");
        oz_buf_deinit(&shape);
    }
    if (n) printf("%-50s %6s  %-12s %-24s %14s\n", "module", "count", "scheme", "kernel", "packed bytes");
    for (i = 0; i < n_lines; i++) {
        line_print(&lines[i], shapes[i]);
        oz_free(shapes[i]);
    }
    oz_free(shapes);
    oz_free(lines);
}
