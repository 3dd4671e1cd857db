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

CPS=[c for c in range(0x110000) if not 0xD800<=c<0xE000]
def rs(cps):
    out=[]
    for c in sorted(cps):
        if out and out[-1][1]==c-1: out[-1][1]=c
        else: out.append([c,c])
    return ','.join('%X'%a if a==b else '%X-%X'%(a,b) for a,b in out)
def line(n,cps): print(n,len(cps),rs(cps)); sys.stderr.write(n+' %d\n'%len(cps))
line('combining',[c for c in CPS if N.StripAccents().normalize_str('a'+chr(c))=='a'])
b=N.BertNormalizer(clean_text=True,handle_chinese_chars=False,strip_accents=False,lowercase=False)
line('bert_removed',[c for c in CPS if b.normalize_str('a'+chr(c)+'b')=='ab'])
sp=[c for c in CPS if b.normalize_str('a'+chr(c)+'b')=='a b']
sys.stderr.write('spaces '+rs(sp)+'\n')
b=N.BertNormalizer(clean_text=False,handle_chinese_chars=False,strip_accents=True,lowercase=False)
line('nonspacing',[c for c in CPS if b.normalize_str('a'+chr(c))=='a'])
ch=N.BertNormalizer(clean_text=False,handle_chinese_chars=True,strip_accents=False,lowercase=False)
sys.stderr.write('ideographs '+rs([c for c in CPS if len(ch.normalize_str(chr(c)))==3])+'\n')
pu=P.Punctuation()
line('punctuation',[c for c in CPS if len(pu.pre_tokenize_str('a'+chr(c)+'a'))==3])
ws=P.Whitespace()
line('neighbour',[c for c in CPS if len(ws.pre_tokenize_str('a'+chr(c)+'a'))==1])
# scripts: runs, then classes
us=P.UnicodeScripts()
def joined(a,b): return len(us.pre_tokenize_str(a+b))==1
# Any: x such that 'a'+x+'b' ... joined with both latin and han
any_=set(c for c in CPS if len(us.pre_tokenize_str('a'+chr(c)))==1 and len(us.pre_tokenize_str('\u4e2d'+chr(c)))==1)
reps=[]; runs=[]
prev=None
for c in CPS:
    if c in any_: k=0
    else:
        k=None
        if prev and joined(chr(reps[prev-1]),chr(c)): k=prev
        else:
            for i,r in enumerate(reps):
                if joined(chr(r),chr(c)): k=i+1; break
        if k is None: reps.append(c); k=len(reps)
        prev=k
    if runs and runs[-1][2]==k and runs[-1][1]==c-1: runs[-1][1]=c
    else: runs.append([c,c,k])
runs=[r for r in runs if r[2]]
print('scripts',len(reps),','.join('%X-%X:%d'%tuple(r) for r in runs)); sys.stderr.write('scripts %d runs %d\n'%(len(reps),len(runs)))
# Characters that are newer than the reference do not extend a cluster there: it replaces all of a short one by what its beginning is mapped to.
shown = Tokenizer.from_str(json.dumps({'normalizer': {'type': 'Precompiled', 'precompiled_charsmap': charsmap({'a': 'X', '\u00a9': 'C'})},
                                       'model': {'type': 'WordLevel', 'vocab': {'?': 0}, 'unk_token': '?'}})).normalizer.normalize_str


def kind(ch):
    k = own_kind(ch)
    if k in (0, 11): return 11 if shown('\u00a9\u200d' + ch).startswith('C\u200d') else 0
    return 0 if k in (2, 4, 13, 14) and shown('a' + ch) != 'X' else k


def own_kind(ch):
    m=lambda p: regex.match(r'\p{%s}'%p,ch)
    if m('GCB=Control') or m('GCB=CR') or m('GCB=LF'): return 1
    if m('GCB=ZWJ'): return 3
    if m('GCB=Extend'): return 13 if m('InCB=Linker') else 2 if m('InCB=Extend') else 14
    for n,k in (('SpacingMark',4),('Prepend',5),('L',6),('V',7),('T',8),('LV',9),('LVT',10)):
        if m('GCB='+n): return k
    if m('Extended_Pictographic'): return 11
    if m('InCB=Consonant'): return 12
    return 0
runs=[]
for c in CPS:
    k=kind(chr(c))
    if runs and runs[-1][2]==k and runs[-1][1]==c-1: runs[-1][1]=c
    else: runs.append([c,c,k])
runs=[r for r in runs if r[2] and not (0xAC00<=r[0]<0xD7A4)]
print('breaks',0,','.join('%X-%X:%d'%tuple(r) for r in runs)); sys.stderr.write('breaks %d\n'%len(runs))

EVERY = ''.join(map(chr, CPS))
PROPERTIES = 'Z Zs Zl Zp C Cc Cf Co Mn Mc Me Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Nl No Han Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Hebrew Thai Devanagari Armenian Georgian'
for name, pattern in [('w_in_set', r'[\w]')] + [(n, r'\p{%s}' % n) for n in PROPERTIES.split()]:
    kept = set(N.Replace(Regex(pattern), '').normalize_str(EVERY))
    line(name, [c for c in CPS if chr(c) not in kept])
