#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/unicode_more.txt: what other parts of the reference than its patterns take characters for.

    pip install tokenizers==0.23.3 regex && python3 tests/gen/record_unicode.py > tests/golden/tokenizers/unicode_more.txt

A line: name, number of code points, ranges (hex). combining: what StripAccents drops; bert_removed, nonspacing: what BertNormalizer drops when
it cleans and when it strips accents; punctuation: that of Punctuation; neighbour: the words of Whitespace; scripts: range:number, as UnicodeScripts joins them;
breaks: range:kind, from Unicode's grapheme breaks (unicode.c names the kinds), Hangul syllables left out; w_in_set: \\w between brackets, which is not
\\w outside of them; the rest: \\p{name}.
"""
import json, os, sys
import regex
from tokenizers import Regex, Tokenizer, normalizers as N, pre_tokenizers as P

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../interop'))
from tokenizers_random import charsmap

CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
EVERY = ''.join(map(chr, CPS))
PROPERTIES = 'Z Zs Zl Zp C Cc Cf Co Mn Mc Me Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Nl No Han Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Hebrew Thai Devanagari Armenian Georgian'


def line(name, cps):
    runs = []
    for c in cps:
        if runs and runs[-1][1] == c - 1: runs[-1][1] = c
        else: runs.append([c, c])
    print(name, len(cps), ','.join('%X' % a if a == b else '%X-%X' % (a, b) for a, b in runs))


def kinds(name, n, kind_of):
    runs = []
    for c in CPS:
        k = kind_of(c)
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == k: runs[-1][1] = c
        elif k: runs.append([c, c, k])
    print(name, n, ','.join('%X-%X:%d' % tuple(r) for r in runs))


def bert(clean, strip): return N.BertNormalizer(clean_text=clean, handle_chinese_chars=False, strip_accents=strip, lowercase=False).normalize_str


def scripts():
    """each character's script, as the number of the first character that it is joined with; 0: with all."""
    cut = P.UnicodeScripts().pre_tokenize_str; first, of, last = [], {}, 0
    joined = lambda a, b: len(cut(a + b)) == 1
    for c in CPS:
        ch = chr(c)
        if joined('a', ch) and joined('\u4e2d', ch): of[c] = 0; continue
        of[c] = last if last and joined(first[last - 1], ch) else next((i + 1 for i, x in enumerate(first) if joined(x, ch)), 0)
        if not of[c]: first.append(ch); of[c] = len(first)
        last = of[c]
    kinds('scripts', len(first), of.get)


# Characters that are newer than the reference do not extend a cluster there: it replaces all of a short one by what its beginning is mapped to.
shown = Tokenizer.from_str(json.dumps({
    'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [], 'normalizer': {'type': 'Precompiled', 'precompiled_charsmap': charsmap({'a': 'X', '\u00a9': 'C'})},
    'pre_tokenizer': None, 'post_processor': None, 'decoder': None, 'model': {'type': 'WordLevel', 'vocab': {'?': 0}, 'unk_token': '?'}})).normalizer.normalize_str


def own_break(ch):
    is_a = lambda p: regex.match(r'\p{%s}' % p, ch)
    if is_a('GCB=Control') or is_a('GCB=CR') or is_a('GCB=LF'): return 1
    if is_a('GCB=ZWJ'): return 3
    if is_a('GCB=Extend'): return 13 if is_a('InCB=Linker') else 2 if is_a('InCB=Extend') else 14
    for name, k in (('SpacingMark', 4), ('Prepend', 5), ('L', 6), ('V', 7), ('T', 8), ('Extended_Pictographic', 11)):
        if is_a(name if k == 11 else 'GCB=' + name): return k
    return 12 if is_a('InCB=Consonant') else 0


def break_of(c):
    if 0xAC00 <= c < 0xD7A4: return 0
    k = own_break(chr(c))
    if k in (0, 11): return 11 if shown('\u00a9\u200d' + chr(c)).startswith('C\u200d') else 0
    return 0 if k in (2, 4, 13, 14) and shown('a' + chr(c)) != 'X' else k


def main():
    strip, clean, marks, cut, words = N.StripAccents().normalize_str, bert(True, False), bert(False, True), P.Punctuation().pre_tokenize_str, P.Whitespace().pre_tokenize_str
    line('combining', [c for c in CPS if strip('a' + chr(c)) == 'a'])
    line('bert_removed', [c for c in CPS if clean('a' + chr(c) + 'b') == 'ab'])
    line('nonspacing', [c for c in CPS if marks('a' + chr(c)) == 'a'])
    line('punctuation', [c for c in CPS if len(cut('a' + chr(c) + 'a')) == 3])
    line('neighbour', [c for c in CPS if len(words('a' + chr(c) + 'a')) == 1])
    scripts()
    kinds('breaks', 0, break_of)
    for name, pattern in [('w_in_set', r'[\w]')] + [(n, r'\p{%s}' % n) for n in PROPERTIES.split()]:
        kept = set(N.Replace(Regex(pattern), '').normalize_str(EVERY))
        line(name, [c for c in CPS if chr(c) not in kept])


main()
