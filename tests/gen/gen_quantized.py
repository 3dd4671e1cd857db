#!/usr/bin/env python3
"""Writes tests/golden/quantized/NAME: tiny quantized llamas of every family and width, and what their definition makes of them in f32.

    pip install torch transformers==5.23.0 compressed-tensors==0.20.1 safetensors && python3 tests/gen/gen_quantized.py [-o DIR] [NAME ...]

Codes, scales and zero points are random; GPTQ, AWQ and the layout of before compressed-tensors 0.18 are packed here by their descriptions, all else by the library. golden/ has every
module's weight, code minus zero point times scale in f32, and the logits of transformers with these weights. Activations are not quantized, but for the cache of kv-heads.
"""
import argparse, json, os, re
import numpy as np
import torch
from compressed_tensors.compressors import pack_fp4_to_uint8, pack_to_int32
from compressed_tensors.compressors.mxfp6.helpers import pack_fp6_to_uint8
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama import modeling_llama

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../golden/quantized')
BASE = {'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], 'vocab_size': 48, 'hidden_size': 32, 'intermediate_size': 64, 'num_hidden_layers': 1, 'num_attention_heads': 4, 'num_key_value_heads': 4,
        'head_dim': 8, 'max_position_embeddings': 128, 'rms_norm_eps': 1e-6, 'rope_theta': 10000.0, 'torch_dtype': 'bfloat16', 'bos_token_id': 1, 'eos_token_id': 2, 'tie_word_embeddings': False}
L = 'model.layers.0.'
SHAPES = {L + 'self_attn.q_proj': (32, 32), L + 'self_attn.k_proj': (32, 32), L + 'self_attn.v_proj': (32, 32), L + 'self_attn.o_proj': (32, 32),
          L + 'mlp.gate_proj': (64, 32), L + 'mlp.up_proj': (64, 32), L + 'mlp.down_proj': (32, 64), 'lm_head': (48, 32), 'model.embed_tokens': (48, 32)}
LINEAR = [m for m in SHAPES if m.startswith(L)]
E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])

E2M3 = torch.tensor([m / 8 for m in range(8)] + [(1 + m / 8) * 2**e for e in range(3) for m in range(8)])
E2M3 = torch.cat([E2M3, -E2M3])


class Checkpoint:
    """Tensors as stored, and dense weights as they are meant."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.tensors, self.dense, self.config = {}, {}, None
        for m, shape in SHAPES.items(): self.put(m, torch.randn(shape, generator=self.g) * (0.3 if m in LINEAR else 1.0))
        for m in ('input_layernorm', 'post_attention_layernorm'): self.tensors[f'{L}{m}.weight'] = torch.rand(32, generator=self.g).bfloat16() + 0.5
        self.tensors['model.norm.weight'] = torch.rand(32, generator=self.g).bfloat16() + 0.5

    def put(self, m, w):
        self.tensors[m + '.weight'] = w.bfloat16()
        self.dense[m] = w.bfloat16().float()

    def random(self, shape, low, high): return torch.randint(low, high, shape, generator=self.g)

    def scales(self, shape, dtype, bits): return (torch.rand(shape, generator=self.g) * 0.5 + 0.3).to(dtype) * torch.tensor(0.6 / 2 ** (bits - 1)).to(dtype)

    def module(self, m, parts, codes, zeros, scales, columns):
        """columns: the group of each."""
        del self.tensors[m + '.weight']
        for suffix, t in parts.items(): self.tensors[f'{m}.{suffix}'] = t.contiguous()
        self.dense[m] = (codes - zeros[:, columns]).float() * scales.float()[:, columns]


def fields(values, bits, words=False):
    """[rows, n] of unsigned fields to int32 along the last dimension: one stream, or whole fields a word."""
    rows, n = values.shape
    per = 32 // bits
    out = np.zeros((rows, -(-n // per) if words else -(-n * bits // 32)), np.uint64)
    for i in range(n):
        at = i // per * 32 + i % per * bits if words else i * bits
        v = values[:, i].numpy().astype(np.uint64) << np.uint64(at % 32)
        out[:, at // 32] |= v & np.uint64(0xffffffff)
        if at % 32 + bits > 32: out[:, at // 32 + 1] |= v >> np.uint64(32)
    return torch.from_numpy(out.astype(np.uint32).view(np.int32).copy())


# ---- other families ----

def gptq_module(c, m, bits, group, v1, sym, shuffled, dtype=torch.float16):
    rows, cols = SHAPES[m]
    group = group if group > 0 else cols
    n = cols // group
    q, s = c.random((rows, cols), 0, 2 ** bits), c.scales((rows, n), dtype, bits)
    z = torch.full((rows, n), 2 ** (bits - 1)) if sym else c.random((rows, n), int(v1), 2 ** bits)
    idx = torch.arange(cols) // group
    if shuffled: idx = idx[torch.randperm(cols, generator=c.g)]
    c.module(m, {'qweight': fields(q.T.contiguous().T, bits).T, 'qzeros': fields((z - int(v1)).T.contiguous(), bits), 'scales': s.T, 'g_idx': idx.int()}, q, z, s, idx)


def gptq(bits, group=16, v1=True, sym=False, shuffled=False, rules=None):
    c = Checkpoint(100 + bits + 10 * shuffled)
    for m in LINEAR:
        b = bits
        hit = next((r for r in rules or {} if re.match(r[2:] if r[1:2] == ':' else r, m)), None)
        if hit: b = 0 if hit.startswith('-:') else rules[hit]['bits']
        if b: gptq_module(c, m, b, group, v1, sym, shuffled)
    c.config = {'quant_method': 'gptq', 'bits': bits, 'group_size': group, 'desc_act': shuffled, 'sym': sym, 'checkpoint_format': 'gptq' if v1 else 'gptq_v2', 'lm_head': False}
    if rules: c.config['dynamic'] = rules
    return c


def awq():
    c = Checkpoint(7)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    for m in LINEAR:
        rows, cols = SHAPES[m]
        n = cols // 16
        q, z, s = c.random((rows, cols), 0, 16), c.random((rows, n), 0, 16), c.scales((rows, n), torch.float16, 4)
        mix = lambda x: x.T.reshape(x.shape[1], -1, 8)[:, :, order].reshape(x.shape[1], -1)
        c.module(m, {'qweight': fields(mix(q), 4), 'qzeros': fields(mix(z), 4), 'scales': s.T}, q, z, s, torch.arange(cols) // 16)
    c.config = {'quant_method': 'awq', 'bits': 4, 'group_size': 16, 'zero_point': True, 'version': 'gemm'}
    return c


def fp8(blocks):
    c = Checkpoint(8)
    for m in LINEAR:
        rows, cols = SHAPES[m]
        w = (torch.randn(rows, cols, generator=c.g) * 100).to(torch.float8_e4m3fn)
        del c.tensors[m + '.weight']
        s = torch.rand((-(-rows // 24), cols // 16) if blocks else (), generator=c.g) * 0.002 + 0.001
        c.tensors[m + '.weight'], c.tensors[m + ('.weight_scale_inv' if blocks else '.weight_scale')] = w, s
        c.dense[m] = w.float() * (s.repeat_interleave(24, 0)[:rows].repeat_interleave(16, 1) if blocks else s)
    c.config = {'quant_method': 'fp8', 'activation_scheme': 'dynamic', 'fmt': 'e4m3', **({'weight_block_size': [24, 16]} if blocks else {})}
    return c


# ---- compressed-tensors ----

def integers(c, m, bits, group, symmetric, words=False, pack=True, dtype=torch.bfloat16):
    rows, cols = SHAPES[m]
    n = cols // group if group else 1
    half = 2 ** (bits - 1)
    q, s = c.random((rows, cols), -half, half), c.scales((rows, n), dtype, bits)
    z = torch.zeros((rows, n), dtype=torch.int64) if symmetric else c.random((rows, n), -half, half)
    parts = {'weight_scale': s}
    if not pack: parts['weight'] = q.to(torch.int8)
    else: parts.update(weight_packed=fields(q + half, bits, True) if words else pack_to_int32(q.to(torch.int8), bits), weight_shape=torch.tensor([rows, cols]))
    if not symmetric: parts['weight_zero_point'] = z.to(torch.int8) if not pack else fields((z + half).T, bits, True).T if words else pack_to_int32(z.to(torch.int8), bits, packed_dim=0)
    c.module(m, parts, q, z, s, torch.arange(cols) // (cols // n))
    return {'format': 'pack-quantized' if pack else 'naive-quantized', 'weights': {'num_bits': bits, 'type': 'int', 'symmetric': symmetric, 'strategy': 'group' if group else 'channel', 'group_size': group or None}}


def narrow(c, m, bits, nv=False):
    rows, cols = SHAPES[m]
    size = 16 if nv else 32
    n = cols // size
    values = E2M1[c.random((rows, cols), 0, 16)] if bits == 4 else E2M3[c.random((rows, cols), 0, 64)] if bits == 6 else (torch.randn(rows, cols, generator=c.g) * 50).to(torch.float8_e4m3fn)
    exponents = c.random((rows, n), 120, 125) - (5 if bits == 8 else 0)
    stored = (torch.rand((rows, n), generator=c.g) * 100 + 50).to(torch.float8_e4m3fn) if nv else exponents.to(torch.uint8)
    real = stored.float() / 600.0 if nv else torch.exp2(exponents.float() - 127)
    parts = {'weight_scale': stored}
    if bits < 8: parts['weight_packed'] = pack_fp4_to_uint8(values) if bits == 4 else pack_fp6_to_uint8(values)
    else: parts['weight'] = values
    if nv: parts['weight_global_scale'] = torch.tensor([600.0])
    c.module(m, parts, values.float(), torch.zeros(rows, n), real, torch.arange(cols) // size)
    dtype = 'torch.float8_e4m3fn' if nv else 'torch.uint8'
    return {'format': 'nvfp4-pack-quantized' if nv else f'mxfp{bits}-' + ('pack-quantized' if bits < 8 else 'quantized'),
            'weights': {'num_bits': bits, 'type': 'float', 'symmetric': True, 'strategy': 'tensor_group' if nv else 'group', 'group_size': size, 'scale_dtype': dtype, 'zp_dtype': dtype}}


def compressed(c, groups, version='0.20.1', **more):
    """groups: [(targets, scheme)]."""
    formats = {s['format'] for _, s in groups}
    named = {t for targets, _ in groups for t in targets}
    c.config = {'quant_method': 'compressed-tensors', 'quantization_status': 'compressed', 'version': version, 'format': formats.pop() if len(formats) == 1 else 'mixed-precision',
                'ignore': [m for m in SHAPES if m not in named and m != 'model.embed_tokens'],
                'config_groups': {f'group_{i}': {'targets': targets, 'input_activations': None, 'output_activations': None, **s} for i, (targets, s) in enumerate(groups)}, **more}
    return c


def widths(words):
    """Each module another width; q, k and v differ, which only some can run."""
    c = Checkpoint(20 + words)
    kinds = [(3, 16, True), (3, 16, False), (5, 16, True), (5, 0, False), (6, 16, False), (7, 16, True), (7, 0, False)] if words else \
            [(2, 16, True), (2, 16, False), (3, 16, False), (3, 0, True), (5, 16, False), (6, 0, False), (7, 16, False)]
    return compressed(c, [([m], integers(c, m, *k, words=words)) for m, k in zip(LINEAR, kinds)], '0.17.1' if words else '0.20.1')


def narrow_all():
    c = Checkpoint(30)
    kinds = [(4, True), (4, False), (8, False), (6, False), (4, False), (6, False), (4, True)]
    return compressed(c, [([m], narrow(c, m, *k)) for m, k in zip(LINEAR, kinds)])


def embeddings():
    c = Checkpoint(40)
    groups = [(['model.embed_tokens'], integers(c, 'model.embed_tokens', 8, 16, True)), (['lm_head'], integers(c, 'lm_head', 4, 16, False)),
              ([L + 'mlp.down_proj'], integers(c, L + 'mlp.down_proj', 3, 0, False, pack=False, dtype=torch.float32))]
    return compressed(c, groups)


def kv_heads():
    c = Checkpoint(50)
    groups = [(['re:.*proj$'], integers(c, LINEAR[0], 8, 0, True))]
    for m in LINEAR[1:]: integers(c, m, 8, 0, True)
    compressed(c, groups, kv_cache_scheme={'num_bits': 8, 'type': 'float', 'strategy': 'attn_head', 'dynamic': False, 'symmetric': True})
    c.config['ignore'] = ['lm_head']
    for x in 'kv': c.tensors[f'{L}self_attn.{x}_scale'] = (torch.rand(4, 1, 1, generator=c.g) * 0.01 + 0.002).bfloat16()
    c.kv = [c.tensors[f'{L}self_attn.{x}_scale'].float() for x in 'kv']
    return c


RULES = {r'-:.*v_proj': {}, r'+:.*mlp\.down_proj$': {'bits': 8}, r'.*up_proj': {'bits': 2}}
NAMES = {'gptq-2bit': lambda: gptq(2, v1=False), 'gptq-3bit': lambda: gptq(3, shuffled=True), 'gptq-8bit': lambda: gptq(8, group=-1, sym=True), 'gptq-dynamic': lambda: gptq(4, v1=False, rules=RULES),
         'pack-widths': lambda: widths(False), 'pack-words': lambda: widths(True), 'narrow-floats': narrow_all, 'quantized-embeddings': embeddings, 'kv-heads': kv_heads}
# Those that tests/interop converts besides.
MORE = {'awq': awq, 'fp8-blocks': lambda: fp8(True), 'fp8-tensor': lambda: fp8(False), 'gptq-sym': lambda: gptq(4, sym=True), 'gptq-asym': lambda: gptq(4), 'gptq-order': lambda: gptq(4, sym=True, shuffled=True)}


def logits(c, ids):
    """In f32, with the dense weights."""
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{k: v for k, v in BASE.items() if k not in ('torch_dtype', 'model_type')}), dtype=torch.float32, attn_implementation='eager')
    state = {k: v.float() for k, v in c.tensors.items() if 'norm' in k}
    state.update({m + '.weight': w for m, w in c.dense.items()})
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys and not missing.missing_keys, missing
    exact = modeling_llama.eager_attention_forward
    if hasattr(c, 'kv'):
        def rounded(module, query, key, value, *args, **kwargs):
            key, value = [((x / s).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s) for x, s in zip((key, value), c.kv)]
            return exact(module, query, key, value, *args, **kwargs)
        modeling_llama.eager_attention_forward = rounded
    with torch.no_grad(): out = model(ids[None]).logits[0]
    modeling_llama.eager_attention_forward = exact
    return out


def write(name, folder):
    c = {**NAMES, **MORE}[name]()
    os.makedirs(os.path.join(folder, 'golden'), exist_ok=True)
    config = {**BASE, 'quantization_config': c.config}
    with open(os.path.join(folder, 'config.json'), 'w') as f: json.dump(config, f, indent=2)
    save_file({k: v.contiguous() for k, v in c.tensors.items()}, os.path.join(folder, 'model.safetensors'), {'format': 'pt'})
    ids = torch.randint(0, BASE['vocab_size'], (20,), generator=c.g)
    golden = {'input_ids': ids.int(), 'logits': logits(c, ids).contiguous()}
    golden.update({f'dequantized.{m}': w.contiguous() for m, w in c.dense.items() if m + '.weight' not in c.tensors or c.tensors[m + '.weight'].dtype != torch.bfloat16})
    save_file(golden, os.path.join(folder, 'golden', 'model.safetensors'))
    with open(os.path.join(folder, 'golden', 'config.json'), 'w') as f: f.write('{}\n')


if __name__ == '__main__':
    ap = argparse.ArgumentParser()
    ap.add_argument('-o', '--output', default=OUT)
    ap.add_argument('names', nargs='*')
    a = ap.parse_args()
    for n in a.names or NAMES: write(n, os.path.join(a.output, n))
