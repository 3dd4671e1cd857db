/* str() and repr() of values. */
#include "text/tmpl_internal.h"
#include <math.h>
#include <string.h>

/* The shortest digits that read back as the same double, laid out as Python does: an exponent below 1e-4 and from 1e16 on. */
size_t oz_tm_format_float(char out[40], double f) {
    if (isnan(f)) return (size_t)snprintf(out, 40, "nan");
    if (isinf(f)) return (size_t)snprintf(out, 40, f < 0 ? "-inf" : "inf");
    char sci[40];
    int precision = 0;
    do snprintf(sci, sizeof sci, "%.*e", precision, f);
    while (strtod(sci, NULL) != f && ++precision < 17);
    int exponent = atoi(strchr(sci, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision - exponent;
        return (size_t)snprintf(out, 40, "%.*f", decimals > 0 ? decimals : 1, f);
    }
    return (size_t)snprintf(out, 40, "%s", sci);
}

static void put_float(oz_tm *c, double f) {
    char text[40];
    oz_tm_put(c, text, oz_tm_format_float(text, f));
}

static void repr_str(oz_tm *c, oz_slice s) {
    char quote = memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n) ? '"' : '\'';
    static const char FROM[] = "\n\r\t\\", TO[] = "nrt\\";
    oz_tm_put(c, &quote, 1);
    oz_tm_charge(c, s.n / 16);
    for (size_t i = 0, k; i < s.n && c->st == OZ_OK; i += k) {
        uint32_t cp;
        k = oz_utf8_next(s.p + i, s.n - i, &cp, NULL);
        const char *simple = cp && cp < 0x80 ? strchr(FROM, (char)cp) : NULL;
        if (simple)
            oz_tm_printf(c, "\\%c", TO[simple - FROM]);
        else if (cp == (unsigned char)quote)
            oz_tm_printf(c, "\\%c", quote);
        else if (oz_tm_is_printable(cp))
            oz_tm_put(c, s.p + i, k);
        else
            oz_tm_printf(c, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
    oz_tm_put(c, &quote, 1);
}

static void repr_seq(oz_tm *c, oz_tm_val v) {
    static const char *const OPEN[] = {"[", "(", "(", "", "dict_keys([", "dict_values([", "dict_items(["}, *const CLOSE[] = {
                                                                                                               "]",  ")",  ")", "",
                                                                                                               "])", "])", "])"};
    const oz_tm_seq *s = v.seq;
    if (v.flavour == OZ_TM_RANGE) {
        oz_tm_printf(c, "range(%lld, %lld", (long long)s->start, (long long)(s->start + (int64_t)s->cap));
        oz_tm_printf(c, s->step == 1 ? ")" : ", %lld)", (long long)s->step);
        return;
    }
    oz_tm_puts(c, OPEN[v.flavour]);
    for (size_t i = 0; i < s->n && c->st == OZ_OK; i++) {
        if (i) oz_tm_put(c, ", ", 2);
        oz_tm_repr(c, s->v[i]);
    }
    if (s->n == 1 && (v.flavour == OZ_TM_TUPLE || v.flavour == OZ_TM_GROUP)) oz_tm_put(c, ",", 1);
    oz_tm_puts(c, CLOSE[v.flavour]);
}

static void repr_dict(oz_tm *c, const oz_tm_dict *d) {
    oz_tm_put(c, "{", 1);
    for (size_t i = 0; i < d->n && c->st == OZ_OK; i++) {
        if (i) oz_tm_put(c, ", ", 2);
        oz_tm_repr(c, d->e[i].key);
        oz_tm_put(c, ": ", 2);
        oz_tm_repr(c, d->e[i].val);
    }
    oz_tm_put(c, "}", 1);
}

static void repr_object(oz_tm *c, oz_tm_val v) {
    switch (v.kind) {
    case OZ_TM_SEQ:
        repr_seq(c, v);
        break;
    case OZ_TM_DICT:
        repr_dict(c, v.dict);
        break;
    case OZ_TM_NS:
        oz_tm_puts(c, "<Namespace ");
        repr_dict(c, v.dict);
        oz_tm_put(c, ">", 1);
        break;
    default: /* Python prints an address, or something as useless */
        OZ_TM_UNSUPPORTED(c, "printing a value of type '%s' is not supported", oz_tm_type(v));
    }
}

void oz_tm_repr(oz_tm *c, oz_tm_val v) {
    if (!oz_tm_enter(c)) return;
    switch (v.kind) {
    case OZ_TM_ABSENT:
        break;
    case OZ_TM_UNDEF:
        oz_tm_puts(c, "Undefined");
        break;
    case OZ_TM_NONE:
        oz_tm_puts(c, "None");
        break;
    case OZ_TM_BOOL:
        oz_tm_puts(c, v.i ? "True" : "False");
        break;
    case OZ_TM_INT:
    case OZ_TM_BIG:
        oz_tm_big_print(c, v, 10);
        break;
    case OZ_TM_FLOAT:
        put_float(c, v.f);
        break;
    case OZ_TM_STR:
        if (v.flavour == OZ_TM_MARKUP) oz_tm_puts(c, "Markup(");
        repr_str(c, (oz_slice){v.s, v.n});
        if (v.flavour == OZ_TM_MARKUP) oz_tm_put(c, ")", 1);
        break;
    default:
        repr_object(c, v);
        break;
    }
    oz_tm_leave(c);
}

void oz_tm_print(oz_tm *c, oz_tm_val v) {
    if (v.kind == OZ_TM_STR)
        oz_tm_put(c, v.s, v.n);
    else if (v.kind != OZ_TM_UNDEF)
        oz_tm_repr(c, v);
}

oz_slice oz_tm_text(oz_tm *c, oz_tm_val v) {
    if (v.kind != OZ_TM_STR) {
        size_t mark = oz_tm_mark(c);
        oz_tm_print(c, v);
        v = oz_tm_take(c, mark);
    }
    return (oz_slice){v.s, v.n};
}
