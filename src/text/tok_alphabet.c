/* Matching over an alphabet of character kinds.
 *
 * PCRE2 is fast on bytes and slow on large sets of code points, and its sets are of another Unicode version. So all characters that no
 * pattern of a tokenizer tells apart become one kind, a byte; a text is turned into its kinds once, and the patterns, with their sets
 * written as sets of kinds, run on those bytes through PCRE2's compiler without its UTF mode. Published tokenizers have 10 to 40 kinds. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tok_internal.h"
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { N_CODE_POINTS = 0x110000, MAX_KINDS = 256, JIT_STACK_START = 32 << 10, JIT_STACK_MAX = 64 << 20, MATCH_LIMIT = 10 << 20 };

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Every code point at which some set begins or ends, ascending, 0 and the end among them. */
static uint32_t *borders(size_t *n, const oz_sets *sets) {
    size_t total = 2;
    for (size_t i = 0; i < sets->n; i++) total += 2 * sets->set[i].n;
    uint32_t *b = oz_alloc_array(total, sizeof *b);
    *n = 0;
    b[(*n)++] = 0;
    b[(*n)++] = N_CODE_POINTS;
    for (size_t i = 0; i < sets->n; i++) {
        for (size_t k = 0; k < sets->set[i].n; k++) {
            b[(*n)++] = sets->set[i].r[k].lo;
            b[(*n)++] = sets->set[i].r[k].hi + 1;
        }
    }
    qsort(b, *n, sizeof *b, by_value);
    return b;
}

oz_status oz_alphabet_make(oz_alphabet *a, const oz_sets *sets, oz_err *err) {
    size_t n, next[OZ_MAX_SETS] = {0};
    uint32_t *b = borders(&n, sets);
    a->kind = oz_alloc(N_CODE_POINTS);
    for (size_t i = 0; i + 1 < n; i++) {
        if (b[i] == b[i + 1]) continue;
        uint64_t in = 0; /* a bit for each set that holds [b[i], b[i + 1]) */
        for (size_t k = 0; k < sets->n; k++) {
            const oz_set *s = &sets->set[k];
            while (next[k] < s->n && s->r[next[k]].hi < b[i]) next[k]++;
            if (next[k] < s->n && s->r[next[k]].lo <= b[i]) in |= UINT64_C(1) << k;
        }
        size_t kind = 0;
        while (kind < a->n_kinds && a->in[kind] != in) kind++;
        if (kind == MAX_KINDS) {
            oz_free(b);
            OZ_FAIL(err, OZ_E_UNSUPPORTED, "the patterns tell more than %d kinds of characters apart", MAX_KINDS);
        }
        if (kind == a->n_kinds) a->in[a->n_kinds++] = in;
        memset(a->kind + b[i], (int)kind, b[i + 1] - b[i]);
    }
    oz_free(b);
    return OZ_OK;
}

void oz_alphabet_deinit(oz_alphabet *a) { oz_free(a->kind); }

size_t oz_alphabet_map(uint8_t *out, const oz_alphabet *a, oz_slice s) {
    size_t n = 0;
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        uint32_t c;
        p += oz_uc_next(p, &c);
        out[n++] = a->kind[c];
    }
    return n;
}

/* A set as PCRE2 writes a set of bytes. */
static void put_set(oz_buf *out, const oz_alphabet *a, int set) {
    size_t begin = out->len;
    oz_buf_putc(out, '[');
    for (size_t k = 0; k < a->n_kinds; k++)
        if (a->in[k] >> set & 1) oz_buf_printf(out, "\\x%02zx", k);
    if (out->len == begin + 1) oz_buf_puts(out, "^\\x00-\\xff"); /* the empty set */
    oz_buf_putc(out, ']');
}

oz_status oz_matcher_new(void **code, const oz_alphabet *a, oz_slice pattern, oz_err *err) {
    oz_buf p = {0};
    for (size_t i = 0; i < pattern.n; i++) {
        if (pattern.p[i] == OZ_SET_MARK)
            put_set(&p, a, pattern.p[++i] - 1);
        else
            oz_buf_putc(&p, pattern.p[i]);
    }
    int number;
    PCRE2_SIZE at;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)(p.data ? p.data : ""), p.len, PCRE2_NEVER_UTF, &number, &at, NULL);
    oz_buf_deinit(&p);
    if (!c) {
        PCRE2_UCHAR msg[128];
        pcre2_get_error_message(number, msg, sizeof msg);
        OZ_FAIL(err, OZ_E_FORMAT, "the pattern does not compile: %s", (const char *)msg);
    }
    pcre2_jit_compile(c, PCRE2_JIT_COMPLETE); /* where there is no compiler for the machine, pcre2_match interprets */
    *code = c;
    return OZ_OK;
}

void oz_matcher_free(void **code) {
    pcre2_code_free(*code);
    *code = NULL;
}

struct oz_matching {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* made when the machine's own 32 KiB were not enough */
};

oz_matching *oz_matching_new(void) {
    oz_matching *m = oz_alloc(sizeof *m);
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context)
        oz_matching_free(&m);
    else
        pcre2_set_match_limit(m->context, MATCH_LIMIT);
    return m;
}

void oz_matching_free(oz_matching **m) {
    if (!*m) return;
    pcre2_match_data_free((*m)->data);
    pcre2_match_context_free((*m)->context);
    pcre2_jit_stack_free((*m)->stack);
    oz_free(*m);
    *m = NULL;
}

oz_status oz_matching_find(oz_match *out, oz_matching *m, const void *code, const uint8_t *s, size_t n, size_t from, oz_err *err) {
    int r = pcre2_match(code, s, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (r == PCRE2_ERROR_JIT_STACKLIMIT && !m->stack) {
        m->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
        if (m->stack) {
            pcre2_jit_stack_assign(m->context, NULL, m->stack);
            r = pcre2_match(code, s, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
        }
    }
    if (r < 0 && r != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR msg[128];
        pcre2_get_error_message(r, msg, sizeof msg);
        OZ_FAIL(err, OZ_E_FORMAT, "the tokenizer's pattern cannot cut this text at character %zu: %s", from, (const char *)msg);
    }
    *out = (oz_match){0};
    if (r == PCRE2_ERROR_NOMATCH) return OZ_OK;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    *out = (oz_match){true, at[0], at[1]};
    return OZ_OK;
}

oz_matches oz_matches_of(const void *code, const uint8_t *kinds, size_t n) { return (oz_matches){code, kinds, n, 0, SIZE_MAX}; }

oz_status oz_matches_next(oz_match *out, oz_matches *it, oz_matching *m, oz_err *err) {
    for (*out = (oz_match){0}; it->from <= it->n; it->from++) {
        OZ_TRY(oz_matching_find(out, m, it->code, it->kinds, it->n, it->from, err));
        if (!out->found) break;
        if (out->begin == out->end && out->end == it->last_end) continue;
        it->from = it->last_end = out->end;
        return OZ_OK;
    }
    *out = (oz_match){0};
    return OZ_OK;
}

oz_status oz_match_work_room(oz_match_work *w, size_t n_bytes, oz_err *err) {
    if (!w->matching) w->matching = oz_matching_new();
    OZ_NEED(w->matching, err, OZ_E_NOMEM, "no memory to match patterns");
    return oz_model_work_room((void **)&w->kinds, &w->cap, n_bytes, 1, "the kinds of characters of a text", err);
}

void oz_match_work_deinit(oz_match_work *w) {
    oz_matching_free(&w->matching);
    oz_big_free(w->kinds);
    *w = (oz_match_work){0};
}
