/* Python's two ways to format: '%5.2f' % x and '{:>5}'.format(x). Both end in one description of a field. */
#include "text/tmpl_internal.h"
#include <math.h>
#include <string.h>

typedef struct field {
    oz_slice fill;            /* empty: not said */
    char align;               /* < > = ^, 0: by type */
    char sign;                /* + - or blank; 0: only minus */
    bool alt;                 /* # */
    char group;               /* , or _ */
    int64_t width, precision; /* precision -1: not said */
    char type;
} field;

/* ---- a value in a field ---- */

/* `text` with its sign and prefix (the first n_head bytes, before which "=" does not fill) to the width. */
static void put_padded(oz_tm *c, const field *f, oz_slice text, size_t n_head, char align) {
    int64_t n = (int64_t)oz_tm_n_chars(text.p, text.n), room = f->width > n ? f->width - n : 0;
    oz_slice fill = f->fill.n ? f->fill : (oz_slice){" ", 1};
    if (f->align) align = f->align;
    int64_t left = align == '<' ? 0 : align == '^' ? room / 2 : room;
    if (align != '=') oz_tm_put_repeat(c, fill.p, fill.n, left), n_head = 0;
    oz_tm_put(c, text.p, n_head);
    if (align == '=') oz_tm_put_repeat(c, fill.p, fill.n, room), left = room;
    oz_tm_put(c, text.p + n_head, text.n - n_head);
    oz_tm_put_repeat(c, fill.p, fill.n, room - left);
}

static void put_text(oz_tm *c, const field *f, oz_slice s) {
    if (f->precision >= 0) s.n = oz_tm_char_at(s.p, s.n, (size_t)f->precision);
    put_padded(c, f, s, 0, '<');
}

static size_t put_sign(oz_tm *c, const field *f, bool negative) {
    size_t mark = oz_tm_mark(c);
    if (negative)
        oz_tm_put(c, "-", 1);
    else if (f->sign == '+' || f->sign == ' ')
        oz_tm_put(c, &f->sign, 1);
    return oz_tm_mark(c) - mark;
}

/* Digits with a separator after each `every` of the whole part, counted from its end. */
static void put_grouped(oz_tm *c, oz_slice digits, char group, size_t every) {
    size_t whole = 0;
    while (whole < digits.n && digits.p[whole] != '.' && digits.p[whole] != 'e') whole++;
    for (size_t i = 0; i < digits.n; i++) {
        if (group && i && i < whole && (whole - i) % every == 0) oz_tm_put(c, &group, 1);
        oz_tm_put(c, digits.p + i, 1);
    }
}

static bool put_integer(oz_tm *c, const field *f, oz_tm_val v) {
    int base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    bool negative = oz_tm_big_negative(v);
    oz_tm_val size = oz_tm_negate(c, v, negative);
    size_t mark = oz_tm_mark(c);
    oz_tm_big_print(c, size, base);
    oz_tm_val digits = oz_tm_take(c, mark);
    size_t head = put_sign(c, f, negative);
    if (f->alt && base != 10) {
        char prefix[2] = {'0', f->type};
        oz_tm_put(c, prefix, 2);
        head += 2;
    }
    if (f->precision > (int64_t)digits.n) oz_tm_put_repeat(c, "0", 1, f->precision - (int64_t)digits.n);
    if (f->type == 'X') digits = oz_tm_call_row(c, oz_tm_find_row(oz_tm_str_methods, oz_slice_view("upper")), digits, &(oz_tm_args){0});
    put_grouped(c, (oz_slice){digits.s, digits.n}, f->group, base == 10 ? 3 : 4);
    oz_tm_val text = oz_tm_take(c, mark);
    put_padded(c, f, (oz_slice){text.s, text.n}, head, '>');
    return c->st == OZ_OK;
}

static bool put_double(oz_tm *c, const field *f, double x) {
    char text[1400], format[16];
    char type = f->type == '%' ? 'f' : f->type ? f->type : 'g';
    if (f->precision > 1000) return OZ_TM_UNSUPPORTED(c, "a precision of more than 1000 is not supported"), false;
    if (f->type == '%') x *= 100;
    bool negative = signbit(x) && !isnan(x);
    if (f->type == 0 && f->precision < 0)
        oz_tm_format_float(text, fabs(x));
    else {
        snprintf(format, sizeof format, "%%%s.*%c", f->alt ? "#" : "", type);
        snprintf(text, sizeof text, format, f->precision < 0 ? 6 : (int)f->precision, fabs(x));
        if (f->type == 0 && isfinite(x) && !strpbrk(text, ".e")) strcat(text, ".0");
    }
    if (isnan(x)) strcpy(text, strchr("EFG", type) ? "NAN" : "nan");
    size_t mark = oz_tm_mark(c), head = put_sign(c, f, negative);
    put_grouped(c, oz_slice_view(text), isfinite(x) ? f->group : 0, 3);
    if (f->type == '%') oz_tm_put(c, "%", 1);
    oz_tm_val all = oz_tm_take(c, mark);
    put_padded(c, f, (oz_slice){all.s, all.n}, head, '>');
    return c->st == OZ_OK;
}

static bool put_char(oz_tm *c, const field *f, oz_tm_val v) {
    int64_t cp = -1;
    char utf8[4];
    if (!oz_tm_index(c, v, &cp)) return false;
    if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return OZ_TM_FAIL(c, "%%c arg not in range(0x110000)"), false;
    put_padded(c, f, (oz_slice){utf8, oz_utf8_encode(utf8, (uint32_t)cp)}, 0, '<');
    return true;
}

/* ---- % ---- */

typedef struct cursor {
    oz_tm *c;
    const char *p, *end;
} cursor;

static bool digits(cursor *s, int64_t *out) {
    const char *from = s->p;
    for (*out = 0; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++) {
        if (*out > OZ_TM_MAX_OUTPUT) {
            OZ_TM_FAIL(s->c, "a width or a precision in a format is too big");
            return false;
        }
        *out = *out * 10 + (*s->p - '0');
    }
    return s->p > from;
}

typedef struct values {
    oz_tm_val all;
    bool tuple;
    size_t next;
} values;

static oz_tm_val next_value(oz_tm *c, values *v) {
    if (v->tuple ? v->next < v->all.seq->n : v->next == 0) return v->tuple ? v->all.seq->v[v->next++] : (v->next++, v->all);
    return OZ_TM_FAIL(c, "not enough arguments for format string");
}

static void star(oz_tm *c, values *v, int64_t *out) {
    oz_tm_val n = next_value(c, v);
    if (c->st == OZ_OK && n.kind != OZ_TM_INT) OZ_TM_FAIL(c, "* wants int");
    *out = c->st == OZ_OK ? n.i : 0;
}

/* What stands between "%" and the letter. */
static void percent_spec(cursor *s, field *f, values *v) {
    static const char *const ZERO = "0";
    for (; s->p < s->end && strchr("-+ #0", *s->p) && *s->p; s->p++) {
        if (*s->p == '-')
            f->align = '<';
        else if (*s->p == '#')
            f->alt = true;
        else if (*s->p == '0')
            f->fill = (oz_slice){ZERO, 1};
        else if (f->sign != '+')
            f->sign = *s->p;
    }
    if (s->p < s->end && *s->p == '*') {
        s->p++;
        star(s->c, v, &f->width);
        if (f->width < 0) f->align = '<', f->width = -f->width;
    } else
        digits(s, &f->width);
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        if (s->p < s->end && *s->p == '*')
            s->p++, star(s->c, v, &f->precision);
        else
            digits(s, &f->precision);
        if (f->precision < 0) f->precision = 0;
    }
    while (s->p < s->end && strchr("hlL", *s->p) && *s->p) s->p++;
    f->type = s->p < s->end ? *s->p++ : 0;
}

static void percent_number(oz_tm *c, field *f, oz_tm_val v) {
    if (f->align == '<')
        f->fill.n = 0;
    else if (f->fill.n)
        f->align = '=';
    if (v.kind == OZ_TM_UNDEF)
        oz_tm_fail_undef(c, v);
    else if (strchr("eEfFgG", f->type)) {
        if (!oz_tm_is_num(v))
            OZ_TM_FAIL(c, "must be real number, not %s", oz_tm_type(v));
        else
            put_double(c, f, oz_tm_to_double(c, v));
    } else {
        bool decimal = strchr("diu", f->type);
        if (v.kind == OZ_TM_FLOAT && decimal && isfinite(v.f)) v = oz_tm_big_from_double(c, v.f);
        if (!oz_tm_is_num(v) || v.kind == OZ_TM_FLOAT)
            OZ_TM_FAIL(c, "%%%c format: a%s number is required, not %s", f->type, decimal ? " real" : "n integer", oz_tm_type(v));
        else
            put_integer(c, f, v);
    }
}

static void percent_one(cursor *s, values *v) {
    oz_tm *c = s->c;
    field f = {.precision = -1};
    oz_tm_val item = {0};
    if (s->p < s->end && *s->p == '(') {
        const char *close = memchr(s->p, ')', (size_t)(s->end - s->p));
        if (!close || v->all.kind != OZ_TM_DICT) {
            OZ_TM_FAIL(c, close ? "format requires a mapping" : "incomplete format key");
            return;
        }
        if (!oz_tm_dict_get(c, v->all.dict, oz_tm_str(s->p + 1, (size_t)(close - s->p - 1)), &item))
            OZ_TM_FAIL(c, "the format's key '%.*s' is not there", (int)(close - s->p - 1), s->p + 1);
        s->p = close + 1;
        v->next = 1;
    }
    percent_spec(s, &f, v);
    if (f.type == '%') {
        oz_tm_put(c, "%", 1);
        return;
    }
    if (item.kind == OZ_TM_ABSENT) item = next_value(c, v);
    if (c->st != OZ_OK) return;
    size_t mark = oz_tm_mark(c);
    if (f.type == 0)
        OZ_TM_FAIL(c, "incomplete format");
    else if (strchr("diuxXoeEfFgG", f.type))
        percent_number(c, &f, item);
    else if (strchr("sra", f.type)) {
        f.fill.n = 0;
        if (f.type == 's')
            oz_tm_print(c, item);
        else
            oz_tm_repr(c, item);
        oz_tm_val text = oz_tm_take(c, mark);
        if (f.type == 'a' && oz_tm_n_chars(text.s, text.n) != text.n) OZ_TM_UNSUPPORTED(c, "%%a is not supported");
        if (!f.align) f.align = '>';
        put_text(c, &f, (oz_slice){text.s, text.n});
    } else if (f.type == 'c') {
        f.fill.n = 0;
        if (!f.align) f.align = '>';
        bool one = item.kind == OZ_TM_STR && item.n > 0 && oz_tm_char_len(item.s, item.n) == item.n;
        if (one)
            put_padded(c, &f, (oz_slice){item.s, item.n}, 0, '>');
        else
            put_char(c, &f, item);
    } else
        OZ_TM_FAIL(c, "unsupported format character '%c'", f.type);
}

oz_tm_val oz_tm_percent(oz_tm *c, oz_slice fmt, oz_tm_val args) {
    values v = {args, args.kind == OZ_TM_SEQ && (args.flavour == OZ_TM_TUPLE || args.flavour == OZ_TM_GROUP), 0};
    cursor s = {c, fmt.p, fmt.p + fmt.n};
    size_t mark = oz_tm_mark(c);
    while (s.p < s.end && oz_tm_charge(c, 1)) {
        const char *at = memchr(s.p, '%', (size_t)(s.end - s.p));
        oz_tm_put(c, s.p, (size_t)((at ? at : s.end) - s.p));
        s.p = at ? at + 1 : s.end;
        if (at) percent_one(&s, &v);
    }
    /* What has items by index may be left over, like a dict: Python takes it for a mapping. */
    bool mapping = args.kind == OZ_TM_DICT || args.kind == OZ_TM_UNDEF || (args.kind == OZ_TM_SEQ && args.flavour <= OZ_TM_RANGE);
    bool left = v.tuple ? v.next < args.seq->n : v.next == 0 && !mapping;
    if (left) OZ_TM_FAIL(c, "not all arguments converted during string formatting");
    return oz_tm_take(c, mark);
}

/* ---- str.format ---- */

/* [[fill]align][sign][z][#][0][width][group][.precision][type] */
static bool read_spec(cursor *s, field *f) {
    *f = (field){.precision = -1};
    size_t first = s->p < s->end ? oz_tm_char_len(s->p, (size_t)(s->end - s->p)) : 0;
    if (first && s->p + first < s->end && strchr("<>=^", s->p[first]) && s->p[first]) {
        f->fill = (oz_slice){s->p, first};
        s->p += first;
    }
    if (s->p < s->end && *s->p && strchr("<>=^", *s->p)) f->align = *s->p++;
    if (s->p < s->end && *s->p && strchr("+- ", *s->p)) f->sign = *s->p++;
    if (s->p < s->end && *s->p == '#') f->alt = true, s->p++;
    if (s->p < s->end && *s->p == '0') {
        if (!f->fill.n) f->fill = (oz_slice){s->p, 1};
        if (!f->align) f->align = '=';
        s->p++;
    }
    digits(s, &f->width);
    if (s->p < s->end && (*s->p == ',' || *s->p == '_')) f->group = *s->p++;
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        if (!digits(s, &f->precision)) OZ_TM_FAIL(s->c, "Format specifier missing precision");
    }
    if (s->p < s->end) f->type = *s->p++;
    if (s->p < s->end) OZ_TM_FAIL(s->c, "Invalid format specifier");
    return s->c->st == OZ_OK;
}

static void put_formatted(oz_tm *c, oz_tm_val v, oz_slice spec) {
    cursor s = {c, spec.p, spec.p + spec.n};
    field f;
    if (spec.n == 0) {
        oz_tm_print(c, v);
        return;
    }
    if (!read_spec(&s, &f)) return;
    bool wide_zero = f.group && f.fill.n && f.fill.p[0] == '0' && f.align == '=', number = oz_tm_is_num(v);
    bool integer = number && v.kind != OZ_TM_FLOAT && !(v.kind == OZ_TM_BOOL && f.type == 0);
    if (wide_zero)
        OZ_TM_UNSUPPORTED(c, "zeros with separators in a format are not supported");
    else if (v.kind == OZ_TM_STR) {
        if ((f.type && f.type != 's') || f.align == '=' || f.sign || f.group)
            OZ_TM_FAIL(c, "Unknown format code '%c' for object of type 'str'", f.type ? f.type : f.align);
        else
            put_text(c, &f, (oz_slice){v.s, v.n});
    } else if (integer && (f.type == 0 || strchr("dxXobn", f.type))) {
        if (f.precision >= 0)
            OZ_TM_FAIL(c, "Precision not allowed in integer format specifier");
        else
            put_integer(c, &f, v);
    } else if (integer && f.type == 'c')
        put_char(c, &f, v);
    else if (number && v.kind != OZ_TM_BOOL && f.type != 'n' && (f.type == 0 || strchr("eEfFgG%", f.type)))
        put_double(c, &f, oz_tm_to_double(c, v));
    else if (number)
        OZ_TM_UNSUPPORTED(c, "this format of a '%s' is not supported", oz_tm_type(v));
    else
        OZ_TM_FAIL(c, "unsupported format string passed to %s.__format__", oz_tm_type(v));
}

/* The argument that "{name.attr[key]}" names; *n_auto counts the fields without a name, -1 once one has a number. */
static oz_tm_val field_value(oz_tm *c, oz_slice name, const oz_tm_args *a, int64_t *n_auto) {
    size_t first = 0;
    while (first < name.n && name.p[first] != '.' && name.p[first] != '[') first++;
    oz_tm_val v = {0};
    cursor s = {c, name.p, name.p + first};
    int64_t i = 0;
    bool numbered = digits(&s, &i) && s.p == s.end;
    if (first == 0) i = (*n_auto)++;
    if ((first == 0 && i < 0) || (numbered && *n_auto > 0))
        return OZ_TM_FAIL(c, "cannot switch between automatic and manual field numbering");
    if (numbered) *n_auto = INT64_MIN;
    if (first == 0 || numbered) {
        if ((size_t)i >= a->n) return OZ_TM_FAIL(c, "Replacement index %lld out of range for positional args tuple", (long long)i);
        v = a->pos[i];
    }
    for (size_t k = 0; first && !numbered && k < a->n_kw; k++)
        if (oz_slice_eq(a->kw[k].name, (oz_slice){name.p, first})) v = a->kw[k].val;
    if (v.kind == OZ_TM_ABSENT) return OZ_TM_FAIL(c, "the format's field '%.*s' is not there", (int)first, name.p);
    for (size_t k = first; k < name.n && c->st == OZ_OK;) {
        bool attr = name.p[k] == '.';
        size_t from = ++k;
        while (k < name.n && (attr ? name.p[k] != '.' && name.p[k] != '[' : name.p[k] != ']')) k++;
        oz_slice part = {name.p + from, k - from};
        cursor d = {c, part.p, part.p + part.n};
        if (part.n == 0 || (!attr && k == name.n)) return OZ_TM_FAIL(c, "Empty attribute or missing ']' in format string");
        if (attr)
            v = oz_tm_getattr(c, v, part);
        else
            v = oz_tm_getitem(c, v, digits(&d, &i) && d.p == d.end ? oz_tm_int(i) : oz_tm_str(part.p, part.n));
        k += !attr;
    }
    return v;
}

/* One field, behind its "{". */
static void format_one(cursor *s, const oz_tm_args *a, int64_t *n_auto) {
    oz_tm *c = s->c;
    const char *from = s->p;
    while (s->p < s->end && *s->p != '}' && *s->p != '{' && *s->p != '!' && *s->p != ':') s->p++;
    oz_tm_val v = field_value(c, (oz_slice){from, (size_t)(s->p - from)}, a, n_auto);
    if (c->st != OZ_OK) return;
    if (s->end - s->p > 1 && *s->p == '!') {
        char how = s->p[1];
        size_t mark = oz_tm_mark(c);
        if (how == 'r')
            oz_tm_repr(c, v);
        else if (how == 's')
            oz_tm_print(c, v);
        else
            OZ_TM_UNSUPPORTED(c, "the conversion !%c is not supported", how);
        v = oz_tm_take(c, mark);
        s->p += 2;
    }
    oz_slice spec = {"", 0};
    if (s->p < s->end && *s->p == ':') {
        spec.p = ++s->p;
        while (s->p < s->end && *s->p != '}' && *s->p != '{') s->p++;
        spec.n = (size_t)(s->p - spec.p);
        if (s->p < s->end && *s->p == '{') OZ_TM_UNSUPPORTED(c, "a field in a field of a format is not supported");
    }
    if (!(s->p < s->end && *s->p == '}')) OZ_TM_FAIL(c, "expected '}' before end of string");
    s->p++;
    if (c->st == OZ_OK) put_formatted(c, v, spec);
}

oz_tm_val oz_tm_format(oz_tm *c, oz_slice fmt, const oz_tm_args *a) {
    cursor s = {c, fmt.p, fmt.p + fmt.n};
    int64_t n_auto = 0;
    size_t mark = oz_tm_mark(c);
    while (s.p < s.end && oz_tm_charge(c, 1)) {
        const char *from = s.p;
        while (s.p < s.end && *s.p != '{' && *s.p != '}') s.p++;
        oz_tm_put(c, from, (size_t)(s.p - from));
        if (s.p == s.end) break;
        char ch = *s.p++;
        if (s.p < s.end && *s.p == ch)
            oz_tm_put(c, s.p++, 1);
        else if (ch == '}')
            OZ_TM_FAIL(c, "Single '}' encountered in format string");
        else
            format_one(&s, a, &n_auto);
    }
    return oz_tm_take(c, mark);
}
