/* What `ounce inspect` says, as JSON: the screen is made from it (inspect_print.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "cli/inspect.h"

static const char *str_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }

static void add_int(json_t *o, const char *key, int64_t v) { json_object_set_new(o, key, json_integer((json_int_t)json_integer_value(json_object_get(o, key)) + v)); }

/* ---- architecture ---- */

/* Of an architecture that is not known: keys that most configs have, as they stand there. */
static json_t *shape_as_written(const json_t *config) {
    static const char *const keys[][2] = {{"vocab_size", "vocab_size"}, {"hidden_size", "hidden_size"}, {"intermediate_size", "intermediate_size"}, {"num_hidden_layers", "n_layers"},
                                          {"num_attention_heads", "n_heads"}, {"num_key_value_heads", "n_heads_kv"}, {"head_dim", "head_dim"}, {"max_position_embeddings", "max_len"},
                                          {"num_experts_per_tok", "top_k"}};
    const json_t *text = json_object_get(config, "text_config");
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(config, keys[i][0]);
        if (!v) v = json_object_get(text, keys[i][0]);
        if (json_is_integer(v)) json_object_set(out, keys[i][1], (json_t *)v);
    }
    return out;
}

static json_t *architecture(const json_t *config, oz_arch_info *info, bool *known) {
    *known = oz_arch_info_read(info, config, NULL) == OZ_OK;
    json_t *out = shape_as_written(config), *names = json_object_get(config, "architectures");
    const struct { const char *key; int64_t value; } numbers[] = {
        {"vocab_size", info->vocab_size}, {"hidden_size", info->hidden_size}, {"intermediate_size", info->intermediate_size}, {"n_layers", info->n_layers}, {"n_heads", info->n_heads},
        {"n_heads_kv", info->n_heads_kv}, {"head_dim", info->head_dim}, {"max_len", info->max_len}, {"n_experts", info->n_experts}, {"top_k", info->top_k}, {"expert_ffn", info->expert_ffn},
        {"shared_ffn", info->shared_ffn}, {"window", info->window}, {"n_window_layers", info->n_windows}, {"n_scan_layers", info->n_scans}};
    if (*known) json_object_clear(out);
    json_object_set_new(out, "known", json_boolean(*known));
    if (json_is_string(json_array_get(names, 0))) json_object_set(out, "class", json_array_get(names, 0));
    for (size_t i = 0; *known && i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value) json_object_set_new(out, numbers[i].key, json_integer((json_int_t)numbers[i].value));
    if (*known) json_object_set_new(out, "tied_head", json_boolean(info->tied));
    return out;
}

/* ---- classes of modules ---- */

/* Of what no config explains, plain numbers explain themselves. */
static const char *scheme_of(const oz_cli_part *x) {
    const bool plain = x->dtype == OZ_DTYPE_F32 || x->dtype == OZ_DTYPE_F16 || x->dtype == OZ_DTYPE_BF16;
    return !*x->class_name ? "-" : !x->scheme.unknown ? x->scheme.name : x->n_tensors && plain ? OZ_SCHEME_DENSE.name : "?";
}

static bool has_text(const json_t *list, const char *text) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), text) == 0) return true;
    return false;
}

static char *lower(const char *s) {
    char *out = oz_strdup(s);
    for (char *p = out; *p; p++)
        if (*p >= 'A' && *p <= 'Z') *p = (char)(*p - 'A' + 'a');
    return out;
}

/* The row of a class: modules of one role under one scheme. */
static json_t *class_row(json_t *rows, const char *role, const char *scheme) {
    size_t i;
    json_t *r;
    json_array_foreach(rows, i, r)
        if (strcmp(str_of(r, "role"), role) == 0 && strcmp(str_of(r, "scheme"), scheme) == 0) return r;
    r = json_pack("{s:s s:s s:i s:i s:i s:[]}", "role", role, "scheme", scheme, "modules", 0, "parameters", 0, "bytes", 0, "stored_as");
    json_array_append_new(rows, r);
    return r;
}

static int role_rank(const char *role) {
    int r = 0;
    while (r < OZ_ROLE_COUNT && strcmp(oz_role_name((oz_role)r), role) != 0) r++;
    return r;
}

/* What a token meets. */
static int64_t active_of(const oz_cli_part *x, const oz_arch_info *a) { return x->expert < 0 || !a->n_experts ? x->n_values : x->expert < a->top_k ? x->n_values : 0; }

/* Rows in the order of roles, others behind; and the sums. */
static void classes(json_t *doc, const oz_cli_parts *p, const oz_arch_info *a) {
    json_t *rows = json_array(), *sorted = json_array(), *r;
    int64_t n_values = 0, n_active = 0;
    size_t n_unknown = 0, k;
    for (size_t i = 0; i < p->n; i++) {
        const oz_cli_part *x = &p->items[i];
        json_t *row = class_row(rows, x->role, scheme_of(x));
        char *stored = lower(oz_cli_part_stored(x));
        add_int(row, "modules", 1), add_int(row, "parameters", x->n_values), add_int(row, "bytes", (int64_t)x->bytes);
        if (!has_text(json_object_get(row, "stored_as"), stored)) json_array_append_new(json_object_get(row, "stored_as"), json_string(stored));
        oz_free(stored);
        n_values += x->n_values, n_active += active_of(x, a), n_unknown += x->unknown_values;
        if (x->unknown_values) json_object_set_new(row, "parameters_unknown", json_true());
    }
    for (int rank = 0; rank <= OZ_ROLE_COUNT; rank++)
        json_array_foreach(rows, k, r)
            if (role_rank(str_of(r, "role")) == rank) json_array_append(sorted, r);
    json_object_set_new(doc, "n_parameters", json_integer((json_int_t)n_values));
    if (n_unknown) json_object_set_new(doc, "n_modules_of_unknown_parameters", json_integer((json_int_t)n_unknown));
    if (a->n_experts) json_object_set_new(doc, "n_parameters_active", json_integer((json_int_t)n_active));
    json_object_set_new(doc, "classes", sorted);
    json_decref(rows);
}

/* ---- how it is quantized: what the config says, and which of it caught how many modules ---- */

/* "int4, group 128, asymmetric": QuantizationArgs for people, whatever they hold. */
static json_t *args_text(const json_t *a) {
    const json_t *type = json_object_get(a, "type"), *bits = json_object_get(a, "num_bits"), *group = json_object_get(a, "group_size"), *strategy = json_object_get(a, "strategy"),
                 *dynamic = json_object_get(a, "dynamic"), *block = json_object_get(a, "block_structure"), *order = json_object_get(a, "actorder");
    if (!json_is_object(a)) return json_null();
    oz_buf b = {0};
    oz_buf_printf(&b, "%s", json_is_string(type) ? json_string_value(type) : type ? oz_json_show(type) : "int");
    oz_buf_printf(&b, "%s", bits ? oz_json_show(bits) : "8");
    if (json_is_string(strategy)) oz_buf_printf(&b, ", %s", json_string_value(strategy));
    else oz_buf_printf(&b, ", %s", strategy ? oz_json_show(strategy) : json_integer_value(group) > 0 ? "group" : json_integer_value(group) < 0 ? "channel" : "tensor");
    if (group && !json_is_null(group)) oz_buf_printf(&b, " %s", oz_json_show(group));
    if (block && !json_is_null(block)) oz_buf_printf(&b, " %s", oz_json_show(block));
    if (json_is_false(json_object_get(a, "symmetric"))) oz_buf_puts(&b, ", asymmetric");
    if (json_is_true(dynamic)) oz_buf_puts(&b, ", dynamic");
    else if (json_is_string(dynamic)) oz_buf_printf(&b, ", dynamic %s", json_string_value(dynamic));
    if (order && !json_is_null(order) && !json_is_false(order)) oz_buf_printf(&b, ", actorder %s", json_is_string(order) ? json_string_value(order) : oz_json_show(order));
    json_t *out = oz_json_text(b.data);
    oz_buf_deinit(&b);
    return out;
}

typedef struct count { const char *pattern; int64_t n; } count; /* of modules that a pattern, by its address in the config, decided about */
static int count_compare(const void *a, const void *b) {
    const count *x = a, *y = b;
    return x->pattern < y->pattern ? -1 : x->pattern > y->pattern;
}

/* [{pattern, modules}] of a list of patterns. */
static json_t *caught(const json_t *patterns, const count *counts, size_t n, int64_t *sum) {
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(patterns); i++) {
        const char *text = json_string_value(json_array_get(patterns, i));
        const count key = {text, 0}, *hit = bsearch(&key, counts, n, sizeof *counts, count_compare);
        if (!text) continue;
        json_array_append_new(out, json_pack("{s:s s:I}", "pattern", text, "modules", (json_int_t)(hit ? hit->n : 0)));
        if (sum) *sum += hit ? hit->n : 0;
    }
    return out;
}

static size_t counts_make(count *out, const oz_cli_parts *p) {
    size_t n = 0, k = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].scheme.pattern) out[n++] = (count){p->items[i].scheme.pattern, 1};
    if (n) qsort(out, n, sizeof *out, count_compare);
    for (size_t i = 0; i < n; i++) {
        if (k > 0 && out[k - 1].pattern == out[i].pattern) out[k - 1].n++;
        else out[k++] = out[i];
    }
    return k;
}

/* The name of the scheme that modules of a group have; NULL: of none that is understood. */
static const char *scheme_of_group(const oz_cli_parts *p, const char *group) {
    for (size_t i = 0; i < p->n; i++) {
        const oz_scheme *s = &p->items[i].scheme;
        if (s->group && !s->unknown && strcmp(s->group, group) == 0) return s->name;
    }
    return NULL;
}

static json_t *group_facts(const char *name, const json_t *v, const oz_cli_parts *p, const count *counts, size_t n) {
    int64_t sum = 0;
    const json_t *targets = json_is_array(v) ? v : json_object_get(v, "targets");
    json_t *g = json_object(), *list = caught(targets, counts, n, &sum);
    json_object_set_new(g, "name", json_string(name));
    if (scheme_of_group(p, name)) json_object_set_new(g, "scheme", json_string(scheme_of_group(p, name)));
    if (json_is_string(json_object_get(v, "format"))) json_object_set(g, "format", json_object_get(v, "format"));
    if (json_is_object(v)) {
        json_object_set_new(g, "weights", args_text(json_object_get(v, "weights")));
        json_object_set_new(g, "input_activations", args_text(json_object_get(v, "input_activations")));
    }
    json_object_set_new(g, "modules", json_integer((json_int_t)sum));
    json_object_set_new(g, "targets", list);
    return g;
}

/* All else that is said, objects by one level; for families without groups it is all there is. */
static void keys_add(json_t *out, const json_t *q, const char *prefix) {
    static const char *const shown[] = {"quant_method", "config_groups", "ignore", "kv_cache_scheme"}; /* in their own places */
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)q, key, v) {
        bool skip = json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0);
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) skip |= !*prefix && strcmp(key, shown[i]) == 0;
        if (skip) continue;
        char *name = oz_asprintf("%s%s", prefix, key), *inner = oz_asprintf("%s.", name);
        if (!json_is_object(v) || *prefix) json_object_set(out, name, v);
        else keys_add(out, v, inner);
        oz_free(name);
        oz_free(inner);
    }
}

static json_t *quantization(const json_t *config, const oz_cli_parts *p) {
    const json_t *q = oz_scheme_locate(config), *groups = json_object_get(q, "config_groups"), *method = json_object_get(q, "quant_method");
    if (!q) return json_null();
    count *counts = oz_alloc_array(p->n + 1, sizeof *counts);
    const size_t n = counts_make(counts, p);
    json_t *out = json_object(), *keys = json_object(), *list = json_array(), *v;
    const char *key;
    int64_t n_quantized = 0;
    for (size_t i = 0; i < p->n; i++) n_quantized += p->items[i].scheme.quantized;
    json_object_set_new(out, "method", json_is_string(method) ? json_copy((json_t *)method) : json_string("compressed-tensors"));
    json_object_set_new(out, "modules", json_integer((json_int_t)n_quantized));
    json_object_set_new(out, "keys", keys);
    keys_add(keys, q, "");
    json_object_foreach((json_t *)groups, key, v) json_array_append_new(list, group_facts(key, v, p, counts, n));
    json_object_set_new(out, "groups", list);
    json_object_set_new(out, "ignore", caught(json_object_get(q, "ignore"), counts, n, NULL));
    if (json_is_object(json_object_get(q, "kv_cache_scheme"))) json_object_set_new(out, "kv_cache", args_text(json_object_get(q, "kv_cache_scheme")));
    oz_free(counts);
    return out;
}

/* ---- memory ---- */

/* Weights and cache of sequences of some lengths, in `limit` bytes. */
static json_t *memory(const oz_arch_info *a, const oz_kv_size *k, const oz_kv_scheme *cache, size_t weights, double limit) {
    const double kv = (double)k->bytes_tok, slot = (double)k->slot_bytes;
    json_t *rows = json_array();
    int64_t lens[8], n = 0;
    const int64_t longest = oz_cli_common.max_len ? oz_cli_common.max_len : a->max_len;
    for (int64_t len = 1024; len < longest && n < 7; len *= 4) lens[n++] = len;
    lens[n++] = longest;
    for (int64_t i = 0; i < n; i++) {
        const double each = kv * (double)lens[i] + slot, left = limit - (double)weights;
        json_array_append_new(rows, json_pack("{s:I s:I s:I s:I}", "tokens", (json_int_t)lens[i], "state_bytes", (json_int_t)each, "bytes", (json_int_t)(each + (double)weights), "sequences",
                                              (json_int_t)(left > 0 && each > 0 ? left / each : 0)));
    }
    json_t *out = json_pack("{s:I s:I s:I s:o}", "limit_bytes", (json_int_t)limit, "weight_bytes", (json_int_t)weights, "kv_bytes_tok", (json_int_t)kv, "contexts", rows);
    if (cache->quantized) json_object_set_new(out, cache->is_int ? "kv_int8_bytes_tok" : "kv_float8_bytes_tok", json_integer((json_int_t)(kv / 4)));
    if (slot > 0) json_object_set_new(out, "slot_bytes", json_integer((json_int_t)slot));
    if (k->n_latent) {
        json_object_set_new(out, "latent_bytes_tok", json_integer((json_int_t)k->latent_bytes_tok));
        json_object_set_new(out, "expanded_bytes_tok", json_integer((json_int_t)k->expanded_bytes_tok));
        json_object_set_new(out, "latent_layers", json_integer((json_int_t)k->n_latent));
        json_object_set_new(out, "expanded_layers", json_integer((json_int_t)k->n_expanded));
        if (k->n_expanded) json_object_set_new(out, "expanded_by", oz_json_text(k->expanded));
    }
    return out;
}

/* ---- the whole ---- */

static json_t *files(const oz_ckpt *c) {
    json_t *out = json_object();
    for (size_t i = 0; i < oz_ckpt_count(c); i++) {
        const oz_tensor *t = oz_ckpt_at(c, i);
        add_int(out, t->file_name, (int64_t)t->n_bytes);
    }
    return out;
}

json_t *oz_cli_inspect_modules(const oz_cli_parts *p) {
    json_t *list = json_array();
    for (size_t i = 0; i < p->n; i++) {
        const oz_cli_part *x = &p->items[i];
        json_t *m = json_pack("{s:o s:s s:s s:s s:I s:I}", "name", oz_json_text(x->module), "role", x->role, "scheme", scheme_of(x), "stored_as", oz_cli_part_stored(x), "parameters",
                              (json_int_t)x->n_values, "bytes", (json_int_t)x->bytes);
        if (x->rows && x->cols) json_object_set_new(m, "rows", json_integer((json_int_t)x->rows)), json_object_set_new(m, "cols", json_integer((json_int_t)x->cols));
        json_array_append_new(list, m);
    }
    return list;
}

json_t *oz_cli_inspect_facts(const oz_cli_inspect *in, const oz_cli_parts *p) {
    const json_t *config = oz_ckpt_config(in->ckpt);
    const char *type = str_of(config, "model_type");
    oz_arch_info info = {0};
    bool known;
    json_t *doc = json_pack("{s:o s:s? s:I s:I s:o s:o}", "model", oz_json_text(in->path), "model_type", type, "n_tensors", (json_int_t)oz_ckpt_count(in->ckpt), "bytes",
                            (json_int_t)oz_ckpt_bytes(in->ckpt), "files", files(in->ckpt), "architecture", architecture(config, &info, &known));
    classes(doc, p, &info);
    json_object_set_new(doc, "quantization", quantization(config, p));
    oz_kv_size kv;
    oz_kv_scheme cache;
    oz_err err = {0};
    if (known && oz_kv_size_of(&kv, in->ckpt, &oz_cli_pass_over, &err) == OZ_OK) json_object_set_new(doc, "memory", memory(&info, &kv, oz_scheme_kv(&cache, config, NULL) == OZ_OK ? &cache : &(oz_kv_scheme){0}, oz_ckpt_bytes(in->ckpt), in->limit_bytes));
    json_object_set_new(doc, "run", in->refusal ? json_pack("{s:b s:o}", "ok", false, "error", oz_json_text(in->refusal)) : json_pack("{s:b}", "ok", true));
    return doc;
}
