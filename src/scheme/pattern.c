/* Targets and ignore entries: exact names, class names and "re:" expressions, with the meaning of Python's re.match: anchored
 * at the start, open at the end. PCRE2's syntax covers what such patterns use. An expression comes from a file of someone else's,
 * so matching is bounded: one that backtracks without end is an error that names it. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "scheme/internal.h"

enum { MAX_PATTERN_BYTES = 4096, MATCH_LIMIT = 200000, DEPTH_LIMIT = 20000, HEAP_LIMIT_KIB = 8192 };

/* Layers that other programs fuse; configs are written for the fused name too. */
static const struct { const char *fused, *parts[3]; } FUSED[] = {
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
    {"gate_up_proj", {"gate_proj", "up_proj", NULL}},
    {"fused_qkv_a_proj", {"q_a_proj", "kv_a_proj_with_mqa", NULL}},
    {"in_proj_qkvz", {"in_proj_qkv", "in_proj_z", NULL}},
    {"in_proj_ba", {"in_proj_b", "in_proj_a", NULL}},
};

const char *oz_fused_name(const char *last) {
    for (size_t i = 0; i < sizeof FUSED / sizeof *FUSED; i++)
        for (int k = 0; k < 3 && FUSED[i].parts[k]; k++)
            if (strcmp(FUSED[i].parts[k], last) == 0) return FUSED[i].fused;
    return NULL;
}

/* Where PCRE2 takes what Python does not, or as something else; NULL: nowhere. Escapes by letters that Python lacks, sets of POSIX, verbs, recursion, and names
 * of groups in other spellings; flags for all behind the beginning. */
static const char *not_python(const char *re) {
    static const char escapes[] = "AbBdDsSwWZafnrtvxuU", *const groups[] = {":", "=", "!", "<=", "<!", "P<", "P=", "#", ">", "(", NULL};
    const char *set = NULL; /* the first member of the set that p is in */
    for (const char *p = re; *p; p++) {
        if (*p == '\\' && p[1]) {
            const bool letter = (p[1] >= 'a' && p[1] <= 'z') || (p[1] >= 'A' && p[1] <= 'Z');
            if (letter && !strchr(escapes, p[1])) return p;
            p++;
        } else if (set) {
            if (*p == '[' && p[1] && strchr(":.=", p[1])) return p;
            if (*p == ']' && p > set) set = NULL;
        } else if (*p == '[') {
            set = p + 1 + (p[1] == '^');
        } else if (*p == '(' && p[1] == '*') {
            return p;
        } else if (*p == '(' && p[1] == '?') {
            const char *const *g = groups;
            while (*g && !oz_str_starts(p + 2, *g)) g++;
            const size_t flags = strspn(p + 2, "aiLmsux-");
            const bool local = flags && p[2 + flags] == ':', global = flags && p[2 + flags] == ')';
            if (!*g && !local && !(global && p == re)) return p;
        }
    }
    return NULL;
}

oz_status oz_pattern_init(oz_pattern *p, const char *text, oz_err *err) {
    *p = (oz_pattern){.text = text};
    if (!oz_str_starts(text, "re:")) return OZ_OK;
    const char *source = text + 3;
    OZ_NEED(strlen(source) <= MAX_PATTERN_BYTES, err, OZ_E_FORMAT, "expected an expression of at most %d bytes, found %zu: '%.60s...'",
            MAX_PATTERN_BYTES, strlen(source), text);
    const char *foreign = not_python(source);
    OZ_NEED(!foreign, err, OZ_E_FORMAT, "expected a regular expression of Python, found '%.200s': '%.8s' at offset %td is none of its", text, foreign, foreign - source);
    int code;
    PCRE2_SIZE at;
    p->regex = pcre2_compile((PCRE2_SPTR)source, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!p->regex) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        OZ_FAIL(err, OZ_E_FORMAT, "expected a regular expression, found '%.200s': %s at offset %zu", text, (const char *)why, (size_t)at);
    }
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    p->limits = limits;
    p->match = pcre2_match_data_create(1, NULL);
    if (!limits || !p->match) {
        oz_pattern_deinit(p);
        OZ_FAIL(err, OZ_E_NOMEM, "no memory for the regular expression '%.200s'", text);
    }
    pcre2_set_match_limit(limits, MATCH_LIMIT);
    pcre2_set_depth_limit(limits, DEPTH_LIMIT);
    pcre2_set_heap_limit(limits, HEAP_LIMIT_KIB);
    return OZ_OK;
}

void oz_pattern_deinit(oz_pattern *p) {
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->limits);
    pcre2_code_free(p->regex);
    *p = (oz_pattern){0};
}

static oz_status matches(bool *hit, const oz_pattern *p, const char *name, oz_err *err) {
    *hit = false;
    if (!p->regex) {
        *hit = strcmp(p->text, name) == 0;
        return OZ_OK;
    }
    int rc = pcre2_match(p->regex, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, p->match, p->limits);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(rc, why, sizeof why);
        OZ_FAIL(err, OZ_E_FORMAT, "'%.200s' cannot be matched against '%.200s': %s", p->text, name, (const char *)why);
    }
    *hit = rc >= 0;
    return OZ_OK;
}

/* The fused name of which `name` is a part, if the pattern mentions it by that name; NULL otherwise. An expression such as
 * .*[kvo]_proj would match "qkv_proj" by accident, hence the mention. oz_free. */
static char *fused_name(const oz_pattern *p, const char *name) {
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    for (size_t i = 0; i < sizeof FUSED / sizeof *FUSED; i++) {
        if (!strstr(p->text, FUSED[i].fused)) continue;
        for (int k = 0; k < 3 && FUSED[i].parts[k]; k++)
            if (strcmp(last, FUSED[i].parts[k]) == 0) return oz_asprintf("%.*s%s", (int)(last - name), name, FUSED[i].fused);
    }
    return NULL;
}

oz_status oz_pattern_hit(oz_hit *out, const oz_pattern *p, const oz_module *m, oz_err *err) {
    bool hit;
    *out = OZ_HIT_NONE;
    OZ_TRY(matches(&hit, p, m->name, err));
    if (!hit) {
        char *fused = fused_name(p, m->name);
        oz_status st = fused ? matches(&hit, p, fused, err) : OZ_OK;
        oz_free(fused);
        OZ_TRY(st);
    }
    if (hit) *out = p->regex ? OZ_HIT_REGEX : OZ_HIT_NAME;
    else if (!p->regex && m->class_name && strcmp(p->text, m->class_name) == 0) *out = OZ_HIT_CLASS;
    return OZ_OK;
}

oz_status oz_pattern_match(bool *hit, const char *pattern, const oz_module *m, oz_err *err) {
    oz_pattern p;
    oz_hit how;
    *hit = false;
    OZ_TRY(oz_pattern_init(&p, pattern, err));
    oz_status st = oz_pattern_hit(&how, &p, m, err);
    oz_pattern_deinit(&p);
    if (st == OZ_OK) *hit = how != OZ_HIT_NONE;
    return st;
}
