/* What vLLM cannot run of a checkpoint that is well-formed: it fuses modules that share their input, runs all experts of a layer as one, and has no kernel for some schemes. Here all of
 * these are run; a user who means to go there should hear of it before the checkpoint is made. Sources: formats.md sections 4.2, 4.3, 5.1, 10. */
#include <ctype.h>
#include <string.h>
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "scheme/internal.h"

/* ---- schemes ---- */

static bool has_inputs(const oz_scheme *s) { return s->act != OZ_ACT_NONE; }
static bool packed(const oz_scheme *s) { return s->store == OZ_STORE_PACKED; }
static bool int_bytes(const oz_scheme *s) { return s->store == OZ_STORE_BYTES && !s->is_float; }
static bool asymmetric_with_inputs(const oz_scheme *s) { return !s->symmetric && has_inputs(s); }
static bool asymmetric_odd(const oz_scheme *s) { return packed(s) && !s->symmetric && s->bits != 4 && s->bits != 8; }
static bool packed_one_scale(const oz_scheme *s) { return packed(s) && s->per_tensor; }
static bool bytes_alone(const oz_scheme *s) { return int_bytes(s) && !has_inputs(s); }
static bool bytes_grouped(const oz_scheme *s) { return int_bytes(s) && has_inputs(s) && s->bits == 8 && s->group_size > 0; }
static bool float_grouped(const oz_scheme *s) { return s->store == OZ_STORE_BYTES && s->is_float && s->group_size > 0 && s->block_rows == 0; }
static bool column_order(const oz_scheme *s) { return s->column_order; }
static bool by_words(const oz_scheme *s) { return packed(s) && s->old_layout && 32 % s->bits != 0; }

static const struct { const char *why; bool (*is_so)(const oz_scheme *s); } RULES[] = {
    {"vLLM has no kernel for zero points of weights whose inputs are quantized", asymmetric_with_inputs},
    {"vLLM runs packed weights with zero points of 4 and 8 bits alone", asymmetric_odd},
    {"vLLM has no kernel for packed weights under one scale", packed_one_scale},
    {"vLLM runs integers that lie one a byte with quantized inputs alone", bytes_alone},
    {"vLLM has no kernel for int8 weights in groups with quantized inputs", bytes_grouped},
    {"vLLM runs float8 weights with one scale a tensor, a channel or a block, not a group", float_grouped},
    {"packed as before compressed-tensors 0.18, whole fields a word; newer libraries misread it", by_words},
    {"compressed-tensors 0.20 refuses columns in an order of their own (actorder group); vLLM reads them", column_order},
};
enum { N_RULES = sizeof RULES / sizeof *RULES };

static void say(const oz_findings *f, size_t n, const char *first, const char *text) {
    char *line = n > 1 ? oz_asprintf("%s (the first of %zu): %s", first, n, text) : oz_asprintf("%s: %s", first, text);
    f->add(f->arg, false, line);
    oz_free(line);
}

static void check_schemes(const oz_module *modules, const oz_scheme *schemes, size_t n, const oz_findings *f) {
    for (size_t k = 0; k < N_RULES; k++) {
        size_t hits = 0, first = 0;
        for (size_t i = 0; i < n; i++)
            if (schemes[i].quantized && RULES[k].is_so(&schemes[i]) && hits++ == 0) first = i;
        if (hits) say(f, hits, modules[first].name, RULES[k].why);
    }
}

/* ---- modules that run as one ---- */

/* The layer that a module is a part of there, and its length in the module's name ("model.layers.0.self_attn", "qkv_proj"); NULL: it stands alone. */
static const char *whole(size_t *parent, const char *name) {
    const char *last = strrchr(name, '.'), *experts = strstr(name, ".experts.");
    if (experts && isdigit((unsigned char)experts[strlen(".experts.")])) return *parent = (size_t)(experts - name), "experts";
    return last ? *parent = (size_t)(last - name), oz_fused_name(last + 1) : NULL;
}

char *oz_vllm_whole(const char *module) {
    size_t parent;
    const char *fused = whole(&parent, module);
    return fused ? oz_asprintf("%.*s.%s", (int)parent, module, fused) : oz_strdup(module);
}

static const char *scheme_name(const oz_scheme *s) { return s->quantized ? s->name : "dense"; }

static void check_wholes(const oz_module *modules, const oz_scheme *schemes, size_t n, const oz_findings *f) {
    oz_map *firsts = oz_map_new(n), *told = oz_map_new(16);
    size_t hits = 0, parent;
    char *first = NULL, *text = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *fused = whole(&parent, modules[i].name);
        if (!fused) continue;
        char *key = oz_asprintf("%.*s.%s", (int)parent, modules[i].name, fused);
        int64_t at = (int64_t)i;
        const bool differs = oz_map_get(firsts, key, strlen(key), &at) && !oz_scheme_same(&schemes[at], &schemes[i]);
        oz_map_add(firsts, key, strlen(key), (int64_t)i);
        if (differs && oz_map_add(told, key, strlen(key), 1) && hits++ == 0) {
            first = oz_strndup(modules[i].name, parent);
            text = oz_asprintf("%s is %s, %s is %s; vLLM runs them as one %s and refuses different schemes", modules[at].name + parent + 1, scheme_name(&schemes[at]), modules[i].name + parent + 1,
                               scheme_name(&schemes[i]), fused);
        }
        oz_free(key);
    }
    if (hits) say(f, hits, first, text);
    oz_free(first);
    oz_free(text);
    oz_map_free(&firsts);
    oz_map_free(&told);
}

void oz_scheme_vllm(const oz_module *modules, const oz_scheme *schemes, size_t n, const oz_kv_scheme *kv, const oz_findings *f) {
    if (kv && kv->is_int) f->add(f->arg, false, "kv_cache_scheme: vLLM runs a cache of float8 alone, not of int8");
    check_schemes(modules, schemes, n, f);
    check_wholes(modules, schemes, n, f);
}
