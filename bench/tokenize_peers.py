#!/usr/bin/env python3
"""Tokenizing 100 MB of mixed text: ounce beside the package tokenizers, one thread each. Ids are compared exactly, then times.

    bench/tokenize_peers.py ./ounce TOKENIZER_FOLDER ... [--text FILE ...] [--mb 100] [--doc-kb 64] [--runs 3]

The text: the FILEs (without them, generated words of several scripts, code and numbers), over and over with words of their own in between, so that it
does not only repeat itself, cut into documents. Both sides get the same documents, one after the other; ounce as JSON lines, whose reading and the printing
of ids is counted as its own time, while the package's time is that of encode_batch_fast alone. Prints MB a second of
processor time (one thread each, so that a busy machine does not decide) and the ratio.
"""
import argparse, json, os, random, resource, statistics, subprocess, sys, tempfile, time
os.environ['TOKENIZERS_PARALLELISM'] = 'false'
from tokenizers import Tokenizer

ap = argparse.ArgumentParser()
ap.add_argument('ounce'); ap.add_argument('folders', nargs='+'); ap.add_argument('--text', nargs='*', default=[]); ap.add_argument('--mb', type=float, default=100)
ap.add_argument('--doc-kb', type=int, default=64); ap.add_argument('--runs', type=int, default=3)
a = ap.parse_args()


def words(r, n):
    scripts = [(0x61, 0x7a, 12), (0x41, 0x5a, 3), (0x3b1, 0x3c9, 1), (0x430, 0x44f, 2), (0x4e00, 0x9000, 1), (0x3041, 0x3096, 1), (0xac00, 0xd7a3, 1), (0x5d0, 0x5ea, 1), (0x621, 0x64a, 1), (0x30, 0x39, 3)]
    weights = [s[2] for s in scripts]; out = []
    for _ in range(n):
        lo, hi, _ = r.choices(scripts, weights)[0]
        out.append(''.join(chr(r.randint(lo, hi)) for _ in range(r.randint(1, 9))) + r.choice(['', '', '', ',', '.', ':', '()', ';\n', '!', ' =', '\n\n']))
    return ' '.join(out)


def documents():
    r = random.Random(1); base = ''.join(open(f, encoding='utf-8').read() for f in a.text) or words(r, 200000)
    size, total, docs, at = a.doc_kb << 10, 0, [], 0
    while total < a.mb * 1e6:
        part = base[at:at + size * 7 // 8]; at = at + len(part) if len(part) == size * 7 // 8 else r.randrange(size)
        doc = part + words(r, size // 48); docs.append(doc); total += len(doc.encode())
    return docs, total


def spent_by_children():
    u = resource.getrusage(resource.RUSAGE_CHILDREN); return u.ru_utime + u.ru_stime


docs, total = documents()
print(f'{total / 1e6:.1f} MB, {len(docs)} documents, {len(set(" ".join(docs).split()))} different words')
print('| tokenizer | ounce MB/s | tokenizers MB/s | ratio |\n|---|---|---|---|')
worst = 0
with tempfile.TemporaryDirectory() as tmp:
    path = os.path.join(tmp, 'in'); out = os.path.join(tmp, 'out')
    with open(path, 'w') as f:
        for d in docs: f.write(json.dumps({'text': d}, ensure_ascii=False) + '\n')
    for folder in a.folders:
        t = Tokenizer.from_file(os.path.join(folder, 'tokenizer.json')); t.no_truncation(); t.no_padding(); ours, theirs = [], []
        for run in range(a.runs):
            before = spent_by_children()
            with open(path) as i, open(out, 'w') as o: subprocess.run([a.ounce, 'tokenize', folder, '--jsonl'], stdin=i, stdout=o, check=True)
            ours.append(spent_by_children() - before); same, spent = 0, 0
            with open(out) as f:
                for k in range(0, len(docs), 16):
                    start = time.process_time(); got = [e.ids for e in t.encode_batch_fast(docs[k:k + 16], add_special_tokens=False)]; spent += time.process_time() - start
                    if run == 0:
                        for g in got: same += json.loads(f.readline())['ids'] == g
            theirs.append(spent)
            if run == 0 and same != len(docs): sys.exit(f'{folder}: the ids of {len(docs) - same} documents differ')
        x, y = total / 1e6 / statistics.median(ours), total / 1e6 / statistics.median(theirs)
        print(f'| {os.path.basename(os.path.normpath(folder))} | {x:.1f} | {y:.2f} | {x / y:.2f} |', flush=True); worst = min(worst or x / y, x / y)
sys.exit(0 if worst >= 1 else 1)
