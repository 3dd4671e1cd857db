/* Calls: checking one, running it through one model or several in lockstep, and the sinks.
 *
 * Logits of a large vocabulary are never kept for a whole text. lm_head runs on the rows asked for in chunks of head_rows, and the
 * sink reduces each chunk where it lies; only statistics (or, for COPY, the rows themselves) leave the device. */
#include <string.h>
#include "base/mem.h"
#include "model/internal.h"

static oz_status call_check(const oz_model *m, const oz_state *s, const oz_call *c, oz_err *err) {
    const oz_dims *d = &m->dims;
    const int64_t end = c->layer_end ? c->layer_end : m->layer_end;
    OZ_NEED(c->n_tok >= 1 && c->n_tok <= m->info.max_tok, err, OZ_E_ARG, "a call takes 1..%lld tokens, found %lld", (long long)m->info.max_tok, (long long)c->n_tok);
    OZ_NEED(c->layer_begin >= m->layer_begin && c->layer_begin < end && end <= m->layer_end, err, OZ_E_ARG, "layers [%lld, %lld): loaded are [%lld, %lld)",
            (long long)c->layer_begin, (long long)end, (long long)m->layer_begin, (long long)m->layer_end);
    const int n_cuts = c->cut_begin || c->cut_end ? oz_model_cut_count(m) : 0;
    OZ_NEED(c->cut_begin <= n_cuts && c->cut_end <= n_cuts && (!c->cut_end || c->cut_begin < c->cut_end), err, OZ_E_ARG, "cuts %d to %d: there are %d", c->cut_begin, c->cut_end, n_cuts);
    OZ_NEED(!c->cut_begin || c->live_in, err, OZ_E_ARG, "a call that goes on from a cut needs what was handed over there");
    OZ_NEED(c->cut_begin || (c->layer_begin == 0 ? c->ids != NULL : c->residual_in != NULL), err, OZ_E_ARG, "a call that begins at layer %lld needs %s", (long long)c->layer_begin,
            c->layer_begin ? "a residual" : "ids");
    for (int64_t i = 0; c->ids && i < c->n_tok; i++)
        OZ_NEED(c->ids[i] >= 0 && c->ids[i] < d->vocab_size, err, OZ_E_ARG, "token id %d: must be 0..%lld", c->ids[i], (long long)d->vocab_size - 1);
    int64_t next = 0;
    for (int64_t i = 0; i < c->n_segs; i++) {
        const oz_seg *g = &c->segs[i];
        OZ_NEED(g->tok0 == next && g->n_tok > 0, err, OZ_E_ARG, "segment %lld begins at row %lld, expected %lld", (long long)i, (long long)g->tok0, (long long)next);
        next += g->n_tok;
        OZ_NEED(g->pos0 >= 0 && g->pos0 + g->n_tok <= m->info.max_len, err, OZ_E_ARG, "positions up to %lld: the model takes %lld (--max-model-len)",
                (long long)(g->pos0 + g->n_tok), (long long)m->info.max_len);
        for (int64_t b = 0; b < (g->pos0 + g->n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK; b++)
            OZ_NEED(g->blocks[b] >= 0 && g->blocks[b] < s->n_blocks, err, OZ_E_ARG, "block %d of segment %lld: must be 0..%lld", g->blocks[b], (long long)i,
                    (long long)s->n_blocks - 1);
    }
    for (int64_t i = 0; i < c->n_segs; i++) {
        const int64_t slot = c->slots ? c->slots[i] : i;
        OZ_NEED(!m->info.slot_bytes || (slot >= 0 && slot < s->n_slots), err, OZ_E_ARG, "slot %lld of segment %lld: must be 0..%lld", (long long)slot, (long long)i, (long long)s->n_slots - 1);
    }
    OZ_NEED(next == c->n_tok, err, OZ_E_ARG, "segments cover %lld of %lld rows", (long long)next, (long long)c->n_tok);
    for (int64_t i = 0; i < c->n_rows; i++)
        OZ_NEED(c->rows[i] >= 0 && c->rows[i] < c->n_tok, err, OZ_E_ARG, "sink row %d of a call of %lld", c->rows[i], (long long)c->n_tok);
    return OZ_OK;
}

static void layers_run(oz_model *m, oz_state *s, const oz_call *c, int index) {
    const size_t n_bytes = (size_t)c->n_tok * (size_t)m->dims.hidden_size * sizeof(float);
    void *residual = m->program.bufs[OZ_BUF_RESIDUAL].data;
    if (c->layer_begin > 0 && !c->cut_begin) (c->on_device ? m->ops->copy : m->ops->upload)(m->dev, residual, c->residual_in, n_bytes);
    const bool all = c->layer_begin == 0 && !c->experts && (!c->layer_end || c->layer_end == m->dims.n_layers);
    const oz_exec x = {{m->dev, &m->program, s->kv, c->n_tok, 0, 0}, c, m->tap_rows, m->tap_ints, m->comm, index};
    if (c->cut_begin || c->cut_end) oz_cuts_run(m, &x);
    else if (!(all && m->lowered && m->ops->lowered_run(m->lowered, s->kv, OZ_STEPS_LAYERS, 0, 0))) oz_exec_steps(&x, 0, m->program.n_layers_end);
    if (c->residual_out) (c->on_device ? m->ops->copy : m->ops->download)(m->dev, c->residual_out, residual, n_bytes);
}

/* Logits of rows [r0, r0 + n) of the call's list, into the model's logits buffer. */
static void head_run(oz_model *m, const oz_call *c, int64_t r0, int64_t n) {
    if (!(m->lowered && m->ops->lowered_run(m->lowered, NULL, OZ_STEPS_HEAD, r0, n)))
        oz_exec_steps(&(oz_exec){{m->dev, &m->program, NULL, c->n_tok, r0, n}, c, NULL, NULL, m->comm, 0}, m->program.n_layers_end, m->program.n);
}

typedef struct chunk { oz_model *const *models; int n_models; const oz_call *call; const oz_sink *sink; int64_t r0, n; } chunk;

static void sink_copy(const chunk *k) {
    oz_model *m = k->models[0];
    const size_t row = (size_t)m->dims.vocab_size * sizeof(float);
    m->ops->download(m->dev, (char *)k->sink->out + (size_t)k->r0 * row, m->program.bufs[OZ_BUF_LOGITS].data, (size_t)k->n * row);
}

static const int32_t *targets(const chunk *k) { return k->sink->targets ? k->sink->targets + k->r0 : NULL; }

static void sink_stat(const chunk *k) {
    oz_model *m = k->models[0];
    const int64_t v = m->dims.vocab_size;
    m->ops->sink_stat(m->dev, (oz_row_stat *)k->sink->out + k->r0, m->program.bufs[OZ_BUF_LOGITS].data, v, targets(k), k->n, v);
}

static void sink_kl(const chunk *k) {
    oz_model *ref = k->models[0];
    const int64_t v = ref->dims.vocab_size;
    for (int i = 1; i < k->n_models; i++) {
        oz_kl_stat *out = (oz_kl_stat *)k->sink->out + (int64_t)(i - 1) * k->call->n_rows + k->r0;
        ref->ops->sink_kl(ref->dev, out, ref->program.bufs[OZ_BUF_LOGITS].data, k->models[i]->program.bufs[OZ_BUF_LOGITS].data, v, targets(k), k->n, v);
    }
}

static void (*const sinks[])(const chunk *) = {[OZ_SINK_COPY] = sink_copy, [OZ_SINK_STAT] = sink_stat, [OZ_SINK_KL] = sink_kl};

oz_status oz_lockstep_run(oz_model *const *models, oz_state *const *states, int n_models, const oz_call *c, const oz_sink *sink, oz_err *err) {
    const bool whole = !models[0]->headless && (!c->layer_end || c->layer_end == models[0]->dims.n_layers);
    OZ_NEED(sink->kind == OZ_SINK_NONE || whole, err, OZ_E_ARG, "a sink needs the last layer and the head");
    OZ_NEED(n_models == 1 || sink->kind == OZ_SINK_KL, err, OZ_E_ARG, "several models in lockstep need the KL sink");
    int64_t step = models[0]->program.head_rows;
    for (int i = 0; i < n_models; i++) {
        OZ_TRY(call_check(models[i], states[i], c, err));
        OZ_NEED(models[i]->dims.vocab_size == models[0]->dims.vocab_size, err, OZ_E_ARG, "vocabularies differ: %lld and %lld",
                (long long)models[0]->dims.vocab_size, (long long)models[i]->dims.vocab_size);
        if (models[i]->program.head_rows < step) step = models[i]->program.head_rows;
    }
    const oz_batch batch = {c->ids, c->n_tok, c->segs, c->n_segs, c->slots, c->rows, c->n_rows};
    for (int i = 0; i < n_models; i++) OZ_TRY(models[i]->ops->begin(models[i]->dev, &batch, err));
    oz_alloc_forbid(true);
    for (int i = 0; i < n_models; i++) layers_run(models[i], states[i], c, i);
    for (int64_t r0 = 0; sink->kind != OZ_SINK_NONE && r0 < c->n_rows; r0 += step) {
        const int64_t n = c->n_rows - r0 < step ? c->n_rows - r0 : step;
        for (int i = 0; i < n_models; i++) head_run(models[i], c, r0, n);
        sinks[sink->kind](&(chunk){models, n_models, c, sink, r0, n});
    }
    oz_alloc_forbid(false);
    oz_status st = OZ_OK;
    for (int i = 0; i < n_models; i++) {
        const oz_status ended = models[i]->ops->end(models[i]->dev, err);
        if (st == OZ_OK) st = ended;
    }
    return st;
}

/* A residual through a model's head: logits of a chunk, into `out`. */
static void head_of(oz_model *m, const float *residual, const chunk *k, void *out) {
    oz_step_buf *logits = &m->program.bufs[OZ_BUF_LOGITS];
    void *const own = logits->data;
    logits->data = out;
    m->ops->upload(m->dev, m->program.bufs[OZ_BUF_RESIDUAL].data, residual, (size_t)(k->call->n_tok * m->dims.hidden_size) * sizeof(float));
    oz_exec_steps(&(oz_exec){{m->dev, &m->program, NULL, k->call->n_tok, k->r0, k->n}, k->call, NULL, NULL, m->comm, 0}, m->program.n_layers_end, m->program.n);
    logits->data = own;
}

/* The first one's logits of a chunk lie in `first`, the others' in m's own buffer. */
static void head_kl_chunk(oz_kl_stat *out, const float *const *residuals, int n, const chunk *k, void *first, const int32_t *wanted) {
    oz_model *m = k->models[1];
    void *const own = m->program.bufs[OZ_BUF_LOGITS].data;
    const int64_t v = m->dims.vocab_size;
    head_of(k->models[0], residuals[0], k, first);
    for (int i = 1; i < n; i++) {
        head_of(m, residuals[i], k, own);
        m->ops->sink_kl(m->dev, out + (int64_t)(i - 1) * k->call->n_rows + k->r0, first, own, v, wanted + k->r0, k->n, v);
    }
}

oz_status oz_head_kl_run(oz_kl_stat *out, oz_model *ref, oz_model *m, const float *const *residuals, int n, const oz_call *c, const int32_t *wanted, oz_err *err) {
    const oz_batch batch = {c->ids, c->n_tok, c->segs, c->n_segs, c->slots, c->rows, c->n_rows};
    const int64_t step = ref->program.head_rows < m->program.head_rows ? ref->program.head_rows : m->program.head_rows;
    oz_model *const models[] = {ref, m};
    void *first;
    OZ_NEED(!ref->headless && !m->headless, err, OZ_E_ARG, "a sink needs the head");
    OZ_NEED(ref->dims.vocab_size == m->dims.vocab_size, err, OZ_E_ARG, "vocabularies differ: %lld and %lld", (long long)ref->dims.vocab_size, (long long)m->dims.vocab_size);
    OZ_TRY(m->ops->mem_new(&first, m->dev, (size_t)(step * m->dims.vocab_size) * sizeof(float), "logits", err));
    oz_status st = m->ops->begin(m->dev, &batch, err);
    for (int64_t r0 = 0; st == OZ_OK && r0 < c->n_rows; r0 += step)
        head_kl_chunk(out, residuals, n, &(chunk){.models = models, .call = c, .r0 = r0, .n = c->n_rows - r0 < step ? c->n_rows - r0 : step}, first, wanted);
    if (st == OZ_OK) st = m->ops->end(m->dev, err);
    m->ops->mem_free(m->dev, first);
    return st;
}

oz_status oz_model_run(oz_model *m, oz_state *s, const oz_call *call, const oz_sink *sink, oz_err *err) {
    static const oz_sink none = {OZ_SINK_NONE, NULL, NULL};
    return oz_lockstep_run(&m, &s, 1, call, sink ? sink : &none, err);
}

static oz_status cache_new(float **out, const oz_model *m, const oz_kv *kv, int64_t dim, int64_t n_blocks, oz_err *err) {
    size_t n_bytes;
    OZ_NEED(oz_mul_size(&n_bytes, (size_t)n_blocks, (size_t)(kv->n_heads_kv * OZ_KV_BLOCK * dim) * sizeof(float)), err, OZ_E_NOMEM, "KV cache of %lld blocks: too large", (long long)n_blocks);
    return m->ops->mem_new((void **)out, m->dev, n_bytes, "KV cache", err);
}

oz_status oz_state_new(oz_state **out, const oz_model *m, int64_t n_blocks, int64_t n_seqs, oz_err *err) {
    const oz_dims *d = &m->dims;
    oz_state *s = oz_alloc(sizeof *s);
    s->model = m, s->n_blocks = n_blocks, s->n_slots = n_seqs;
    s->kv = oz_alloc_array((size_t)d->n_layers, sizeof *s->kv);
    s->n_layers = d->n_layers;
    *out = s;
    oz_status st = n_blocks >= 1 ? OZ_OK : oz_err_set(err, OZ_E_NOMEM, __FILE__, __LINE__, "KV cache of %lld blocks", (long long)n_blocks);
    for (int64_t i = m->layer_begin; st == OZ_OK && i < m->layer_end; i++) {
        oz_kv *kv = &s->kv[i];
        oz_model_kv(kv, m, i);
        if (m->arch->layer(d, i).state == OZ_STATE_SLOT) {
            const size_t channels = (size_t)(n_seqs * d->ssm) * sizeof(float);
            if ((st = m->ops->mem_new((void **)&kv->conv, m->dev, channels * (size_t)(d->ssm_conv - 1) + sizeof(float), "state of scans", err)) == OZ_OK)
                st = m->ops->mem_new((void **)&kv->scan, m->dev, channels * (size_t)d->ssm_state, "state of scans", err);
        } else if ((st = cache_new(&kv->k, m, kv, kv->head_dim, n_blocks, err)) == OZ_OK && !oz_model_latent(m, i))
            st = cache_new(&kv->v, m, kv, kv->v_dim, n_blocks, err);
    }
    if (st != OZ_OK) oz_state_free(out);
    return st;
}

void oz_state_free(oz_state **p) {
    oz_state *s = *p;
    if (!s) return;
    for (int64_t i = 0; i < s->n_layers; i++) {
        s->model->ops->mem_free(s->model->dev, s->kv[i].k);
        s->model->ops->mem_free(s->model->dev, s->kv[i].v);
        s->model->ops->mem_free(s->model->dev, s->kv[i].conv);
        s->model->ops->mem_free(s->model->dev, s->kv[i].scan);
    }
    oz_free(s->kv);
    oz_free(s);
    *p = NULL;
}
