/* The methods of strings. Positions count characters. */
#include "text/tmpl_internal.h"
#include <string.h>
#include <utf8proc.h>

static oz_slice slice_of(oz_tm_val v) { return (oz_slice){v.s, v.n}; }

/* An argument that must be a string. */
static bool need_str(oz_tm *c, oz_tm_val v) {
    if (v.kind == OZ_TM_UNDEF)
        oz_tm_fail_undef(c, v);
    else if (v.kind != OZ_TM_STR)
        OZ_TM_FAIL(c, "expected a string as the method's argument, found '%s'", oz_tm_type(v));
    return c->st == OZ_OK;
}

static int64_t integer(oz_tm *c, oz_tm_val v, int64_t fallback) {
    int64_t i = fallback;
    if (v.kind != OZ_TM_ABSENT) oz_tm_index(c, v, &i);
    return i;
}

/* ---- case ---- */

static oz_tm_val put_case(oz_tm *c, oz_tm_val self, int how) {
    size_t mark = oz_tm_mark(c);
    oz_tm_put_case(c, self.s, self.n, how);
    return oz_tm_take(c, mark);
}

static oz_tm_val m_upper(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return put_case(c, self, OZ_TM_UPPER); }
static oz_tm_val m_lower(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return put_case(c, self, OZ_TM_LOWER); }
static oz_tm_val m_casefold(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return put_case(c, self, OZ_TM_FOLD); }

static oz_tm_val m_capitalize(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    size_t mark = oz_tm_mark(c), first = self.n ? oz_tm_char_len(self.s, self.n) : 0;
    oz_tm_put_case(c, self.s, first, OZ_TM_TITLE);
    oz_tm_put_case(c, self.s + first, self.n - first, OZ_TM_LOWER);
    return oz_tm_take(c, mark);
}

enum { OTHER, LOWER, UPPER, TITLE };

static int case_of(uint32_t cp) {
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
        return UPPER;
    case UTF8PROC_CATEGORY_LL:
        return LOWER;
    case UTF8PROC_CATEGORY_LT:
        return TITLE;
    default:
        return OTHER;
    }
}

static oz_tm_val recase(oz_tm *c, oz_tm_val self, bool title) {
    size_t mark = oz_tm_mark(c), k;
    bool inside = false;
    for (size_t i = 0; i < self.n && oz_tm_charge(c, 1); i += k) {
        uint32_t cp;
        k = oz_utf8_next(self.s + i, self.n - i, &cp, NULL);
        int is = case_of(cp), to = title ? (inside ? OZ_TM_LOWER : OZ_TM_TITLE) : is == LOWER ? OZ_TM_UPPER : OZ_TM_LOWER;
        if (is == OTHER)
            oz_tm_put(c, self.s + i, k);
        else
            oz_tm_put_case(c, self.s + i, k, to);
        inside = is != OTHER;
    }
    return oz_tm_take(c, mark);
}

static oz_tm_val m_title(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return recase(c, self, true); }
static oz_tm_val m_swapcase(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return recase(c, self, false); }

/* ---- questions ---- */

static bool is_alpha(uint32_t cp) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND; }
static bool is_digit(uint32_t cp) {
    return is_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) ||
           (cp >= 0x2080 && cp <= 0x2089);
}

static bool is_numeric(uint32_t cp) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

static bool is_alnum(uint32_t cp) { return is_alpha(cp) || is_numeric(cp); }
static bool is_ascii(uint32_t cp) { return cp < 0x80; }

static oz_tm_val all(oz_tm *c, oz_tm_val self, bool (*is)(uint32_t), bool if_empty) {
    oz_tm_charge(c, self.n / 16);
    for (size_t i = 0; i < self.n;) {
        uint32_t cp;
        i += oz_utf8_next(self.s + i, self.n - i, &cp, NULL);
        if (!is(cp)) return oz_tm_bool(false);
    }
    return oz_tm_bool(self.n > 0 || if_empty);
}

static oz_tm_val m_isalpha(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return all(c, self, is_alpha, false); }
static oz_tm_val m_isalnum(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return all(c, self, is_alnum, false); }
static oz_tm_val m_isdecimal(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return all(c, self, is_decimal, false); }
static oz_tm_val m_isdigit(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return all(c, self, is_digit, false); }
static oz_tm_val m_isnumeric(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return all(c, self, is_numeric, false); }
static oz_tm_val m_isspace(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return all(c, self, oz_tm_is_space, false); }
static oz_tm_val m_isprintable(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return all(c, self, oz_tm_is_printable, true); }
static oz_tm_val m_isascii(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return all(c, self, is_ascii, true); }

/* All that has case has this one, and something has. For TITLE: upper case begins each run of letters with case, and lower case goes on. */
static oz_tm_val is_case(oz_tm *c, oz_tm_val self, int want) {
    bool some = false, inside = false;
    oz_tm_charge(c, self.n / 16);
    for (size_t i = 0; i < self.n;) {
        uint32_t cp;
        i += oz_utf8_next(self.s + i, self.n - i, &cp, NULL);
        int is = case_of(cp);
        bool fits = want == TITLE ? (inside ? is == LOWER : is != LOWER) : is == want;
        if (is != OTHER && !fits) return oz_tm_bool(false);
        some = some || is != OTHER;
        inside = is != OTHER;
    }
    return oz_tm_bool(some);
}

static oz_tm_val m_islower(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return is_case(c, self, LOWER); }
static oz_tm_val m_isupper(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return is_case(c, self, UPPER); }
static oz_tm_val m_istitle(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return is_case(c, self, TITLE); }

/* ---- ends ---- */

static oz_tm_val strip(oz_tm *c, oz_tm_val self, oz_tm_val chars, bool left, bool right) {
    bool given = chars.kind != OZ_TM_ABSENT && chars.kind != OZ_TM_NONE;
    if (given && !need_str(c, chars)) return self;
    if (!oz_tm_charge(c, given ? chars.n / 16 : 0)) return self;
    oz_slice set = slice_of(chars), s = oz_tm_strip(slice_of(self), given ? &set : NULL, left, right);
    oz_tm_charge(c, given ? (self.n - s.n) / 64 * (chars.n / 16 + 1) : 0);
    return oz_tm_str(s.p, s.n);
}

static oz_tm_val m_strip(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return strip(c, self, a->pos[0], true, true); }
static oz_tm_val m_lstrip(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return strip(c, self, a->pos[0], true, false); }
static oz_tm_val m_rstrip(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return strip(c, self, a->pos[0], false, true); }

/* The part [start, end) of the characters; false if start lies behind the end. */
static bool part(oz_tm *c, oz_tm_val self, oz_tm_val start, oz_tm_val end, oz_tm_val *out, int64_t *from) {
    oz_tm_val bounds[3] = {start.kind == OZ_TM_ABSENT ? oz_tm_none() : start, end.kind == OZ_TM_ABSENT ? oz_tm_none() : end, oz_tm_none()};
    *out = self;
    *from = 0;
    if (bounds[0].kind == OZ_TM_NONE && bounds[1].kind == OZ_TM_NONE) return true;
    int64_t n = (int64_t)oz_tm_len(c, self);
    if (bounds[0].kind != OZ_TM_NONE) *from = integer(c, bounds[0], 0);
    if (*from < 0) *from = *from + n < 0 ? 0 : *from + n;
    *out = oz_tm_slice(c, self, bounds);
    return c->st == OZ_OK && *from <= n;
}

static bool has_end(oz_tm_val s, oz_tm_val what, bool front) {
    return what.n <= s.n && memcmp(front ? s.s : s.s + s.n - what.n, what.s, what.n) == 0;
}

static oz_tm_val ends(oz_tm *c, oz_tm_val self, const oz_tm_args *a, bool front) {
    oz_tm_val s, what = a->pos[0];
    int64_t from;
    bool many = what.kind == OZ_TM_SEQ && (what.flavour == OZ_TM_TUPLE || what.flavour == OZ_TM_GROUP), found = false;
    if (!many && !need_str(c, what)) return self;
    if (!part(c, self, a->pos[1], a->pos[2], &s, &from)) return oz_tm_bool(false);
    if (!many) return oz_tm_bool(has_end(s, what, front));
    for (size_t i = 0; i < what.seq->n && !found && need_str(c, what.seq->v[i]) && oz_tm_charge(c, 1); i++)
        found = has_end(s, what.seq->v[i], front);
    return oz_tm_bool(found);
}

static oz_tm_val m_startswith(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return ends(c, self, a, true); }
static oz_tm_val m_endswith(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return ends(c, self, a, false); }

static oz_tm_val m_removeprefix(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    if (!need_str(c, a->pos[0]) || !has_end(self, a->pos[0], true)) return self;
    return oz_tm_str(self.s + a->pos[0].n, self.n - a->pos[0].n);
}

static oz_tm_val m_removesuffix(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    if (!need_str(c, a->pos[0]) || !has_end(self, a->pos[0], false)) return self;
    return oz_tm_str(self.s, self.n - a->pos[0].n);
}

/* ---- search ---- */

static oz_tm_val find(oz_tm *c, oz_tm_val self, const oz_tm_args *a, bool last, bool must) {
    oz_tm_val s;
    int64_t from;
    size_t at = SIZE_MAX;
    if (!need_str(c, a->pos[0]) || !oz_tm_charge(c, self.n / 64)) return self;
    if (part(c, self, a->pos[1], a->pos[2], &s, &from))
        at = last ? oz_tm_rfind(c, s.s, s.n, a->pos[0].s, a->pos[0].n) : oz_tm_find(s.s, s.n, a->pos[0].s, a->pos[0].n);
    if (at != SIZE_MAX) return oz_tm_int(from + (int64_t)oz_tm_n_chars(s.s, at));
    return must ? OZ_TM_FAIL(c, "substring not found") : oz_tm_int(-1);
}

static oz_tm_val m_find(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return find(c, self, a, false, false); }
static oz_tm_val m_rfind(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return find(c, self, a, true, false); }
static oz_tm_val m_index(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return find(c, self, a, false, true); }
static oz_tm_val m_rindex(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return find(c, self, a, true, true); }

static oz_tm_val m_count(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_val s, what = a->pos[0];
    int64_t from, n = 0;
    if (!need_str(c, what) || !oz_tm_charge(c, self.n / 64)) return self;
    if (!part(c, self, a->pos[1], a->pos[2], &s, &from)) return oz_tm_int(0);
    if (what.n == 0) return oz_tm_int((int64_t)oz_tm_n_chars(s.s, s.n) + 1);
    for (size_t i = 0, k; (k = oz_tm_find(s.s + i, s.n - i, what.s, what.n)) != SIZE_MAX && oz_tm_charge(c, 1); i += k + what.n) n++;
    return oz_tm_int(n);
}

static oz_tm_val m_replace(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_val old = a->pos[0], to = a->pos[1];
    if (!need_str(c, old) || !need_str(c, to)) return self;
    int64_t count = integer(c, a->pos[2], -1);
    size_t mark = oz_tm_mark(c), i = 0, k;
    if (count < 0) count = INT64_MAX;
    oz_tm_charge(c, self.n / 64);
    while (count-- > 0 && oz_tm_charge(c, 1)) {
        if (old.n == 0) { /* between all characters, and at both ends */
            oz_tm_put(c, to.s, to.n);
            if (i == self.n) break;
            k = oz_tm_char_len(self.s + i, self.n - i);
            oz_tm_put(c, self.s + i, k);
            i += k;
            continue;
        }
        if ((k = oz_tm_find(self.s + i, self.n - i, old.s, old.n)) == SIZE_MAX) break;
        oz_tm_put(c, self.s + i, k);
        oz_tm_put(c, to.s, to.n);
        i += k + old.n;
    }
    if (i == 0 && oz_tm_mark(c) == mark) return self;
    oz_tm_put(c, self.s + i, self.n - i);
    return oz_tm_take(c, mark);
}

/* ---- parts ---- */

static oz_tm_val tuple3(oz_tm *c, oz_tm_val a, oz_tm_val b, oz_tm_val d) {
    oz_tm_seq *s = oz_tm_seq_new(c, 3);
    oz_tm_seq_push(c, s, a);
    oz_tm_seq_push(c, s, b);
    oz_tm_seq_push(c, s, d);
    return oz_tm_seq_val(s, OZ_TM_TUPLE);
}

static oz_tm_val partition(oz_tm *c, oz_tm_val self, oz_tm_val sep, bool last) {
    oz_tm_val none = oz_tm_str("", 0);
    if (!need_str(c, sep) || !oz_tm_charge(c, self.n / 64)) return self;
    if (sep.n == 0) return OZ_TM_FAIL(c, "empty separator");
    size_t at = last ? oz_tm_rfind(c, self.s, self.n, sep.s, sep.n) : oz_tm_find(self.s, self.n, sep.s, sep.n);
    if (at == SIZE_MAX) return last ? tuple3(c, none, none, self) : tuple3(c, self, none, none);
    return tuple3(c, oz_tm_str(self.s, at), sep, oz_tm_str(self.s + at + sep.n, self.n - at - sep.n));
}

static oz_tm_val m_partition(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return partition(c, self, a->pos[0], false); }
static oz_tm_val m_rpartition(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return partition(c, self, a->pos[0], true); }

/* One cut of `s`, from the front or the back: the part before it and what is left. False if there is none. */
static bool cut(oz_tm *c, oz_slice *s, const oz_tm_val *sep, bool last, oz_slice *out) {
    if (sep) {
        size_t at = last ? oz_tm_rfind(c, s->p, s->n, sep->s, sep->n) : oz_tm_find(s->p, s->n, sep->s, sep->n);
        if (at == SIZE_MAX) return false;
        oz_slice front = {s->p, at}, back = {s->p + at + sep->n, s->n - at - sep->n};
        *out = last ? back : front;
        *s = last ? front : back;
        return true;
    }
    oz_slice rest = *s;
    size_t n = 0;
    while (n < rest.n) { /* to the first white space from that end */
        uint32_t cp;
        size_t k = last ? 1 : oz_tm_char_len(rest.p + n, rest.n - n);
        while (last && k < rest.n - n && k < 4 && ((unsigned char)rest.p[rest.n - n - k] & 0xc0) == 0x80) k++;
        oz_utf8_next(last ? rest.p + rest.n - n - k : rest.p + n, k, &cp, NULL);
        if (oz_tm_is_space(cp)) break;
        n += k;
    }
    *out = last ? (oz_slice){rest.p + rest.n - n, n} : (oz_slice){rest.p, n};
    *s = oz_tm_strip(last ? (oz_slice){rest.p, rest.n - n} : (oz_slice){rest.p + n, rest.n - n}, NULL, !last, last);
    return s->n > 0 || n > 0;
}

static oz_tm_val split(oz_tm *c, oz_tm_val self, const oz_tm_args *a, bool last) {
    oz_slice s = slice_of(self), piece;
    const oz_tm_val *sep = a->pos[0].kind == OZ_TM_ABSENT || a->pos[0].kind == OZ_TM_NONE ? NULL : &a->pos[0];
    int64_t count = integer(c, a->pos[1], -1);
    if ((sep && !need_str(c, *sep)) || !oz_tm_charge(c, self.n / 64)) return self;
    if (sep && sep->n == 0) return OZ_TM_FAIL(c, "empty separator");
    if (count < 0) count = INT64_MAX;
    oz_tm_seq *list = oz_tm_seq_new(c, 4);
    if (!sep) s = oz_tm_strip(s, NULL, !last, last);
    while (list && count-- > 0 && (sep || s.n > 0) && oz_tm_charge(c, 1) && cut(c, &s, sep, last, &piece))
        oz_tm_seq_push(c, list, oz_tm_str(piece.p, piece.n));
    if (sep || s.n > 0) oz_tm_seq_push(c, list, oz_tm_str(s.p, s.n));
    if (!last || !list) return oz_tm_seq_val(list, OZ_TM_LIST);
    for (size_t i = 0, k = list->n; i + 1 < k; i++) {
        oz_tm_val v = list->v[i];
        list->v[i] = list->v[--k];
        list->v[k] = v;
    }
    return oz_tm_seq_val(list, OZ_TM_LIST);
}

static oz_tm_val m_split(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return split(c, self, a, false); }
static oz_tm_val m_rsplit(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return split(c, self, a, true); }

/* Bytes of the line end at s[0..n), 0 if there is none. */
static size_t line_end(const char *s, size_t n) {
    uint32_t cp;
    size_t k = oz_utf8_next(s, n, &cp, NULL);
    if (cp == '\r' && n > 1 && s[1] == '\n') return 2;
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029 ? k : 0;
}

static oz_tm_val m_splitlines(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    bool keep = a->pos[0].kind != OZ_TM_ABSENT && oz_tm_truth(a->pos[0]);
    oz_tm_seq *list = oz_tm_seq_new(c, 4);
    size_t from = 0, end;
    oz_tm_charge(c, self.n / 16);
    for (size_t i = 0; i < self.n && c->st == OZ_OK; i += end ? end : oz_tm_char_len(self.s + i, self.n - i)) {
        end = line_end(self.s + i, self.n - i);
        if (!end) continue;
        oz_tm_seq_push(c, list, oz_tm_str(self.s + from, i - from + (keep ? end : 0)));
        from = i + end;
    }
    if (from < self.n) oz_tm_seq_push(c, list, oz_tm_str(self.s + from, self.n - from));
    return oz_tm_seq_val(list, OZ_TM_LIST);
}

static oz_tm_val m_join(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    oz_tm_iter it;
    oz_tm_val item;
    int64_t n = 0;
    size_t mark = oz_tm_mark(c);
    if (!oz_tm_iter_begin(c, &it, a->pos[0])) return self;
    for (; oz_tm_iter_next(c, &it, &item); n++) {
        if (n) oz_tm_put(c, self.s, self.n);
        if (item.kind != OZ_TM_STR)
            return OZ_TM_FAIL(c, "sequence item %lld: expected str instance, %s found", (long long)n, oz_tm_type(item));
        oz_tm_put(c, item.s, item.n);
    }
    return oz_tm_take(c, mark);
}

/* ---- padding ---- */

static oz_tm_val pad(oz_tm *c, oz_tm_val self, const oz_tm_args *a, int where) {
    int64_t width = integer(c, a->pos[0], 0), n = (int64_t)oz_tm_len(c, self), room = width > n ? width - n : 0;
    oz_tm_val fill = a->pos[1].kind == OZ_TM_ABSENT ? oz_tm_str(" ", 1) : a->pos[1];
    if (!need_str(c, fill)) return self;
    if (fill.n == 0 || oz_tm_char_len(fill.s, fill.n) != fill.n)
        return OZ_TM_FAIL(c, "The fill character must be exactly one character long");
    int64_t left = where < 0 ? 0 : where > 0 ? room : room / 2 + (room & width & 1);
    size_t mark = oz_tm_mark(c);
    oz_tm_put_repeat(c, fill.s, fill.n, left);
    oz_tm_put(c, self.s, self.n);
    oz_tm_put_repeat(c, fill.s, fill.n, room - left);
    return oz_tm_take(c, mark);
}

static oz_tm_val m_ljust(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return pad(c, self, a, -1); }
static oz_tm_val m_rjust(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return pad(c, self, a, 1); }
static oz_tm_val m_center(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return pad(c, self, a, 0); }

static oz_tm_val m_zfill(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    int64_t width = integer(c, a->pos[0], 0), n = (int64_t)oz_tm_len(c, self);
    size_t sign = self.n && (self.s[0] == '-' || self.s[0] == '+'), mark = oz_tm_mark(c);
    oz_tm_put(c, self.s, sign);
    oz_tm_put_repeat(c, "0", 1, width > n ? width - n : 0);
    oz_tm_put(c, self.s + sign, self.n - sign);
    return oz_tm_take(c, mark);
}

static oz_tm_val m_expandtabs(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    int64_t size = integer(c, a->pos[0], 8), column = 0;
    size_t mark = oz_tm_mark(c), k;
    for (size_t i = 0; i < self.n && oz_tm_charge(c, 1); i += k) {
        k = oz_tm_char_len(self.s + i, self.n - i);
        if (self.s[i] == '\t') {
            int64_t room = size > 0 ? size - column % size : 0;
            oz_tm_put_repeat(c, " ", 1, room);
            column = size > 0 ? 0 : column;
            continue;
        }
        oz_tm_put(c, self.s + i, k);
        column = self.s[i] == '\n' || self.s[i] == '\r' ? 0 : column + 1;
    }
    return oz_tm_take(c, mark);
}

static oz_tm_val m_format(oz_tm *c, oz_tm_val self, const oz_tm_args *a) { return oz_tm_format(c, slice_of(self), a); }
static oz_tm_val m_format_map(oz_tm *c, oz_tm_val self, const oz_tm_args *a) {
    return OZ_TM_UNSUPPORTED(c, "the method format_map is not supported");
}

const oz_tm_row oz_tm_str_methods[] = {
    {"capitalize", "", m_capitalize},
    {"casefold", "", m_casefold},
    {"center", "width fillchar?", m_center},
    {"count", "sub start? end?", m_count},
    {"endswith", "suffix start? end?", m_endswith},
    {"expandtabs", "tabsize?", m_expandtabs},
    {"find", "sub start? end?", m_find},
    {"format", "*", m_format},
    {"format_map", "*", m_format_map},
    {"index", "sub start? end?", m_index},
    {"isalnum", "", m_isalnum},
    {"isalpha", "", m_isalpha},
    {"isascii", "", m_isascii},
    {"isdecimal", "", m_isdecimal},
    {"isdigit", "", m_isdigit},
    {"islower", "", m_islower},
    {"isnumeric", "", m_isnumeric},
    {"isprintable", "", m_isprintable},
    {"isspace", "", m_isspace},
    {"istitle", "", m_istitle},
    {"isupper", "", m_isupper},
    {"join", "iterable", m_join},
    {"ljust", "width fillchar?", m_ljust},
    {"lower", "", m_lower},
    {"lstrip", "chars?", m_lstrip},
    {"partition", "sep", m_partition},
    {"removeprefix", "prefix", m_removeprefix},
    {"removesuffix", "suffix", m_removesuffix},
    {"replace", "old new count?", m_replace},
    {"rfind", "sub start? end?", m_rfind},
    {"rindex", "sub start? end?", m_rindex},
    {"rjust", "width fillchar?", m_rjust},
    {"rpartition", "sep", m_rpartition},
    {"rsplit", "sep? maxsplit?", m_rsplit},
    {"rstrip", "chars?", m_rstrip},
    {"split", "sep? maxsplit?", m_split},
    {"splitlines", "keepends?", m_splitlines},
    {"startswith", "prefix start? end?", m_startswith},
    {"strip", "chars?", m_strip},
    {"swapcase", "", m_swapcase},
    {"title", "", m_title},
    {"upper", "", m_upper},
    {"zfill", "width", m_zfill},
    {0},
};
