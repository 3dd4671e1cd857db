/* Damaged configs, indices and headers: whatever up to 200 bytes of them become, verify ends with a list, soon and in little memory, and the loader's own checks
 * refuse nothing of which that list does not say an error. MUTATIONS=N: how many (500); SEED=N. */
#include "files.h"
#include <signal.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "measure/measure.h"

enum { MAX_CHANGE = 200, MAX_FILE = 1 << 17, MAX_SECONDS = 5, MAX_GROWTH = 256 << 20 };

static const char *const BASES[] = {"cases/01-valid-w4a16", "cases/02-valid-w8a8", "cases/34-actorder-true", "cases/52-kv-valid", "cases/77-gptq-valid", "cases/46-zero-point-out-of-range",
                                    "quantized/awq-gemm", "quantized/fp8-native-block", "quantized/target-precedence", "quantized/fp8-static", "models/qwen3_moe", "models/jamba", "models/deepseek_v2"};
enum { N_BASES = sizeof BASES / sizeof *BASES };
static const char *const FILES[] = {"config.json", "model.safetensors.index.json", "s1.safetensors"};

static oz_rng rng;
static size_t below(size_t n) { return (size_t)(oz_rng_next(&rng) % n); }

typedef struct found { size_t n_errors; char first[256]; } found;
static void count(void *arg, bool is_error, const char *text) {
    found *f = arg;
    assert_true(text[0] != 0);
    if (is_error && f->n_errors++ == 0) snprintf(f->first, sizeof f->first, "%s", text);
}

static size_t header_size(const uint8_t *p) { return 8 + (p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16); }

/* Up to MAX_CHANGE bytes of p[0..n) are overwritten, removed, doubled, or something is put between them. Returns the new size; room for 2 * MAX_CHANGE more. */
static size_t mutate(uint8_t *p, size_t n) {
    static const char *const PIECES[] = {"{", "}", "[", "]", ",", ":", "\"", "null", "true", "1e999", "-1", "0", "18446744073709551616", "9223372036854775807", "268435456", "1000000", "{}", "[]", "\\u0000",
                                         "[[[[", "\"F4\"", "\"I32\"", "\"re:(a+)+$\"", "\"Linear\"", "\xed\xa0\x80", "\"group\"", "\"dtype\":", "1024", "4096"};
    const size_t at = below(n), most = n - at < MAX_CHANGE ? n - at : MAX_CHANGE, run = 1 + below(below(4) ? (most < 8 ? most : 8) : most);
    const char *piece = PIECES[below(sizeof PIECES / sizeof *PIECES)];
    const size_t k = strlen(piece);
    switch (below(6)) {
    case 0: p[at] ^= (uint8_t)(1u << below(8)); return n;
    case 1: for (size_t i = 0; i < run; i++) p[at + i] = (uint8_t)oz_rng_next(&rng); return n;
    case 2: memmove(p + at, p + at + run, n - at - run); return n - run;
    case 3: memmove(p + at + run, p + at, n - at); return n + run;
    case 4: if (k <= n - at) memcpy(p + at, piece, k); return n; /* over what is there */
    default: memmove(p + at + k, p + at, n - at); memcpy(p + at, piece, k); return n + k;
    }
}

/* The numbers of a JSON text are what sizes come of: one of them becomes another. */
static size_t mutate_number(uint8_t *p, size_t n) {
    static const char *const NUMBERS[] = {"0", "1", "2", "3", "7", "8", "16", "31", "33", "64", "1024", "4096", "65536", "1048576", "268435456", "2147483648", "9223372036854775807", "-1", "0.5"};
    size_t at = below(n), tries = n;
    while (tries && !(p[at] >= '0' && p[at] <= '9')) at = (at + 1) % n, tries--;
    size_t end = at;
    while (end < n && p[end] >= '0' && p[end] <= '9') end++;
    const char *to = NUMBERS[below(sizeof NUMBERS / sizeof *NUMBERS)];
    const size_t k = strlen(to);
    memmove(p + at + k, p + end, n - end);
    memcpy(p + at, to, k);
    return n - (end - at) + k;
}

static size_t changed(uint8_t *work, const char *original, size_t n, bool is_shard) {
    const size_t head = is_shard ? header_size((const uint8_t *)original) : n, from = is_shard ? 8 : 0;
    memcpy(work, original, head);
    size_t m = head - from;
    for (size_t i = below(4) ? 1 : 3; i > 0 && m > 0; i--) m = below(3) ? mutate_number(work + from, m) : mutate(work + from, m);
    memcpy(work + from + m, original + head, n - head);
    if (is_shard && below(4)) /* mostly with a length that fits */
        for (int i = 0; i < 8; i++) work[i] = (uint8_t)((uint64_t)m >> (8 * i));
    return from + m + n - head;
}

/* What loading checks before it packs, ending at the first error. */
static oz_status strict(oz_err *err) {
    oz_ckpt *c;
    oz_arch_list list;
    OZ_TRY(oz_ckpt_open(&c, test_dir, err));
    oz_status st = oz_arch_list_new(&list, oz_ckpt_config(c), c, err);
    if (st == OZ_OK) {
        oz_scheme *schemes = oz_alloc_array(list.n + 1, sizeof *schemes);
        st = oz_model_check(schemes, c, &list, NULL, err);
        oz_free(schemes);
        oz_arch_list_deinit(&list);
    }
    oz_ckpt_close(&c);
    return st;
}

static oz_pool *pool;
static size_t n_refused;

static void check_one(int round) {
    found f = {0};
    oz_err err = {0};
    alarm(MAX_SECONDS);
    if (oz_verify_run(test_dir, &(oz_findings){count, &f}, pool, &err) != OZ_OK) fail_msg("round %d: verify: %s", round, err.msg);
    if (strict(&err) != OZ_OK) {
        n_refused++;
        if (!err.msg[0]) fail_msg("round %d: refused without a reason", round);
        if (!f.n_errors) fail_msg("round %d: verify finds no error, and yet: %s", round, err.msg);
    } else if (f.n_errors && !strstr(f.first, "finite") && !strstr(f.first, "token_id")) fail_msg("round %d: verify alone says: %s", round, f.first);
    alarm(0);
}

typedef struct base { char *text[3]; size_t n[3]; } base;

static void base_read(base *b, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "tests/golden/%s/config.json", name);
    b->text[0] = test_read(path, &b->n[0]);
    snprintf(path, sizeof path, "tests/golden/%s/model.safetensors", name);
    b->text[2] = test_read(path, &b->n[2]);
    assert_true(b->n[0] + MAX_CHANGE * 8 < MAX_FILE && header_size((const uint8_t *)b->text[2]) + MAX_CHANGE * 8 < MAX_FILE);
    json_t *header = json_loadb(b->text[2] + 8, header_size((const uint8_t *)b->text[2]) - 8, 0, NULL), *map = json_object();
    const char *key;
    json_t *v;
    assert_non_null(header);
    json_object_foreach(header, key, v) if (strcmp(key, "__metadata__") != 0) json_object_set_new(map, key, json_string(FILES[2]));
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)(b->n[2] - header_size((const uint8_t *)b->text[2])), "weight_map", map);
    b->text[1] = json_dumps(index, JSON_INDENT(1));
    b->n[1] = strlen(b->text[1]);
    json_decref(index);
    json_decref(header);
}

static int number_of(const char *variable, int otherwise) {
    const char *s = getenv(variable);
    return s ? atoi(s) : otherwise;
}

static void test_mutations(void **state) {
    const int rounds = number_of("MUTATIONS", 500);
    uint8_t *work = malloc(4 << 20);
    size_t before = 0;
    oz_log_quiet(true);
    oz_log_mute();
    oz_rng_init(&rng, (uint64_t)number_of("SEED", 1));
    pool = oz_pool_new(1);
    for (int b = 0; b < N_BASES; b++) {
        base good;
        base_read(&good, BASES[b]);
        assert_true(good.n[2] + MAX_FILE < 4 << 20);
        for (int k = 0; k < 3; k++) test_write(FILES[k], good.text[k], good.n[k]);
        check_one(-1);
        if (b == 0) before = oz_rss_peak_bytes();
        for (int i = b; i < rounds; i += N_BASES) {
            const int k = (int)below(3);
            const size_t n = changed(work, good.text[k], good.n[k], k == 2);
            test_write(FILES[k], work, n);
            check_one(i);
            test_write(FILES[k], good.text[k], good.n[k]);
        }
        for (int k = 0; k < 3; k++) free(good.text[k]);
    }
    oz_pool_free(&pool);
    free(work);
    const size_t after = oz_rss_peak_bytes();
    print_message("%d mutations, %zu refused, peak memory %zu MB, %zu MB above the first\n", rounds, n_refused, after >> 20, (after - before) >> 20);
    assert_true(n_refused > (size_t)rounds / 4);
    assert_true(after - before < MAX_GROWTH);
}

/* With AddressSanitizer: one allocation of more than 32 MB, out of files of some kilobytes, fails, and freed memory is not kept for long. */
static const char OPTIONS[] = "max_allocation_size_mb=32:quarantine_size_mb=16:allocator_may_return_null=1";

int main(int argc, char **argv) {
    (void)argc;
    const char *options = getenv("ASAN_OPTIONS");
    if (!options || strcmp(options, OPTIONS) != 0) { /* they are read before main */
        setenv("ASAN_OPTIONS", OPTIONS, 1);
        execv("/proc/self/exe", argv);
    }
    const struct CMUnitTest tests[] = {UNIT(test_mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
