#!/usr/bin/env python3
"""Writes src/text/unicode_table.c: the character classes, normal forms and lower case that the reference's tokenizers see.

    python3 tests/gen/gen_unicode.py > src/text/unicode_table.c

Sources: tests/golden/tokenizers/unicode_classes.txt (classes, Unicode 16), unicode_more.txt (see record_unicode.py), Python's unicodedata (which must be of Unicode 14)
and the differences from it that unicode_normalisers.json lists: the reference's normal forms are those of Unicode 9, its lower
case that of Unicode 17. The result is checked against that file's digests before anything is written.
"""
import hashlib, json, os, sys, unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, '../golden/tokenizers')
assert unicodedata.unidata_version == '14.0.0', 'the recorded differences are from Unicode 14'
CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
NORM = json.load(open(os.path.join(GOLDEN, 'unicode_normalisers.json')))
HANGUL = range(0xAC00, 0xD7A4)

# Marks that Unicode 10 to 14 added: to the reference they have no combining class and are never reordered.
LATER_MARKS = '''7FD 898-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DF9 A82C 10D24-10D27 10EAB-10EAC 10F46-10F50
10F82-10F85 11070 1133B 1145E 11839-1183A 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 16FF0-16FF1
1E130-1E136 1E2AE 1E2EC-1E2EF'''
# What Unicode 17 has in N beyond Unicode 16: the Digits pre-tokeniser goes by it.
LATER_NUMBERS = [(0x11DE0, 0x11DE9), (0x16FF4, 0x16FF6)]


def ranges(text):
    out = []
    for r in text.replace(',', ' ').split():
        lo, _, hi = r.partition('-'); out.append((int(lo, 16), int(hi or lo, 16)))
    return out


def to_ranges(cps):
    out = []
    for c in sorted(cps):
        if out and out[-1][1] == c - 1: out[-1][1] = c
        else: out.append([c, c])
    return [tuple(r) for r in out]


def to_set(rs): return {c for lo, hi in rs for c in range(lo, hi + 1)}


def unescape(s): return s.encode('ascii').decode('unicode_escape')


def changes(form, function):
    """{code point: result} of the single code points that a form changes; checked against the recorded digest."""
    diff = {int(c, 16): unescape(reference) for c, reference, ucd in NORM[form]['differs_from_UCD']}
    out = {}
    for c in CPS:
        r = diff[c] if c in diff else function(chr(c))
        if r != chr(c): out[c] = r
    digest = hashlib.sha256(''.join(chr(c) + r + '\n' for c, r in out.items()).encode()).hexdigest()
    assert (len(out), digest) == (NORM[form]['changed'], NORM[form]['sha256']), f'{form}: not what the reference does'
    return out


def more():
    return [line.split() for line in open(os.path.join(GOLDEN, 'unicode_more.txt'))]


def kind_ranges(name):
    rs = next(rs for n, _, rs in more() if n == name)
    return ['{0x%s, 0x%s, %s},' % (*r.split(':')[0].split('-'), r.split(':')[1]) for r in rs.split(',')]


def classes():
    c = {}
    for line in open(os.path.join(GOLDEN, 'unicode_classes.txt')):
        name, n, rs = line.split(); c[name] = ranges(rs); assert len(to_set(c[name])) == int(n), name
    out = {'s': c['\\s'], 'd': c['\\d'], 'w': c['\\w']}
    out.update((name[3:-1], rs) for name, rs in c.items() if name.startswith('\\p{'))
    out['digits'] = to_ranges(to_set(out['N']) | to_set(LATER_NUMBERS))
    # More of the same; and what the added tokens' neighbours, Punctuation, BertNormalizer and StripAccents go by: other engines, other versions.
    out.update((name, ranges(rs)) for name, n, rs in more() if name not in ('scripts', 'breaks'))
    return out


def normal_forms():
    forms = {f: changes(f, lambda s, f=f: unicodedata.normalize(f, s)) for f in ('NFC', 'NFD', 'NFKC', 'NFKD')}
    later = to_set(ranges(LATER_MARKS))
    ccc = {c: unicodedata.combining(chr(c)) for c in CPS if unicodedata.combining(chr(c)) and c not in later}
    pairs = {}
    for c, d in forms['NFD'].items():
        one = unicodedata.decomposition(chr(c)).split()
        if c in HANGUL or c in forms['NFC'] or len(one) != 2: continue
        pairs[int(one[0], 16), int(one[1], 16)] = c
    second = {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    rows, pool, at = {}, [], {}
    for c in sorted(set(forms['NFD']) | set(forms['NFKD']) | set(ccc) | second):
        if c in HANGUL: continue
        canon, compat = forms['NFD'].get(c, ''), forms['NFKD'].get(c, '')
        if compat == canon: compat = ''
        flags = 0
        for bit, f in enumerate(('NFC', 'NFD', 'NFKC', 'NFKD')):
            if c in ccc or c in forms[f] or (f in ('NFC', 'NFKC') and c in second): flags |= 1 << bit
        if canon + compat not in at: at[canon + compat] = len(pool); pool += map(ord, canon + compat)
        rows[c] = (at[canon + compat], len(canon), len(compat), ccc.get(c, 0), flags)
    return rows, pool, pairs


def put(head, items, per_line):
    print(head + ' = {')
    for i in range(0, len(items), per_line): print('    ' + ' '.join(items[i:i + per_line]))
    print('};')


def main():
    lower, (rows, pool, pairs) = changes('Lowercase', str.lower), normal_forms()
    print('/* Made by tests/gen/gen_unicode.py. Do not edit. */\n#include "text/tok_internal.h"\n')
    named = classes()
    for name, rs in named.items():
        put(f'static const oz_range class_{name}[]', ['{0x%x, 0x%x},' % r for r in rs], 10)
    put('const oz_uc_class oz_uc_classes[]', ['{"%s", class_%s, %d},' % (n, n, len(r)) for n, r in named.items()] + ['{NULL, NULL, 0},'], 4)

    kinds = sorted(set(rows.values())); number = {k: i + 1 for i, k in enumerate(kinds)}
    put('\nconst oz_uc_norm oz_uc_norms[]', ['{0, 0, 0, 0, 0},'] + ['{%d, %d, %d, %d, %d},' % k for k in kinds], 10)
    put('const uint32_t oz_uc_norm_pool[]', ['0x%x,' % c for c in pool], 20)
    pages, page_of = {}, []
    for p in range(0x30000 >> 6):
        page = tuple(number[rows[c]] if c in rows else 0 for c in range(p << 6, (p + 1) << 6))
        page_of.append(pages.setdefault(page, len(pages)))
    assert len(pages) <= 256 and not any(c >= 0x30000 for c in rows)
    put('const uint8_t oz_uc_norm_page[0x30000 >> 6]', ['%d,' % p for p in page_of], 32)
    put(f'const uint16_t oz_uc_norm_index[][64]', ['{' + ', '.join(map(str, p)) + '},' for p in pages], 1)
    put('const oz_uc_pair oz_uc_pairs[]', ['{0x%x, 0x%x, 0x%x},' % (*k, pairs[k]) for k in sorted(pairs)], 6)
    print(f'const size_t oz_uc_n_pairs = {len(pairs)};')
    put('const oz_uc_lower oz_uc_lowers[]', ['{0x%x, {0x%x, 0x%x}},' % (c, ord(r[0]), ord(r[1]) if len(r) > 1 else 0) for c, r in lower.items()], 6)
    print(f'const size_t oz_uc_n_lowers = {len(lower)};')
    for name in ('scripts', 'breaks'):
        put(f'const oz_uc_kind oz_uc_{name}[]', kind_ranges(name), 8)
        print(f'const size_t oz_uc_n_{name} = {len(kind_ranges(name))};')


main()
