/* What the hub says of a repository: the choice of files. Whatever is chosen has a name that stays inside, a hash and a size. */
#include "base/json.h"
#include "checkpoint/internal.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char *const all[] = {"*"};
    oz_err err = {0};
    json_t *info;
    if (oz_json_parse(&info, (const char *)data, n, "fuzz", &err) != OZ_OK) return 0;
    for (size_t n_include = 0; n_include < 2; n_include++) {
        oz_pull p = {0};
        err = (oz_err){0};
        const oz_status st = oz_hub_choose(&p, info, &(oz_pull_cfg){.repo = "a/b", .include = all, .n_include = n_include}, &err);
        if ((st == OZ_OK) != !err.msg[0] || (st == OZ_OK && !oz_is_hex(p.commit, 40))) __builtin_trap();
        for (size_t i = 0; i < p.n_files; i++) {
            const oz_pull_file *f = &p.files[i];
            if (!oz_name_is_inside(f->name) || f->n_bytes < 0 || !(oz_is_hex(f->hash, 40) || oz_is_hex(f->hash, 64))) __builtin_trap();
            if (!n_include && strchr(f->name, '/')) __builtin_trap();
        }
        oz_pull_deinit(&p);
    }
    json_decref(info);
    return 0;
}
