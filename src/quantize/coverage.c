/* What each expert saw of the calibration text, in the manifest of a run: experts: [{layer, tokens: [of each expert], all_tokens: [those that were calibrated on all of them]}], null for an expert that
 * nothing is made of. */
#include <inttypes.h>
#include "base/file.h"
#include "quantize/internal.h"

bool oz_is_fitted(const oz_quantize *q, const oz_quantize_item *it) { return it->quantized && (it->gptq || it->imatrix || q->transform || it->scheme.static_input); }

/* Of a layer; NULL: there is none. The one at work is the last. */
static json_t *entry_of(const json_t *manifest, int64_t layer) {
    const json_t *all = json_object_get(manifest, "experts");
    for (size_t i = json_array_size(all); i > 0; i--) {
        const json_t *entry = json_array_get(all, i - 1);
        if (json_integer_value(json_object_get(entry, "layer")) == layer) return (json_t *)entry;
    }
    return NULL;
}

static json_t *tokens_of(const json_t *manifest, int64_t layer) { return json_object_get(entry_of(manifest, layer), "tokens"); }

static void note_all(json_t *entry, int expert) {
    size_t i;
    const json_t *id;
    if (!json_object_get(entry, "all_tokens")) json_object_set_new(entry, "all_tokens", json_array());
    json_array_foreach(json_object_get(entry, "all_tokens"), i, id)
        if (json_integer_value(id) == expert) return;
    json_array_append_new(json_object_get(entry, "all_tokens"), json_integer(expert));
}

void oz_coverage_note(json_t *manifest, const oz_arch_tensor *t, int64_t n_tok, bool all) {
    if (t->expert < 0) return;
    if (!json_object_get(manifest, "experts")) json_object_set_new(manifest, "experts", json_array());
    if (!tokens_of(manifest, t->layer)) json_array_append_new(json_object_get(manifest, "experts"), json_pack("{s:I, s:[]}", "layer", (json_int_t)t->layer, "tokens"));
    json_t *tokens = tokens_of(manifest, t->layer);
    while (json_array_size(tokens) <= (size_t)t->expert) json_array_append_new(tokens, json_null());
    json_array_set_new(tokens, (size_t)t->expert, json_integer(n_tok));
    if (all) note_all(entry_of(manifest, t->layer), t->expert);
}

void oz_coverage_tell(const json_t *manifest, int64_t layer, int64_t n_tok) {
    int64_t least = INT64_MAX, most = 0;
    size_t i, fewest = 0, n = 0;
    const json_t *seen;
    json_array_foreach(tokens_of(manifest, layer), i, seen) {
        if (!json_is_integer(seen)) continue;
        n++;
        if (json_integer_value(seen) < least) least = json_integer_value(seen), fewest = i;
        if (json_integer_value(seen) > most) most = json_integer_value(seen);
    }
    if (n) oz_log_info("layer %" PRId64 ": of %" PRId64 " tokens an expert saw %" PRId64 " (expert %zu) to %" PRId64 ", of %zu experts", layer, n_tok, least, fewest, most, n);
}

int64_t oz_coverage_seen(const json_t *manifest, const oz_arch_tensor *t) {
    const json_t *seen = t->expert < 0 ? NULL : json_array_get(tokens_of(manifest, t->layer), (size_t)t->expert);
    return json_is_integer(seen) ? json_integer_value(seen) : -1;
}

void oz_coverage_warn(const json_t *manifest, const oz_quantize *q, int64_t n_tok) {
    size_t n[2] = {0, 0}; /* no token; some, but fewer than columns */
    const char *first[2] = {NULL, NULL};
    for (size_t i = 0; i < q->list.n; i++) {
        const oz_arch_tensor *t = &q->list.items[i];
        const int64_t seen = oz_is_fitted(q, &q->items[i]) ? oz_coverage_seen(manifest, t) : -1;
        if (seen < 0 || seen >= t->cols || (seen > 0 && t->cols > n_tok)) continue;
        if (!n[seen > 0]++) first[seen > 0] = t->module;
    }
    if (q->all_experts && !n[0] && !n[1]) oz_log_warn("--moe-calibrate-all-experts: each expert was reached by as many tokens as its matrices have columns, or more: nothing is other than without it");
    const char *none = q->all_experts ? "they were calibrated on all tokens of their layer" : "each of their weights was rounded by itself";
    const char *few = q->all_experts ? "they were calibrated on all tokens of their layer" : "they fit this text and may be worse on other";
    if (n[0]) oz_log_warn("no token of the calibration text reached %zu modules, the first %s: %s", n[0], first[0], none);
    if (n[1]) oz_log_warn("%zu modules were reached by fewer tokens than they have columns, the first %s: %s", n[1], first[1], few);
}
