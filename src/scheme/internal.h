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
/* v: an object or null. is_weight: activations have other strategies. */
oz_status oz_args_parse(oz_args *out, const json_t *v, const char *path, bool is_weight, oz_err *err);
json_t *oz_args_write(const oz_args *a); /* null if not present */
bool oz_args_equal(const oz_args *a, const oz_args *b);
const char *oz_strategy_name(oz_strategy s);

#endif
