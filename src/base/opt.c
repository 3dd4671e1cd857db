#include "base/opt.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"

enum { WIDTH = 80 };
#define UNBOUNDED 1e15 /* a larger bound is not worth printing */

static const oz_opt *find(const oz_opt_cmd *cmd, const char *name, size_t n, char letter) {
    for (const oz_opt *const *t = cmd->tables; t && *t; t++) {
        for (const oz_opt *o = *t; o->name; o++) {
            if (letter ? o->letter == letter : strlen(o->name) == n && memcmp(o->name, name, n) == 0) return o;
        }
    }
    return NULL;
}

static oz_status unknown(const oz_opt_cmd *cmd, const char *arg, oz_err *err) {
    size_t n = strcspn(arg, "="), best = 3;
    const char *nearest = NULL;
    char *name = oz_strndup(arg, n);
    for (const oz_opt *const *t = cmd->tables; t && *t; t++) {
        for (const oz_opt *o = *t; o->name; o++) {
            size_t d = arg[1] == '-' ? oz_str_distance(name + 2, o->name) : best;
            if (d < best) best = d, nearest = o->name;
        }
    }
    oz_status s = nearest ? oz_err_set(err, OZ_E_USAGE, __FILE__, __LINE__, "%s: no such option of %s (did you mean --%s?)", name, cmd->name, nearest)
                          : oz_err_set(err, OZ_E_USAGE, __FILE__, __LINE__, "%s: no such option of %s", name, cmd->name);
    oz_free(name);
    return s;
}

/* "1..8", "at least 1", "" */
static const char *range_text(char out[80], const oz_opt *o) {
    out[0] = 0;
    if (o->min != 0 || o->max != 0) {
        if (o->max >= UNBOUNDED) snprintf(out, 80, "at least %.15g", o->min);
        else snprintf(out, 80, "%.15g..%.15g", o->min, o->max);
    }
    return out;
}

static bool is_choice(const char *choices, const char *value) {
    for (size_t n = strlen(value); *choices;) {
        size_t k = strcspn(choices, "|");
        if (k == n && memcmp(choices, value, n) == 0) return true;
        choices += k + (choices[k] == '|');
    }
    return false;
}

static oz_status set_number(const oz_opt *o, const char *value, oz_err *err) {
    bool whole = o->type == OZ_OPT_INT;
    char *end, range[80];
    errno = 0;
    int64_t i = whole ? strtoll(value, &end, 10) : 0;
    double d = whole ? (double)i : strtod(value, &end);
    bool bounded = o->min != 0 || o->max != 0;
    bool ok = *value && !*end && strspn(value, " \t\n") == 0 && isfinite(d) && !(whole && errno == ERANGE);
    range_text(range, o);
    if (whole && ok && bounded && o->max < UNBOUNDED * 1000) ok = i <= (int64_t)o->max; /* 2^53 + 1 is 2^53 as a double */
    ok = ok && !(bounded && (d < o->min || d > o->max));
    if (!ok && bounded && o->max < UNBOUNDED * 1000 && !(d < o->min)) snprintf(range, sizeof range, "%.15g..%.16g", o->min, o->max); /* what is not worth printing elsewhere may be what is wrong */
    OZ_NEED(ok, err, OZ_E_USAGE, "--%s: must be %s%s%s, found %s", o->name, whole ? "an integer" : "a number", *range ? ", " : "", range, *value ? value : "nothing");
    if (whole) *(int64_t *)o->dest = i;
    else *(double *)o->dest = d;
    return OZ_OK;
}

static oz_status set_value(const oz_opt *o, const char *value, oz_err *err) {
    switch (o->type) {
    case OZ_OPT_FLAG: *(bool *)o->dest = true; return OZ_OK;
    case OZ_OPT_INT:
    case OZ_OPT_FLOAT: return set_number(o, value, err);
    case OZ_OPT_STR:
        OZ_NEED(*value || !o->arg || (strcmp(o->arg, "FILE") != 0 && strcmp(o->arg, "DIR") != 0), err, OZ_E_USAGE, "--%s: its %s is empty", o->name, o->arg);
        OZ_NEED(!o->choices || is_choice(o->choices, value), err, OZ_E_USAGE, "--%s: must be one of %s, found %s", o->name, o->choices,
                *value ? value : "nothing");
        *(const char **)o->dest = value;
        return OZ_OK;
    case OZ_OPT_LIST: {
        oz_opt_list *l = o->dest;
        l->items = oz_realloc(l->items, (l->n + 1) * sizeof *l->items);
        l->items[l->n++] = value;
        return OZ_OK;
    }
    }
    return OZ_OK;
}

/* One option at argv[*i]; *i moves past a value of its own. */
static oz_status parse_one(const oz_opt_cmd *cmd, int argc, char **argv, int *i, oz_err *err) {
    const char *arg = argv[*i], *value = NULL;
    const oz_opt *o;
    if (arg[1] == '-') {
        size_t n = strcspn(arg + 2, "=");
        o = find(cmd, arg + 2, n, 0);
        if (arg[2 + n]) value = arg + 2 + n + 1;
    } else {
        o = find(cmd, NULL, 0, arg[1]);
        if (o && arg[2]) { /* -n5 */
            if (o->type == OZ_OPT_FLAG) o = NULL;
            else value = arg + 2;
        }
    }
    if (!o) return unknown(cmd, arg, err);
    if (o->type == OZ_OPT_FLAG) {
        OZ_NEED(!value, err, OZ_E_USAGE, "--%s: takes no value, found %s", o->name, value);
        return set_value(o, NULL, err);
    }
    if (!value) {
        const char *what = o->arg ? o->arg : "value";
        OZ_NEED(*i + 1 < argc, err, OZ_E_USAGE, "--%s: its %s is missing", o->name, what);
        value = argv[++*i];
        /* A text may begin with dashes, a forgotten value is likelier: `-o --force` must not make a folder "--force". */
        OZ_NEED(strncmp(value, "--", 2) != 0, err, OZ_E_USAGE, "--%s: its %s is missing before %s (write --%s=%s if that is the %s)", o->name, what,
                value, o->name, value, what);
    }
    return set_value(o, value, err);
}

oz_status oz_opt_parse(const oz_opt_cmd *cmd, int argc, char **argv, const char **args, int *n_args, bool *help, oz_err *err) {
    *n_args = 0;
    *help = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) { /* first, so that no default has been changed when it is printed */
        if (strcmp(argv[i], "--help") == 0) {
            *help = true;
            return OZ_OK;
        }
    }
    bool only_args = false;
    for (int i = 1; i < argc; i++) {
        if (only_args || argv[i][0] != '-' || !argv[i][1]) {
            OZ_NEED(*argv[i], err, OZ_E_USAGE, "%s: argument %d is empty: ounce %s %s", cmd->name, *n_args + 1, cmd->name, cmd->usage);
            args[(*n_args)++] = argv[i];
        }
        else if (strcmp(argv[i], "--") == 0) only_args = true;
        else if (strcmp(argv[i], "-h") == 0 && !find(cmd, NULL, 0, 'h')) return *help = true, OZ_OK;
        else OZ_TRY(parse_one(cmd, argc, argv, &i, err));
    }
    OZ_NEED(*n_args >= cmd->min_args, err, OZ_E_USAGE, "%s: an argument is missing: ounce %s %s", cmd->name, cmd->name, cmd->usage);
    OZ_NEED(cmd->max_args < 0 || *n_args <= cmd->max_args, err, OZ_E_USAGE, "%s: one argument too many, %s: ounce %s %s",
            cmd->name, args[cmd->max_args], cmd->name, cmd->usage);
    return OZ_OK;
}

void oz_opt_lists_free(const oz_opt_cmd *cmd) {
    for (const oz_opt *const *t = cmd->tables; t && *t; t++) {
        for (const oz_opt *o = *t; o->name; o++) {
            if (o->type != OZ_OPT_LIST) continue;
            oz_opt_list *l = o->dest;
            oz_free(l->items);
            *l = (oz_opt_list){0};
        }
    }
}

/* ---- help and manual ---- */

/* "a help text (1..8, default 4)" */
static void describe(oz_buf *b, const oz_opt *o) {
    char range[80];
    oz_buf_puts(b, o->help);
    size_t open = b->len;
    const char *sep = " (";
    if (o->choices) oz_buf_printf(b, "%s%s", sep, o->choices), sep = ", ";
    else if (*range_text(range, o)) oz_buf_printf(b, "%s%s", sep, range), sep = ", ";
    const double n = o->type == OZ_OPT_INT ? (double)*(int64_t *)o->dest : o->type == OZ_OPT_FLOAT ? *(double *)o->dest : 0;
    const bool unset = *range && (n < o->min || n > o->max); /* no value that could be given: the help text says what then happens */
    if (o->type == OZ_OPT_INT && !unset) oz_buf_printf(b, "%sdefault %lld", sep, (long long)*(int64_t *)o->dest);
    if (o->type == OZ_OPT_FLOAT && !unset) oz_buf_printf(b, "%sdefault %g", sep, n);
    if (o->type == OZ_OPT_STR && *(const char **)o->dest) oz_buf_printf(b, "%sdefault %s", sep, *(const char **)o->dest);
    if (o->type == OZ_OPT_LIST) oz_buf_printf(b, "%smay be repeated", sep);
    if (b->len > open) oz_buf_putc(b, ')');
}

static void wrap(FILE *out, const char *text, int indent, int column) {
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > indent && column + 1 + (int)n > WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, n, out);
        column += (int)n;
        text += n + (text[n] == ' ');
    }
    fputc('\n', out);
}

/* Paragraphs are lines: each is wrapped, but one that begins with a space stays as it is. */
static void details_help(FILE *out, const char *text) {
    oz_buf line = {0};
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        oz_buf_clear(&line);
        oz_buf_append(&line, text, n);
        if (*text == ' ') fprintf(out, "%s\n", line.data);
        else wrap(out, line.data, 0, 0);
    }
    oz_buf_deinit(&line);
}

static void left_side(oz_buf *b, const oz_opt *o) {
    oz_buf_clear(b);
    if (o->letter) oz_buf_printf(b, "-%c, --%s", o->letter, o->name);
    else oz_buf_printf(b, "    --%s", o->name);
    if (o->type != OZ_OPT_FLAG) oz_buf_printf(b, " %s", o->arg ? o->arg : "VALUE");
}

void oz_opt_help(const oz_opt_cmd *cmd, FILE *out) {
    enum { COLUMN = 30 };
    fprintf(out, "usage: ounce %s %s\n\n", cmd->name, cmd->usage);
    wrap(out, cmd->summary, 0, 0);
    if (cmd->details) {
        fputc('\n', out);
        details_help(out, cmd->details);
    }
    fputs("\noptions:\n", out);
    oz_buf left = {0}, right = {0};
    for (const oz_opt *const *t = cmd->tables; t && *t; t++) {
        for (const oz_opt *o = *t; o->name; o++) {
            left_side(&left, o);
            oz_buf_clear(&right);
            describe(&right, o);
            fprintf(out, "  %-*s", COLUMN - 2, left.data);
            if (left.len + 2 >= COLUMN) fprintf(out, "\n%*s", COLUMN, "");
            wrap(out, right.data, COLUMN, COLUMN);
        }
    }
    fprintf(out, "  %-*s%s\n", COLUMN - 2, "    --help", "print this");
    oz_buf_deinit(&left);
    oz_buf_deinit(&right);
}

/* One line of text. */
static void troff(FILE *out, const char *s, size_t n) {
    if (n && (*s == '.' || *s == '\'')) fputs("\\&", out);
    for (; n--; s++) {
        if (*s == '\\') fputs("\\e", out);
        else if (*s == '-') fputs("\\-", out);
        else fputc(*s, out);
    }
}

/* troff fills lines, and leaves alone one that begins with a space: the same rule as for --help, once the others are kept apart. */
static void details_man(FILE *out, const char *text) {
    fputs(".PP\n", out);
    for (size_t n; *text;) {
        n = strcspn(text, "\n");
        troff(out, text, n);
        fputc('\n', out);
        text += n + (text[n] == '\n');
        if (n && *text && *text != '\n' && *text != ' ') fputs(".br\n", out);
    }
}

void oz_opt_man(const oz_opt_cmd *cmd, FILE *out) {
    fputs(".SH \"OUNCE ", out);
    for (const char *s = cmd->name; *s; s++) fputc(*s >= 'a' && *s <= 'z' ? *s - 'a' + 'A' : *s, out);
    fprintf(out, "\"\n.B ounce %s\n", cmd->name);
    troff(out, cmd->usage, strlen(cmd->usage));
    fputs("\n.PP\n", out);
    troff(out, cmd->summary, strlen(cmd->summary));
    fputc('\n', out);
    if (cmd->details) details_man(out, cmd->details);
    oz_buf b = {0};
    for (const oz_opt *const *t = cmd->tables; t && *t; t++) {
        for (const oz_opt *o = *t; o->name; o++) {
            fputs(".TP\n.B ", out);
            left_side(&b, o);
            size_t indent = strspn(b.data, " ");
            troff(out, b.data + indent, b.len - indent);
            fputc('\n', out);
            oz_buf_clear(&b);
            describe(&b, o);
            troff(out, b.data, b.len);
            fputc('\n', out);
        }
    }
    oz_buf_deinit(&b);
}
