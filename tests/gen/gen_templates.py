#!/usr/bin/env python3
"""Fills in tests/golden/templates/constructs.jsonl: what the reference makes of each template there.

    pip install transformers==5.23.0 jinja2==3.1.6 && python3 tests/gen/gen_templates.py

The first line holds the messages that all templates get. A new construct is a new line {"template": ...}; this program adds "text", or
"error" where the reference fails. "rare" is set by hand: the program under test may answer "not supported" there.
"""
import json, os
import transformers.utils.chat_template_utils as reference

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../golden/templates/constructs.jsonl')
TOKENS = {'bos_token': '<s>', 'eos_token': '</s>'}

with open(FILE) as f:
    head, *rows = (json.loads(line) for line in f)
messages = [{k: v for k, v in m.items() if v is not None} for m in head['messages']]
with open(FILE, 'w') as f:
    print(json.dumps(head, ensure_ascii=False), file=f)
    for row in rows:
        out = {'template': row['template']}
        try:
            texts, _ = reference.render_jinja_template(conversations=[messages], chat_template=row['template'], **TOKENS)
            out['text'] = texts[0]
        except Exception as e:
            out['error'] = f'{type(e).__name__}: {e}'[:160]
        if row.get('rare'): out['rare'] = True
        print(json.dumps(out, ensure_ascii=False), file=f)
