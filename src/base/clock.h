/* Time, memory and machine facts. */
#ifndef OZ_BASE_CLOCK_H
#define OZ_BASE_CLOCK_H
#include <stddef.h>
#include <stdint.h>

int64_t oz_clock_us(void), oz_clock_ns(void); /* monotonic */
size_t oz_rss_bytes(void);      /* resident set now */
size_t oz_rss_peak_bytes(void); /* its highest value so far (VmHWM) */
int oz_cpu_count(void);         /* cores this process may use */

/* xoshiro256** seeded through splitmix64: the same numbers on every machine. */
typedef struct oz_rng { uint64_t s[4]; } oz_rng;
void oz_rng_init(oz_rng *r, uint64_t seed);
uint64_t oz_rng_next(oz_rng *r);
double oz_rng_uniform(oz_rng *r); /* [0, 1), 53 bits */
double oz_rng_normal(oz_rng *r);  /* mean 0, variance 1 */

#endif
