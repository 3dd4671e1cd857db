/* Checking a device that is not the CPU. */
#ifndef CHECK_DEVICE_H
#define CHECK_DEVICE_H
#include "check.h"

/* A device under test and the reference; ops is the device's table, or a mutated copy. */
typedef struct dck { ck *c; oz_dev *dev; const oz_ops *ops; oz_dev *ref; const oz_ops *ref_ops; bool deterministic; unsigned met; /* rows of the list of products */ } dck;
typedef struct dck_suite { const char *slot, *metric; void (*run)(dck *k); } dck_suite;
extern const dck_suite dck_suites[]; /* ended by slot NULL */

/* Number of red suites; every: of the cases one in so many; -1: err says why it could not be checked. */
int ck_device(const char *name, const char *only, int64_t every, uint64_t seed, oz_err *err);
/* Number of mutations of the device's table, and of its kernels where they carry some, that a suite did not notice; -1: err. */
int ck_device_mutations(const char *name, const char *only, uint64_t seed, oz_err *err);
/* Speed of products. -1: err */
int ck_device_bench(const char *name, const char *only, bool deterministic, oz_err *err);
/* Sequences of a model alone and together; as ck_device. */
int ck_company(const char *name, const char *path, oz_err *err);
void ck_calibration(dck *k);
/* Lowered programs against the plain executor, on random models. */
void ck_lowered(dck *k);

#endif
