/* ounce inspect: what a checkpoint holds, which scheme each module has, the kernel that would run it here, and the plan. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cli/cli.h"

static bool tensors, kernels, plan;
static const oz_opt opts[] = {
    {"tensors", 0, OZ_OPT_FLAG, &tensors, 0, 0, NULL, NULL, "every stored tensor: type, shape, bytes, file"},
    {"kernels", 0, OZ_OPT_FLAG, &kernels, 0, 0, NULL, NULL, "the kernel that runs each module on this machine (loads the model); modules that differ in numbers alone share a line, --json has each"},
    {"plan", 0, OZ_OPT_FLAG, &plan, 0, 0, NULL, NULL, "the compiled steps of the forward pass (loads the model)"},
    {0}};
static const oz_opt *const tables[] = {opts, oz_cli_opts_model, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {"inspect", "MODEL [--tensors] [--kernels] [--plan]", "architecture, sizes, schemes, kernels and plan of a checkpoint", NULL, tables, 1, 1};

typedef struct scheme_list { oz_arch_list arch; oz_module *mods; oz_scheme *schemes; int *role; size_t n; } scheme_list;

static oz_status schemes_open(scheme_list *s, const oz_ckpt *c, oz_err *err) {
    *s = (scheme_list){0};
    OZ_TRY(oz_arch_list_new(&s->arch, oz_ckpt_config(c), c, err));
    s->mods = oz_alloc_array(s->arch.n, sizeof *s->mods);
    s->schemes = oz_alloc_array(s->arch.n, sizeof *s->schemes);
    s->role = oz_alloc_array(s->arch.n, sizeof *s->role);
    for (size_t i = 0; i < s->arch.n; i++) {
        const oz_arch_tensor *t = &s->arch.items[i];
        if (t->cols == 0) continue;
        s->role[s->n] = (int)t->role;
        s->mods[s->n++] = oz_arch_module(t, c);
    }
    return oz_scheme_resolve(s->schemes, oz_ckpt_config(c), s->mods, s->n, err);
}

static void schemes_close(scheme_list *s) {
    oz_arch_list_deinit(&s->arch);
    oz_free(s->mods);
    oz_free(s->schemes);
    oz_free(s->role);
}

static json_t *tensors_json(const oz_ckpt *c) {
    json_t *list = json_array();
    for (size_t i = 0; i < oz_ckpt_count(c); i++) {
        const oz_tensor *t = oz_ckpt_at(c, i);
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer(t->dims[d]));
        json_array_append_new(list, json_pack("{s:o s:s s:o s:I s:o}", "name", oz_json_text(t->name), "dtype", oz_dtype_get(t->dtype)->name, "shape", shape, "bytes", (json_int_t)t->n_bytes, "file", oz_json_text(t->file_name)));
    }
    return list;
}

static oz_status modules_json(json_t *list, const oz_ckpt *c, const scheme_list *s, oz_err *err) {
    for (size_t i = 0; i < s->n; i++) {
        oz_weight w;
        OZ_TRY(oz_scheme_bind(&w, c, &s->mods[i], &s->schemes[i], err));
        json_array_append_new(list, json_pack("{s:s s:s s:s s:s s:I s:I s:I}", "name", s->mods[i].name, "role", oz_role_name((oz_role)s->role[i]), "scheme", s->schemes[i].name, "codec",
                                              oz_codec_get(w.codec)->name, "rows",
                                              (json_int_t)s->mods[i].rows, "cols", (json_int_t)s->mods[i].cols, "bytes", (json_int_t)oz_weight_bytes(&w)));
    }
    return OZ_OK;
}

static json_t *kernels_json(const oz_model *m) {
    json_t *list = json_array();
    for (size_t i = 0; i < oz_model_module_count(m); i++) {
        const oz_model_module k = oz_model_module_at(m, i);
        json_array_append_new(list, json_pack("{s:s s:s s:s s:I}", "name", k.name, "scheme", k.scheme->name, "kernel", oz_packed_kernel(k.packed), "packed_bytes", (json_int_t)oz_packed_bytes(k.packed)));
    }
    return list;
}

static const char *str_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static long long int_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void doc_print(const json_t *doc) {
    size_t i;
    const json_t *x;
    printf("%s: %s, %lld tensors, %lld bytes\n", str_of(doc, "model"), str_of(doc, "model_type"), int_of(doc, "n_tensors"), int_of(doc, "bytes"));
    oz_cli_roles_print(json_object_get(doc, "modules"));
    json_array_foreach(json_object_get(doc, "tensors"), i, x) {
        char *shape = json_dumps(json_object_get(x, "shape"), JSON_COMPACT);
        printf("%-60s %-8s %-18s %12lld  %s\n", str_of(x, "name"), str_of(x, "dtype"), shape, int_of(x, "bytes"), str_of(x, "file"));
        free(shape);
    }
    oz_cli_kernels_print(json_object_get(doc, "kernels"));
    const char *steps = str_of(doc, "plan");
    if (steps) fputs(steps, stdout);
}

static char *plan_text(const oz_model *m) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    oz_model_plan_print(m, f);
    fclose(f);
    return text;
}

static oz_status loaded_part(json_t *doc, const char *path, oz_err *err) {
    oz_cli_model m;
    OZ_TRY(oz_cli_model_open(&m, path, &(oz_cli_need){0}, err));
    if (kernels) json_object_set_new(doc, "kernels", kernels_json(m.model));
    char *text = plan ? plan_text(m.model) : NULL;
    if (text) json_object_set_new(doc, "plan", json_string(text));
    free(text);
    oz_cli_model_close(&m);
    return OZ_OK;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    (void)n_args;
    oz_ckpt *c;
    OZ_TRY(oz_ckpt_open(&c, args[0], err));
    scheme_list s;
    json_t *modules = json_array(), *doc = NULL;
    oz_status st = schemes_open(&s, c, err);
    if (st == OZ_OK) st = modules_json(modules, c, &s, err);
    if (st == OZ_OK) {
        doc = json_pack("{s:o s:s s:I s:I s:O}", "model", oz_json_text(args[0]), "model_type", str_of(oz_ckpt_config(c), "model_type"), "n_tensors", (json_int_t)oz_ckpt_count(c), "bytes",
                        (json_int_t)oz_ckpt_bytes(c), "modules", modules);
        if (tensors) json_object_set_new(doc, "tensors", tensors_json(c));
    }
    schemes_close(&s);
    oz_ckpt_close(&c);
    if (st == OZ_OK && (kernels || plan)) st = loaded_part(doc, args[0], err);
    if (st == OZ_OK && oz_cli_common.json) oz_cli_json_print(json_incref(doc));
    else if (st == OZ_OK) doc_print(doc);
    json_decref(modules);
    json_decref(doc);
    return st;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_inspect = {"inspect", describe, run, false};
