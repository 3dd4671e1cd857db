/* What latent attention (MLA) keeps of a token: its latent and the part of its keys that turns, or the keys and values of all heads made of it.
 *
 * A layer keeps latents where kv_b is stored as plain floats. Attention over latents multiplies with kv_b's rows of one head at a time, its keys' rows
 * turned: a second packed copy of a matrix that is 0.4 % of DeepSeek-V2, which no layout of one copy would serve. A quantized kv_b has scales along
 * its rows that turning would break up, and its inputs may be quantized, too: it runs as any linear does, once for each token, and what it gives is kept. */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "model/internal.h"

enum { ROOM_TOK = 64 /* rows that are absorbed at a time */ };

/* dtype: of what is stored. */
static bool keeps_latent(const oz_scheme *s, oz_dtype dtype) {
    return !s->unknown && !s->quantized && s->act == OZ_ACT_NONE && (dtype == OZ_DTYPE_F32 || dtype == OZ_DTYPE_F16 || dtype == OZ_DTYPE_BF16);
}

/* The keys' rows of head h, turned: [rank, nope], in the type that they are stored in. */
static oz_status turned_pack(oz_packed **out, const oz_model *m, const oz_weight *w, int64_t row0, int64_t nope, oz_form form, oz_err *err) {
    const size_t size = (size_t)(w->row_bytes / w->cols);
    char *codes;
    OZ_TRY(oz_big_new((void **)&codes, (size_t)(w->cols * nope) * size, "keys of a head, turned", err));
    for (int64_t n = 0; n < nope; n++) {
        const char *row = (const char *)w->codes + oz_weight_stored_row(w, row0 + n) * w->row_bytes;
        for (int64_t c = 0; c < w->cols; c++) memcpy(codes + (size_t)(c * nope + n) * size, row + (size_t)c * size, size);
    }
    const oz_weight turned = {.codec = w->codec, .rows = w->cols, .cols = nope, .codes = codes, .row_bytes = nope * (int64_t)size, .group_size = nope};
    const oz_status st = m->ops->pack(out, m->dev, &turned, 0, w->cols, form, err);
    oz_big_free(codes);
    return st;
}

oz_status oz_latent_load(oz_model *m, int layer, const oz_weight *w, const oz_scheme *scheme, const oz_linear *l, oz_err *err) {
    const oz_dims *d = &m->dims;
    const int64_t nope = d->head_dim - d->rope_dim, each = nope + d->v_dim;
    if (!keeps_latent(scheme, oz_codec_get(w->codec)->dtype) || !m->ops->latent) return OZ_OK;
    if (!m->latents) m->latents = oz_alloc_array((size_t)d->n_layers, sizeof *m->latents);
    oz_latent *t = &m->latents[layer];
    t->turned = oz_alloc_array((size_t)d->n_heads, sizeof(oz_packed *)), t->values = oz_alloc_array((size_t)d->n_heads, sizeof(oz_packed *));
    t->whole = l->packed, t->form = l->form;
    for (int64_t h = 0; h < d->n_heads; h++) {
        OZ_TRY(turned_pack(&t->turned[h], m, w, h * each, nope, l->form, err));
        OZ_TRY(m->ops->pack(&t->values[h], m->dev, w, h * each + nope, d->v_dim, l->form, err));
        m->info.weight_bytes += oz_packed_bytes(t->turned[h]) + oz_packed_bytes(t->values[h]);
    }
    return OZ_OK;
}

const oz_latent *oz_model_latent(const oz_model *m, int64_t layer) { return m->latents && m->latents[layer].turned ? &m->latents[layer] : NULL; }

void oz_model_kv(oz_kv *kv, const oz_model *m, int64_t layer) {
    const oz_dims *d = &m->dims;
    *kv = (oz_kv){.n_heads_kv = d->n_heads_kv, .head_dim = d->head_dim, .v_dim = d->v_dim};
    if (oz_model_latent(m, layer)) *kv = (oz_kv){.n_heads_kv = 1, .head_dim = d->kv_rank + d->rope_dim, .v_dim = d->kv_rank};
}

/* Room for expanding: as much of a sequence as the device gives room for, at most all that the model takes. */
static oz_status expanded_new(oz_model *m, oz_err *err) {
    const oz_dims *d = &m->dims;
    oz_latent_room *r = &m->program.latent;
    const size_t k_bytes = (size_t)(d->n_heads * d->head_dim * OZ_KV_BLOCK) * sizeof(float), v_bytes = (size_t)(d->n_heads * d->v_dim * OZ_KV_BLOCK) * sizeof(float);
    int64_t n = (m->info.max_len + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK;
    if ((size_t)n > m->ops->latent_room / (k_bytes + v_bytes)) n = (int64_t)(m->ops->latent_room / (k_bytes + v_bytes));
    if (n == 0) return OZ_OK;
    r->kv = (oz_kv){.n_heads_kv = d->n_heads, .head_dim = d->head_dim, .v_dim = d->v_dim};
    r->max_len = n * OZ_KV_BLOCK;
    r->blocks = oz_alloc_array((size_t)n, sizeof *r->blocks);
    for (int64_t i = 0; i < n; i++) r->blocks[i] = (int32_t)i;
    m->info.workspace_bytes += (size_t)n * (k_bytes + v_bytes);
    OZ_TRY(m->ops->mem_new((void **)&r->kv.k, m->dev, (size_t)n * k_bytes, "workspace", err));
    return m->ops->mem_new((void **)&r->kv.v, m->dev, (size_t)n * v_bytes, "workspace", err);
}

/* rows and heads are columns of the mixer's buffer, which nothing else needs once the latents of a call are in the cache. */
oz_status oz_latent_room_new(oz_model *m, oz_err *err) {
    const oz_dims *d = &m->dims;
    oz_latent_room *r = &m->program.latent;
    const oz_step_buf *mixer = &m->program.bufs[OZ_BUF_MIXER];
    if (!m->latents) return OZ_OK;
    const int64_t widest = d->head_dim > d->kv_rank ? d->head_dim : d->kv_rank;
    r->n_tok = m->info.max_tok < ROOM_TOK ? m->info.max_tok : ROOM_TOK;
    r->n_rows = m->info.max_tok, r->ld = mixer->width;
    r->rows = (float *)mixer->data + d->q_rank, r->heads = r->rows + d->kv_rank + d->rope_dim;
    const struct { void **out; int64_t each; } want[] = {{(void **)&r->wide, (d->kv_rank + d->rope_dim) * (int64_t)sizeof(float)}, {(void **)&r->out, d->kv_rank * (int64_t)sizeof(float)},
                                                         {&r->x.data, m->plain_form == OZ_FORM_F32 ? 0 : widest * m->ops->form_bytes(m->plain_form)}};
    r->x.form = m->plain_form, r->x.ld = d->n_heads * widest;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const size_t n_bytes = (size_t)(r->n_tok * d->n_heads * want[i].each);
        if (!n_bytes) continue;
        m->info.workspace_bytes += n_bytes;
        OZ_TRY(m->ops->mem_new(want[i].out, m->dev, n_bytes, "workspace", err));
    }
    return expanded_new(m, err);
}

void oz_latents_free(oz_model *m) {
    const oz_latent_room *r = &m->program.latent;
    for (int64_t i = 0; m->latents && i < m->dims.n_layers; i++) {
        const oz_latent *t = &m->latents[i];
        for (int64_t h = 0; t->turned && h < m->dims.n_heads; h++) {
            if (t->turned[h]) m->ops->packed_free(m->dev, &t->turned[h]);
            if (t->values[h]) m->ops->packed_free(m->dev, &t->values[h]);
        }
        oz_free(t->turned), oz_free(t->values);
    }
    void *const owned[] = {r->wide, r->out, r->x.data, r->kv.k, r->kv.v};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) m->ops->mem_free(m->dev, owned[i]);
    oz_free(r->blocks);
    oz_free(m->latents);
}

/* ---- sizes, without a device ---- */

oz_status oz_kv_size_of(oz_kv_size *out, const oz_ckpt *c, const oz_findings *f, oz_err *err) {
    const oz_arch *arch;
    oz_dims d;
    oz_arch_list list;
    *out = (oz_kv_size){0};
    OZ_TRY(oz_arch_read(&arch, &d, oz_ckpt_config(c), err));
    OZ_TRY(oz_arch_list_new(&list, oz_ckpt_config(c), c, err));
    oz_scheme *schemes = oz_alloc_array(list.n + 1, sizeof *schemes);
    const oz_status st = oz_schemes_resolve(schemes, c, &list, f, err);
    const int64_t latent = (d.kv_rank + d.rope_dim) * (int64_t)sizeof(float), expanded = d.n_heads_kv * (d.head_dim + d.v_dim) * (int64_t)sizeof(float);
    out->slot_bytes = oz_slot_values(arch, &d) * (int64_t)sizeof(float);
    for (int64_t i = 0; i < d.n_layers; i++) {
        const oz_layer_kind k = arch->layer(&d, i);
        if (k.state == OZ_STATE_KV && k.mixer != OZ_MIXER_MLA) out->bytes_tok += expanded, out->latent_bytes_tok += expanded, out->expanded_bytes_tok += expanded;
    }
    for (size_t i = 0; st == OZ_OK && i < list.n; i++) {
        if (list.items[i].role != OZ_ROLE_ATTN_KV_B) continue;
        const oz_tensor *stored = oz_ckpt_find(c, list.items[i].name);
        const bool keeps = keeps_latent(&schemes[i], stored ? stored->dtype : OZ_DTYPE_BF16);
        out->n_latent++;
        out->expanded_bytes_tok += expanded, out->latent_bytes_tok += latent, out->bytes_tok += keeps ? latent : expanded;
        if (!keeps && !out->n_expanded++) snprintf(out->expanded, sizeof out->expanded, "%s (scheme %s)", list.items[i].module, schemes[i].name);
    }
    oz_free(schemes);
    oz_arch_list_deinit(&list);
    return st;
}
