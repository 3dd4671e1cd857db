#!/usr/bin/env python3
"""Speed beside llama.cpp (package llama-cpp-python), on one model and on the same tokens: both run in turn, each round in a process of its own.

    python peers.py OUNCE MODEL.gguf WORK [--threads 1,2] [--rounds 5] [--realtime] [--json FILE]

Prefill is 512 tokens with the logits of the last, decode is 128 tokens from an empty cache, each with its logits; both sides time their own calls
after a warm-up (llama.cpp: llama_decode and llama_synchronize, as llama-bench does; ounce also takes the largest logit). Shown are medians of the rounds
and their ratio. Files are made from MODEL once and kept in WORK: ounce's by `convert` and `quantize`, llama.cpp's by its own quantizer. --realtime runs
both under `chrt -f 5`, for a machine that others use too."""
import argparse, ctypes, json, os, statistics, subprocess, sys, time

N_PROMPT, N_GEN = 512, 128
# ours, how it is quantized, the peer's file type and its number there
PAIRS = [('W8A8', ['--scheme', 'W8A8'], 'Q8_0', 7), ('W4A16', ['--scheme', 'W4A16', '--group-size', '64'], 'Q4_0', 2), ('bf16', None, 'BF16', 32)]


def llama(quiet=True):
    import llama_cpp as l
    global log  # a callback must outlive its use
    log = l.llama_log_callback(lambda level, text, arg: None)
    if quiet: l.llama_log_set(log, ctypes.c_void_p(0))
    l.llama_backend_init()
    return l


def peer_quantize(source, out, ftype):
    l = llama()
    p = l.llama_model_quantize_default_params()
    p.ftype, p.allow_requantize, p.nthread = ftype, True, 1
    if l.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(p)): sys.exit(f'error: {out}: llama.cpp could not quantize {source}')


def peer_run(path, threads):
    """One measured prefill and decode, as JSON on stdout."""
    l = llama()
    mp = l.llama_model_default_params()
    mp.n_gpu_layers = 0
    model = l.llama_model_load_from_file(path.encode(), mp)
    cp = l.llama_context_default_params()
    cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_threads, cp.n_threads_batch = 1024, 512, 512, threads, threads
    ctx = l.llama_init_from_model(model, cp)
    if not ctx: sys.exit(f'error: {path}: llama.cpp could not open it')
    n_vocab, memory = l.llama_vocab_n_tokens(l.llama_model_get_vocab(model)), l.llama_get_memory(ctx)
    ids = [(i * 7919 + 13) % n_vocab for i in range(N_PROMPT)]
    prompt = (l.llama_token * N_PROMPT)(*ids)
    singles = [(l.llama_token * 1)(i) for i in ids[:N_GEN]]

    def run(parts):
        l.llama_memory_clear(memory, True)
        batches = [l.llama_batch_get_one(p, len(p)) for p in parts]
        start = time.perf_counter()
        for b in batches:
            if l.llama_decode(ctx, b): sys.exit('error: llama_decode failed')
            l.llama_synchronize(ctx)
        return sum(map(len, parts)) / (time.perf_counter() - start)

    run([prompt]), run(singles[:8])
    print(json.dumps({'prefill': run([prompt]), 'decode': run(singles)}))


def ours_run(ounce, path, threads):
    out = subprocess.run(run_prefix + [ounce, 'bench', path, '-p', str(N_PROMPT), '-n', str(N_GEN), '-r', '1', '-t', str(threads), '--device', 'cpu', '--json', '-q'],
                         check=True, stdout=subprocess.PIPE).stdout
    doc = json.loads(out)
    return doc['device'], {r['test']: r['tok_s'] for r in doc['rows']}


def theirs_run(path, threads):
    return json.loads(subprocess.run(run_prefix + [sys.executable, __file__, '--peer', path, str(threads)], check=True, stdout=subprocess.PIPE).stdout)


def models_make(a):
    plain = os.path.join(a.work, 'bf16')
    if not os.path.exists(plain): subprocess.run([a.ounce, 'convert', a.model, '-o', plain, '--to', 'bf16'], check=True)
    for name, options, ftype, number in PAIRS:
        ours, theirs = os.path.join(a.work, name), os.path.join(a.work, ftype + '.gguf')
        if not os.path.exists(ours): subprocess.run([a.ounce, 'quantize', plain, '-o', ours, *options], check=True)
        if os.path.exists(theirs): continue
        peer_quantize(a.model, theirs + '.part', number)
        os.rename(theirs + '.part', theirs)


def main():
    global run_prefix
    if sys.argv[1:2] == ['--peer']: return peer_run(sys.argv[2], int(sys.argv[3]))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('ounce'), p.add_argument('model'), p.add_argument('work')
    p.add_argument('--threads', default='1,2'), p.add_argument('--rounds', type=int, default=5), p.add_argument('--only', default=''), p.add_argument('--json')
    p.add_argument('--realtime', action='store_true')
    a = p.parse_args()
    if not a.model.endswith('.gguf'): sys.exit(f'error: {a.model}: expected a GGUF, which both sides read')
    run_prefix = ['chrt', '-f', '5'] if a.realtime else []
    models_make(a)
    rows, device = [], ''
    print(f'{"":22}{"prefill " + str(N_PROMPT):>32}{"decode " + str(N_GEN):>32}\n{"threads":8}{"pair":14}' + f'{"ounce":>10}{"llama.cpp":>12}{"ratio":>10}' * 2)
    for name, _, ftype, _ in PAIRS:
        if a.only and name not in a.only.split(','): continue
        for threads in map(int, a.threads.split(',')):
            rounds = []
            for _ in range(a.rounds):
                device, ours = ours_run(a.ounce, os.path.join(a.work, name), threads)
                rounds.append((ours, theirs_run(os.path.join(a.work, ftype + '.gguf'), threads)))
            row = {'pair': f'{name}/{ftype}', 'threads': threads, 'rounds': a.rounds}
            for test in ('prefill', 'decode'):
                ours, theirs = (statistics.median(r[side][test] for r in rounds) for side in (0, 1))
                row[test] = {'ounce': ours, 'llama.cpp': theirs, 'ratio': ours / theirs}
            rows.append(row)
            print(f'{threads:<8}{row["pair"]:14}' + ''.join(f'{row[t]["ounce"]:10.1f}{row[t]["llama.cpp"]:12.1f}{row[t]["ratio"]:10.2f}' for t in ('prefill', 'decode')), flush=True)
    import llama_cpp
    doc = {'model': a.model, 'device': device, 'llama_cpp_python': llama_cpp.__version__, 'system': llama_cpp.llama_print_system_info().decode(), 'rows': rows}
    print(f'{device}; llama-cpp-python {llama_cpp.__version__}')
    if a.json: json.dump(doc, open(a.json, 'w'), indent=2)


if __name__ == '__main__': main()
