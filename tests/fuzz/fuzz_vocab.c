/* tokenizer.model and .tiktoken: the reader, the translation to tokenizer.json, and the tokenizer's own loader on what came of it. A translation
 * is good JSON of a tokenizer, or the loader says what it does not like. */
#include "base/json.h"
#include "checkpoint/internal.h"
#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const json_t *tokenizer) {
    oz_tok *tok;
    oz_err err = {0};
    if (oz_tok_new(&tok, tokenizer, NULL, &err) != OZ_OK) {
        if (!err.msg[0]) __builtin_trap();
        return;
    }
    oz_ids ids = {0};
    oz_buf text = {0};
    if (oz_tok_encode(&ids, tok, " a  b\nc\xc3\xa9", 9, true, &err) == OZ_OK) oz_tok_decode(&text, tok, ids.data, ids.len, false, &err);
    oz_free(ids.data);
    oz_buf_deinit(&text);
    oz_tok_free(&tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const oz_slice file = {(const char *)data, n};
    oz_tokens t = {0};
    oz_spm_rules r;
    oz_err err = {0};
    json_t *out = NULL, *vocab = NULL, *merges = NULL;
    oz_status st;
    if (oz_is_tiktoken(file)) {
        oz_buf known = {0};
        bool adds_bos;
        st = oz_tiktoken_read(&t, file, "fuzz", &err);
        if (st == OZ_OK) st = oz_tokens_vocab(&vocab, &t, &err);
        if (st == OZ_OK) st = oz_tokens_merges(&merges, &t, &err);
        if (st == OZ_OK) out = oz_tokens_bytes(&t, oz_gguf_pre(oz_slice_view("llama3"), &adds_bos, &known), vocab, merges), vocab = merges = NULL;
        oz_buf_deinit(&known);
    } else {
        st = oz_spm_read(&t, &r, file, "fuzz", &err);
        t.adds_bos = st == OZ_OK && t.bos >= 0;
        if (st == OZ_OK) st = oz_tokens_spm(&out, &t, &r, &err);
    }
    if ((st == OZ_OK) != !err.msg[0] || (st == OZ_OK && !out)) __builtin_trap();
    if (out) use(out);
    json_decref(out);
    json_decref(vocab);
    json_decref(merges);
    oz_tokens_deinit(&t);
    return 0;
}
