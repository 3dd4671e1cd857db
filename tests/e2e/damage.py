"""damage.py OUNCE GOOD ORIGINAL OTHERS: single damages to good checkpoints, each of which `verify` must find, with an error where `logits` refuses it and only there; a TAP line each.

GOOD is W4A16 in groups, sharded, with a tokenizer, made of ORIGINAL by rounding; OTHERS has a folder of other families each.
A row: what is damaged, how, what a finding must say, and whether it takes the original to notice. The last table is of damages that no reader can notice
without it: values as good as those that were there."""
import json, os, re, shutil, struct, subprocess, sys, tempfile

ounce, good, original, others = sys.argv[1:]


class Shard:
    """A safetensors file as header and data."""

    def __init__(self, path):
        raw = open(path, 'rb').read()
        n = struct.unpack('<Q', raw[:8])[0]
        self.path, self.header, self.data = path, json.loads(raw[8:8 + n]), bytearray(raw[8 + n:])

    def save(self, length=None):
        text = json.dumps(self.header, separators=(',', ':')).encode()
        text += b' ' * (-len(text) % 8)
        open(self.path, 'wb').write(struct.pack('<Q', len(text) if length is None else length) + text + self.data)


def shards(d): return [Shard(os.path.join(d, f)) for f in sorted(os.listdir(d)) if f.endswith('.safetensors')]


def shard_of(d, name): return next(s for s in shards(d) if name in s.header)


def span(s, name): return s.header[name]['data_offsets']


def poke(name, at, *values):
    """Writes bytes at an offset of a tensor's data; negative: from its end."""
    def f(d):
        s = shard_of(d, name)
        b, e = span(s, name)
        at_byte = b + at if at >= 0 else e + at
        assert bytes(s.data[at_byte:at_byte + len(values)]) != bytes(values)
        s.data[at_byte:at_byte + len(values)] = bytes(values)
        s.save()
    return f


def flip(name, at, mask):
    def f(d):
        s = shard_of(d, name)
        s.data[span(s, name)[0] + at] ^= mask
        s.save()
    return f


def header(name, key, value):
    def f(d):
        s = shard_of(d, name)
        old = s.header[name][key]
        s.header[name][key] = value(old) if callable(value) else value
        s.save()
    return f


def rename(old, new):
    def f(d):
        s = shard_of(d, old)
        s.header[new] = s.header.pop(old)
        s.save()
        def g(index):
            index['weight_map'][new] = index['weight_map'].pop(old)
        edit('model.safetensors.index.json', g)(d)
    return f


def drop(name):
    """Takes a tensor out of an unsharded file."""
    def f(d):
        s = shard_of(d, name)
        b, e = span(s, name)
        del s.header[name], s.data[b:e]
        for t in s.header.values():
            if 'data_offsets' in t and t['data_offsets'][0] >= e: t['data_offsets'] = [x - (e - b) for x in t['data_offsets']]
        s.save()
    return f


def add(name, dtype='F32', shape=(1,), data=struct.pack('<f', 2)):
    """A tensor more in an unsharded file."""
    def f(d):
        s, = shards(d)
        s.header[name] = dict(dtype=dtype, shape=shape, data_offsets=[len(s.data), len(s.data) + len(data)])
        s.data += data
        s.save()
    return f


def side(**keys):
    return lambda d: json.dump(keys, open(os.path.join(d, 'quantize_config.json'), 'w'))


def both(*changes):
    def f(d):
        for change in changes: change(d)
    return f


def copy(source, target):
    def f(d):
        a, t = shard_of(d, source), shard_of(d, target)
        (b, e), (b2, e2) = span(a, source), span(t, target)
        assert e - b == e2 - b2
        t.data[b2:e2] = a.data[b:e]
        t.save()
    return f


def fill(name, begin, end, step, byte):
    """Every step-th run [begin, end) of a tensor's bytes."""
    def f(d):
        s = shard_of(d, name)
        b, e = span(s, name)
        for at in range(b, e, step): s.data[at + begin:at + end] = bytes([byte]) * (end - begin)
        s.save()
    return f


def edit(file, change):
    def f(d):
        p = os.path.join(d, file)
        v = json.load(open(p))
        change(v)
        json.dump(v, open(p, 'w'))
    return f


def put(file, path, value):
    """path: keys, the last of which is set; value None deletes."""
    def change(v):
        *way, last = path.split('/')
        for k in way: v = v[int(k) if isinstance(v, list) else k]
        if value is None: del v[last]
        else: v[int(last) if isinstance(v, list) else last] = value
    return edit(file, change)


def resize(file, change):
    def f(d):
        p = os.path.join(d, file)
        raw = open(p, 'rb').read()
        open(p, 'wb').write(change(raw))
    return f


def shard_file(d, i): return sorted(f for f in os.listdir(d) if f.endswith('.safetensors'))[i]


def on_shard(i, change): return lambda d: resize(shard_file(d, i), change)(d)


Q, G, INDEX = 'quantization_config', 'quantization_config/config_groups/group_0', 'model.safetensors.index.json'
DOWN, GATE, BIAS = 'model.layers.1.mlp.down_proj', 'model.layers.0.mlp.gate_proj', 64
NAN, INF = (0xc0, 0x7f), (0x80, 0x7f)

def add_key(d):
    s = shard_of(d, DOWN + '.weight_packed')
    s.header[DOWN + '.weight_packed']['stride'] = 1
    s.save()


def no_metadata(d):
    s = shards(d)[0]
    s.header.pop('__metadata__')
    s.save()


def other_shard(d):
    def change(v):
        m = v['weight_map']
        m[DOWN + '.weight_scale'] = next(f for f in sorted(set(m.values())) if f != m[DOWN + '.weight_scale'])
    edit(INDEX, change)(d)


def zero_column(d):
    """Column 0: the low nibble of a row's first word."""
    name = DOWN + '.weight_packed'
    s = shard_of(d, name)
    b, e = span(s, name)
    row = (e - b) // s.header[name]['shape'][0]
    for at in range(b, e, row): s.data[at] = s.data[at] & 0xf0 | 8
    s.save()


def unheld(d):
    def change(v): v['weight_map']['model.layers.1.extra'] = sorted(set(v['weight_map'].values()))[0]
    edit(INDEX, change)(d)


def same_group(d):
    name = 'model.layers.0.mlp.down_proj.g_idx'
    s = shard_of(d, name)
    b, e = span(s, name)
    groups = [struct.unpack('<i', s.data[i:i + 4])[0] for i in range(b, e, 4)]
    k = next(i for i, g in enumerate(groups) if g != groups[0])
    s.data[b:b + 4] = struct.pack('<i', groups[k])
    s.save()


def swap_tokens(d):
    def change(v):
        t = v['model']['vocab']
        t['a'], t['b'] = t['b'], t['a']
    edit('tokenizer.json', change)(d)


def without_shard(d): os.unlink(os.path.join(d, shard_file(d, 1)))


def shard_left_over(d): shutil.copy(os.path.join(d, shard_file(d, 1)), os.path.join(d, 'model-00099-of-00099.safetensors'))


def hole(d):
    """Bytes that are no tensor's, before the last one."""
    s = shards(d)[0]
    last = max((t['data_offsets'] for n, t in s.header.items() if n != '__metadata__'), key=lambda o: o[0])
    s.data[last[0]:last[0]] = bytes(64)
    last[:] = [x + 64 for x in last]
    s.save()


def twice_in_header(d):
    s = shard_of(d, DOWN + '.weight_packed')
    text = (json.dumps(s.header, separators=(',', ':'))[:-1] + ',' + json.dumps({DOWN + '.weight_packed': s.header[DOWN + '.weight_packed']})[1:]).encode()
    text += b' ' * (-len(text) % 8)
    open(s.path, 'wb').write(struct.pack('<Q', len(text)) + text + s.data)


def in_two_shards(d):
    a, b = shards(d)[:2]
    name = next(n for n in b.header if n != '__metadata__')
    begin, end = span(b, name)
    a.header[name] = dict(b.header[name], data_offsets=[len(a.data), len(a.data) + end - begin])
    a.data += b.data[begin:end]
    a.save()


def twice_in_config(d): resize('config.json', lambda raw: raw.replace(b'{', b'{"hidden_size": 96,', 1))(d)


INPUTS = G + '/input_activations'
TOKEN = dict(num_bits=8, strategy='token', dynamic=True)

# of GOOD: (name, damage, text that a finding must have)
FOUND = [
    ('a scale is NaN', poke(DOWN + '.weight_scale', 6, *NAN), 'error: ' + DOWN + '.weight_scale'),
    ('a scale is infinite', poke(DOWN + '.weight_scale', 6, *INF), 'error: ' + DOWN + '.weight_scale'),
    ('a scale is zero', poke(DOWN + '.weight_scale', 6, 0, 0), 'error: ' + DOWN + '.weight_scale'),
    ('a scale has another sign', flip(DOWN + '.weight_scale', 7, 0x80), 'error: ' + DOWN + '.weight_scale'),
    ('a scale has another exponent', flip(DOWN + '.weight_scale', 7, 0x04), 'warning: ' + DOWN + ': expected scales near'),
    ('a shape that is stored', poke(DOWN + '.weight_shape', 0, 97), 'error: ' + DOWN + '.weight_shape'),
    ('a type of another width in the header', header(DOWN + '.weight_scale', 'dtype', 'F32'), 'error: ' + DOWN + '.weight_scale'),
    ('a shape in the header', header(DOWN + '.weight_packed', 'shape', lambda s: s[::-1]), 'error: ' + DOWN + '.weight_packed'),
    ('offsets in the header', header(DOWN + '.weight_packed', 'data_offsets', lambda o: [o[0] + 4, o[1] + 4]), 'error: '),
    ('an offset in the header', header(DOWN + '.weight_packed', 'data_offsets', lambda o: [o[0], o[1] + 1]), 'error: ' + DOWN + '.weight_packed'),
    ('a key in the header', add_key, 'error: ' + DOWN + '.weight_packed'),
    ('the length of a header', on_shard(1, lambda b: struct.pack('<Q', struct.unpack('<Q', b[:8])[0] + 8) + b[8:]), 'error: '),
    ('the last byte of a shard is missing', on_shard(1, lambda b: b[:-1]), 'error: '),
    ('a byte too many behind a shard', on_shard(1, lambda b: b + b'\0'), 'error: '),
    ('an empty shard', on_shard(1, lambda b: b''), 'error: '),
    ('a shard is missing', without_shard, 'error: ' + INDEX),
    ('a shard that no index names', shard_left_over, 'model-00099-of-00099.safetensors'),
    ('no format in the metadata', no_metadata, '__metadata__.format'),
    ('an entry of the index is missing', put(INDEX, 'weight_map/' + DOWN + '.weight_scale', None), 'error: ' + DOWN + '.weight_scale'),
    ('an entry of the index has another shard', other_shard, 'error: ' + DOWN + '.weight_scale'),
    ('an entry of the index without a tensor', unheld, 'error: model.layers.1.extra'),
    ('the total size in the index', put(INDEX, 'metadata/total_size', 1), 'metadata.total_size'),
    ('a tensor has another name', rename(DOWN + '.weight_scale', DOWN + '.scale'), 'error: ' + DOWN + '.weight_scale'),
    ('a tensor that nothing calls for', rename('model.layers.2.input_layernorm.weight', 'model.layers.2.input_norm.weight'), 'error: model.layers.2.input_norm'),
    ('num_bits', put('config.json', G + '/weights/num_bits', 8), 'error: '),
    ('group_size', put('config.json', G + '/weights/group_size', 16), 'error: '),
    ('symmetric', put('config.json', G + '/weights/symmetric', False), 'error: '),
    ('the format', put('config.json', G + '/format', 'int-quantized'), 'error: '),
    ('a key of the weights', put('config.json', G + '/weights/group', 32), 'error: quantization_config.config_groups.group_0.weights.group'),
    ('a target', put('config.json', G + '/targets/0', 'Linaer'), 'error: '),
    ('ignore', put('config.json', Q + '/ignore', []), 'error: lm_head'),
    ('ignore has a name too many', put('config.json', Q + '/ignore', ['lm_head', DOWN]), 'error: ' + DOWN),
    ('hidden_size', put('config.json', 'hidden_size', 128), 'error: '),
    ('vocab_size', put('config.json', 'vocab_size', 300), 'error: model.embed_tokens.weight'),
    ('a layer less in the config', put('config.json', 'num_hidden_layers', 2), 'error: model.layers.2.input_layernorm.weight: expected no such tensor in a model of this config, found it, and '),
    ('a layer more in the config', put('config.json', 'num_hidden_layers', 4), 'error: model.layers.3'),
    ('the heads are tied', put('config.json', 'tie_word_embeddings', True), 'warning: lm_head.weight'),
    ('an id of the config beyond the vocabulary', put('config.json', 'eos_token_id', 320), 'warning: config.json.eos_token_id: expected an id below'),
    ('an id of generation_config beyond the vocabulary', put('generation_config.json', 'eos_token_id', [2, 999]), 'warning: generation_config.json.eos_token_id: expected an id below'),
    ('no id of generation_config', put('generation_config.json', 'eos_token_id', [2, 'x']), 'warning: generation_config.json.eos_token_id: expected an id or a list of ids, found "x"'),
    ('what ends a text', put('config.json', 'eos_token_id', 7), 'warning: config.json.eos_token_id'),
    ('what begins a text', put('config.json', 'bos_token_id', 7), 'warning: config.json.bos_token_id'),
    ('a token beyond the embedding', put('tokenizer.json', 'added_tokens/2/id', 320), 'warning: tokenizer.json'),
    ('a token has another id', put('tokenizer.json', 'added_tokens/2/id', 300), 'tokenizer_config.json.added_tokens_decoder'),
    ('a token that is not there', put('tokenizer_config.json', 'pad_token', '<pad>'), 'tokenizer_config.json.pad_token'),
    ('tokenizer.json is cut off', resize('tokenizer.json', lambda b: b[:-2]), 'error: '),
    ('a kind of tokenizer', put('tokenizer.json', 'model/type', 'BPF'), 'error: tokenizer.json'),
    ('the chat template', put('tokenizer_config.json', 'chat_template', '{% for m in messages %}'), 'error: chat template'),
    ('config.json is cut off', resize('config.json', lambda b: b[:-2]), 'error: '),
    ('the model type', put('config.json', 'model_type', 'llamb'), 'error: config.json.model_type'),
    ('a weight of a norm is NaN', poke('model.norm.weight', 2, *NAN), 'error: model.norm.weight'),
    ('a weight of the embedding is infinite', poke('model.embed_tokens.weight', -2, *INF), 'error: model.embed_tokens.weight'),
    ('codes of another module', copy('model.layers.0.mlp.up_proj.weight_packed', 'model.layers.1.mlp.up_proj.weight_packed'), 'warning: model.layers.1.mlp.up_proj.weight_packed'),
    ('an output of zeros', fill(DOWN + '.weight_packed', 0, 128, 1 << 30, 0x88), 'no output that is always zero'),
    ('an input of zeros', zero_column, 'no input that is never used'),
    ('bytes of no tensor', hole, 'belong to no tensor'),
    ('a name twice in a header', twice_in_header, 'duplicate object key'),
    ('a tensor in two shards', in_two_shards, 'the name is there twice'),
    ('a key twice in the config', twice_in_config, 'duplicate object key'),
    ('an entry of the index out of the folder', put(INDEX, 'weight_map/model.norm.weight', '../original/model.safetensors'), 'error: ' + INDEX + ': weight_map.model.norm.weight'),
    ('an entry of the index that is no name', put(INDEX, 'weight_map/model.norm.weight', 3), 'error: ' + INDEX + ': weight_map.model.norm.weight'),
    ('an index without a map', put(INDEX, 'weight_map', {}), 'error: '),
    ('the status', put('config.json', Q + '/quantization_status', 'done'), 'error: quantization_config.quantization_status'),
    ('a strategy', put('config.json', G + '/weights/strategy', 'channel'), 'error: quantization_config.config_groups.group_0.weights.group_size'),
    ('a group size that does not divide', put('config.json', G + '/weights/group_size', 80), 'group_size: 80 does not divide the 96 columns'),
    ('inputs that need scales', put('config.json', INPUTS, dict(TOKEN, strategy='tensor', dynamic=False)), '.input_scale: not in the checkpoint'),
    ('inputs in groups that do not divide', put('config.json', INPUTS, dict(TOKEN, strategy='group', group_size=40)), 'input_activations.group_size: 40 does not divide'),
    ('an order of columns without an index', put('config.json', G + '/weights/actorder', 'group'), '.weight_g_idx: not in the checkpoint'),
    ('a cache of four bits', put('config.json', Q + '/kv_cache_scheme', dict(num_bits=4, type='float', strategy='tensor')), 'error: quantization_config.kv_cache_scheme'),
    ('a cache without scales', put('config.json', Q + '/kv_cache_scheme', dict(num_bits=8, type='float', strategy='tensor')), 'warning: quantization_config.kv_cache_scheme: no scales'),
    ('heads that do not divide', put('config.json', 'num_key_value_heads', 3), 'error: config.json.num_key_value_heads'),
    ('all codes of a module at an end', fill('model.layers.0.mlp.up_proj.weight_packed', 0, 4, 4, 0xff), 'at the ends of their range'),
]


# of other families: (folder of OTHERS, name, damage, text)
FOUND_ELSEWHERE = [
    ('w8a16-int8-naive', 'a scale of a channel', flip('model.layers.0.mlp.down_proj.weight_scale', 3, 0x40), 'model.layers.0.mlp.down_proj'),
    ('fp8-dynamic', 'a code of float8 that is no number', poke('model.layers.0.mlp.down_proj.weight', 5, 0x7f), 'error: model.layers.0.mlp.down_proj.weight'),
    ('w4a16-g128-asym', 'a tensor of zero points is missing', drop('model.layers.0.mlp.down_proj.weight_zero_point'), 'error: model.layers.0.mlp.down_proj.weight_zero_point'),
    ('gptq-v1-desc-act', 'a group of g_idx beyond the last', poke('model.layers.0.mlp.down_proj.g_idx', 0, 99), 'error: model.layers.0.mlp.down_proj.g_idx'),
    ('gptq-v1-desc-act', 'a group of g_idx that another has too', same_group, 'error: model.layers.0.mlp.down_proj.g_idx'),
    ('gptq-v1-desc-act', 'columns have an order that desc_act denies', put('config.json', Q + '/desc_act', False), 'warning: model.layers.0.mlp.down_proj.g_idx: expected groups of neighbours'),
    ('gptq-v1-desc-act', 'zero points that sym denies', put('config.json', Q + '/sym', True), 'warning: model.layers.0.mlp.down_proj.qzeros: expected zero points in the middle'),
    ('gptq-v1-desc-act', 'one column of g_idx without a group', poke('model.layers.0.mlp.down_proj.g_idx', 0, *b'\xff' * 4), 'error: model.layers.0.mlp.down_proj.g_idx: expected groups 0..7, found -1 at column 0'),
    ('gptq-v1-desc-act', 'a g_idx that was not made', fill('model.layers.0.mlp.down_proj.g_idx', 0, 4, 4, 0xff), 'error: model.layers.0.mlp.down_proj.g_idx: expected the group of each column, since desc_act is true'),
    ('gptq-8bit', 'zero points of the first version', put('config.json', Q + '/checkpoint_format', 'gptq_v2'), 'expected zero points of checkpoint_format gptq_v2, found those of gptq, which are taken, and 7 such'),
    ('gptq-8bit', 'a bias of zeros', add(GATE + '.bias', 'F16', [BIAS], bytes(2 * BIAS)), 'warning: ' + GATE + '.bias: a model of type llama and this config has no bias there'),
    ('gptq-8bit', 'a bias', add(GATE + '.bias', 'F16', [BIAS], bytes(2 * BIAS - 1) + b'1'), 'error: ' + GATE + '.bias: expected none, since a model of type llama and this config has no bias there'),
    ('gptq-8bit', 'a number outside of the layers', add('model.unused', shape=[]), 'warning: model.unused: expected no such tensor'),
    ('gptq-8bit', 'an empty tensor', add('model.unused', shape=[0, 4], data=b''), 'warning: model.unused: expected no such tensor'),
    *[('kv-cache-fp8', name + ', which nothing reads', add(name), 'error: ' + name + ': expected no such tensor') for name in (
        'foo', 'lm_head.foo', 'mtpx.weight', 'model.layers.0.mtp.weight', 'model.layers.2.eh_proj.weight', 'model.layers.0.self_attn.sinks', 'model.layers.0.self_attn.q_norm.weight', 'model.layers.0.self_attn.masked_bias',
        'model.layers.0.self_attn.q_proj.lora_A.weight', 'model.layers.0.self_attn.q_proj.R1_input.weight', 'model.layers.0.self_attn.q_scale', 'model.layers.0.self_attn.prob_output_scale',
        'model.layers.0.mlp.act_fn.scales', 'model.layers.2.self_attn.k_scale', 'model.layers.2.self_attn.rotary_emb.inv_freq')],
    ('kv-cache-fp8', 'a layer behind those that are declared', both(put('config.json', 'num_nextn_predict_layers', 1), add('model.layers.3.eh_proj.weight')), 'error: model.layers.3.eh_proj.weight: expected no such'),
    ('kv-cache-fp8', 'a zero point of the cache', add('model.layers.0.self_attn.k_zero_point'), 'error: model.layers.0.self_attn.k_zero_point: expected none'),
    *[('gptq-8bit', 'a key of GPTQ: ' + key, put('config.json', Q + '/' + key, value), 'error: ' + Q + text) for key, value, text in (
        ('adapter', {'name': 'lora'}, '.adapter: is not done here'), ('rotation', 'hadamard', '.rotation: is not done here'), ('is_marlin_format', True, '.is_marlin_format: is not done here'),
        ('method', 'awq', '.method: must be gptq, found "awq"'), ('format', 'gptq_v2', ': checkpoint_format and format mean the same, and are "gptq" and "gptq_v2"'))],
    *[('gptq-dynamic', 'a key of a rule: ' + key, put('config.json', Q + '/dynamic/.*up_proj/' + key, value), 'error: ' + Q + '.dynamic..*up_proj.' + key + ': unknown key') for key, value in (
        ('bitz', 2), ('format', 'gptq_v2'), ('checkpoint_format', 'gptq_v2'), ('adapter', {}), ('foo', 1))],
    ('gptq-dynamic', 'a module that no rule leaves out', put('config.json', Q + '/dynamic/-:.*v_proj', None), 'warning: model.layers.0.self_attn.v_proj: expected it quantized, since quantization_config does not leave it out, found it dense, and 1 such'),
    ('gptq-8bit', 'another number in quantize_config.json', side(bits=4), 'warning: quantize_config.json.bits: expected 8, as config.json has, found 4'),
    ('gptq-8bit', 'another version in quantize_config.json', side(checkpoint_format='gptq_v2'), 'error: quantize_config.json.checkpoint_format: expected gptq, as config.json has, found gptq_v2'),
    *[('awq-gemm', 'a key of AWQ: ' + key, put('config.json', Q + '/' + key, value), 'error: ' + Q + text) for key, value, text in (
        ('w_bit', 3, ': bits and w_bit mean the same, and are 4 and 3'), ('q_group_size', 64, ': group_size and q_group_size mean the same, and are 128 and 64'), ('format', 'gemv', '.format: must be gemm, found "gemv"'),
        ('checkpoint_format', 'gemv', '.checkpoint_format: must be gemm'), ('dynamic', {'.*': {'bits': 8}}, '.dynamic..*: rules that change keys are done for gptq alone'))],
    *[('fp8-native-block', 'a key of fp8: ' + key, put('config.json', Q + '/' + key, value), 'error: ' + Q + text) for key, value, text in (
        ('scale_fmt', 'xx', '.scale_fmt: must be ue8m0, found "xx"'), ('expert_dtype', 'fp4', '.expert_dtype: must be fp8'))],
    *[('w4a16-g128-asym', 'a transform: ' + key, put('config.json', Q + '/transform_config', value), 'error: ' + Q + '.transform_config.' + text) for key, value, text in (
        ('of an unknown key', {'foo': 1}, 'foo: unknown key'), ('of a group', {'config_groups': {'a': {'apply': [], 'b': 1}}}, 'config_groups.a.b: unknown key'),
        ('of a place', {'config_groups': {'a': {'apply': [{'location': 'weight_input', 'c': 1}]}}}, 'config_groups.a.c: unknown key'))],
    ('w4a16-g128-asym', 'the format of the top level', put('config.json', Q + '/format', 'dense'), 'warning: quantization_config.format: expected pack-quantized or mixed-precision'),
    *[('w4a16-g128-asym', 'a method: ' + str(value.get('quant_method')), put('config.json', Q, value), 'error: quantization_config.quant_method: ' + text) for value, text in (
        ({}, 'missing, expected'), ({'load_in_4bit': True}, 'missing, and load_in_4bit'), ({'quant_method': 'auto-round'}, '"auto-round" is not read here: quantize'), ({'quant_method': 'new'}, 'expected compressed-tensors, gptq, awq or fp8, found "new": quantize'))],
    ('kv-cache-fp8', 'a scale of the cache by two names', add('model.layers.0.self_attn.k_proj.k_scale'), 'error: model.layers.0.self_attn.k_proj.k_scale: expected '),
    ('kv-cache-fp8', 'a layer without scales of the cache', both(drop('model.layers.1.self_attn.k_scale'), drop('model.layers.1.self_attn.v_scale')), 'error: model.layers.1.self_attn.k_scale: not in the checkpoint, though other layers have theirs'),
    ('awq-gemm', 'a version', put('config.json', Q + '/version', 'gemv'), 'error: quantization_config.version'),
    ('awq-gemm', 'a module that is left out', put('config.json', Q + '/modules_to_not_convert', ['mlp']), 'leaves it out, and yet it is stored quantized'),
    ('fp8-native-block', 'a size of blocks', put('config.json', Q + '/weight_block_size', [64, 64]), 'weight_scale_inv: expected [2, 2], found [1, 1]'),
    ('fp8-native-block', 'a scale of a block has another sign', flip('model.layers.0.mlp.down_proj.weight_scale_inv', 3, 0x80), 'error: model.layers.0.mlp.down_proj.weight_scale_inv'),
    ('w4a16-g128-asym', 'symmetric', put('config.json', G + '/weights/symmetric', True), 'weight_zero_point: expected none, since the scheme is symmetric'),
    ('fp8-static', 'a shape of a scale of an input', header('model.layers.0.mlp.down_proj.input_scale', 'shape', [1, 1, 1]), 'error: model.layers.0.mlp.down_proj.input_scale'),
    ('kv-cache-fp8', 'a cache with scales for each head', put('config.json', Q + '/kv_cache_scheme/strategy', 'attn_head'), 'k_scale: expected 2 values, one a head, found 1'),
    ('kv-cache-fp8', 'scales of a cache that is not quantized', put('config.json', Q + '/kv_cache_scheme', None), 'k_scale: expected none'),
    ('kv-cache-fp8', 'a scale of the cache is missing', drop('model.layers.0.self_attn.k_scale'), 'error: model.layers.0.self_attn.k_scale'),
    ('fp8-static', 'a scale of an input is zero', poke('model.layers.0.mlp.down_proj.input_scale', 0, 0, 0), 'error: model.layers.0.mlp.down_proj.input_scale'),
]


# No reader can notice these: what stands there is as good as what stood there before. With the original beside it, weights can be told (text), and no more ('').
UNNOTICED = [
    ('a code', flip(DOWN + '.weight_packed', 9, 0x40), DOWN + ': expected codes that rounding'),
    ('a scale, by less than its neighbours differ', flip(DOWN + '.weight_scale', 6, 0x40), DOWN + ': expected scales that'),
    ('a type in the header of as many bytes', header('model.layers.2.input_layernorm.weight', 'dtype', 'F16'), 'model.layers.2.input_layernorm.weight'),
    ('a weight of the embedding', flip('model.embed_tokens.weight', 1, 0x80), 'model.embed_tokens: expected the original'),
    ('a weight of a norm', flip('model.norm.weight', 0, 0x40), 'model.norm.weight: expected the original'),
    ('rope_theta', put('config.json', 'rope_theta', 10000.0), 'error: config.json.rope_theta: expected 500000.0 as the original has, found 10000.0'),
    ('two tokens change places', swap_tokens, ''),
    ('the text of the chat template', put('tokenizer_config.json', 'chat_template', '{{ messages[0].content }}!'), ''),
]


def verify(d, *more):
    r = subprocess.run([ounce, 'verify', d, *more], capture_output=True, text=True, errors='replace', timeout=120)
    return r.returncode, [x for x in r.stdout.split('\n') if x.startswith(('error: ', 'warning: '))], r.stderr


# Errors that do not keep the weights from being run: of the text's files, and of values.
APART = re.compile(r'error: (.*/)?(tokenizer|generation_config|chat template)|.*: expected finite values')


def refuses(d):
    r = subprocess.run([ounce, 'logits', d, '--ids', ids, '-o', os.path.join(work, 'logits'), '-q', '--device', 'cpu', '-t', '1'], capture_output=True, text=True, errors='replace', timeout=120)
    return r.returncode if 'logits are not finite' not in r.stderr else 0, r.stderr


def say(good_, name, why=''):
    print(('ok ' if good_ else 'not ok ') + name + ('' if good_ else ': ' + why))


def damaged(base, damage):
    d = os.path.join(work, 'd')
    shutil.rmtree(d, ignore_errors=True)
    shutil.copytree(base, d)
    damage(d)
    return d


with tempfile.TemporaryDirectory() as work:
    ids = os.path.join(work, 'ids')
    open(ids, 'w').write('1 2 3')
    rc, lines, err = verify(good, '--against', original)
    say(rc == 0 and not lines, 'nothing is found in what was just made', f'exit {rc}, {lines[:3]} {err[-200:]}')
    for base, name, damage, text in [(good, *r) for r in FOUND] + [(os.path.join(others, f), *r) for f, *r in FOUND_ELSEWHERE]:
        d = damaged(base, damage)
        rc, lines, err = verify(d)
        wrong = rc != (1 if any(x.startswith('error') for x in lines) else 0)
        say(not wrong and any(text in x for x in lines), f'found: {name}', f'exit {rc}, expected "{text}" among {lines[:4]} {err[-300:]}')
        status, err = refuses(d)
        say(status == any(x.startswith('error') and not APART.match(x) for x in lines), f'an error if it is refused: {name}', f'exit {status}, {lines[:3]} {err[-200:]}')
    for name, damage, text in UNNOTICED:
        d = damaged(good, damage)
        rc, lines, err = verify(d)
        say(rc == 0 and not lines, f'cannot be noticed: {name}', f'exit {rc}, {lines[:3]} {err[-200:]}')
        rc, lines, err = verify(d, '--against', original)
        wrong = rc != (1 if any(x.startswith('error') for x in lines) else 0)
        say(not wrong and (any(text in x for x in lines) if text else not lines), f'beside the original it is {"found" if text else "not found either"}: {name}', f'exit {rc}, {lines[:3]} {err[-200:]}')
