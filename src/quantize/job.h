/* A whole checkpoint by calibration text (job.c says how), in parts: the checkpoint under way (job_out.c), sequences (job_pass.c), what modules read (job_modules.c), a layer (job_layer.c). */
#ifndef OZ_QUANTIZE_JOB_H
#define OZ_QUANTIZE_JOB_H
#include "quantize/internal.h"

/* What some modules of a layer read: its Hessian where one of them is quantized by GPTQ, and what is kept of its values where scales are chosen by them. */
typedef struct oz_job_input {
    oz_hessian hessian;
    oz_quantize_item *items[OZ_MAX_PARTS_LINEAR]; int n_items; /* those that are quantized */
    int64_t n_tok;          /* that came */
    bool gptq, sampled;
    oz_sample sample;
    bool cache;             /* not modules: what is kept of keys and values */
    bool covered;           /* an expert's, which takes all tokens */
} oz_job_input;

typedef struct oz_job {
    oz_quantize *q;
    const oz_quantize_text_cfg *cfg;
    oz_pool *pool;
    oz_work work;
    oz_writer *writer;
    oz_stream stream;
    int64_t n_layers, hidden_size, longest; /* layers 0: the text has a say in none; longest sequence, in tokens */
    int64_t layer;                          /* that is at work; */
    int cut, waits, file;                   /* its cut; the one that the sequences wait at (0: before the layer), in one of two files */
    bool on_device;                         /* that calibrates by itself */
    char *slots; size_t slot_bytes;         /* of its memory, a sequence each */
    oz_job_input *inputs;                   /* of the cut */
    size_t n_inputs, cap_inputs;
    bool counting;                          /* tokens are counted, and nothing else; */
    const int32_t *sent; int64_t n_sent;    /* or all are sent to these experts; none: where routers send them */
} oz_job;

/* ---- the checkpoint under way (job_out.c) ---- */
char *oz_job_residual_path(const oz_job *j, int64_t layer, const char *suffix); /* where a layer's inputs wait */
int64_t oz_job_layer_of(const oz_job *j, const oz_quantize_item *it); /* that an item waits for; -1: it is kept, or quantized for itself, and written before them all */
const oz_cache *oz_job_cache_of(const oz_job *j, int64_t layer);    /* or NULL */
oz_status oz_job_digest(char out[65], const oz_job *j, int64_t layer, oz_err *err); /* of what a layer has put into it (-1: of what is kept) */
oz_status oz_job_out_check(const oz_job *j, const char *dir, oz_err *err);          /* all that the manifest speaks of is in `dir`, to the byte */
oz_status oz_job_out_begin(oz_job *j, oz_err *err);                 /* all but the quantized modules; or */
oz_status oz_job_out_take_up(oz_job *j, oz_err *err);               /* what is there, checked */

/* ---- sequences (job_pass.c) ---- */
/* All of them through a part of the layer, from one cut to another; 0: from its inputs, to the next layer's. */
typedef struct oz_job_pass {
    int from, to;
    bool tap;               /* taps are called */
    bool has_out;           /* something comes after it */
    const int32_t *experts; /* NULL, or where tokens are sent (oz_call) */
} oz_job_pass;
oz_status oz_job_slots_fit(oz_job *j, const oz_model *m, oz_err *err);
bool oz_job_waits_at(const oz_job *j, const oz_model *m, int cut); /* do they go on from there, or from where they wait already */
oz_status oz_job_sequences_run(oz_job *j, oz_model *m, const oz_job_pass *p, oz_err *err);

/* ---- modules (job_modules.c) ---- */
oz_dev *oz_job_calib_dev(const oz_job *j);
/* The layer at work. Items that are not made yet stay out of it. */
oz_status oz_job_model_open(oz_model **m, oz_job *j, const oz_ckpt *c, unsigned taps, oz_err *err);
oz_status oz_job_inputs_new(oz_job *j, const oz_model *m, const oz_cut *cut, int64_t kept, bool hessians, oz_err *err);
void oz_job_inputs_free(oz_job *j);
oz_status oz_job_input_quantize(oz_job *j, oz_job_input *in, oz_err *err);
void oz_job_error_note(oz_job *j, double error); /* in the progress line */

/* ---- a layer (job_layer.c) ---- */
oz_status oz_job_layer_run(oz_job *j, int64_t layer, oz_err *err);
oz_status oz_job_layer_replay(oz_job *j, int64_t layer, oz_err *err); /* that is made: all sequences through it */

#endif
