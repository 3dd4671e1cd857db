#include "base/clock.h"
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t oz_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t oz_clock_us(void) { return oz_clock_ns() / 1000; }

/* A field of /proc/self/status in kB; 0 where the system does not tell. */
static size_t status_bytes(const char *field) {
    FILE *f = fopen("/proc/self/status", "re");
    if (!f) return 0;
    char line[256];
    size_t kb = 0, n = strlen(field);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, field, n) == 0 && sscanf(line + n, ": %zu", &kb) == 1) break;
    }
    fclose(f);
    return kb * 1024;
}

size_t oz_rss_bytes(void) { return status_bytes("VmRSS"); }
size_t oz_rss_peak_bytes(void) { return status_bytes("VmHWM"); }

int oz_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than cpu_set_t holds */
    return n > 0 ? (int)n : 1;
}

/* ---- random numbers ---- */

void oz_rng_init(oz_rng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        r->s[i] = z ^ z >> 31;
    }
}

static uint64_t rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }

uint64_t oz_rng_next(oz_rng *r) {
    uint64_t *s = r->s, out = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

double oz_rng_uniform(oz_rng *r) { return (double)(oz_rng_next(r) >> 11) * 0x1p-53; }

/* ln by its series around 1, in basic operations only: libm's last bit differs between processors, and a seed must give the
 * same weights everywhere. */
static double ln(double x) {
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) m *= 2, e--;
    double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
    return e * 0.69314718055994531 + 2 * t * sum;
}

/* Marsaglia's polar method; the second value of a pair is not kept, so that the state is s alone. */
double oz_rng_normal(oz_rng *r) {
    double u, v, q;
    do {
        u = 2 * oz_rng_uniform(r) - 1;
        v = 2 * oz_rng_uniform(r) - 1;
        q = u * u + v * v;
    } while (q >= 1 || q == 0);
    return u * sqrt(-2 * ln(q) / q);
}
