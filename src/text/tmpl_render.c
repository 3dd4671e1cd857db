/* Chat templates for the rest of the program: parsing, and rendering of messages with what the reference does around the template. */
#include "base/map.h"
#include "text/tmpl_internal.h"
#include <string.h>

/* ---- parsing ---- */

void oz_template_free(oz_template **t) {
    if (!*t) return;
    oz_arena_free(&(*t)->arena);
    oz_free((*t)->names);
    oz_free(*t);
    *t = NULL;
}

static void parse(oz_template *t, oz_buf *text, oz_tm *c) {
    oz_tm_parser p = {.t = t, .c = *c, .names = oz_map_new(64)};
    oz_tm_intern(&p, "loop", 4); /* the order of OZ_TM_NAME_* */
    oz_tm_intern(&p, "caller", 6);
    oz_tm_intern(&p, "kwargs", 6);
    oz_tm_intern(&p, "varargs", 7);
    t->source = oz_arena_strndup(t->arena, text->data ? text->data : "", text->len);
    t->n_source = text->len;
    oz_buf_clear(text); /* now the parser's room for strings */
    if (p.c.st == OZ_OK) oz_tm_parse(&p);
    oz_map_free(&p.names);
    *c = p.c;
}

oz_status oz_template_new(oz_template **out, const char *source, size_t n, oz_err *err) {
    *out = NULL;
    OZ_NEED(n <= OZ_TM_MAX_SOURCE, err, OZ_E_FORMAT, "chat template: expected at most %d bytes, found %zu", OZ_TM_MAX_SOURCE, n);
    OZ_NEED(oz_utf8_valid(source, n), err, OZ_E_FORMAT, "chat template: it is not UTF-8");
    oz_template *t = oz_alloc(sizeof *t);
    oz_buf text = {0};
    t->arena = oz_arena_new(OZ_TM_MAX_MEMORY);
    oz_tm_lex_normalize(&text, source, n);
    oz_tm c = {.arena = t->arena, .out = &text, .steps = OZ_TM_MAX_STEPS, .line = 1, .err = err};
    parse(t, &text, &c);
    oz_buf_deinit(&text);
    if (c.st != OZ_OK) oz_template_free(&t);
    *out = t;
    return c.st;
}

/* ---- what comes around the template ---- */

typedef struct inputs {
    oz_tm_val messages, tools, kwargs, special;
} inputs;

static const char *const REASONING[] = {"reasoning_content", "thinking", "reasoning", NULL};
static const char MARKER[] = "CONTINUE_FINAL_MESSAGE_TAG ";

static oz_tm_val get(oz_tm *c, oz_tm_val dict, const char *key) {
    oz_tm_val v;
    return dict.kind == OZ_TM_DICT && oz_tm_dict_get(c, dict.dict, oz_tm_cstr(key), &v) ? v : oz_tm_none();
}

/* A message without its nulls, its reasoning under both names that templates read. */
static oz_tm_val prepare_message(oz_tm *c, oz_tm_val message) {
    oz_tm_val reasoning = oz_tm_none();
    oz_tm_dict *d = oz_tm_dict_new(c, message.dict->n + 2);
    for (const char *const *name = REASONING; *name && reasoning.kind == OZ_TM_NONE; name++) reasoning = get(c, message, *name);
    if (reasoning.kind != OZ_TM_NONE) oz_tm_dict_set(c, d, oz_tm_cstr("thinking"), reasoning);
    for (size_t i = 0; i < message.dict->n; i++)
        if (message.dict->e[i].val.kind != OZ_TM_NONE) oz_tm_dict_set(c, d, message.dict->e[i].key, message.dict->e[i].val);
    if (reasoning.kind != OZ_TM_NONE) oz_tm_dict_set(c, d, oz_tm_cstr("reasoning_content"), reasoning);
    return oz_tm_dict_val(d);
}

static void need_dicts(oz_tm *c, oz_tm_val list, const char *what) {
    if (list.kind == OZ_TM_NONE) return;
    if (list.kind != OZ_TM_SEQ) OZ_TM_FAIL(c, "%s: expected a list, found '%s'", what, oz_tm_type(list));
    for (size_t i = 0; c->st == OZ_OK && i < list.seq->n; i++)
        if (list.seq->v[i].kind != OZ_TM_DICT)
            OZ_TM_FAIL(c, "%s[%zu]: expected an object, found '%s'", what, i, oz_tm_type(list.seq->v[i]));
}

static void prepare(oz_tm *c, inputs *in) {
    need_dicts(c, in->messages, "messages");
    need_dicts(c, in->tools, "tools");
    need_dicts(c, get(c, in->kwargs, "documents"), "documents");
    if (c->st == OZ_OK && (in->messages.kind != OZ_TM_SEQ || in->messages.seq->n == 0)) OZ_TM_FAIL(c, "messages: expected at least one");
    if (c->st != OZ_OK) return;
    oz_tm_seq *s = oz_tm_seq_new(c, in->messages.seq->n);
    for (size_t i = 0; i < in->messages.seq->n && c->st == OZ_OK; i++) oz_tm_seq_push(c, s, prepare_message(c, in->messages.seq->v[i]));
    in->messages = oz_tm_seq_val(s, OZ_TM_LIST);
}

/* ---- continue_final_message: a marker behind the message, where the text is cut afterwards ---- */

static oz_tm_val marked(oz_tm *c, oz_tm_val text) { return oz_tm_concat(c, text, oz_tm_cstr(MARKER)); }

/* The last part with a text gets the marker; returns that text. */
static oz_tm_val mark_parts(oz_tm *c, oz_tm_val parts, oz_tm_val *out) {
    oz_tm_seq *s = oz_tm_seq_new(c, parts.seq->n);
    oz_tm_val text = oz_tm_none();
    for (size_t i = 0; i < parts.seq->n; i++) oz_tm_seq_push(c, s, parts.seq->v[i]);
    for (size_t i = parts.seq->n; i-- > 0 && c->st == OZ_OK;) {
        oz_tm_val part = s->v[i];
        if ((text = get(c, part, "text")).kind != OZ_TM_STR) continue;
        oz_tm_dict *d = oz_tm_dict_new(c, part.dict->n);
        for (size_t k = 0; k < part.dict->n; k++) oz_tm_dict_set(c, d, part.dict->e[k].key, part.dict->e[k].val);
        oz_tm_dict_set(c, d, oz_tm_cstr("text"), marked(c, text));
        s->v[i] = oz_tm_dict_val(d);
        *out = oz_tm_seq_val(s, OZ_TM_LIST);
        return text;
    }
    return OZ_TM_FAIL(c, "continue_final_message is set, but there is no text to continue in the last message");
}

static bool mark_field(oz_tm *c, oz_tm_dict *last, const char *field, oz_tm_val text) {
    oz_tm_dict_set(c, last, oz_tm_cstr(field), marked(c, text));
    return oz_tm_find(c->t->source, c->t->n_source, field, strlen(field)) != SIZE_MAX;
}

/* Returns the text that will be continued. A reasoning is marked under every name it is copied to. */
static oz_tm_val mark_last(oz_tm *c, const inputs *in, oz_tm_val flag) {
    oz_tm_val last = in->messages.seq->v[in->messages.seq->n - 1], text;
    oz_slice s = flag.kind == OZ_TM_STR ? (oz_slice){flag.s, flag.n} : (oz_slice){"content", 7};
    const char *field = oz_arena_strndup(c->arena, s.p, s.n);
    bool used = false, reasoning = false;
    if (!field || (text = get(c, last, field)).kind == OZ_TM_NONE)
        return OZ_TM_FAIL(c, "continue_final_message is set, but the last message has no \"%.*s\"", (int)s.n, s.p);
    if (text.kind == OZ_TM_SEQ) {
        oz_tm_val parts;
        text = mark_parts(c, text, &parts);
        if (c->st == OZ_OK) oz_tm_dict_set(c, last.dict, oz_tm_cstr(field), parts);
        return text;
    }
    if (text.kind != OZ_TM_STR) return OZ_TM_FAIL(c, "continue_final_message: the last message's \"%s\" is no text", field);
    for (const char *const *name = REASONING; *name; name++) reasoning = reasoning || strcmp(field, *name) == 0;
    for (const char *const *name = REASONING; *name && reasoning; name++)
        if (oz_tm_equal(c, get(c, last, *name), text)) used = mark_field(c, last.dict, *name, text) || used;
    if (!reasoning) used = mark_field(c, last.dict, field, text);
    return used ? text : OZ_TM_FAIL(c, "continue_final_message: the template does not use \"%s\"", field);
}

static void cut_at_marker(oz_tm *c, oz_tm_val text) {
    size_t n = c->out->len - c->out_base, n_marker = sizeof MARKER - 1;
    char *all = n ? c->out->data + c->out_base : ""; /* a text that nothing was put into has no memory */
    oz_slice stripped = oz_tm_strip((oz_slice){text.s, text.n}, NULL, true, true);
    size_t at = n ? oz_tm_rfind(c, all, n, MARKER, n_marker - 1) : SIZE_MAX;
    if (at == SIZE_MAX || oz_tm_find(all, n, stripped.p, stripped.n) == SIZE_MAX) {
        OZ_TM_FAIL(c, "continue_final_message is set, but the last message does not appear in the text: the template changes it");
        return;
    }
    bool kept = n - at >= n_marker && all[at + n_marker - 1] == ' ';
    oz_slice cut = {all, at};
    if (!kept) cut = oz_tm_strip(cut, NULL, false, true);
    c->out->len = c->out_base + cut.n;
    c->out->data[c->out->len] = 0;
}

/* ---- rendering ---- */

/* What the names of the template mean before anything is set. */
static void bind_names(oz_tm *c, const inputs *in) {
    const struct {
        const char *name;
        oz_tm_val v;
    } FIXED[] = {{"messages", in->messages}, {"tools", in->tools}, {"documents", get(c, in->kwargs, "documents")}};
    for (size_t i = 0; i < c->t->n_names && c->st == OZ_OK; i++) {
        const oz_tm_name *name = c->t->names[i];
        oz_tm_val key = oz_tm_str(name->s, name->n), *v = &c->context[i];
        *v = oz_tm_global((oz_slice){name->s, name->n});
        if (in->special.kind == OZ_TM_DICT) oz_tm_dict_get(c, in->special.dict, key, v);
        if (v->kind == OZ_TM_NONE) *v = (oz_tm_val){0}; /* a token that the tokenizer does not have */
        if (oz_tm_is_str(key, "add_generation_prompt")) *v = oz_tm_bool(false);
        bool hidden = oz_tm_is_str(key, "continue_final_message");
        if (!hidden && in->kwargs.kind == OZ_TM_DICT) oz_tm_dict_get(c, in->kwargs.dict, key, v);
        for (size_t k = 0; k < sizeof FIXED / sizeof *FIXED; k++)
            if (oz_tm_is_str(key, FIXED[k].name)) *v = FIXED[k].v;
    }
}

static void run(oz_tm *c, inputs *in) {
    prepare(c, in);
    if (c->st != OZ_OK) return;
    oz_tm_val flag = get(c, in->kwargs, "continue_final_message"), text = {0};
    if (oz_tm_truth(flag)) {
        if (oz_tm_truth(get(c, in->kwargs, "add_generation_prompt")))
            OZ_TM_FAIL(c, "continue_final_message and add_generation_prompt exclude each other");
        else
            text = mark_last(c, in, flag);
    }
    c->context = oz_tm_alloc(c, c->t->n_names, sizeof *c->context);
    c->frame = oz_tm_alloc(c, 1, sizeof *c->frame);
    if (!c->context || !c->frame) return;
    bind_names(c, in);
    oz_tm_exec(c, c->t->body);
    if (oz_tm_truth(flag) && c->st == OZ_OK) cut_at_marker(c, text);
}

static oz_tm begin(oz_buf *out, const oz_template *t, int64_t now, oz_err *err) {
    return (oz_tm){.t = t,
                   .arena = oz_arena_new(OZ_TM_MAX_MEMORY),
                   .out = out,
                   .out_base = out->len,
                   .steps = OZ_TM_MAX_STEPS,
                   .now = now,
                   .line = 1,
                   .err = err};
}

static oz_status end(oz_tm *c) {
    oz_arena_free(&c->arena);
    if (c->st != OZ_OK && c->out->len > c->out_base) {
        c->out->len = c->out_base;
        c->out->data[c->out_base] = 0;
    }
    return c->st;
}

static inputs from_args(oz_tm *c, const oz_template_args *a) {
    return (inputs){oz_tm_from_json(c, a->messages), oz_tm_from_json(c, a->tools), oz_tm_from_json(c, a->kwargs),
                    oz_tm_from_json(c, a->special_tokens)};
}

oz_status oz_template_render(oz_buf *out, const oz_template *t, const oz_template_args *args, oz_err *err) {
    oz_tm c = begin(out, t, args->now, err);
    inputs in = from_args(&c, args);
    run(&c, &in);
    return end(&c);
}

/* `first`, with what it does not say out of `more`. */
static oz_tm_val merged(oz_tm *c, oz_tm_val first, oz_tm_val more) {
    oz_tm_val v;
    if (first.kind != OZ_TM_DICT || more.kind != OZ_TM_DICT) return first.kind == OZ_TM_NONE ? more : first;
    for (size_t i = 0; i < more.dict->n && c->st == OZ_OK; i++)
        if (!oz_tm_dict_get(c, first.dict, more.dict->e[i].key, &v))
            oz_tm_dict_set(c, first.dict, more.dict->e[i].key, more.dict->e[i].val);
    return first;
}

oz_status oz_template_render_text(oz_buf *out, const oz_template *t, const char *text, size_t n, const oz_template_args *args,
                                  oz_err *err) {
    oz_tm c = begin(out, t, args->now, err);
    oz_tm_val all = oz_tm_read_json(&c, text, n);
    inputs in = from_args(&c, args),
           said = {get(&c, all, "messages"), get(&c, all, "tools"), get(&c, all, "kwargs"), get(&c, all, "special_tokens")};
    if (said.messages.kind != OZ_TM_NONE) in.messages = said.messages;
    if (said.tools.kind != OZ_TM_NONE) in.tools = said.tools;
    in.kwargs = merged(&c, said.kwargs, in.kwargs);
    in.special = merged(&c, said.special, in.special);
    run(&c, &in);
    return end(&c);
}

/* ---- tokenizer_config.json ---- */

static void add_token(json_t *out, const char *name, const json_t *v) {
    const json_t *content = json_is_object(v) ? json_object_get(v, "content") : v;
    if (json_is_string(content)) json_object_set_new(out, name, json_stringn(json_string_value(content), json_string_length(content)));
}

json_t *oz_template_special_tokens(const json_t *tokenizer_config) {
    static const char *const NAMES[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
    json_t *out = json_object(), *extra = json_object_get(tokenizer_config, "extra_special_tokens");
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) add_token(out, NAMES[i], json_object_get(tokenizer_config, NAMES[i]));
    for (void *it = json_object_iter(extra); it; it = json_object_iter_next(extra, it))
        add_token(out, json_object_iter_key(it), json_object_iter_value(it));
    return out;
}
