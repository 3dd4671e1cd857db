/* Pre-tokenisers: how a text is cut into the words that the model sees. Every type comes down to steps of one kind: write a mark for
 * each space and put one in front, cut, spell the bytes of what was cut. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

/* What GPT-2 cuts by; words and runs of other characters; white space. */
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct piece {
    oz_slice text;
    size_t zero;          /* bytes at its beginning that come from the first character of the whole text */
    const uint8_t *kinds; /* of each character; NULL: not known yet */
    size_t n_kinds;
} piece;

typedef struct cutter {
    const oz_split *z;
    oz_split_work *w;
    oz_split_fn *fn;
    void *self;
} cutter;

static oz_status cut_pattern(cutter *c, size_t step, piece p, oz_err *err);
static oz_status cut_mark(cutter *c, size_t step, piece p, oz_err *err);
static oz_status cut_length(cutter *c, size_t step, piece p, oz_err *err);
static oz_status cut_scripts(cutter *c, size_t step, piece p, oz_err *err);

/* ---- reading */

static oz_status step_new(oz_split_step **s, oz_split *z, oz_jpath path, oz_err *err) {
    OZ_NEED(z->n < OZ_TOK_MAX_STEPS, err, OZ_E_UNSUPPORTED, "%s: more than %d pre-tokenizers", path.s, OZ_TOK_MAX_STEPS);
    *s = &z->step[z->n++];
    return OZ_OK;
}

static oz_status parse_byte_level(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split *z = self;
    oz_split_step *s = NULL;
    bool trim = true, prefix = true, cuts = true;
    OZ_TRY(step_new(&s, z, path, err));
    OZ_TRY(oz_json_flag(&prefix, obj, path, "add_prefix_space", err));
    OZ_TRY(oz_json_flag(&cuts, obj, path, "use_regex", err));
    OZ_TRY(oz_json_flag(&trim, obj, path, "trim_offsets", err)); /* moves offsets only */
    s->spells = true;
    if (prefix) {
        oz_buf_puts(&s->mark, " ");
        s->prepend = OZ_PREPEND_ALWAYS;
    }
    if (!cuts) return OZ_OK;
    s->cut = cut_pattern;
    return oz_pattern_parse(&s->pattern, &z->sets, oz_slice_view(gpt2), err);
}

static oz_status parse_name(int *out, const json_t *obj, oz_jpath path, const char *key, const char *const *names, const char *list,
                            oz_err *err) {
    const char *name = NULL;
    OZ_TRY(oz_json_str(&name, obj, path.s, key, err));
    for (int i = 0; names[i] && name; i++)
        if (strcmp(name, names[i]) == 0) return *out = i, OZ_OK;
    OZ_NEED(*out >= 0 && !name, err, OZ_E_FORMAT, "%s.%s: must be %s, found %s", path.s, key, list,
            oz_json_show(json_object_get(obj, key)));
    return OZ_OK;
}

static oz_status parse_behavior(oz_split_behavior *out, int missing, const json_t *obj, oz_jpath path, oz_err *err) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous", NULL};
    int k = missing;
    OZ_TRY(parse_name(&k, obj, path, "behavior", names, "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", err));
    *out = (oz_split_behavior)k;
    return OZ_OK;
}

oz_status oz_metaspace_parse(oz_metaspace *out, oz_buf *mark, const json_t *obj, oz_jpath path, oz_err *err) {
    static const char *const schemes[] = {"never", "first", "always", NULL};
    bool prefix = true;
    int scheme = OZ_PREPEND_ALWAYS;
    OZ_TRY(oz_json_char_of(mark, obj, path, "replacement", err));
    OZ_TRY(parse_name(&scheme, obj, path, "prepend_scheme", schemes, "first, never or always", err));
    OZ_TRY(oz_json_flag(&prefix, obj, path, "add_prefix_space", err)); /* what older files write */
    OZ_NEED(prefix || scheme == OZ_PREPEND_NEVER, err, OZ_E_FORMAT, "%s: add_prefix_space is false, and prepend_scheme is \"%s\"", path.s,
            schemes[scheme]);
    *out = (oz_metaspace){(oz_split_prepend)scheme, true};
    return oz_json_flag(&out->cuts, obj, path, "split", err);
}

static oz_status parse_metaspace(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split_step *s = NULL;
    oz_metaspace m;
    OZ_TRY(step_new(&s, self, path, err));
    OZ_TRY(oz_metaspace_parse(&m, &s->mark, obj, path, err));
    s->prepend = m.prepend;
    s->marks = true;
    if (m.cuts) s->cut = cut_mark;
    return OZ_OK;
}

static oz_status class_step(oz_split *z, const char *name, oz_split_behavior behavior, oz_jpath path, oz_err *err) {
    oz_split_step *s = NULL;
    OZ_TRY(step_new(&s, z, path, err));
    s->cut = cut_pattern;
    s->behavior = behavior;
    return oz_pattern_class(&s->pattern, &z->sets, name, err);
}

static oz_status parse_digits(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    bool individual = false;
    OZ_TRY(oz_json_flag(&individual, obj, path, "individual_digits", err));
    return class_step(self, "digits", individual ? OZ_SPLIT_ISOLATED : OZ_SPLIT_CONTIGUOUS, path, err);
}

static oz_status parse_punctuation(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split_behavior behavior;
    OZ_TRY(parse_behavior(&behavior, OZ_SPLIT_ISOLATED, obj, path, err));
    return class_step(self, "punctuation", behavior, path, err);
}

static oz_status parse_white(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    return class_step(self, "s", OZ_SPLIT_REMOVED, path, err);
}

static oz_status parse_bert(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    OZ_TRY(parse_white(self, obj, path, err));
    return class_step(self, "punctuation", OZ_SPLIT_ISOLATED, path, err);
}

/* Words, and runs of what is neither word nor white space; what is a word is told by the class of neighbours of added tokens. */
static oz_status parse_whitespace(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split *z = self;
    oz_split_step *s = NULL;
    OZ_TRY(step_new(&s, z, path, err));
    s->cut = cut_pattern;
    s->behavior = OZ_SPLIT_REMOVED;
    s->invert = true;
    OZ_TRY(oz_pattern_class(&s->pattern, &z->sets, "neighbour", err));
    oz_buf_puts(&s->pattern, "+|");
    OZ_TRY(oz_pattern_classless(&s->pattern, &z->sets, "neighbour", "s", err));
    oz_buf_puts(&s->pattern, "+");
    return OZ_OK;
}

static oz_status parse_split(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split *z = self;
    oz_split_step *s = NULL;
    oz_slice pattern;
    bool is_regex;
    oz_jpath at = oz_jpath_key(path, "pattern");
    OZ_TRY(step_new(&s, z, path, err));
    OZ_TRY(parse_behavior(&s->behavior, -1, obj, path, err));
    OZ_TRY(oz_json_flag(&s->invert, obj, path, "invert", err));
    OZ_TRY(oz_pattern_json(&pattern, &is_regex, json_object_get(obj, "pattern"), at, err));
    s->cut = cut_pattern;
    if ((is_regex ? oz_pattern_parse : oz_pattern_literal)(&s->pattern, &z->sets, pattern, err) == OZ_OK) return OZ_OK;
    return oz_err_prefix(err, "%s", at.s);
}

static oz_status parse_delimiter(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split *z = self;
    oz_split_step *s = NULL;
    oz_buf c = {0};
    OZ_TRY(step_new(&s, z, path, err));
    s->cut = cut_pattern;
    s->behavior = OZ_SPLIT_REMOVED;
    oz_status st = oz_json_char_of(&c, obj, path, "delimiter", err);
    if (st == OZ_OK) st = oz_pattern_literal(&s->pattern, &z->sets, (oz_slice){c.data, c.len}, err);
    oz_buf_deinit(&c);
    return st;
}

static oz_status parse_length(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split_step *s = NULL;
    OZ_TRY(step_new(&s, self, path, err));
    s->cut = cut_length;
    s->length = 5;
    return oz_json_int(&s->length, obj, path.s, "length", 1, INT64_MAX, err);
}

static oz_status parse_scripts(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split_step *s = NULL;
    OZ_TRY(step_new(&s, self, path, err));
    s->cut = cut_scripts;
    return OZ_OK;
}

static const oz_stage_row rows[] = {
    {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex", NULL, parse_byte_level},
    {"Metaspace", "type|replacement|prepend_scheme|split|add_prefix_space|str_rep", NULL, parse_metaspace},
    {"Digits", "type|individual_digits", NULL, parse_digits},
    {"Split", "type|pattern|behavior|invert", NULL, parse_split},
    {"Punctuation", "type|behavior", NULL, parse_punctuation},
    {"Whitespace", "type", NULL, parse_whitespace},
    {"WhitespaceSplit", "type", NULL, parse_white},
    {"BertPreTokenizer", "type", NULL, parse_bert},
    {"CharDelimiterSplit", "type|delimiter", NULL, parse_delimiter},
    {"FixedLength", "type|length", NULL, parse_length},
    {"UnicodeScripts", "type", NULL, parse_scripts},
    {"Sequence", "type|pretokenizers", "pretokenizers", NULL},
    {0},
};

oz_status oz_split_parse(oz_split *z, const json_t *v, oz_err *err) {
    OZ_TRY(oz_stage_parse(z, rows, v, (oz_jpath){"pre_tokenizer"}, err));
    bool cuts = false;
    for (size_t i = 0; i < z->n; i++) cuts |= z->step[i].cut == cut_pattern;
    oz_status st = cuts ? oz_alphabet_make(&z->alphabet, &z->sets, err) : OZ_OK;
    for (size_t i = 0; i < z->n && st == OZ_OK; i++) {
        oz_split_step *s = &z->step[i];
        if (s->cut == cut_pattern) st = oz_matcher_new(&s->code, &z->alphabet, (oz_slice){s->pattern.data, s->pattern.len}, err);
        oz_buf_deinit(&s->pattern);
    }
    oz_sets_deinit(&z->sets);
    return st == OZ_OK ? OZ_OK : oz_err_prefix(err, "pre_tokenizer");
}

bool oz_split_take_bytes(oz_split *z) {
    if (!z->n || !z->step[z->n - 1].spells) return false;
    z->step[z->n - 1].spells = false;
    return true;
}

void oz_split_deinit(oz_split *z) {
    for (size_t i = 0; i < z->n; i++) {
        oz_matcher_free(&z->step[i].code);
        oz_buf_deinit(&z->step[i].pattern);
        oz_buf_deinit(&z->step[i].mark);
    }
    oz_sets_deinit(&z->sets);
    oz_alphabet_deinit(&z->alphabet);
}

/* ---- cutting */

static oz_status run(cutter *c, size_t step, piece p, oz_err *err);

static char *room(cutter *c, size_t n, oz_err *err) {
    char *p = oz_arena_alloc(c->w->arena, n ? n : 1);
    if (!p) oz_err_set(err, OZ_E_NOMEM, __FILE__, __LINE__, "no memory to cut this text into words: its pre-tokenizers make it grow");
    return p;
}

/* Bytes as the characters that stand for them; the kinds are others then. */
static oz_status spell(cutter *c, piece *p, oz_err *err) {
    char *text = room(c, 2 * p->text.n, err);
    if (!text) return OZ_E_NOMEM;
    size_t n = 0, zero = 0;
    for (size_t i = 0; i < p->text.n; i++) {
        n += oz_utf8_encode(text + n, oz_byte_char((uint8_t)p->text.p[i]));
        if (i < p->zero) zero = n;
    }
    *p = (piece){{text, n}, zero, NULL, 0};
    return OZ_OK;
}

/* Hands a piece that a step made to the next one. */
static oz_status pass(cutter *c, size_t step, piece p, oz_err *err) {
    if (!p.text.n) return OZ_OK;
    if (c->z->step[step].spells) OZ_TRY(spell(c, &p, err));
    return run(c, step + 1, p, err);
}

/* The first n bytes of *rest, which are n_kinds characters, become a piece. */
static piece take(piece *rest, size_t n, size_t n_kinds) {
    piece p = {{rest->text.p, n}, rest->zero < n ? rest->zero : n, rest->kinds, n_kinds};
    rest->text = (oz_slice){rest->text.p + n, rest->text.n - n};
    rest->zero -= p.zero;
    if (rest->kinds) {
        rest->kinds += n_kinds;
        rest->n_kinds -= n_kinds;
    }
    return p;
}

/* A growing range of characters that is handed on when the next one does not join it. */
typedef struct pending {
    piece p;
    bool any, matched;
} pending;

static oz_status flush(cutter *c, size_t step, pending *q, oz_err *err) {
    bool dropped = c->z->step[step].behavior == OZ_SPLIT_REMOVED && q->matched;
    return q->any && !dropped ? pass(c, step, q->p, err) : OZ_OK;
}

/* Whether a range joins the one before it. */
static bool joins(oz_split_behavior b, bool before, bool now) {
    switch (b) {
    case OZ_SPLIT_MERGED_WITH_PREVIOUS:
        return now && !before;
    case OZ_SPLIT_MERGED_WITH_NEXT:
        return before && !now;
    case OZ_SPLIT_CONTIGUOUS:
        return before == now;
    default:
        return false;
    }
}

static oz_status add(cutter *c, size_t step, pending *q, piece *rest, size_t n_kinds, bool matched, oz_err *err) {
    const oz_split_step *s = &c->z->step[step];
    size_t n = 0;
    for (size_t i = 0; i < n_kinds; i++) n += oz_uc_len(rest->text.p[n]);
    piece p = take(rest, n, n_kinds);
    matched ^= s->invert;
    if (q->any && joins(s->behavior, q->matched, matched)) {
        q->p.text.n += n;
        q->p.zero += p.zero;
        q->p.n_kinds += n_kinds;
    } else {
        OZ_TRY(flush(c, step, q, err));
        q->p = p;
    }
    q->any = true;
    q->matched = matched;
    return OZ_OK;
}

/* The kinds of a text that a step changed; those of a text as it came lie in the work. */
static oz_status kinds_make(cutter *c, piece *p, oz_err *err) {
    if (p->kinds) return OZ_OK;
    uint8_t *kinds = (uint8_t *)room(c, p->text.n, err);
    if (!kinds) return OZ_E_NOMEM;
    p->n_kinds = oz_alphabet_map(kinds, &c->z->alphabet, p->text);
    p->kinds = kinds;
    return OZ_OK;
}

/* Ranges that match and what lies between them. */
static oz_status cut_pattern(cutter *c, size_t step, piece p, oz_err *err) {
    OZ_TRY(kinds_make(c, &p, err));
    pending q = {0};
    piece rest = p;
    oz_matches it = oz_matches_of(c->z->step[step].code, p.kinds, p.n_kinds);
    for (size_t done = 0;;) {
        oz_match m;
        OZ_TRY(oz_matches_next(&m, &it, c->w->match.matching, err));
        if (!m.found) break;
        if (m.begin > done) OZ_TRY(add(c, step, &q, &rest, m.begin - done, false, err));
        OZ_TRY(add(c, step, &q, &rest, m.end - m.begin, true, err));
        done = m.end;
    }
    if (rest.n_kinds) OZ_TRY(add(c, step, &q, &rest, rest.n_kinds, false, err));
    return flush(c, step, &q, err);
}

/* In front of each mark. */
static oz_status cut_mark(cutter *c, size_t step, piece p, oz_err *err) {
    const oz_buf *mark = &c->z->step[step].mark;
    p.kinds = NULL;
    while (p.text.n) {
        const char *next = p.text.n > mark->len ? memmem(p.text.p + 1, p.text.n - 1, mark->data, mark->len) : NULL;
        OZ_TRY(pass(c, step, take(&p, next ? (size_t)(next - p.text.p) : p.text.n, 0), err));
    }
    return OZ_OK;
}

static oz_status cut_length(cutter *c, size_t step, piece p, oz_err *err) {
    p.kinds = NULL;
    while (p.text.n) {
        size_t n = 0;
        for (int64_t i = 0; i < c->z->step[step].length && n < p.text.n; i++) n += oz_uc_len(p.text.p[n]);
        OZ_TRY(pass(c, step, take(&p, n, 0), err));
    }
    return OZ_OK;
}

/* Where the script changes. A space, and what has no script, belong to what is before them; at the beginning they are lost, as in the
 * reference. */
static oz_status cut_scripts(cutter *c, size_t step, piece p, oz_err *err) {
    int last = -1;
    size_t n = 0;
    p.kinds = NULL;
    for (uint32_t ch; n < p.text.n;) {
        size_t len = oz_uc_next(p.text.p + n, &ch);
        int script = oz_uc_script(ch);
        if (script != OZ_UC_NO_SCRIPT && script != last) {
            piece before = take(&p, n, 0);
            if (last >= 0) OZ_TRY(pass(c, step, before, err));
            n = 0;
            last = script;
        }
        n += len;
    }
    return last >= 0 ? pass(c, step, p, err) : OZ_OK;
}

/* Marks for spaces, and one in front. */
static oz_status mark(cutter *c, const oz_split_step *s, piece *p, oz_err *err) {
    const oz_buf *m = &s->mark;
    size_t n_spaces = 0, n = 0;
    for (size_t i = 0; i < p->text.n && s->marks; i++) n_spaces += p->text.p[i] == ' ';
    bool begins = (p->text.n >= m->len && memcmp(p->text.p, m->data, m->len) == 0) || (s->marks && p->text.p[0] == ' ');
    bool puts = !begins && (s->prepend == OZ_PREPEND_ALWAYS || (s->prepend == OZ_PREPEND_FIRST && p->zero > 0));
    if (!n_spaces && !puts) return OZ_OK;
    char *text = room(c, p->text.n + (n_spaces + 1) * m->len, err);
    if (!text) return OZ_E_NOMEM;
    size_t zero = 0;
    if (puts) {
        memcpy(text, m->data, m->len);
        n = m->len;
    }
    for (size_t i = 0; i < p->text.n; i++) {
        if (s->marks && p->text.p[i] == ' ') {
            memcpy(text + n, m->data, m->len);
            n += m->len;
        } else {
            text[n++] = p->text.p[i];
        }
        if (i < p->zero) zero = n;
    }
    *p = (piece){{text, n}, zero, NULL, 0};
    return OZ_OK;
}

static oz_status run(cutter *c, size_t step, piece p, oz_err *err) {
    if (step == c->z->n) return c->fn(c->self, p.text, err);
    const oz_split_step *s = &c->z->step[step];
    if (s->mark.len) OZ_TRY(mark(c, s, &p, err));
    return s->cut ? s->cut(c, step, p, err) : pass(c, step, p, err);
}

oz_status oz_split_run(const oz_split *z, oz_slice text, size_t zero, oz_split_work *w, oz_split_fn *fn, void *self, oz_err *err) {
    if (!text.n) return OZ_OK;
    cutter c = {z, w, fn, self};
    piece p = {text, zero, NULL, 0};
    if (z->alphabet.kind) {
        OZ_TRY(oz_match_work_room(&w->match, text.n, err));
        if (!z->step[0].mark.len) {
            p.kinds = w->match.kinds;
            p.n_kinds = oz_alphabet_map(w->match.kinds, &z->alphabet, text);
        }
    }
    return run(&c, 0, p, err);
}

void oz_split_work_deinit(oz_split_work *w) {
    oz_match_work_deinit(&w->match);
    oz_arena_free(&w->arena);
}
