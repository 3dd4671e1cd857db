/* Hash map from byte strings to int64 (indices, ids). Keys are copied. FNV-free: wyhash-like mix with a per-process seed. */
#ifndef OZ_BASE_MAP_H
#define OZ_BASE_MAP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct oz_map oz_map;
oz_map *oz_map_new(size_t expected);
void oz_map_free(oz_map **m);
/* Returns false and leaves the map alone if the key is there already. */
bool oz_map_add(oz_map *m, const char *key, size_t n, int64_t value);
void oz_map_set(oz_map *m, const char *key, size_t n, int64_t value);
bool oz_map_get(const oz_map *m, const char *key, size_t n, int64_t *value);
size_t oz_map_count(const oz_map *m);

#endif
