/* The normalisers of tokenizer.json. Each type is a row that pushes one or more steps; a step appends the changed text, or says that
 * nothing changed. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

#define AS_ALONE SIZE_MAX /* what came from the first character of a text is now what a step makes of that part alone */

enum { MAX_GROWTH = 64, MIN_LIMIT = 1 << 20 }; /* a list of replacements must not make a text grow without bound */

/* ---- steps */

static oz_status run_form(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    *changed = oz_uc_normalize(out, in, (oz_uc_form)self->form);
    return OZ_OK;
}

static oz_status run_lower(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    *changed = oz_uc_lowercase(out, in);
    return OZ_OK;
}

static oz_status run_replace(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    size_t head, n = self->replace.content.len;
    OZ_TRY(oz_replace_run(out, changed, &head, &self->replace, in, w->limit, &w->match, err));
    if (head == 0)
        w->moved = n + w->zero; /* put in front of the first character */
    else if (head != SIZE_MAX && head > w->zero)
        w->moved = 0; /* it counts as coming from the last character that it replaces */
    return OZ_OK;
}

static oz_status run_prepend(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    if (!in.n || !self->replace.content.len) return OZ_OK;
    oz_buf_append(out, self->replace.content.data, self->replace.content.len);
    oz_buf_append(out, in.p, in.n);
    w->moved = w->zero + self->replace.content.len;
    *changed = true;
    return OZ_OK;
}

static oz_status run_map(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    w->moved = w->zero;
    *changed = oz_charsmap_run(out, self->map, in, &w->moved);
    return OZ_OK;
}

static oz_status run_bytes(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    for (size_t i = 0; i < in.n; i++) oz_buf_put_utf8(out, oz_byte_char((uint8_t)in.p[i]));
    *changed = in.n > 0;
    return OZ_OK;
}

enum { LEFT = 1, RIGHT = 2 };

static oz_status run_strip(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    size_t begin = self->form & LEFT ? oz_uc_spaces_behind(in, 0) : 0;
    size_t end = self->form & RIGHT ? oz_uc_spaces_before(in, in.n, begin) : in.n;
    if (begin == 0 && end == in.n) return OZ_OK;
    oz_buf_append(out, in.p + begin, end - begin);
    w->moved = w->zero > end ? end - begin : w->zero > begin ? w->zero - begin : 0;
    *changed = true;
    return OZ_OK;
}

/* Steps that drop or change single characters. */
enum { DROP = 0x110000 };
typedef enum one { NMT, CLEAN, NONSPACING, COMBINING } one;

static uint32_t nmt(uint32_t c) {
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return DROP;
    bool space = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
                 c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    return space ? ' ' : c;
}

static uint32_t map_one(const oz_uc_class *k, one which, uint32_t c) {
    if (which == NMT) return nmt(c);
    if (which != CLEAN) return c >= 0x80 && oz_uc_in(k, c) ? DROP : c;
    if (c == '\t' || c == '\n' || c == '\r') return ' ';
    if (c < 0x80) return c < ' ' || c == 0x7F ? DROP : c;
    if (oz_uc_in(k, c)) return DROP;
    return oz_uc_is_space(c) ? ' ' : c;
}

static oz_status run_one(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    static const char *const names[] = {"", "bert_removed", "nonspacing", "combining"};
    const oz_uc_class *k = self->form == NMT ? NULL : oz_uc_class_find(names[self->form], strlen(names[self->form]));
    const char *p = in.p, *end = in.p + in.n, *done = p;
    for (uint32_t c; p < end;) {
        size_t n = oz_uc_next(p, &c);
        uint32_t to = map_one(k, (one)self->form, c);
        if (to != c) {
            oz_buf_append(out, done, (size_t)(p - done));
            if (to != DROP) oz_buf_put_utf8(out, to);
            done = p + n;
            *changed = true;
        }
        p += n;
    }
    if (*changed) oz_buf_append(out, done, (size_t)(end - done));
    return OZ_OK;
}

/* The blocks of ideographs that BERT knows: not all of them, and no kana. */
static bool is_ideograph(uint32_t c) {
    static const oz_range blocks[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                                      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (c >= blocks[i].lo && c <= blocks[i].hi) return true;
    return false;
}

static oz_status run_ideographs(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err) {
    const char *p = in.p, *end = in.p + in.n, *done = p;
    for (uint32_t c; p < end;) {
        size_t n = oz_uc_next(p, &c);
        if (is_ideograph(c)) {
            oz_buf_append(out, done, (size_t)(p - done));
            oz_buf_putc(out, ' ');
            oz_buf_append(out, p, n);
            oz_buf_putc(out, ' ');
            done = p + n;
            *changed = true;
        }
        p += n;
    }
    if (*changed) oz_buf_append(out, done, (size_t)(end - done));
    return OZ_OK;
}

/* ---- rows */

static oz_status push(oz_norm **out, oz_norms *z, oz_norm_fn *run, int form, oz_jpath path, oz_err *err) {
    OZ_NEED(z->n < OZ_TOK_MAX_STEPS, err, OZ_E_UNSUPPORTED, "%s: more than %d normalizers", path.s, OZ_TOK_MAX_STEPS);
    oz_norm *step = &z->step[z->n++];
    *step = (oz_norm){.run = run, .form = form};
    if (out) *out = step;
    return OZ_OK;
}

#define PARSE(name, run, form) \
    static oz_status name(void *self, const json_t *obj, oz_jpath path, oz_err *err) { return push(NULL, self, run, form, path, err); }
PARSE(parse_nfc, run_form, OZ_UC_NFC)
PARSE(parse_nfd, run_form, OZ_UC_NFD)
PARSE(parse_nfkc, run_form, OZ_UC_NFKC)
PARSE(parse_nfkd, run_form, OZ_UC_NFKD)
PARSE(parse_lower, run_lower, 0)
PARSE(parse_bytes, run_bytes, 0)
PARSE(parse_nmt, run_one, NMT)
PARSE(parse_accents, run_one, COMBINING)

static oz_status parse_strip(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    bool left = true, right = true;
    OZ_TRY(oz_json_flag(&left, obj, path, "strip_left", err));
    OZ_TRY(oz_json_flag(&right, obj, path, "strip_right", err));
    return push(NULL, self, run_strip, (left ? LEFT : 0) | (right ? RIGHT : 0), path, err);
}

static oz_status parse_prepend(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_norm *step = NULL;
    OZ_TRY(push(&step, self, run_prepend, 0, path, err));
    return oz_json_text_of(&step->replace.content, obj, path, "prepend", err);
}

static oz_status parse_replace(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_norm *step = NULL;
    OZ_TRY(push(&step, self, run_replace, 0, path, err));
    return oz_replace_parse(&step->replace, obj, path, err);
}

static oz_status parse_map(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_norm *step = NULL;
    OZ_TRY(push(&step, self, run_map, 0, path, err));
    return oz_charsmap_new(&step->map, obj, path, err);
}

static oz_status parse_bert(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    bool clean = true, ideographs = true, lower = true, strip;
    OZ_TRY(oz_json_flag(&clean, obj, path, "clean_text", err));
    OZ_TRY(oz_json_flag(&ideographs, obj, path, "handle_chinese_chars", err));
    OZ_TRY(oz_json_flag(&lower, obj, path, "lowercase", err));
    strip = lower;
    OZ_TRY(oz_json_flag(&strip, obj, path, "strip_accents", err));
    if (clean) OZ_TRY(push(NULL, self, run_one, CLEAN, path, err));
    if (ideographs) OZ_TRY(push(NULL, self, run_ideographs, 0, path, err));
    if (strip) OZ_TRY(push(NULL, self, run_form, OZ_UC_NFD, path, err));
    if (strip) OZ_TRY(push(NULL, self, run_one, NONSPACING, path, err));
    return lower ? push(NULL, self, run_lower, 0, path, err) : OZ_OK;
}

static const oz_stage_row rows[] = {
    {"NFC", "type", NULL, parse_nfc},
    {"NFD", "type", NULL, parse_nfd},
    {"NFKC", "type", NULL, parse_nfkc},
    {"NFKD", "type", NULL, parse_nfkd},
    {"Lowercase", "type", NULL, parse_lower},
    {"Nmt", "type", NULL, parse_nmt},
    {"ByteLevel", "type", NULL, parse_bytes},
    {"StripAccents", "type", NULL, parse_accents},
    {"Strip", "type|strip_left|strip_right", NULL, parse_strip},
    {"Prepend", "type|prepend", NULL, parse_prepend},
    {"Replace", "type|pattern|content", NULL, parse_replace},
    {"Precompiled", "type|precompiled_charsmap", NULL, parse_map},
    {"BertNormalizer", "type|clean_text|handle_chinese_chars|strip_accents|lowercase", NULL, parse_bert},
    {"Sequence", "type|normalizers", "normalizers", NULL},
    {0},
};

oz_status oz_norms_parse(oz_norms *z, const json_t *v, oz_err *err) { return oz_stage_parse(z, rows, v, (oz_jpath){"normalizer"}, err); }

void oz_norms_deinit(oz_norms *z) {
    for (size_t i = 0; i < z->n; i++) {
        oz_replace_deinit(&z->step[i].replace);
        oz_charsmap_free(&z->step[i].map);
    }
}

/* How much of what a step made of a text, in w->tmp, comes from the first w->zero bytes of it. What those become with what follows them (a letter with
 * its accent; accents in another order) counts up to where it is another than what they become alone, and the character there where a letter lies in it. */
static oz_status zero_after(size_t *zero, const oz_norm *step, oz_slice in, oz_norm_work *w, oz_err *err) {
    const oz_slice part = {in.p, w->zero}, whole = {w->tmp.data, w->tmp.len};
    bool changed = false;
    oz_buf_clear(&w->alone);
    OZ_TRY(step->run(&w->alone, &changed, step, part, w, err));
    const oz_slice alone = changed ? (oz_slice){w->alone.data, w->alone.len} : part;
    size_t n = 0;
    for (size_t len; n < alone.n && n < whole.n && (len = oz_uc_len(alone.p[n])) == oz_uc_len(whole.p[n]) && memcmp(alone.p + n, whole.p + n, len) == 0;) n += len;
    uint32_t c = 0;
    if (n < alone.n) oz_uc_next(alone.p + n, &c);
    const bool counts = step->run != run_replace && n < alone.n && n < whole.n && (n == 0 || !oz_uc_in(oz_uc_class_find("combining", 9), c));
    *zero = n + (counts ? oz_uc_len(whole.p[n]) : 0);
    return OZ_OK;
}

oz_status oz_norms_run(oz_slice *s, const oz_norms *z, oz_norm_work *w, oz_err *err) {
    w->limit = s->n > (SIZE_MAX - MIN_LIMIT) / MAX_GROWTH ? SIZE_MAX : s->n * MAX_GROWTH + MIN_LIMIT;
    for (size_t i = 0; i < z->n; i++) {
        bool changed = false;
        oz_buf_clear(&w->tmp);
        w->moved = AS_ALONE;
        OZ_TRY(z->step[i].run(&w->tmp, &changed, &z->step[i], *s, w, err));
        if (!changed) continue;
        size_t zero = w->moved;
        if (w->zero && zero == AS_ALONE) OZ_TRY(zero_after(&zero, &z->step[i], *s, w, err));
        if (w->zero) w->zero = zero;
        oz_buf swap = w->out;
        w->out = w->tmp;
        w->tmp = swap;
        *s = (oz_slice){w->out.data ? w->out.data : "", w->out.len};
        OZ_NEED(s->n <= w->limit, err, OZ_E_UNSUPPORTED, "the normalizers make a text grow to more than %zu bytes", w->limit);
    }
    return OZ_OK;
}

void oz_norm_work_deinit(oz_norm_work *w) {
    oz_buf_deinit(&w->out);
    oz_buf_deinit(&w->tmp);
    oz_buf_deinit(&w->alone);
    oz_match_work_deinit(&w->match);
}
