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
    oz_tensor *tensors; /* in the order added; by name after oz_ckpt_seal */
    size_t n_tensors, cap_tensors, n_bytes;
    oz_map *by_name; /* index in tensors: valid after oz_ckpt_seal */
    oz_arena *arena; /* names of tensors and files */
    json_t *config;  /* owned */
};

enum { OZ_JSON_LIMIT = 256 << 20 }; /* of a JSON file: config, index, tokenizer */

/* Maps a file and gives the index of its map. maps[] may move with the next call; what a map's data points to does not. */
oz_status oz_ckpt_map(oz_ckpt *c, size_t *index, const char *path, oz_err *err);
/* Adds a tensor; its name is copied, file_name must live as long as c (oz_arena_strndup(c->arena, ...)).
 * A name that is there already is OZ_E_FORMAT and names the tensor and both files. */
oz_status oz_ckpt_add(oz_ckpt *c, const oz_tensor *t, oz_err *err);

/* The tensors of one mapped safetensors file; file_name must live as long as c. */
oz_status oz_safetensors_load(oz_ckpt *c, const oz_mmap *m, const char *file_name, oz_err *err);

/* A file is a GGUF if its name ends in .gguf or its first four bytes are "GGUF". */
bool oz_is_gguf(const char *path);
/* Fills c (fresh: path and is_gguf are set) with the tensors under their Hugging Face names, and c->config. */
oz_status oz_gguf_load(oz_ckpt *c, const char *path, oz_err *err);
/* out is zeroed. Makes tokenizer, tokenizer_config, generation_config, special_tokens_map and chat_template from the metadata. */
oz_status oz_gguf_text_files(oz_text_files *out, const char *path, oz_err *err);

/* Python's json.dumps(v, sort_keys, indent=2) and a newline: non-ASCII escaped, floats as repr prints them. */
void oz_json_write_hf(oz_buf *out, const json_t *v, bool sort_keys);
/* One JSON value as a file of dir, in the form above. */
oz_status oz_json_save(const json_t *v, const char *dir, const char *name, bool sort_keys, oz_err *err);

#endif
