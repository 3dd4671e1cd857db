/* What the files of this room share: compiled patterns, and the arguments of a quantization as a config spells them. */
#ifndef OZ_SCHEME_INTERNAL_H
#define OZ_SCHEME_INTERNAL_H
#include "scheme/scheme.h"

/* ---- patterns (pattern.c) ---- */
typedef struct oz_pattern {
    const char *text;   /* borrowed */
    void *regex;        /* pcre2_code, NULL: an exact name or a class name */
    void *match, *limits; /* pcre2_match_data, pcre2_match_context */
} oz_pattern;
/* How a pattern met a module. Order is precedence: a smaller one wins. */
typedef enum oz_hit { OZ_HIT_NAME, OZ_HIT_REGEX, OZ_HIT_CLASS, OZ_HIT_NONE } oz_hit;

oz_status oz_pattern_init(oz_pattern *p, const char *text, oz_err *err);
void oz_pattern_deinit(oz_pattern *p);
/* The layer that vLLM and others fuse a linear module's last name into ("q_proj": "qkv_proj"); NULL: none. */
const char *oz_fused_name(const char *last);
oz_status oz_pattern_hit(oz_hit *out, const oz_pattern *p, const oz_module *m, oz_err *err);

/* ---- QuantizationArgs (args.c) ---- */
typedef enum oz_strategy {
    OZ_STRATEGY_TENSOR, OZ_STRATEGY_CHANNEL, OZ_STRATEGY_GROUP, OZ_STRATEGY_BLOCK, OZ_STRATEGY_TOKEN, OZ_STRATEGY_TENSOR_GROUP,
    OZ_STRATEGY_ATTN_HEAD, OZ_STRATEGY_COUNT
} oz_strategy;
typedef enum oz_dynamic { OZ_DYNAMIC_NO, OZ_DYNAMIC_YES, OZ_DYNAMIC_LOCAL } oz_dynamic;
typedef struct oz_args {
    bool present; /* false: null, the rest is zero */
    bool is_float, symmetric;
    int bits;
    oz_strategy strategy;
    oz_dynamic dynamic;
    int64_t group_size;        /* strategies group and tensor_group, else 0 */
    int64_t block_rows, block_cols; /* strategy block, else 0 */
    bool column_order;         /* actorder group: columns are permuted, weight_g_idx is stored */
    bool narrow_scale;         /* scale_dtype of the MX and NV formats */
} oz_args;
/* An object's keys are among these: one that is not known may change the meaning of the others. */
oz_status oz_keys_check(const json_t *v, const char *path, const char *const *keys, size_t n, oz_err *err);
/* v: an object or null. is_weight: activations have other strategies. */
oz_status oz_args_parse(oz_args *out, const json_t *v, const char *path, bool is_weight, oz_err *err);
json_t *oz_args_write(const oz_args *a); /* null if not present */
bool oz_args_equal(const oz_args *a, const oz_args *b);
const char *oz_strategy_name(oz_strategy s);

/* ---- configs (resolve.c, groups.c, foreign.c) ---- */
typedef struct oz_patterns { oz_pattern *items; bool *used; size_t n; } oz_patterns;
void oz_patterns_deinit(oz_patterns *p);
oz_status oz_patterns_parse(oz_patterns *out, const json_t *list, const char *path, const char *key, oz_err *err);

typedef struct oz_group {
    const char *name; /* borrowed */
    char *path; /* "quantization_config.config_groups.group_0" */
    oz_args weights, acts;
    const char *format;
    oz_patterns targets;
    oz_scheme scheme;
    bool outputs;        /* are quantized */
    const char *why_not; /* NULL: it can be run */
} oz_group;

typedef struct oz_rule { oz_pattern pattern; char *text, *path; bool skip; const json_t *over; const char *key; /* borrowed */ } oz_rule; /* of GPTQModel's `dynamic` */

typedef struct oz_config {
    char *path; /* "quantization_config" */
    const json_t *json;
    const oz_findings *f;
    const struct oz_family *family;
    /* compressed-tensors */
    const char *format; /* of the top level; NULL: absent or mixed */
    oz_group *groups;
    size_t n_groups;
    oz_patterns ignore;
    bool weights_only;
    bool is_made; /* written by who quantizes now: what it ignores is meant to be there */
    /* others */
    oz_scheme base;
    oz_rule *rules;
    size_t n_rules;
    const json_t *excluded; /* modules_to_not_convert: names; by_part: of which any part will do */
    bool by_part;
} oz_config;

/* A quant_method. refusal: why it is not read, and what to use. */
typedef struct oz_family {
    const char *method;
    oz_status (*read)(oz_config *c, oz_err *err);
    oz_status (*module)(oz_scheme *out, oz_config *c, const oz_module *m, oz_err *err);
    const char *refusal;
} oz_family;
const oz_family *oz_family_find(const char *method);

/* ---- ways of storing (store.c) ---- */
const char *oz_store_name(oz_store s);  /* of the only scheme that is stored so, or NULL */
oz_dtype oz_store_scale(oz_store s);    /* of compressed-tensors' own: the narrow type of its scales; COUNT: the model's */

oz_status oz_groups_read(oz_config *c, oz_err *err);
oz_status oz_groups_module(oz_scheme *out, oz_config *c, const oz_module *m, oz_err *err);

#endif
