/* The screen of `ounce inspect`, out of the JSON that oz_cli_inspect_facts made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/names.h"
#include "base/str.h"
#include "cli/inspect.h"

static const char *str_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static long long int_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

typedef struct digits { char text[40]; } digits;
/* 1,234,567 */
static digits grouped(long long v) {
    digits d;
    char plain[32];
    const int n = snprintf(plain, sizeof plain, "%lld", v < 0 ? -v : v);
    char *to = d.text;
    if (v < 0) *to++ = '-';
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) *to++ = ',';
        *to++ = plain[i];
    }
    *to = 0;
    return d;
}

/* "30 layers", behind what is there; nothing of 0. */
static void say(oz_buf *b, const char *before, long long v, const char *one, const char *more) {
    if (v) oz_buf_printf(b, "%s%s%lld%s", b->len ? ", " : "", before, v, v == 1 ? one : more);
}

static void architecture_print(const json_t *doc) {
    const json_t *a = json_object_get(doc, "architecture");
    const char *class = str_of(a, "class"), *type = str_of(doc, "model_type");
    oz_buf b = {0};
    printf("%s: %s%s%s%s", str_of(doc, "model"), class ? class : "", class ? " (" : "", type ? type : "model_type is not known", class ? ")" : "");
    printf("%s\n", json_is_true(json_object_get(a, "known")) ? "" : ", not run here");
    say(&b, "", int_of(a, "n_layers"), " layer", " layers");
    say(&b, "hidden ", int_of(a, "hidden_size"), "", "");
    say(&b, "feed-forward ", int_of(a, "intermediate_size"), "", "");
    say(&b, "", int_of(a, "n_heads"), " head", " heads");
    if (int_of(a, "head_dim")) oz_buf_printf(&b, " of %lld", int_of(a, "head_dim"));
    if (int_of(a, "n_heads_kv") != int_of(a, "n_heads")) say(&b, "", int_of(a, "n_heads_kv"), " of keys and values", " of keys and values");
    say(&b, "vocabulary ", int_of(a, "vocab_size"), "", "");
    say(&b, "up to ", int_of(a, "max_len"), " token", " tokens");
    say(&b, "", int_of(a, "n_experts"), " expert", " experts");
    if (int_of(a, "expert_ffn")) oz_buf_printf(&b, " of %lld", int_of(a, "expert_ffn"));
    say(&b, "", int_of(a, "top_k"), int_of(a, "n_experts") ? " a token" : " expert a token", int_of(a, "n_experts") ? " a token" : " experts a token");
    say(&b, "shared feed-forward ", int_of(a, "shared_ffn"), "", "");
    say(&b, "a window of ", int_of(a, "window"), "", "");
    if (int_of(a, "window")) oz_buf_printf(&b, " in %lld", int_of(a, "n_window_layers"));
    say(&b, "", int_of(a, "n_scan_layers"), " layer that scans", " layers that scan");
    if (json_is_true(json_object_get(a, "tied_head"))) oz_buf_puts(&b, ", tied head");
    if (b.len) printf("  %s\n", b.data);
    oz_buf_deinit(&b);
    const size_t n_files = json_object_size(json_object_get(doc, "files"));
    printf("  %s parameters", grouped(int_of(doc, "n_parameters")).text);
    if (int_of(doc, "n_modules_of_unknown_parameters")) printf(" and those of %lld modules whose form is not known", int_of(doc, "n_modules_of_unknown_parameters"));
    if (int_of(doc, "n_parameters_active")) printf(", %s active", grouped(int_of(doc, "n_parameters_active")).text);
    printf("; %lld tensor%s, %s bytes in %zu file%s\n", int_of(doc, "n_tensors"), int_of(doc, "n_tensors") == 1 ? "" : "s", grouped(int_of(doc, "bytes")).text, n_files, n_files == 1 ? "" : "s");
}

static void row_print(int wide, const char *role, const char *modules, const json_t *r, const char *scheme, const char *stored) {
    const long long n = int_of(r, "parameters"), bytes = int_of(r, "bytes");
    char bits[16] = "";
    if (n && bytes && !json_object_get(r, "parameters_unknown")) snprintf(bits, sizeof bits, "%.2f", 8.0 * (double)bytes / (double)n);
    char *line = oz_asprintf("%-*s %8s %18s %18s %6s  %-12s %s", wide, role, modules, grouped(n).text, grouped(bytes).text, bits, scheme, stored);
    for (size_t k = strlen(line); k > 0 && line[k - 1] == ' '; k--) line[k - 1] = 0;
    puts(line);
    oz_free(line);
}

static void classes_print(const json_t *doc) {
    size_t i, k;
    const json_t *r, *s;
    json_t *sum = json_pack("{s:O s:O}", "parameters", json_object_get(doc, "n_parameters"), "bytes", json_object_get(doc, "bytes"));
    if (json_object_get(doc, "n_modules_of_unknown_parameters")) json_object_set_new(sum, "parameters_unknown", json_true());
    int wide = 12;
    json_array_foreach(json_object_get(doc, "classes"), i, r) wide = (int)strlen(str_of(r, "role")) > wide ? (int)strlen(str_of(r, "role")) : wide;
    printf("\n%-*s %8s %18s %18s %6s  %-12s %s\n", wide, "class", "modules", "parameters", "bytes", "bits", "scheme", "stored as");
    json_array_foreach(json_object_get(doc, "classes"), i, r) {
        oz_buf stored = {0};
        json_array_foreach(json_object_get(r, "stored_as"), k, s) oz_buf_printf(&stored, "%s%s", k ? ", " : "", json_string_value(s));
        row_print(wide, str_of(r, "role"), grouped(int_of(r, "modules")).text, r, str_of(r, "scheme"), stored.data);
        oz_buf_deinit(&stored);
    }
    row_print(wide, "total", "", sum, "", "");
    json_decref(sum);
}

/* Patterns that differ in their numbers alone share a line. */
static void patterns_print(const json_t *list) {
    const size_t n = json_array_size(list);
    const char **names = oz_alloc_array(n + 1, sizeof *names);
    for (size_t i = 0; i < n; i++) names[i] = str_of(json_array_get(list, i), "pattern");
    oz_name_lines l;
    oz_names_collapse(&l, names, NULL, n);
    long long *counts = oz_alloc_array(l.n + 1, sizeof *counts);
    for (size_t i = 0; i < n; i++) counts[l.line_of[i]] += int_of(json_array_get(list, i), "modules");
    for (size_t i = 0; i < l.n; i++) printf("    %-72s %8s\n", l.text[i], grouped(counts[i]).text);
    oz_free(counts);
    oz_free(names);
    oz_name_lines_deinit(&l);
}

static void quantization_print(const json_t *q) {
    size_t i;
    const json_t *g;
    const char *key;
    json_t *v;
    if (json_is_null(q)) return;
    char *method = json_dumps(json_object_get(q, "method"), JSON_ENCODE_ANY);
    oz_buf keys = {0};
    json_object_foreach(json_object_get(q, "keys"), key, v) oz_buf_printf(&keys, ", %s %s", key, json_is_string(v) ? json_string_value(v) : oz_json_show(v));
    printf("\n%s%s", json_is_string(json_object_get(q, "method")) ? str_of(q, "method") : method, keys.len ? keys.data : "");
    if (int_of(q, "modules")) printf(": %s module%s", grouped(int_of(q, "modules")).text, int_of(q, "modules") == 1 ? "" : "s");
    putchar('\n');
    json_array_foreach(json_object_get(q, "groups"), i, g) {
        const char *scheme = str_of(g, "scheme"), *weights = str_of(g, "weights"), *inputs = str_of(g, "input_activations"), *format = str_of(g, "format");
        oz_buf b = {0};
        if (scheme) oz_buf_printf(&b, "%s: ", scheme);
        if (weights) oz_buf_printf(&b, "%s", weights);
        if (inputs) oz_buf_printf(&b, "; inputs %s", inputs);
        if (format) oz_buf_printf(&b, "; %s", format);
        printf("  %s%s%s\n", str_of(g, "name"), b.len ? " " : "", b.len ? b.data : "");
        patterns_print(json_object_get(g, "targets"));
        oz_buf_deinit(&b);
    }
    if (json_array_size(json_object_get(q, "ignore"))) puts("  ignore");
    patterns_print(json_object_get(q, "ignore"));
    if (str_of(q, "kv_cache")) printf("  cache %s\n", str_of(q, "kv_cache"));
    oz_buf_deinit(&keys);
    free(method);
}

static void memory_print(const json_t *m) {
    size_t i;
    const json_t *r;
    if (!m) return;
    const long long kv = int_of(m, "kv_bytes_tok"), slot = int_of(m, "slot_bytes"), latent = int_of(m, "latent_bytes_tok"), expanded = int_of(m, "expanded_bytes_tok");
    const long long float8 = int_of(m, "kv_float8_bytes_tok"), int8 = int_of(m, "kv_int8_bytes_tok");
    printf("\nKV cache: %s bytes a token in f32, as it is run here%s; %s in 16 bits", grouped(kv).text, float8 ? " (values are rounded to float8, not kept so)" : int8 ? " (values are rounded to int8, not kept so)" : "", grouped(kv / 2).text);
    if (float8 || int8) printf("; %s in 8, as its scheme says", grouped(float8 ? float8 : int8).text);
    if (latent) printf("; as latents %s, expanded %s, in f32", grouped(latent).text, grouped(expanded).text);
    if (slot) printf("; %s bytes a sequence besides", grouped(slot).text);
    if (int_of(m, "expanded_layers"))
        printf("\n%lld of %lld layers keep what is expanded of their latents: a quantized kv_b_proj cannot be absorbed, %s", int_of(m, "expanded_layers"), int_of(m, "latent_layers"), str_of(m, "expanded_by"));
    printf("\n%12s %18s %18s %14s in %.3g GB\n", "tokens", "cache", "with weights", "sequences", (double)int_of(m, "limit_bytes") / 1e9);
    json_array_foreach(json_object_get(m, "contexts"), i, r)
        printf("%12s %18s %18s %14s\n", grouped(int_of(r, "tokens")).text, grouped(int_of(r, "state_bytes")).text, grouped(int_of(r, "bytes")).text, grouped(int_of(r, "sequences")).text);
}

void oz_cli_inspect_print(const json_t *doc) {
    const json_t *run = json_object_get(doc, "run");
    architecture_print(doc);
    if (int_of(doc, "n_tensors")) classes_print(doc);
    quantization_print(json_object_get(doc, "quantization"));
    memory_print(json_object_get(doc, "memory"));
    if (str_of(run, "error")) printf("\nrun refuses it: %s\n", str_of(run, "error"));
}
