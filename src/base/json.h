/* JSON through jansson, with the checks that files from outside need. */
#ifndef OZ_BASE_JSON_H
#define OZ_BASE_JSON_H
#include <jansson.h>
#include "base/err.h"

/* Parses text[0..n). Duplicate keys, NUL bytes in keys, depth over 512 and trailing bytes are errors; a UTF-8 byte order mark is
 * an error that says so. `where` (a path) begins every message. The result is a new reference. */
oz_status oz_json_parse(json_t **out, const char *text, size_t n, const char *where, oz_err *err);
/* A line of a file of such: `where` names it, and the message has the column alone. */
oz_status oz_json_parse_line(json_t **out, const char *text, size_t n, const char *where, oz_err *err);
oz_status oz_json_load(json_t **out, const char *path, size_t limit_bytes, oz_err *err);

/* Typed reads of obj[key] for config values. A missing or null key leaves *out (the default) alone; another type or a value
 * outside [min, max] is an error "PATH.key: must be ..., found ...". */
oz_status oz_json_int(int64_t *out, const json_t *obj, const char *path, const char *key, int64_t min, int64_t max, oz_err *err);
oz_status oz_json_float(double *out, const json_t *obj, const char *path, const char *key, double min, double max, oz_err *err);
oz_status oz_json_bool(int *out, const json_t *obj, const char *path, const char *key, oz_err *err);
oz_status oz_json_str(const char **out, const json_t *obj, const char *path, const char *key, oz_err *err);
/* A string value of bytes that may be no UTF-8 (a path, a message): U+FFFD stands for what is ill-formed. */
json_t *oz_json_text(const char *s);
/* A short rendering of any value for an error message, at most 80 bytes, in a static per-thread buffer. */
const char *oz_json_show(const json_t *v);

#endif
