#!/usr/bin/env python3
"""The CUDA tables of docs/performance.md: measured on one GPU, printed as Markdown. Standard library only.

    python3 cuda.py OUNCE CHECK WORK [--parts speed,linears,quality] [--model DIR --text FILE]

speed: Qwen3-8B's shapes with random weights (made in WORK, 16 GB, deleted after use): decode, batch 8, prefill; and in a traced run of decode, which is
slower, a step's wall time and the union of its kernels' intervals (kernel_times.c; CUPTI of the CUDA toolkit at $CUDA_HOME). Kernels that start early and wait
for the one before count as running, so the difference is what no kernel covers.
linears: the four linears of a layer, by CHECK --device cuda --bench.
quality: DIR (16-bit weights, whose lowest bit is first drawn anew, so that they lie on no quantizer's grid) and four quantized forms of it: KL of
CUDA's logits to the CPU's; KL to the 16-bit model on both; continuations alone and in a batch of 8."""
import argparse, array, concurrent.futures, json, math, os, random, shutil, struct, subprocess, sys

QWEN3_8B = {'architectures': ['Qwen3ForCausalLM'], 'model_type': 'qwen3', 'hidden_size': 4096, 'intermediate_size': 12288, 'num_hidden_layers': 36, 'num_attention_heads': 32,
            'num_key_value_heads': 8, 'head_dim': 128, 'vocab_size': 151936, 'max_position_embeddings': 40960, 'rms_norm_eps': 1e-6, 'rope_theta': 1000000, 'hidden_act': 'silu',
            'attention_bias': False, 'tie_word_embeddings': False, 'torch_dtype': 'bfloat16'}
SPEED = [('bf16', []), ('W8A16', ['--scheme', 'W8A16']), ('W4A16 g128', ['--scheme', 'W4A16', '--group-size', '128'])]
FORMS = [('W8A16', []), ('W4A16', ['--group-size', '64']), ('W8A8', []), ('FP8_DYNAMIC', [])]


def run(*args, **kw):
    p = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)
    if p.returncode: sys.exit(f'error: {" ".join(args)}: exit status {p.returncode}\n{p.stderr[-2000:]}')
    return p.stdout


def tracer(work):
    cuda = os.environ.get('CUDA_HOME', '/usr/local/cuda')
    here, out = os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.abspath(work), 'kernel_times.so')
    dirs = [d for d in (cuda, cuda + '/extras/CUPTI') if os.path.isdir(d)]
    libs = [d + '/lib64' for d in dirs]
    run('cc', '-shared', '-fPIC', '-O2', '-o', out, here + '/kernel_times.c', *(f'-I{d}/include' for d in dirs), *(f'-L{l}' for l in libs), *(f'-Wl,-rpath,{l}' for l in libs), '-lcupti')
    return out


def speed(a):
    trace, config = tracer(a.work), os.path.join(a.work, 'qwen3-8b.json')
    json.dump(QWEN3_8B, open(config, 'w'))
    print('\n| weights | decode 128 | decode, batch 8 | prefill 512 | step, us | traced: wall | kernels | neither |\n|' + '---|' * 8)
    for name, options in SPEED:
        model, times = os.path.join(a.work, 'synth'), os.path.join(a.work, 'times.json')
        run(a.ounce, 'synth', config, '-o', model, *options, '-q')
        doc = json.loads(run(a.ounce, 'bench', model, '--device', 'cuda', '-p', '512', '-n', '128', '-b', '1,8', '-r', '5', '--json', '-q'))
        by = {(r['test'], r['batch']): r['tok_s'] for r in doc['rows']}
        run(a.ounce, 'bench', model, '--device', 'cuda', '-p', '0', '-n', '128', '-r', '1', '--json', '-q', env={**os.environ, 'CUDA_INJECTION64_PATH': trace, 'KERNEL_TIMES': times})
        t = json.load(open(times))
        print(f'| {name} | {by["decode", 1]:.1f} | {by["decode", 8]:.0f} | {by["prefill", 1]:.0f} | {1e6 / by["decode", 1]:.0f} | {t["wall_us"]:.0f} | {t["busy_us"]:.0f} | {t["wall_us"] - t["busy_us"]:.0f} |', flush=True)
        for k in sorted(t['kernels'], key=lambda k: -k['us'])[:12]: print(f'    {k["us"]:8.1f} us a step, {k["n"]:6.1f} launches  {k["name"]}', flush=True)
        shutil.rmtree(model)
    print(f'{doc["device"]}')


def linears(a):
    print('\n' + run(a.check, '--device', 'cuda', '--bench'), flush=True)


def off_grid(source, to):
    """A copy of a checkpoint in one file, the lowest bit of each 16-bit weight drawn anew."""
    if not os.path.exists(to): shutil.copytree(source, to)
    path, draw = os.path.join(to, 'model.safetensors'), random.Random(1)
    with open(path, 'r+b') as f:
        at = 8 + struct.unpack('<Q', f.read(8))[0]
        f.seek(at)
        while chunk := f.read(1 << 24):
            mask = int.from_bytes(b'\1\0' * (len(chunk) // 2), 'little')
            mixed = int.from_bytes(chunk, 'little') ^ (int.from_bytes(draw.randbytes(len(chunk)), 'little') & mask)
            f.seek(at)
            f.write(mixed.to_bytes(len(chunk), 'little'))
            at += len(chunk)


def logits(path):
    with open(path, 'rb') as f:
        n = struct.unpack('<Q', f.read(8))[0]
        t = json.loads(f.read(n))['logits']
        f.seek(8 + n + t['data_offsets'][0])
        v = array.array('f')
        v.frombytes(f.read(t['data_offsets'][1] - t['data_offsets'][0]))
    return v, t['shape'][1]


def kl_rows(job):
    """Sum over rows of KL(reference || model), and rows with the same largest logit."""
    (ref, n), (got, _) = logits(job[0]), logits(job[1])
    total, same = 0.0, 0
    for r in range(job[2], job[3]):
        x, y = ref[r * n:r * n + n], got[r * n:r * n + n]
        mx, my = max(x), max(y)
        p, q = [math.exp(v - mx) for v in x], [math.exp(v - my) for v in y]
        zp, zq = math.fsum(p), math.fsum(q)
        shift = my + math.log(zq) - mx - math.log(zp)
        total += math.fsum(e * (u - v + shift) for e, u, v in zip(p, x, y)) / zp
        same += x.index(mx) == y.index(my)
    return total, same


def quality(a):
    if not a.model or not a.text: sys.exit('error: --parts quality: expected --model and --text')
    base, ids, n_ids = os.path.join(a.work, 'off-grid'), os.path.join(a.work, 'ids'), 1024
    off_grid(a.model, base)
    made = [('bf16', base)]
    for name, options in FORMS:
        made.append((name, os.path.join(a.work, name)))
        if not os.path.exists(made[-1][1]): run(a.ounce, 'quantize', base, '-o', made[-1][1], '--scheme', name, *options, '-q')
    with open(a.text, 'rb') as f: head = f.read(1 << 14)
    words = run(a.ounce, 'tokenize', base, input=head.decode(errors='ignore')).split()[:n_ids]
    open(ids, 'w').write(' '.join(words))
    print(f'\n| weights | KL of CUDA f32 to CPU f32, {len(words)} tokens | top-1 equal | KL of CUDA auto to CPU f32 |\n|' + '---|' * 4)
    for name, path in made:
        files = {}
        for key, options in (('cpu', ['--device', 'cpu', '--dtype', 'f32']), ('f32', ['--device', 'cuda', '--dtype', 'f32']), ('auto', ['--device', 'cuda'])):
            files[key] = os.path.join(a.work, key + '.safetensors')
            run(a.ounce, 'logits', path, '--ids', ids, '-o', files[key], *options, '-q')
        step = -(-len(words) // 32)
        found = {}
        with concurrent.futures.ProcessPoolExecutor() as pool:
            for key in ('f32', 'auto'):
                parts = list(pool.map(kl_rows, [(files['cpu'], files[key], r, min(r + step, len(words))) for r in range(0, len(words), step)]))
                found[key] = sum(p[0] for p in parts) / len(words), sum(p[1] for p in parts) / len(words)
        print(f'| {name} | {found["f32"][0]:.2g} | {found["f32"][1]:.4f} | {found["auto"][0]:.2g} |', flush=True)
    found = {}
    for device, dtype in (('cpu', 'f32'), ('cuda', 'f32'), ('cuda', 'auto')):
        docs = json.loads(run(a.ounce, 'kl', *(p for _, p in made), '--text', a.text, '--ctx', '512', '--limit-tokens', '8192', '--device', device, '--dtype', dtype, '--json', '-q'))
        found[device, dtype] = [d['mean_kl'] for d in docs]
    print('\n| weights | KL to bf16: CPU f32 | CUDA f32 | CUDA auto |\n|' + '---|' * 4)
    for i, (name, _) in enumerate(made[1:]):
        cpu = found['cpu', 'f32'][i]
        print(f'| {name} | {cpu:.5f} | ' + ' | '.join(f'{v[i]:.5f} ({v[i] / cpu - 1:+.1%})' for k, v in found.items() if k[0] == 'cuda') + ' |', flush=True)
    for _, path in made: print(run(a.check, '--device', 'cuda', '--model', path), end='', flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('ounce'), p.add_argument('check'), p.add_argument('work'), p.add_argument('--parts', default='speed,linears,quality'), p.add_argument('--model'), p.add_argument('--text')
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    for part in a.parts.split(','): {'speed': speed, 'linears': linears, 'quality': quality}[part](a)


if __name__ == '__main__': main()
