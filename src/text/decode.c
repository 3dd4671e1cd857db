/* Decoders: from the texts of tokens to text. Each type is a step over the list of all tokens of a sequence.
 *
 * A stream cannot wait for the whole list. What a token comes to by itself, its piece, is therefore found beforehand, by the same steps
 * over a list of that token alone: rules that look at neighbours (the first token's mark, ill-formed runs of bytes, what is stripped
 * from the whole text) are off then. WordPiece's space before all words but the first is not lost: it makes two pieces of a token. */
#include "base/json.h"
#include "text/tok_internal.h"
#include <string.h>

enum { MAX_GROWTH = 1 << 16 };

typedef enum oz_alone { OZ_TOGETHER, OZ_ALONE_FIRST, OZ_ALONE_LATER } oz_alone;

typedef struct oz_tokens {
    oz_buf text, made; /* the tokens, one behind the other; what a step makes of them */
    size_t *end, *made_end;
    size_t n, n_made, cap, cap_made;
    oz_alone alone;
    bool fused; /* alone: behind a step that makes one text of all tokens */
    oz_match_work match;
    oz_err *err;
} oz_tokens;

static oz_slice token_at(const oz_tokens *t, size_t i) {
    size_t begin = i ? t->end[i - 1] : 0;
    return (oz_slice){t->text.data + begin, t->end[i] - begin};
}

static void token_done(oz_tokens *t) {
    oz_grow((void **)&t->made_end, &t->cap_made, t->n_made + 1, sizeof *t->made_end);
    t->made_end[t->n_made++] = t->made.len;
}

static void begin(oz_tokens *t) {
    oz_buf_clear(&t->made);
    oz_buf_puts(&t->made, "");
    t->n_made = 0;
}

static void turn(oz_tokens *t) {
    oz_buf b = t->text;
    size_t *e = t->end, cap = t->cap;
    t->text = t->made;
    t->end = t->made_end;
    t->n = t->n_made;
    t->cap = t->cap_made;
    t->made = b;
    t->made_end = e;
    t->cap_made = cap;
}

static void tokens_push(oz_tokens *t, oz_slice s) {
    oz_buf_append(&t->text, s.p, s.n);
    oz_grow((void **)&t->end, &t->cap, t->n + 1, sizeof *t->end);
    t->end[t->n++] = t->text.len;
}

static void tokens_deinit(oz_tokens *t) {
    oz_buf_deinit(&t->text);
    oz_buf_deinit(&t->made);
    oz_free(t->end);
    oz_free(t->made_end);
    oz_match_work_deinit(&t->match);
}

/* ---- steps */

/* The bytes that a token stands for; its own text if one of its characters is outside the byte alphabet. */
static void put_bytes(oz_buf *out, oz_slice s) {
    size_t before = out->len;
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        i += oz_uc_next(s.p + i, &c);
        int byte = oz_char_byte(c);
        if (byte < 0) {
            out->len = before;
            oz_buf_append(out, s.p, s.n);
            return;
        }
        oz_buf_putc(out, (char)byte);
    }
}

static oz_status run_byte_level(oz_tokens *t, const oz_decoder *self) {
    oz_buf bytes = {0};
    for (size_t i = 0; i < t->n; i++) put_bytes(&bytes, token_at(t, i));
    if (t->alone)
        oz_buf_append(&t->made, bytes.data, bytes.len);
    else
        oz_utf8_replace(&t->made, bytes.data, bytes.len);
    oz_buf_deinit(&bytes);
    token_done(t);
    t->fused = true;
    return OZ_OK;
}

static oz_status run_fuse(oz_tokens *t, const oz_decoder *self) {
    oz_buf_append(&t->made, t->text.data, t->text.len);
    token_done(t);
    t->fused = true;
    return OZ_OK;
}

static oz_status run_replace(oz_tokens *t, const oz_decoder *self) {
    size_t head;
    for (size_t i = 0; i < t->n; i++) {
        oz_slice s = token_at(t, i);
        bool changed = false;
        OZ_TRY(oz_replace_run(&t->made, &changed, &head, &self->replace, s, SIZE_MAX, &t->match, t->err));
        if (!changed) oz_buf_append(&t->made, s.p, s.n);
        token_done(t);
    }
    return OZ_OK;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; }

static int byte_token(oz_slice s) { /* <0xNN>, or with a + as the reference's number parser has it; -1: another token */
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>') return -1;
    int hi = s.p[3] == '+' ? 0 : hex_digit(s.p[3]), lo = hex_digit(s.p[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* A run of bytes is one text, or, if that is ill-formed, a U+FFFD for each of them. */
static void put_run(oz_tokens *t, oz_buf *run) {
    bool good = t->alone || oz_utf8_valid(run->data, run->len);
    if (good && run->len) {
        oz_buf_append(&t->made, run->data, run->len);
        token_done(t);
    }
    for (size_t i = 0; i < run->len && !good; i++) {
        oz_buf_put_utf8(&t->made, 0xFFFD);
        token_done(t);
    }
    oz_buf_clear(run);
}

static oz_status run_byte_fallback(oz_tokens *t, const oz_decoder *self) {
    oz_buf bytes = {0};
    for (size_t i = 0; i < t->n; i++) {
        oz_slice s = token_at(t, i);
        int byte = byte_token(s);
        if (byte >= 0) {
            oz_buf_putc(&bytes, (char)byte);
            continue;
        }
        if (bytes.len) put_run(t, &bytes);
        oz_buf_append(&t->made, s.p, s.n);
        token_done(t);
    }
    if (bytes.len) put_run(t, &bytes);
    oz_buf_deinit(&bytes);
    return OZ_OK;
}

static oz_status run_metaspace(oz_tokens *t, const oz_decoder *self) {
    const oz_buf *mark = &self->replace.content;
    for (size_t i = 0; i < t->n; i++) {
        oz_slice s = token_at(t, i);
        bool drops = i == 0 && !t->alone && !self->keeps_first;
        for (size_t k = 0, n; k < s.n; k += n) {
            n = oz_uc_len(s.p[k]);
            if (n != mark->len || memcmp(s.p + k, mark->data, n) != 0)
                oz_buf_append(&t->made, s.p + k, n);
            else if (!drops)
                oz_buf_putc(&t->made, ' ');
        }
        token_done(t);
    }
    return OZ_OK;
}

static oz_status run_strip(oz_tokens *t, const oz_decoder *self) {
    const oz_buf *c = &self->replace.content;
    bool off = t->alone && t->fused;
    for (size_t i = 0; i < t->n; i++) {
        oz_slice s = token_at(t, i);
        for (int64_t k = 0; k < self->start && !off && s.n >= c->len && memcmp(s.p, c->data, c->len) == 0; k++)
            s = (oz_slice){s.p + c->len, s.n - c->len};
        for (int64_t k = 0; k < self->stop && !off && s.n >= c->len && memcmp(s.p + s.n - c->len, c->data, c->len) == 0; k++) s.n -= c->len;
        oz_buf_append(&t->made, s.p, s.n);
        token_done(t);
    }
    return OZ_OK;
}

static void replace_all(oz_buf *b, const char *from, const char *to) {
    size_t n = strlen(from), w = 0;
    for (size_t i = 0; i < b->len;) {
        if (b->len - i >= n && memcmp(b->data + i, from, n) == 0) {
            memcpy(b->data + w, to, strlen(to)); /* never longer than what it replaces */
            w += strlen(to);
            i += n;
        } else {
            b->data[w++] = b->data[i++];
        }
    }
    b->len = w;
}

/* The spaces that English text has not. */
static void clean(oz_buf *b) {
    static const char *const spaces[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                            {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                            {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) replace_all(b, spaces[i][0], spaces[i][1]);
}

static oz_status run_word_piece(oz_tokens *t, const oz_decoder *self) {
    const oz_buf *prefix = &self->replace.content;
    oz_buf one = {0};
    for (size_t i = 0; i < t->n; i++) {
        oz_slice s = token_at(t, i);
        oz_buf_clear(&one);
        if (i > 0 || t->alone == OZ_ALONE_LATER) {
            if (s.n >= prefix->len && (!prefix->len || memcmp(s.p, prefix->data, prefix->len) == 0))
                s = (oz_slice){s.p + prefix->len, s.n - prefix->len};
            else
                oz_buf_putc(&one, ' ');
        }
        oz_buf_append(&one, s.p, s.n);
        if (self->cleanup) clean(&one);
        oz_buf_append(&t->made, one.data, one.len);
        token_done(t);
    }
    oz_buf_deinit(&one);
    return OZ_OK;
}

/* Every r.find in s by its content, as the reference does with plain strings: the empty one is in the empty text too. */
static oz_status put_replaced(oz_buf *out, oz_tokens *t, const oz_replace *r, oz_slice s) {
    bool changed = !s.n && r->regex;
    size_t head;
    if (changed) oz_buf_append(out, r->content.data, r->content.len);
    OZ_TRY(oz_replace_run(out, &changed, &head, r, s, SIZE_MAX, &t->match, t->err));
    if (!changed) oz_buf_append(out, s.p, s.n);
    return OZ_OK;
}

/* The end of a word is a space, but for the last token's. */
static oz_status run_bpe(oz_tokens *t, const oz_decoder *self) {
    static const oz_buf space = {" ", 1, 0};
    for (size_t i = 0; i < t->n; i++) {
        oz_replace r = {self->replace.regex, self->replace.find, {0}};
        if (t->alone || i + 1 < t->n) r.content = space;
        OZ_TRY(put_replaced(&t->made, t, &r, token_at(t, i)));
        token_done(t);
    }
    return OZ_OK;
}

/* Of equal tokens in a row one counts; the padding token stands for nothing. */
static oz_status run_ctc(oz_tokens *t, const oz_decoder *self) {
    oz_status st = OZ_OK;
    oz_buf one = {0};
    const oz_replace delimiter = {self->delimiter_regex, self->word_delimiter, {" ", 1, 0}};
    for (size_t i = 0; i < t->n && st == OZ_OK; i++) {
        oz_slice s = token_at(t, i);
        size_t before = t->made.len;
        if (i > 0 && oz_slice_eq(s, token_at(t, i - 1))) continue;
        oz_buf_clear(&one);
        st = put_replaced(&one, t, &self->replace, s);
        if (self->cleanup) clean(&one);
        s = (oz_slice){one.data, one.len};
        if (self->cleanup && st == OZ_OK)
            st = put_replaced(&t->made, t, &delimiter, s);
        else
            oz_buf_append(&t->made, s.p, s.n);
        if (t->made.len > before) token_done(t);
    }
    oz_buf_deinit(&one);
    return st;
}

/* ---- reading */

static oz_status step_new(oz_decoder **d, oz_decoders *z, oz_status (*run)(oz_tokens *, const oz_decoder *), oz_jpath path, oz_err *err) {
    OZ_NEED(z->n < OZ_TOK_MAX_STEPS, err, OZ_E_UNSUPPORTED, "%s: more than %d decoders", path.s, OZ_TOK_MAX_STEPS);
    *d = &z->step[z->n++];
    (*d)->run = run;
    return OZ_OK;
}

/* A list of decoders must not make a text grow without bound. */
static oz_status grows(oz_decoders *z, size_t by, oz_jpath path, oz_err *err) {
    if (!z->growth) z->growth = 1;
    OZ_NEED(by <= MAX_GROWTH && (z->growth *= by) <= MAX_GROWTH, err, OZ_E_UNSUPPORTED,
            "%s: the decoders may make a text more than %d times as long", path.s, MAX_GROWTH);
    return OZ_OK;
}

static oz_status parse_byte_level(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoder *d = NULL;
    bool unused = false; /* these are of the pre-tokenizer */
    OZ_TRY(oz_json_flag(&unused, obj, path, "add_prefix_space", err));
    OZ_TRY(oz_json_flag(&unused, obj, path, "trim_offsets", err));
    OZ_TRY(oz_json_flag(&unused, obj, path, "use_regex", err));
    OZ_TRY(grows(self, 3, path, err));
    return step_new(&d, self, run_byte_level, path, err);
}

static oz_status parse_fuse(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoder *d = NULL;
    return step_new(&d, self, run_fuse, path, err);
}

static oz_status parse_byte_fallback(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoder *d = NULL;
    return step_new(&d, self, run_byte_fallback, path, err);
}

static oz_status parse_replace(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoder *d = NULL;
    OZ_TRY(step_new(&d, self, run_replace, path, err));
    OZ_TRY(oz_replace_parse(&d->replace, obj, path, err));
    return grows(self, d->replace.content.len > d->replace.find.len ? d->replace.content.len + 1 : 1, path, err);
}

static oz_status parse_metaspace(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoder *d = NULL;
    OZ_TRY(step_new(&d, self, run_metaspace, path, err));
    oz_metaspace m;
    OZ_TRY(oz_metaspace_parse(&m, &d->replace.content, obj, path, err));
    d->keeps_first = m.prepend == OZ_PREPEND_NEVER;
    return OZ_OK;
}

static oz_status parse_strip(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoder *d = NULL;
    OZ_TRY(step_new(&d, self, run_strip, path, err));
    OZ_TRY(oz_json_char_of(&d->replace.content, obj, path, "content", err));
    OZ_TRY(oz_json_int(&d->start, obj, path.s, "start", 0, INT32_MAX, err));
    return oz_json_int(&d->stop, obj, path.s, "stop", 0, INT32_MAX, err);
}

static oz_status parse_word_piece(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoders *z = self;
    oz_decoder *d = NULL;
    OZ_TRY(step_new(&d, z, run_word_piece, path, err));
    d->cleanup = z->two_pieces = true;
    OZ_TRY(oz_json_flag(&d->cleanup, obj, path, "cleanup", err));
    OZ_TRY(grows(z, 2, path, err));
    return oz_json_text_of(&d->replace.content, obj, path, "prefix", err);
}

static oz_status parse_bpe(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoders *z = self;
    oz_decoder *d = NULL;
    OZ_TRY(step_new(&d, z, run_bpe, path, err));
    z->suffix = d;
    OZ_TRY(grows(z, 2, path, err));
    return oz_replace_of(&d->replace, obj, path, "suffix", err);
}

static oz_status parse_ctc(void *self, const json_t *obj, oz_jpath path, oz_err *err) {
    oz_decoders *z = self;
    oz_decoder *d = NULL;
    OZ_TRY(step_new(&d, z, run_ctc, path, err));
    d->cleanup = z->dedups = true;
    OZ_TRY(oz_json_flag(&d->cleanup, obj, path, "cleanup", err));
    OZ_TRY(grows(z, 2, path, err));
    OZ_TRY(oz_replace_of(&d->replace, obj, path, "pad_token", err));
    oz_replace r = {0};
    oz_status st = oz_replace_of(&r, obj, path, "word_delimiter_token", err);
    d->word_delimiter = r.find;
    d->delimiter_regex = r.regex;
    return st;
}

static const oz_stage_row rows[] = {
    {"ByteLevel", "type|add_prefix_space|trim_offsets|use_regex", NULL, parse_byte_level},
    {"Metaspace", "type|replacement|prepend_scheme|split|add_prefix_space|str_rep", NULL, parse_metaspace},
    {"WordPiece", "type|prefix|cleanup", NULL, parse_word_piece},
    {"BPEDecoder", "type|suffix", NULL, parse_bpe},
    {"ByteFallback", "type", NULL, parse_byte_fallback},
    {"Replace", "type|pattern|content", NULL, parse_replace},
    {"Fuse", "type", NULL, parse_fuse},
    {"Strip", "type|content|start|stop", NULL, parse_strip},
    {"CTC", "type|pad_token|word_delimiter_token|cleanup", NULL, parse_ctc},
    {"Sequence", "type|decoders", "decoders", NULL},
    {0},
};

oz_status oz_decoders_parse(oz_decoders *z, const json_t *v, oz_err *err) {
    z->none = !v || json_is_null(v);
    return oz_stage_parse(z, rows, v, (oz_jpath){"decoder"}, err);
}

void oz_decoders_deinit(oz_decoders *z) {
    for (size_t i = 0; i < z->n; i++) {
        oz_replace delimiter = {z->step[i].delimiter_regex, z->step[i].word_delimiter, {0}};
        oz_replace_deinit(&delimiter);
        oz_replace_deinit(&z->step[i].replace);
    }
}

/* ---- decoding */

static oz_status run_all(oz_tokens *t, const oz_decoders *z) {
    t->fused = false;
    for (size_t i = 0; i < z->n; i++) {
        if (t->alone && !oz_utf8_valid(t->text.data, t->text.len)) break; /* a piece of bytes: the steps are for text */
        begin(t);
        OZ_TRY(z->step[i].run(t, &z->step[i]));
        turn(t);
    }
    return OZ_OK;
}

static oz_status piece_make(oz_slice *out, oz_tokens *t, const oz_decoders *z, oz_slice text, oz_alone alone) {
    oz_buf_clear(&t->text);
    oz_buf_puts(&t->text, "");
    t->n = 0;
    t->alone = alone;
    tokens_push(t, text);
    OZ_TRY(run_all(t, z));
    *out = (oz_slice){t->text.data, t->text.len};
    return OZ_OK;
}

static oz_status pieces_of(oz_vocab *v, oz_tokens *t, const oz_decoders *z, int32_t id, oz_err *err) {
    oz_vocab_item *item = &v->item[id];
    oz_slice piece;
    item->piece = item->text;
    OZ_TRY(piece_make(&piece, t, z, oz_vocab_text(v, id), OZ_ALONE_LATER));
    OZ_TRY(oz_vocab_set(v, &item->piece, piece, err));
    item->first = item->piece;
    if (z->suffix) { /* its space waits for the next token */
        const oz_buf *suffix = &z->suffix->replace.find;
        oz_slice s = oz_vocab_text(v, id);
        bool ends = suffix->len && s.n >= suffix->len && memcmp(s.p + s.n - suffix->len, suffix->data, suffix->len) == 0;
        if (ends && piece.n && piece.p[piece.n - 1] == ' ') item->flags |= OZ_TOK_SPACED;
    }
    if (!z->two_pieces) return OZ_OK;
    OZ_TRY(piece_make(&piece, t, z, oz_vocab_text(v, id), OZ_ALONE_FIRST));
    return oz_vocab_set(v, &item->first, piece, err);
}

oz_status oz_decoders_pieces(oz_vocab *v, const oz_decoders *z, oz_err *err) {
    oz_tokens t = {.err = err};
    oz_status st = OZ_OK;
    for (size_t id = 0; id < v->n && st == OZ_OK; id++)
        if (v->item[id].flags) st = pieces_of(v, &t, z, (int32_t)id, err);
    tokens_deinit(&t);
    return st;
}

oz_status oz_tok_decode(oz_buf *out, const oz_tok *tok, const int32_t *ids, size_t n, bool skip_special, oz_err *err) {
    oz_tokens t = {.err = err};
    oz_buf_puts(&t.text, "");
    for (size_t i = 0; i < n; i++) {
        if (!oz_vocab_has(&tok->vocab, ids[i]) || (skip_special && tok->vocab.item[ids[i]].flags & OZ_TOK_SKIPPED)) continue;
        if (tok->decoders.none && t.n) oz_buf_putc(&t.text, ' ');
        tokens_push(&t, oz_vocab_text(&tok->vocab, ids[i]));
    }
    oz_status st = run_all(&t, &tok->decoders);
    if (st == OZ_OK) oz_buf_append(out, t.text.data, t.text.len);
    tokens_deinit(&t);
    return st;
}
