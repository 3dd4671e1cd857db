/* What the files of this room share: the checkpoint while it is being filled. Folder (ckpt.c, safetensors.c) and GGUF
 * (gguf.c, gguf_hf.c) loaders add maps and tensors; ckpt.c sorts them afterwards and answers the questions of checkpoint.h. */
#ifndef OZ_CHECKPOINT_INTERNAL_H
#define OZ_CHECKPOINT_INTERNAL_H
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"

struct oz_ckpt {
    char *path;
    bool is_gguf;
    oz_mmap *maps; /* every mapped file, closed with the checkpoint */
    size_t n_maps, cap_maps;
    oz_tensor *tensors; /* in the order added while loading, then by name */
    size_t n_tensors, cap_tensors, n_bytes;
    oz_map *by_name; /* index in tensors */
    oz_arena *arena; /* names of tensors and files */
    json_t *config;  /* owned */
    const oz_findings *f; /* while it is being filled; NULL: the first error ends that */
};

enum { OZ_JSON_LIMIT = 256 << 20 }; /* of a JSON file: config, index, tokenizer */

oz_ckpt *oz_ckpt_new(const char *path); /* without tensors and config; oz_ckpt_close */
/* Maps a file and gives the index of its map. maps[] may move with the next call; what a map's data points to does not. */
oz_status oz_ckpt_map(oz_ckpt *c, size_t *index, const char *path, oz_err *err);
/* Adds a tensor; its name is copied, file_name must live as long as c (oz_arena_strndup(c->arena, ...)).
 * A name that is there already is OZ_E_FORMAT and names the tensor and both files. */
oz_status oz_ckpt_add(oz_ckpt *c, const oz_tensor *t, oz_err *err);

/* The tensors of one mapped safetensors file; file_name must live as long as c. With c->f those that are what they say. */
oz_status oz_safetensors_load(oz_ckpt *c, const oz_mmap *m, const char *file_name, oz_err *err);

/* Experts that share a tensor become tensors of their own, of the same bytes (experts.c). */
oz_status oz_experts_split(oz_ckpt *c, oz_err *err);

/* A file is a GGUF if its name ends in .gguf or its first four bytes are "GGUF". */
bool oz_is_gguf(const char *path);
/* Fills c (fresh: path and is_gguf are set) with the tensors under their Hugging Face names, and c->config. */
oz_status oz_gguf_load(oz_ckpt *c, const char *path, oz_err *err);
/* out is zeroed. Makes tokenizer, tokenizer_config, generation_config and chat_template from the metadata; nothing
 * where it has no tokenizer. */
oz_status oz_gguf_text_files(oz_text_files *out, const char *path, oz_err *err);

/* ---- GGUF as it is stored (gguf.c): views of the file's bytes; every count and offset is checked before it is used ---- */
typedef enum oz_gguf_type {
    OZ_GGUF_U8, OZ_GGUF_I8, OZ_GGUF_U16, OZ_GGUF_I16, OZ_GGUF_U32, OZ_GGUF_I32, OZ_GGUF_F32, OZ_GGUF_BOOL, OZ_GGUF_STR,
    OZ_GGUF_ARRAY, OZ_GGUF_U64, OZ_GGUF_I64, OZ_GGUF_F64, OZ_GGUF_TYPE_COUNT
} oz_gguf_type;

typedef struct oz_gguf_kv {
    oz_slice key;
    oz_gguf_type type; /* of the elements, for an array: never ARRAY */
    bool is_array;
    uint64_t n;          /* elements; 1 if no array */
    const uint8_t *data; /* as stored: packed numbers, or strings each behind its u64 length; they lie inside the file */
} oz_gguf_kv;

typedef struct oz_gguf_info {
    oz_slice name; /* GGUF's own: "blk.0.attn_q.weight" */
    oz_dtype dtype;
    int n_dims;
    int64_t dims[4]; /* fastest first */
    const uint8_t *data;
    size_t n_bytes;
} oz_gguf_info;

typedef struct oz_gguf {
    const char *where; /* the path, for messages */
    oz_gguf_kv *kvs;
    oz_gguf_info *infos;
    size_t n_kvs, cap_kvs, n_infos, cap_infos;
    oz_map *keys; /* index in kvs */
} oz_gguf;

/* data and where must outlive g. with_infos false: the metadata alone. On failure g needs no deinit.
 * With findings it has all tensors whose size is known, or where one is not, none. */
oz_status oz_gguf_parse(oz_gguf *g, const void *data, size_t n_bytes, const char *where, bool with_infos, const oz_findings *f, oz_err *err);
void oz_gguf_deinit(oz_gguf *g);
/* NULL: not there. */
const oz_gguf_kv *oz_gguf_find(const oz_gguf *g, const char *key);
/* Typed reads. An absent key leaves *out (the default) alone; another type or a value outside [min, max] is an error. */
oz_status oz_gguf_int(int64_t *out, const oz_gguf *g, const char *key, int64_t min, int64_t max, oz_err *err);
oz_status oz_gguf_float(float *out, const oz_gguf *g, const char *key, oz_err *err); /* finite */
oz_status oz_gguf_bool(bool *out, const oz_gguf *g, const char *key, oz_err *err);
oz_status oz_gguf_str(oz_slice *out, const oz_gguf *g, const char *key, oz_err *err); /* UTF-8 without NUL */
/* An array of strings (STR) or of integers of any width (I32); NULL if absent. */
oz_status oz_gguf_array(const oz_gguf_kv **out, const oz_gguf *g, const char *key, oz_gguf_type elem, oz_err *err);
/* The string at *p, which is moved behind it. Start at kv->data. */
oz_slice oz_gguf_next_str(const uint8_t **p);
int64_t oz_gguf_int_at(const oz_gguf_kv *kv, uint64_t i);
/* ---- GGUF as a Hugging Face checkpoint: its tensors (gguf_hf.c), its config (gguf_config.c) ---- */
enum { OZ_GGUF_LLAMA = 1, OZ_GGUF_MIXTRAL = 2, OZ_GGUF_QWEN2 = 4, OZ_GGUF_QWEN3 = 8, OZ_GGUF_GEMMA2 = 16, OZ_GGUF_GEMMA3 = 32, OZ_GGUF_PHI3 = 64 };
typedef struct oz_gguf_model oz_gguf_model;
typedef struct oz_gguf_arch {
    const char *name; /* general.architecture */
    int bit;          /* of the above */
    bool experts;     /* with an expert_count above 0 */
    const char *model_type, *class_name;
    bool interleaved; /* q and k rows (gguf_hf.c) */
    float norm_plus;  /* in stored norms */
    const char *fixed; /* config entries that no metadata holds: JSON */
    oz_status (*config)(json_t *config, const oz_gguf_model *m, oz_err *err); /* entries of its own, or NULL */
} oz_gguf_arch;
typedef struct oz_gguf_dims {
    int64_t n_layers, hidden, intermediate, n_heads, n_heads_kv, head_dim, rope_dim, max_len, vocab, n_experts;
    float eps, rope_theta;
} oz_gguf_dims;
struct oz_gguf_model {
    oz_ckpt *c;
    const oz_gguf *g;
    const oz_gguf_arch *arch;
    oz_gguf_dims d;
    const oz_gguf_info *rope_freqs, *rope_long, *rope_short;
};
oz_status oz_gguf_arch_find(oz_gguf_model *m, oz_err *err);
oz_status oz_gguf_dims_read(oz_gguf_model *m, oz_err *err);
oz_status oz_gguf_keys_check(const oz_gguf_model *m, oz_err *err); /* gguf_keys.c: nothing is there that is not known */
oz_status oz_gguf_config(json_t *config, oz_gguf_model *m, oz_err *err); /* fills config, after the tensors were added */
/* bos_token_id, eos_token_id (a list if the end of a turn is another token), pad_token_id, as far as they are known. */
oz_status oz_gguf_special_ids(json_t *config, const oz_gguf *g, int64_t vocab_size, oz_err *err);

/* ---- vocabularies in other forms, as tokenizer.json: tokens.c, tokens_merges.c; read by spm.c, tiktoken.c, gguf_text.c ---- */
typedef enum oz_token_type { OZ_TOKEN_NORMAL = 1, OZ_TOKEN_UNKNOWN, OZ_TOKEN_CONTROL, OZ_TOKEN_USER, OZ_TOKEN_UNUSED, OZ_TOKEN_BYTE } oz_token_type;

/* Views of the file that it was read from, or strings in `arena`. */
typedef struct oz_tokens {
    const char *where; /* the file, for messages */
    size_t n, n_model; /* all; those of the file, behind which the configs' own follow */
    oz_slice *text;    /* [n] UTF-8 without NUL, as tokenizer.json spells them */
    uint8_t *type;     /* [n] oz_token_type */
    float *score;      /* [n_model]; NULL: none */
    int64_t bos, eos, unk, pad; /* -1: none */
    bool adds_bos, adds_eos;
    const json_t *flags; /* added_tokens_decoder: {"id": {"content", "lstrip", ...}}, or NULL */
    oz_arena *arena;
} oz_tokens;
enum { OZ_TOKENS_MAX = 1 << 21, OZ_TOKEN_MAX_BYTES = 1024, OZ_MERGES_MAX = 1 << 21 }; /* far above what exists */

oz_status oz_tokens_new(oz_tokens *t, size_t n, const char *where, oz_err *err); /* [n] of kind normal, without scores */
void oz_tokens_deinit(oz_tokens *t);
/* Token `id` as text; another with it, what is no UTF-8 or has a NUL in it, is an error. */
int64_t oz_tokens_find(const oz_tokens *t, oz_slice text); /* -1: none */
json_t *oz_tokens_text(const oz_tokens *t, int64_t id);    /* JSON null for -1 */
/* The parts of tokenizer.json. _vocab: {"token": id}, without unused ones. _added: those that are cut out of a text first. _around: what puts bos and
 * eos around a text, behind `own` (stolen; JSON null: nothing). _merges: every way to make a token out of two, by score, else by id. */
oz_status oz_tokens_vocab(json_t **out, const oz_tokens *t, oz_err *err);
json_t *oz_tokens_added(const oz_tokens *t, bool normalized);
json_t *oz_tokens_around(const oz_tokens *t, json_t *own);
oz_status oz_tokens_merges(json_t **out, const oz_tokens *t, oz_err *err);
/* The whole. Members are stolen; NULL is null. */
typedef struct oz_tokenizer_parts { json_t *added, *normalizer, *pre_tokenizer, *post_processor, *decoder, *model; } oz_tokenizer_parts;
json_t *oz_tokenizer_json(const oz_tokenizer_parts *p);
/* One of byte-level BPE: vocab and merges are stolen; what cuts texts into words is JSON in tokenizer.json's words. */
typedef struct oz_bytes_rules { const char *normalizer, *pre_tokenizer, *post_processor, *decoder; bool ignore_merges; } oz_bytes_rules;
json_t *oz_tokens_bytes(const oz_tokens *t, const oz_bytes_rules *r, json_t *vocab, json_t *merges);
/* One of SentencePiece's; what it does to a text before its model sees it. */
typedef struct oz_spm_rules { bool is_bpe, byte_fallback, dummy_prefix, first_only, collapse_spaces; oz_slice charsmap; } oz_spm_rules;
oz_status oz_tokens_spm(json_t **out, const oz_tokens *t, const oz_spm_rules *r, oz_err *err);

oz_status oz_spm_read(oz_tokens *t, oz_spm_rules *r, oz_slice file, const char *where, oz_err *err);
bool oz_is_tiktoken(oz_slice file); /* begins with a line of base64 and a number */
oz_status oz_tiktoken_read(oz_tokens *t, oz_slice file, const char *where, oz_err *err);
/* The tokenizer of a folder without tokenizer.json: out has its other files. Nothing where there is none. */
oz_status oz_text_files_translate(oz_text_files *out, const char *dir, oz_err *err);
const oz_bytes_rules *oz_gguf_pre(oz_slice name, bool *adds_bos, oz_buf *known); /* a row of the table; NULL: not in it, and known lists the names */

/* ---- the hub: names and the cache (hub_cache.c), HTTP (hub_http.c), the download (hub_pull.c) ---- */
typedef struct oz_repo { char *name, *rev, *dir; } oz_repo; /* "OWNER/NAME", "main", its folder in the cache */
oz_status oz_repo_parse(oz_repo *out, const char *text, oz_err *err); /* OZ_E_ARG: no repository is called that; OZ_E_NOT_FOUND: there is no place for a cache */
void oz_repo_deinit(oz_repo *r);
char *oz_repo_snapshot(const oz_repo *r); /* the folder of r's revision; NULL: not in the cache */
char *oz_hub_cache_dir(void); /* NULL: the environment does not say */
char *oz_hub_token(void); /* NULL: none */
bool oz_is_hex(const char *s, size_t n_digits); /* s is n_digits of 0-9 a-f */
bool oz_name_is_inside(const char *name); /* a relative path that stays below where it starts, of printable characters */

/* Where a body goes. A reply may break off: `resume` is asked before every try for the first byte that is wanted, `begin` told at which byte the
 * body that came really begins, and `is_whole` when it ended. */
typedef struct oz_http_sink {
    void *self;
    int64_t (*resume)(void *self);
    oz_status (*begin)(void *self, int64_t from, oz_err *err);
    oz_status (*put)(void *self, const char *p, size_t n, oz_err *err);
    bool (*is_whole)(const void *self);
} oz_http_sink;
typedef struct oz_http_reply { long status; char code[40], message[160]; } oz_http_reply; /* the hub's X-Error-Code and X-Error-Message */
typedef struct oz_http oz_http;
/* The token goes to the endpoint's own scheme, host and port, and nowhere else. */
oz_status oz_http_open(oz_http **out, const char *endpoint, const char *token, oz_err *err);
void oz_http_close(oz_http **h);
/* OZ_OK: the body is whole, or the server refused and reply->status (400..599) says how. Redirects, retries and pauses are within. */
oz_status oz_http_get(oz_http_reply *reply, oz_http *h, const char *url, const oz_http_sink *sink, oz_err *err);

/* What the hub says about a revision, and the files chosen from it into out (commit, files). */
oz_status oz_hub_choose(oz_pull *out, const json_t *info, const oz_pull_cfg *cfg, oz_err *err);

/* A layout, fixed: what layout.c computes and writer.c follows. */
typedef struct oz_layout_tensor {
    char *name;
    oz_dtype dtype;
    int n_dims;
    int64_t dims[OZ_MAX_DIMS];
    size_t n_bytes;
    size_t file;   /* index in files */
    size_t offset; /* of its data in that file */
} oz_layout_tensor;
typedef struct oz_layout_part {
    char *name;
    oz_buf head;
    size_t n_bytes;
} oz_layout_part; /* a file; head: all before its data */
struct oz_layout {
    size_t shard_bytes;
    oz_layout_tensor *tensors; /* in the order declared */
    size_t n_tensors, cap_tensors;
    oz_map *by_name;
    oz_layout_part *files; /* safetensors files, then the index if there is more than one */
    size_t n_files, cap_files;
};

/* Python's json.dumps(v, sort_keys, indent=2) and a newline: non-ASCII escaped, floats as repr prints them. */
void oz_json_write_hf(oz_buf *out, const json_t *v, bool sort_keys);
/* One JSON value as a file of dir, in the form above. */
oz_status oz_json_save(const json_t *v, const char *dir, const char *name, bool sort_keys, oz_err *err);

#endif
