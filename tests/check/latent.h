/* Latent attention of any device. */
#ifndef CHECK_LATENT_H
#define CHECK_LATENT_H
#include "check.h"
#include "kernel/step.h"

/* company: results do not depend on other tokens. Returns how many segments cost less expanded. */
int ck_latents(ck *c, oz_dev *dev, const oz_ops *ops, int n_cases, bool company);

#endif
