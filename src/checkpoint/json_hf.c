/* JSON as the hub's Python writes it: json.dumps(v, indent=2) and a newline. Non-ASCII is escaped, as by default there; floats are
 * spelled as repr spells them, the shortest decimal that reads back as the same number: 1e-05, 500000.0. So a config.json that we
 * write and one that transformers writes from the same values are equal byte by byte. */
#include "base/json.h"
#include "checkpoint/internal.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_string(oz_buf *out, const char *s, size_t n) {
    static const char SHORT[][2] = {{'"', '"'}, {'\\', '\\'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}, {'\f', 'f'}, {'\b', 'b'}};
    oz_buf_putc(out, '"');
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += oz_utf8_next(s + i, n - i, &cp, NULL);
        size_t k = 0;
        while (k < sizeof SHORT / sizeof *SHORT && (uint32_t)SHORT[k][0] != cp) k++;
        if (k < sizeof SHORT / sizeof *SHORT)
            oz_buf_printf(out, "\\%c", SHORT[k][1]);
        else if (cp >= ' ' && cp <= '~')
            oz_buf_putc(out, (char)cp);
        else if (cp < 0x10000)
            oz_buf_printf(out, "\\u%04" PRIx32, cp);
        else
            oz_buf_printf(out, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + ((cp - 0x10000) >> 10), 0xdc00 + ((cp - 0x10000) & 0x3ff));
    }
    oz_buf_putc(out, '"');
}

/* The next decimal of the same length away from zero; text is the form of %e. */
static void decimal_up(char *text) {
    char *p = strchr(text, 'e') - 1;
    while (p > text && (*p == '9' || *p == '.')) {
        if (*p == '9') *p = '0';
        p--;
    }
    if (*p >= '0' && *p < '9') ++*p;
}

/* The shortest %.*e that reads back as v. The nearest decimal of a length is not always it: next to a power of two the doubles below
 * are twice as dense, so the nearest may miss where the next one up hits. */
static void shortest(char text[static 40], double v) {
    for (int digits = 0; digits <= 16; digits++) {
        snprintf(text, 40, "%.*e", digits, v);
        if (strtod(text, NULL) == v) return;
        decimal_up(text);
        if (strtod(text, NULL) == v) return;
    }
}

/* repr switches to an exponent below 1e-4 and from 1e16 on. Between them powers of two are exact, so that %f gives the same digits. */
static void put_real(oz_buf *out, double v) {
    char text[40];
    shortest(text, v);
    char *e = strchr(text, 'e');
    int exponent = atoi(e + 1), digits = (int)(e - text) - (text[0] == '-');
    int decimals = (digits > 1 ? digits - 2 : 0) - exponent; /* digits after the point, written out in full */
    if (exponent < -4 || exponent >= 16)
        oz_buf_printf(out, "%.*se%c%02d", (int)(e - text), text, exponent < 0 ? '-' : '+', abs(exponent));
    else
        oz_buf_printf(out, "%.*f", decimals > 1 ? decimals : 1, v);
}

static int key_compare(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static void put_line(oz_buf *out, int depth) {
    oz_buf_putc(out, '\n');
    for (int i = 0; i < depth; i++) oz_buf_puts(out, "  ");
}

static void put_value(oz_buf *out, const json_t *v, bool sort_keys, int depth);

static void put_object(oz_buf *out, const json_t *v, bool sort_keys, int depth) {
    size_t n = json_object_size(v), i = 0;
    const char **keys = oz_alloc_array(n, sizeof *keys);
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)v, key, member) keys[i++] = key;
    if (sort_keys) qsort(keys, n, sizeof *keys, key_compare);
    oz_buf_putc(out, '{');
    for (i = 0; i < n; i++) {
        if (i) oz_buf_putc(out, ',');
        put_line(out, depth + 1);
        put_string(out, keys[i], strlen(keys[i]));
        oz_buf_puts(out, ": ");
        put_value(out, json_object_get(v, keys[i]), sort_keys, depth + 1);
    }
    put_line(out, depth);
    oz_buf_putc(out, '}');
    oz_free(keys);
}

static void put_array(oz_buf *out, const json_t *v, bool sort_keys, int depth) {
    oz_buf_putc(out, '[');
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (i) oz_buf_putc(out, ',');
        put_line(out, depth + 1);
        put_value(out, json_array_get(v, i), sort_keys, depth + 1);
    }
    put_line(out, depth);
    oz_buf_putc(out, ']');
}

static void put_value(oz_buf *out, const json_t *v, bool sort_keys, int depth) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        if (json_object_size(v))
            put_object(out, v, sort_keys, depth);
        else
            oz_buf_puts(out, "{}");
        break;
    case JSON_ARRAY:
        if (json_array_size(v))
            put_array(out, v, sort_keys, depth);
        else
            oz_buf_puts(out, "[]");
        break;
    case JSON_STRING:
        put_string(out, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        oz_buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL:
        put_real(out, json_real_value(v));
        break;
    case JSON_TRUE:
        oz_buf_puts(out, "true");
        break;
    case JSON_FALSE:
        oz_buf_puts(out, "false");
        break;
    case JSON_NULL:
        oz_buf_puts(out, "null");
        break;
    }
}

void oz_json_write_hf(oz_buf *out, const json_t *v, bool sort_keys) {
    put_value(out, v, sort_keys, 0);
    oz_buf_putc(out, '\n');
}

oz_status oz_json_save(const json_t *v, const char *dir, const char *name, bool sort_keys, oz_err *err) {
    oz_buf text = {0};
    oz_json_write_hf(&text, v, sort_keys);
    char *path = oz_path_join(dir, name);
    oz_status st = oz_file_write_atomic(path, text.data, text.len, err);
    oz_free(path);
    oz_buf_deinit(&text);
    return st;
}

oz_status oz_config_write(const json_t *config, const char *dir, oz_err *err) {
    return oz_json_save(config, dir, "config.json", true, err);
}
