/* What proves that bytes are still those that were meant: of a model, of what of a checkpoint is written, of files. Each piece of a tensor has a sha256 of
 * its own, so that all threads take part, and those are summed up in the order of the list. A sample (size, time and some kilobytes of a
 * tensor) would be faster, but two fine-tunes of one model may differ anywhere, and a job that needs the digest reads every weight twice. */
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "quantize/internal.h"

enum { STEP = 1 << 20, PIECE = 16 << 20 };

typedef struct piece { size_t tensor; size_t at, n; char hex[65]; bool bad; } piece;
typedef struct job { const oz_digest *of; piece *pieces; oz_progress progress; atomic_llong done; } job;

static void hash_pieces(void *arg, int thread, int64_t begin, int64_t end) {
    job *j = arg;
    for (piece *p = j->pieces + begin; p < j->pieces + end; p++) {
        const oz_tensor *t = j->of->tensors[p->tensor];
        oz_sha256 s;
        oz_sha256_init(&s);
        for (size_t at = 0; at < p->n && !oz_interrupted(); at += STEP) {
            const size_t n = p->n - at < STEP ? p->n - at : STEP;
            oz_sha256_add(&s, (const char *)t->data + p->at + at, n);
            p->bad = p->bad || (j->of->not_finite && !oz_all_finite(t->dtype, (const char *)t->data + p->at + at, n));
            const long long done = atomic_fetch_add(&j->done, (long long)n) + (long long)n;
            if (thread == 0) oz_progress_step(&j->progress, done);
        }
        oz_sha256_hex(p->hex, &s);
        if (p->at + p->n == t->n_bytes) oz_ckpt_drop(j->of->ckpt, t);
    }
}

/* Pieces of all tensors; an empty one has one. */
static size_t pieces_of(piece *out, const oz_digest *d) {
    size_t n_pieces = 0;
    for (size_t i = 0; i < d->n; i++) {
        size_t at = 0;
        do {
            const size_t left = d->tensors[i]->n_bytes - at, take = left < PIECE ? left : PIECE;
            if (out) out[n_pieces] = (piece){.tensor = i, .at = at, .n = take};
            n_pieces++, at += take;
        } while (at < d->tensors[i]->n_bytes);
    }
    return n_pieces;
}

oz_status oz_digest_tensors(char out[65], const oz_digest *d, oz_pool *pool, const char *what) {
    const size_t n_pieces = pieces_of(NULL, d);
    job j = {d, oz_alloc_array(n_pieces + 1, sizeof *j.pieces), {0}, 0};
    int64_t total = 0;
    for (size_t i = 0; i < d->n; i++) total += (int64_t)d->tensors[i]->n_bytes;
    pieces_of(j.pieces, d);
    oz_progress_init(&j.progress, what, "B", total);
    oz_pool_run(pool, (int64_t)n_pieces, 1, hash_pieces, &j);
    oz_progress_deinit(&j.progress);
    oz_sha256 s;
    oz_sha256_init(&s);
    for (size_t i = 0; i < n_pieces; i++) {
        const oz_tensor *t = d->tensors[j.pieces[i].tensor];
        if (j.pieces[i].bad) d->not_finite[j.pieces[i].tensor] = true;
        if (j.pieces[i].at == 0) {
            oz_sha256_add(&s, t->name, strlen(t->name) + 1);
            oz_sha256_add(&s, &(int64_t[]){(int64_t)t->dtype, (int64_t)t->n_bytes}, 2 * sizeof(int64_t));
        }
        oz_sha256_add(&s, j.pieces[i].hex, 64);
    }
    oz_sha256_hex(out, &s);
    oz_free(j.pieces);
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
}

void oz_sha256_add_json(oz_sha256 *s, const json_t *v) {
    char *text = json_dumps(v, JSON_SORT_KEYS | JSON_COMPACT);
    oz_sha256_add(s, text, strlen(text));
    free(text);
}

oz_status oz_digest_model(char out[65], const oz_quantize *q, oz_pool *pool, oz_err *err) {
    const size_t n = oz_ckpt_count(q->ckpt);
    const oz_tensor **tensors = oz_alloc_array(n + 1, sizeof *tensors);
    bool *not_finite = oz_alloc_array(n + 1, sizeof *not_finite);
    for (size_t i = 0; i < n; i++) tensors[i] = oz_ckpt_at(q->ckpt, i);
    oz_sha256 s;
    oz_sha256_init(&s);
    oz_sha256_add_json(&s, oz_ckpt_config(q->ckpt));
    oz_status st = oz_digest_tensors(out, &(oz_digest){q->ckpt, tensors, n, not_finite}, pool, "reading the model");
    oz_sha256_add(&s, out, 64);
    oz_sha256_hex(out, &s);
    if (st == OZ_OK) st = oz_quantize_finite_check(q, not_finite, err);
    oz_free(not_finite);
    oz_free(tensors);
    return st;
}

oz_status oz_digest_file(char out[65], const char *path, oz_err *err) {
    oz_mmap m;
    oz_sha256 s;
    OZ_TRY(oz_mmap_open(&m, path, err));
    oz_sha256_init(&s);
    for (size_t at = 0; at < m.n_bytes && !oz_interrupted(); at += STEP) {
        const size_t n = m.n_bytes - at < STEP ? m.n_bytes - at : STEP;
        oz_sha256_add(&s, m.data + at, n);
        oz_mmap_drop(&m, m.data + at, n);
    }
    oz_sha256_hex(out, &s);
    oz_mmap_close(&m);
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
}

/* ---- rows that wait ---- */

/* Eight lanes of 64 bits, a word each: a changed word changes its lane for good, since every step can be undone. */
static void sum_block(oz_sum *s, const void *data) {
    uint64_t w[8];
    memcpy(w, data, sizeof w);
    for (int i = 0; i < 8; i++) {
        const uint64_t x = (s->lanes[i] ^ w[i]) * 0x9e3779b97f4a7c15u;
        s->lanes[i] = x ^ x >> 29;
    }
}

void oz_sum_add(oz_sum *s, const void *data, size_t n) {
    const char *p = data;
    while (n) {
        const size_t have = s->n_bytes % sizeof s->block, take = n < sizeof s->block - have ? n : sizeof s->block - have;
        if (take == sizeof s->block) sum_block(s, p);
        else {
            memcpy(s->block + have, p, take);
            if (have + take == sizeof s->block) sum_block(s, s->block);
        }
        s->n_bytes += take, p += take, n -= take;
    }
}

void oz_sum_hex(char out[65], const oz_sum *s) {
    oz_sha256 sha;
    oz_sha256_init(&sha);
    oz_sha256_add(&sha, s->lanes, sizeof s->lanes);
    oz_sha256_add(&sha, s->block, s->n_bytes % sizeof s->block);
    oz_sha256_add(&sha, &s->n_bytes, sizeof s->n_bytes);
    oz_sha256_hex(out, &sha);
}

oz_status oz_sum_file(char out[65], const char *path, oz_err *err) {
    oz_mmap m;
    oz_sum s = {0};
    OZ_TRY(oz_mmap_open(&m, path, err));
    for (size_t at = 0; at < m.n_bytes && !oz_interrupted(); at += STEP) oz_sum_add(&s, (const char *)m.data + at, m.n_bytes - at < STEP ? m.n_bytes - at : STEP);
    oz_mmap_close(&m);
    oz_sum_hex(out, &s);
    return oz_interrupted() ? OZ_E_INTERRUPTED : OZ_OK;
}

static bool in_layout(const oz_layout *l, const char *name) {
    for (size_t i = 0; i < oz_layout_file_count(l); i++)
        if (strcmp(oz_layout_file(l, i, NULL), name) == 0) return true;
    return false;
}

oz_status oz_digest_side_files(json_t **out, const char *dir, const oz_layout *l, oz_err *err) {
    DIR *d = opendir(dir);
    *out = NULL;
    OZ_NEED(d, err, OZ_E_IO, "%s: %s", dir, strerror(errno));
    json_t *files = json_object();
    oz_status st = OZ_OK;
    for (const struct dirent *e; st == OZ_OK && (e = readdir(d));) {
        char hex[65];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || in_layout(l, e->d_name)) continue;
        char *path = oz_path_join(dir, e->d_name);
        json_t *name = oz_json_text(e->d_name);
        st = oz_digest_file(hex, path, err);
        if (st == OZ_OK) json_object_set_new(files, json_string_value(name), json_string(hex));
        json_decref(name);
        oz_free(path);
    }
    closedir(d);
    if (st != OZ_OK) json_decref(files);
    else *out = files;
    return st;
}
