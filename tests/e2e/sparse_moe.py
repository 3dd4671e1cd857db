"""A mixture of experts of about 10,000 tensors whose files are holes: sparse_moe.py OUT [quantized]. The last layers have their weights in a second file."""
import json, os, sys

LAYERS, EXPERTS, HIDDEN, FFN, HEAD_DIM, HEADS, KV = 32, 104, 2048, 768, 128, 16, 4
out, quantized = sys.argv[1], 'quantized' in sys.argv[2:]
config = {'architectures': ['Qwen3MoeForCausalLM'], 'model_type': 'qwen3_moe', 'hidden_size': HIDDEN, 'intermediate_size': 6144, 'moe_intermediate_size': FFN, 'num_hidden_layers': LAYERS,
          'num_attention_heads': HEADS, 'num_key_value_heads': KV, 'head_dim': HEAD_DIM, 'vocab_size': 32000, 'num_experts': EXPERTS, 'num_experts_per_tok': 8, 'norm_topk_prob': True,
          'max_position_embeddings': 32768, 'rms_norm_eps': 1e-6, 'rope_theta': 1e6, 'torch_dtype': 'bfloat16', 'tie_word_embeddings': False}
if quantized:
    gates = [f'model.layers.{l}.mlp.gate' for l in range(LAYERS)]
    weights = {'num_bits': 4, 'type': 'int', 'strategy': 'group', 'group_size': 128, 'symmetric': True, 'dynamic': False}
    config['quantization_config'] = {'quant_method': 'compressed-tensors', 'format': 'pack-quantized', 'quantization_status': 'compressed', 'version': '0.20.0', 'ignore': ['lm_head'] + gates,
                                     'config_groups': {'group_0': {'targets': ['Linear'], 'weights': weights, 'format': 'pack-quantized'}}}
files = [[], []]


def add(layer, name, dtype, shape):
    files[layer >= LAYERS - 2].append((name, dtype, shape))


def linear(layer, name, rows, cols):
    if not quantized or name.endswith(('.gate', 'lm_head')):
        return add(layer, name + '.weight', 'BF16', [rows, cols])
    add(layer, name + '.weight_packed', 'I32', [rows, cols // 8])
    add(layer, name + '.weight_scale', 'BF16', [rows, cols // 128])
    add(layer, name + '.weight_shape', 'I64', [2])


add(0, 'model.embed_tokens.weight', 'BF16', [32000, HIDDEN])
add(0, 'model.norm.weight', 'BF16', [HIDDEN])
linear(0, 'lm_head', 32000, HIDDEN)
for l in range(LAYERS):
    p = f'model.layers.{l}.'
    for n in ('input_layernorm', 'post_attention_layernorm'):
        add(l, p + n + '.weight', 'BF16', [HIDDEN])
    for n in ('q_norm', 'k_norm'):
        add(l, p + f'self_attn.{n}.weight', 'BF16', [HEAD_DIM])
    for n, rows, cols in (('q', HEADS * HEAD_DIM, HIDDEN), ('k', KV * HEAD_DIM, HIDDEN), ('v', KV * HEAD_DIM, HIDDEN), ('o', HIDDEN, HEADS * HEAD_DIM)):
        linear(l, p + f'self_attn.{n}_proj', rows, cols)
    linear(l, p + 'mlp.gate', EXPERTS, HIDDEN)
    for e in range(EXPERTS):
        for n, rows, cols in (('gate', FFN, HIDDEN), ('up', FFN, HIDDEN), ('down', HIDDEN, FFN)):
            linear(l, p + f'mlp.experts.{e}.{n}_proj', rows, cols)

os.makedirs(out)
json.dump(config, open(out + '/config.json', 'w'))
size = {'BF16': 2, 'I32': 4, 'I64': 8}
weight_map = {}
for i, tensors in enumerate(files):
    name, at, header = f'model-0000{i + 1}-of-00002.safetensors', 0, {'__metadata__': {'format': 'pt'}}
    for t, dtype, shape in tensors:
        n = size[dtype]
        for d in shape:
            n *= d
        header[t], at, weight_map[t] = {'dtype': dtype, 'shape': shape, 'data_offsets': [at, at + n]}, at + n, name
    text = json.dumps(header).encode()
    with open(f'{out}/{name}', 'wb') as f:
        f.write(len(text).to_bytes(8, 'little') + text)
        f.truncate(8 + len(text) + at)
json.dump({'weight_map': weight_map}, open(out + '/model.safetensors.index.json', 'w'))
