/* Names that differ in their numbers alone, as one line: model.layers.{0-31}.mlp.experts.{0-63}.down_proj. */
#ifndef OZ_BASE_NAMES_H
#define OZ_BASE_NAMES_H
#include <stddef.h>

/* Lines in the order of their first names. A line stands for the names that it spells and no others: {0,2-4} are the numbers 0, 2, 3 and 4, and several
 * of them in a name are all combinations. Numbers are the parts between dots that are digits alone. */
typedef struct oz_name_lines { char **text; size_t n; size_t *line_of; /* [names] */ } oz_name_lines;
/* keys: names share a line only where these are equal; NULL: they always are. A name is there once a key. */
void oz_names_collapse(oz_name_lines *out, const char *const *names, const char *const *keys, size_t n);
void oz_name_lines_deinit(oz_name_lines *l);

#endif
