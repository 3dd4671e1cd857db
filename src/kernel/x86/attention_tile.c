/* The walk over tiles of query rows and their runs of keys; attention_avx2.c says why it goes so. */
#include <string.h>
#include "kernel/ref/ref.h"
#include "kernel/x86/attention_tile.h"

enum { ROWS = OZ_ATTN_ROWS, RUN = OZ_ATTN_RUN, MAX_DIM = OZ_ATTN_MAX_DIM, STEP = OZ_ATTN_STEP };

static void each_step(oz_attn_tile *t, oz_attn_row_fn *const by[STEP]) {
    for (int row = 0; row < t->n_rows; row += STEP) by[t->n_rows - row < STEP ? t->n_rows - row - 1 : STEP - 1](t, row);
}

/* Rows ascend in position: the first sees least of the end, the last least of the beginning of a window. */
static void run_tile(const oz_attn_level *l, oz_attn_tile *t) {
    int64_t last = t->pos[t->n_rows - 1], first = t->a->window > 0 && t->pos[0] >= t->a->window ? t->pos[0] - t->a->window + 1 : 0;
    for (int r = 0; r < t->n_rows; r++) {
        t->top[r] = -3e38f; /* below any score, and finite: -inf - top is -inf */
        t->sum[r] = 0;
    }
    memset(t->acc, 0, (size_t)(t->n_rows * t->width) * sizeof(float));
    for (t->run0 = first / RUN * RUN; t->run0 <= last; t->run0 += RUN) {
        t->first = first > t->run0 ? (int)(first - t->run0) : 0;
        t->n_keys = last - t->run0 < RUN ? (int)(last - t->run0) + 1 : RUN;
        l->load_run(t);
        each_step(t, l->scores);
        for (int r = 0; r < t->n_rows; r++) l->softmax(t, r);
        each_step(t, l->values);
    }
    for (int r = 0; r < t->n_rows; r++) {
        l->scale(t->acc + r * t->width, t->width, 1.0f / t->sum[r]);
        memcpy(t->out[r], t->acc + r * t->width, (size_t)t->vd * sizeof(float));
    }
}

/* Heads wider than MAX_DIM run the reference: no model that is run here has them. */
void oz_attention_tiles(const oz_attn_level *l, const oz_attn_args *a, const oz_seg *seg, int64_t tok0, int64_t tok1, int64_t kvh0, int64_t kvh1) {
    int64_t group = a->n_heads / a->kv->n_heads_kv, hd = a->kv->head_dim, vd = a->kv->v_dim, n_rows = (tok1 - tok0) * group;
    if (hd > MAX_DIM || vd > MAX_DIM) {
        oz_attention__ref(a, seg, tok0, tok1, kvh0, kvh1);
        return;
    }
    oz_attn_tile t;
    t.a = a, t.seg = seg, t.hd = hd, t.vd = vd, t.width = (vd + l->vec - 1) & -(int64_t)l->vec;
    t.ld_v = t.width == vd ? oz_kv_v_ld(a->kv) : t.width;
    if (t.width != vd) memset(t.v_padded, 0, (size_t)(RUN * t.width) * sizeof(float));
    for (t.kvh = kvh0; t.kvh < kvh1; t.kvh++) {
        for (int64_t row0 = 0; row0 < n_rows; row0 += ROWS) {
            t.n_rows = n_rows - row0 < ROWS ? (int)(n_rows - row0) : ROWS;
            for (int r = 0; r < t.n_rows; r++) {
                int64_t tok = tok0 + (row0 + r) / group, head = t.kvh * group + (row0 + r) % group;
                t.q[r] = a->q + (seg->tok0 + tok) * a->ld_q + head * hd;
                t.out[r] = a->out + (seg->tok0 + tok) * a->ld_out + head * vd;
                t.pos[r] = seg->pos0 + tok;
            }
            run_tile(l, &t);
        }
    }
}
