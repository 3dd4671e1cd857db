/* ounce kl: the text, which all models are measured on as one encodes it. */
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cli/kl.h"

/* Tokenizers that are written otherwise may be the same: what they make of this text decides. */
static oz_status compare(const oz_ids *ids, size_t n, const oz_buf *text, const oz_cli_model *ref, const char *model, oz_err *err) {
    oz_text_files files = {0};
    oz_tok *tok = NULL;
    oz_ids own = {0};
    oz_status st = oz_cli_of_model(oz_text_files_open(&files, model, err), model, err);
    const bool differs = st == OZ_OK && files.tokenizer && !json_equal(files.tokenizer, ref->text.tokenizer);
    if (differs) st = oz_cli_tok_open(&tok, &files, model, err);
    if (tok) st = oz_tok_encode(&own, tok, text->data ? text->data : "", text->len, false, err);
    size_t at = 0;
    while (at < n && at < own.len && own.data[at] == ids->data[at]) at++;
    if (st == OZ_OK && differs && at < n)
        oz_log_warn("%s: its own tokenizer makes other ids of this text, from token %zu on: it is measured on those of %s", model, at, oz_ckpt_path(ref->ckpt));
    oz_free(own.data);
    oz_tok_free(&tok);
    oz_text_files_close(&files);
    return st;
}

oz_status oz_cli_kl_ids(oz_ids *out, const oz_cli_kl *k, const oz_cli_model *ref, const char *const *models, size_t n, oz_err *err) {
    oz_buf text = {0};
    *out = (oz_ids){0};
    oz_status st = oz_file_read(&text, k->text_path, OZ_CLI_MAX_TEXT, err);
    if (st == OZ_OK) st = oz_tok_encode(out, ref->tok, text.data ? text.data : "", text.len, false, err);
    const size_t used = k->limit > 0 && (size_t)k->limit < out->len ? (size_t)k->limit : out->len;
    for (size_t i = 0; st == OZ_OK && i < n; i++) {
        oz_err why = {0}; /* a model needs no tokenizer, so that a bad one does no harm */
        if (compare(out, used, &text, ref, models[i], &why) != OZ_OK) oz_log_warn("%s; it is measured on the ids of %s", why.msg, oz_ckpt_path(ref->ckpt));
    }
    oz_buf_deinit(&text);
    if (st != OZ_OK) oz_free(out->data), *out = (oz_ids){0};
    return st;
}
