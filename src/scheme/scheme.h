/* Schemes: which module is stored and run how. One pure resolution from (config, modules) to a scheme a module, the presets, the
 * writer of quantization_config, and the binding of a module's tensors to an oz_weight. Fails closed.
 * Source: compressed-tensors as written down in formats.md sections 1, 2, 4, 10, 11. */
#ifndef OZ_SCHEME_SCHEME_H
#define OZ_SCHEME_SCHEME_H
#include <jansson.h>
#include "base/err.h"
#include "base/findings.h"
#include "checkpoint/checkpoint.h"
#include "number/number.h"

/* Activations: as they are; dynamic, symmetric, per token of int8 or float8, which products take as codes; any other way, rounded to values. */
typedef enum oz_act { OZ_ACT_NONE, OZ_ACT_I8_TOKEN, OZ_ACT_F8_TOKEN, OZ_ACT_VALUES, OZ_ACT_COUNT } oz_act;

/* What a module's tensors are called and how they lie: a row of a table (store.c). */
typedef enum oz_store {
    OZ_STORE_BYTES, OZ_STORE_PACKED, OZ_STORE_NVFP4, OZ_STORE_MXFP4, OZ_STORE_MXFP6, OZ_STORE_MXFP8, /* compressed-tensors */
    OZ_STORE_GPTQ, OZ_STORE_AWQ, OZ_STORE_FP8_BLOCK, OZ_STORE_COUNT
} oz_store;

typedef struct oz_scheme {
    const char *name;     /* of the preset with this meaning, or "dense"; for display */
    bool quantized;
    oz_codec codec;       /* of the stored codes (dense: unused, the tensor's dtype says it) */
    int bits;
    bool is_float;
    int64_t group_size;   /* 0: channel */
    bool per_tensor;
    bool symmetric;
    oz_act act;
    const char *format;   /* compressed-tensors: "int-quantized", "pack-quantized", "float-quantized", "naive-quantized" */
    oz_store store;
    /* Zero in all that is written here. */
    int64_t block_rows;   /* > 0: blocks of so many rows and group_size columns share a scale */
    bool column_order;    /* columns are in groups by a stored index */
    bool static_input;    /* of ACT_VALUES: the scale is stored */
    oz_round input;       /* of ACT_VALUES, without scales */
    bool old_layout;      /* of its writer's first version: pack-quantized of 3, 5, 6, 7 bits may have whole fields a word; GPTQ stores zero - 1 */
    float divisor;        /* of rounding to nearest: the largest magnitude is divided by it; 0: half the code range */
    bool bf16_scales;     /* whatever the model's type is */
    bool experts;         /* reaches routed experts, unless more is named */
    bool other_inputs;    /* resolved for the weights alone: inputs or outputs (ACT_VALUES) are quantized in a way that is not run */
    bool unknown;         /* its config has errors (findings); nothing can be said of its tensors */
    const char *group, *pattern; /* of the config (borrowed): whose target decided; group NULL: the entry of `ignore` that did */
} oz_scheme;
extern const oz_scheme OZ_SCHEME_DENSE;
oz_codec oz_codec_packed(int bits); /* of integers of 2..8 bits as pack-quantized stores them */
const char *oz_scheme_display(const oz_scheme *s); /* a name for people; a preset's where one has this meaning */
bool oz_scheme_same(const oz_scheme *a, const oz_scheme *b); /* stored and run alike */

/* The presets of `ounce quantize --scheme`: a table. Names are case-insensitive. */
typedef struct oz_preset { oz_scheme scheme; const char *help; bool takes_group_size; } oz_preset;
size_t oz_preset_count(void);
const oz_preset *oz_preset_at(size_t i); /* those of experts can be made at load, too */
const oz_preset *oz_preset_find(const char *name);

typedef struct oz_module { const char *name; const char *class_name; int64_t rows, cols; bool stored; /* oz_scheme_is_stored */ } oz_module; /* no ".weight" */

/* A target or ignore pattern: exact name, class name, or "re:" regular expression anchored at the start (Python's re.match). */
oz_status oz_pattern_match(bool *hit, const char *pattern, const oz_module *m, oz_err *err);

/* config: the whole config.json. Fills schemes[n] (dense where none applies). Errors carry the JSON path or the module's name. */
oz_status oz_scheme_resolve(oz_scheme *schemes, const json_t *config, const oz_module *modules, size_t n, oz_err *err);
oz_status oz_scheme_resolve_all(oz_scheme *schemes, const json_t *config, const oz_module *modules, size_t n, const oz_findings *f, oz_err *err);
/* For who needs the weights alone: what stands in the way of running them, of inputs, outputs and the cache, is none. An error else as above. */
oz_status oz_scheme_resolve_weights(oz_scheme *schemes, const json_t *config, const oz_module *modules, size_t n, oz_err *err);
/* Where a config says how its model is quantized, as it stands there; NULL: it does not. */
const json_t *oz_scheme_locate(const json_t *config);
/* The same of groups (config_groups, ignore) of compressed-tensors that are to be made: messages begin with `path`. A group without a format takes the one that the library infers. */
oz_status oz_scheme_resolve_groups(oz_scheme *schemes, const json_t *config, const char *path, const oz_module *modules, size_t n, oz_err *err);
bool oz_scheme_is_preset(const char *name); /* a name that the library gives groups, known here */
/* kv_cache_scheme: keys (after their rotation) and values are rounded to float8 or int8 with stored scales, one, or one a head. */
typedef struct oz_kv_scheme { bool quantized, per_head, is_int; } oz_kv_scheme;
bool oz_kv_scheme_find(oz_kv_scheme *out, const char *name); /* fp8, fp8_per_head, int8, int8_per_head */
const char *oz_kv_scheme_name(const oz_kv_scheme *s);        /* NULL: not quantized; one for each scheme */
oz_status oz_scheme_kv(oz_kv_scheme *out, const json_t *config, oz_err *err); /* OZ_E_UNSUPPORTED: quantized in a way that is not run */
oz_status oz_kv_scheme_parse(oz_kv_scheme *out, const json_t *v, const char *path, oz_err *err); /* the object alone, or null */
/* k and v [n_heads_kv], of the attention module `name` ("model.layers.0.self_attn"). Both missing: 1, and false in *stored. */
oz_status oz_scheme_bind_kv(float *k, float *v, bool *stored, const oz_ckpt *c, const char *name, const oz_kv_scheme *s, int64_t n_heads_kv, oz_err *err);
size_t oz_scheme_kv_owner(const char *tensor); /* of a name that scales of the cache have: bytes of the attention module's; 0: it is none */
bool oz_scheme_is_kv(const char *tensor);
const char *oz_scheme_kv_suffix(int which); /* behind the attention module's name, as it is written: 0: keys, 1: values */

/* quantization_config for writing: modules[n] (all that are linear, and embeddings) under schemes[n], of compressed-tensors. Read back it gives the same schemes. Dense linear
 * ones are named in `ignore`. kv NULL: the cache is not quantized. New reference. */
json_t *oz_scheme_config(const oz_module *modules, const oz_scheme *schemes, size_t n, const oz_kv_scheme *kv);

/* What of a config written so vLLM refuses or misreads (formats.md sections 4.2, 4.3, 5.1): warnings, one for each kind of thing, with the first module and how many there are. */
char *oz_vllm_whole(const char *module); /* what it is a part of there, and shares a scheme with ("model.layers.0.self_attn.qkv_proj"), or itself; oz_free */
void oz_scheme_vllm(const oz_module *modules, const oz_scheme *schemes, size_t n, const oz_kv_scheme *kv /* or NULL */, const oz_findings *f);

/* The tensors that a module under a scheme is stored as. */
typedef enum oz_part_kind { OZ_PART_CODES, OZ_PART_SCALE, OZ_PART_SHAPE, OZ_PART_ZERO, OZ_PART_G_IDX, OZ_PART_DIVISOR, OZ_PART_INPUT_SCALE, OZ_PART_INPUT_ZERO } oz_part_kind;
typedef struct oz_part { const char *suffix; /* ".weight_scale" */ oz_dtype dtype; int n_dims; int64_t dims[2]; oz_part_kind kind; bool optional; } oz_part;
enum { OZ_MAX_PARTS = 8 };
/* model_dtype: BF16, F16 or F32: of the scales and of a dense weight. Returns how many parts. */
int oz_scheme_parts(oz_part parts[OZ_MAX_PARTS], const oz_scheme *s, int64_t rows, int64_t cols, oz_dtype model_dtype);
oz_rtn oz_scheme_rtn(const oz_scheme *s, oz_dtype model_dtype); /* how it is rounded to nearest */
/* OZ_E_ARG if the group size does not divide cols: names module, cols and, where it can be chosen, the usual ones that do. */
oz_status oz_scheme_check(const oz_scheme *s, const oz_module *m, oz_err *err);
int64_t oz_group_size_usual(size_t i); /* group sizes that kernels run, ascending; 0: no more */
/* Finds the module's tensors and makes the view; missing, wrong dtype or shape: an error with tensor, expected, found and file.
 * Scales are checked: finite and > 0 (formats.md 11.4). */
oz_status oz_scheme_bind(oz_weight *out, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, oz_err *err);
/* The same rules, all of them. */
oz_status oz_scheme_bind_all(oz_weight *out, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, const oz_findings *f, oz_err *err);
/* The stored scale and zero point of a static input (1, 0 where it is not static). */
oz_status oz_scheme_bind_input(float *scale, float *zero, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, oz_err *err);
/* Whether the checkpoint keeps anything for the module but a dense weight and a bias. */
bool oz_scheme_is_stored(const oz_ckpt *c, const oz_module *m);
bool oz_scheme_is_of_inputs(const char *suffix); /* of what a module takes or gives: ".input_scale" */
bool oz_scheme_is_suffix(const char *suffix); /* ".weight", or what some method keeps beside it */
/* Drops the pages of the module's tensors. */
void oz_scheme_drop(const oz_ckpt *c, const oz_module *m);

#endif
