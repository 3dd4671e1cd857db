/* A checkpoint as its modules: those that the architecture calls for, or where that is not known, those that the tensors' names tell of. Every stored
 * tensor belongs to one of them, so what they take adds up to what the files hold. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "cli/inspect.h"

static const char *const NUMBERS_OF_VALUES[] = {".weight", ".bias", ".weight_packed", ".qweight"}; /* behind which the values of a module stand */

static oz_cli_part *part_add(oz_cli_parts *p, const char *module, size_t n) {
    oz_grow((void **)&p->items, &p->cap, p->n + 1, sizeof *p->items);
    oz_cli_part *x = &p->items[p->n];
    *x = (oz_cli_part){.module = oz_strndup(module, n), .scheme = OZ_SCHEME_DENSE, .expert = -1};
    oz_map_set(p->by_module, module, n, (int64_t)p->n++);
    return x;
}

static oz_cli_part *part_find(const oz_cli_parts *p, const char *module, size_t n) {
    int64_t i;
    return oz_map_get(p->by_module, module, n, &i) ? &p->items[i] : NULL;
}

static void parts_of_list(oz_cli_parts *p, const oz_arch_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        const oz_arch_tensor *t = &list->items[i];
        oz_cli_part *x = part_find(p, t->module, strlen(t->module));
        if (!x) x = part_add(p, t->module, strlen(t->module));
        x->n_values += t->cols ? t->rows * t->cols : t->rows;
        if (t->is_bias) continue;
        x->class_name = t->class_name, x->role = oz_role_name(t->role), x->rows = t->rows, x->cols = t->cols, x->expert = t->expert;
        x->is_matrix = t->cols > 0;
    }
}

/* The length of the module's name in a tensor's: what is in front of the last dot, or of ".weight." as bitsandbytes has it. */
static size_t module_length(const char *name) {
    const char *inner = strstr(name, ".weight."), *dot = strrchr(name, '.');
    return inner ? (size_t)(inner - name) : dot ? (size_t)(dot - name) : strlen(name);
}

/* The module that a tensor belongs to: the longest name that its own begins with, of those that the architecture has; else what its name tells. */
static oz_cli_part *owner(const oz_cli_parts *p, const char *name) {
    for (size_t n = strlen(name); n > 0;) {
        oz_cli_part *x = part_find(p, name, n);
        if (x && (!x->guessed || n == module_length(name))) return x;
        while (n > 0 && name[--n] != '.') {}
    }
    return NULL;
}

static int64_t elements(const oz_tensor *t) {
    const oz_dtype_info *d = oz_dtype_get(t->dtype);
    return (int64_t)t->n_bytes / d->block_bytes * d->block_elems;
}

/* The last part of its name, in place of a role. */
static const char *last_part(const char *module) {
    const char *dot = strrchr(module, '.');
    return !dot ? module : strspn(dot + 1, "0123456789") == strlen(dot + 1) ? "numbered" : dot + 1;
}

/* What kind of module it may be that has such a tensor; a matrix counts most. */
static void guess(oz_cli_part *x, const oz_tensor *t) {
    const char *ending = t->name + strlen(x->module);
    const bool packed = strcmp(ending, ".weight_packed") == 0 || strcmp(ending, ".qweight") == 0;
    if (!x->role) x->role = last_part(x->module), x->class_name = "Parameter";
    if (!x->is_matrix && (packed || t->n_dims == 2)) x->class_name = strstr(x->module, "embed") ? "Embedding" : "Linear", x->is_matrix = true;
    if (x->is_matrix && t->n_dims == 2 && strcmp(ending, ".weight") == 0 && elements(t) == t->dims[0] * t->dims[1]) x->rows = t->dims[0], x->cols = t->dims[1];
}

/* How many values a stored tensor of a guessed module stands for; -1: not known. */
static int64_t values_of(const oz_cli_part *x, const oz_tensor *t) {
    const char *ending = t->name + strlen(x->module);
    const oz_codec_info *codec = oz_codec_get(x->scheme.codec);
    bool values = !*ending;
    for (size_t i = 0; i < sizeof NUMBERS_OF_VALUES / sizeof *NUMBERS_OF_VALUES; i++) values |= strcmp(ending, NUMBERS_OF_VALUES[i]) == 0;
    if (!values) return 0;
    const bool whole = t->dtype == OZ_DTYPE_F32 || t->dtype == OZ_DTYPE_F16 || t->dtype == OZ_DTYPE_BF16 || t->dtype == OZ_DTYPE_F8_E4M3 || t->dtype == OZ_DTYPE_I8;
    if (whole || oz_dtype_get(t->dtype)->block_elems > 1) return elements(t);
    return x->scheme.quantized ? (int64_t)t->n_bytes * 8 / codec->bits : -1;
}

/* A known architecture's other tensors (of parts that are not run, scales of the cache) are not modules to it. */
static void tensors_share_out(oz_cli_parts *p, const oz_ckpt *c) {
    for (size_t i = 0; i < oz_ckpt_count(c); i++) {
        const oz_tensor *t = oz_ckpt_at(c, i);
        oz_cli_part *x = owner(p, t->name);
        if (!x) x = part_add(p, t->name, module_length(t->name)), x->guessed = true;
        if (oz_scheme_is_kv(t->name) && !x->n_tensors && x->guessed) x->role = "kv_scale", x->class_name = "";
        else if (p->known && x->guessed && !x->role) x->role = "other", x->class_name = "";
        else if (!p->known) guess(x, t);
        x->bytes += t->n_bytes, x->n_tensors++;
        if (t->n_bytes < x->largest) continue;
        x->largest = t->n_bytes, x->dtype = t->dtype;
    }
}

static void values_count(oz_cli_parts *p, const oz_ckpt *c) {
    for (size_t i = 0; i < oz_ckpt_count(c); i++) {
        const oz_tensor *t = oz_ckpt_at(c, i);
        oz_cli_part *x = owner(p, t->name);
        const int64_t n = x->guessed ? values_of(x, t) : 0;
        if (n < 0) x->unknown_values = true;
        else x->n_values += n;
    }
}

static void pass_over(void *arg, bool is_error, const char *text) { (void)arg, (void)is_error, (void)text; }
const oz_findings oz_cli_pass_over = {pass_over, NULL};

/* Routers that are not quantized take no part in resolving; what of `ignore` names them is told all the same. */
static void routers_ignored(oz_cli_parts *p, const oz_ckpt *c) {
    const json_t *ignore = json_object_get(oz_scheme_locate(oz_ckpt_config(c)), "ignore");
    for (size_t i = 0; i < p->n; i++) {
        oz_cli_part *x = &p->items[i];
        bool hit = x->scheme.pattern || !x->is_router || x->scheme.unknown;
        for (size_t k = 0; !hit && k < json_array_size(ignore); k++) {
            const char *pattern = json_string_value(json_array_get(ignore, k));
            if (pattern && oz_pattern_match(&hit, pattern, &(oz_module){x->module, "Router", x->rows, x->cols, false}, NULL) == OZ_OK && hit) x->scheme.pattern = pattern;
        }
    }
}

static oz_status schemes_find(oz_cli_parts *p, const oz_ckpt *c, oz_err *err) {
    oz_module *mods = oz_alloc_array(p->n + 1, sizeof *mods);
    oz_scheme *schemes = oz_alloc_array(p->n + 1, sizeof *schemes);
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        oz_cli_part *x = &p->items[i];
        if (!x->is_matrix) continue;
        mods[n] = (oz_module){x->module, x->class_name, x->rows, x->cols, false};
        mods[n].stored = oz_scheme_is_stored(c, &mods[n]);
        x->is_router = !mods[n].stored && (strcmp(x->role, "router") == 0 || (x->guessed && (oz_str_ends(x->module, ".gate") || oz_str_ends(x->module, ".router"))));
        if (x->is_router) mods[n].class_name = "Router"; /* as oz_arch_module has it */
        n++;
    }
    const oz_status st = oz_scheme_resolve_all(schemes, oz_ckpt_config(c), mods, n, &oz_cli_pass_over, err);
    for (size_t i = 0, k = 0; i < p->n && st == OZ_OK; i++)
        if (p->items[i].is_matrix) p->items[i].scheme = schemes[k++];
    oz_free(mods);
    oz_free(schemes);
    if (st == OZ_OK) routers_ignored(p, c);
    return st;
}

oz_status oz_cli_parts_new(oz_cli_parts *p, const oz_ckpt *c, oz_err *err) {
    oz_arch_list list;
    *p = (oz_cli_parts){.by_module = oz_map_new(oz_ckpt_count(c))};
    p->known = oz_arch_list_new(&list, oz_ckpt_config(c), c, NULL) == OZ_OK;
    if (p->known) parts_of_list(p, &list);
    oz_arch_list_deinit(&list);
    tensors_share_out(p, c);
    const oz_status st = schemes_find(p, c, err);
    values_count(p, c);
    return st;
}

void oz_cli_parts_deinit(oz_cli_parts *p) {
    for (size_t i = 0; i < p->n; i++) oz_free(p->items[i].module);
    oz_free(p->items);
    oz_map_free(&p->by_module);
    *p = (oz_cli_parts){0};
}

const char *oz_cli_part_stored(const oz_cli_part *x) {
    const oz_codec_info *codec = oz_codec_get(x->scheme.codec);
    const bool as_said = x->scheme.quantized && (codec->dtype == x->dtype || x->dtype == OZ_DTYPE_U8);
    oz_codec plain;
    if (!x->n_tensors) return "missing";
    return as_said ? codec->name : oz_codec_plain(&plain, x->dtype) ? oz_codec_get(plain)->name : oz_dtype_get(x->dtype)->name;
}
