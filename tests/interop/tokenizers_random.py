#!/usr/bin/env python3
"""Random tokenizers of every component and option, held against the reference: ids, decoded texts and streams of random nasty texts.

    tokenizers_random.py ./ounce [--seconds 60 | --count 500] [--seed N] [--only KIND] [--keep FOLDER]

Needs the package tokenizers. Prints each difference with the seed of its tokenizer (--seed N --count 1 makes it again) and a text that was made
shorter for as long as it differs. Exit status 1 if there is one.
"""
import argparse, base64, json, os, random, struct, subprocess, sys, tempfile, time
os.environ['TOKENIZERS_PARALLELISM'] = 'false'
from tokenizers import AddedToken, Tokenizer

WORDS = ['hello', 'Hello', 'HELLO', 'the', 'The', 'café', 'Café', 'cafe\u0301', 'ﬁne', 'straße', 'İstanbul', 'ΑΣ', 'naïve', "don't", "I'm", "we'll", 'a', 'b', 'ab', 'abc',
         'x', '日本語', '中文字', 'ひらがな', 'カタカナ', 'ー', '한국어', '각', '\u1112\u1161\u11ab', 'привет', 'العربية', 'שָׁלוֹם', 'हिन्दी', 'क्षि', 'ไทย', 'ＡＢＣ', '①②', 'Ⅷ', '½', '123', '٣٤', '4567890',
         '😀', '👩\u200d👩\u200d👧', '🇩🇪', '🇽', '©', '©\u200d©', 'e\u0301\u0323', '\u0301', 'ａ\u0301', 'ｶﾞ', '\u200d', '\ufe0f', '㍿', '㋿', '™', '²', 'ſ', 'K', '\U00020000', '\U0001f468\U0001f3fd']
SPACES = [' ', '  ', '   ', '\n', '\r\n', '\r', '\t', '\u00a0', '\u3000', '\u2009', '\u200b', '\u2028', '\x85', '\x0b', '\x0c', '\u1680', '\u180e', ' \n ', '']
MARKS = list('.,;:!?\'"()[]{}<>/\\|@#$%^&*-_=+~`') + ['…', '—', '“', '”', '·', '¿', '।', '、', '。', '«', '\u061c', '\ufeff', '\ufffd', '\x00', '\x01', '\x7f', '\x8f', '\x9f', '\xad', '\u2060', '\ue000']
SPECIAL = ['<s>', '</s>', '<unk>', '[CLS]', '[SEP]', '▁', '▁▁', '▁a', '##', '##a', '</w>', '<0x41>', '<0xC3>', '<0xe9>', '<pad>', '|', 'Ġ', 'Ċ', 'é', '<0x0A>']


def text(r):
    out = []
    for _ in range(r.choice([0, 1, 1, 2, 3, 5, 8, 20])):
        k = r.random()
        out.append(r.choice(WORDS) if k < .42 else r.choice(SPACES) if k < .68 else r.choice(MARKS) if k < .82 else r.choice(SPECIAL) if k < .9 else
                   chr(r.choice([r.randrange(0x20, 0x7f), r.randrange(0x80, 0x800), r.randrange(0x800, 0xd800), r.randrange(0xe000, 0x10000), r.randrange(0x10000, 0x32000), r.randrange(0x300, 0x370),
                                 r.randrange(0x1100, 0x1200), r.randrange(0x900, 0xe00)])))
        if r.random() < .5: out.append(' ')
    return ''.join(out)


REGEXES = [r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r'\s+', r'\s', r'\w+', r'[^\w]', r'\p{L}', r'\p{N}{1,3}', r'\d', '(?i:ab|c)', 'a', '', 'a*', ' {2,}', r'[\r\n]+', r'\p{P}', r'(?<=a)b', r'(?=b)',
           r'[\p{Lu}\p{Lt}]', r'\p{M}+', '^', '$', r'^\s+', r'\s+$', '.', r'\S+', '[\u4e00-\u9fa5]+', r'\p{Lo}+', r'[\w]+', r'[\p{L}&&[^\p{Han}]]+', r'[^[ab]\s&&\S]', r'\p{Sc}|\p{Zs}', r'\p{Mn}']
STRINGS = [' ', '▁', 'a', 'ab', '', '.', '  ', 'é', '\n', '\u0301', '##', '</w>', "'", 'the', '日', '.*']
BEHAVIORS = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']


# What matches nothing makes the reference lose track of where its text came from: not for a normalizer before others.
SOLID = [x for x in REGEXES if x not in ('', 'a*', '(?=b)', '^', '$')]


def solid(r): return {'Regex': r.choice(SOLID)} if r.random() < .5 else {'String': r.choice([x for x in STRINGS if x])}


def pattern(r): return {'Regex': r.choice(REGEXES)} if r.random() < .5 else {'String': r.choice(STRINGS)}


def flag(r): return r.random() < .5


def charsmap(entries):
    """SentencePiece's compiled map: a double array, the texts behind it."""
    root, texts = {}, b''
    for key, to in sorted(entries.items()):
        node = root
        for c in key.encode(): node = node.setdefault(c, {})
        node[0] = len(texts); texts += to.encode() + b'\0'
    units, used = {}, {0}

    def place(node, at, label):
        labels = [c for c in node]; base = 1
        while any(base ^ c in used for c in labels): base += 1
        used.update(base ^ c for c in labels)
        units[at] = (at ^ base) << 10 | (256 if 0 in node else 0) | label
        for c, child in node.items():
            if c: place(child, base ^ c, c)
            else: units[base] = child | 1 << 31
    place(root, 0, 0)
    n = max(units) + 256 & ~255
    return base64.b64encode(struct.pack('<I', 4 * n) + struct.pack(f'<{n}I', *(units.get(i, 0) for i in range(n))) + texts).decode()


def random_map(r):
    keys = ['\r\n', '\r', '\n', 'a', 'e\u0301', 'ａ', 'ａ\u0301', '\u0301', '\u200d', '½', '㍿', 'ﬁ', '\u1100', '한', '©', 'क', 'é', 'ab', '\x01', '\u00a0', '\u3000', '😀', '\U00020000', 'Ａ', 'ｶﾞ', 'ｶ']
    return charsmap({k: r.choice(['', ' ', 'x', 'ab', '▁', '日', '1⁄2']) for k in r.sample(keys, r.choice([1, 5, 15, 26]))})


def normalizer(r, depth=0):
    k = r.choice(['NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'Nmt', 'StripAccents', 'Strip', 'Prepend', 'Replace', 'Replace', 'BertNormalizer', 'Precompiled', 'ByteLevel', 'Sequence', 'Sequence'])
    if k == 'Sequence': return {'type': k, 'normalizers': [normalizer(r, depth + 1) for _ in range(r.choice([0, 1, 2, 2, 3]))]} if depth < 2 else {'type': 'NFC'}
    if k == 'Strip': return {'type': k, 'strip_left': flag(r), 'strip_right': flag(r)}
    if k == 'Prepend': return {'type': k, 'prepend': r.choice(['▁', ' ', 'ab', '\u0301'])}
    if k == 'Replace': return {'type': k, 'pattern': solid(r), 'content': r.choice(['▁', ' ', '', 'x', 'ab', '##', '\u0301'])}
    if k == 'BertNormalizer': return {'type': k, 'clean_text': flag(r), 'handle_chinese_chars': flag(r), 'strip_accents': r.choice([None, True, False]), 'lowercase': flag(r)}
    if k == 'Precompiled': return {'type': k, 'precompiled_charsmap': random_map(r)}
    if k == 'ByteLevel' and r.random() < .7: k = 'NFC'
    return {'type': k}


def pre_tokenizer(r, depth=0):
    k = r.choice(['ByteLevel', 'ByteLevel', 'Metaspace', 'Metaspace', 'Split', 'Split', 'Whitespace', 'WhitespaceSplit', 'Punctuation', 'Digits', 'BertPreTokenizer', 'CharDelimiterSplit', 'UnicodeScripts', 'FixedLength', 'Sequence', 'Sequence'])
    if k == 'Sequence': return {'type': k, 'pretokenizers': [pre_tokenizer(r, depth + 1) for _ in range(r.choice([0, 1, 2, 2, 3]))]} if depth < 2 else {'type': 'Whitespace'}
    if k == 'ByteLevel': return {'type': k, 'add_prefix_space': flag(r), 'trim_offsets': flag(r), 'use_regex': flag(r)}
    if k == 'Metaspace': return {'type': k, 'replacement': r.choice(['▁', '▁', '▁', '_', ' ', 'a']), 'prepend_scheme': r.choice(['first', 'never', 'always']), 'split': flag(r)}
    if k == 'Split': return {'type': k, 'pattern': pattern(r), 'behavior': r.choice(BEHAVIORS), 'invert': flag(r)}
    if k == 'Punctuation': return {'type': k, 'behavior': r.choice(BEHAVIORS)}
    if k == 'Digits': return {'type': k, 'individual_digits': flag(r)}
    if k == 'CharDelimiterSplit': return {'type': k, 'delimiter': r.choice([' ', 'a', '▁', '.', '\n', 'é'])}
    if k == 'FixedLength': return {'type': k, 'length': r.choice([1, 2, 3, 5, 100])}
    return {'type': k}


def decoder(r, depth=0):
    k = r.choice(['ByteLevel', 'ByteLevel', 'Metaspace', 'Metaspace', 'WordPiece', 'WordPiece', 'BPEDecoder', 'BPEDecoder', 'Fuse', 'Strip', 'Replace', 'ByteFallback', 'CTC', 'CTC', 'Sequence', 'Sequence', 'Sequence', 'llama'])
    if k == 'llama': return {'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '}, {'type': 'ByteFallback'}, {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}
    if k == 'Sequence': return {'type': k, 'decoders': [decoder(r, depth + 1) for _ in range(r.choice([0, 1, 2, 2, 3]))]} if depth < 2 else {'type': 'Fuse'}
    if k == 'ByteLevel': return {'type': k, 'add_prefix_space': flag(r), 'trim_offsets': flag(r), 'use_regex': flag(r)}
    if k == 'Metaspace': return {'type': k, 'replacement': r.choice(['▁', '▁', '_', 'a']), 'prepend_scheme': r.choice(['first', 'never', 'always']), 'split': flag(r)}
    if k == 'WordPiece': return {'type': k, 'prefix': r.choice(['##', '##', '@', '']), 'cleanup': flag(r)}
    if k == 'BPEDecoder': return {'type': k, 'suffix': r.choice(['</w>', '</w>', 'a', ''])}
    if k == 'Strip': return {'type': k, 'content': r.choice([' ', 'a', '▁']), 'start': r.choice([0, 1, 3]), 'stop': r.choice([0, 1, 2])}
    if k == 'Replace': return {'type': k, 'pattern': pattern(r), 'content': r.choice(['▁', ' ', '', 'x', 'ab'])}
    if k == 'CTC': return {'type': k, 'pad_token': r.choice(['<pad>', 'a', '']), 'word_delimiter_token': r.choice(['|', ' ', '', 'b']), 'cleanup': flag(r)}
    return {'type': k}


def words_of(r, norm, pre):
    """what a model would see of some texts, so that its vocabulary fits."""
    base = {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [], 'normalizer': norm, 'pre_tokenizer': pre, 'post_processor': None, 'decoder': None,
            'model': {'type': 'WordLevel', 'vocab': {'?': 0}, 'unk_token': '?'}}
    t = Tokenizer.from_str(json.dumps(base)); out = []
    for _ in range(30):
        s = text(r)
        try:
            if t.normalizer: s = t.normalizer.normalize_str(s)
            out += [w for w, _ in t.pre_tokenizer.pre_tokenize_str(s)] if t.pre_tokenizer else [s]
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt): raise
    return [w for w in (w.replace('\0', '') for w in out) if w] or ['a']  # the program's JSON reader takes no NUL in a key


def bpe(r, words):
    prefix, suffix = r.choice([None, None, None, '', '##']), r.choice([None, None, None, '', '</w>'])
    fallback = r.random() < .4; seqs = []
    for w in words:
        cs = [(prefix or '' if i else '') + c for i, c in enumerate(w)]; cs[-1] += suffix or ''; seqs.append(cs)
    chars = sorted({c for s in seqs for c in s}); drop = r.choice([0, .1, .3])
    vocab = [c for c in chars if r.random() >= drop] or ['a']
    if fallback: vocab += ['<0x%02X>' % b for b in range(256) if r.random() < r.choice([1, 1, .95])]
    unk = r.choice([None, '<unk>', '<unk>', vocab[0]])
    if unk and unk not in vocab: vocab.append(unk)
    known = set(vocab); merges = []
    for _ in range(r.choice([0, 10, 60, 200])):
        s = r.choice(seqs)
        if len(s) < 2: continue
        i = r.randrange(len(s) - 1); a, b = s[i], s[i + 1]
        if r.random() < .03 and unk: a = unk
        if a not in known or b not in known or (a, b) in merges or len(b) < len(prefix or ''): continue
        c = a + b[len(prefix or ''):]; merges.append((a, b))
        if c not in known: known.add(c); vocab.append(c)
        for s in seqs[:]:
            i = 0
            while i < len(s) - 1:
                if s[i] == a and s[i + 1] == b and r.random() < .9: s[i:i + 2] = [c]
                i += 1
    if flag(r): r.shuffle(vocab)
    return {'type': 'BPE', 'dropout': None, 'unk_token': unk, 'continuing_subword_prefix': prefix, 'end_of_word_suffix': suffix, 'fuse_unk': flag(r), 'byte_fallback': fallback,
            'ignore_merges': flag(r), 'vocab': {v: i for i, v in enumerate(vocab)}, 'merges': [' '.join(m) for m in merges] if r.random() < .3 and not any(' ' in x for m in merges for x in m) else merges}


def pieces(r, words, n):
    out = set()
    for _ in range(n):
        w = r.choice(words); i = r.randrange(len(w)); out.add((w[i:i + r.choice([1, 1, 2, 3, 5, 9])], i))
    return sorted(out)


def unigram(r, words):
    vocab = ['<unk>'] + sorted({p for p, _ in pieces(r, words, r.choice([20, 100, 300]))} - {'<unk>'})
    fallback = r.random() < .4
    if fallback: vocab += ['<0x%02X>' % b for b in range(256) if r.random() < r.choice([1, 1, .95])]
    vocab = list(dict.fromkeys(vocab)); digits = r.choice([0, 1, 15])
    scores = [round(r.uniform(-12, 0), digits) for _ in vocab]
    return {'type': 'Unigram', 'unk_id': r.choice([0, 0, 0, None, len(vocab) - 1]), 'vocab': list(zip(vocab, scores)), 'byte_fallback': fallback}


def word_piece(r, words):
    prefix = r.choice(['##', '##', '', '@@'])
    vocab = ['[UNK]'] + [(prefix if i else '') + p for p, i in pieces(r, words, r.choice([20, 100, 300]))]
    vocab = list(dict.fromkeys(v for v in vocab if v))
    return {'type': 'WordPiece', 'unk_token': r.choice(['[UNK]', '[UNK]', vocab[-1]]), 'continuing_subword_prefix': prefix, 'max_input_chars_per_word': r.choice([100, 100, 3, 0]), 'vocab': {v: i for i, v in enumerate(vocab)}}


def word_level(r, words):
    vocab = list(dict.fromkeys(['<unk>'] + [w for w in words if r.random() < .8]))
    return {'type': 'WordLevel', 'unk_token': '<unk>', 'vocab': {v: i for i, v in enumerate(vocab)}}


def post(r, t):
    cls, sep = ('<s>', t.token_to_id('<s>')), ('</s>', t.token_to_id('</s>')); k = r.random()
    template = {'type': 'TemplateProcessing', 'single': [x for x in [{'SpecialToken': {'id': 'X', 'type_id': 0}} if flag(r) else None, {'Sequence': {'id': 'A', 'type_id': 0}}, {'SpecialToken': {'id': '</s>', 'type_id': 0}} if flag(r) else None] if x],
                'pair': [{'Sequence': {'id': 'A', 'type_id': 0}}, {'Sequence': {'id': 'B', 'type_id': 1}}],
                'special_tokens': {'X': {'id': 'X', 'ids': [cls[1], sep[1]], 'tokens': ['<s>', '</s>']}, '</s>': {'id': '</s>', 'ids': [sep[1]], 'tokens': ['</s>']}}}
    bert = {'type': 'BertProcessing', 'sep': sep, 'cls': cls}
    roberta = {'type': 'RobertaProcessing', 'sep': sep, 'cls': cls, 'trim_offsets': flag(r), 'add_prefix_space': flag(r)}
    level = {'type': 'ByteLevel', 'add_prefix_space': flag(r), 'trim_offsets': flag(r), 'use_regex': flag(r)}
    return None if k < .3 else r.choice([template, bert, roberta, level, {'type': 'Sequence', 'processors': [level, template]}, {'type': 'Sequence', 'processors': []}])


MODELS = {'bpe': bpe, 'unigram': unigram, 'wordpiece': word_piece, 'wordlevel': word_level}


def make(seed, only=''):
    """(JSON text, reference) or None where the reference does not take it."""
    r = random.Random(seed)
    kind = r.choice(['bpe', 'bpe', 'unigram', 'wordpiece', 'wordlevel'])
    if only and kind != only: return None
    norm = normalizer(r) if r.random() < .7 else None; pre = pre_tokenizer(r) if r.random() < .8 else None; dec = decoder(r) if r.random() < .9 else None
    try:
        model = MODELS[kind](r, words_of(r, norm, pre))
        j = {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [], 'normalizer': norm, 'pre_tokenizer': pre, 'post_processor': None, 'decoder': dec, 'model': model}
        t = Tokenizer.from_str(json.dumps(j)); added = [AddedToken('<s>', special=True, normalized=False), AddedToken('</s>', special=True, normalized=False)]
        for _ in range(r.choice([0, 0, 2, 6])):
            added.append(AddedToken(r.choice(WORDS + SPECIAL + ['  ', '\n', ' the', 'the ', 'a b', '<x>', '<X>', '<x>y', 'É', '\u0301']), special=r.random() < .3, normalized=flag(r), single_word=r.random() < .3,
                                    lstrip=r.random() < .3, rstrip=r.random() < .3))
        # the empty text is found everywhere, and which of two with one text is found is left to chance
        look = {a.content: t.normalizer.normalize_str(a.content) if norm and a.normalized else a.content for a in added}; taken = list(look.values())
        added = [a for a in added if look[a.content] and taken.count(look[a.content]) == 1]
        for a in added: (t.add_special_tokens if a.special else t.add_tokens)([a])
        j = json.loads(t.to_str()); j['post_processor'] = post(r, t)
        s = json.dumps(j); return s, Tokenizer.from_str(s)
    except BaseException as e:
        if isinstance(e, (KeyboardInterrupt, NameError, KeyError, IndexError, UnboundLocalError)): raise
        return None


def ask(cmd, rows):
    p = subprocess.run([args.ounce] + cmd + ['--jsonl'], input=''.join(json.dumps(x) + '\n' for x in rows).encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    out = [json.loads(x) for x in p.stdout.decode().splitlines() if x.strip()]
    if p.returncode < 0 or len(out) != len(rows): return None, f'exit {p.returncode}: {p.stderr.decode(errors="replace")[-300:]}'
    return out, ''


def reference(f):
    try: return f()
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt): raise
        return None


def simple(dec, tokens):
    """whether the deltas of a stream add up to the whole text: no rule over all tokens."""
    if dec and dec['type'] == 'BPEDecoder': return dec['suffix'] == '</w>' and not any('</w>' in x[:-1] for x in tokens)
    return dec is None or dec['type'] in ('ByteLevel', 'Fuse', 'WordPiece', 'Replace')


def check(seed, made, folder):
    s, t = made; r = random.Random(seed + 1); bad = []
    with open(os.path.join(folder, 'tokenizer.json'), 'w') as f: f.write(s)
    texts = [text(r) for _ in range(args.texts)]; j = json.loads(s)
    for special in (False, True):
        want = [reference(lambda: t.encode(x, add_special_tokens=special).ids) for x in texts]
        got, why = ask(['tokenize', folder] + (['--special'] if special else []), [{'text': x} for x in texts])
        if got is None: return [f'seed {seed}: tokenize: {why}'], 0
        for x, w, g in zip(texts, want, got):
            if w is not None and g.get('ids') != w: bad.append(('ids', special, x, w, g))
    n = t.get_vocab_size(); lists = [w for w in want if w is not None][:20] + [[r.randrange(n + 2) for _ in range(r.choice([1, 2, 5, 12]))] for _ in range(20)]
    for skip in (False, True):
        got, why = ask(['detokenize', folder] + ([] if skip else ['--keep-special']), [{'ids': x} for x in lists])
        if got is None: return [f'seed {seed}: detokenize: {why}'], 0
        for x, g in zip(lists, got):
            w = reference(lambda: t.decode(x, skip_special_tokens=skip))
            if w is not None and g.get('text') != w: bad.append(('text', skip, x, w, g))
    if simple(j['decoder'], t.get_vocab()):
        got, why = ask(['detokenize', folder, '--keep-special', '--stream'], [{'ids': x} for x in lists])
        for x, g in zip(lists, got):
            w = reference(lambda: t.decode(x, skip_special_tokens=False))
            if w is not None and ''.join(g.get('deltas', ['?'])) != w: bad.append(('stream', False, x, w, g))
    out = []
    for kind, option, x, w, g in bad[:1]:
        if kind == 'ids': x, w, g = shorter(t, folder, x, option)
        brief = {k: v for k, v in j.items() if k not in ('model', 'added_tokens', 'version', 'truncation', 'padding')}
        m = {k: v if not isinstance(v, (dict, list)) else len(v) for k, v in j['model'].items()}
        brief = json.dumps(brief); brief = brief if len(brief) < 3000 else brief[:3000]
        ids = {t.token_to_id(k): k for k in t.get_vocab()}
        out.append(f'seed {seed}: {kind} {option} of {ascii(x)}\n  expected {ascii(w)}\n  found    {ascii(g)}\n  {ascii([ids.get(i) for i in (w if kind == "ids" else x)])}\n  {brief}\n  {m}\n  {[a for a in j["added_tokens"]]}')
    return out, len(bad)


def shorter(t, folder, x, special):
    def differs(s):
        w = reference(lambda: t.encode(s, add_special_tokens=special).ids)
        g, _ = ask(['tokenize', folder] + (['--special'] if special else []), [{'text': s}])
        return (w, g[0]) if w is not None and g and g[0].get('ids') != w else None
    now = differs(x) or (None, None); step = max(1, len(x) // 2)
    while step:
        i, cut = 0, False
        while i < len(x):
            s = x[:i] + x[i + step:]; d = differs(s)
            if d: x, now, cut = s, d, True
            else: i += step
        if not cut or step == 1: step //= 2
    return x, *now


def main():
    start, done, refused, differ = time.time(), 0, 0, 0
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 40)
    print(f'seed {seed}', flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the reference prints where it panics
    with tempfile.TemporaryDirectory() as folder:
        while (done < args.count if args.count else time.time() - start < args.seconds) and differ < args.max:
            made = make(seed, args.only)
            if made:
                out, n = check(seed, made, args.keep or folder); done += 1; differ += bool(out)
                for line in out: print(line, flush=True)
            else:
                refused += 1
                if args.count == 1: break
            seed += 1
    print(f'{done} tokenizers, {refused} that the reference refuses, {differ} with differences')
    return 1 if differ else 0


if __name__ == '__main__':
    ap = argparse.ArgumentParser()
    ap.add_argument('ounce'); ap.add_argument('--seconds', type=float, default=60); ap.add_argument('--count', type=int, default=0)
    ap.add_argument('--seed', type=int, default=None); ap.add_argument('--texts', type=int, default=40); ap.add_argument('--max', type=int, default=10)
    ap.add_argument('--only', default=''); ap.add_argument('--keep', default='')
    args = ap.parse_args()
    sys.exit(main())
