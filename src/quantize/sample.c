/* What is kept of the rows that a module reads on the calibration text: of each column its range, magnitudes and squares summed up over all of them, and some of the rows themselves,
 * spread evenly: when there is room for no more, every other one is dropped, and from there on half as many are taken. Of rows on a device the ranges are taken there. */
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "quantize/internal.h"

oz_status oz_sample_init(oz_sample *s, int64_t width, int64_t cap, oz_dev *dev, const char *what, oz_err *err) {
    *s = (oz_sample){.width = width, .cap = cap, .stride = 1, .dev = dev};
    s->min = oz_alloc_array((size_t)width, sizeof *s->min);
    s->max = oz_alloc_array((size_t)width, sizeof *s->max);
    s->sum = oz_alloc_array((size_t)width, sizeof *s->sum);
    s->squares = oz_alloc_array((size_t)width, sizeof *s->squares);
    if (dev) OZ_TRY(oz_dev_ops(dev)->mem_new((void **)&s->range.sum, dev, (size_t)width * 2 * (sizeof(double) + sizeof(float)), what, err));
    if (dev) s->range.squares = s->range.sum + width, s->range.min = (float *)(s->range.squares + width), s->range.max = s->range.min + width;
    return cap ? oz_big_new((void **)&s->rows, (size_t)(cap * width) * sizeof(float), what, err) : OZ_OK;
}

void oz_sample_deinit(oz_sample *s) {
    if (s->dev) oz_dev_ops(s->dev)->mem_free(s->dev, s->range.sum);
    oz_free(s->min);
    oz_free(s->max);
    oz_free(s->sum);
    oz_free(s->squares);
    oz_big_free(s->rows);
    *s = (oz_sample){0};
}

static void keep(oz_sample *s, const float *row) {
    const size_t n_bytes = (size_t)s->width * sizeof(float);
    if (s->n == s->cap) {
        for (int64_t i = 1; 2 * i < s->n; i++) memcpy(s->rows + i * s->width, s->rows + 2 * i * s->width, n_bytes);
        s->n = (s->n + 1) / 2, s->stride *= 2;
    }
    if (s->seen % s->stride != 0) return;
    float *to = s->rows + s->n++ * s->width;
    if (s->dev) oz_dev_ops(s->dev)->download(s->dev, to, row, n_bytes);
    else memcpy(to, row, n_bytes);
}

static void range_add(oz_sample *s, const float *row) {
    for (int64_t c = 0; c < s->width; c++) {
        const float v = row[c];
        s->min[c] = s->min[c] <= v ? s->min[c] : v, s->max[c] = s->max[c] >= v ? s->max[c] : v;
        s->sum[c] += (double)fabsf(v), s->squares[c] += (double)v * (double)v;
    }
}

void oz_sample_add(oz_sample *s, const float *rows, int64_t ld, int64_t n) {
    if (s->dev && n > 0) oz_dev_ops(s->dev)->calib->range_add(s->dev, &s->range, rows, ld, n, s->width);
    for (int64_t i = 0; i < n; i++, s->seen++) {
        if (!s->dev) range_add(s, rows + i * ld);
        if (s->cap > 1 && s->seen % s->stride == 0) keep(s, rows + i * ld);
    }
}

void oz_sample_close(oz_sample *s) {
    if (!s->dev) return;
    const oz_ops *ops = oz_dev_ops(s->dev);
    ops->download(s->dev, s->sum, s->range.sum, (size_t)s->width * sizeof *s->sum);
    ops->download(s->dev, s->squares, s->range.squares, (size_t)s->width * sizeof *s->squares);
    ops->download(s->dev, s->min, s->range.min, (size_t)s->width * sizeof *s->min);
    ops->download(s->dev, s->max, s->range.max, (size_t)s->width * sizeof *s->max);
}
