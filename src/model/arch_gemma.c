/* Gemma (transformers GemmaForCausalLM): Llama's blocks with embeddings times sqrt(hidden_size), norms that store w - 1 and tanh GELU, which early
 * configs call "gelu". */
#include <math.h>
#include <string.h>
#include "base/json.h"
#include "model/internal.h"

static const oz_arch_row *const tables[] = {oz_rows_top, oz_rows_gqa, oz_rows_ffn_norm, oz_rows_gated_ffn, NULL};

static oz_status config(oz_dims *d, const json_t *c, oz_err *err) {
    const char *act = "gelu";
    d->embed_scale = sqrt((double)d->hidden_size);
    OZ_TRY(oz_json_str(&act, c, "config.json", "hidden_act", err));
    OZ_NEED(strcmp(act, "gelu") == 0 || strcmp(act, "gelu_pytorch_tanh") == 0, err, OZ_E_UNSUPPORTED, "config.json.hidden_act: \"%s\" is not run here; known: gelu_pytorch_tanh", act);
    return OZ_OK;
}

const oz_arch oz_arch_gemma = {.model_type = "gemma",
                               .tables = tables,
                               .defaults = {.head_dim = 256, .max_position = 8192, .glu = OZ_GLU_GELU_TANH, .features = OZ_F_TIED | OZ_F_NORM_PLUS_1},
                               .act_key = "hidden_activation",
                               .config = config,
                               .layer = oz_layer_dense};
