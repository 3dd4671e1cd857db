/* Latent attention on the CPU, over the expanded cache (mla_write) and over latents (latent).
 *
 * Absorbed: q_nope (turned keys) . latent + q_rope . rope is q . key, since key = kv_b latent; and what is summed of latents, times the values' rows of
 * kv_b, is what is summed of values. So attention runs as it is over one KV head whose values are the first columns of its keys, between two small
 * products a head. Expanded: the latents of one sequence go through kv_b into a cache of its own, and attention runs over that.
 *
 * Which form a segment takes depends on its length and position, and so on how a prompt was cut into calls: where results must not depend on that,
 * `deterministic`, all are absorbed. */
#include <string.h>
#include "kernel/cpu.h"
#include "kernel/step.h"

/* ---- keys and values of all heads into a cache ---- */

typedef struct mla_job { const oz_kv *kv; const oz_seg *seg; const oz_mla_args *a; } mla_job;

static void mla_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const mla_job *j = arg;
    const oz_kv *kv = j->kv;
    const oz_mla_args *a = j->a;
    const int64_t hd = kv->head_dim, own = hd - a->n_rope, vd = kv->v_dim;
    for (int64_t t = begin; t < end; t++) {
        const float *from = a->heads + (j->seg->tok0 + t) * a->ld_heads, *shared = a->rope + (j->seg->tok0 + t) * a->ld_rope;
        for (int64_t h = 0; h < kv->n_heads_kv; h++, from += own + vd) {
            const int64_t at = oz_kv_at(kv, j->seg, j->seg->pos0 + t, h);
            memcpy(kv->k + at * hd, from, (size_t)own * sizeof *from);
            memcpy(kv->k + at * hd + own, shared, (size_t)a->n_rope * sizeof *from);
            memcpy(kv->v + at * vd, from + own, (size_t)vd * sizeof *from);
        }
    }
}

static void mla_write_seg(oz_dev *d, const oz_kv *kv, const oz_mla_args *a, const oz_seg *s) {
    mla_job j = {kv, s, a};
    oz_cpu_split(d, s->n_tok, 2 * kv->n_heads_kv * kv->head_dim, mla_rows, &j);
}

void oz_cpu_mla_write(oz_dev *d, const oz_kv *kv, const oz_mla_args *a) {
    const oz_batch *b = oz_cpu(d)->batch;
    for (const oz_seg *s = b->segs; s < b->segs + b->n_segs; s++) mla_write_seg(d, kv, a, s);
}

/* ---- absorbed ---- */

/* Each head's product: inputs of a head begin x_step columns after those of the one before, outputs y_step. */
typedef struct heads_job { oz_packed *const *w; oz_rows x; int64_t x_step; float *y; int64_t ld_y, y_step, n_tok; } heads_job;

static oz_gemm_task head_task(const void *arg, int64_t h) {
    const heads_job *j = arg;
    oz_rows x = j->x;
    x.data = (uint8_t *)x.data + h * j->x_step * oz_cpu_form_bytes(x.form);
    return (oz_gemm_task){(const oz_cpu_packed *)j->w[h], NULL, x, j->y + h * j->y_step, j->ld_y, j->n_tok};
}

/* Rows of x as a product takes them: where they lie, or rounded into the room. */
static oz_rows inputs(oz_dev *d, const oz_latent_args *a, const float *x, int64_t ld, int64_t n_tok, int64_t n) {
    if (a->w->form == OZ_FORM_F32) return (oz_rows){OZ_FORM_F32, (float *)(uintptr_t)x, ld, NULL};
    const oz_rows to = {a->w->form, a->room->x.data, n, NULL};
    oz_cpu_quantize(d, &to, x, ld, n_tok, n);
    return to;
}

/* Rows [row0, row0 + n) of the call, which segs cover as rows from 0 on. */
static void absorb(oz_dev *d, const oz_latent_args *a, int64_t row0, int64_t n, const oz_seg *segs, int64_t n_segs) {
    const oz_latent_room *r = a->room;
    const int64_t heads = a->n_heads, rank = a->kv->v_dim, wide = a->kv->head_dim, own = a->head_dim - a->n_rope;
    const float *q = a->q + row0 * a->ld_q;
    const heads_job turned = {a->w->turned, inputs(d, a, q, a->ld_q, n, heads * a->head_dim), a->head_dim, r->wide, heads * wide, wide, n};
    oz_cpu_products(d, heads, head_task, &turned);
    for (int64_t i = 0; i < n * heads; i++)
        memcpy(r->wide + i * wide + rank, q + i / heads * a->ld_q + i % heads * a->head_dim + own, (size_t)a->n_rope * sizeof *q);
    oz_cpu_attend(d, &(oz_attn_args){r->wide, heads * wide, r->out, heads * rank, a->kv, heads, a->scale, a->window, a->softcap}, segs, n_segs);
    const heads_job values = {a->w->values, inputs(d, a, r->out, heads * rank, n, heads * rank), rank, a->out + row0 * a->ld_out, a->ld_out, a->v_dim, n};
    oz_cpu_products(d, heads, head_task, &values);
}

/* ---- expanded ---- */

typedef struct cached_job { const oz_latent_args *a; const oz_seg *seg; int64_t pos0; } cached_job;

static void cached_rows(void *arg, int thread, int64_t begin, int64_t end) {
    const cached_job *j = arg;
    const oz_kv *kv = j->a->kv;
    for (int64_t i = begin; i < end; i++)
        memcpy(j->a->room->rows + i * j->a->room->ld, kv->k + oz_kv_at(kv, j->seg, j->pos0 + i, 0) * kv->head_dim, (size_t)kv->head_dim * sizeof(float));
}

static void expand(oz_dev *d, const oz_latent_args *a, const oz_seg *seg) {
    const oz_latent_room *r = a->room;
    const int64_t len = seg->pos0 + seg->n_tok, rank = a->kv->v_dim;
    const oz_packed *whole = a->w->whole;
    for (int64_t p = 0; p < len; p += r->n_rows) {
        const int64_t n = len - p < r->n_rows ? len - p : r->n_rows;
        cached_job j = {a, seg, p};
        oz_cpu_split(d, n, a->kv->head_dim, cached_rows, &j);
        for (int64_t i = 0, most = r->n_tok * r->x.ld / rank, some; i < n; i += some) { /* as many as the room for inputs takes */
            some = n - i < most ? n - i : most;
            const float *x = r->rows + i * r->ld;
            oz_cpu_linear(d, &(oz_linear_args){&whole, NULL, 1, inputs(d, a, x, r->ld, some, rank), r->heads + i * r->ld, r->ld, some});
        }
        mla_write_seg(d, &r->kv, &(oz_mla_args){r->heads, r->rows + rank, r->ld, r->ld, a->n_rope}, &(oz_seg){0, n, p, r->blocks});
    }
    oz_cpu_attend(d, &(oz_attn_args){a->q, a->ld_q, a->out, a->ld_out, &r->kv, a->n_heads, a->scale, a->window, a->softcap}, &(oz_seg){seg->tok0, seg->n_tok, seg->pos0, r->blocks}, 1);
}

/* Segments that are absorbed go together, n_tok rows at a time. */
void oz_cpu_latent(oz_dev *d, const oz_latent_args *a) {
    enum { MAX_SEGS = 64 };
    const oz_batch *b = oz_cpu(d)->batch;
    oz_seg part[MAX_SEGS];
    int64_t n_part = 0, row0 = 0, n = 0;
    for (int64_t s = 0; s < b->n_segs; s++) {
        const oz_seg *seg = &b->segs[s];
        const bool expands = !oz_cpu(d)->deterministic && oz_latent_expands(a, seg);
        if (expands) expand(d, a, seg);
        for (int64_t t = 0, some; t < seg->n_tok && !expands; t += some) {
            if (n_part == 0) row0 = seg->tok0 + t;
            some = seg->n_tok - t < a->room->n_tok - n ? seg->n_tok - t : a->room->n_tok - n;
            part[n_part++] = (oz_seg){n, some, seg->pos0 + t, seg->blocks};
            n += some;
            if (n < a->room->n_tok && n_part < MAX_SEGS) continue;
            absorb(d, a, row0, n, part, n_part);
            n = n_part = 0;
        }
        if (n_part && (expands || s == b->n_segs - 1)) { /* what follows is no neighbour */
            absorb(d, a, row0, n, part, n_part);
            n = n_part = 0;
        }
    }
}
