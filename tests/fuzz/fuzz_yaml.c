/* YAML text, and the values that become of it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include "base/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    json_t *v;
    oz_err err = {0};
    if (oz_yaml_parse(&v, (const char *)data, n, "fuzz", &err) != OZ_OK) {
        if (!err.msg[0]) __builtin_trap(); /* every refusal has a reason */
        return 0;
    }
    char *text = json_dumps(v, JSON_ENCODE_ANY); /* walks it all: aliases are bounded */
    if (!text) __builtin_trap();
    free(text);
    json_decref(v);
    return 0;
}
