/* What the names in tokenizer.ggml.pre mean, in tokenizer.json's own words. The names are llama.cpp's; what they mean stands in the tokenizer.json of
 * the models that they were made for. A name that is not here is an error: a guess would give other ids for some texts and right ones for most. */
#include "checkpoint/internal.h"

#define BYTE_LEVEL(prefix, trim, regex) "{\"type\":\"ByteLevel\",\"add_prefix_space\":" prefix ",\"trim_offsets\":" trim ",\"use_regex\":" regex "}"
#define SPLIT(pattern) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define SEQUENCE(parts) "{\"type\":\"Sequence\",\"pretokenizers\":[" parts "]}"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true}"
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
/* Contractions, words, numbers, punctuation, white space: the pattern that cl100k, Llama 3 and Qwen share but for the length of a number. */
#define WORDS(number)                                                    \
    ENDINGS "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" number           \
            "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
/* The same with words cut where small letters are followed by capitals: o200k, Tekken. */
#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define CASED(endings, number)                                                                                                                                       \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+" endings "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "+" LOWER "*" endings "|" number                              \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define ONE "\\\\p{N}"
#define THREE "\\\\p{N}{1,3}"
#define DEEPSEEK                                                                                                                                                     \
    "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|" \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

#define GPT2 BYTE_LEVEL("true", "true", "true")
#define GPT2_WORDS BYTE_LEVEL("false", "true", "true")
#define BYTES BYTE_LEVEL("false", "true", "false")
#define QWEN_BYTES BYTE_LEVEL("false", "false", "false")
#define LLAMA_POST BYTE_LEVEL("true", "false", "true")

static const struct {
    const char *name;
    oz_bytes_rules rules;
    bool adds_bos; /* where the file does not say */
} ROWS[] = {
    {"gpt-2", {"null", GPT2_WORDS, "null", GPT2, false}, false},
    {"phi-2", {"null", GPT2_WORDS, "null", GPT2, false}, false},
    {"smollm", {"null", SEQUENCE(DIGITS "," GPT2_WORDS), "null", GPT2, false}, false},
    {"starcoder", {"null", SEQUENCE(DIGITS "," GPT2_WORDS), "null", GPT2, false}, false},
    {"qwen2", {"{\"type\":\"NFC\"}", SEQUENCE(SPLIT(WORDS(ONE)) "," QWEN_BYTES), QWEN_BYTES, QWEN_BYTES, false}, false},
    {"llama-bpe", {"null", SEQUENCE(SPLIT(WORDS(THREE)) "," BYTES), LLAMA_POST, GPT2, true}, true},
    {"llama3", {"null", SEQUENCE(SPLIT(WORDS(THREE)) "," BYTES), LLAMA_POST, GPT2, true}, true},
    {"dbrx", {"null", SEQUENCE(SPLIT(WORDS(THREE)) "," BYTES), "null", GPT2, true}, false},
    {"tekken", {"null", SEQUENCE(SPLIT(CASED("", ONE)) "," BYTES), "null", GPT2, true}, true},
    {"gpt-4o", {"null", SEQUENCE(SPLIT(CASED(ENDINGS "?", THREE)) "," BYTES), "null", GPT2, true}, false},
    {"llama4", {"null", SEQUENCE(SPLIT(CASED(ENDINGS "?", THREE)) "," BYTES), "null", GPT2, true}, true},
    {"deepseek-v3", {"null", SEQUENCE(SPLIT(THREE) "," SPLIT("[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+") "," SPLIT(DEEPSEEK) "," BYTES), "null", GPT2, false}, true},
};

const oz_bytes_rules *oz_gguf_pre(oz_slice name, bool *adds_bos, oz_buf *known) {
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        if (oz_slice_eq(name, oz_slice_view(ROWS[i].name))) {
            *adds_bos = ROWS[i].adds_bos;
            return &ROWS[i].rules;
        }
        oz_buf_printf(known, "%s%s", i ? ", " : "", ROWS[i].name);
    }
    return NULL;
}
