/* What each expert saw of the calibration text, in the manifest of a run: experts: [{layer, tokens: [of each expert]}], null for an expert that nothing is made of. */
#include <inttypes.h>
#include "base/file.h"
#include "quantize/internal.h"

/* Of a layer; NULL: there is none. The one at work is the last. */
static json_t *tokens_of(const json_t *manifest, int64_t layer) {
    const json_t *all = json_object_get(manifest, "experts");
    for (size_t i = json_array_size(all); i > 0; i--) {
        const json_t *entry = json_array_get(all, i - 1);
        if (json_integer_value(json_object_get(entry, "layer")) == layer) return json_object_get(entry, "tokens");
    }
    return NULL;
}

void oz_coverage_note(json_t *manifest, const oz_arch_tensor *t, int64_t n_tok) {
    if (t->expert < 0) return;
    if (!json_object_get(manifest, "experts")) json_object_set_new(manifest, "experts", json_array());
    if (!tokens_of(manifest, t->layer)) json_array_append_new(json_object_get(manifest, "experts"), json_pack("{s:I, s:[]}", "layer", (json_int_t)t->layer, "tokens"));
    json_t *tokens = tokens_of(manifest, t->layer);
    while (json_array_size(tokens) <= (size_t)t->expert) json_array_append_new(tokens, json_null());
    json_array_set_new(tokens, (size_t)t->expert, json_integer(n_tok));
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
