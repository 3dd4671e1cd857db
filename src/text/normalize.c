/* The normalisers of tokenizer.json. */
#include "text/tok_internal.h"

static bool run_form(oz_buf *out, oz_slice in, int form) { return oz_uc_normalize(out, in, (oz_uc_form)form); }
static bool run_lower(oz_buf *out, oz_slice in, int unused) { return oz_uc_lowercase(out, in); }

static oz_status push(oz_norms *z, oz_norm step, oz_jpath path, oz_err *err) {
    OZ_NEED(z->n < OZ_TOK_MAX_STEPS, err, OZ_E_UNSUPPORTED, "%s: more than %d normalizers", path.s, OZ_TOK_MAX_STEPS);
    z->step[z->n++] = step;
    return OZ_OK;
}

#define PARSE(name, run, form) \
    static oz_status name(void *self, const json_t *obj, oz_jpath path, oz_err *err) { return push(self, (oz_norm){run, form}, path, err); }
PARSE(parse_nfc, run_form, OZ_UC_NFC)
PARSE(parse_nfd, run_form, OZ_UC_NFD)
PARSE(parse_nfkc, run_form, OZ_UC_NFKC)
PARSE(parse_nfkd, run_form, OZ_UC_NFKD)
PARSE(parse_lower, run_lower, 0)

static const oz_stage_row rows[] = {
    {"NFC", "type", NULL, parse_nfc},
    {"NFD", "type", NULL, parse_nfd},
    {"NFKC", "type", NULL, parse_nfkc},
    {"NFKD", "type", NULL, parse_nfkd},
    {"Lowercase", "type", NULL, parse_lower},
    {"Sequence", "type|normalizers", "normalizers", NULL},
    {0},
};

oz_status oz_norms_parse(oz_norms *z, const json_t *v, oz_err *err) { return oz_stage_parse(z, rows, v, (oz_jpath){"normalizer"}, err); }

oz_slice oz_norms_run(const oz_norms *z, oz_slice s, oz_buf *out, oz_buf *tmp) {
    for (size_t i = 0; i < z->n; i++) {
        oz_buf_clear(tmp);
        if (!z->step[i].run(tmp, s, z->step[i].form)) continue;
        oz_buf swap = *out;
        *out = *tmp;
        *tmp = swap;
        s = (oz_slice){out->data, out->len};
    }
    return s;
}
