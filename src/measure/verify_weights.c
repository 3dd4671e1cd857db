/* Every code and every scale of a checkpoint, row by row over the pool; memory: a module's scales as logarithms. The rules at the end read what one pass over
 * a module counted. They are warnings where a reader takes the value as it is: an odd value may be what was meant. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "measure/internal.h"

typedef struct place { int64_t n, row, col; } place; /* how many, and the first of them */

/* What was counted in some rows of a module. */
typedef struct tally {
    place bad;         /* values that are no numbers */
    place dead_rows;   /* nothing but zeros */
    place zeros_past;  /* zero points one past the largest code */
    place zeros_off;   /* zero points that are not in the middle, where the scheme is symmetric */
    int64_t n_clip;    /* codes at an end of their range */
    float *row, *scales, *zeros; /* room of the thread's own */
    uint8_t *lives;    /* [cols]: any value but zero */
} tally;

typedef struct pass {
    const oz_weight *w;
    float lo, hi;      /* ends of the range of codes; equal: it has none that says anything */
    bool symmetric;    /* and yet it may have zero points: GPTQ */
    int64_t n_groups, grid_rows, step; /* of scales: [grid_rows, n_groups], one a group of `step` columns */
    float *logs;       /* log2 of each; NAN where all codes stand for zero */
    tally *tallies;    /* one a thread */
} pass;

static void place_add(place *p, int64_t row, int64_t col) {
    if (p->n++ == 0) p->row = row, p->col = col;
}

static void place_join(place *a, const place *b) {
    if (b->n && (!a->n || b->row < a->row)) a->row = b->row, a->col = b->col;
    a->n += b->n;
}

/* Values of a row: of codes without their scale. */
static void look_at(const pass *p, tally *t, int64_t r, const float *codes, const float *zeros) {
    const oz_codec_info *info = oz_codec_get(p->w->codec);
    bool lives = false;
    for (int64_t c = 0; c < p->w->cols; c++) {
        const int64_t g = oz_weight_group(p->w, c);
        const float x = info->codebook ? info->codebook[(int)codes[c]] : codes[c] - (zeros ? zeros[g] : 0);
        if (!isfinite(x)) place_add(&t->bad, r, c);
        if (p->lo < p->hi) t->n_clip += codes[c] <= p->lo || codes[c] >= p->hi;
        lives |= x != 0;
        t->lives[c] |= x != 0;
    }
    if (!lives) place_add(&t->dead_rows, r, 0);
}

/* Scales of a row, where it is the first of those that share them. */
static void look_at_scales(const pass *p, tally *t, int64_t r) {
    const oz_weight *w = p->w;
    const int32_t code_max = oz_codec_get(w->codec)->code_max;
    for (int64_t g = 0; g < p->n_groups; g++)
        if (w->zero_words && t->zeros[g] > (float)code_max) place_add(&t->zeros_past, r, g);
    for (int64_t g = 0; g < p->n_groups && w->zero_words && p->symmetric; g++)
        if (t->zeros[g] != 0) place_add(&t->zeros_off, r, g);
    if (r % (w->scale_rows > 1 ? w->scale_rows : 1)) return;
    float *logs = p->logs + r / (w->scale_rows > 1 ? w->scale_rows : 1) * p->n_groups;
    for (int64_t g = 0; g < p->n_groups; g++) logs[g] = NAN;
    for (int64_t c = 0; c < w->cols; c++) {
        const int64_t g = oz_weight_group(w, c);
        if (isnan(logs[g]) && t->row[c] - t->zeros[g] != 0) logs[g] = log2f(t->scales[g]);
    }
}

static void rows_pass(void *arg, int thread, int64_t begin, int64_t end) {
    const pass *p = arg;
    tally *t = &p->tallies[thread];
    for (int64_t r = begin; r < end; r++) {
        if (!p->w->scales) {
            oz_weight_row(t->row, p->w, r, 0, p->w->cols);
            look_at(p, t, r, t->row, NULL);
            continue;
        }
        oz_weight_codes(t->row, p->w, r, 0, p->w->cols);
        oz_weight_scales(t->scales, t->zeros, p->w, r);
        look_at(p, t, r, t->row, t->zeros);
        look_at_scales(p, t, r);
    }
}

/* ---- rules ---- */

typedef struct subject { const oz_verify *v; const oz_arch_tensor *t; const oz_scheme *scheme; const pass *p; const tally *sum; } subject;

static void rule_finite(const subject *s) {
    const place *b = &s->sum->bad;
    if (b->n) oz_found_error(s->v->f, "%s.weight: expected finite values, found %lld that are not, the first in row %lld, column %lld", s->t->module, (long long)b->n, (long long)b->row, (long long)b->col);
}

/* Four times what codes without a preference would have there, and the ends of each group, which most ways to choose scales put there. */
static void rule_clip(const subject *s) {
    const pass *p = s->p;
    if (!(p->lo < p->hi)) return;
    const double n = (double)p->w->rows * (double)p->w->cols, levels = s->scheme->is_float ? 256 : (double)(p->hi - p->lo) + 1;
    const double most = fmin(0.9, 4 * (2 / levels) + 4.0 / (double)p->step), share = (double)s->sum->n_clip / n;
    if (share > most) oz_found_warning(s->v->f, "%s.weight: expected at most %.1f %% of the codes at the ends of their range, found %.1f %%", s->t->module, 100 * most, 100 * share);
}

/* Embeddings and heads have rows of tokens that never came up. */
static void rule_dead_rows(const subject *s) {
    const place *d = &s->sum->dead_rows;
    if (d->n && s->t->role != OZ_ROLE_EMBED && s->t->role != OZ_ROLE_HEAD)
        oz_found_warning(s->v->f, "%s.weight: expected no output that is always zero, found %lld of %lld, the first is row %lld", s->t->module, (long long)d->n, (long long)s->t->rows, (long long)d->row);
}

static void rule_dead_cols(const subject *s) {
    int64_t n = 0, first = 0;
    for (int64_t c = s->t->cols - 1; c >= 0; c--)
        if (!s->sum->lives[c]) n++, first = c;
    if (n) oz_found_warning(s->v->f, "%s.weight: expected no input that is never used, found %lld of %lld, the first is column %lld", s->t->module, (long long)n, (long long)s->t->cols, (long long)first);
}

static void rule_zero_past(const subject *s) {
    const place *z = &s->sum->zeros_past;
    if (z->n) oz_found_warning(s->v->f, "%s.qzeros: expected zero points within the range of codes, found %lld one past it, on which readers differ; the first in row %lld, group %lld", s->t->module, (long long)z->n,
                               (long long)z->row, (long long)z->col);
}

static void rule_zero_off(const subject *s) {
    const place *z = &s->sum->zeros_off;
    if (z->n) oz_found_warning(s->v->f, "%s.qzeros: expected zero points in the middle of the codes, since sym is true, found %lld others, which some readers pass over; the first in row %lld, group %lld", s->t->module, (long long)z->n,
                               (long long)z->row, (long long)z->col);
}

static void rule_order(const subject *s) {
    const oz_weight *w = s->p->w;
    for (int64_t c = 0; c < w->cols && w->g_idx && s->scheme->store == OZ_STORE_GPTQ && !s->scheme->column_order; c++) {
        if (oz_weight_group(w, c) == c / s->p->step) continue;
        oz_found_warning(s->v->f, "%s.g_idx: expected groups of neighbours, since desc_act is false, found column %lld in group %lld; some readers pass over such an index", s->t->module, (long long)c, (long long)oz_weight_group(w, c));
        return;
    }
}

static int compare(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Of the numbers among n, `step` apart; sorts them in room. NAN: there are none. */
static float median(float *room, const float *x, int64_t n, int64_t step) {
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i * step])) room[k++] = x[i * step];
    qsort(room, (size_t)k, sizeof *room, compare);
    return k ? room[k / 2] : NAN;
}

/* A scale beside those of its row and of its column: what is left of its logarithm when their medians, each beside the module's, are taken off. Where a row has
 * one scale: beside the module's median. */
enum { OCTAVES_GROUP = 5, OCTAVES_ROW = 8, SPREADS = 12 };
static oz_status rule_scales(const subject *s, oz_err *err) {
    const pass *p = s->p;
    const int64_t rows = p->grid_rows, groups = p->n_groups, n = rows * groups;
    if (n < 4 || p->w->one_scale) return OZ_OK;
    float *mem;
    OZ_TRY(oz_big_new((void **)&mem, (size_t)(2 * n + groups) * sizeof *mem, "scales of a module", err));
    float *room = mem, *rest = mem + n, *by_col = rest + n;
    const bool two_ways = rows >= 4 && groups >= 4;
    const float all = median(room, p->logs, n, 1);
    for (int64_t g = 0; g < groups; g++) by_col[g] = two_ways ? median(room, p->logs + g, rows, groups) : all;
    for (int64_t r = 0; r < rows; r++) {
        const float by_row = two_ways ? median(room, p->logs + r * groups, groups, 1) : all;
        for (int64_t g = 0; g < groups; g++) rest[r * groups + g] = fabsf(p->logs[r * groups + g] - by_row - by_col[g] + all);
    }
    const float limit = fmaxf(two_ways ? OCTAVES_GROUP : OCTAVES_ROW, SPREADS * median(room, rest, n, 1));
    int64_t n_odd = 0, worst = 0;
    for (int64_t i = 0; i < n; i++)
        if (rest[i] > limit && (n_odd++ == 0 || rest[i] > rest[worst])) worst = i;
    if (n_odd) oz_found_warning(s->v->f, "%s: expected scales near those of their neighbours, found %lld that are not; in row %lld, group %lld the scale is %.3g, the module's median %.3g", s->t->module, (long long)n_odd,
                                (long long)(worst / groups * (p->w->scale_rows > 1 ? p->w->scale_rows : 1)), (long long)(worst % groups), (double)exp2f(p->logs[worst]), (double)exp2f(all));
    oz_big_free(mem);
    return OZ_OK;
}

static void (*const RULES[])(const subject *) = {rule_finite, rule_clip, rule_dead_rows, rule_dead_cols, rule_zero_past, rule_zero_off, rule_order};

/* ---- a module ---- */

/* The ends of the range of codes; floats of four bits have few values, of which many are the largest. */
static void range(pass *p, const oz_scheme *s) {
    const oz_codec_info *info = oz_codec_get(p->w->codec);
    if (info->plain || info->codebook) return;
    if (s->is_float) p->lo = -info->largest, p->hi = info->largest;
    else p->lo = (float)-(1 << (s->bits - 1)), p->hi = -p->lo - 1;
}

/* One block of memory: the logarithms, then a tally's room for each thread. */
static oz_status room_new(void **mem, pass *p, tally *tallies, int n_threads, oz_err *err) {
    const size_t cols = (size_t)p->w->cols, groups = (size_t)p->n_groups, each = (cols + 2 * groups) * sizeof(float) + ((cols + 63) & ~(size_t)63);
    const size_t logs = (size_t)(p->grid_rows * p->n_groups) * sizeof(float);
    OZ_TRY(oz_big_new(mem, logs + (size_t)n_threads * each + 64, "scales and rows of a module", err));
    p->logs = *mem;
    for (int i = 0; i < n_threads; i++) {
        float *at = (float *)((char *)*mem + logs + (size_t)i * each);
        tallies[i] = (tally){.row = at, .scales = at + cols, .zeros = at + cols + groups, .lives = (uint8_t *)(at + cols + 2 * groups)};
    }
    p->tallies = tallies;
    return OZ_OK;
}

static oz_status check_matrix(const oz_verify *v, const oz_arch_tensor *t, const oz_scheme *scheme, const oz_weight *w, oz_err *err) {
    const int n_threads = oz_pool_threads(v->pool);
    const int64_t down = w->scale_rows > 1 ? w->scale_rows : 1;
    pass p = {.w = w, .symmetric = scheme->symmetric, .n_groups = oz_weight_groups(w), .step = w->group_size > 0 ? w->group_size : w->cols, .grid_rows = w->scales ? (w->rows + down - 1) / down : 0};
    tally *tallies = oz_alloc_array((size_t)n_threads, sizeof *tallies);
    void *mem = NULL;
    range(&p, scheme);
    oz_status st = room_new(&mem, &p, tallies, n_threads, err);
    if (st == OZ_OK) {
        oz_pool_run(v->pool, w->rows, 1, rows_pass, &p);
        for (int i = 1; i < n_threads; i++) {
            place_join(&tallies[0].bad, &tallies[i].bad);
            place_join(&tallies[0].dead_rows, &tallies[i].dead_rows);
            place_join(&tallies[0].zeros_past, &tallies[i].zeros_past);
            place_join(&tallies[0].zeros_off, &tallies[i].zeros_off);
            tallies[0].n_clip += tallies[i].n_clip;
            for (int64_t c = 0; c < w->cols; c++) tallies[0].lives[c] |= tallies[i].lives[c];
        }
        const subject s = {v, t, scheme, &p, &tallies[0]};
        for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) RULES[i](&s);
        st = rule_scales(&s, err);
    }
    oz_big_free(mem);
    oz_free(tallies);
    return st;
}

static void check_vector(const oz_verify *v, const oz_arch_tensor *t) {
    const oz_tensor *x = oz_ckpt_find(v->ckpt, t->name);
    oz_err why = {0};
    if (x && oz_finite_check(x, &why) != OZ_OK) oz_found_error(v->f, "%s", why.msg);
}

oz_status oz_verify_weights(const oz_verify *v, oz_err *err) {
    oz_progress progress;
    oz_progress_init(&progress, "verifying", "tensors", (int64_t)v->list.n);
    oz_status st = OZ_OK;
    for (size_t i = 0; i < v->list.n && st == OZ_OK; i++) {
        const oz_arch_tensor *t = &v->list.items[i];
        oz_weight w;
        if (oz_interrupted()) st = oz_err_set(err, OZ_E_INTERRUPTED, __FILE__, __LINE__, "interrupted");
        else if (t->cols == 0) check_vector(v, t);
        else if (oz_verify_bind(&w, v, i)) {
            st = check_matrix(v, t, &v->schemes[i], &w, err);
            oz_verify_drop(v, i);
        }
        oz_progress_step(&progress, (int64_t)i + 1);
    }
    oz_progress_deinit(&progress);
    return st;
}
