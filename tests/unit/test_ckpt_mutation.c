/* Damaged files: whatever is done to a good safetensors file, index or config.json, opening it gives a checkpoint whose every byte can
 * be read, or an error with a message. Files lie in exact heap blocks, so that the address sanitizer sees a read of one byte too many. */
#include "files.h"
#include "base/clock.h"
#include "checkpoint/internal.h"

static oz_rng rng;
static size_t below(size_t n) { return (size_t)(oz_rng_next(&rng) % n); }

/* True if the bytes are a file; its tensors then cover its data exactly. */
static bool load(const uint8_t *data, size_t n) {
    uint8_t *exact = malloc(n ? n : 1);
    memcpy(exact, data, n);
    oz_ckpt *c = oz_ckpt_new("memory");
    oz_err err = {0};
    oz_status st = oz_safetensors_load(c, &(oz_mmap){exact, n, NULL}, "m.safetensors", &err);
    if (st == OZ_OK) {
        size_t sum = 0;
        uint8_t seen = 0;
        for (size_t i = 0; i < c->n_tensors; i++) {
            const oz_tensor *t = &c->tensors[i];
            const uint8_t *p = t->data;
            assert_true(p >= exact + 8 && p + t->n_bytes <= exact + n);
            for (size_t k = 0; k < t->n_bytes; k++) seen |= p[k];
            sum += t->n_bytes;
        }
        assert_true(8 + sum <= n);
        assert_true(sum || !seen);
    } else {
        assert_int_equal(err.code, st);
        assert_true(err.msg[0] != 0);
    }
    oz_ckpt_close(&c);
    free(exact);
    return st == OZ_OK;
}

static uint8_t *good_file(size_t *n, size_t *n_header) {
    uint8_t *data = (uint8_t *)test_read("tests/golden/safetensors/library.safetensors", n);
    *n_header = 8 + (data[0] | (size_t)data[1] << 8);
    assert_true(load(data, *n));
    return data;
}

static void test_cut_off_anywhere(void **state) {
    size_t n, n_header;
    uint8_t *data = good_file(&n, &n_header);
    for (size_t k = 0; k < n; k++) assert_false(load(data, k));
    free(data);
}

static void test_one_byte_of_the_header(void **state) {
    static const uint8_t VALUES[] = {0, '"', '{', '}', '[', ']', ',', ':', '0', '9', '-', 'e', '\\', ' ', 0x80, 0xff};
    size_t n, n_header, n_ok = 0;
    uint8_t *data = good_file(&n, &n_header);
    for (size_t k = 0; k < n_header; k++) {
        uint8_t was = data[k];
        for (size_t v = 0; v < sizeof VALUES; v++) {
            data[k] = VALUES[v];
            n_ok += load(data, n);
        }
        data[k] = was;
    }
    assert_true(n_ok < n_header * sizeof VALUES / 2); /* most of it is noticed; a changed name is not */
    free(data);
}

/* One of: flip a bit, remove a run, double a run, insert a piece that JSON is made of. Returns the new size; room for 64 more. */
static size_t mutate(uint8_t *p, size_t n) {
    static const char *const PIECES[] = {"{",  "}",     "[",    "]",    ",",  "\"",   "null", "1e999", "-1", "18446744073709551616",
                                         "{}", "\\u0000", "[[[[", "\"F4\"", "0,", "true", "\xed\xa0\x80"};
    size_t at = below(n), run = 1 + below(24);
    if (run > n - at) run = n - at;
    switch (below(4)) {
    case 0: p[at] ^= (uint8_t)(1u << below(8)); return n;
    case 1: memmove(p + at, p + at + run, n - at - run); return n - run;
    case 2: memmove(p + at + run, p + at, n - at); return n + run;
    default: {
        const char *piece = PIECES[below(sizeof PIECES / sizeof *PIECES)];
        size_t k = strlen(piece);
        memmove(p + at + k, p + at, n - at);
        memcpy(p + at, piece, k);
        return n + k;
    }
    }
}

static void test_many_changes(void **state) {
    size_t n, n_header;
    uint8_t *data = good_file(&n, &n_header), *work = malloc(n + 4 * 64);
    oz_rng_init(&rng, 1);
    for (int round = 0; round < 10000; round++) {
        memcpy(work, data, n);
        size_t m = n_header;
        for (size_t i = 1 + below(4); i > 0 && m > 9; i--) m = 8 + mutate(work + 8, m - 8);
        memcpy(work + m, data + n_header, n - n_header);
        if (below(4)) /* mostly with a length that fits, so that the JSON behind it is read */
            for (int i = 0; i < 8; i++) work[i] = (uint8_t)((m - 8) >> (8 * i));
        load(work, m + n - n_header);
    }
    free(work);
    free(data);
}

/* config.json, index and shard in a folder, one of them damaged. */
static void test_folder(void **state) {
    static const char *const NAMES[] = {"config.json", "model.safetensors.index.json", "s1.safetensors"};
    static const char SHARD[] = "\65\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}abcd";
    static const char CONFIG[] = "{\"model_type\": \"llama\", \"hidden_size\": 32, \"quantization_config\": {\"ignore\": [\"lm_head\"]}}";
    static const char INDEX[] = "{\"metadata\": {\"total_size\": 4}, \"weight_map\": {\"a\": \"s1.safetensors\"}}";
    const char *const texts[] = {CONFIG, INDEX, SHARD};
    const size_t sizes[] = {sizeof CONFIG - 1, sizeof INDEX - 1, sizeof SHARD - 1};
    for (int i = 0; i < 3; i++) test_write(NAMES[i], texts[i], sizes[i]);
    oz_err err = {0};
    oz_ckpt *c;
    if (oz_ckpt_open(&c, test_dir, &err) != OZ_OK) fail_msg("%s", err.msg);
    oz_ckpt_close(&c);
    oz_rng_init(&rng, 2);
    for (int round = 0; round < 3000; round++) {
        int i = round % 3;
        uint8_t work[1024];
        memcpy(work, texts[i], sizes[i]);
        size_t m = sizes[i];
        for (size_t k = 1 + below(3); k > 0 && m > 0; k--) m = mutate(work, m);
        test_write(NAMES[i], work, m);
        oz_err_clear(&err);
        if (oz_ckpt_open(&c, test_dir, &err) != OZ_OK) assert_true(err.code < 0 && err.msg[0]);
        oz_ckpt_close(&c);
        test_write(NAMES[i], texts[i], sizes[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {UNIT(test_cut_off_anywhere), UNIT(test_one_byte_of_the_header), UNIT(test_many_changes), UNIT(test_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
