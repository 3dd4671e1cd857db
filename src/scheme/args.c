/* QuantizationArgs: the object that says how weights or activations are quantized. A key that is not known may change the
 * meaning, so it is an error; what is written here but not run is kept in the struct, and refused where a module would use it. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/json.h"
#include "base/str.h"
#include "scheme/internal.h"

enum { MAX_GROUP_SIZE = 1 << 24 };

static const char *const STRATEGIES[OZ_STRATEGY_COUNT] = {"tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"};
const char *oz_strategy_name(oz_strategy s) { return STRATEGIES[s]; }

static const char *const KEYS[] = {"num_bits",        "type",     "symmetric",   "strategy", "group_size", "block_structure",
                                   "dynamic",         "actorder", "scale_dtype", "zp_dtype", "observer",   "observer_kwargs"};

oz_status oz_keys_check(const json_t *v, const char *path, const char *const *keys, size_t n, oz_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value) {
        bool known = false;
        for (size_t i = 0; i < n; i++) known = known || strcmp(key, keys[i]) == 0;
        OZ_NEED(known, err, OZ_E_FORMAT, "%s.%.80s: unknown key, which may change the meaning of the others", path, key);
    }
    return OZ_OK;
}

static oz_status parse_type(oz_args *a, const json_t *v, const char *path, oz_err *err) {
    const char *type = "int";
    int64_t bits = 8;
    int symmetric = true;
    OZ_TRY(oz_json_str(&type, v, path, "type", err));
    a->is_float = strcasecmp(type, "float") == 0;
    OZ_NEED(a->is_float || strcasecmp(type, "int") == 0, err, OZ_E_FORMAT, "%s.type: must be \"int\" or \"float\", found \"%.40s\"", path, type);
    OZ_TRY(oz_json_int(&bits, v, path, "num_bits", 2, 8, err));
    OZ_NEED(!a->is_float || bits == 4 || bits == 6 || bits == 8, err, OZ_E_FORMAT, "%s.num_bits: must be 4, 6 or 8 with type float, found %d", path,
            (int)bits);
    a->bits = (int)bits;
    OZ_TRY(oz_json_bool(&symmetric, v, path, "symmetric", err));
    a->symmetric = symmetric;
    return OZ_OK;
}

static oz_status parse_strategy(oz_args *a, const json_t *v, const char *path, bool is_weight, oz_err *err) {
    const char *name = NULL;
    int64_t group = 0; /* null */
    OZ_TRY(oz_json_int(&group, v, path, "group_size", -1, MAX_GROUP_SIZE, err));
    OZ_NEED(group != 0 || !json_is_integer(json_object_get(v, "group_size")), err, OZ_E_FORMAT, "%s.group_size: must be positive, -1 or null, found 0",
            path);
    OZ_TRY(oz_json_str(&name, v, path, "strategy", err));
    if (!name) {
        a->strategy = group > 0 ? OZ_STRATEGY_GROUP : group < 0 ? OZ_STRATEGY_CHANNEL : OZ_STRATEGY_TENSOR;
    } else {
        int s = 0;
        while (s < OZ_STRATEGY_COUNT && strcasecmp(name, STRATEGIES[s]) != 0) s++;
        OZ_NEED(s < OZ_STRATEGY_COUNT, err, OZ_E_FORMAT,
                "%s.strategy: must be tensor, channel, group, block, token, tensor_group or attn_head, found \"%.40s\"", path, name);
        a->strategy = (oz_strategy)s;
    }
    bool grouped = a->strategy == OZ_STRATEGY_GROUP || a->strategy == OZ_STRATEGY_TENSOR_GROUP;
    OZ_NEED(!grouped || group > 0, err, OZ_E_FORMAT, "%s.group_size: must be positive with strategy %s, found %s", path, STRATEGIES[a->strategy],
            oz_json_show(json_object_get(v, "group_size")));
    OZ_NEED(grouped || group <= 0, err, OZ_E_FORMAT, "%s.group_size: must be null with strategy %s, found %lld", path, STRATEGIES[a->strategy],
            (long long)group);
    a->group_size = grouped ? group : 0;
    const bool fits = is_weight ? a->strategy != OZ_STRATEGY_TOKEN && a->strategy != OZ_STRATEGY_ATTN_HEAD
                                : a->strategy != OZ_STRATEGY_CHANNEL && a->strategy != OZ_STRATEGY_BLOCK;
    OZ_NEED(fits, err, OZ_E_FORMAT, "%s.strategy: %s does not apply to %s", path, STRATEGIES[a->strategy], is_weight ? "weights" : "activations");
    return OZ_OK;
}

/* [rows, cols], or "128x128" as old files have it. */
static oz_status parse_block(oz_args *a, const json_t *v, const char *path, oz_err *err) {
    const json_t *b = json_object_get(v, "block_structure");
    const bool is_block = a->strategy == OZ_STRATEGY_BLOCK;
    if (!b || json_is_null(b)) {
        OZ_NEED(!is_block, err, OZ_E_FORMAT, "%s.block_structure: must be [rows, columns] with strategy block, found null", path);
        return OZ_OK;
    }
    OZ_NEED(is_block, err, OZ_E_FORMAT, "%s.block_structure: must be null with strategy %s, found %s", path, STRATEGIES[a->strategy], oz_json_show(b));
    char rest;
    long long rows = 0, cols = 0;
    if (json_is_string(b)) {
        if (sscanf(json_string_value(b), "%9lldx%9lld%c", &rows, &cols, &rest) != 2) rows = 0;
    } else if (json_array_size(b) == 2) {
        rows = json_integer_value(json_array_get(b, 0)), cols = json_integer_value(json_array_get(b, 1));
    }
    OZ_NEED(rows > 0 && cols > 0 && rows <= MAX_GROUP_SIZE && cols <= MAX_GROUP_SIZE, err, OZ_E_FORMAT,
            "%s.block_structure: must be [rows, columns], found %s", path, oz_json_show(b));
    a->block_rows = rows, a->block_cols = cols;
    return OZ_OK;
}

static oz_status parse_dynamic(oz_args *a, const json_t *v, const char *path, bool is_weight, oz_err *err) {
    const json_t *d = json_object_get(v, "dynamic");
    const char *text = json_string_value(d);
    if (json_is_true(d)) a->dynamic = OZ_DYNAMIC_YES;
    else if (text && strcmp(text, "local") == 0) a->dynamic = OZ_DYNAMIC_LOCAL;
    else OZ_NEED(!d || json_is_false(d), err, OZ_E_FORMAT, "%s.dynamic: must be true, false or \"local\", found %s", path, oz_json_show(d));
    OZ_NEED(!is_weight || !a->dynamic, err, OZ_E_FORMAT, "%s.dynamic: must be false for weights, found %s", path, oz_json_show(d));
    OZ_NEED(a->dynamic != OZ_DYNAMIC_LOCAL || a->strategy == OZ_STRATEGY_TENSOR_GROUP, err, OZ_E_FORMAT,
            "%s.dynamic: \"local\" needs strategy tensor_group, found %s", path, STRATEGIES[a->strategy]);
    OZ_NEED(a->dynamic || a->strategy != OZ_STRATEGY_TOKEN, err, OZ_E_FORMAT, "%s.dynamic: must be true with strategy token, found %s", path, oz_json_show(d));
    OZ_NEED(!a->dynamic || a->strategy != OZ_STRATEGY_ATTN_HEAD, err, OZ_E_FORMAT, "%s.dynamic: must be false with strategy attn_head, found %s", path,
            oz_json_show(d));
    return OZ_OK;
}

/* static means weight, dynamic means group, true is an old spelling of group: only group has anything on disk. */
static oz_status parse_actorder(oz_args *a, const json_t *v, const char *path, bool is_weight, oz_err *err) {
    const json_t *o = json_object_get(v, "actorder");
    const char *text = json_string_value(o);
    bool none = !o || json_is_null(o) || json_is_false(o);
    bool group = json_is_true(o) || (text && (!strcasecmp(text, "group") || !strcasecmp(text, "dynamic")));
    bool weight = text && (!strcasecmp(text, "weight") || !strcasecmp(text, "static"));
    OZ_NEED(none || group || weight, err, OZ_E_FORMAT, "%s.actorder: must be null, a boolean, \"group\", \"weight\", \"static\" or \"dynamic\", found %s", path,
            oz_json_show(o));
    OZ_NEED(none || is_weight, err, OZ_E_FORMAT, "%s.actorder: must be null for activations, found %s", path, oz_json_show(o));
    OZ_NEED(!group || a->group_size > 0, err, OZ_E_FORMAT, "%s.actorder: %s needs strategy group, found %s", path, oz_json_show(o), STRATEGIES[a->strategy]);
    a->column_order = group;
    return OZ_OK;
}

/* *out NULL: not given. */
static oz_status parse_dtype(const char **out, const json_t *v, const char *path, const char *key, oz_err *err) {
    *out = NULL;
    OZ_TRY(oz_json_str(out, v, path, key, err));
    const char *name = *out && oz_str_starts(*out, "torch.") ? *out + strlen("torch.") : *out;
    bool known = !name;
    for (int d = 0; d < OZ_DTYPE_COUNT && !known; d++) known = oz_dtype_get((oz_dtype)d)->torch && strcmp(oz_dtype_get((oz_dtype)d)->torch, name) == 0;
    OZ_NEED(known, err, OZ_E_FORMAT, "%s.%s: must be the name of a torch type, found \"%.40s\"", path, key, *out);
    return OZ_OK;
}

/* An absent key means its default; null only says nothing where it is a value. */
static oz_status check_nulls(const json_t *v, const char *path, oz_err *err) {
    static const struct { const char *key, *must; } never[] = {{"num_bits", "2..8"}, {"type", "\"int\" or \"float\""}, {"symmetric", "true or false"}, {"dynamic", "true, false or \"local\""}};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        OZ_NEED(!json_is_null(json_object_get(v, never[i].key)), err, OZ_E_FORMAT, "%s.%s: must be %s, found null", path, never[i].key, never[i].must);
    return OZ_OK;
}

oz_status oz_args_parse(oz_args *out, const json_t *v, const char *path, bool is_weight, oz_err *err) {
    *out = (oz_args){0};
    if (!v || json_is_null(v)) return OZ_OK;
    OZ_NEED(json_is_object(v), err, OZ_E_FORMAT, "%s: must be an object or null, found %s", path, oz_json_show(v));
    out->present = true;
    OZ_TRY(oz_keys_check(v, path, KEYS, sizeof KEYS / sizeof *KEYS, err));
    OZ_TRY(check_nulls(v, path, err));
    OZ_TRY(parse_type(out, v, path, err));
    OZ_TRY(parse_strategy(out, v, path, is_weight, err));
    OZ_TRY(parse_block(out, v, path, err));
    OZ_TRY(parse_dynamic(out, v, path, is_weight, err));
    OZ_TRY(parse_actorder(out, v, path, is_weight, err));
    const char *text = NULL; /* observers made the scales, and zero points follow from the strategy: neither matters any more */
    OZ_TRY(oz_json_str(&text, v, path, "observer", err));
    OZ_TRY(parse_dtype(&text, v, path, "zp_dtype", err));
    OZ_TRY(parse_dtype(&text, v, path, "scale_dtype", err));
    out->narrow_scale = text && (strstr(text, "uint8") || strstr(text, "float8"));
    const json_t *kwargs = json_object_get(v, "observer_kwargs");
    OZ_NEED(!kwargs || json_is_null(kwargs) || json_is_object(kwargs), err, OZ_E_FORMAT, "%s.observer_kwargs: must be an object, found %s", path,
            oz_json_show(kwargs));
    return OZ_OK;
}

/* All keys that every version of the library knows; older ones refuse scale_dtype and zp_dtype, which only narrow scales need. */
json_t *oz_args_write(const oz_args *a) {
    if (!a->present) return json_null();
    json_t *o = json_object();
    json_object_set_new(o, "actorder", a->column_order ? json_string("group") : json_null());
    json_object_set_new(o, "block_structure", a->block_rows > 0 ? json_pack("[I, I]", (json_int_t)a->block_rows, (json_int_t)a->block_cols) : json_null());
    json_object_set_new(o, "dynamic", json_boolean(a->dynamic == OZ_DYNAMIC_YES));
    json_object_set_new(o, "group_size", a->group_size > 0 ? json_integer(a->group_size) : json_null());
    json_object_set_new(o, "num_bits", json_integer(a->bits));
    json_object_set_new(o, "observer", a->dynamic ? json_null() : json_string("memoryless_minmax"));
    json_object_set_new(o, "observer_kwargs", json_object());
    json_object_set_new(o, "strategy", json_string(STRATEGIES[a->strategy]));
    json_object_set_new(o, "symmetric", json_boolean(a->symmetric));
    json_object_set_new(o, "type", json_string(a->is_float ? "float" : "int"));
    if (!a->narrow_scale) return o;
    const char *dtype = a->strategy == OZ_STRATEGY_TENSOR_GROUP ? "torch.float8_e4m3fn" : "torch.uint8";
    json_object_set_new(o, "scale_dtype", json_string(dtype));
    json_object_set_new(o, "zp_dtype", json_string(dtype));
    return o;
}

bool oz_args_equal(const oz_args *a, const oz_args *b) {
    return a->present == b->present && a->is_float == b->is_float && a->symmetric == b->symmetric && a->bits == b->bits && a->strategy == b->strategy &&
           a->dynamic == b->dynamic && a->group_size == b->group_size && a->block_rows == b->block_rows && a->block_cols == b->block_cols &&
           a->column_order == b->column_order && a->narrow_scale == b->narrow_scale;
}
