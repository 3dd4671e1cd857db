/* Text: tokenizer.json, incremental decoding, chat templates. Ids are int32. All text is UTF-8.
 * Source: the Hugging Face tokenizers library's behaviour as recorded in tests/golden/tokenizers; Jinja2's in tests/golden/templates. */
#ifndef OZ_TEXT_TEXT_H
#define OZ_TEXT_TEXT_H
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"

typedef struct oz_ids { int32_t *data; size_t len, cap; } oz_ids; /* oz_free(data) */

typedef struct oz_tok oz_tok;
/* tokenizer: the parsed tokenizer.json; config: tokenizer_config.json or NULL. Anything in the file that is not understood is an
 * error that names it by JSON path; truncation and padding are read and not applied. Nothing of the JSON is kept. Immutable
 * afterwards: any number of threads may use it. */
oz_status oz_tok_new(oz_tok **out, const json_t *tokenizer, const json_t *config, oz_err *err);
void oz_tok_free(oz_tok **t);
int32_t oz_tok_vocab_size(const oz_tok *t); /* highest id + 1 */
/* Appends to out. add_special: what the post-processor adds. Ill-formed UTF-8 is read as U+FFFD, one for each maximal ill-formed part. */
oz_status oz_tok_encode(oz_ids *out, const oz_tok *t, const char *text, size_t n, bool add_special, oz_err *err);
/* Appends to out. skip_special drops tokens with special: true; ids outside the vocabulary are passed over. */
oz_status oz_tok_decode(oz_buf *out, const oz_tok *t, const int32_t *ids, size_t n, bool skip_special, oz_err *err);
/* id of a token's exact content, -1 if none. Special ids of tokenizer_config; -1 if none. */
int32_t oz_tok_id(const oz_tok *t, const char *content);
int32_t oz_tok_bos(const oz_tok *t);
int32_t oz_tok_eos(const oz_tok *t);
bool oz_tok_adds_bos(const oz_tok *t); /* encode with add_special begins with bos */
bool oz_tok_is_special(const oz_tok *t, int32_t id);

/* Incremental decoding: appends to out the text that `id` completes; never half a character (at most 3 bytes are held back);
 * a byte that can never become valid comes out as one U+FFFD. The deltas add up to what oz_tok_decode gives but for rules over a whole
 * text: a space stripped from its beginning stays, and of a run of byte tokens only the ill-formed part is replaced. */
typedef struct oz_detok { const oz_tok *tok; bool skip_special, space; int32_t last; size_t n_seen; size_t n_held; char held[4]; } oz_detok;
void oz_detok_init(oz_detok *d, const oz_tok *t, bool skip_special);
void oz_detok_push(oz_buf *out, oz_detok *d, int32_t id);
void oz_detok_flush(oz_buf *out, oz_detok *d);

/* Chat templates: a sandboxed interpreter of the Jinja subset that published templates use; steps, depth, output and memory are
 * limited. Parsed once, rendered often. */
typedef struct oz_template oz_template;
oz_status oz_template_new(oz_template **out, const char *source, size_t n, oz_err *err);
void oz_template_free(oz_template **t);
typedef struct oz_template_args {
    const json_t *messages;       /* array */
    const json_t *tools;          /* array or NULL */
    const json_t *kwargs;         /* object of template variables, add_generation_prompt among them, or NULL */
    const json_t *special_tokens; /* object: bos_token ... or NULL */
    int64_t now;                  /* local time that strftime_now formats, seconds since 1970; -1: the clock's */
} oz_template_args;
oz_status oz_template_render(oz_buf *out, const oz_template *t, const oz_template_args *args, oz_err *err); /* appends */
/* The same, with members of the JSON object in text[0..n) (messages, tools, kwargs, special_tokens) before those of args: here integers
 * have no limit, which jansson's have. */
oz_status oz_template_render_text(oz_buf *out, const oz_template *t, const char *text, size_t n, const oz_template_args *args, oz_err *err);
/* special_tokens out of tokenizer_config.json (strings, or objects with "content"); new reference. */
json_t *oz_template_special_tokens(const json_t *tokenizer_config);

#endif
