/* Ranks: which rows and columns of a tensor one of several processes holds. It follows from the tensor's role alone: q, k, v and the
 * feed-forward's inputs are cut by rows, what follows them by columns, and the products of those are summed. Heads go by whole KV
 * groups, unevenly where they must; embeddings, norms and the head are held by every rank. */
#include "model/internal.h"

typedef enum cut { CUT_NONE, CUT_ROWS_Q, CUT_ROWS_KV, CUT_COLS_Q, CUT_ROWS_FFN, CUT_COLS_FFN, CUT_REFUSED } cut;
static const cut cut_of_role[OZ_ROLE_COUNT] = {
    [OZ_ROLE_ATTN_Q] = CUT_ROWS_Q,     [OZ_ROLE_ATTN_K] = CUT_ROWS_KV,  [OZ_ROLE_ATTN_V] = CUT_ROWS_KV,    [OZ_ROLE_ATTN_O] = CUT_COLS_Q,
    [OZ_ROLE_FFN_GATE] = CUT_ROWS_FFN, [OZ_ROLE_FFN_UP] = CUT_ROWS_FFN, [OZ_ROLE_FFN_DOWN] = CUT_COLS_FFN,
    [OZ_ROLE_ATTN_QKV] = CUT_REFUSED, [OZ_ROLE_FFN_GATE_UP] = CUT_REFUSED /* rows of several ranges */,
    [OZ_ROLE_ATTN_KV_B] = CUT_REFUSED, [OZ_ROLE_SSM_IN] = CUT_REFUSED};

/* Pieces of a feed-forward that quantization groups do not straddle: the largest power of two up to this that gives every rank one. */
enum { FFN_PIECE = 256 };

static int64_t share(int64_t n, int rank, int size) { return (n * rank + size - 1) / size; } /* where a rank's part begins */

oz_status oz_split_make(oz_split *s, const oz_dims *d, int rank, int size, oz_err *err) {
    OZ_NEED(size == 1 || d->n_experts == 0, err, OZ_E_UNSUPPORTED, "%d ranks: experts are not shared out among ranks yet", size);
    const int64_t kv = d->n_heads_kv, group = d->n_heads / kv;
    *s = (oz_split){.rank = rank, .size = size, .head_dim = d->head_dim, .kv_all = kv};
    if (size <= kv) {
        s->kv0 = share(kv, rank, size), s->n_kv = share(kv, rank + 1, size) - s->kv0;
        s->q0 = s->kv0 * group, s->n_q = s->n_kv * group;
    } else { /* more ranks than KV heads: a group's queries are shared out, its keys and values held by each */
        const int64_t copies = size / kv;
        OZ_NEED(size % kv == 0 && group % copies == 0, err, OZ_E_UNSUPPORTED, "%d ranks: %lld query and %lld KV heads cannot be shared out among them", size, (long long)d->n_heads, (long long)kv);
        s->kv0 = rank / copies, s->n_kv = 1;
        s->n_q = group / copies, s->q0 = rank * s->n_q;
    }
    int64_t piece = FFN_PIECE;
    while (piece > 1 && (d->intermediate_size % piece != 0 || d->intermediate_size / piece < size)) piece /= 2;
    const int64_t pieces = d->intermediate_size / piece;
    OZ_NEED(pieces >= size, err, OZ_E_UNSUPPORTED, "%d ranks: intermediate_size %lld cannot be cut", size, (long long)d->intermediate_size);
    s->ffn0 = share(pieces, rank, size) * piece, s->n_ffn = share(pieces, rank + 1, size) * piece - s->ffn0;
    return OZ_OK;
}

void oz_split_dims(oz_dims *d, const oz_split *s) {
    d->n_heads_kv = s->n_kv, d->n_heads = s->n_q, d->intermediate_size = s->n_ffn;
}

oz_status oz_split_check(const oz_split *s, const oz_arch_list *l, oz_err *err) {
    for (size_t i = 0; s->size > 1 && i < l->n; i++)
        OZ_NEED(cut_of_role[l->items[i].role] != CUT_REFUSED, err, OZ_E_UNSUPPORTED, "%s: holds several projections, which %d ranks cannot share yet", l->items[i].name, s->size);
    return OZ_OK;
}

oz_part_of oz_split_part(const oz_split *s, const oz_arch_tensor *t) {
    const int64_t h = s->head_dim;
    oz_part_of p = {0, t->rows, 0, t->cols, false};
    const cut c = s->size > 1 ? cut_of_role[t->role] : CUT_NONE;
    const struct { int64_t begin, n; } range[] = {[CUT_ROWS_Q] = {s->q0 * h, s->n_q * h},   [CUT_COLS_Q] = {s->q0 * h, s->n_q * h},
                                                  [CUT_ROWS_KV] = {s->kv0 * h, s->n_kv * h}, [CUT_ROWS_FFN] = {s->ffn0, s->n_ffn},
                                                  [CUT_COLS_FFN] = {s->ffn0, s->n_ffn}};
    p.sums = c == CUT_COLS_Q || c == CUT_COLS_FFN;
    if (c == CUT_NONE || (p.sums && t->is_bias)) return p;
    if (p.sums) p.col0 = range[c].begin, p.n_cols = range[c].n;
    else p.row0 = range[c].begin, p.n_rows = range[c].n;
    return p;
}
