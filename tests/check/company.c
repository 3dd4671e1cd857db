/* A real model on a device in deterministic mode: eight greedy continuations together, and each alone, must be the same tokens.
 *   check --device cuda --model DIR */
#include "device.h"
#include "engine/engine.h"
#include "model/model.h"

enum { N_SEQ = 8, N_NEW = 48, MAX_PROMPT = 60 };
typedef struct got { int32_t ids[N_SEQ][N_NEW]; int n[N_SEQ]; } got;

static void keep(void *arg, int64_t id, int32_t token, oz_finish finish) {
    got *g = arg;
    g->ids[id][g->n[id]++] = token;
}

/* Continuations of prompts [first, first + n). */
static oz_status continue_all(got *g, oz_model *m, int first, int n, oz_err *err) {
    oz_engine *e = NULL;
    const int64_t vocab = oz_model_get(m)->vocab_size;
    memset(g, 0, sizeof *g);
    oz_status st = oz_engine_new(&e, m, &(oz_engine_cfg){N_SEQ, N_SEQ * 256}, err);
    for (int s = first; st == OZ_OK && s < first + n; s++) {
        int32_t prompt[MAX_PROMPT];
        int64_t id;
        const int len = 3 + 8 * s;
        for (int i = 0; i < len && i < MAX_PROMPT; i++) prompt[i] = (int32_t)(((int64_t)s * 7919 + (int64_t)i * 613 + 11) % (vocab < 20000 ? vocab : 20000));
        st = oz_engine_add(&id, e, &(oz_request){.prompt = prompt, .n_prompt = len, .max_new_tok = N_NEW, .sampling = {.temperature = 0, .top_p = 1}}, err);
    }
    for (int64_t active = 1; st == OZ_OK && active > 0;) st = oz_engine_step(&active, e, keep, g, err);
    oz_engine_free(&e);
    return st;
}

int ck_company(const char *name, const char *path, oz_err *err) {
    static const char *const dtypes[] = {"auto", "f32"};
    oz_dev *dev = NULL;
    oz_ckpt *ckpt = NULL;
    int n_red = 0;
    oz_status st = oz_dev_open(&dev, &(oz_dev_cfg){name, 1, "auto", true}, err);
    if (st == OZ_OK) st = oz_ckpt_open(&ckpt, path, err);
    for (int d = 0; st == OZ_OK && d < 2; d++) {
        oz_model *m = NULL;
        got together, alone;
        int same = 0;
        st = oz_model_open(&m, dev, ckpt, &(oz_model_cfg){.dtype = dtypes[d]}, err);
        if (st == OZ_OK) st = continue_all(&together, m, 0, N_SEQ, err);
        for (int s = 0; st == OZ_OK && s < N_SEQ; s++) {
            st = continue_all(&alone, m, s, 1, err);
            same += memcmp(alone.ids[0], together.ids[s], sizeof alone.ids[0]) == 0;
        }
        if (st == OZ_OK) printf("%-4s %s --dtype %s --deterministic: %d of %d continuations of %d tokens are the same alone and together\n", same == N_SEQ ? "ok" : "FAIL", path, dtypes[d], same, N_SEQ, N_NEW);
        n_red += same != N_SEQ;
        oz_model_close(&m);
    }
    oz_ckpt_close(&ckpt);
    oz_dev_close(&dev);
    return st == OZ_OK ? n_red : -1;
}
