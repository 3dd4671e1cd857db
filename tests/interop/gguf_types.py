#!/usr/bin/env python3
"""Every GGUF type, dequantized by `ounce convert --to f32`, against the gguf package: bit for bit.

    python gguf_types.py OUNCE WORK

Blocks are random bytes in every field; the f16 numbers among them are finite, and the first blocks have their extremes: zero of both signs, the
largest, the smallest subnormal. A tensor that llama files keep interleaved (attn_q) is compared after putting its rows in order."""
import argparse, os, struct, subprocess, sys
import numpy as np
import gguf
from gguf import GGMLQuantizationType as T, GGML_QUANT_SIZES
from safetensors.numpy import load_file

HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2],
          T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: []}
EXTREMES = [0x0000, 0x8000, 0x7bff, 0xfbff, 0x0001, 0x8001, 0x03ff, 0x0400]
HIDDEN, HEADS, ROWS = 512, 4, 64


def blocks(rng, kind, rows, cols):
    if kind in (T.F32, T.F16, T.BF16):
        raw = rng.integers(0, 256, (rows, cols * (4 if kind == T.F32 else 2)), dtype=np.uint8)
        hi = raw.reshape(rows, cols, -1)[..., -1]
        hi[...] = np.where(hi & 0x7c >= 0x78, hi & 0x8f, hi)  # no infinities
        return raw
    n, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * cols // n, size), dtype=np.uint8)
    for at in HALVES[kind]:
        h = rng.integers(0, 1 << 16, len(raw), dtype=np.uint16)
        h[h & 0x7c00 == 0x7c00] &= 0x83ff
        h[:64] = np.resize(EXTREMES if at % 4 == 0 else EXTREMES[::-1], 64)
        raw[:, at:at + 2] = h.view(np.uint8).reshape(-1, 2)
    if kind == T.MXFP4: raw[:256, 0] = np.arange(256)[:len(raw)]
    return raw.reshape(rows, -1)


def write(path, kind, rng):
    w = gguf.GGUFWriter(path, 'llama')
    w.add_block_count(1), w.add_context_length(128), w.add_embedding_length(HIDDEN), w.add_feed_forward_length(HIDDEN)
    w.add_head_count(HEADS), w.add_head_count_kv(HEADS), w.add_layer_norm_rms_eps(1e-5)
    raw = {n: blocks(rng, kind, ROWS if n == 'token_embd' else HIDDEN, HIDDEN) for n in ('token_embd', 'blk.0.attn_q', 'blk.0.ffn_down')}
    for n, r in raw.items():
        w.add_tensor(n + '.weight', r, raw_dtype=kind) if kind not in (T.F32, T.F16) else w.add_tensor(n + '.weight', r.view(np.float32 if kind == T.F32 else np.float16))
    for n in ('output_norm', 'blk.0.attn_norm', 'blk.0.ffn_norm'): w.add_tensor(n + '.weight', np.ones(HIDDEN, np.float32))
    for n in ('attn_k', 'attn_v', 'attn_output', 'ffn_gate', 'ffn_up'): w.add_tensor(f'blk.0.{n}.weight', np.zeros((HIDDEN, HIDDEN), np.float32))  # only whole models are converted
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
    return {n: gguf.dequantize(r, kind) for n, r in raw.items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument('ounce'), p.add_argument('work')
    a = p.parse_args()
    rng, failed = np.random.default_rng(20261129), 0
    for kind in [T.F32, T.F16, T.BF16, *HALVES]:
        path, out = os.path.join(a.work, kind.name + '.gguf'), os.path.join(a.work, kind.name + '-f32')
        with np.errstate(all='ignore'): want = write(path, kind, rng)
        subprocess.run([a.ounce, 'convert', path, '-o', out, '--to', 'f32', '--force', '-q'], check=True)
        got = load_file(os.path.join(out, 'model.safetensors'))
        q = want['blk.0.attn_q']
        want['blk.0.attn_q'] = q.reshape(HEADS, HIDDEN // HEADS // 2, 2, HIDDEN).swapaxes(1, 2).reshape(q.shape)
        names = {'token_embd': 'model.embed_tokens', 'blk.0.attn_q': 'model.layers.0.self_attn.q_proj', 'blk.0.ffn_down': 'model.layers.0.mlp.down_proj'}
        bad = sum(int((got[h + '.weight'].view(np.uint32) != np.ascontiguousarray(want[n], np.float32).view(np.uint32)).sum()) for n, h in names.items())
        n = sum(v.size for v in want.values())
        failed += bad > 0
        print(f'{kind.name:8} {n:8} values, {bad} differ from the gguf package')
    sys.exit(failed > 0)


if __name__ == '__main__': main()
