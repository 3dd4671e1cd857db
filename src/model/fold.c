/* Folds: where scales can move inside a layer without a change of what it computes. A norm's output, or some rows of a linear, are divided by scales, and the columns
 * of every linear that reads them are multiplied. It holds where nothing but products with those linears lies between: values pass through attention's weighted sums a
 * head at a time, an up projection through the product with its activated gate. What feeds anything else (a convolution, a scan, a rope, a norm of heads) is not here. */
#include "base/mem.h"
#include "model/internal.h"

typedef enum rows { ROWS_ALL /* the last of the tensor, one a column */, ROWS_HEADS /* the same; heads of queries share those of values */, ROWS_LATENT /* of each head's rows the last */ } rows;
#define R(role) (UINT64_C(1) << OZ_ROLE_##role)
static const struct { oz_slot slot; oz_role role; rows rows; uint64_t readers; } table[] = {
    {OZ_SLOT_ATTN_NORM, OZ_ROLE_NORM, ROWS_ALL, R(ATTN_Q) | R(ATTN_K) | R(ATTN_V) | R(ATTN_QKV) | R(ATTN_Q_A) | R(ATTN_KV_A) | R(SSM_IN)},
    {OZ_SLOT_Q_A_NORM, OZ_ROLE_NORM, ROWS_ALL, R(ATTN_Q_B)},
    {OZ_SLOT_KV_A_NORM, OZ_ROLE_NORM, ROWS_ALL, R(ATTN_KV_B)},
    {OZ_SLOT_SSM_DT_NORM, OZ_ROLE_NORM, ROWS_ALL, R(SSM_DT)},
    {OZ_SLOT_FFN_NORM, OZ_ROLE_NORM, ROWS_ALL, R(FFN_GATE) | R(FFN_UP) | R(FFN_GATE_UP) | R(ROUTER) | R(EXPERT_GATE) | R(EXPERT_UP) | R(SHARED_GATE) | R(SHARED_UP)},
    {OZ_SLOT_V, OZ_ROLE_ATTN_V, ROWS_HEADS, R(ATTN_O)},
    {OZ_SLOT_Q, OZ_ROLE_ATTN_QKV, ROWS_HEADS, R(ATTN_O)},
    {OZ_SLOT_KV_B, OZ_ROLE_ATTN_KV_B, ROWS_LATENT, R(ATTN_O)},
    {OZ_SLOT_UP, OZ_ROLE_FFN_UP, ROWS_ALL, R(FFN_DOWN)},
    {OZ_SLOT_GATE, OZ_ROLE_FFN_GATE_UP, ROWS_ALL, R(FFN_DOWN)},
    {OZ_SLOT_SHARED_UP, OZ_ROLE_SHARED_UP, ROWS_ALL, R(SHARED_DOWN)},
    {OZ_SLOT_EXPERT_UP, OZ_ROLE_EXPERT_UP, ROWS_ALL, R(EXPERT_DOWN)},
};

static void place(oz_fold *f, rows which, const oz_dims *d, const oz_arch_tensor *from, int64_t cols) {
    f->share = which == ROWS_HEADS ? d->n_heads / d->n_heads_kv : 1;
    f->n = f->run = f->row_step = cols / f->share;
    f->row0 = from->rows - f->n;
    if (which == ROWS_HEADS) f->run = f->row_step = d->head_dim;
    if (which == ROWS_LATENT) f->run = d->v_dim, f->row0 = d->head_dim - d->rope_dim, f->row_step = f->row0 + d->v_dim;
}

int64_t oz_fold_row(const oz_fold *f, int64_t k) { return f->row0 + k / f->run * f->row_step + k % f->run; }
int64_t oz_fold_scale(const oz_fold *f, int64_t col) { return col / (f->run * f->share) * f->run + col % f->run; }

/* The tensor i of the list as a row of the table has it: its readers are in [begin, end), the layer's tensors. */
static void fold_add(oz_fold_list *out, size_t *cap, const oz_arch_list *l, size_t i, size_t row, size_t begin, size_t end, const oz_dims *d) {
    const oz_arch_tensor *from = &l->items[i];
    oz_fold f = {.from = i};
    size_t cap_to = 0;
    for (size_t k = begin; k < end; k++) {
        const oz_arch_tensor *t = &l->items[k];
        if (t->is_bias || !(table[row].readers >> t->role & 1) || (from->expert >= 0 && t->expert != from->expert)) continue;
        oz_grow((void **)&f.to, &cap_to, f.n_to + 1, sizeof *f.to);
        f.to[f.n_to++] = k;
    }
    if (!f.n_to) return;
    place(&f, table[row].rows, d, from, l->items[f.to[0]].cols);
    oz_grow((void **)&out->items, cap, out->n + 1, sizeof *out->items);
    out->items[out->n++] = f;
}

oz_status oz_folds_new(oz_fold_list *out, const oz_arch_list *l, const json_t *config, oz_err *err) {
    const oz_arch *arch;
    oz_dims d;
    size_t cap = 0;
    *out = (oz_fold_list){0};
    OZ_TRY(oz_arch_read(&arch, &d, config, err));
    for (size_t begin = 0, end; begin < l->n; begin = end) {
        for (end = begin + 1; end < l->n && l->items[end].layer == l->items[begin].layer;) end++;
        for (size_t i = begin; i < end && l->items[begin].layer >= 0; i++)
            for (size_t r = 0; r < sizeof table / sizeof *table; r++)
                if (!l->items[i].is_bias && (int)table[r].slot == l->items[i].slot && table[r].role == l->items[i].role) fold_add(out, &cap, l, i, r, begin, end, &d);
    }
    return OZ_OK;
}

void oz_folds_free(oz_fold_list *l) {
    for (size_t i = 0; i < l->n; i++) oz_free(l->items[i].to);
    oz_free(l->items);
    *l = (oz_fold_list){0};
}
