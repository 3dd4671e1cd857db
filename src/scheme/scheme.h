/* Schemes: which module is stored and run how. One pure resolution from (config, modules) to a scheme a module, the presets, the
 * writer of quantization_config, and the binding of a module's tensors to an oz_weight. Fails closed.
 * Source: compressed-tensors as written down in formats.md sections 1, 2, 4, 10, 11. */
#ifndef OZ_SCHEME_SCHEME_H
#define OZ_SCHEME_SCHEME_H
#include <jansson.h>
#include "base/err.h"
#include "checkpoint/checkpoint.h"
#include "number/number.h"

typedef enum oz_act { OZ_ACT_NONE, OZ_ACT_I8_TOKEN, OZ_ACT_F8_TOKEN, OZ_ACT_COUNT } oz_act; /* dynamic, symmetric, per token */

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
} oz_scheme;
extern const oz_scheme OZ_SCHEME_DENSE;

/* The presets of `ounce quantize --scheme`: a table. Names are case-insensitive. */
typedef struct oz_preset { oz_scheme scheme; const char *help; bool takes_group_size; } oz_preset;
size_t oz_preset_count(void);
const oz_preset *oz_preset_at(size_t i);
const oz_preset *oz_preset_find(const char *name);

typedef struct oz_module { const char *name; const char *class_name; int64_t rows, cols; } oz_module; /* no ".weight" */

/* A target or ignore pattern: exact name, class name, or "re:" regular expression anchored at the start (Python's re.match). */
oz_status oz_pattern_match(bool *hit, const char *pattern, const oz_module *m, oz_err *err);

/* config: the whole config.json. Fills schemes[n] (dense where none applies). Errors carry the JSON path or the module's name. */
oz_status oz_scheme_resolve(oz_scheme *schemes, const json_t *config, const oz_module *modules, size_t n, oz_err *err);

/* quantization_config for writing: one group for `scheme` with targets ["Linear"], ignore = names left dense. New reference. */
json_t *oz_scheme_config(const oz_scheme *scheme, const char *const *ignore, size_t n_ignore);

/* The tensors that a module under a scheme is stored as. */
typedef struct oz_part { const char *suffix; /* ".weight_scale" */ oz_dtype dtype; int n_dims; int64_t dims[2]; } oz_part;
enum { OZ_MAX_PARTS = 4 };
/* model_dtype: BF16, F16 or F32: of the scales and of a dense weight. Returns how many parts. */
int oz_scheme_parts(oz_part parts[OZ_MAX_PARTS], const oz_scheme *s, int64_t rows, int64_t cols, oz_dtype model_dtype);
/* OZ_E_ARG if the group size does not divide cols: names module, cols and the usual group sizes that do. */
oz_status oz_scheme_check(const oz_scheme *s, const oz_module *m, oz_err *err);
int64_t oz_group_size_usual(size_t i); /* group sizes that kernels run, ascending; 0: no more */
/* Finds the module's tensors and makes the view; missing, wrong dtype or shape: an error with tensor, expected, found and file.
 * Scales are checked: finite and > 0 (formats.md 11.4). */
oz_status oz_scheme_bind(oz_weight *out, const oz_ckpt *c, const oz_module *m, const oz_scheme *s, oz_err *err);
/* Whether the checkpoint keeps anything for the module but a dense weight and a bias. */
bool oz_scheme_is_stored(const oz_ckpt *c, const oz_module *m);
/* Drops the pages of the module's tensors. */
void oz_scheme_drop(const oz_ckpt *c, const oz_module *m);

#endif
