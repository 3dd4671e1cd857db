/* A GGUF of any bytes: opened as a checkpoint, every value of every tensor read; then its tokenizer files made. The file is in memory,
 * and its path is that of the descriptor. Good corpus: tests/golden/gguf. */
#include "checkpoint/checkpoint.h"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static float sum;

/* Row by row in Hugging Face's order, as the loader and the converter do. */
static void read_values(const oz_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    const int64_t rows = t->n_dims ? t->dims[0] : 1, cols = n / rows;
    const oz_weight order = {.rows = rows, .rope_heads = t->rope_heads};
    const oz_dtype_info *d = oz_dtype_get(t->dtype);
    if (cols % d->block_elems != 0) return; /* a vector of blocks: read in one piece */
    float piece[OZ_BLOCK_MAX];
    const int64_t step = d->block_elems > 1 ? d->block_elems : OZ_BLOCK_MAX;
    for (int64_t r = 0; r < rows; r++) {
        const char *row = (const char *)t->data + oz_weight_stored_row(&order, r) * (cols / d->block_elems) * d->block_bytes;
        for (int64_t c = 0; c < cols; c += step) {
            int64_t now = cols - c < step ? cols - c : step;
            oz_to_f32(piece, t->dtype, row + c / d->block_elems * d->block_bytes, now);
            sum += piece[now - 1];
        }
    }
}

static void pass_over(void *arg, bool is_error, const char *text) { (void)arg, (void)is_error, (void)text; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int fd = memfd_create("fuzz.gguf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    oz_err err = {0};
    oz_ckpt *c;
    const oz_findings f = {pass_over, NULL};
    if (oz_ckpt_open_all(&c, path, &f, &err) == OZ_OK) oz_ckpt_close(&c);
    oz_err_clear(&err);
    if (oz_ckpt_open(&c, path, &err) == OZ_OK) {
        for (size_t i = 0; i < oz_ckpt_count(c); i++) read_values(oz_ckpt_at(c, i));
        oz_ckpt_close(&c);
    } else if (!err.msg[0])
        __builtin_trap(); /* an error always says what it is */
    oz_text_files text;
    oz_err_clear(&err);
    if (oz_text_files_open(&text, path, &err) == OZ_OK)
        oz_text_files_close(&text);
    else if (!err.msg[0])
        __builtin_trap();
    close(fd);
    return 0;
}
