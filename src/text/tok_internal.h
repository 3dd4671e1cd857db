/* Inside the tokenizer: what its files share. A text goes through these stages, each a table of rows by the "type" in the JSON:
 *   added tokens cut out (tok_added.c) -> normalised (normalize.c) -> cut into words (tok_split.c, with the patterns of
 *   tok_pattern.c over the alphabet of tok_alphabet.c) -> model (tok_bpe.c, tok_unigram.c, tok_words.c) -> what the post-processor
 *   adds (tok_post.c). Back: the decoders (decode.c), step by step (detok.c). */
#ifndef OZ_TEXT_TOK_INTERNAL_H
#define OZ_TEXT_TOK_INTERNAL_H
#include "base/map.h"
#include "base/mem.h"
#include "text/text.h"

/* ---- Unicode (unicode_table.c is generated, unicode.c reads it) */
typedef struct oz_range { uint32_t lo, hi; } oz_range;
typedef struct oz_uc_class { const char *name; const oz_range *r; size_t n; } oz_uc_class;
typedef struct oz_uc_norm { uint16_t at; uint8_t n_canon, n_compat, ccc, unsafe; } oz_uc_norm; /* pool[at]: n_canon, then n_compat */
typedef struct oz_uc_pair { uint32_t a, b, composed; } oz_uc_pair;
typedef struct oz_uc_lower { uint32_t c, to[2]; } oz_uc_lower;
extern const oz_uc_class oz_uc_classes[]; /* ended by a row without a name */
extern const oz_uc_norm oz_uc_norms[];    /* row 0: nothing happens */
extern const uint32_t oz_uc_norm_pool[];
extern const uint8_t oz_uc_norm_page[0x30000 >> 6];
extern const uint16_t oz_uc_norm_index[][64];
extern const oz_uc_pair oz_uc_pairs[]; /* sorted */
extern const size_t oz_uc_n_pairs, oz_uc_n_lowers;
extern const oz_uc_lower oz_uc_lowers[]; /* sorted */
const oz_uc_class *oz_uc_class_find(const char *name, size_t n); /* "L", "Nd", "s" ...; NULL: not in the table */
bool oz_uc_in(const oz_uc_class *k, uint32_t c);
bool oz_uc_is_space(uint32_t c);
size_t oz_uc_spaces_before(oz_slice s, size_t at, size_t limit); /* where the white space in [limit, at) that ends at `at` begins */
size_t oz_uc_spaces_behind(oz_slice s, size_t at);               /* where the white space that begins at `at` ends */
/* Scripts as the UnicodeScripts pre-tokeniser joins them; grapheme clusters (UAX 29), the length of the one at p. */
typedef struct oz_uc_kind { uint32_t lo, hi; uint8_t kind; } oz_uc_kind;
extern const oz_uc_kind oz_uc_scripts[], oz_uc_breaks[];
extern const size_t oz_uc_n_scripts, oz_uc_n_breaks;
enum { OZ_UC_NO_SCRIPT = 0 };
int oz_uc_script(uint32_t c);
size_t oz_uc_grapheme(const char *p, size_t n);
/* Append the changed text to out, or leave it alone and return false: s stays as it is. */
typedef enum oz_uc_form { OZ_UC_NFC, OZ_UC_NFD, OZ_UC_NFKC, OZ_UC_NFKD } oz_uc_form;
bool oz_uc_normalize(oz_buf *out, oz_slice s, oz_uc_form form);
bool oz_uc_lowercase(oz_buf *out, oz_slice s);
void oz_utf8_replace(oz_buf *out, const char *p, size_t n); /* U+FFFD for each maximal ill-formed part */
/* Decodes p[0], known to begin a well-formed character. */
static inline size_t oz_uc_next(const char *p, uint32_t *c) {
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80) return *c = u[0], 1;
    if (u[0] < 0xE0) return *c = (u[0] & 31u) << 6 | (u[1] & 63u), 2;
    if (u[0] < 0xF0) return *c = (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u), 3;
    return *c = (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u), 4;
}
static inline size_t oz_uc_len(char first) {
    unsigned char u = (unsigned char)first;
    return u < 0x80 ? 1 : u < 0xE0 ? 2 : u < 0xF0 ? 3 : 4;
}

/* ---- JSON with a path (tok_json.c) */
typedef struct oz_jpath { char s[200]; } oz_jpath;
oz_jpath oz_jpath_key(oz_jpath base, const char *key);
oz_jpath oz_jpath_at(oz_jpath base, size_t i);
/* obj must be an object whose keys are all in `keys`, "a|b|c". */
oz_status oz_json_keys(const json_t *obj, oz_jpath path, const char *keys, oz_err *err);
oz_status oz_json_flag(bool *out, const json_t *obj, oz_jpath path, const char *key, oz_err *err); /* missing: *out stays */
oz_status oz_json_char_of(oz_buf *out, const json_t *obj, oz_jpath path, const char *key, oz_err *err); /* a string of one character */
oz_status oz_json_text_of(oz_buf *out, const json_t *obj, oz_jpath path, const char *key, oz_err *err); /* a string, of some length */
enum { OZ_TOK_MAX_STEPS = 64 }; /* of one stage */
typedef struct oz_stage_row {
    const char *type, *keys;
    const char *list; /* the key of a Sequence's array; NULL otherwise */
    oz_status (*parse)(void *self, const json_t *obj, oz_jpath path, oz_err *err);
} oz_stage_row;
/* One stage of tokenizer.json. v NULL or null: nothing. `rows` ends with a row without a type. */
oz_status oz_stage_parse(void *self, const oz_stage_row *rows, const json_t *v, oz_jpath path, oz_err *err);

/* ---- Vocabulary: ids and contents, model and added tokens together (tok_vocab.c) */
/* Flags of an id; none: there is no such id. Skipped: left out by skip_special. Spaced: its piece ends with a space that waits. */
enum { OZ_TOK_MODEL = 1, OZ_TOK_ADDED = 2, OZ_TOK_SPECIAL = 4, OZ_TOK_ANY = 7, OZ_TOK_SKIPPED = 8, OZ_TOK_SPACED = 16 };
enum { OZ_TOK_MAX_ID = (1 << 21) - 1 }; /* tables are indexed by id: no number in a file may blow them up */
typedef struct oz_span { uint32_t at, n; } oz_span; /* in chars */
typedef struct oz_vocab_item {
    oz_span content, text, piece, first; /* text: what the decoders see; piece, first: what it adds to a stream, later and at its beginning */
    uint8_t flags;
} oz_vocab_item;
typedef struct oz_vocab {
    oz_map *ids;
    oz_vocab_item *item;
    size_t n, cap;  /* highest id + 1 */
    size_t longest; /* content, in bytes */
    oz_buf chars;   /* all contents, and the texts that are others */
} oz_vocab;
oz_status oz_vocab_add(oz_vocab *v, int64_t id, oz_slice s, int flags, const char *path, oz_err *err);
int32_t oz_vocab_find(const oz_vocab *v, oz_slice s, int flags); /* with one of the flags; -1: none */
bool oz_vocab_has(const oz_vocab *v, int32_t id);
oz_slice oz_vocab_content(const oz_vocab *v, int32_t id);
oz_slice oz_vocab_text(const oz_vocab *v, int32_t id);
oz_slice oz_vocab_piece(const oz_vocab *v, int32_t id, bool first);
oz_status oz_vocab_set(oz_vocab *v, oz_span *span, oz_slice s, oz_err *err); /* span: of an item */
oz_status oz_vocab_read(oz_vocab *v, const json_t *vocab, oz_err *err);      /* {"token": id, ..} at model.vocab */
void oz_vocab_byte_ids(int32_t ids[256], const oz_vocab *v);                 /* of <0x00> .. <0xFF> in the model; -1: not there */
void oz_vocab_deinit(oz_vocab *v);
uint64_t oz_seed(void); /* odd, drawn anew each time: no file can make all keys of a table collide */
/* The alphabet of byte-level vocabularies: a byte as a printable character, and back (-1: not in the alphabet). */
uint32_t oz_byte_char(uint8_t byte);
int oz_char_byte(uint32_t c);

/* ---- Added tokens (tok_added.c) */
typedef struct oz_added_token { int32_t id; bool lstrip, rstrip, single_word; size_t at, n, order; } oz_added_token; /* in chars */
typedef struct oz_added { oz_added_token *tok; size_t n, cap; bool first[256]; oz_buf chars; } oz_added; /* sorted by text */
void oz_added_push(oz_added *a, oz_added_token t, oz_slice text);
void oz_added_seal(oz_added *a); /* of equal texts the first pushed stays */
void oz_added_deinit(oz_added *a);
/* Cuts s into hits and what is between them, handed over in order; id -1: text. */
typedef oz_status oz_added_fn(void *self, oz_slice part, int32_t id, oz_err *err);
oz_status oz_added_cut(const oz_added *a, oz_slice s, oz_added_fn *fn, void *self, oz_err *err);

/* ---- Patterns over sets of characters (tok_set.c, tok_pattern.c), matched over an alphabet of kinds (tok_alphabet.c) */
typedef struct oz_set { oz_range *r; size_t n, cap; } oz_set;
void oz_set_add(oz_set *s, uint32_t lo, uint32_t hi);
void oz_set_add_class(oz_set *s, const oz_uc_class *k, bool negate);
bool oz_set_has(const oz_set *s, uint32_t c);
void oz_set_negate(oz_set *s);
enum { OZ_MAX_SETS = 64 };
typedef struct oz_sets { oz_set set[OZ_MAX_SETS]; size_t n; } oz_sets;
oz_status oz_sets_put(int *index, oz_sets *all, oz_set *s, oz_err *err); /* takes s over; an equal one is used again */
void oz_sets_deinit(oz_sets *all);
/* What is appended to out: PCRE2 syntax in which OZ_SET_MARK and a byte `1 + index` stand for one character of a set. */
#define OZ_SET_MARK '\x01'
oz_status oz_pattern_parse(oz_buf *out, oz_sets *sets, oz_slice pattern, oz_err *err);
oz_status oz_pattern_literal(oz_buf *out, oz_sets *sets, oz_slice text, oz_err *err);
oz_status oz_pattern_class(oz_buf *out, oz_sets *sets, const char *name, oz_err *err);
oz_status oz_pattern_classless(oz_buf *out, oz_sets *sets, const char *a, const char *b, oz_err *err); /* a character in neither */

typedef struct oz_alphabet { uint8_t *kind; uint64_t in[256]; size_t n_kinds; } oz_alphabet; /* of a code point; the sets it is in */
oz_status oz_alphabet_make(oz_alphabet *a, const oz_sets *sets, oz_err *err);
void oz_alphabet_deinit(oz_alphabet *a);
size_t oz_alphabet_map(uint8_t *out, const oz_alphabet *a, oz_slice s); /* a kind for each character; their number */
oz_status oz_matcher_new(void **code, const oz_alphabet *a, oz_slice pattern, oz_err *err);
void oz_matcher_free(void **code);
typedef struct oz_matching oz_matching; /* what one thread needs to match */
oz_matching *oz_matching_new(void);     /* NULL: no memory */
void oz_matching_free(oz_matching **m);
typedef struct oz_match { bool found; size_t begin, end; } oz_match;
oz_status oz_matching_find(oz_match *out, oz_matching *m, const void *code, const uint8_t *s, size_t n, size_t from, oz_err *err);

/* Walks the matches of a text: an empty match directly behind a match is none; elsewhere it counts. */
typedef struct oz_matches { const void *code; const uint8_t *kinds; size_t n, from, last_end; } oz_matches;
oz_matches oz_matches_of(const void *code, const uint8_t *kinds, size_t n);
oz_status oz_matches_next(oz_match *out, oz_matches *it, oz_matching *m, oz_err *err);
typedef struct oz_match_work { oz_matching *matching; uint8_t *kinds; size_t cap; } oz_match_work; /* of one thread, for any text */
oz_status oz_match_work_room(oz_match_work *w, size_t n_bytes, oz_err *err);
void oz_match_work_deinit(oz_match_work *w);
/* A pattern by itself, with its own alphabet. {"Regex": ".."} or {"String": ".."}; a string without a regex is looked for as it is. */
typedef struct oz_regex { oz_alphabet alphabet; void *code; } oz_regex;
typedef struct oz_replace { oz_regex *regex; oz_buf find, content; } oz_replace; /* regex NULL: find is a string, not empty */
oz_status oz_pattern_json(oz_slice *out, bool *is_regex, const json_t *v, oz_jpath path, oz_err *err);
oz_status oz_replace_parse(oz_replace *r, const json_t *obj, oz_jpath path, oz_err *err);
/* Appends to out unless nothing matches. Fails above limit bytes. head: how many bytes a match at the beginning takes; SIZE_MAX: none is there. */
oz_status oz_replace_run(oz_buf *out, bool *changed, size_t *head, const oz_replace *r, oz_slice in, size_t limit, oz_match_work *w, oz_err *err);
oz_status oz_replace_of(oz_replace *r, const json_t *obj, oz_jpath path, const char *key, oz_err *err); /* of a string, by nothing */
void oz_replace_deinit(oz_replace *r);

/* ---- Normalisers (normalize.c, charsmap.c) */
typedef struct oz_charsmap oz_charsmap; /* SentencePiece's compiled map */
oz_status oz_charsmap_new(oz_charsmap **out, const json_t *obj, oz_jpath path, oz_err *err);
void oz_charsmap_free(oz_charsmap **m);
bool oz_charsmap_run(oz_buf *out, const oz_charsmap *m, oz_slice in, size_t *zero); /* zero: see oz_split_run; of the changed text then */
/* zero: see oz_split_run; moved: what a step makes of it. */
typedef struct oz_norm_work { oz_buf out, tmp, alone; size_t limit, zero, moved; oz_match_work match; } oz_norm_work;
typedef struct oz_norm oz_norm;
typedef oz_status oz_norm_fn(oz_buf *out, bool *changed, const oz_norm *self, oz_slice in, oz_norm_work *w, oz_err *err);
struct oz_norm { oz_norm_fn *run; int form; oz_replace replace; oz_charsmap *map; };
typedef struct oz_norms { oz_norm step[OZ_TOK_MAX_STEPS]; size_t n; } oz_norms;
oz_status oz_norms_parse(oz_norms *z, const json_t *v, oz_err *err);
void oz_norms_deinit(oz_norms *z);
/* s stays where nothing changes, else becomes a view of w->out. */
oz_status oz_norms_run(oz_slice *s, const oz_norms *z, oz_norm_work *w, oz_err *err);
void oz_norm_work_deinit(oz_norm_work *w);

/* ---- Pre-tokenisers (tok_split.c) */
typedef enum oz_split_behavior {
    OZ_SPLIT_ISOLATED, OZ_SPLIT_REMOVED, OZ_SPLIT_MERGED_WITH_PREVIOUS, OZ_SPLIT_MERGED_WITH_NEXT, OZ_SPLIT_CONTIGUOUS
} oz_split_behavior;
typedef enum oz_split_prepend { OZ_PREPEND_NEVER, OZ_PREPEND_FIRST, OZ_PREPEND_ALWAYS } oz_split_prepend;
typedef struct oz_metaspace { oz_split_prepend prepend; bool cuts; } oz_metaspace;
oz_status oz_metaspace_parse(oz_metaspace *out, oz_buf *mark, const json_t *obj, oz_jpath path, oz_err *err);
struct piece;
struct cutter;
typedef struct oz_split_step {
    oz_buf mark; /* what is put in front, and, where it marks, in the place of spaces; empty: nothing */
    oz_split_prepend prepend;
    bool marks, spells, invert; /* spells: what was cut is spelled in the byte alphabet */
    oz_status (*cut)(struct cutter *c, size_t step, struct piece p, oz_err *err); /* NULL: not at all */
    oz_split_behavior behavior;
    int64_t length;
    oz_buf pattern;
    void *code;
} oz_split_step;
typedef struct oz_split { oz_split_step step[OZ_TOK_MAX_STEPS]; size_t n; oz_sets sets; oz_alphabet alphabet; } oz_split;
oz_status oz_split_parse(oz_split *z, const json_t *v, oz_err *err);
/* True if words are spelled in the byte alphabet at the end: from now on they are handed over as the bytes themselves. */
bool oz_split_take_bytes(oz_split *z);
void oz_split_deinit(oz_split *z);
typedef struct oz_split_work { oz_match_work match; oz_arena *arena; } oz_split_work;
typedef oz_status oz_split_fn(void *self, oz_slice word, oz_err *err);
/* Hands over the words of a text in order; they live as long as the text and the arena. zero: how many bytes of text come from the first
 * character of what is encoded (0: it begins later). */
oz_status oz_split_run(const oz_split *z, oz_slice text, size_t zero, oz_split_work *w, oz_split_fn *fn, void *self, oz_err *err);
void oz_split_work_deinit(oz_split_work *w);

/* ---- Models: a row each (tok_bpe.c, tok_unigram.c, tok_words.c; the table is in tok_load.c) */
typedef struct oz_model_work {
    struct oz_symbol *symbols; /* BPE */
    uint64_t *heap;
    struct oz_place *places; /* unigram */
    size_t cap_symbols, cap_heap, cap_places;
    oz_buf spelled;
} oz_model_work;
/* Room for n elements; what was there is lost. */
oz_status oz_model_work_room(void **p, size_t *cap, size_t n, size_t size, const char *what, oz_err *err);
void oz_model_work_deinit(oz_model_work *w);
typedef struct oz_model_row {
    const char *type, *keys;
    /* *self is set, and to be freed, even if it fails. The vocabulary outlives the model. */
    oz_status (*load)(void **self, oz_vocab *v, const json_t *obj, bool byte_level, oz_err *err);
    size_t (*part)(const void *self, oz_slice word); /* how much of a word is one by itself; NULL: all */
    oz_status (*encode)(oz_ids *out, const void *self, oz_model_work *w, oz_slice word, oz_err *err); /* word: not empty */
    void (*free)(void *self);
} oz_model_row;
extern const oz_model_row oz_model_bpe, oz_model_unigram, oz_model_word_piece, oz_model_word_level;
bool oz_bpe_reads_bytes(const json_t *obj); /* a BPE model with these options may be handed bytes */
void oz_ids_push(oz_ids *out, int32_t id);
typedef struct oz_trie { uint64_t *edge; size_t mask; int32_t *value; size_t n, cap; uint64_t seed; } oz_trie; /* value[node], -1: none */
oz_status oz_trie_add(oz_trie *t, oz_slice s, int32_t value, oz_err *err);
uint32_t oz_trie_step(const oz_trie *t, uint32_t node, char byte); /* 0: no such edge; the root is 0 */
void oz_trie_deinit(oz_trie *t);

/* ---- Decoders (decode.c) */
struct oz_tokens;
typedef struct oz_decoder oz_decoder;
struct oz_decoder {
    oz_status (*run)(struct oz_tokens *t, const oz_decoder *self); /* over the tokens of a sequence */
    oz_replace replace; /* Replace, BPEDecoder, CTC; its content is the mark or the prefix of others */
    oz_buf word_delimiter;
    oz_regex *delimiter_regex;
    int64_t start, stop;
    bool cleanup, keeps_first;
};
typedef struct oz_decoders {
    oz_decoder step[OZ_TOK_MAX_STEPS];
    size_t n, growth;
    bool none;                            /* no decoder at all: tokens are joined by spaces */
    const oz_decoder *suffix; /* what ends a word is a space, unless it ends the text */
    bool two_pieces, dedups;  /* of a stream: the first token's piece is another; equal tokens in a row are one */
} oz_decoders;
oz_status oz_decoders_parse(oz_decoders *z, const json_t *v, oz_err *err);
oz_status oz_decoders_pieces(oz_vocab *v, const oz_decoders *z, oz_err *err);
void oz_decoders_deinit(oz_decoders *z);

oz_status oz_post_parse(oz_tok *t, const json_t *v, oz_err *err); /* Post-processors (tok_post.c) */

struct oz_tok {
    oz_vocab vocab;
    oz_added raw, normalized; /* added tokens searched before and after normalisation */
    oz_norms norms;
    oz_split split;
    const oz_model_row *row;
    void *model;
    oz_ids prefix, suffix; /* what the post-processor adds */
    oz_decoders decoders;
    int32_t bos, eos;
};

#endif
