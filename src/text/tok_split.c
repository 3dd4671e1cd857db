/* Pre-tokenisers: how a text is cut into the words that the model sees. Every type comes down to steps of one kind: put a space in
 * front, then cut by a pattern. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

enum { MAX_PATTERN_BYTES = 16 << 10 }; /* a character becomes a set of up to a kilobyte */

/* What GPT-2 cuts by. */
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static oz_status step_new(oz_split_step **s, oz_split *z, oz_jpath path, oz_err *err) {
    OZ_NEED(z->n < OZ_TOK_MAX_STEPS, err, OZ_E_UNSUPPORTED, "%s: more than %d pre-tokenizers", path.s, OZ_TOK_MAX_STEPS);
    OZ_NEED(!z->byte_level, err, OZ_E_UNSUPPORTED, "%s: not supported behind a ByteLevel pre-tokenizer", path.s);
    *s = &z->step[z->n++];
    return OZ_OK;
}

static oz_status parse_byte_level(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split *z = self;
    oz_split_step *s = NULL;
    bool trim = true;
    OZ_TRY(step_new(&s, z, path, err));
    s->prefix_space = true;
    OZ_TRY(oz_json_flag(&s->prefix_space, obj, path, "add_prefix_space", err));
    s->cuts = true;
    OZ_TRY(oz_json_flag(&s->cuts, obj, path, "use_regex", err));
    OZ_TRY(oz_json_flag(&trim, obj, path, "trim_offsets", err)); /* moves offsets only */
    z->byte_level = true;
    return s->cuts ? oz_pattern_parse(&s->pattern, &z->sets, oz_slice_view(gpt2), err) : OZ_OK;
}

static oz_status parse_digits(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split *z = self;
    oz_split_step *s = NULL;
    bool individual = false;
    OZ_TRY(step_new(&s, z, path, err));
    OZ_TRY(oz_json_flag(&individual, obj, path, "individual_digits", err));
    s->cuts = true;
    s->behavior = individual ? OZ_SPLIT_ISOLATED : OZ_SPLIT_CONTIGUOUS;
    return oz_pattern_class(&s->pattern, &z->sets, "Digits", err);
}

static oz_status parse_behavior(oz_split_behavior *out, const json_t *obj, oz_jpath path, oz_err *err) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    OZ_TRY(oz_json_str(&name, obj, path.s, "behavior", err));
    for (int i = 0; i < 5 && name; i++)
        if (strcmp(name, names[i]) == 0) return *out = (oz_split_behavior)i, OZ_OK;
    OZ_FAIL(err, OZ_E_FORMAT, "%s.behavior: must be Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous, found %s", path.s,
            oz_json_show(json_object_get(obj, "behavior")));
}

static oz_status parse_split(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_split *z = self;
    oz_split_step *s = NULL;
    OZ_TRY(step_new(&s, z, path, err));
    OZ_TRY(parse_behavior(&s->behavior, obj, path, err));
    OZ_TRY(oz_json_flag(&s->invert, obj, path, "invert", err));
    const json_t *pattern = json_object_get(obj, "pattern");
    oz_jpath at = oz_jpath_key(path, "pattern");
    OZ_TRY(oz_json_keys(pattern, at, "Regex|String", err));
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String"), *p = regex ? regex : string;
    OZ_NEED(json_is_string(p) && json_object_size(pattern) == 1, err, OZ_E_FORMAT,
            "%s: must be {\"Regex\": \"..\"} or {\"String\": \"..\"}, found %s", at.s, oz_json_show(pattern));
    OZ_NEED(json_string_length(p) <= MAX_PATTERN_BYTES, err, OZ_E_UNSUPPORTED, "%s: must be at most %d bytes, found %zu", at.s,
            MAX_PATTERN_BYTES, json_string_length(p));
    oz_status (*parse)(oz_buf *, oz_sets *, oz_slice, oz_err *) = regex ? oz_pattern_parse : oz_pattern_literal;
    s->cuts = true;
    if (parse(&s->pattern, &z->sets, (oz_slice){json_string_value(p), json_string_length(p)}, err) == OZ_OK) return OZ_OK;
    return oz_err_prefix(err, "%s", at.s);
}

static const oz_stage_row rows[] = {
    {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex", NULL, parse_byte_level},
    {"Digits", "type|individual_digits", NULL, parse_digits},
    {"Split", "type|pattern|behavior|invert", NULL, parse_split},
    {"Sequence", "type|pretokenizers", "pretokenizers", NULL},
    {0},
};

oz_status oz_split_parse(oz_split *z, const json_t *v, oz_err *err) {
    OZ_TRY(oz_stage_parse(z, rows, v, (oz_jpath){"pre_tokenizer"}, err));
    bool cuts = false;
    for (size_t i = 0; i < z->n; i++) cuts |= z->step[i].cuts;
    oz_status st = cuts ? oz_alphabet_make(&z->alphabet, &z->sets, err) : OZ_OK;
    for (size_t i = 0; i < z->n && st == OZ_OK; i++) {
        oz_split_step *s = &z->step[i];
        if (s->cuts) st = oz_matcher_new(&s->code, &z->alphabet, (oz_slice){s->pattern.data, s->pattern.len}, err);
        oz_buf_deinit(&s->pattern);
    }
    oz_sets_deinit(&z->sets);
    return st == OZ_OK ? OZ_OK : oz_err_prefix(err, "pre_tokenizer");
}

void oz_split_deinit(oz_split *z) {
    for (size_t i = 0; i < z->n; i++) {
        oz_matcher_free(&z->step[i].code);
        oz_buf_deinit(&z->step[i].pattern);
    }
    oz_sets_deinit(&z->sets);
    oz_alphabet_deinit(&z->alphabet);
}

/* ---- cutting */

typedef struct piece {
    oz_slice text;
    const uint8_t *kinds;
    size_t n_kinds;
} piece; /* a kind for each character */

typedef struct cutter {
    const oz_split *z;
    oz_matching *matching;
    oz_arena *arena; /* outlives the words */
    oz_split_fn *fn;
    void *self;
} cutter;

static oz_status run(cutter *c, size_t step, piece p, oz_err *err);

/* A growing range of characters that is handed on when the next one does not join it. */
typedef struct pending {
    piece p;
    bool any, matched;
} pending;

static oz_status flush(cutter *c, size_t step, pending *q, oz_err *err) {
    bool dropped = c->z->step[step].behavior == OZ_SPLIT_REMOVED && q->matched;
    return q->any && q->p.text.n && !dropped ? run(c, step + 1, q->p, err) : OZ_OK;
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
    piece p = {{rest->text.p, n}, rest->kinds, n_kinds};
    *rest = (piece){{p.text.p + n, rest->text.n - n}, p.kinds + n_kinds, rest->n_kinds - n_kinds};
    matched ^= s->invert;
    if (q->any && joins(s->behavior, q->matched, matched)) {
        q->p.text.n += n;
        q->p.n_kinds += n_kinds;
    } else {
        OZ_TRY(flush(c, step, q, err));
        q->p = p;
    }
    q->any = true;
    q->matched = matched;
    return OZ_OK;
}

/* Ranges that match and what lies between them. An empty match directly behind a match is none; elsewhere it cuts. */
static oz_status cut(cutter *c, size_t step, piece p, oz_err *err) {
    const oz_split_step *s = &c->z->step[step];
    pending q = {0};
    piece rest = p;
    size_t from = 0, done = 0, last_end = SIZE_MAX;
    while (from <= p.n_kinds) {
        oz_match m;
        OZ_TRY(oz_matching_find(&m, c->matching, s->code, p.kinds, p.n_kinds, from, err));
        if (!m.found) break;
        if (m.begin == m.end && m.end == last_end) {
            from++;
            continue;
        }
        if (m.begin > done) OZ_TRY(add(c, step, &q, &rest, m.begin - done, false, err));
        OZ_TRY(add(c, step, &q, &rest, m.end - m.begin, true, err));
        from = done = last_end = m.end;
    }
    if (rest.n_kinds) OZ_TRY(add(c, step, &q, &rest, rest.n_kinds, false, err));
    return flush(c, step, &q, err);
}

static oz_status put_space(cutter *c, piece *p, oz_err *err) {
    char *text = oz_arena_alloc(c->arena, p->text.n + 1);
    uint8_t *kinds = p->kinds ? oz_arena_alloc(c->arena, p->n_kinds + 1) : NULL;
    OZ_NEED(text && (kinds || !p->kinds), err, OZ_E_NOMEM, "no memory for a text of %zu bytes", p->text.n);
    text[0] = ' ';
    memcpy(text + 1, p->text.p, p->text.n);
    if (kinds) {
        kinds[0] = c->z->alphabet.kind[' '];
        memcpy(kinds + 1, p->kinds, p->n_kinds);
    }
    *p = (piece){{text, p->text.n + 1}, kinds, p->n_kinds + 1};
    return OZ_OK;
}

static oz_status run(cutter *c, size_t step, piece p, oz_err *err) {
    if (step == c->z->n) return c->fn(c->self, p.text, err);
    const oz_split_step *s = &c->z->step[step];
    if (s->prefix_space && p.text.p[0] != ' ') OZ_TRY(put_space(c, &p, err));
    return s->cuts ? cut(c, step, p, err) : run(c, step + 1, p, err);
}

oz_status oz_split_run(const oz_split *z, oz_slice text, oz_split_work *w, oz_split_fn *fn, void *self, oz_err *err) {
    if (!text.n) return OZ_OK;
    cutter c = {z, NULL, w->arena, fn, self};
    piece p = {text, NULL, 0};
    if (z->alphabet.kind) {
        if (!w->matching) w->matching = oz_matching_new();
        OZ_NEED(w->matching, err, OZ_E_NOMEM, "no memory to match patterns");
        if (w->cap < text.n) {
            oz_big_free(w->kinds);
            w->kinds = NULL;
            w->cap = 0;
            OZ_TRY(oz_big_new((void **)&w->kinds, text.n, "the kinds of characters of a text", err));
            w->cap = text.n;
        }
        c.matching = w->matching;
        p.kinds = w->kinds;
        p.n_kinds = oz_alphabet_map(w->kinds, &z->alphabet, text);
    }
    return run(&c, 0, p, err);
}

void oz_split_work_deinit(oz_split_work *w) {
    oz_matching_free(&w->matching);
    oz_big_free(w->kinds);
    oz_arena_free(&w->arena);
}
