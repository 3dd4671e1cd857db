#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/variants.jsonl: the tokenizer quirk-a under other normalisers, pre-tokenisers and options.

    pip install tokenizers==0.23.3 && python3 tests/gen/gen_variants.py > tests/golden/tokenizers/variants.jsonl

Each row holds what replaces the parts of quirk-a's tokenizer.json, and what the reference makes of texts.jsonl and fuzz.jsonl then.
"""
import array, copy, hashlib, json, os
from tokenizers import Tokenizer

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../golden/tokenizers')
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r'\p{N}|', r'\p{N}{1,3}|')
UPPER, LOWER = r'[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]', r'[\p{Ll}\p{Lm}\p{Lo}\p{M}]'
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
SMALL = [r'\w+|[^\w\s]+', '[a-z]{2,3}?', '(?:ab|a)++b?', '^.', '.$', '^', '$', r'\A.|.\z', r'\d\Z', 'x*', '(?<=[aeiou])[^aeiou]', '(?<![aeiou])[^aeiou]',
         r'(?>\s+)\S', '(?m:.+)', '.{,2}', r'[^\S\n]+', r'\p{^L}', r'(?i)k+|s', '(?i:[a-k])+', '(?i:[^s])', r'\x41|\u00e9|\x{1F600}', 'a|', r'(\p{L})(\p{N})',
         r'[\]\-a]', '[a-]', 'a{x}', '(?=\\d)', '[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+']
BEHAVIORS = ['Isolated', 'Removed', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']


def split(pattern, behavior='Isolated', invert=False, kind='Regex'):
    return {'type': 'Split', 'pattern': {kind: pattern}, 'behavior': behavior, 'invert': invert}


def byte_level(prefix=False, regex=False):
    return {'type': 'ByteLevel', 'add_prefix_space': prefix, 'trim_offsets': True, 'use_regex': regex}


def digits(one): return {'type': 'Digits', 'individual_digits': one}


def sequence(*steps): return {'type': 'Sequence', 'pretokenizers': list(steps)}


def norms(*names): return {'type': 'Sequence', 'normalizers': [{'type': n} for n in names]}


def flags(token, n): # another mix of rules for the added tokens; the reference panics where white space strips on its left
    return dict(token, lstrip=n % 2 == 0 and not token['content'].isspace(), rstrip=n % 3 == 0, single_word=n % 5 == 0, normalized=not token['special'] and n % 4 == 0)


def variants():
    for p in (GPT2, QWEN, LLAMA3, O200K, DEEPSEEK): yield {'normalizer': {'type': 'NFC'}, 'pre_tokenizer': sequence(split(p), byte_level())}
    for i, p in enumerate(SMALL): yield {'normalizer': None, 'pre_tokenizer': sequence(split(p, BEHAVIORS[i % 5], i % 3 == 0), byte_level())}
    for b in BEHAVIORS:
        for invert in (False, True): yield {'normalizer': None, 'pre_tokenizer': sequence(split(r'\s+', b, invert), byte_level(prefix=True))}
    for s in (' ', 'the', '.', ''): yield {'normalizer': None, 'pre_tokenizer': sequence(split(s, 'MergedWithNext', kind='String'), byte_level())}
    for one in (False, True):
        yield {'normalizer': None, 'pre_tokenizer': sequence(digits(one), byte_level(prefix=one, regex=True))}
        yield {'normalizer': None, 'pre_tokenizer': sequence(split(LLAMA3), digits(one), byte_level(prefix=True))}
    for n in (('NFC',), ('NFD',), ('NFKC',), ('NFKD',), ('Lowercase',), ('NFD', 'Lowercase', 'NFC'), ('NFKD', 'NFC')):
        yield {'normalizer': norms(*n), 'pre_tokenizer': byte_level(regex=True)}
    yield {'normalizer': norms('NFC'), 'pre_tokenizer': byte_level(regex=True), 'ignore_merges': True}
    for shift in range(4): yield {'normalizer': norms('NFKC', 'Lowercase'), 'pre_tokenizer': byte_level(regex=True), 'flags': shift}


def lines(name):
    with open(os.path.join(GOLDEN, name), encoding='utf-8') as f: return [json.loads(x)['text'] for x in f]


def main():
    base = json.load(open(os.path.join(GOLDEN, 'quirk-a/tokenizer.json'), encoding='utf-8'))
    files = {'texts': lines('texts.jsonl'), 'fuzz': lines('fuzz.jsonl')}
    for row in variants():
        t = copy.deepcopy(base)
        t['normalizer'], t['pre_tokenizer'] = row['normalizer'], row['pre_tokenizer']
        t['model']['ignore_merges'] = row.get('ignore_merges', False)
        if 'flags' in row: row['added_tokens'] = t['added_tokens'] = [flags(x, i + row['flags']) for i, x in enumerate(t['added_tokens'])]; del row['flags']
        reference = Tokenizer.from_str(json.dumps(t))
        for name, texts in files.items():
            ids = array.array('i', [i for x in texts for i in reference.encode(x).ids + [-1]])
            row[name] = [len(ids) - len(texts), hashlib.sha256(ids.tobytes()).hexdigest()[:16]]
        print(json.dumps(row))


main()
