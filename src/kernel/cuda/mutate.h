/* Bugs for the checker: `make build/release/check-mutated` builds this room with OZ_MUTATE and links tests/check to it; one bug at a time is then switched on,
 * and the suites named here must turn red. In every other build MUTATED is a constant false and nothing of this is left. C, for tests/check. */
#ifndef OZ_KERNEL_CUDA_MUTATE_H
#define OZ_KERNEL_CUDA_MUTATE_H

/* name, suites, what. Those of a fused step show only there: the plain executor beside it has other kernels, or other instances. None touches memory that is
 * not the call's. */
#define OZ_CUDA_MUTATIONS(X)                                                                  \
    X(NORM_SUM_LOST, "lowered", "add + norm: the sum is not written back")                    \
    X(NORM_BEFORE_ADD, "lowered", "add + norm: the mean of what was there before")            \
    X(NORM_PADDED, "lowered", "add + norm: the mean over padded columns")                     \
    X(NORM_WEIGHT, "lowered", "add + norm: no weight on the last columns")                    \
    X(NORM_SCALE, "lowered", "norm + quantize: only the first row's scale is written")        \
    X(NORM_CODES, "lowered", "norm + quantize: codes before the weight")                      \
    X(HEADS_TURN, "lowered", "heads: q turned the other way")                                 \
    X(HEADS_KEY, "lowered", "heads: k is not turned")                                         \
    X(HEADS_VALUE, "lowered", "heads: v is turned too")                                       \
    X(HEADS_NORM, "lowered", "heads: q's norm weight for k")                                  \
    X(HEADS_SUM, "lowered", "heads: the norm of the first half")                              \
    X(HEADS_SLOT, "lowered", "heads: written to the slot before")                             \
    X(HEADS_BLOCK, "lowered", "heads: written to the sequence's first block")                 \
    X(ATTENTION_ROUND, "lowered", "attention + rounding: the other 16-bit type")              \
    X(ATTENTION_HEADS, "lowered", "attention + rounding: two heads written to one place")     \
    X(ATTENTION_SUM, "attention", "attention: the sum of the first half of a chunk")          \
    X(ATTENTION_CHUNK, "attention", "attention: the last chunk is not merged")                \
    X(TILE_CAUSAL, "attention", "attention in tiles: a row sees the next key too")            \
    X(TILE_WINDOW, "attention", "attention in tiles: a window from the beginning of a tile")  \
    X(TILE_RESCALE, "attention", "attention in tiles: sums under an old maximum are kept")    \
    X(TILE_BLOCK, "attention", "attention in tiles: a block of keys is the one before it")    \
    X(TILE_HEAD, "attention", "attention in tiles: a group's heads written to one place")     \
    X(TILE_ROUND, "lowered", "attention in tiles: rounded to the other 16-bit type")          \
    X(LATENT_HEAD, "latent", "latent: the first head's matrices for all")                     \
    X(LATENT_ROPE, "latent", "latent: the last turned column is left out")                    \
    X(LATENT_LENGTH, "lowered", "latent: a launch that reaches half of the longest sequence") \
    X(CONV_BIAS, "scan", "conv: no bias")                                                     \
    X(SCAN_KEEPS, "scan", "conv, scan: another sequence's end before the beginning")          \
    X(SCAN_ORDER, "scan", "scan: b for c, of the last value")                                 \
    X(GATE_SWAPPED, "lowered", "gate + up: gate times silu of up")                            \
    X(GATE_SCALES, "lowered", "gate + up: gate's scales for up")                              \
    X(GATE_TOKENS, "lowered", "gate + up: the fifth token of eight is not written")           \
    X(GATE_ROUND, "lowered", "gate + up: rounded to the other 16-bit type")                   \
    X(GRAPH_STATE, "lowered", "a graph of another state is kept")                             \
    X(STREAM_WARP, "products", "stream: the last warp's sum left out")                        \
    X(STREAM_SCALE, "products", "stream: a group's scale of the row eight before")            \
    X(LT_SCALE, "products", "lt: sums are not scaled")                                        \
    X(EXPAND_GROUP, "products", "expand_lt: the first group's scale")                         \
    X(GATHER_COLUMN, "products", "gathered: each column but the first meets its neighbour's input") \
    X(PLAIN_COLUMN, "products experts", "plain: the last column is not multiplied")           \
    X(RANGE_MIN, "calibration", "range: the least of a column is less its greatest")          \
    X(CLIP_LAST, "calibration", "clip: the narrowest range for all")                          \
    X(TRIAL_ZERO, "calibration", "trial: no zero points")                                     \
    X(TRIAL_SHARE, "calibration", "trial: scales of many rows are those of the first")        \
    X(GRAM_WEIGHT, "calibration", "gram: tokens count alike")                                 \
    X(FACTOR_DAMP, "calibration", "factor: nothing is added to the diagonal")                 \
    X(GPTQ_ZERO, "calibration", "tile: the searched zero point is not kept")                  \
    X(GPTQ_SWEEP, "calibration", "tile: the error of the sixth column of 16 is lost")         \
    X(GPTQ_AGAIN, "calibration", "tile: products with errors miss the sixth column of 16")    \
    X(GPTQ_FIT, "calibration", "tile: a scale is fitted without what was added to the diagonal")

typedef enum oz_cuda_mutation {
    OZ_MUTATION_NONE,
#define OZ_MUTATION_ENUM(name, suites, what) OZ_MUTATION_##name,
    OZ_CUDA_MUTATIONS(OZ_MUTATION_ENUM)
} oz_cuda_mutation;

/* After a device was opened. Weak: a checker that is linked to the ordinary room does not have it. */
#ifdef __cplusplus
extern "C"
#endif
__attribute__((weak)) void oz_cuda_mutate(oz_cuda_mutation m);

#endif
