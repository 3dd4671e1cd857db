# Single damages to good checkpoints (damage.py has them): verify finds each, but for those that no reader could notice.
. tests/lib.sh
M=tests/golden/models/llama
mkdir "$T/original" && cp $M/config.json $M/model.safetensors "$T/original"
# A tokenizer of bytes and three more tokens, for the model's 320 rows.
python3 - "$T/original" <<'PY'
import json, sys
d = sys.argv[1]
chars = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]
n = 0
for b in range(256):
    if chars[b] is None: chars[b] = chr(256 + n); n += 1
added = [{'id': i, 'content': t, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True} for i, t in enumerate(['<unk>', '<s>', '</s>'])]
level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
vocab = {t['content']: t['id'] for t in added} | {c: 3 + i for i, c in enumerate(chars)}
tok = {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added + [dict(added[0], id=259, content='<turn>')], 'normalizer': None, 'pre_tokenizer': level, 'post_processor': None, 'decoder': level,
       'model': {'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None, 'end_of_word_suffix': None, 'fuse_unk': False, 'byte_fallback': False, 'vocab': vocab, 'merges': []}}
tok['added_tokens'] = [tok['added_tokens'][k] for k in (1, 2, 3)]
names = {str(t['id']): {'content': t['content'], 'special': True} for t in tok['added_tokens']}
json.dump(tok, open(d + '/tokenizer.json', 'w'))
json.dump({'bos_token': '<s>', 'eos_token': '</s>', 'added_tokens_decoder': names, 'chat_template': '{{ messages[0].content }}', 'tokenizer_class': 'PreTrainedTokenizerFast'}, open(d + '/tokenizer_config.json', 'w'))
json.dump({'bos_token_id': 1}, open(d + '/generation_config.json', 'w'))
PY
ok 'a checkpoint to be damaged is made' $OUNCE quantize "$T/original" -o "$T/good" --scheme W4A16 --group-size 32 --max-shard-size 64KB -q
python3 tests/e2e/damage.py "$OUNCE" "$T/good" "$T/original" tests/golden/quantized
