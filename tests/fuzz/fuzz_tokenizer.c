/* A tokenizer.json and a text, with a NUL between: loaded, and if that works the text is encoded, decoded as a whole and step by step.
 * Input without a NUL is a text for one of the built-in tokenizers, which its first byte chooses. Good corpus: the tokenizers of
 * tests/golden/tokenizers/parts.jsonl, each with a text behind a NUL. */
#include "base/json.h"
#include "base/mem.h"
#include "text/text.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char byte_level[] =
    "{\"added_tokens\":[{\"id\":6,\"content\":\"<s>\",\"lstrip\":true,\"special\":true},{\"id\":7,\"content\":\"é \",\"rstrip\":true},"
    "{\"id\":8,\"content\":\"  \",\"rstrip\":true,\"single_word\":true,\"normalized\":false}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"NFKD\"},{\"type\":\"Lowercase\"},{\"type\":"
    "\"NFKC\"}]},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},"
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\p{L}+|\"},\"behavior\":\"MergedWithNext\"},{"
    "\"type\":\"ByteLevel\"}]},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_unk\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"Ġ\":3,\"Ġab\":4,\"?\":5},"
    "\"merges\":[\"a b\",\"Ġ ab\"]}}";
static const char pieces[] = /* byte fallback that lacks a byte, an unknown token that merges, a whole text as one word */
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"▁\"},{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":\" \"},"
    "\"content\":\"▁\"}]},\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{\"<unk>"
    "\":0,\"a\":1,\"b\":2,"
    "\"ab\":3,\"▁\":4,\"▁ab\":5,\"<0xC3>\":6,\"<0xA9>\":7,\"<unk>a\":8,\"ba\":9},\"merges\":[[\"a\",\"b\"],[\"▁\",\"ab\"],[\"<unk>\",\"a\"]"
    ",[\"b\",\"a\"]]},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"▁\"},\"content\":\" "
    "\"},{\"type\":\"ByteFallback\"},"
    "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}}";
static const char unigram[] = "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Nmt\"},{\"type\":\"Replace\","
                              "\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},{\"type\":"
                              "\"Strip\",\"strip_left\":false,\"strip_right\":true}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
                              "\"pretokenizers\":[{\"type\":\"UnicodeScripts\"},{\"type\":"
                              "\"FixedLength\",\"length\":7},{\"type\":\"Metaspace\",\"replacement\":\"▁\",\"prepend_scheme\":\"first\","
                              "\"split\":true}]},\"model\":{\"type\":\"Unigram\","
                              "\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"<unk>\",0],[\"▁\",-1.5],[\"a\",-2.25],[\"ab\",-2.5],["
                              "\"▁a\",-3.75],[\"é\",-4],[\"<0xC3>\",-5],[\"<0xA9>\",-5]]},"
                              "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"▁\",\"prepend_scheme\":\"first\"}}";
static const char word_piece[] =
    "{\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"model\":{\"type\":\"WordPiece\","
    "\"unk_token\":\"?\","
    "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":9,\"vocab\":{\"?\":0,\"a\":1,\"##a\":2,\"ab\":3,\"##b\":4,\".\":5}},"
    "\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",1],\"sep\":[\".\",5]},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":"
    "\"##\",\"cleanup\":true}}";
static const char *const builtins[] = {byte_level, pieces, unigram, word_piece};
enum { N_BUILTINS = sizeof builtins / sizeof *builtins };

/* same: its decoder has no rule over a whole text, so that the deltas add up to it. */
static void use(const oz_tok *t, const char *text, size_t n, bool same) {
    oz_ids ids = {0};
    oz_err err = {0};
    if (oz_tok_encode(&ids, t, text, n, true, &err) != OZ_OK && !err.msg[0]) __builtin_trap();
    for (size_t i = 0; i < ids.len; i++)
        if (ids.data[i] < 0 || ids.data[i] >= oz_tok_vocab_size(t)) __builtin_trap();
    oz_buf whole = {0}, steps = {0};
    oz_buf_puts(&steps, "");
    oz_detok d;
    if (oz_tok_decode(&whole, t, ids.data, ids.len, false, &err) != OZ_OK && !err.msg[0]) __builtin_trap();
    if (whole.len && !oz_utf8_valid(whole.data, whole.len)) __builtin_trap();
    oz_detok_init(&d, t, false);
    for (size_t i = 0; i < ids.len; i++) {
        size_t before = steps.len;
        oz_detok_push(&steps, &d, ids.data[i]);
        if (d.n_held > 3 || !oz_utf8_valid(steps.data + before, steps.len - before)) __builtin_trap();
    }
    oz_detok_flush(&steps, &d);
    if (same && (whole.len != steps.len || (whole.len && memcmp(whole.data, steps.data, whole.len) != 0))) __builtin_trap();
    oz_buf_deinit(&whole);
    oz_buf_deinit(&steps);
    oz_free(ids.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *json = (const char *)data, *zero = n ? memchr(data, 0, n) : NULL, *text = zero ? zero + 1 : json;
    size_t n_json = zero ? (size_t)(zero - json) : 0, n_text = n - (size_t)(text - json);
    json_t *v;
    oz_err err = {0};
    const char *builtin = builtins[n && !zero ? data[0] % N_BUILTINS : 0];
    if (!zero) {
        json = builtin;
        n_json = strlen(builtin);
    }
    if (oz_json_parse(&v, json, n_json, "fuzz", &err) != OZ_OK) return 0;
    oz_tok *t;
    if (oz_tok_new(&t, v, NULL, &err) == OZ_OK) {
        use(t, text, n_text, !zero && builtin == byte_level);
        oz_tok_free(&t);
    } else if (!err.msg[0] || !zero) {
        __builtin_trap(); /* every refusal has a reason, and the built-in one is not refused */
    }
    json_decref(v);
    return 0;
}
