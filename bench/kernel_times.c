/* Times of the CUDA kernels of a decoding program, by the tracing library CUPTI. Loaded into it by the driver:
 *   cc -shared -fPIC -O2 -o kernel_times.so kernel_times.c -I$CUDA/include -L$CUDA/lib64 -lcupti
 *   CUDA_INJECTION64_PATH=$PWD/kernel_times.so ounce bench MODEL --device cuda -p 0 -n 64 -r 1
 * At exit one JSON line goes to the file $KERNEL_TIMES (stderr without it): over the second half of the steps, a step being what ends with the kernel
 * that finds each row's largest logit, microseconds a step: wall, busy (the union of the kernels' intervals: they overlap), and by kernel. */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 64, MAX_KINDS = 128, BUFFER = 8 << 20 };
static const char STEP_END[] = "stat_rows";
typedef struct record { uint64_t start, end; char name[NAME]; } record;
typedef struct kind { const char *name; double us; size_t n; } kind;
static record *records;
static size_t n_records, capacity;

static void CUPTIAPI buffer_get(uint8_t **buffer, size_t *size, size_t *max_records) {
    *size = BUFFER, *max_records = 0;
    *buffer = aligned_alloc(64, BUFFER);
}

static void CUPTIAPI buffer_read(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    CUpti_Activity *a = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &a) == CUPTI_SUCCESS) {
        if (a->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        if (n_records == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            records = realloc(records, capacity * sizeof *records);
            if (!records) abort();
        }
        const CUpti_ActivityKernel9 *k = (const void *)a;
        record *r = &records[n_records++];
        r->start = k->start, r->end = k->end;
        snprintf(r->name, sizeof r->name, "%s", k->name);
    }
    free(buffer);
}

static int by_start(const void *a, const void *b) {
    const record *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static int ends_step(const record *r) { return strstr(r->name, STEP_END) != NULL; }

static void report(void) {
    cuptiActivityFlushAll(1);
    if (records) qsort(records, n_records, sizeof *records, by_start);
    size_t n_steps = 0, first = 0, seen = 0;
    for (size_t i = 0; i < n_records; i++) n_steps += (size_t)ends_step(&records[i]);
    const size_t counted = n_steps / 2;
    FILE *out = getenv("KERNEL_TIMES") ? fopen(getenv("KERNEL_TIMES"), "w") : stderr;
    if (!counted || !out) { fprintf(stderr, "kernel_times: no decode steps were seen\n"); return; }
    while (seen < n_steps - counted) seen += (size_t)ends_step(&records[first++]);
    kind kinds[MAX_KINDS];
    size_t n_kinds = 0;
    uint64_t busy = 0, covered = records[first - 1].end, last = covered;
    for (size_t i = first; i < n_records; i++) {
        const record *r = &records[i];
        size_t k = 0;
        if (r->end > covered) busy += r->end - (r->start > covered ? r->start : covered), covered = r->end;
        if (ends_step(r)) last = r->end;
        while (k < n_kinds && strcmp(kinds[k].name, r->name)) k++;
        if (k == n_kinds && n_kinds < MAX_KINDS) kinds[n_kinds++] = (kind){r->name, 0, 0};
        if (k < n_kinds) kinds[k].us += (double)(r->end - r->start) / 1e3, kinds[k].n++;
    }
    const double n = (double)counted;
    fprintf(out, "{\"steps\": %zu, \"wall_us\": %.1f, \"busy_us\": %.1f, \"kernels\": [", counted, (double)(last - records[first - 1].end) / 1e3 / n, (double)busy / 1e3 / n);
    for (size_t k = 0; k < n_kinds; k++)
        fprintf(out, "%s{\"name\": \"%s\", \"n\": %.2f, \"us\": %.1f}", k ? ", " : "", kinds[k].name, (double)kinds[k].n / n, kinds[k].us / n);
    fprintf(out, "]}\n");
    if (out != stderr) fclose(out);
}

int InitializeInjection(void);
int InitializeInjection(void) {
    cuptiActivityRegisterCallbacks(buffer_get, buffer_read);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    atexit(report);
    return 1;
}
