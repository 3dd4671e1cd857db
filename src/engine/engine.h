/* The engine: sequences of token ids through one model. It owns the state's blocks, builds a batch a step (one token of every running
 * sequence, then prompts in chunks, first come first served), samples, and hands tokens out. It speaks ids, never text.
 * A sequence's blocks are reserved when it is admitted, so a running sequence never waits for memory. A step allocates nothing. */
#ifndef OZ_ENGINE_ENGINE_H
#define OZ_ENGINE_ENGINE_H
#include <stdbool.h>
#include <stdint.h>
#include "base/clock.h"
#include "base/err.h"
#include "model/model.h"

/* temperature 0 is greedy, ties to the lowest id. top_k 0, top_p 1, min_p 0: off. In transformers' order: temperature, top_k,
 * top_p, min_p. */
typedef struct oz_sampling { double temperature, top_p, min_p; int64_t top_k; uint64_t seed; } oz_sampling;

/* Room for draws from `vocab` logits, so that a draw allocates nothing. */
typedef struct oz_sampler oz_sampler;
oz_status oz_sampler_new(oz_sampler **out, int64_t vocab, oz_err *err);
void oz_sampler_free(oz_sampler **s);
int32_t oz_sampler_draw(oz_sampler *s, oz_rng *rng, const oz_sampling *p, const float *logits);

typedef enum oz_finish { OZ_FINISH_NONE, OZ_FINISH_STOP, OZ_FINISH_LENGTH } oz_finish;
enum { OZ_MAX_STOP_IDS = 16 };

typedef struct oz_request {
    const int32_t *prompt; int64_t n_prompt; /* copied */
    int64_t max_new_tok;
    oz_sampling sampling;
    const int32_t *stop_ids; int n_stop_ids; /* copied; a stop id is handed out and ends the sequence */
} oz_request;

typedef struct oz_engine oz_engine;
typedef struct oz_engine_cfg { int64_t max_seqs; int64_t kv_tok; /* KV room of all sequences together, in tokens */ } oz_engine_cfg;
oz_status oz_engine_new(oz_engine **out, oz_model *m, const oz_engine_cfg *cfg, oz_err *err);
void oz_engine_free(oz_engine **e);
/* Queues a request; *id (0 .. ) names it in callbacks. OZ_E_ARG with the two numbers if prompt + max_new_tok exceeds the model's length or the
 * KV room; at most max_seqs requests may be queued or running. */
oz_status oz_engine_add(int64_t *id, oz_engine *e, const oz_request *r, oz_err *err);
void oz_engine_cancel(oz_engine *e, int64_t id);
typedef void oz_engine_fn(void *arg, int64_t id, int32_t token, oz_finish finish);
/* One step. *n_active: sequences still queued or running afterwards. */
oz_status oz_engine_step(int64_t *n_active, oz_engine *e, oz_engine_fn *fn, void *arg, oz_err *err);

#endif
