/* All that makes checkpoints. Every maker is planned first, which finds every error of its input and knows all sizes to the byte, and
 * then run: it streams tensor by tensor into a folder that appears under its name when it is whole. */
#ifndef OZ_QUANTIZE_QUANTIZE_H
#define OZ_QUANTIZE_QUANTIZE_H
#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "scheme/scheme.h"

/* ---- convert: any checkpoint as plain floats ----
 * Each value is dequantized in f32 and rounded once to the new type; config.json loses its quantization_config. */
typedef struct oz_convert oz_convert;
/* to: F32, F16 or BF16. ckpt must outlive the conversion. shard_bytes 0: no limit. */
oz_status oz_convert_new(oz_convert **out, const oz_ckpt *ckpt, oz_dtype to, size_t shard_bytes, oz_err *err);
void oz_convert_free(oz_convert **c);
const oz_layout *oz_convert_layout(const oz_convert *c);
size_t oz_convert_count(const oz_convert *c); /* tensors that are written */
/* Memory: some chunks of a few MB, whatever the size of the model. */
oz_status oz_convert_run(oz_convert *c, const char *target, bool force, oz_pool *pool, oz_err *err);

/* ---- synth: a checkpoint with seeded random weights of a config ----
 * Matrices and biases are normal with the config's initializer_range, norms are 1. The values depend on the seed, the tensor's name
 * and the place in it alone: not on threads, shards or the other tensors. */
typedef struct oz_synth oz_synth;
/* config: a config.json without quantization_config; it must outlive the synth. Stored as the config's dtype. */
oz_status oz_synth_new(oz_synth **out, const json_t *config, uint64_t seed, size_t shard_bytes, oz_err *err);
void oz_synth_free(oz_synth **s);
const oz_layout *oz_synth_layout(const oz_synth *s);
size_t oz_synth_count(const oz_synth *s);
oz_status oz_synth_run(oz_synth *s, const char *target, bool force, oz_pool *pool, oz_err *err);

#endif
