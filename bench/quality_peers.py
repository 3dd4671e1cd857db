#!/usr/bin/env python3
"""The peers of docs/quality.md, on one bf16 model and one calibration text: checkpoints by llm-compressor, files by llama.cpp and their KL divergence.

    python quality_peers.py make NAME MODEL CALIBRATION OUT       llm-compressor, one row of RECIPES, on the CPU
    python quality_peers.py importance MODEL CALIBRATION OUT      mean square of each linear's inputs, in f32: what llama.cpp's quantizer takes as importance
    python quality_peers.py gguf MODEL IMPORTANCE WINDOWS WORK    llama.cpp: its own files of MODEL, by that importance, against its own f32 of it

MODEL is Llama-shaped, in one safetensors file; CALIBRATION a JSON-lines file of {"ids": [...]}; WINDOWS a JSON array of arrays of ids. Files that WORK has already
are not made again. `ounce kl` measures what make leaves; gguf prints its rows as JSON lines."""
import ctypes, json, os, resource, sys
import numpy as np

GROUP = 64  # 128 does not divide SmolLM2's 576 columns
RECIPES = {  # name: a preset, or bits and whether symmetric and the group (None: a scale a row); strength of SmoothQuant; codes by GPTQ
    'W8A16': ((8, True, None), None, False),
    'W8A8': ('W8A8', 0.8, True),
    'FP8_DYNAMIC': ('FP8_DYNAMIC', None, False),
    'W4A16': ((4, True, GROUP), None, True),
    'W4A16_ASYM': ((4, False, GROUP), None, True),
}
FILES = 'Q4_0', 'Q4_K_M', 'Q6_K'
NAMES = {'self_attn.q_proj': 'attn_q', 'self_attn.k_proj': 'attn_k', 'self_attn.v_proj': 'attn_v', 'self_attn.o_proj': 'attn_output', 'mlp.gate_proj': 'ffn_gate',
         'mlp.up_proj': 'ffn_up', 'mlp.down_proj': 'ffn_down', 'input_layernorm': 'attn_norm', 'post_attention_layernorm': 'ffn_norm'}


def calibration(path):
    return [json.loads(line)['ids'] for line in open(path, encoding='utf-8')]


def make(name, model, text, out):
    import datasets
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
    weights, strength, gptq = RECIPES[name]
    if isinstance(weights, str): what = {'targets': ['Linear'], 'scheme': weights}
    else:
        bits, symmetric, group = weights
        args = {'num_bits': bits, 'type': 'int', 'symmetric': symmetric, 'strategy': 'group' if group else 'channel', 'group_size': group}
        what = {'config_groups': {'group_0': {'targets': ['Linear'], 'weights': args}}}
    recipe = [SmoothQuantModifier(smoothing_strength=strength)] if strength else []
    recipe.append((GPTQModifier if gptq else QuantizationModifier)(ignore=['lm_head'], **what))
    data = {}
    if strength or gptq:
        ids = calibration(text)
        rows = datasets.Dataset.from_dict({'input_ids': ids, 'attention_mask': [[1] * len(x) for x in ids]})
        data = {'dataset': rows, 'max_seq_length': max(map(len, ids)), 'num_calibration_samples': len(ids), 'shuffle_calibration_samples': False}
    oneshot(model=model, recipe=recipe, precision='bfloat16', output_dir=out, **data)
    use = resource.getrusage(resource.RUSAGE_SELF)
    json.dump({'cpu_s': use.ru_utime + use.ru_stime, 'peak_rss_bytes': use.ru_maxrss * 1024}, open(os.path.join(out, 'made.json'), 'w'))


def gguf_name(name):
    """model.layers.3.mlp.up_proj -> blk.3.ffn_up.weight"""
    if name == 'model.embed_tokens': return 'token_embd.weight'
    if name == 'model.norm': return 'output_norm.weight'
    _, _, layer, part = name.split('.', 3)
    return f'blk.{layer}.{NAMES[part]}.weight'


def importance(model, text, out):
    import torch, transformers
    net = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).model
    sums = {}
    for name, m in net.named_modules(prefix='model'):
        if not isinstance(m, torch.nn.Linear): continue
        def see(m, inputs, name=gguf_name(name)):
            x = inputs[0].reshape(-1, m.in_features)
            s = sums.setdefault(name, [torch.zeros(m.in_features, dtype=torch.float64), 0])
            s[0] += (x * x).sum(0, dtype=torch.float64)
            s[1] += len(x)
        m.register_forward_pre_hook(see)
    with torch.inference_mode():
        for ids in calibration(text): net(torch.tensor([ids]), use_cache=False)
    with open(out, 'wb') as f: np.savez(f, **{k: (s / n).to(torch.float32).numpy() for k, (s, n) in sums.items()})


def write_gguf(model, out):
    """MODEL in f32, without a tokenizer. llama.cpp has the two halves of a head's rotary dimensions interleaved."""
    import gguf, torch
    from safetensors import safe_open
    c = json.load(open(os.path.join(model, 'config.json')))
    n_heads, n_kv = c['num_attention_heads'], c['num_key_value_heads']
    w = gguf.GGUFWriter(out, 'llama')
    w.add_context_length(c['max_position_embeddings']), w.add_embedding_length(c['hidden_size']), w.add_feed_forward_length(c['intermediate_size'])
    w.add_block_count(c['num_hidden_layers']), w.add_head_count(n_heads), w.add_head_count_kv(n_kv), w.add_layer_norm_rms_eps(c['rms_norm_eps'])
    w.add_rope_freq_base(c.get('rope_theta') or c['rope_parameters']['rope_theta']), w.add_rope_dimension_count(c['hidden_size'] // n_heads)
    w.add_vocab_size(c['vocab_size']), w.add_tokenizer_model('none')
    interleaved = {'q_proj': n_heads, 'k_proj': n_kv}
    with safe_open(os.path.join(model, 'model.safetensors'), 'pt') as f:
        for key in f.keys():
            name, x = key.removesuffix('.weight'), f.get_tensor(key).to(torch.float32).numpy()
            n = interleaved.get(name.rsplit('.', 1)[-1])
            if n: x = x.reshape(n, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
            w.add_tensor(gguf_name(name), np.ascontiguousarray(x))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def quantize_gguf(source, out, kind, weights):
    import llama_cpp as l
    p = l.llama_model_quantize_default_params()
    p.ftype, p.nthread = getattr(l, 'LLAMA_FTYPE_MOSTLY_' + kind), 1
    rows = [l.llama_model_imatrix_data(k.encode(), v.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), v.size) for k, v in weights.items()]
    p.imatrix = (l.llama_model_imatrix_data * (len(rows) + 1))(*rows)  # an entry without a name ends them
    if l.llama_model_quantize(source.encode(), (out + '.part').encode(), p): sys.exit(f'error: {out}: llama.cpp could not make it')
    os.rename(out + '.part', out)


class Llama:
    """llama.cpp with nothing rounded but by the file's own types: cache in f32, no flash attention."""

    def __init__(self, path, ctx):
        import llama_cpp as l
        self.l, mp, cp = l, l.llama_model_default_params(), l.llama_context_default_params()
        mp.n_gpu_layers = 0
        cp.n_ctx = cp.n_batch = ctx
        cp.n_ubatch, cp.n_threads, cp.n_threads_batch, cp.type_k, cp.type_v, cp.flash_attn_type = 512, 1, 1, l.GGML_TYPE_F32, l.GGML_TYPE_F32, l.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.model = l.llama_model_load_from_file(path.encode(), mp)
        self.ctx = self.model and l.llama_init_from_model(self.model, cp)
        if not self.ctx: sys.exit(f'error: {path}: llama.cpp could not open it')
        self.vocab, self.batch = l.llama_vocab_n_tokens(l.llama_model_get_vocab(self.model)), l.llama_batch_init(ctx, 0, 1)

    def logits(self, ids):
        """[ids, vocabulary], valid until the next call."""
        b = self.batch
        b.n_tokens = len(ids)
        for i, x in enumerate(ids): b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = x, i, 1, 0, 1
        self.l.llama_memory_clear(self.l.llama_get_memory(self.ctx), True)
        if self.l.llama_decode(self.ctx, b): sys.exit('error: llama_decode failed')
        return np.ctypeslib.as_array(self.l.llama_get_logits(self.ctx), (len(ids), self.vocab))


def log_softmax(x):
    """In f32, sums in f64: logits differ by far more than what f32 rounds away."""
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)


def window(ref, others, ids):
    """[others, 3]: means over a window's positions but the last, whose successor it does not hold, of KL, of the same first token, of negative log likelihood."""
    n, sums = len(ids) - 1, np.zeros((len(others), 3))
    for i in range(0, n, 64):
        at = slice(i, min(i + 64, n))
        p, successors = log_softmax(ref[at]), np.array(ids)[i + 1:at.stop + 1, None]
        share, first = np.exp(p), p.argmax(-1)
        for row, x in zip(sums, others):
            q = log_softmax(x[at])
            row += (share * (p - q)).sum(dtype=np.float64), (first == q.argmax(-1)).sum(), -np.take_along_axis(q, successors, 1).sum(dtype=np.float64)
    return sums / n


def linears(path):
    """Bytes of the linear modules, and how many of them are of each type."""
    import gguf
    size, kinds = 0, {}
    for t in gguf.GGUFReader(path).tensors:
        if not t.name.startswith('blk.') or len(t.shape) < 2: continue
        size += int(t.n_bytes)
        kinds[t.tensor_type.name] = kinds.get(t.tensor_type.name, 0) + 1
    return size, kinds


def measure_gguf(model, weights, windows, work):
    import llama_cpp as l
    global log  # a callback must outlive its use
    log = l.llama_log_callback(lambda level, text, arg: None)
    l.llama_log_set(log, ctypes.c_void_p(0))
    l.llama_backend_init()
    weights, windows = dict(np.load(weights)), json.load(open(windows))
    plain = os.path.join(work, 'f32.gguf')
    if not os.path.exists(plain): write_gguf(model, plain + '.part'), os.rename(plain + '.part', plain)
    paths = [os.path.join(work, kind + '.gguf') for kind in FILES]
    for kind, path in zip(FILES, paths):
        if not os.path.exists(path): quantize_gguf(plain, path, kind, weights)
    base, others, seen = Llama(plain, len(windows[0])), [Llama(path, len(windows[0])) for path in paths], []
    for i, ids in enumerate(windows):  # all files a window at a time: the reference's logits are computed once and never stored
        seen.append(window(base.logits(ids), [x.logits(ids) for x in others], ids))
        print(f'window {i + 1} of {len(windows)}: KL ' + ', '.join(f'{kind} {x:.6f}' for kind, x in zip(FILES, seen[-1][:, 0])), file=sys.stderr, flush=True)
    error = np.std(seen, 0, ddof=1)[:, 0] / len(seen) ** 0.5 if len(seen) > 1 else [0.] * len(FILES)
    for kind, path, (kl, same, nll), e in zip(FILES, paths, np.mean(seen, 0), error):
        size, kinds = linears(path)
        print(json.dumps({'name': kind, 'bytes': size, 'kinds': kinds, 'positions': sum(len(ids) - 1 for ids in windows), 'mean_kl': kl, 'kl_se_windows': e,
                          'top1_agreement': same, 'ppl': np.exp(nll)}))


if __name__ == '__main__':
    commands = {'make': (make, 4), 'importance': (importance, 3), 'gguf': (measure_gguf, 4)}
    if len(sys.argv) < 2 or sys.argv[1] not in commands or len(sys.argv) - 2 != commands[sys.argv[1]][1]: sys.exit(__doc__)
    commands[sys.argv[1]][0](*sys.argv[2:])
