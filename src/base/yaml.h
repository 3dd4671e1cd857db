/* YAML as PyYAML's safe loader reads it (YAML 1.1), for configuration that people write, through libyaml. */
#ifndef OZ_BASE_YAML_H
#define OZ_BASE_YAML_H
#include <jansson.h>
#include "base/err.h"

/* One document of mappings, sequences and scalars, as JSON values; plain scalars become null, booleans and numbers by the same words. Errors
 * (with line and column): other tags, merge keys, keys that are no strings or come twice, numbers in other notations than decimal, nesting over 64,
 * more than 100,000 values once aliases are followed. `where` (a path) begins every message. The result is a new reference. */
oz_status oz_yaml_parse(json_t **out, const char *text, size_t n, const char *where, oz_err *err);

#endif
