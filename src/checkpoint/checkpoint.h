/* Checkpoints: what a Hugging Face folder or a GGUF file holds, as one view; and the writer of safetensors folders.
 * Reading maps files and copies nothing. Every count and offset is checked against the file before it is used.
 * Sources: safetensors format description; GGUF v2/v3; formats.md sections 2.10 and 6.9. */
#ifndef OZ_CHECKPOINT_CHECKPOINT_H
#define OZ_CHECKPOINT_CHECKPOINT_H
#include <jansson.h>
#include "base/err.h"
#include "base/findings.h"
#include "number/number.h"

enum { OZ_MAX_DIMS = 8 };

typedef struct oz_tensor {
    const char *name;      /* Hugging Face name, for GGUF too */
    const char *file_name; /* without folder, for messages */
    oz_dtype dtype;
    int n_dims;
    int64_t dims[OZ_MAX_DIMS]; /* slowest first: a Linear weight is [out, in] */
    const void *data;          /* may be misaligned by at most the file's own alignment; NULL in a view of what is not written yet */
    size_t n_bytes;
    int32_t rope_heads;        /* > 0: GGUF's interleaved q/k rows, see oz_weight */
} oz_tensor;
enum { OZ_DIMS_TEXT = 96 };
const char *oz_dims_show(char out[OZ_DIMS_TEXT], int n_dims, const int64_t *dims); /* "[320, 64]"; returns out */

typedef struct oz_ckpt oz_ckpt;
/* model: a folder (config.json + model.safetensors or model.safetensors.index.json + shards), a .gguf file, or what oz_hub_resolve finds. */
oz_status oz_ckpt_open(oz_ckpt **out, const char *model, oz_err *err);
/* Opens what can be opened of it: files and tensors that are not what they say are findings and are left out, a config.json that cannot be read makes
 * oz_ckpt_config NULL. *out is NULL, with a finding, where there is nothing. */
oz_status oz_ckpt_open_all(oz_ckpt **out, const char *model, const oz_findings *f, oz_err *err);
void oz_ckpt_close(oz_ckpt **c);
bool oz_ckpt_reads(const oz_ckpt *c, const char *path); /* path is one of its files of weights */
const char *oz_ckpt_path(const oz_ckpt *c);
bool oz_ckpt_is_gguf(const oz_ckpt *c);
const json_t *oz_ckpt_config(const oz_ckpt *c); /* config.json; made from the metadata for a GGUF */
size_t oz_ckpt_count(const oz_ckpt *c);
const oz_tensor *oz_ckpt_at(const oz_ckpt *c, size_t i); /* by name, ascending */
const oz_tensor *oz_ckpt_find(const oz_ckpt *c, const char *name); /* NULL: not there */
size_t oz_ckpt_bytes(const oz_ckpt *c); /* of all tensors' data */
/* The first tensor of floats, by name, with a NaN or an infinity, and its place (row-major). Reads all of them. */
bool oz_ckpt_not_finite(const oz_tensor **out, int64_t *at, const oz_ckpt *c);
void oz_ckpt_drop(const oz_ckpt *c, const oz_tensor *t); /* its pages will not be read again */

/* What text needs, without touching weights: works for a folder that holds only tokenizer files. Members are new references or NULL
 * where absent (tokenizer too: the caller says what it needed). chat_template comes from chat_template.jinja, else from tokenizer_config. */
typedef struct oz_text_files { json_t *tokenizer, *tokenizer_config, *generation_config, *special_tokens_map; char *chat_template; } oz_text_files;
oz_status oz_text_files_open(oz_text_files *out, const char *model, oz_err *err);
void oz_text_files_close(oz_text_files *f);

/* The hub (huggingface.co, or what HF_ENDPOINT names) and its cache on disk, in the layout of the huggingface_hub library: both read what the
 * other wrote. The cache: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub. A repository is written NAME or OWNER/NAME, with
 * @REV (branch, tag or commit) where it is not `main`.
 * _resolve: what MODEL means. A path that exists is itself; else a repository is its snapshot in the cache (its .gguf file, if that is all of
 * the model that it has). Never downloads: what is not in the cache is OZ_E_NOT_FOUND and says how to get it. *path: oz_free. */
oz_status oz_hub_resolve(char **path, const char *model, oz_err *err);
typedef struct oz_pull_file { char *name; int64_t n_bytes; char hash[65]; bool fetched; } oz_pull_file; /* fetched: it was not there before */
typedef struct oz_pull { char *path, *commit; oz_pull_file *files; size_t n_files, cap_files; } oz_pull; /* path: the snapshot's folder */
/* Downloads what of a repository is not in the cache yet. Broken off, it goes on where it stopped; every file is checked against the hash that
 * the hub gives; several at once wait for each other. Token: HF_TOKEN, else the file HF_HOME/token. Offline (also by HF_HUB_OFFLINE) it only
 * finds the snapshot, and lists no files. */
typedef struct oz_pull_cfg {
    const char *repo;
    const char *const *include; /* shell patterns over the names of its files; none: the files that this program reads */
    size_t n_include;
    bool offline;
} oz_pull_cfg;
oz_status oz_hub_pull(oz_pull *out, const oz_pull_cfg *cfg, oz_err *err);
void oz_pull_deinit(oz_pull *p);

/* The writer. Declare every tensor, then fix the layout (after which sizes are known to the byte), then write data in any order.
 * Order of tensors, header and padding are those of the safetensors library: alignment of dtype descending, then name; header padded
 * with spaces to a multiple of 8; metadata {"format":"pt"}. One file "model.safetensors" if all fits shard_bytes (0: no limit),
 * else model-0000i-of-0000N.safetensors filled in declaration order, and model.safetensors.index.json. shard_bytes bounds the tensors'
 * data, as in the hub's library, and a tensor larger than it has a file of its own. */
typedef struct oz_layout oz_layout;
oz_layout *oz_layout_new(size_t shard_bytes);
void oz_layout_free(oz_layout **l);
/* The same name twice is an error. */
oz_status oz_layout_add(oz_layout *l, const char *name, oz_dtype dtype, int n_dims, const int64_t *dims, oz_err *err);
oz_status oz_layout_fix(oz_layout *l, oz_err *err);
size_t oz_layout_file_count(const oz_layout *l); /* safetensors files and the index */
const char *oz_layout_file(const oz_layout *l, size_t i, size_t *n_bytes); /* name and exact size on disk */
size_t oz_layout_bytes(const oz_layout *l); /* of all its files */
/* The checkpoint that it will be, without data: for rules that go by names, types and shapes; those of values pass over it. where: for messages, in place of a path. */
oz_status oz_layout_view(oz_ckpt **out, const oz_layout *l, const json_t *config, const char *where, oz_err *err);

typedef struct oz_writer oz_writer;
oz_status oz_writer_open(oz_writer **out, const oz_layout *l, const char *dir, oz_err *err); /* headers written, files sized */
/* Takes up what a writer of the same layout left in dir without finishing; OZ_E_FORMAT names a file whose size or header is another. _keep: a
 * tensor is whole already, as the caller knows; the others are written anew. */
oz_status oz_writer_reopen(oz_writer **out, const oz_layout *l, const char *dir, oz_err *err);
oz_status oz_writer_keep(oz_writer *w, const char *name, oz_err *err);
oz_status oz_writer_sync(oz_writer *w, oz_err *err); /* what was put so far outlives a crash */
/* A layout of one file, written beside `path` and renamed by finish; a close without finish leaves nothing. */
oz_status oz_writer_open_file(oz_writer **out, const oz_layout *l, const char *path, oz_err *err);
/* Bytes [offset, offset + n) of a tensor's data, each byte once. Any thread. The layout must outlive the writer. */
oz_status oz_writer_put(oz_writer *w, const char *name, size_t offset, const void *data, size_t n_bytes, oz_err *err);
oz_status oz_writer_finish(oz_writer *w, oz_err *err); /* every tensor complete, or an error that names one; fsync */
void oz_writer_close(oz_writer **w);

/* Files of a checkpoint that are neither weights nor config.json are copied as they are (tokenizer, template, generation config,
 * *.py, LICENSE ...); for a GGUF they are made: tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json. */
oz_status oz_ckpt_copy_side_files(const oz_ckpt *c, const char *dir, oz_err *err);
/* config.json as transformers writes it: keys sorted, indent 2, one newline at the end. */
oz_status oz_config_write(const json_t *config, const char *dir, oz_err *err);

#endif
