#!/usr/bin/env python3
"""Do the checkpoints that `ounce convert --to compressed-tensors` and `ounce quantize --method` write mean to compressed-tensors and transformers what they mean to us?

  convert.py OUNCE WORK [--only NAME,...]

Sources: tiny llamas of every family and scheme (tests/gen/gen_quantized.py), GGUFs of the tests, what `ounce quantize` makes of a small model, and hybrids of those. Each is converted,
but for what --method makes of a small model and of one with experts, which is read as it was written. Every module's weight, dequantized by the library, must equal `ounce convert --to f32` to the bit.
Where transformers 5.23 loads the result, it loads without a missing or unexpected tensor, and logits agree to a mean KL of 1e-3. The library scales int8 inputs by amax/127.5 and we by
amax/127, which moves logits: it is made to scale as we do. Where it cannot load (asymmetric pack-quantized, experts of several schemes or of int8 in bytes, an order of columns, which 0.20 refuses), the library's
decompressor is called module by module; columns are put in order here.
"""
import argparse, json, os, re, shutil, subprocess, sys, warnings

os.environ.update(HF_HUB_OFFLINE='1', TRANSFORMERS_VERBOSITY='error', TQDM_DISABLE='1', CUDA_VISIBLE_DEVICES='')
warnings.filterwarnings('ignore')
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../gen'))

import gen_quantized
import torch
from compressed_tensors.compressors import BaseCompressor, unpack_from_int32
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle import forward
from compressed_tensors.utils import match_name
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ap = argparse.ArgumentParser()
ap.add_argument('ounce')
ap.add_argument('work')
ap.add_argument('--only', default='')
a = ap.parse_args()
rows = []


def path(*names): return os.path.join(a.work, 'convert', *names)


def check(name, value, good, limit):
    rows.append(good)
    print(f"{'ok  ' if good else 'FAIL'}  {name:44} {value:>34}  {limit}", flush=True)


def ounce(*args):
    p = subprocess.run([a.ounce, *map(str, args), '-q'], capture_output=True, text=True)
    if p.returncode: sys.exit(f"ounce {' '.join(map(str, args))}: {p.stderr.strip()}")


def tensors(folder):
    out = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith('.safetensors'): out.update(load_file(os.path.join(folder, f)))
    return out


def config(folder): return json.load(open(os.path.join(folder, 'config.json')))


def floats(folder):
    ounce('convert', folder, '-o', path('dense'), '--to', 'f32', '--force')
    return tensors(path('dense'))


# ---- through the library's decompressor ----

def scheme_of(groups, module):
    """The group of a module as written: exact name, expression, class name."""
    ranked = sorted((('re:' in t, t == 'Linear', i), g) for i, g in enumerate(groups.values()) for t in g['targets'] if t == 'Linear' or match_name(module, t))
    return ranked[0][1] if ranked else None


def decompress(stored, module, group):
    parts = {k[len(module) + 1:]: v for k, v in stored.items() if k.startswith(module + '.') and not k.endswith('.bias')}
    order = parts.pop('weight_g_idx', None)
    args = dict(group['weights'], actorder=None)
    scheme = QuantizationScheme(targets=[module], weights=args, input_activations=group['input_activations'], format=group['format'])
    if parts['weight_scale'].is_floating_point() and parts['weight_scale'].dtype != torch.float8_e4m3fn: parts['weight_scale'] = parts['weight_scale'].float()
    if order is None: return BaseCompressor.get_value_from_registry(group['format']).decompress(parts, scheme)['weight']
    codes = unpack_from_int32(parts['weight_packed'], args['num_bits'], torch.Size(parts['weight_shape'].tolist())).float()
    idx, zeros = order.long(), parts.get('weight_zero_point')
    if zeros is not None: zeros = unpack_from_int32(zeros, args['num_bits'], torch.Size([codes.shape[0], parts['weight_scale'].shape[1]]), packed_dim=0)
    return (codes - (zeros.float()[:, idx] if zeros is not None else 0)) * parts['weight_scale'][:, idx]


def through_decompressor(name, folder, dense):
    stored, groups, differ, total = tensors(folder), config(folder)['quantization_config']['config_groups'], 0, 0
    for key in stored:
        if not key.endswith('.weight_scale'): continue
        module = key[:-len('.weight_scale')]
        theirs, total = decompress(stored, module, scheme_of(groups, module)), total + 1
        differ += not torch.equal(theirs, dense[module + '.weight'].to(theirs.dtype))
    check(f'{name}: decompressor', f'{differ} of {total} weights differ', differ == 0 and total > 0, 'bit for bit, in its type')


# ---- through transformers ----

def kl(p, q):
    x, y = torch.log_softmax(p.double(), -1), torch.log_softmax(q.double(), -1)
    return (x.exp() * (x - y)).sum(-1).mean().item()


def logits(folder, ids):
    with open(path('ids'), 'w') as f: f.write(' '.join(map(str, ids)))
    ounce('logits', folder, '--ids', path('ids'), '-o', path('logits.safetensors'), '--dtype', 'f32')
    return load_file(path('logits.safetensors'))['logits']


library_scales = forward.compute_dynamic_scales_and_zp


def our_scales(value, args, *more, **named):
    """Of inputs in int8: amax / 127."""
    scale, zero = library_scales(value, args, *more, **named)
    return (scale * 127.5 / 127 if args.type == 'int' and args.num_bits == 8 and args.symmetric else scale), zero


forward.compute_dynamic_scales_and_zp = our_scales


def with_experts(dense):
    """The experts of a layer as transformers holds them, besides."""
    out, part = dict(dense), lambda layer, e, p: dense[f'{layer}.{e}.{p}_proj.weight']
    for layer in sorted({k[:k.index('.experts.') + len('.experts')] for k in dense if '.experts.' in k}):
        n = 1 + max(int(k[len(layer) + 1:].split('.')[0]) for k in dense if k.startswith(layer + '.'))
        out[layer + '.gate_up_proj'] = torch.stack([torch.cat([part(layer, e, 'gate'), part(layer, e, 'up')]) for e in range(n)])
        out[layer + '.down_proj'] = torch.stack([part(layer, e, 'down') for e in range(n)])
    return out


def experts_read_floats(folder):
    """The same checkpoint, but that experts take their inputs as they are, which transformers 5.23 does whatever the scheme says of them."""
    copy, c = path('floats-read'), config(folder)
    groups = c['quantization_config']['config_groups']
    if not any(g['input_activations'] for g in groups.values()): return folder
    for n, g in list(groups.items()): groups[n + '_experts'] = dict(g, targets=[r're:.*\.experts\..*'] if g['targets'] == ['Linear'] else [t for t in g['targets'] if 'experts' in t], input_activations=None)
    for n, g in list(groups.items()):
        if not n.endswith('_experts'): g['targets'] = [t for t in g['targets'] if 'experts' not in t]
        if not g['targets']: del groups[n]
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    with open(os.path.join(copy, 'config.json'), 'w') as f: json.dump(c, f)
    return copy


def through_transformers(name, folder, dense):
    narrow = any('fp4' in g['format'] or 'mx' in g['format'] for g in config(folder)['quantization_config']['config_groups'].values())
    dtype = torch.bfloat16 if narrow else torch.float32  # it dequantizes those to bf16 alone
    # the pad token that transformers assumes is outside of tiny vocabularies
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, pad_token_id=0)
    bad = {k: v for k, v in info.items() if v}
    check(f'{name}: loads', 'nothing missing or unexpected' if not bad else str(bad)[:60], not bad, '')
    ids = torch.arange(40) * 7 % config(folder)['vocab_size']
    model.eval()
    with torch.no_grad():
        model(ids[None])  # the first pass dequantizes
        types = {k: w.dtype for k, w in model.state_dict().items()}  # experts that were packed are dequantized to bf16, whatever is asked for
        theirs = torch.nn.Module.float(model)(ids[None]).logits[0]
    want = with_experts(dense)
    differ = [k for k, w in want.items() if k in types and not torch.equal(model.state_dict()[k], w.to(types[k]).float())]
    lost = [k for k in want if k not in types and '.experts.' not in k]
    check(f'{name}: transformers', f'{len(differ)} of {len(want.keys() & types.keys())} weights differ', not differ and not lost, 'as ' + ', '.join(sorted({str(types[k])[6:] for k in want if k in types})))
    ours = logits(folder if not any('.experts.' in k for k in want) else experts_read_floats(folder), ids.tolist())
    check(f'{name}: logits', f'mean KL {kl(theirs, ours):.2e}', kl(theirs, ours) < 1e-3, '1e-3')


def through_floats(name, folder):
    """The logits of transformers with the weights that the decompressor gave, which are those of the floats that we made of the folder."""
    model = AutoModelForCausalLM.from_pretrained(path('dense'), dtype=torch.float32, pad_token_id=0).eval()
    ids = torch.arange(40) * 7 % config(folder)['vocab_size']
    with torch.no_grad(): theirs = model(ids[None]).logits[0]
    ours = logits(folder, ids.tolist())
    check(f'{name}: logits of its floats', f'mean KL {kl(theirs, ours):.2e}', kl(theirs, ours) < 1e-3, '1e-3')


# ---- one checkpoint ----

def one(name, source, more):
    """more: options of the conversion; None: the source is read as it is."""
    folder = source if more is None else path(name + '-ct')
    if more is not None: ounce('convert', source, '-o', folder, '--to', 'compressed-tensors', '--force', *more)
    if subprocess.run([a.ounce, 'verify', folder], capture_output=True).returncode: check(f'{name}: verify', 'findings', False, '')
    q = config(folder)['quantization_config']
    groups = q['config_groups'].values()
    dense = floats(folder)
    if more == []:
        original = floats(source)
        differ = [k for k in original if not torch.equal(original[k], dense[k])]
        check(f'{name}: nothing lost', f'{len(differ)} of {len(dense)} tensors differ', not differ and original.keys() == dense.keys(), 'equal values')
    ordered = any(g['weights']['actorder'] for g in groups)
    try: QuantizationConfig.model_validate(q)
    except Exception: check(f'{name}: config', 'refused', ordered, 'an order of columns is')
    else: check(f'{name}: config', 'valid', not ordered, 'compressed-tensors 0.20')
    if name == 'pack-words': return check(f'{name}: its layout', q['version'], q['version'] == '0.17.1', 'kept; 0.20 misreads it')
    through_decompressor(name, folder, dense)
    experts = [scheme_of(q['config_groups'], k[:-len('.weight_scale')]) for k in tensors(folder) if '.experts.' in k and k.endswith('.weight_scale')]
    by_hand = ordered or any(g != experts[0] or g['format'] == 'int-quantized' for g in experts)  # transformers takes one scheme for all experts, and no bytes of int8
    by_hand = by_hand or any(g['format'] == 'pack-quantized' and not g['weights']['symmetric'] for g in groups)
    if not by_hand: return through_transformers(name, folder, dense)
    if not any(g['input_activations'] for g in groups): through_floats(name, folder)


SMALL = dict(model_type='llama', hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, num_key_value_heads=2, torch_dtype='bfloat16', initializer_range=0.1,
             tie_word_embeddings=False, architectures=['LlamaForCausalLM'])
EXPERTS = dict(SMALL, model_type='qwen3_moe', architectures=['Qwen3MoeForCausalLM'], head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, decoder_sparse_step=1, mlp_only_layers=[],
               norm_topk_prob=True, pad_token_id=0)


def small(name, scheme, shape=SMALL):
    """A model of random weights, made once, or the same under a scheme."""
    dense = path(shape['model_type'])
    if not os.path.isdir(dense):
        with open(dense + '.json', 'w') as f: json.dump(shape, f)
        ounce('synth', dense + '.json', '-o', dense, '--seed', 1)
    if not scheme: return dense
    ounce('quantize', dense, '-o', path(name), '--scheme', scheme, '--force', *(['--group-size', 32] if scheme.startswith('W4A') else []), *(calibration() if scheme == 'FP8' else []))
    return path(name)


def calibration():
    with open(path('text.jsonl'), 'w') as f:
        for i in range(8): f.write(json.dumps({'ids': [(i * 31 + j * 7) % 64 for j in range(32)]}) + '\n')
    return ['--calibration', path('text.jsonl'), '--num-calibration-samples', 8]


def weights(num_bits, strategy, **more): return {'weights': dict(num_bits=num_bits, strategy=strategy, **more)}


# What several groups of a recipe make, of a dense model and of one with experts.
RECIPES = {
    'recipe of weights': {'a': weights(4, 'group', group_size=32) | {'targets': ['re:.*(gate|up)_proj$']}, 'b': weights(8, 'channel') | {'targets': ['Linear']}, 'c': {'targets': ['re:.*k_proj$']}},
    'recipe of inputs': {'a': weights(8, 'channel') | {'input_activations': dict(num_bits=8, strategy='token', dynamic=True), 'targets': ['re:.*mlp.*']},
                       'b': weights(8, 'tensor', type='float') | {'input_activations': dict(num_bits=8, type='float', strategy='tensor'), 'targets': ['re:.*self_attn.*']}},
}


def by_recipe(name, groups, shape=SMALL):
    with open(path(name + '.json'), 'w') as f: json.dump({'quant_stage': {'quant_modifiers': {'QuantizationModifier': {'ignore': ['lm_head'], 'config_groups': groups}}}}, f)
    ounce('quantize', small(None, None, shape), '-o', path(name), '--recipe', path(name + '.json'), '--force', *(calibration() if 'inputs' in name else []))
    return path(name)


def by_budget(name, size, shape, *more):
    ounce('quantize', small(None, None, shape), '-o', path(name), '--target-bytes', size, *more, '--force', *calibration())
    return path(name)


METHODS = ('gptq', 'imatrix', 'awq', 'smoothquant', 'smoothquant+gptq', 'awq+gptq')


def by_method(method, scheme, model, *options):
    """scheme None: chosen for each module."""
    more = ['--scheme', scheme] if scheme else ['--target-bytes', 200000 if model is SMALL else 170000]
    ounce('quantize', model if isinstance(model, str) else small(None, None, model), '-o', path('made'), *more, *(['--group-size', 32] if scheme and scheme.startswith('W4A') else []), '--method', method, '--force', *calibration(), *options)
    return path('made')


def made():
    for m in METHODS:
        for s in ('W4A16', 'W4A16_ASYM', 'W8A16', 'W8A8', 'W8A8_STATIC', 'W4A8', 'FP8_DYNAMIC', *(['FP8'] if m != 'imatrix' else []), None): yield f'{m} {s or "target bytes"}', lambda m=m, s=s: by_method(m, s, SMALL)
        for s in ('W4A16', 'W8A16', 'W8A8', 'FP8_DYNAMIC', None): yield f'{m} {s or "target bytes"} experts', lambda m=m, s=s: by_method(m, s, EXPERTS)
    for kv in ('fp8', 'fp8_per_head', 'int8', 'int8_per_head'):
        for m in ('rtn', 'gptq'): yield f'{m} W8A16 {kv} cache', lambda m=m, kv=kv: by_method(m, 'W8A16', SMALL, '--kv-cache-scheme', kv)
    yield 'gptq W4A16 shown all experts', lambda: by_method('gptq', 'W4A16', EXPERTS, '--moe-calibrate-all-experts')
    for n in ('qwen2', 'qwen3', 'phi3', 'gemma2', 'gemma3', 'mistral'): # with biases, norms of heads, fused projections, norms that hold what is more than 1
        for m, s in (('smoothquant+gptq', 'W8A8'), ('awq+gptq', 'W8A16')): yield f'{m} {s} {n}', lambda m=m, s=s, n=n: by_method(m, s, f'tests/golden/models/{n}')


def sources():
    for n in [*gen_quantized.NAMES, *gen_quantized.MORE]: yield n, lambda n=n: (gen_quantized.write(n, path(n)), path(n))[1], []
    for n in ('gemma3', 'phi3', 'mixtral'): yield n + '.gguf', lambda n=n: f'tests/golden/gguf/{n}.gguf', []
    for n in ('llama', 'types'): yield n + '.gguf', lambda n=n: f'tests/golden/gguf/{n}.gguf', ['--lossy']
    for s in ('W4A16', 'W8A16', 'W8A8', 'FP8_DYNAMIC', 'W4A16_ASYM', 'W4A8', 'FP8_BLOCK', 'FP8'): yield s, lambda s=s: small(s, s), []
    for n, groups in RECIPES.items():
        yield n, lambda n=n, groups=groups: by_recipe(n, groups), []
        yield n + ' with experts', lambda n=n, groups=groups: by_recipe(n + '-experts', groups, EXPERTS), []
    yield 'budget', lambda: by_budget('budget', 200000, SMALL), [] # of 4 bits with zero points, and of 8
    yield 'budget without zero points', lambda: by_budget('budget-rich', 400000, SMALL, '--scheme', 'W8A16'), []
    yield 'budget with experts', lambda: by_budget('budget-experts', 170000, EXPERTS, '--method', 'gptq'), []
    take = lambda pattern, s, shape=SMALL: ['--take', f'{pattern}={small(str(s) + "-" + shape["model_type"], s, shape)}']
    yield 'hybrid of widths', lambda: small('W4A16', 'W4A16'), take(r're:.*down_proj', None) + take(r're:.*layers\.1\.self_attn', 'W8A16')
    yield 'hybrid of inputs', lambda: small('W8A8', 'W8A8'), take(r're:.*down_proj', None) + take(r're:.*layers\.0\.self_attn', 'W4A16') + take(r're:.*layers\.1\.self_attn', 'FP8_DYNAMIC')
    yield 'hybrid by layer', lambda: small('W8A16', 'W8A16'), take(r're:.*layers\.1\..*up_proj', 'W4A16') + take(r're:.*layers\.1\..*gate_proj', 'W4A16')
    yield 'experts', lambda: small('experts', 'W8A16', EXPERTS), []
    for e in ('experts_int8', 'experts_fp8', 'experts_w8a8'): yield e, lambda e=e: small(e, e, EXPERTS), []
    for name, source in made(): yield name, source, None
    yield 'hybrid with experts', lambda: small('experts', 'W8A16', EXPERTS), take(r're:.*self_attn', 'W4A16', EXPERTS)


os.makedirs(path(), exist_ok=True)
for name, source, more in sources():
    if not a.only or name in a.only.split(','): one(name, source(), more)
print(f'{sum(rows)} good, {len(rows) - sum(rows)} bad')
sys.exit(0 if all(rows) else 1)
