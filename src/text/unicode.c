/* Character classes, the four normal forms, lower case: readers of the generated tables.
 *
 * A normal form leaves most text as it is. Each form has a set of unsafe characters: those that it changes, that may be reordered, or
 * that may join the character before them. Text without one is not copied; elsewhere only the stretch from the last safe character
 * before to the next safe one is taken apart, since nothing can reach across those borders. utf8proc was not used because it is of
 * another Unicode version on every system, and the reference's is older than all of them. */
#include "text/tok_internal.h"
#include <string.h>

const oz_uc_class *oz_uc_class_find(const char *name, size_t n) {
    for (const oz_uc_class *k = oz_uc_classes; k->name; k++)
        if (strlen(k->name) == n && memcmp(k->name, name, n) == 0) return k;
    return NULL;
}

bool oz_uc_in(const oz_uc_class *k, uint32_t c) {
    size_t lo = 0, hi = k->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > k->r[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < k->n && c >= k->r[lo].lo;
}

bool oz_uc_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

size_t oz_uc_spaces_before(oz_slice s, size_t at, size_t limit) {
    while (at > limit) {
        size_t i = at - 1;
        uint32_t c;
        while (i > 0 && ((unsigned char)s.p[i] & 0xC0) == 0x80) i--;
        oz_uc_next(s.p + i, &c);
        if (!oz_uc_is_space(c)) break;
        at = i;
    }
    return at;
}

size_t oz_uc_spaces_behind(oz_slice s, size_t at) {
    for (uint32_t c; at < s.n;) {
        size_t n = oz_uc_next(s.p + at, &c);
        if (!oz_uc_is_space(c)) break;
        at += n;
    }
    return at;
}

static int kind_of(const oz_uc_kind *k, size_t n, uint32_t c) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > k[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c >= k[lo].lo ? k[lo].kind : 0;
}

int oz_uc_script(uint32_t c) { return c == ' ' ? OZ_UC_NO_SCRIPT : kind_of(oz_uc_scripts, oz_uc_n_scripts, c); }

enum { S_BASE = 0xAC00, S_COUNT = 11172, L_BASE = 0x1100, L_COUNT = 19, V_BASE = 0x1161, V_COUNT = 21, T_BASE = 0x11A7, T_COUNT = 28 };

/* What a character is to the borders of clusters (UAX 29). Consonants, linkers and the extenders that are not those of conjuncts are of
 * rule GB9c. Pairs of regional indicators are not told apart: a cluster of them is longer than what anyone asks for here. */
enum {
    B_OTHER,
    B_CONTROL,
    B_EXTEND,
    B_ZWJ,
    B_SPACING,
    B_PREPEND,
    B_L,
    B_V,
    B_T,
    B_LV,
    B_LVT,
    B_PICTURE,
    B_CONSONANT,
    B_LINKER,
    B_EXTEND_ONLY
};

static int break_of(uint32_t c) {
    if (c < 0x80) return c < ' ' || c == 0x7F ? B_CONTROL : B_OTHER;
    if (c - S_BASE < S_COUNT) return (c - S_BASE) % T_COUNT ? B_LVT : B_LV;
    return kind_of(oz_uc_breaks, oz_uc_n_breaks, c);
}

size_t oz_uc_grapheme(const char *p, size_t n) {
    uint32_t c, next;
    size_t at = oz_uc_next(p, &c), len;
    if (c == '\r') return at < n && p[at] == '\n' ? 2 : at;
    int before = break_of(c);
    bool picture = before == B_PICTURE, conjunct = before == B_CONSONANT, linked = false; /* of GB11 and GB9c: whether one has begun */
    for (; at < n && before != B_CONTROL; at += len) {
        len = oz_uc_next(p + at, &next);
        int k = break_of(next);
        bool extends = k == B_EXTEND || k == B_LINKER || k == B_EXTEND_ONLY || k == B_ZWJ;
        bool joins = extends || k == B_SPACING || (before == B_PREPEND && k != B_CONTROL);
        joins |= before == B_L && (k == B_L || k == B_V || k == B_LV || k == B_LVT);
        joins |= (before == B_LV || before == B_V) && (k == B_V || k == B_T);
        joins |= (before == B_LVT || before == B_T) && k == B_T;
        joins |= before == B_ZWJ && picture && k == B_PICTURE;
        joins |= conjunct && linked && k == B_CONSONANT;
        if (!joins) break;
        picture = k == B_PICTURE || (picture && extends && before != B_ZWJ);
        linked = k != B_CONSONANT && (linked || k == B_LINKER);
        conjunct = k == B_CONSONANT || (conjunct && extends && k != B_EXTEND_ONLY);
        before = k;
    }
    return at;
}

static bool is_hangul(uint32_t c) { return c - S_BASE < S_COUNT; }

static const oz_uc_norm *norm_of(uint32_t c) {
    if (c >= 0x30000) return &oz_uc_norms[0];
    return &oz_uc_norms[oz_uc_norm_index[oz_uc_norm_page[c >> 6]][c & 63]];
}

static bool is_unsafe(uint32_t c, oz_uc_form form) {
    if (is_hangul(c)) return form == OZ_UC_NFD || form == OZ_UC_NFKD;
    return norm_of(c)->unsafe >> form & 1;
}

typedef struct mark {
    uint32_t c, ccc;
} mark;
typedef struct marks {
    mark *m, *sorted;
    size_t n, cap, cap_sorted;
} marks;

static void push(marks *s, uint32_t c, uint32_t ccc) {
    oz_grow((void **)&s->m, &s->cap, s->n + 1, sizeof *s->m);
    s->m[s->n++] = (mark){c, ccc};
}

static void decompose(marks *s, uint32_t c, oz_uc_form form) {
    if (is_hangul(c)) {
        uint32_t i = c - S_BASE, t = i % T_COUNT;
        push(s, L_BASE + i / (V_COUNT * T_COUNT), 0);
        push(s, V_BASE + i / T_COUNT % V_COUNT, 0);
        if (t) push(s, T_BASE + t, 0);
        return;
    }
    const oz_uc_norm *k = norm_of(c);
    bool compat = (form == OZ_UC_NFKC || form == OZ_UC_NFKD) && k->n_compat;
    size_t at = compat ? (size_t)k->at + k->n_canon : k->at, n = compat ? k->n_compat : k->n_canon;
    if (!n) push(s, c, k->ccc);
    for (size_t i = 0; i < n; i++) push(s, oz_uc_norm_pool[at + i], norm_of(oz_uc_norm_pool[at + i])->ccc);
}

/* Stable, by ccc; counted, because a run of marks may be as long as the text. */
static void sort_run(marks *s, size_t begin, size_t end) {
    size_t count[257] = {0};
    oz_grow((void **)&s->sorted, &s->cap_sorted, end - begin, sizeof *s->sorted);
    for (size_t i = begin; i < end; i++) count[s->m[i].ccc + 1]++;
    for (size_t k = 1; k < 257; k++) count[k] += count[k - 1];
    for (size_t i = begin; i < end; i++) s->sorted[count[s->m[i].ccc]++] = s->m[i];
    memcpy(s->m + begin, s->sorted, (end - begin) * sizeof *s->m);
}

static void reorder(marks *s) {
    for (size_t i = 0; i < s->n;) {
        if (!s->m[i].ccc) {
            i++;
            continue;
        }
        size_t end = i + 1;
        bool sorted = true;
        for (; end < s->n && s->m[end].ccc; end++) sorted &= s->m[end - 1].ccc <= s->m[end].ccc;
        if (!sorted) sort_run(s, i, end);
        i = end;
    }
}

static uint32_t composed(uint32_t a, uint32_t b) { /* 0: the two do not compose */
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT) return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (is_hangul(a) && (a - S_BASE) % T_COUNT == 0 && b - (T_BASE + 1) < T_COUNT - 1) return a + (b - T_BASE);
    size_t lo = 0, hi = oz_uc_n_pairs;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const oz_uc_pair *p = &oz_uc_pairs[mid];
        if (p->a < a || (p->a == a && p->b < b))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < oz_uc_n_pairs && oz_uc_pairs[lo].a == a && oz_uc_pairs[lo].b == b ? oz_uc_pairs[lo].composed : 0;
}

static void compose(marks *s) {
    size_t w = 0, starter = SIZE_MAX;
    int64_t last = -1; /* class of the last character kept behind the starter; -1: none */
    for (size_t i = 0; i < s->n; i++) {
        mark m = s->m[i];
        uint32_t c = starter != SIZE_MAX && last < (int64_t)m.ccc ? composed(s->m[starter].c, m.c) : 0;
        if (c) {
            s->m[starter].c = c;
            continue;
        }
        if (m.ccc)
            last = m.ccc;
        else {
            starter = w;
            last = -1;
        }
        s->m[w++] = m;
    }
    s->n = w;
}

static void stretch(oz_buf *out, marks *s, const char *p, const char *end, oz_uc_form form) {
    s->n = 0;
    for (uint32_t c; p < end;) {
        p += oz_uc_next(p, &c);
        decompose(s, c, form);
    }
    reorder(s);
    if (form == OZ_UC_NFC || form == OZ_UC_NFKC) compose(s);
    for (size_t i = 0; i < s->n; i++) oz_buf_put_utf8(out, s->m[i].c);
}

bool oz_uc_normalize(oz_buf *out, oz_slice in, oz_uc_form form) {
    const char *p = in.p, *end = in.p + in.n, *done = p, *safe = p;
    marks s = {0};
    for (uint32_t c; p < end;) {
        size_t n = oz_uc_next(p, &c);
        if (c < 0x80 || !is_unsafe(c, form)) {
            safe = p;
            p += n;
            continue;
        }
        for (p += n; p < end; p += n) {
            n = oz_uc_next(p, &c);
            if (!is_unsafe(c, form)) break;
        }
        oz_buf_append(out, done, (size_t)(safe - done));
        stretch(out, &s, safe, p, form);
        done = safe = p;
    }
    bool changed = done != in.p;
    if (changed) oz_buf_append(out, done, (size_t)(end - done));
    oz_free(s.m);
    oz_free(s.sorted);
    return changed;
}

static const oz_uc_lower *lower_of(uint32_t c) {
    size_t lo = 0, hi = oz_uc_n_lowers;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (oz_uc_lowers[mid].c < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < oz_uc_n_lowers && oz_uc_lowers[lo].c == c ? &oz_uc_lowers[lo] : NULL;
}

bool oz_uc_lowercase(oz_buf *out, oz_slice in) {
    const char *p = in.p, *end = in.p + in.n, *done = p;
    for (uint32_t c; p < end;) {
        size_t n = oz_uc_next(p, &c);
        const oz_uc_lower *k = c < 'A' || (c > 'Z' && c < 0x80) ? NULL : lower_of(c);
        if (k) {
            oz_buf_append(out, done, (size_t)(p - done));
            for (int i = 0; i < 2 && k->to[i]; i++) oz_buf_put_utf8(out, k->to[i]);
            done = p + n;
        }
        p += n;
    }
    bool changed = done != in.p;
    if (changed) oz_buf_append(out, done, (size_t)(end - done));
    return changed;
}
