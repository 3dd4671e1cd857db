/* What a token is to a reader, by the text that it adds. */
#include <utf8proc.h>
#include "base/mem.h"
#include "measure/internal.h"

typedef enum kind { LETTER, DIGIT, SIGN, END /* of a line */, BLANK, BROKEN } kind;

static kind kind_of(uint32_t cp, bool ok) {
    if (cp == '\n' || cp == '\r' || cp == 0x85 || cp == 0x2028 || cp == 0x2029) return END;
    if (!ok || cp == 0xFFFD) return BROKEN;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME: return LETTER;
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO: return DIGIT;
    case UTF8PROC_CATEGORY_PC: case UTF8PROC_CATEGORY_PD: case UTF8PROC_CATEGORY_PS: case UTF8PROC_CATEGORY_PE: case UTF8PROC_CATEGORY_PI: case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: case UTF8PROC_CATEGORY_SM: case UTF8PROC_CATEGORY_SC: case UTF8PROC_CATEGORY_SK: case UTF8PROC_CATEGORY_SO: return SIGN;
    case UTF8PROC_CATEGORY_ZS: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP: return BLANK;
    default: return cp == '\t' ? BLANK : BROKEN;
    }
}

/* Letters decide of a word with an apostrophe; digits, of a number with a point. */
oz_token_class oz_token_class_of(const char *text, size_t n) {
    int count[BROKEN + 1] = {0};
    bool leads = false;
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        bool ok = true;
        const size_t len = oz_utf8_next(text + at, n - at, &cp, &ok);
        const kind k = kind_of(cp, ok);
        if (at == 0) leads = k == BLANK || k == END;
        count[k]++, at += len;
    }
    const bool letters = count[LETTER], digits = count[DIGIT], signs = count[SIGN];
    if (count[BROKEN] || (letters && digits)) return OZ_TOKEN_OTHER;
    if (letters) return leads ? OZ_TOKEN_WORD : OZ_TOKEN_CONTINUATION;
    if (digits) return OZ_TOKEN_DIGIT;
    if (signs) return OZ_TOKEN_PUNCTUATION;
    return count[END] ? OZ_TOKEN_NEWLINE : OZ_TOKEN_OTHER;
}

const char *oz_token_class_name(oz_token_class c) {
    static const char *const names[OZ_TOKEN_CLASSES] = {[OZ_TOKEN_WORD] = "word", [OZ_TOKEN_CONTINUATION] = "continuation", [OZ_TOKEN_DIGIT] = "digit", [OZ_TOKEN_PUNCTUATION] = "punctuation",
                                                        [OZ_TOKEN_NEWLINE] = "newline", [OZ_TOKEN_OTHER] = "other"};
    return names[c];
}

/* By itself, as a stream would add it: a space at its beginning stays. */
static oz_token_class class_of_id(const oz_tok *tok, int32_t id, oz_buf *text) {
    oz_detok d;
    oz_buf_clear(text);
    oz_detok_init(&d, tok, false);
    oz_detok_push(text, &d, id);
    oz_detok_flush(text, &d);
    return oz_tok_is_special(tok, id) ? OZ_TOKEN_OTHER : oz_token_class_of(text->data ? text->data : "", text->len);
}

void oz_token_classes_fill(uint8_t *out, const oz_tok *tok, const int32_t *ids, size_t n) {
    const int32_t vocab = oz_tok_vocab_size(tok);
    uint8_t *known = oz_alloc_array((size_t)vocab + 1, sizeof *known); /* class + 1 */
    oz_buf text = {0};
    for (size_t i = 0; i < n; i++) {
        const bool inside = ids[i] >= 0 && ids[i] < vocab;
        if (inside && !known[ids[i]]) known[ids[i]] = (uint8_t)(class_of_id(tok, ids[i], &text) + 1);
        out[i] = inside ? (uint8_t)(known[ids[i]] - 1) : OZ_TOKEN_OTHER;
    }
    oz_buf_deinit(&text);
    oz_free(known);
}
