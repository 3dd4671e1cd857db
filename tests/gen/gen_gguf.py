#!/usr/bin/env python3
"""Writes tests/golden/gguf: two whole models, blocks of every element type that is read, what they must come out as, and files that must be
refused. Standard library only; run twice, the bytes are the same.

    python3 tests/gen/gen_gguf.py [FOLDER]

NAME.expect.json: the tensors under their Hugging Face names: dims, how many heads are interleaved, the first four values of the last
row in f32, and the 64-bit FNV-1a of all values rounded to bf16, row by row in Hugging Face's order. The values are computed here from
the definition of each block type, not by the program. bad/expect.txt: a line a file, `NAME<TAB>what the message must contain`."""
import itertools, json, math, os, random, struct, sys

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'golden', 'gguf')
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FMT = {U8: 'B', I8: 'b', U16: 'H', I16: 'h', U32: 'I', I32: 'i', F32: 'f', BOOL: 'B', U64: 'Q', I64: 'q', F64: 'd'}


# ---- the container ----
def string(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack('<Q', len(b)) + b


def value(t, v): return string(v) if t == STR else struct.pack('<' + FMT[t], v)


def kv(key, t, v, elem=None):
    head = string(key) + struct.pack('<I', t)
    if t != ARR: return head + value(t, v)
    return head + struct.pack('<IQ', elem, len(v)) + b''.join(value(elem, x) for x in v)


def info(name, dims, ggml_type, offset):
    return string(name) + struct.pack('<I', len(dims)) + b''.join(struct.pack('<q', d) for d in dims) + struct.pack('<IQ', ggml_type, offset)


def pad(b, n): return b + b'\0' * (-len(b) % n)


def gguf(kvs, tensors, version=3, align=32, n_kvs=None, n_tensors=None):
    """tensors: (name, dims fastest first, ggml type, bytes[, offset to claim])"""
    infos, data = b'', b''
    for name, dims, t, raw, *claim in tensors:
        infos += info(name, dims, t, claim[0] if claim else len(data))
        data = pad(data + raw, align)
    head = b'GGUF' + struct.pack('<IQQ', version, len(tensors) if n_tensors is None else n_tensors, len(kvs) if n_kvs is None else n_kvs)
    return pad(head + b''.join(kvs) + infos, align) + data


# ---- element types: rows of floats to bytes, and the values that those bytes mean ----
def f32(x): return struct.unpack('<f', struct.pack('<f', x))[0]
def f16(x): return struct.unpack('<e', struct.pack('<e', x))[0]


def bf16_bits(x):
    u = struct.unpack('<I', struct.pack('<f', x))[0]
    return (u + 0x7FFF + (u >> 16 & 1)) >> 16


def bf16(x): return struct.unpack('<f', struct.pack('<I', bf16_bits(x) << 16))[0]


def plain(fmt, rnd):
    return lambda x: (b''.join(struct.pack('<' + fmt, rnd(v)) if fmt != 'H' else struct.pack('<H', bf16_bits(v)) for v in x), [rnd(v) for v in x])


def q8_0(x):
    d = f16(max(abs(v) for v in x) / 127)
    q = [max(-127, min(127, round(v / d))) for v in x]
    return struct.pack('<e32b', d, *q), [f32(d * c) for c in q]


def nibbles(q): return bytes(q[j] | q[j + 16] << 4 for j in range(16))


def q4_0(x):
    d = f16(max(x, key=abs) / -8)
    q = [max(0, min(15, int(v / d + 8.5))) for v in x]
    return struct.pack('<e', d) + nibbles(q), [f32(d * (c - 8)) for c in q]


def q4_1(x):
    m, d = f16(min(x)), f16((max(x) - min(x)) / 15)
    q = [max(0, min(15, int((v - m) / d + .5))) for v in x]
    return struct.pack('<ee', d, m) + nibbles(q), [f32(f32(d * c) + m) for c in q]


# Types that no encoder is needed for: random bytes with finite f16 numbers, and what they mean, value by value.
BLOCKS = random.Random(5)
NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def half(b, at): return struct.unpack_from('<e', b, at)[0]
def nibble(b, at, i): return b[at + i % 16] >> (4 if i >= 16 else 0) & 15
def pair(b, at, i): return b[at + i // 128 * 32 + i % 32] >> 2 * (i // 32 % 4) & 3


def six(s, g):
    """Scale and min g of 8 in the 12 bytes of Q4_K and Q5_K."""
    if g < 4: return s[g] & 63, s[g + 4] & 63
    return s[g + 4] & 15 | s[g - 4] >> 6 << 4, s[g + 4] >> 4 | s[g] >> 6 << 4


def q3_scale(s, g): return ((s[g] & 15 if g < 8 else s[g - 8] >> 4) | (s[8 + g % 4] >> 2 * (g // 4) & 3) << 4) - 32
def xs_scale(b, g): return ((b[4 + g // 2] >> 4 * (g % 2) & 15) | (struct.unpack_from('<H', b, 2)[0] >> 2 * g & 3) << 4) - 32
def affine(d, scale, q, dmin, low): return f32(d * scale * q - dmin * low)
def fives(b, i): return b[48 + i // 64 * 32 + i % 32] >> 4 * (i // 32 % 2) & 15 | (b[16 + i % 32] >> i // 32 & 1) << 4


MEANING = {  # ggml type, values, bytes, places of f16 numbers, their spread, value i
    'Q5_0': (6, 32, 22, [0], .01, lambda b, i: half(b, 0) * ((nibble(b, 6, i) | (b[2 + i // 8] >> i % 8 & 1) << 4) - 16)),
    'Q5_1': (7, 32, 24, [0, 2], .01, lambda b, i: f32(half(b, 0) * (nibble(b, 8, i) | (b[4 + i // 8] >> i % 8 & 1) << 4) + half(b, 2))),
    'Q2_K': (10, 256, 84, [80, 82], .01, lambda b, i: affine(half(b, 80), b[i // 16] & 15, pair(b, 16, i), half(b, 82), b[i // 16] >> 4)),
    'Q3_K': (11, 256, 110, [108], .003, lambda b, i: half(b, 108) * q3_scale(b[96:108], i // 16) * (pair(b, 32, i) - (0 if b[i % 32] >> i // 32 & 1 else 4))),
    'Q4_K': (12, 256, 144, [0, 2], 3e-4, lambda b, i: affine(half(b, 0), six(b[4:16], i // 32)[0], b[16 + i // 64 * 32 + i % 32] >> 4 * (i // 32 % 2) & 15, half(b, 2), six(b[4:16], i // 32)[1])),
    'Q5_K': (13, 256, 176, [0, 2], 2e-4, lambda b, i: affine(half(b, 0), six(b[4:16], i // 32)[0], fives(b, i), half(b, 2), six(b[4:16], i // 32)[1])),
    'Q6_K': (14, 256, 210, [208], 1e-4, lambda b, i: half(b, 208) * struct.unpack_from('b', b, 192 + i // 16)[0] *
             ((b[i // 128 * 64 + i % 64] >> 4 * (i // 64 % 2) & 15 | pair(b, 128, i) << 4) - 32)),
    'IQ4_NL': (20, 32, 18, [0], 1e-3, lambda b, i: half(b, 0) * NL[nibble(b, 2, i)]),
    'IQ4_XS': (23, 256, 136, [0], 1e-4, lambda b, i: half(b, 0) * xs_scale(b, i // 32) * NL[nibble(b, 8 + i // 32 * 16, i % 32)]),
    'MXFP4': (39, 32, 17, [], 0, lambda b, i: 2.0 ** (b[0] - 128) * E2M1[nibble(b, 1, i)]),
}


def random_block(kind):
    _, n, size, halves, spread, value_of = MEANING[kind]

    def f(x):
        b = bytearray(BLOCKS.randrange(256) for _ in range(size))
        for at in halves: struct.pack_into('<e', b, at, f16(BLOCKS.gauss(0, spread)))
        if kind == 'MXFP4': b[0] = BLOCKS.randrange(118, 124)
        return bytes(b), [f32(value_of(b, i)) for i in range(n)]
    return f


TYPES = {'F32': (0, 1, plain('f', f32)), 'F16': (1, 1, plain('e', f16)), 'BF16': (30, 1, plain('H', bf16)),
         'Q8_0': (8, 32, q8_0), 'Q4_0': (2, 32, q4_0), 'Q4_1': (3, 32, q4_1), **{k: (m[0], m[1], random_block(k)) for k, m in MEANING.items()}}


def encode(kind, rows):
    _, block, f = TYPES[kind]
    raw, vals = b'', []
    for r in rows:
        vals.append([])
        for i in range(0, len(r), block):
            b, v = f(r[i:i + block])
            raw += b
            vals[-1] += v
    return raw, vals


def interleave(rows, heads):
    """Row p * half + j of a head goes to 2 j + p: the order in which llama files store q and k."""
    dim = len(rows) // heads
    half = dim // 2
    return [rows[h * dim + p * half + j] for h in range(heads) for j in range(half) for p in range(2)]


def fnv(rows):
    h = 0xcbf29ce484222325
    for r in rows:
        for v in r:
            for b in struct.pack('<H', bf16_bits(v)): h = (h ^ b) * 0x100000001b3 & (1 << 64) - 1
    return f'{h:016x}'


class Model:
    def __init__(self, seed): self.rng, self.tensors, self.expect = random.Random(seed), [], {}

    def add(self, name, hf, kind, rows, cols, heads=0, around=0.0, plus=0.0):
        """around: the mean; plus: stored with that much more than it means."""
        vector = cols == 0
        x = [[around + self.rng.gauss(0, 0.1) for _ in range(rows if vector else cols)] for _ in range(1 if vector else rows)]
        if heads and vector: x = [[v] for v in x[0]]
        raw, vals = encode(kind, interleave(x, heads) if heads else x)
        if heads:  # what the stored rows mean, put back in order
            order = interleave(list(range(len(x))), heads)
            vals = [v for _, v in sorted(zip(order, vals))]
        if vector: vals = [[f32(v - plus) for r in vals for v in r]]
        self.tensors.append((name, [rows] if vector else [cols, rows], TYPES[kind][0], raw))
        self.expect[hf] = {'dtype': kind, 'dims': [rows] if vector else [rows, cols], 'rope_heads': heads, 'last': vals[-1][:4], 'fnv_bf16': fnv(vals)}


# ---- a byte-level vocabulary ----
def byte_alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    extra = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(extra)) for b in range(256)]


MERGES = ['t h', 'th e', 'Ġ the', 'i n', 'in g']
TOKENS = ['<|im_start|>', '<|im_end|>', '<tool>', '[PAD3]'] + byte_alphabet() + [m.replace(' ', '') for m in MERGES]
KINDS = [3, 3, 4, 5] + [1] * (len(TOKENS) - 4)
CHAT = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"


def text_kvs(pre):
    return [kv('tokenizer.ggml.model', STR, 'gpt2'), kv('tokenizer.ggml.pre', STR, pre), kv('tokenizer.ggml.tokens', ARR, TOKENS, STR),
            kv('tokenizer.ggml.token_type', ARR, KINDS, I32), kv('tokenizer.ggml.merges', ARR, MERGES, STR),
            kv('tokenizer.ggml.bos_token_id', U32, 0), kv('tokenizer.ggml.eos_token_id', U32, 1), kv('tokenizer.ggml.padding_token_id', U32, 1),
            kv('tokenizer.chat_template', STR, CHAT)]


def dims_kvs(arch, hidden, ffn, layers, heads, heads_kv, more=()):
    return [kv('general.architecture', STR, arch), kv(arch + '.block_count', U32, layers), kv(arch + '.context_length', U32, 128),
            kv(arch + '.embedding_length', U32, hidden), kv(arch + '.feed_forward_length', U32, ffn),
            kv(arch + '.attention.head_count', U32, heads), kv(arch + '.attention.head_count_kv', U32, heads_kv),
            kv(arch + '.attention.layer_norm_rms_epsilon', F32, 1e-5), *more]


def llama():
    m, hidden, ffn, heads, heads_kv, dim = Model(1), 64, 96, 4, 2, 16
    m.add('token_embd.weight', 'model.embed_tokens.weight', 'Q8_0', len(TOKENS), hidden)
    kinds = [['Q4_0', 'Q4_1', 'F16', 'BF16', 'Q4_1', 'Q8_0', 'Q4_0'], ['Q8_0', 'F16', 'F32', 'Q4_0', 'BF16', 'Q4_1', 'F16']]
    for l, k in enumerate(kinds):
        b, h = f'blk.{l}.', f'model.layers.{l}.'
        m.add(b + 'attn_norm.weight', h + 'input_layernorm.weight', 'F32', hidden, 0, around=1)
        m.add(b + 'attn_q.weight', h + 'self_attn.q_proj.weight', k[0], heads * dim, hidden, heads)
        m.add(b + 'attn_k.weight', h + 'self_attn.k_proj.weight', k[1], heads_kv * dim, hidden, heads_kv)
        m.add(b + 'attn_v.weight', h + 'self_attn.v_proj.weight', k[2], heads_kv * dim, hidden)
        m.add(b + 'attn_output.weight', h + 'self_attn.o_proj.weight', k[3], hidden, heads * dim)
        for p, n, q in (('q', heads, heads), ('k', heads_kv, heads_kv), ('v', heads_kv, 0)):
            m.add(f'{b}attn_{p}.bias', f'{h}self_attn.{p}_proj.bias', 'F32', n * dim, 0, q)
        m.add(b + 'attn_output.bias', h + 'self_attn.o_proj.bias', 'F32', hidden, 0)
        m.add(b + 'ffn_norm.weight', h + 'post_attention_layernorm.weight', 'F32', hidden, 0, around=1)
        m.add(b + 'ffn_gate.weight', h + 'mlp.gate_proj.weight', k[4], ffn, hidden)
        m.add(b + 'ffn_up.weight', h + 'mlp.up_proj.weight', k[5], ffn, hidden)
        m.add(b + 'ffn_down.weight', h + 'mlp.down_proj.weight', k[6], hidden, ffn)
    m.add('output_norm.weight', 'model.norm.weight', 'F32', hidden, 0, around=1)
    more = [kv('llama.rope.freq_base', F32, 100000.0), kv('llama.rope.dimension_count', U32, dim), kv('llama.vocab_size', U32, len(TOKENS)),
            kv('general.file_type', U32, 3), kv('general.languages', ARR, ['en'], STR)]
    return gguf(dims_kvs('llama', hidden, ffn, 2, heads, heads_kv, more) + text_kvs('smollm'), m.tensors), m.expect


def qwen3():
    m, hidden, ffn, heads, heads_kv, dim = Model(2), 32, 64, 2, 1, 32
    m.add('token_embd.weight', 'model.embed_tokens.weight', 'F16', len(TOKENS), hidden)
    b, h = 'blk.0.', 'model.layers.0.'
    m.add(b + 'attn_norm.weight', h + 'input_layernorm.weight', 'F32', hidden, 0, around=1)
    m.add(b + 'attn_q.weight', h + 'self_attn.q_proj.weight', 'F16', heads * dim, hidden)
    m.add(b + 'attn_k.weight', h + 'self_attn.k_proj.weight', 'F16', heads_kv * dim, hidden)
    m.add(b + 'attn_v.weight', h + 'self_attn.v_proj.weight', 'F16', heads_kv * dim, hidden)
    m.add(b + 'attn_output.weight', h + 'self_attn.o_proj.weight', 'F16', hidden, heads * dim)
    m.add(b + 'attn_q_norm.weight', h + 'self_attn.q_norm.weight', 'F32', dim, 0, around=1)
    m.add(b + 'attn_k_norm.weight', h + 'self_attn.k_norm.weight', 'F32', dim, 0, around=1)
    m.add(b + 'ffn_norm.weight', h + 'post_attention_layernorm.weight', 'F32', hidden, 0, around=1)
    m.add(b + 'ffn_gate.weight', h + 'mlp.gate_proj.weight', 'F16', ffn, hidden)
    m.add(b + 'ffn_up.weight', h + 'mlp.up_proj.weight', 'F16', ffn, hidden)
    m.add(b + 'ffn_down.weight', h + 'mlp.down_proj.weight', 'F16', hidden, ffn)
    m.add('output_norm.weight', 'model.norm.weight', 'F32', hidden, 0, around=1)
    m.add('output.weight', 'lm_head.weight', 'F16', len(TOKENS), hidden)
    more = [kv('qwen3.attention.key_length', U32, dim), kv('qwen3.attention.value_length', U32, dim), kv('general.alignment', U32, 64),
            kv('qwen3.rope.freq_base', F32, 1e6), kv('qwen3.rope.scaling.type', STR, 'yarn'), kv('qwen3.rope.scaling.factor', F32, 4.0),
            kv('qwen3.rope.scaling.original_context_length', U32, 32), kv('tokenizer.ggml.add_bos_token', BOOL, 1),
            kv('tokenizer.ggml.eot_token_id', U32, 0)]
    return gguf(dims_kvs('qwen3', hidden, ffn, 1, heads, heads_kv, more) + text_kvs('qwen2'), m.tensors, version=2, align=64), m.expect


def types():
    """A model that can be run, of the types that those above do not have: super-blocks where rows are 256 long, blocks of 32 elsewhere."""
    m, hidden, ffn, heads = Model(3), 256, 32, 1
    long, short = itertools.cycle(k for k, t in MEANING.items() if t[1] == 256), itertools.cycle(k for k, t in MEANING.items() if t[1] == 32)
    m.add('token_embd.weight', 'model.embed_tokens.weight', 'Q4_K', 8, hidden)
    for l in range(2):
        b, h = f'blk.{l}.', f'model.layers.{l}.'
        m.add(b + 'attn_norm.weight', h + 'input_layernorm.weight', 'F32', hidden, 0, around=1)
        m.add(b + 'attn_q.weight', h + 'self_attn.q_proj.weight', next(long), 32, hidden, heads)
        m.add(b + 'attn_k.weight', h + 'self_attn.k_proj.weight', next(long), 32, hidden, heads)
        m.add(b + 'attn_v.weight', h + 'self_attn.v_proj.weight', next(long), 32, hidden)
        m.add(b + 'attn_output.weight', h + 'self_attn.o_proj.weight', next(short), hidden, 32)
        m.add(b + 'ffn_norm.weight', h + 'post_attention_layernorm.weight', 'F32', hidden, 0, around=1)
        m.add(b + 'ffn_gate.weight', h + 'mlp.gate_proj.weight', next(long), ffn, hidden)
        m.add(b + 'ffn_up.weight', h + 'mlp.up_proj.weight', next(long), ffn, hidden)
        m.add(b + 'ffn_down.weight', h + 'mlp.down_proj.weight', next(short), hidden, ffn)
    m.add('output_norm.weight', 'model.norm.weight', 'F32', hidden, 0, around=1)
    more = [kv('llama.attention.key_length', U32, 32)]
    return gguf(dims_kvs('llama', hidden, ffn, 2, heads, heads, more), m.tensors), m.expect


def mixtral():
    """Three experts a layer: one layer's in tensors of three dimensions, the other's apart, as files of 2023 have them."""
    m, hidden, ffn, heads, heads_kv, dim, experts = Model(6), 32, 32, 2, 1, 16, 3
    m.add('token_embd.weight', 'model.embed_tokens.weight', 'F16', 8, hidden)
    for l in range(2):
        b, h = f'blk.{l}.', f'model.layers.{l}.'
        m.add(b + 'attn_norm.weight', h + 'input_layernorm.weight', 'F32', hidden, 0, around=1)
        m.add(b + 'attn_q.weight', h + 'self_attn.q_proj.weight', 'F16', heads * dim, hidden, heads)
        m.add(b + 'attn_k.weight', h + 'self_attn.k_proj.weight', 'F16', heads_kv * dim, hidden, heads_kv)
        m.add(b + 'attn_v.weight', h + 'self_attn.v_proj.weight', 'F16', heads_kv * dim, hidden)
        m.add(b + 'attn_output.weight', h + 'self_attn.o_proj.weight', 'F16', hidden, heads * dim)
        m.add(b + 'ffn_norm.weight', h + 'post_attention_layernorm.weight', 'F32', hidden, 0, around=1)
        m.add(b + 'ffn_gate_inp.weight', h + 'block_sparse_moe.gate.weight', 'F32', experts, hidden)
        for part, w, rows, cols in (('gate', 'w1', ffn, hidden), ('up', 'w3', ffn, hidden), ('down', 'w2', hidden, ffn)):
            for e in range(experts): m.add(f'{b}ffn_{part}.{e}.weight', f'{h}block_sparse_moe.experts.{e}.{w}.weight', 'Q8_0' if w == 'w2' else 'Q4_0', rows, cols)
            if l == 0:
                t = m.tensors[-experts:]
                m.tensors[-experts:] = [(f'{b}ffn_{part}_exps.weight', t[0][1] + [experts], t[0][2], b''.join(x[3] for x in t))]
    m.add('output_norm.weight', 'model.norm.weight', 'F32', hidden, 0, around=1)
    m.add('output.weight', 'lm_head.weight', 'F16', 8, hidden)
    more = [kv('llama.expert_count', U32, experts), kv('llama.expert_used_count', U32, 2)]
    return gguf(dims_kvs('llama', hidden, ffn, 2, heads, heads_kv, more), m.tensors), m.expect


def gemma3():
    """Norms are stored with the 1 that the model adds to them."""
    m, hidden, ffn, heads, heads_kv, dim = Model(7), 32, 64, 2, 1, 24
    m.add('token_embd.weight', 'model.embed_tokens.weight', 'Q8_0', 8, hidden)
    norm = lambda name, hf, n: m.add(name, hf, 'F32', n, 0, around=1, plus=1)
    for l in range(2):
        b, h = f'blk.{l}.', f'model.layers.{l}.'
        for a, c in (('attn_norm', 'input'), ('post_attention_norm', 'post_attention'), ('ffn_norm', 'pre_feedforward'), ('post_ffw_norm', 'post_feedforward')):
            norm(f'{b}{a}.weight', f'{h}{c}_layernorm.weight', hidden)
        m.add(b + 'attn_q.weight', h + 'self_attn.q_proj.weight', 'F16', heads * dim, hidden)
        m.add(b + 'attn_k.weight', h + 'self_attn.k_proj.weight', 'F16', heads_kv * dim, hidden)
        m.add(b + 'attn_v.weight', h + 'self_attn.v_proj.weight', 'F16', heads_kv * dim, hidden)
        m.add(b + 'attn_output.weight', h + 'self_attn.o_proj.weight', 'F16', hidden, heads * dim)
        norm(b + 'attn_q_norm.weight', h + 'self_attn.q_norm.weight', dim)
        norm(b + 'attn_k_norm.weight', h + 'self_attn.k_norm.weight', dim)
        m.add(b + 'ffn_gate.weight', h + 'mlp.gate_proj.weight', 'Q8_0', ffn, hidden)
        m.add(b + 'ffn_up.weight', h + 'mlp.up_proj.weight', 'Q8_0', ffn, hidden)
        m.add(b + 'ffn_down.weight', h + 'mlp.down_proj.weight', 'Q8_0', hidden, ffn)
    norm('output_norm.weight', 'model.norm.weight', hidden)
    more = [kv('gemma3.attention.key_length', U32, dim), kv('gemma3.attention.value_length', U32, dim), kv('gemma3.attention.sliding_window', U32, 16),
            kv('gemma3.rope.freq_base', F32, 1e6), kv('gemma3.rope.scaling.type', STR, 'linear'), kv('gemma3.rope.scaling.factor', F32, 8.0)]
    return gguf(dims_kvs('gemma3', hidden, ffn, 2, heads, heads_kv, more), m.tensors), m.expect


def phi3():
    """q, k and v in one matrix, gate and up in another; three quarters of a head turn, by factors that lie in tensors."""
    m, hidden, ffn, heads, heads_kv, dim, turned = Model(8), 64, 32, 2, 1, 32, 24
    m.add('token_embd.weight', 'model.embed_tokens.weight', 'F16', 8, hidden)
    for name, step in (('long', .5), ('short', .125)):
        m.tensors.append((f'rope_factors_{name}.weight', [turned // 2], 0, struct.pack(f'<{turned // 2}f', *(1 + step * i for i in range(turned // 2)))))
    b, h = 'blk.0.', 'model.layers.0.'
    m.add(b + 'attn_norm.weight', h + 'input_layernorm.weight', 'F32', hidden, 0, around=1)
    m.add(b + 'attn_qkv.weight', h + 'self_attn.qkv_proj.weight', 'Q8_0', (heads + 2 * heads_kv) * dim, hidden)
    m.add(b + 'attn_output.weight', h + 'self_attn.o_proj.weight', 'Q8_0', hidden, heads * dim)
    m.add(b + 'ffn_norm.weight', h + 'post_attention_layernorm.weight', 'F32', hidden, 0, around=1)
    m.add(b + 'ffn_up.weight', h + 'mlp.gate_up_proj.weight', 'Q8_0', 2 * ffn, hidden)
    m.add(b + 'ffn_down.weight', h + 'mlp.down_proj.weight', 'Q8_0', hidden, ffn)
    m.add('output_norm.weight', 'model.norm.weight', 'F32', hidden, 0, around=1)
    m.add('output.weight', 'lm_head.weight', 'F16', 8, hidden)
    more = [kv('phi3.rope.dimension_count', U32, turned), kv('phi3.attention.sliding_window', U32, 0), kv('phi3.rope.scaling.original_context_length', U32, 32)]
    return gguf(dims_kvs('phi3', hidden, ffn, 1, heads, heads_kv, more), m.tensors), m.expect


# ---- little more than a config ----
def scaled(more, tensors=()):
    """A llama with nothing but an embedding and a norm: for what the metadata alone decides."""
    base = [kv(k, t, v) for k, t, v in (('general.architecture', STR, 'llama'), ('llama.block_count', U32, 1), ('llama.context_length', U64, 131072),
            ('llama.embedding_length', U16, 64), ('llama.feed_forward_length', I64, 32), ('llama.attention.head_count', I32, 1),
            ('llama.attention.layer_norm_rms_epsilon', F64, 1e-6), ('llama.rope.freq_base', F32, 500000.0))]
    plain = [('token_embd.weight', [64, 4], 0, b'\0' * 1024), ('output_norm.weight', [64], 0, b'\0' * 256)]
    return gguf(base + list(more), plain + list(tensors))


def llama3_factors(factor, theta, dim, original=8192, low=1, high=4):
    out = []
    for i in range(dim // 2):
        wave = 2 * math.pi * theta ** (2 * i / dim)
        smooth = (original / wave - low) / (high - low)
        out.append(1 if wave < original / high else factor if wave > original / low else 1 / ((1 - smooth) / factor + smooth))
    return struct.pack(f'<{dim // 2}f', *out)


# ---- files that must be refused ----
def bad():
    base = dims_kvs('llama', 32, 32, 1, 1, 1)
    embd = ('token_embd.weight', [32, 4], 0, b'\0' * 512)
    norm = ('output_norm.weight', [32], 0, b'\0' * 128)
    good = gguf(base, [embd, norm])
    big = struct.pack('<Q', 1 << 63)
    key = kv('general.architecture', STR, 'llama')
    header = lambda n, k: b'GGUF' + struct.pack('<I', 3) + n + k
    q = lambda v: struct.pack('<Q', v)
    return {
        'empty': (b'', 'magic'),
        'magic': (b'GGML' + good[4:], 'expected the magic "GGUF"'),
        'version-1': (gguf(base, [embd, norm], version=1), 'version must be 2 or 3, found 1'),
        'big-endian': (b'GGUF' + struct.pack('>I', 3) + good[8:], 'a big-endian file'),
        'header-cut': (good[:20], 'the number of keys needs 8 bytes, found 4'),
        'kv-cut': (good[:200], 'before the end of the file'),
        'info-cut': (good[:good.index(b'output_norm') + 4], 'the name of a tensor'),
        'data-cut': (good[:-100], 'output_norm.weight: expected 128 bytes of data'),
        'count-tensors-2-63': (header(big, q(0)), 'the number of tensors of 9223372036854775808 is not a count'),
        'count-kvs-2-63': (header(q(0), big), 'the number of keys of 9223372036854775808 is not a count'),
        'count-kvs-beyond': (header(q(0), q(1 << 40)), '1099511627776 keys do not fit'),
        'count-tensors-beyond': (gguf(base, [embd], n_tensors=1 << 40), '1099511627776 tensors do not fit'),
        'key-length-beyond': (header(q(0), q(1)) + q(1 << 62) + b'x' * 64, 'a key is said to be 4611686018427387904 bytes long'),
        'string-length-beyond': (header(q(0), q(1)) + string('a') + struct.pack('<I', STR) + q(1 << 60) + b'x' * 64, 'value of a is said to be'),
        'array-length-2-63': (header(q(0), q(1)) + string('a') + struct.pack('<II', ARR, U8) + big, 'is not a count'),
        'array-length-beyond': (header(q(0), q(1)) + string('a') + struct.pack('<II', ARR, F64) + q(1 << 61) + b'x' * 64, 'value of a do not fit'),
        'array-of-arrays': (header(q(0), q(1)) + string('a') + struct.pack('<IIQ', ARR, ARR, 1) + struct.pack('<IQ', U8, 1) + b'x' * 64,
                            'a: arrays of arrays are not read'),
        'type-unknown': (header(q(0), q(1)) + string('a') + struct.pack('<I', 13) + b'x' * 64, 'a: the type must be 0..12, found 13'),
        'key-empty': (gguf([kv('', U8, 1)], []), 'a key must be 1..65535 bytes'),
        'key-nul': (gguf([kv('a\0b', U8, 1)], []), 'a key must be 1..65535 bytes'),
        'key-twice': (gguf([key, key], []), 'key general.architecture is there twice'),
        'tensor-twice': (gguf(base, [embd, embd]), 'tensor token_embd.weight is there twice'),
        'alignment-3': (gguf(base + [kv('general.alignment', U32, 3)], [embd]), 'general.alignment: must be a power of two, found 3'),
        'alignment-0': (gguf(base + [kv('general.alignment', U32, 0)], [embd]), 'general.alignment: must be 1..'),
        'alignment-string': (gguf(base + [kv('general.alignment', STR, '32')], [embd]), 'general.alignment: must be an integer, found string'),
        'offset-gap': (gguf(base, [embd, norm + (544,)]), 'output_norm.weight: expected offset 512, found 544'),
        'offset-overlap': (gguf(base, [embd, norm + (0,)]), 'output_norm.weight: expected offset 512, found 0'),
        'dims-5': (gguf(base, [('token_embd.weight', [2] * 5, 0, b'\0' * 128)]), 'at most 4 dimensions, found 5'),
        'dim-zero': (gguf(base, [('token_embd.weight', [32, 0], 0, b'')]), 'dimension 1 of 0 is not possible'),
        'dim-negative': (gguf(base, [('token_embd.weight', [32, -4], 0, b'')]), 'dimension 1 of -4 is not possible'),
        'dims-overflow': (gguf(base, [('token_embd.weight', [1 << 40, 1 << 40], 0, b'')]), 'is not possible'),
        'block-cut': (gguf(base, [('token_embd.weight', [48, 4], 8, b'\0' * 204)]), 'rows of 48 values are not whole Q8_0 blocks of 32'),
        'dtype-unread': (gguf(base, [('token_embd.weight', [256, 4], 16, b'\0' * 264)]), 'found IQ2_XXS (16)'),
        'dtype-unknown': (gguf(base, [('token_embd.weight', [32, 4], 99, b'\0' * 576)]), 'found an unknown type (99)'),
        'arch-missing': (gguf(base[1:], [embd, norm]), 'general.architecture is missing'),
        'arch-unknown': (gguf([kv('general.architecture', STR, 'mamba')], []), 'must be one of llama, qwen2, qwen3, gemma2, gemma3, phi3, found mamba'),
        'key-missing': (gguf(base[:2] + base[3:], [embd, norm]), 'llama.context_length is missing'),
        'key-wrong-type': (gguf(base[:-1] + [kv('llama.attention.layer_norm_rms_epsilon', U32, 1)], [embd, norm]), 'must be a float, found u32'),
        'eps-nan': (gguf(base[:-1] + [kv('llama.attention.layer_norm_rms_epsilon', F32, float('nan'))], [embd, norm]), 'must be a finite number'),
        'heads-zero': (gguf([kv('llama.attention.head_count', U32, 0)] + base[:5] + base[6:], [embd, norm]), 'must be 1..65535, found 0'),
        'expert-count': (gguf(dims_kvs('qwen2', 32, 32, 1, 1, 1, [kv('qwen2.expert_count', U32, 8)]), [embd, norm]), 'qwen2.expert_count: this kind of qwen2 model'),
        'experts-used': (gguf(base + [kv('llama.expert_count', U32, 8)], [embd, norm]), 'llama.expert_used_count is missing'),
        'experts-dims': (gguf(base + [kv('llama.expert_count', U32, 8)], [('blk.0.ffn_up_exps.weight', [32, 2, 4], 0, b'\0' * 1024)]), 'the last 8 (experts), found 3, the last 4'),
        'expert-beyond': (gguf(base + [kv('llama.expert_count', U32, 2)], [('blk.0.ffn_up.2.weight', [32, 2], 0, b'\0' * 256)]), 'no such tensor in a llama model'),
        'window': (gguf(base + [kv('llama.attention.sliding_window', U32, 8)], [embd, norm]), 'llama.attention.sliding_window: must be 0, found 8'),
        'norm-type': (gguf(dims_kvs('gemma3', 32, 32, 1, 1, 1), [('blk.0.ffn_norm.weight', [32], 1, b'\0' * 64)]), 'expected F32 and one dimension'),
        'one-set-of-factors': (gguf(dims_kvs('phi3', 32, 32, 1, 1, 1), [embd, norm, ('rope_factors_long.weight', [16], 0, b'\0' * 64)]), 'found one of them'),
        'split': (gguf(base + [kv('split.count', U16, 3)], [embd, norm]), 'a GGUF in 3 files'),
        'tensor-unknown': (gguf(base, [embd, norm, ('blk.0.ssm_in.weight', [32], 0, b'\0' * 128)]), 'blk.0.ssm_in.weight: no such tensor'),
        'layer-beyond': (gguf(base, [embd, norm, ('blk.1.attn_norm.weight', [32], 0, b'\0' * 128)]), 'blk.1.attn_norm.weight: no such tensor'),
        'q-rows': (gguf(base, [embd, norm, ('blk.0.attn_q.weight', [32, 16], 0, b'\0' * 2048)]), 'expected 1 heads of 32 rows, found 16 rows'),
        'q-bias-blocks': (gguf(base, [embd, norm, ('blk.0.attn_q.bias', [32], 8, b'\0' * 34)]), 'expected a matrix or a vector of plain numbers'),
        'vocab-size': (gguf(base + [kv('llama.vocab_size', U32, 5)], [embd, norm]), 'llama.vocab_size: must be 4..4, found 5'),
        'embed-missing': (gguf(base, [norm]), 'token_embd.weight: expected a matrix, found none'),
        'rope-freqs': (gguf(base, [embd, norm, ('rope_freqs.weight', [16], 0, struct.pack('<16f', *range(1, 17)))]), "by Llama 3.1's rule"),
        'text-no-pre': (gguf(base + [kv('tokenizer.ggml.model', STR, 'gpt2')], [embd, norm]), 'text: tokenizer.ggml.pre is missing'),
        'text-pre-unknown': (gguf(base + [kv('tokenizer.ggml.model', STR, 'gpt2'), kv('tokenizer.ggml.pre', STR, 'x')], []), 'text: must be one of gpt-2'),
        'text-model': (gguf(base + [kv('tokenizer.ggml.model', STR, 'rwkv')], []), 'text: tokenizer.ggml.model: must be one of gpt2, llama, t5, bert, found rwkv'),
        'text-tokens-twice': (gguf(text_like(['a', 'a']), []), 'text: tokens 0 and 1 are the same, "a"'),
        'text-token-utf8': (gguf(text_like([b'\xff']), []), 'text: tokenizer.ggml.tokens[0]: must be UTF-8'),
        'text-types-count': (gguf(text_like(['a', 'b'], types=[1]), []), 'text: tokenizer.ggml.token_type: expected 2 entries, found 1'),
        'text-type-byte': (gguf(text_like(['a'], types=[6]), []), 'text: tokenizer.ggml.token_type[0]: must be 1..5'),
        'text-merge': (gguf(text_like(['a'], merges=['a']), []), 'text: tokenizer.ggml.merges[0]: must be two tokens'),
        'text-merge-three': (gguf(text_like(['a'], merges=['a b c']), []), 'text: tokenizer.ggml.merges[0]: must be two tokens'),
        'text-bos-beyond': (gguf(text_like(['a'], more=[kv('tokenizer.ggml.bos_token_id', U32, 7)]), []), 'text: must be 0..0, found 7'),
        'text-bos-none': (gguf(text_like(['a'], more=[kv('tokenizer.ggml.add_bos_token', BOOL, 1)]), []), 'text: tokenizer.ggml.bos_token_id is missing'),
        'text-bool': (gguf(text_like(['a'], more=[kv('tokenizer.ggml.add_bos_token', BOOL, 2)]), []), 'text: must be 0 or 1, found 2'),
    }


def text_like(tokens, types=None, merges=(), more=()):
    return [kv('general.architecture', STR, 'llama'), kv('tokenizer.ggml.model', STR, 'gpt2'), kv('tokenizer.ggml.pre', STR, 'gpt-2'),
            kv('tokenizer.ggml.tokens', ARR, tokens, STR), kv('tokenizer.ggml.merges', ARR, list(merges), STR), *more,
            *([kv('tokenizer.ggml.token_type', ARR, types, I32)] if types else [])]


def main():
    os.makedirs(os.path.join(OUT, 'bad'), exist_ok=True)
    for name, (data, expect) in (('llama', llama()), ('qwen3', qwen3()), ('types', types()), ('mixtral', mixtral()), ('gemma3', gemma3()), ('phi3', phi3())):
        open(os.path.join(OUT, name + '.gguf'), 'wb').write(data)
        json.dump(expect, open(os.path.join(OUT, name + '.expect.json'), 'w'), indent=1, sort_keys=True)
    linear = [kv('llama.rope.scaling.type', STR, 'linear'), kv('llama.rope.scaling.factor', F32, 2.5)]
    for name, data in (('rope-linear', scaled(linear)),
                       ('rope-llama3', scaled([], [('rope_freqs.weight', [32], 0, llama3_factors(32, 500000, 64))]))):
        open(os.path.join(OUT, name + '.gguf'), 'wb').write(data)
    files = bad()
    for name, (data, _) in files.items(): open(os.path.join(OUT, 'bad', name + '.gguf'), 'wb').write(data)
    with open(os.path.join(OUT, 'bad', 'expect.txt'), 'w') as f: f.writelines(f'{n}\t{want}\n' for n, (_, want) in sorted(files.items()))


if __name__ == '__main__': main()
