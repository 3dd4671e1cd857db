#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/parts.jsonl: small random tokenizers that between them have every component and option, and what the reference answers.

    pip install tokenizers==0.23.3 && python3 tests/gen/gen_parts.py > tests/golden/tokenizers/parts.jsonl

A row: tokenizer (the JSON), rows of [text, ids, ids with special tokens, decoded, decoded without special tokens]. Tokenizers are taken from
tests/interop/tokenizers_random.py, each that has a component or an option that none before it had.
"""
import json, os, random, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../interop'))
import tokenizers_random as R

MAX_BYTES, TEXTS = 5000, 6


def options(v, stage):
    """(stage, component, option, value): flags and names as they are, of texts and numbers only that they are there."""
    if isinstance(v, list): return {o for x in v for o in options(x, stage)}
    if not isinstance(v, dict) or 'type' not in v: return set()
    told = {(stage, v['type'], k, str(x) if isinstance(x, bool) or x is None or k in ('behavior', 'prepend_scheme') else str(list(x)) if k == 'pattern' else '') for k, x in v.items()}
    return told.union(*(options(x, stage) for k, x in v.items() if k in ('normalizers', 'pretokenizers', 'processors', 'decoders')))


def rules(token):
    """flags of an added token that are seldom all alike."""
    return {('added', k, str(token[k])) for k in ('special', 'normalized', 'single_word', 'lstrip', 'rstrip')}


def main():
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    seen, seed = set(), 0
    while seed < 6000:
        seed += 1; made = R.make(seed)
        if not made or len(made[0]) > MAX_BYTES: continue
        j, t = json.loads(made[0]), made[1]; new = set().union(*(options(v, k) for k, v in j.items()), *map(rules, j['added_tokens'])) - seen
        if not new: continue
        r = random.Random(seed); rows = []
        while len(rows) < TEXTS:
            x = R.text(r); ids = R.reference(lambda: t.encode(x, add_special_tokens=False).ids); special = R.reference(lambda: t.encode(x, add_special_tokens=True).ids)
            if ids is None or special is None or len(x) > 60: continue
            rows.append([x, ids, special, R.reference(lambda: t.decode(special, skip_special_tokens=False)), R.reference(lambda: t.decode(special, skip_special_tokens=True))])
        seen |= new; print(json.dumps({'seed': seed, 'tokenizer': j, 'rows': rows}))


main()
