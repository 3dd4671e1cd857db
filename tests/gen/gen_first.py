#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/first.jsonl: which pieces count as the beginning of a text ("prepend_scheme": "first") after normalizers that make
more, fewer or other characters of its first one, alone and by twos. Rows as of parts.jsonl (gen_parts.py).

    pip install tokenizers==0.23.3 && python3 tests/gen/gen_first.py > tests/golden/tokenizers/first.jsonl
"""
import itertools, json, os, sys
from tokenizers import Tokenizer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../interop'))
import tokenizers_random as R


def bert(**flags): return {'type': 'BertNormalizer', 'clean_text': False, 'handle_chinese_chars': False, 'strip_accents': False, 'lowercase': False, **flags}
def replace(pattern, content): return {'type': 'Replace', 'pattern': pattern, 'content': content}
def charsmap(entries): return {'type': 'Precompiled', 'precompiled_charsmap': R.charsmap(entries)}


NORMALIZERS = [{'type': t} for t in ('NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'ByteLevel', 'StripAccents')] + [
    bert(handle_chinese_chars=True), bert(clean_text=True, strip_accents=True), {'type': 'Prepend', 'prepend': '▁'}, {'type': 'Strip', 'strip_left': True, 'strip_right': False},
    replace({'String': 'a'}, 'bcd'), replace({'Regex': '[ae]'}, ''), replace({'String': '日'}, 'ab日'), replace({'String': 'ab'}, 'xyz'),
    charsmap({'日': 'ab', 'a': '日日', 'é': ''}), charsmap({'e\u0301': 'xyz', 'ab': 'c'}), charsmap({'日a': 'b', 'A': '', 'é': 'ae'})]
TEXTS = ['日', '\U00020000a', 'éa', 'é\u0323', 'e\u0301\u0323', 'ﬁx', 'İa', '각', ' é', 'aé', 'ab', '日日', '\x01é', ' 日', 'a\u0301b', '\u0301\u0301', '\u1100\u1161\u11a8', 'Aé']
PIECES = {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'pattern': {'Regex': '.'}, 'behavior': 'Isolated', 'invert': False},
                                               {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'first', 'split': False}]}


def tokenizer(steps, vocab):
    return {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [], 'normalizer': {'type': 'Sequence', 'normalizers': steps}, 'pre_tokenizer': PIECES, 'post_processor': None,
            'decoder': None, 'model': {'type': 'WordPiece', 'unk_token': '?', 'continuing_subword_prefix': '##', 'max_input_chars_per_word': 100, 'vocab': vocab}}


def main():
    singles = [[x] for x in NORMALIZERS]
    pairs = [list(p) for p in itertools.permutations(NORMALIZERS, 2)][::11]
    for seed, steps in enumerate(singles + pairs):
        words = {w for x in TEXTS for w, _ in Tokenizer.from_str(json.dumps(tokenizer(steps, {'?': 0}))).pre_tokenizer.pre_tokenize_str(Tokenizer.from_str(json.dumps(tokenizer(steps, {'?': 0}))).normalizer.normalize_str(x))}
        chars = sorted({w.strip('▁') for w in words} | {''})
        vocab = {w: i for i, w in enumerate(['?', '##▁'] + [p + c for c in chars for p in ('', '▁') if p + c])}
        j = tokenizer(steps, vocab); t = Tokenizer.from_str(json.dumps(j)); rows = []
        for x in TEXTS:
            ids = R.reference(lambda: t.encode(x, add_special_tokens=False).ids)
            if ids is not None: rows.append([x, ids, ids, R.reference(lambda: t.decode(ids, skip_special_tokens=False)), R.reference(lambda: t.decode(ids, skip_special_tokens=True))])
        print(json.dumps({'seed': seed, 'tokenizer': j, 'rows': rows}))


main()
