/* ounce inspect: what a checkpoint holds, how it is quantized, what of it fits in memory, and whether it is run here; the kernels that would run it, and
 * the plan. What cannot be run is shown as far as it is understood, with the message that running it ends with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/names.h"
#include "base/str.h"
#include "cli/inspect.h"

static bool tensors, kernels, plan;
static double memory_gb;
static const oz_opt opts[] = {
    {"tensors", 0, OZ_OPT_FLAG, &tensors, 0, 0, NULL, NULL, "every stored tensor: type, shape, bytes, file; those that differ in numbers alone share a line, --json has each"},
    {"kernels", 0, OZ_OPT_FLAG, &kernels, 0, 0, NULL, NULL, "the kernel that runs each module on this machine (loads the model); modules that differ in numbers alone share a line, --json has each"},
    {"plan", 0, OZ_OPT_FLAG, &plan, 0, 0, NULL, NULL, "the compiled steps of the forward pass (loads the model)"},
    {"memory", 0, OZ_OPT_FLOAT, &memory_gb, 0, 1e9, NULL, "GB", "count the sequences that fit in so many gigabytes (10^9 bytes); 0: this machine's memory"},
    {0}};
static const oz_opt *const tables[] = {opts, oz_cli_opts_model, oz_cli_opts_output, NULL};
static const oz_opt_cmd cmd = {"inspect", "MODEL [--tensors] [--kernels] [--plan]", "architecture, sizes, schemes, memory, kernels and plan of a checkpoint",
                               "It also shows what `ounce run` refuses, as far as that can be read, and why. Bytes are exact: they add up to the tensors of the files. Bits are those of a "
                               "parameter with its scales. A sequence's memory is its cache; weights count as they are stored.",
                               tables, 1, 1};

static const char *str_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static long long int_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

/* ---- tensors and kernels ---- */

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

static json_t *kernels_json(const oz_model *m) {
    json_t *list = json_array();
    for (size_t i = 0; i < oz_model_module_count(m); i++) {
        const oz_model_module k = oz_model_module_at(m, i);
        json_array_append_new(list, json_pack("{s:s s:s s:s s:I}", "name", k.name, "scheme", k.scheme->name, "kernel", oz_packed_kernel(k.packed), "packed_bytes", (json_int_t)oz_packed_bytes(k.packed)));
    }
    return list;
}

/* A value as text: a string as it is. oz_free. */
static char *text_of(const json_t *v) {
    if (json_is_string(v)) return oz_strdup(json_string_value(v));
    char *made = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT), *out = oz_strdup(made);
    free(made);
    return out;
}

/* A line for all objects of a list whose names differ in numbers alone and whose columns are equal: name, how many, columns, sum of `bytes`, file. */
static void lines_print(const json_t *list, const char *title, const char *const columns[2], const char *bytes, const char *bytes_title) {
    const size_t n = json_array_size(list);
    const char **names = oz_alloc_array(n + 1, sizeof *names);
    char **keys = oz_alloc_array(n + 1, sizeof *keys);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        char *first = text_of(json_object_get(x, columns[0])), *second = text_of(json_object_get(x, columns[1]));
        names[i] = str_of(x, "name"), keys[i] = oz_asprintf("%-12s %-24s", first, second);
        oz_free(first);
        oz_free(second);
    }
    oz_name_lines l;
    oz_names_collapse(&l, names, (const char *const *)keys, n);
    struct { long long count, sum; size_t first; const char *file; bool more; } *sums = oz_alloc_array(l.n + 1, sizeof *sums), *s;
    for (size_t i = n; i-- > 0;) {
        const char *file = str_of(json_array_get(list, i), "file");
        s = &sums[l.line_of[i]];
        s->count++, s->sum += int_of(json_array_get(list, i), bytes), s->first = i;
        s->more |= s->file && strcmp(s->file, file) != 0;
        s->file = file;
    }
    size_t wide = strlen(title);
    for (size_t i = 0; i < l.n; i++) wide = strlen(l.text[i]) > wide ? strlen(l.text[i]) : wide;
    if (n) printf("\n%-*s %6s  %-12s %-24s %14s\n", (int)wide, title, "count", columns[0], columns[1], bytes_title);
    for (s = sums; s < sums + l.n; s++)
        printf("%-*s %6lld  %s %14lld%s%s%s\n", (int)wide, l.text[s - sums], s->count, keys[s->first], s->sum, s->file ? "  " : "", s->file ? s->file : "", s->more ? " ..." : "");
    for (size_t i = 0; i < n; i++) oz_free(keys[i]);
    oz_free(keys);
    oz_free(names);
    oz_free(sums);
    oz_name_lines_deinit(&l);
}

/* ---- what needs the model loaded ---- */

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

/* ---- the command ---- */

static void doc_print(const json_t *doc) {
    oz_cli_inspect_print(doc);
    lines_print(json_object_get(doc, "tensors"), "tensor", (const char *const[]){"dtype", "shape"}, "bytes", "bytes");
    lines_print(json_object_get(doc, "kernels"), "module", (const char *const[]){"scheme", "kernel"}, "packed_bytes", "packed bytes");
    if (str_of(doc, "plan")) printf("\n%s", str_of(doc, "plan"));
}

static oz_status facts(json_t **doc, const oz_cli_inspect *in, oz_err *err) {
    oz_cli_parts p;
    oz_status st = oz_cli_parts_new(&p, in->ckpt, err);
    if (st == OZ_OK) {
        *doc = oz_cli_inspect_facts(in, &p);
        if (oz_cli_common.json) json_object_set_new(*doc, "modules", oz_cli_inspect_modules(&p));
        if (tensors) json_object_set_new(*doc, "tensors", tensors_json(in->ckpt));
    }
    oz_cli_parts_deinit(&p);
    return st;
}

/* *why: the error that running it ends with, on a device that runs everything; clear where there is none. The checkpoint is opened as far as it can be. */
static oz_status open_any(oz_ckpt **c, oz_err *why, const char *path, oz_err *err) {
    oz_arch_list list = {0};
    if (oz_ckpt_open(c, path, why) != OZ_OK) {
        OZ_TRY(oz_ckpt_open_all(c, path, &oz_cli_pass_over, err));
        const bool empty = !*c || (!oz_ckpt_config(*c) && oz_ckpt_count(*c) == 0) || (why->code == OZ_E_NOT_FOUND && oz_ckpt_count(*c) == 0);
        if (empty) *err = *why, oz_ckpt_close(c);
        return empty ? err->code : OZ_OK;
    }
    if (oz_arch_list_new(&list, oz_ckpt_config(*c), *c, why) == OZ_OK) {
        oz_scheme *schemes = oz_alloc_array(list.n + 1, sizeof *schemes);
        oz_model_check(schemes, *c, &list, NULL, why);
        oz_free(schemes);
    }
    oz_arch_list_deinit(&list);
    return OZ_OK;
}

static oz_status run(const char **args, int n_args, oz_err *err) {
    (void)n_args;
    oz_ckpt *c;
    oz_err why = {0};
    json_t *doc = NULL;
    OZ_TRY(open_any(&c, &why, args[0], err));
    oz_status st = oz_cli_model_check(why.code == OZ_OK ? c : NULL, err);
    if (st == OZ_OK && !kernels && !plan && strcmp(oz_cli_common.quantization, "none") != 0)
        st = oz_err_set(err, OZ_E_USAGE, __FILE__, __LINE__, "--quantization: is done while a model loads, which inspect does with --kernels or --plan");
    if (st != OZ_OK) return oz_ckpt_close(&c), st;
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const oz_cli_inspect in = {c, args[0], why.code == OZ_OK ? NULL : why.msg, memory_gb > 0 ? memory_gb * 1e9 : machine};
    st = facts(&doc, &in, err);
    oz_ckpt_close(&c);
    if (st == OZ_OK && (kernels || plan)) st = loaded_part(doc, args[0], err);
    if (doc && oz_cli_common.json) oz_cli_json_print(json_incref(doc));
    else if (doc) doc_print(doc);
    json_decref(doc);
    return st;
}

static const oz_opt_cmd *describe(void) { return &cmd; }
const oz_cmd oz_cmd_inspect = {"inspect", describe, run, false};
