/* Methods: steps joined by +, at most one that chooses scales to fold and then one that rounds. A step is a row. */
#include <math.h>
#include <string.h>
#include "quantize/internal.h"

/* SmoothQuant (Xiao et al. 2022): what is large in the inputs goes into the weights, by strength. */
static void smoothquant(float *s, const oz_fold_stats *st, double strength, int variant) {
    (void)variant;
    for (int64_t i = 0; i < st->n; i++) s[i] = powf(st->x_max[i], (float)strength) / powf(st->w_max[i], (float)(1 - strength));
}

/* AWQ (Lin et al. 2023): columns that meet large inputs are made large, so that their weights are rounded finely. Second: weights that are large already need it less. */
static void awq(float *s, const oz_fold_stats *st, double strength, int variant) {
    for (int64_t i = 0; i < st->n; i++) {
        s[i] = powf(st->x_mean[i], (float)strength);
        if (variant) s[i] /= powf(st->w_mean[i], (float)(1 - strength)) + 1e-4f;
    }
}

static const oz_transform transforms[] = {{"smoothquant", "SmoothQuant", smoothquant, 1, 10, false, true}, {"awq", "AWQ", awq, 2, 20, true, false}};
static const struct { const char *name; bool gptq, imatrix; } roundings[] = {{"rtn", false, false}, {"gptq", true, false}, {"imatrix", false, true}};
enum { N_TRANSFORMS = sizeof transforms / sizeof *transforms, N_ROUNDINGS = sizeof roundings / sizeof *roundings };

static bool is(const char *name, const char *step, size_t n) { return strlen(name) == n && strncmp(name, step, n) == 0; }

oz_status oz_method_parse(oz_method *out, const char *text, oz_err *err) {
    *out = (oz_method){0};
    bool rounded = false;
    for (const char *step = text ? text : "rtn"; step; step = strchr(step, '+') ? strchr(step, '+') + 1 : NULL) {
        const size_t n = strcspn(step, "+");
        size_t t = 0, r = 0;
        while (t < N_TRANSFORMS && !is(transforms[t].name, step, n)) t++;
        while (r < N_ROUNDINGS && !is(roundings[r].name, step, n)) r++;
        const bool next = !rounded && (r < N_ROUNDINGS || (t < N_TRANSFORMS && !out->transform));
        OZ_NEED(next, err, OZ_E_USAGE, "--method: must be rtn, gptq, imatrix, smoothquant, awq, smoothquant+gptq or awq+gptq, found \"%s\"", text);
        if (t < N_TRANSFORMS) out->transform = &transforms[t];
        else rounded = true, out->gptq = roundings[r].gptq, out->imatrix = roundings[r].imatrix;
    }
    return OZ_OK;
}
