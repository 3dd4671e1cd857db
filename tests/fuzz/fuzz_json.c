/* JSON text, and the readers of values that every config goes through. */
#include <stddef.h>
#include <stdint.h>
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    json_t *v;
    oz_err err = {0};
    if (oz_json_parse(&v, (const char *)data, n, "fuzz", &err) != OZ_OK) return 0;
    const char *key;
    json_t *member;
    json_object_foreach(v, key, member) {
        int64_t i;
        double d;
        int b;
        const char *s;
        oz_err e = {0};
        oz_json_int(&i, v, "", key, -5, 5, &e);
        oz_json_float(&d, v, "c", key, -5, 5, &e);
        oz_json_bool(&b, v, "c", key, &e);
        oz_json_str(&s, v, "c", key, &e);
    }
    oz_json_show(v);
    json_decref(v);
    return 0;
}
