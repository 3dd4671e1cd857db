#!/usr/bin/env python3
"""SmolLM2 requantized by llama.cpp, run by it and by ounce: whose logits are nearer to the bf16 model's?

    python gguf_kl.py OUNCE MODEL.gguf TEXT WORK [--windows 4]

MODEL.gguf is made plain (bf16, with its own metadata), then llama.cpp makes a file of each type. Windows of 1,024 tokens without overlap, every position scored.
Reference: the bf16 model in f32 (ounce); beside it, for llama.cpp, its own logits of the bf16 file, which hold its rounding of activations too. Fails where ounce's mean
KL divergence is the higher one."""
import argparse, json, os, subprocess, sys
import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file

TYPES = ('Q8_0', 'Q6_K', 'Q5_K_M', 'Q4_K_M', 'Q4_0')
CTX = 1024


def make_plain(source, target):
    r = gguf.GGUFReader(source)
    w = gguf.GGUFWriter(target, r.get_field('general.architecture').contents())
    for f in r.fields.values():
        if f.name.startswith('GGUF.') or f.name in ('general.architecture', 'general.file_type', 'general.quantization_version'): continue
        w.add_key_value(f.name, f.contents(), f.types[0], f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None)
    for t in r.tensors:
        x = gguf.dequantize(t.data, t.tensor_type)
        if x.ndim == 1: w.add_tensor(t.name, x)
        else: w.add_tensor(t.name, gguf.quantize(x, gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def requantize(source, target, name):
    p = llama_cpp.llama_model_quantize_default_params()
    p.ftype, p.nthread = getattr(llama_cpp, 'LLAMA_FTYPE_MOSTLY_' + name), 2
    log, keep = os.open(target + '.log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC), os.dup(2)  # which tensors fell back to other types
    os.dup2(log, 2)
    st = llama_cpp.llama_model_quantize(source.encode(), target.encode(), p)
    os.dup2(keep, 2), os.close(log), os.close(keep)
    if st: sys.exit(f'llama.cpp could not make {target}, see {target}.log')


class Theirs:
    def __init__(self, path, threads): self.m = llama_cpp.Llama(path, n_ctx=CTX, n_batch=CTX, n_ubatch=512, logits_all=True, n_threads=threads, n_threads_batch=threads, n_gpu_layers=0, verbose=False)

    def logits(self, ids):
        self.m.reset()
        self.m.eval(ids)
        return np.array(self.m.scores[:len(ids)], np.float32)


class Ours:
    def __init__(self, ounce, path, work): self.ounce, self.path, self.work = ounce, path, work

    def logits(self, ids):
        ids_file, out = os.path.join(self.work, 'ids'), os.path.join(self.work, 'logits.safetensors')
        open(ids_file, 'w').write(' '.join(map(str, ids)))
        subprocess.run([self.ounce, 'logits', self.path, '--ids', ids_file, '-o', out, '-q', '--device', 'cpu', '--dtype', 'f32'], check=True, stdout=subprocess.DEVNULL)
        return load_file(out)['logits']


def log_softmax(x):
    """In f32, sums in f64: logits differ by far more than what f32 rounds away."""
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)


def kl(ref, x):
    """ref, x: logits; KL of each position but the last, whose successor no window holds."""
    out = []
    for i in range(0, len(ref) - 1, 64):
        p, q = log_softmax(ref[i:min(i + 64, len(ref) - 1)]), log_softmax(x[i:min(i + 64, len(ref) - 1)])
        out.append((np.exp(p) * (p - q)).sum(-1, dtype=np.float64))
    return np.concatenate(out)


def kinds(path):
    n = {}
    for t in gguf.GGUFReader(path).tensors:
        if len(t.shape) > 1: n[t.tensor_type.name] = n.get(t.tensor_type.name, 0) + int(t.n_bytes)
    return ', '.join(f'{k} {100 * v / sum(n.values()):.0f} %' for k, v in sorted(n.items(), key=lambda x: -x[1]))


def main():
    p = argparse.ArgumentParser()
    for a in ('ounce', 'model', 'text', 'work'): p.add_argument(a)
    p.add_argument('--windows', type=int, default=4), p.add_argument('--threads', type=int, default=1)
    a = p.parse_args()
    plain = os.path.join(a.work, 'plain.gguf')
    make_plain(a.model, plain)
    text = open(a.text, 'rb').read()[:a.windows * CTX * 8]
    ids = list(map(int, subprocess.run([a.ounce, 'tokenize', a.model], input=text, stdout=subprocess.PIPE, check=True).stdout.split()))[:a.windows * CTX]
    windows = [ids[i:i + CTX] for i in range(0, len(ids), CTX)]
    ours, theirs = Ours(a.ounce, plain, a.work), Theirs(plain, a.threads)
    ref, theirs_ref = [ours.logits(w) for w in windows], [theirs.logits(w) for w in windows]
    base = np.concatenate([kl(r, t) for r, t in zip(ref, theirs_ref)]).mean()
    print(f'{len(windows)} windows of {CTX} tokens. llama.cpp\'s bf16 to the bf16 model: {base:.6f}')
    print(f'{"file":8} {"bytes":>11} {"ounce":>10} {"llama.cpp":>10} {"to its own bf16":>16}  stored as')
    failed = 0
    for name in TYPES:
        path = os.path.join(a.work, name + '.gguf')
        requantize(plain, path, name)
        ours, theirs = Ours(a.ounce, path, a.work), Theirs(path, a.threads)
        k = [[], [], []]
        for w, r, tr in zip(windows, ref, theirs_ref):
            t = theirs.logits(w)
            k[0].append(kl(r, ours.logits(w))), k[1].append(kl(r, t)), k[2].append(kl(tr, t))
        own, their, their_own = (np.concatenate(x).mean() for x in k)
        failed += int(own > min(their, their_own))
        print(f'{name:8} {os.path.getsize(path):11,} {own:10.6f} {their:10.6f} {their_own:16.6f}  {kinds(path)}', flush=True)
    sys.exit(failed > 0)


if __name__ == '__main__': main()
