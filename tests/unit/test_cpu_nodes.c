/* Where packed weights lie on a machine with several memory nodes: each panel is read on the node that packed it, and nothing else of it lies there. Nodes are
 * made up: threads are bound to what processors there are, and what counts is which thread touches what. Results are the bits of one thread. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/cpu.h"
#include "kernel/step.h"
#include "model/model.h"

enum { MAX_TOUCHES = 1 << 16, HUGE_PAGE = 2 << 20, MAX_PARTS = 3, COLS = 512, MAX_TOK = 20 };

/* ---- a device on nodes of our own ---- */

static oz_dev *dev_new(int threads, int n_nodes) {
    oz_err e = {0};
    oz_dev *d;
    if (oz_dev_open(&d, &(oz_dev_cfg){.name = "cpu", .threads = threads, .cpu_level = "auto", .deterministic = true}, &e) != OZ_OK) fail_msg("%s", e.msg);
    oz_pool_free(&oz_cpu(d)->pool);
    oz_cpu(d)->pool = oz_pool_new(threads);
    cpu_set_t may;
    sched_getaffinity(0, sizeof may, &may);
    oz_nodes *nodes = oz_alloc(sizeof *nodes);
    for (size_t cpu = 0; nodes->n < n_nodes; cpu = (cpu + 1) % CPU_SETSIZE)
        if (CPU_ISSET(cpu, &may)) CPU_SET(cpu, &nodes->cpus[nodes->n++]);
    oz_pool_bind(oz_cpu(d)->pool, nodes);
    oz_free(nodes);
    assert_int_equal(oz_pool_nodes(oz_cpu(d)->pool), n_nodes);
    return d;
}

/* ---- who touches which panel ---- */

typedef struct touch { const uint8_t *panel; int thread; } touch;
static struct { touch packed[MAX_TOUCHES], read[MAX_TOUCHES]; int n_packed, n_read; } seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int self;
static oz_gemm_row right; /* the slot that is watched */

static void name_self(void *arg, int thread, int64_t begin, int64_t end) { self = thread; }

static void note(touch *list, int *n, const uint8_t *panel) {
    pthread_mutex_lock(&lock);
    assert_true(*n < MAX_TOUCHES);
    list[(*n)++] = (touch){panel, self};
    pthread_mutex_unlock(&lock);
}

static void watched_pack(uint8_t *dst, const float *codes, int64_t cols) {
    note(seen.packed, &seen.n_packed, dst);
    right.pack(dst, codes, cols);
}

static void watched_gemm(const oz_gemm_task *t, int64_t p0, int64_t p1) {
    for (int64_t p = p0; p < p1; p++) note(seen.read, &seen.n_read, t->w->codes + (size_t)p * t->w->panel_bytes);
    right.gemm(t, p0, p1);
}

static void watch(oz_dev *d, oz_wkind kind, oz_form form) {
    oz_gemm_row *row = &oz_cpu(d)->table.gemm[kind][form];
    right = *row;
    row->pack = watched_pack, row->gemm = watched_gemm;
    seen.n_packed = seen.n_read = 0;
    oz_pool_run(oz_cpu(d)->pool, oz_dev_threads(d), 1, name_self, NULL);
}

static int by_panel(const void *a, const void *b) {
    const uint8_t *x = ((const touch *)a)->panel, *y = ((const touch *)b)->panel;
    return (x > y) - (x < y);
}

/* Panels that another node read than packed them. Each is packed once, and read once (every) or not at all. */
static int misplaced(oz_dev *d, bool every) {
    const oz_pool *pool = oz_cpu(d)->pool;
    int n = 0, r = 0;
    qsort(seen.packed, (size_t)seen.n_packed, sizeof *seen.packed, by_panel);
    qsort(seen.read, (size_t)seen.n_read, sizeof *seen.read, by_panel);
    if (every) assert_int_equal(seen.n_read, seen.n_packed);
    for (int p = 0; p < seen.n_packed; p++) {
        const int node = oz_pool_node_of(pool, seen.packed[p].thread);
        assert_true(p == 0 || seen.packed[p].panel > seen.packed[p - 1].panel);
        if (r == seen.n_read || seen.read[r].panel != seen.packed[p].panel) continue;
        n += node != oz_pool_node_of(pool, seen.read[r++].thread);
    }
    assert_int_equal(r, seen.n_read);
    return n;
}

/* ---- weights and products ---- */

/* One kind of weight: codes of 8 bits with a bf16 scale a row, or by groups and with columns in an order of their own, or plain floats. */
typedef struct sort { oz_codec codec; oz_wkind kind; oz_form form; int64_t group; bool order; } sort;
static const sort SORTS[] = {{OZ_CODEC_F32, OZ_WKIND_F32, OZ_FORM_F32, 0, false}, {OZ_CODEC_I8, OZ_WKIND_I8, OZ_FORM_Q8, COLS, false}, {OZ_CODEC_I8, OZ_WKIND_I8, OZ_FORM_F32, 64, true}};

typedef struct parts {
    int n;
    int64_t rows; /* of all */
    oz_weight w[MAX_PARTS];
    const oz_packed *p[MAX_PARTS];
    const float *bias[MAX_PARTS];
    int32_t order[COLS];
    float x[MAX_TOK * COLS];
} parts;

static oz_rng rng;

static float *floats(int64_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)oz_rng_normal(&rng);
    return x;
}

static void parts_init(parts *s, const sort *k, const int64_t *rows) {
    oz_rng_init(&rng, 5);
    memset(s, 0, sizeof *s);
    for (int i = 0; i < COLS; i++) s->order[i] = (i * 5 + 3) % COLS;
    for (; s->n < MAX_PARTS && rows[s->n]; s->n++) {
        const int64_t n = rows[s->n], n_scales = k->group ? n * (COLS / k->group) : 0;
        uint8_t *codes = k->codec == OZ_CODEC_F32 ? (uint8_t *)floats(n * COLS) : malloc((size_t)(n * COLS));
        for (int64_t i = 0; k->group && i < n * COLS; i++) codes[i] = (uint8_t)(int8_t)(oz_rng_uniform(&rng) * 255 - 127);
        uint16_t *scales = malloc((size_t)(n_scales + 1) * sizeof *scales);
        for (int64_t i = 0; i < n_scales; i++) scales[i] = oz_bf16_from_f32((float)(0.01 + oz_rng_uniform(&rng)));
        s->w[s->n] = (oz_weight){.codec = k->codec, .rows = n, .cols = COLS, .codes = codes, .row_bytes = COLS * (k->group ? 1 : 4), .scales = scales, .scale_dtype = OZ_DTYPE_BF16, .group_size = k->group,
                                 .order = k->order ? s->order : NULL};
        s->bias[s->n] = s->n == 1 ? NULL : floats(n);
        s->rows += n;
    }
    for (int i = 0; i < MAX_TOK * COLS; i++) s->x[i] = (float)oz_rng_normal(&rng);
}

static void parts_pack(parts *s, oz_dev *d, oz_form form) {
    oz_err e = {0};
    for (int i = 0; i < s->n; i++)
        if (oz_cpu_pack((oz_packed **)(uintptr_t)&s->p[i], d, &s->w[i], 0, s->w[i].rows, form, &e) != OZ_OK) fail_msg("%s", e.msg);
}

static void parts_unpack(parts *s, oz_dev *d) {
    for (int i = 0; i < s->n; i++) oz_cpu_packed_free(d, (oz_packed **)(uintptr_t)&s->p[i]);
}

static void parts_deinit(parts *s) {
    for (int i = 0; i < s->n; i++) free((void *)(uintptr_t)s->w[i].codes), free((void *)(uintptr_t)s->w[i].scales), free((void *)(uintptr_t)s->bias[i]);
}

/* Runs of two nodes that reach into one huge page; small ones have no slab. */
static int shared_pages(const parts *s) {
    struct { uintptr_t first, last; int node; } runs[MAX_PARTS * 16];
    int n = 0, shared = 0;
    for (int i = 0; i < s->n; i++) {
        int node = 0;
        for (const oz_cpu_packed *w = (const oz_cpu_packed *)s->p[i]; w; w = w->next, node++) {
            const size_t n_bytes = (size_t)w->n_panels * w->panel_bytes;
            if (n_bytes < 1 << 16) continue;
            runs[n].first = (uintptr_t)w->codes / HUGE_PAGE, runs[n].last = ((uintptr_t)w->codes + n_bytes - 1) / HUGE_PAGE, runs[n++].node = node;
        }
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) shared += runs[i].node != runs[k].node && runs[i].first <= runs[k].last && runs[k].first <= runs[i].last;
    return shared;
}

static oz_rows inputs(oz_dev *d, const parts *s, oz_form form, int64_t n_tok) {
    static int8_t codes[MAX_TOK * COLS];
    static float scales[MAX_TOK];
    if (form == OZ_FORM_F32) return (oz_rows){form, (void *)(uintptr_t)s->x, COLS, NULL};
    const oz_rows x = {form, codes, COLS, scales};
    oz_cpu_quantize(d, &x, s->x, COLS, n_tok, COLS);
    return x;
}

static float *linear(oz_dev *d, const parts *s, oz_form form, int64_t n_tok) {
    float *y = calloc((size_t)(n_tok * s->rows), sizeof *y);
    oz_cpu_linear(d, &(oz_linear_args){s->p, s->bias, s->n, inputs(d, s, form, n_tok), y, s->rows, n_tok});
    return y;
}

static const int64_t ROWS[][MAX_PARTS] = {{1000}, {576, 192, 192}, {1536, 1536}, {300, 40, 9}, {2000, 1, 70}}; /* alone, q/k/v, gate/up, odd ones */
enum { N_ROWS = sizeof ROWS / sizeof *ROWS };
static const int THREADS[] = {1, 2, 3, 5, 8};

/* For every number of threads, kind of weight and set of parts, on up to three nodes and on a node a thread: there, each thread reads exactly what it packed. */
static void each_node_reads_what_it_packed(void **state) {
    for (size_t k = 0; k < sizeof SORTS / sizeof *SORTS; k++) {
        for (int i = 0; i < N_ROWS; i++) {
            static parts s;
            parts_init(&s, &SORTS[k], ROWS[i]);
            oz_dev *one = dev_new(1, 1);
            parts_pack(&s, one, SORTS[k].form);
            float *want[2] = {linear(one, &s, SORTS[k].form, 1), linear(one, &s, SORTS[k].form, MAX_TOK)};
            parts_unpack(&s, one);
            oz_dev_close(&one);
            for (size_t t = 0; t < sizeof THREADS / sizeof *THREADS; t++) {
                for (int nodes = 1; nodes <= THREADS[t]; nodes = nodes == 3 && THREADS[t] > 4 ? THREADS[t] : nodes + 1) {
                    oz_dev *d = dev_new(THREADS[t], nodes);
                    watch(d, SORTS[k].kind, SORTS[k].form);
                    parts_pack(&s, d, SORTS[k].form);
                    assert_int_equal(shared_pages(&s), 0);
                    for (int many = 0; many < 2; many++) {
                        const int64_t n_tok = many ? MAX_TOK : 1;
                        seen.n_read = 0;
                        float *y = linear(d, &s, SORTS[k].form, n_tok);
                        assert_memory_equal(y, want[many], (size_t)(n_tok * s.rows) * sizeof *y);
                        free(y);
                        const int wrong = SORTS[k].order && many ? 0 : misplaced(d, true); /* tokens in order go some at a time */
                        if (wrong) fail_msg("weights %zu, rows %d, %d threads, %d nodes: %d panels are not where they are read", k, i, THREADS[t], nodes, wrong);
                    }
                    parts_unpack(&s, d);
                    oz_dev_close(&d);
                }
            }
            free(want[0]), free(want[1]);
            parts_deinit(&s);
        }
    }
}

/* What the program did before, one cut over the panels of all parts: its panels of k and v lie elsewhere, and the count shows it. */
typedef struct old_rule { const parts *s; oz_rows x; float *y; } old_rule;

static void old_panels(void *arg, int thread, int64_t begin, int64_t end) {
    const old_rule *j = arg;
    int64_t at = 0, column = 0;
    for (int i = 0; i < j->s->n; i++) {
        for (const oz_cpu_packed *w = (const oz_cpu_packed *)j->s->p[i]; w; at += w->n_panels, w = w->next) {
            const int64_t lo = begin > at ? begin - at : 0, hi = end - at < w->n_panels ? end - at : w->n_panels;
            if (lo < hi) w->row->gemm(&(oz_gemm_task){w, NULL, j->x, j->y + column + w->row0, j->s->rows, 1}, lo, hi);
        }
        column += j->s->w[i].rows;
    }
}

static void another_rule_is_seen(void **state) {
    static parts s;
    parts_init(&s, &SORTS[0], ROWS[1]);
    oz_dev *d = dev_new(4, 2);
    watch(d, SORTS[0].kind, SORTS[0].form);
    parts_pack(&s, d, SORTS[0].form);
    float *y = calloc((size_t)s.rows, sizeof *y);
    old_rule j = {&s, inputs(d, &s, SORTS[0].form, 1), y};
    oz_pool_run(oz_cpu(d)->pool, seen.n_packed, 1, old_panels, &j);
    assert_true(misplaced(d, true) > 0);
    free(y);
    parts_unpack(&s, d);
    oz_dev_close(&d);
    parts_deinit(&s);
}

/* Experts: those with rows are read where they lie, however uneven the groups are; one without rows is not read. */
static void experts_are_read_where_they_lie(void **state) {
    enum { N = 6, TOP = 1 };
    static parts s;
    int32_t starts[N + 1] = {0, 1, 1, 12, 13, 19, MAX_TOK};
    parts_init(&s, &SORTS[0], (const int64_t[]){400, 0});
    for (int threads = 1; threads <= 8; threads += threads < 4 ? 1 : 4) {
        for (int nodes = 1; nodes <= threads && nodes <= 3; nodes++) {
            oz_dev *d = dev_new(threads, nodes);
            oz_packed *experts[N];
            oz_err e = {0};
            float *y = calloc((size_t)(MAX_TOK * 400), sizeof *y), *want = calloc((size_t)(MAX_TOK * 400), sizeof *want);
            watch(d, SORTS[0].kind, SORTS[0].form);
            for (int i = 0; i < N; i++) assert_int_equal(oz_cpu_pack(&experts[i], d, &s.w[0], 0, 400, OZ_FORM_F32, &e), OZ_OK);
            const oz_route route = {.n_experts = N, .top_k = TOP, .starts = starts};
            oz_cpu_grouped_linear(d, &(oz_grouped_args){(const oz_packed *const *)experts, &route, inputs(d, &s, OZ_FORM_F32, MAX_TOK), y, 400, MAX_TOK});
            assert_int_equal(seen.n_read, seen.n_packed / N * (N - 1));
            assert_int_equal(misplaced(d, false), 0);
            oz_cpu_linear(d, &(oz_linear_args){(const oz_packed *const *)experts, NULL, 1, inputs(d, &s, OZ_FORM_F32, MAX_TOK), want, 400, MAX_TOK}); /* all are one weight */
            assert_memory_equal(y, want, (size_t)(MAX_TOK * 400) * sizeof *y);
            for (int i = 0; i < N; i++) oz_cpu_packed_free(d, &experts[i]);
            free(y), free(want);
            oz_dev_close(&d);
        }
    }
    parts_deinit(&s);
}

/* ---- whole models: embedding rows, experts, latents, scans ---- */

static void model_logits(float **out, int64_t *n, const char *name, int threads, int n_nodes) {
    enum { N_TOK = 24 };
    char path[128];
    oz_err e = {0};
    oz_ckpt *ckpt = NULL;
    oz_model *m = NULL;
    oz_state *state = NULL;
    int32_t ids[N_TOK], rows[N_TOK];
    snprintf(path, sizeof path, "tests/golden/%s", name);
    oz_dev *d = dev_new(threads, n_nodes);
    if (oz_ckpt_open(&ckpt, path, &e) != OZ_OK || oz_model_open(&m, d, ckpt, &(oz_model_cfg){.dtype = "auto", .max_tok = N_TOK}, &e) != OZ_OK || oz_state_new(&state, m, 2, 1, &e) != OZ_OK) fail_msg("%s", e.msg);
    *n = N_TOK * oz_model_get(m)->vocab_size;
    *out = calloc((size_t)*n, sizeof **out);
    for (int i = 0; i < N_TOK; i++) ids[i] = (int32_t)((i * 29 + 5) % oz_model_get(m)->vocab_size), rows[i] = i;
    const oz_seg seg = {0, N_TOK, 0, (int32_t[]){1, 0}};
    if (oz_model_run(m, state, &(oz_call){.ids = ids, .n_tok = N_TOK, .segs = &seg, .n_segs = 1, .rows = rows, .n_rows = N_TOK}, &(oz_sink){OZ_SINK_COPY, *out, NULL}, &e) != OZ_OK) fail_msg("%s", e.msg);
    oz_state_free(&state);
    oz_model_close(&m);
    oz_dev_close(&d);
    oz_ckpt_close(&ckpt);
}

static void models_give_the_same_bits(void **state) {
    static const char *const names[] = {"models/llama", "models/llama-tied-bias", "models/gemma2", "models/phi3", "models/mixtral", "models/qwen3_moe", "models/deepseek_v2", "models/jamba"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        float *want, *got;
        int64_t n;
        model_logits(&want, &n, names[i], 1, 1);
        for (int threads = 2; threads <= 7; threads += threads == 3 ? 4 : 1) {
            model_logits(&got, &n, names[i], threads, threads < 3 ? threads : 3);
            assert_memory_equal(want, got, (size_t)n * sizeof *got);
            free(got);
        }
        free(want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_node_reads_what_it_packed),
        cmocka_unit_test(another_rule_is_seen),
        cmocka_unit_test(experts_are_read_where_they_lie),
        cmocka_unit_test(models_give_the_same_bits),
    };
    return cmocka_run_group_tests_name("cpu_nodes", tests, NULL, NULL);
}
