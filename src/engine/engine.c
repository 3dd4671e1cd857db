/* Sequences, blocks and the batch of a step. All room is taken in oz_engine_new; a step only fills it. */
#include "engine/engine.h"
#include <math.h>
#include <string.h>
#include "base/mem.h"

typedef enum seq_state { SEQ_FREE, SEQ_LIVE } seq_state;
typedef struct seq {
    seq_state state;
    int64_t id, order;          /* order of arrival */
    int32_t *prompt;
    int64_t n_prompt, n_done;   /* tokens whose KV is written */
    int64_t n_new, max_new;
    int32_t last;               /* the token to feed when decoding */
    int32_t *blocks;
    int64_t n_blocks;
    oz_rng rng;
    oz_sampling sampling;
    int32_t stop_ids[OZ_MAX_STOP_IDS];
    int n_stop_ids;
} seq;

struct oz_engine {
    oz_model *model;
    oz_state *state;
    oz_sampler *sampler;
    seq *seqs;
    int64_t max_seqs, next_id;
    int32_t *free_blocks;       /* a stack */
    int64_t n_free, n_blocks;
    seq **order;                /* live sequences by arrival, [max_seqs] */
    int32_t *ids, *rows;        /* [max_tok], [max_tok] */
    oz_seg *segs;               /* [max_seqs] */
    int32_t *slots;             /* [max_seqs]: of a segment's sequence, its number in seqs */
    seq **row_seq;              /* whose row it is */
    float *logits;              /* host [max_rows, vocab], for sampling */
    oz_row_stat *stats;
    int64_t max_rows;
};

static int64_t blocks_for(int64_t n_tok) { return (n_tok + OZ_KV_BLOCK - 1) / OZ_KV_BLOCK; }

static oz_status rooms_new(oz_engine *e, oz_err *err) {
    const oz_model_info *f = oz_model_get(e->model);
    OZ_TRY(oz_state_new(&e->state, e->model, e->n_blocks, e->max_seqs, err));
    OZ_TRY(oz_sampler_new(&e->sampler, f->vocab_size, err));
    OZ_TRY(oz_big_new((void **)&e->logits, (size_t)e->max_rows * (size_t)f->vocab_size * sizeof(float), "logits of a step", err));
    return oz_big_new((void **)&e->stats, (size_t)e->max_rows * sizeof *e->stats, "statistics of a step", err);
}

oz_status oz_engine_new(oz_engine **out, oz_model *m, const oz_engine_cfg *cfg, oz_err *err) {
    const oz_model_info *f = oz_model_get(m);
    OZ_NEED(cfg->max_seqs >= 1 && cfg->max_seqs <= 65536, err, OZ_E_ARG, "sequences: must be 1..65536, found %lld", (long long)cfg->max_seqs);
    OZ_NEED(cfg->kv_tok >= 1 && cfg->kv_tok <= (int64_t)1 << 34, err, OZ_E_ARG, "KV room: must be 1..2^34 tokens, found %lld", (long long)cfg->kv_tok);
    oz_engine *e = *out = oz_alloc(sizeof *e);
    e->model = m;
    e->max_seqs = cfg->max_seqs;
    e->max_rows = cfg->max_seqs < f->max_tok ? cfg->max_seqs : f->max_tok;
    e->n_blocks = e->n_free = blocks_for(cfg->kv_tok) + cfg->max_seqs - 1; /* each sequence may waste the tail of a block */
    e->seqs = oz_alloc_array((size_t)e->max_seqs, sizeof *e->seqs);
    e->order = oz_alloc_array((size_t)e->max_seqs, sizeof(seq *));
    e->segs = oz_alloc_array((size_t)e->max_seqs, sizeof *e->segs);
    e->slots = oz_alloc_array((size_t)e->max_seqs, sizeof *e->slots);
    e->row_seq = oz_alloc_array((size_t)e->max_rows, sizeof(seq *));
    e->ids = oz_alloc_array((size_t)f->max_tok, sizeof *e->ids);
    e->rows = oz_alloc_array((size_t)e->max_rows, sizeof *e->rows);
    e->free_blocks = oz_alloc_array((size_t)e->n_blocks, sizeof *e->free_blocks);
    for (int64_t i = 0; i < e->n_blocks; i++) e->free_blocks[i] = (int32_t)(e->n_blocks - 1 - i);
    oz_status st = rooms_new(e, err);
    if (st != OZ_OK) oz_engine_free(out);
    return st;
}

static void seq_release(oz_engine *e, seq *s) {
    for (int64_t i = 0; i < s->n_blocks; i++) e->free_blocks[e->n_free++] = s->blocks[i];
    oz_free(s->blocks);
    oz_free(s->prompt);
    *s = (seq){.state = SEQ_FREE};
}

void oz_engine_free(oz_engine **p) {
    oz_engine *e = *p;
    if (!e) return;
    for (int64_t i = 0; i < e->max_seqs; i++)
        if (e->seqs[i].state != SEQ_FREE) seq_release(e, &e->seqs[i]);
    oz_state_free(&e->state);
    oz_sampler_free(&e->sampler);
    oz_big_free(e->logits);
    oz_big_free(e->stats);
    void *const owned[] = {e->seqs, e->order, e->segs, e->slots, e->row_seq, e->ids, e->rows, e->free_blocks};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) oz_free(owned[i]);
    oz_free(e);
    *p = NULL;
}

oz_status oz_engine_add(int64_t *id, oz_engine *e, const oz_request *r, oz_err *err) {
    const oz_model_info *f = oz_model_get(e->model);
    OZ_NEED(r->n_prompt >= 1, err, OZ_E_ARG, "an empty prompt: at least one token is needed");
    OZ_NEED(r->max_new_tok >= 1, err, OZ_E_ARG, "new tokens: at least 1, found %lld", (long long)r->max_new_tok);
    OZ_NEED(r->n_stop_ids <= OZ_MAX_STOP_IDS, err, OZ_E_ARG, "at most %d stop ids, found %d", OZ_MAX_STOP_IDS, r->n_stop_ids);
    for (int64_t i = 0; i < r->n_prompt; i++)
        OZ_NEED(r->prompt[i] >= 0 && r->prompt[i] < f->vocab_size, err, OZ_E_ARG, "token id %d: must be 0..%lld", r->prompt[i], (long long)f->vocab_size - 1);
    OZ_NEED(r->n_prompt <= f->max_len && r->max_new_tok <= f->max_len - r->n_prompt, err, OZ_E_ARG,
            "prompt of %lld tokens and %lld new ones: the model takes %lld (--max-model-len)", (long long)r->n_prompt, (long long)r->max_new_tok, (long long)f->max_len);
    const int64_t n_blocks = blocks_for(r->n_prompt + r->max_new_tok);
    OZ_NEED(n_blocks <= e->n_free, err, OZ_E_ARG, "KV room for %lld tokens is needed, %lld are free", (long long)n_blocks * OZ_KV_BLOCK, (long long)e->n_free * OZ_KV_BLOCK);
    int64_t i = 0;
    while (i < e->max_seqs && e->seqs[i].state != SEQ_FREE) i++;
    OZ_NEED(i < e->max_seqs, err, OZ_E_ARG, "all %lld sequences are taken", (long long)e->max_seqs);
    seq *s = &e->seqs[i];
    *s = (seq){.state = SEQ_LIVE, .id = e->next_id, .order = e->next_id, .n_prompt = r->n_prompt, .max_new = r->max_new_tok, .n_blocks = n_blocks,
               .sampling = r->sampling, .n_stop_ids = r->n_stop_ids};
    *id = e->next_id++;
    s->prompt = oz_alloc_array((size_t)r->n_prompt, sizeof *s->prompt);
    memcpy(s->prompt, r->prompt, (size_t)r->n_prompt * sizeof *s->prompt);
    if (r->n_stop_ids) memcpy(s->stop_ids, r->stop_ids, (size_t)r->n_stop_ids * sizeof *s->stop_ids);
    s->blocks = oz_alloc_array((size_t)n_blocks, sizeof *s->blocks);
    for (int64_t b = 0; b < n_blocks; b++) s->blocks[b] = e->free_blocks[--e->n_free];
    oz_rng_init(&s->rng, r->sampling.seed);
    return OZ_OK;
}

void oz_engine_cancel(oz_engine *e, int64_t id) {
    for (int64_t i = 0; i < e->max_seqs; i++)
        if (e->seqs[i].state != SEQ_FREE && e->seqs[i].id == id) seq_release(e, &e->seqs[i]);
}

/* Live sequences into e->order, by arrival (insertion sort: the array is nearly sorted). Returns how many. */
static int64_t order_fill(oz_engine *e) {
    int64_t n = 0;
    for (int64_t i = 0; i < e->max_seqs; i++) {
        if (e->seqs[i].state == SEQ_FREE) continue;
        int64_t k = n++;
        for (; k > 0 && e->order[k - 1]->order > e->seqs[i].order; k--) e->order[k] = e->order[k - 1];
        e->order[k] = &e->seqs[i];
    }
    return n;
}

typedef struct batch { int64_t n_tok, n_segs, n_rows; bool greedy; } batch;

static void batch_put(oz_engine *e, batch *b, seq *s, const int32_t *ids, int64_t n, bool last) {
    e->slots[b->n_segs] = (int32_t)(s - e->seqs);
    e->segs[b->n_segs++] = (oz_seg){b->n_tok, n, s->n_done, s->blocks};
    memcpy(e->ids + b->n_tok, ids, (size_t)n * sizeof *ids);
    b->n_tok += n;
    s->n_done += n;
    if (!last) return;
    e->rows[b->n_rows] = (int32_t)(b->n_tok - 1);
    e->row_seq[b->n_rows++] = s;
    b->greedy &= s->sampling.temperature <= 0.0;
}

/* Running sequences first: one token each; then prompts, as far as the call's rows reach. */
static batch batch_fill(oz_engine *e, int64_t n_live) {
    const int64_t room = oz_model_get(e->model)->max_tok;
    batch b = {.greedy = true};
    for (int64_t i = 0; i < n_live; i++) {
        seq *s = e->order[i];
        if (s->n_done >= s->n_prompt && b.n_tok < room && b.n_rows < e->max_rows) batch_put(e, &b, s, &s->last, 1, true);
    }
    for (int64_t i = 0; i < n_live; i++) {
        seq *s = e->order[i];
        int64_t n = s->n_prompt - s->n_done;
        if (s->n_new > 0 || n <= 0 || b.n_tok >= room || b.n_rows >= e->max_rows) continue;
        if (n > room - b.n_tok) n = room - b.n_tok;
        batch_put(e, &b, s, s->prompt + s->n_done, n, s->n_done + n == s->n_prompt);
    }
    return b;
}

static oz_status token_take(oz_engine *e, const batch *b, int64_t row, oz_engine_fn *fn, void *arg, oz_err *err) {
    seq *s = e->row_seq[row];
    const int64_t vocab = oz_model_get(e->model)->vocab_size;
    const float *logits = e->logits + row * vocab;
    if (b->greedy) OZ_NEED(isfinite(e->stats[row].lse), err, OZ_E_FORMAT, "logits are not finite at position %lld", (long long)s->n_done - 1);
    else
        for (int64_t i = 0; i < vocab; i++)
            OZ_NEED(isfinite(logits[i]), err, OZ_E_FORMAT, "logits are not finite at position %lld", (long long)s->n_done - 1);
    s->last = b->greedy ? e->stats[row].argmax : oz_sampler_draw(e->sampler, &s->rng, &s->sampling, logits);
    s->n_new++;
    oz_finish finish = s->n_new == s->max_new ? OZ_FINISH_LENGTH : OZ_FINISH_NONE;
    for (int i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == s->last) finish = OZ_FINISH_STOP;
    const int64_t id = s->id;
    const int32_t token = s->last;
    if (finish != OZ_FINISH_NONE) seq_release(e, s);
    fn(arg, id, token, finish);
    return OZ_OK;
}

oz_status oz_engine_step(int64_t *n_active, oz_engine *e, oz_engine_fn *fn, void *arg, oz_err *err) {
    const int64_t n_live = order_fill(e);
    *n_active = 0;
    if (n_live == 0) return OZ_OK;
    const batch b = batch_fill(e, n_live);
    const oz_call call = {.ids = e->ids, .n_tok = b.n_tok, .segs = e->segs, .n_segs = b.n_segs, .slots = e->slots, .rows = e->rows, .n_rows = b.n_rows};
    const oz_sink sink = b.n_rows == 0 ? (oz_sink){OZ_SINK_NONE, NULL, NULL}
                         : b.greedy   ? (oz_sink){OZ_SINK_STAT, e->stats, NULL}
                                      : (oz_sink){OZ_SINK_COPY, e->logits, NULL};
    OZ_TRY(oz_model_run(e->model, e->state, &call, &sink, err));
    for (int64_t i = 0; i < b.n_rows; i++) OZ_TRY(token_take(e, &b, i, fn, arg, err));
    for (int64_t i = 0; i < e->max_seqs; i++) *n_active += e->seqs[i].state != SEQ_FREE;
    return OZ_OK;
}
