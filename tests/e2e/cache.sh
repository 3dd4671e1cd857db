# ounce quantize --kv-cache-scheme: scales of keys and values from calibration text, what they are, and what they do.
. tests/lib.sh
M=tests/golden/models

ids 8 40 96 1 >"$T/cal.jsonl"
ids 48 64 320 1 >"$T/llama.jsonl"
q() { $OUNCE quantize "$1" -o "$2" -q --calibration "$T/cal.jsonl" --num-calibration-samples 8 --max-seq-length 40 "${@:3}"; } # MODEL OUT ...

# FOLDER: the scales of layer 0, as they are stored: "NAME SHAPE VALUES".
stored() {
    python3 - "$1" <<'END'
import json, struct, sys
data = open(sys.argv[1] + '/model.safetensors', 'rb').read()
n = struct.unpack('<Q', data[:8])[0]
for name, t in sorted(json.loads(data[8:8 + n]).items()):
    if not name.startswith('model.layers.0.') or not name.endswith(('k_scale', 'v_scale')): continue
    raw = data[8 + n + t['data_offsets'][0]:8 + n + t['data_offsets'][1]]
    size = {'BF16': 2, 'F32': 4}[t['dtype']]
    values = [struct.unpack('<f', b'\0' * (4 - size) + raw[i:i + size])[0] for i in range(0, len(raw), size)]
    print(name, json.dumps(t['shape']), *['%.4g' % v for v in values])
END
}
# FOLDER per_head|per_tensor DIVISOR: the same, worked out of floats: the first layer's keys and values of every token, in Python.
expected() {
    python3 - "$1" "$T/cal.jsonl" "$2" "$3" <<'END'
import json, math, struct, sys
folder, text, how, divisor = sys.argv[1:]
c = json.load(open(folder + '/config.json'))
data = open(folder + '/model.safetensors', 'rb').read()
n = struct.unpack('<Q', data[:8])[0]
head = json.loads(data[8:8 + n])
def tensor(name):
    t = head[name]
    flat = struct.unpack('<%df' % math.prod(t['shape']), data[8 + n + t['data_offsets'][0]:8 + n + t['data_offsets'][1]])
    return flat if len(t['shape']) == 1 else [flat[i * t['shape'][1]:(i + 1) * t['shape'][1]] for i in range(t['shape'][0])]
p = 'model.layers.0.self_attn.'
embed, norm, wk, wv = tensor('model.embed_tokens.weight'), tensor('model.layers.0.input_layernorm.weight'), tensor(p + 'k_proj.weight'), tensor(p + 'v_proj.weight')
bias = {w: tensor(p + w + '_proj.bias') if p + w + '_proj.bias' in head else [0] * len(wk) for w in 'kv'}
heads, dim = c['num_key_value_heads'], c.get('head_dim') or c['hidden_size'] // c['num_attention_heads']
most = {'k': [0.0] * heads, 'v': [0.0] * heads}
for line in open(text):
    for at, token in enumerate(json.loads(line)['ids']):
        x = embed[token]
        by = 1 / math.sqrt(sum(v * v for v in x) / len(x) + c['rms_norm_eps'])
        x = [v * by * w for v, w in zip(x, norm)]
        k, v = ([sum(a * b for a, b in zip(row, x)) + z for row, z in zip(w, bias[name])] for name, w in (('k', wk), ('v', wv)))
        for h in range(heads):
            for i in range(dim // 2):
                turn = at / c['rope_theta'] ** (2 * i / dim)
                a, b = k[h * dim + i], k[h * dim + dim // 2 + i]
                most['k'][h] = max(most['k'][h], abs(a * math.cos(turn) - b * math.sin(turn)), abs(b * math.cos(turn) + a * math.sin(turn)))
            most['v'][h] = max(most['v'][h], *map(abs, v[h * dim:(h + 1) * dim]))
for w in 'kv':
    of = most[w] if how == 'per_head' else [max(most[w])]
    print(p + w + '_scale', json.dumps([heads, 1, 1] if how == 'per_head' else [1]), *['%.4g' % (m / float(divisor)) for m in of])
END
}
for m in mistral qwen2; do
    $OUNCE convert $M/$m -o "$T/of32" --to f32 --force -q >"$T/out" # products of a model in bf16 may round their inputs
    for kv in fp8 fp8_per_head int8 int8_per_head; do
        q "$T/of32" "$T/q" --scheme W8A16 --kv-cache-scheme $kv --force >"$T/out" || echo "not ok $m $kv"
        $OUNCE convert "$T/q" -o "$T/f32" --to f32 --force -q >"$T/out" 2>"$T/err"
        case $kv in *_per_head) how=per_head strategy=attn_head ;; *) how=per_tensor strategy=tensor ;; esac
        case $kv in fp8*) type=float divisor=448 ;; *) type=int divisor=127.5 ;; esac
        same "$m, $kv: the first layer's largest magnitudes / $divisor" "$(expected "$T/f32" $how $divisor)" "$(stored "$T/q")"
        ok "$m, $kv: it is sound" $OUNCE verify "$T/q" -q
        same "$m, $kv: its config" "[8,\"$type\",\"$strategy\",false,true]" \
            "$(jq -c '.quantization_config.kv_cache_scheme | [.num_bits, .type, .strategy, .dynamic, .symmetric]' "$T/q/config.json")"
        same "$m, $kv: how it was made" "$kv" "$(jq -r .kv_cache_scheme "$T/q/ounce_recipe.json")"
    done
done

# What it does: a little, and not nothing; with scales a hundred times too small, much.
$OUNCE convert tests/golden/gguf/llama.gguf -o "$T/dense" --to bf16 -q >/dev/null 2>&1
for i in {1..8}; do echo 'HELLO WORLD, THIS IS A TEXT. 12 OF 345, (AND SO ON)!'; done >"$T/text"
kl() { $OUNCE kl "$1" "$2" --text "$T/text" --ctx 48 --dtype f32 -q --json | jq '.[0].mean_kl'; }
for kv in fp8 fp8_per_head int8 int8_per_head; do q "$T/dense" "$T/kl$kv" --scheme W8A16 --kv-cache-scheme $kv >"$T/out" 2>&1 || cat "$T/out"; done
$OUNCE convert "$T/klfp8" -o "$T/plain" --to f32 -q >"$T/out" 2>"$T/err" # the same weights, the cache as it is
for kv in fp8 fp8_per_head int8 int8_per_head; do ok "$kv: the model changes, and little" awk -v x="$(kl "$T/plain" "$T/kl$kv")" 'BEGIN { exit !(x > 1e-9 && x < 1e-2) }'; done
cp -r "$T/klfp8" "$T/small" && python3 - "$T/small/model.safetensors" <<'END'
import json, struct, sys
data = bytearray(open(sys.argv[1], 'rb').read())
n = struct.unpack('<Q', data[:8])[0]
for name, t in json.loads(data[8:8 + n]).items():
    if name.endswith(('k_scale', 'v_scale')):
        at = 8 + n + t['data_offsets'][0]
        value = struct.unpack('<f', b'\0\0' + data[at:at + 2])[0] / 100
        data[at:at + 2] = struct.pack('<f', value)[2:4]
open(sys.argv[1], 'wb').write(data)
END
ok 'scales a hundredth of that: much' awk -v a="$(kl "$T/plain" "$T/small")" -v b="$(kl "$T/plain" "$T/klfp8")" 'BEGIN { exit !(a > 100 * b) }'

# GPTQ: what comes before the cache is as without it, what comes after is fitted to it.
L=(--method gptq --scheme W4A16 --group-size 32 --calibration "$T/llama.jsonl" --num-calibration-samples 48 --max-seq-length 64)
$OUNCE quantize $M/llama -o "$T/g" -q "${L[@]}" >"$T/out" && $OUNCE quantize $M/llama -o "$T/gkv" -q "${L[@]}" --kv-cache-scheme fp8 -t 1 >"$T/out" || echo 'not ok gptq'
for p in q k v; do same "gptq: ${p}_proj of the first layer is as without" "$(tensor "$T/g" model.layers.0.self_attn.${p}_proj.weight_packed)" "$(tensor "$T/gkv" model.layers.0.self_attn.${p}_proj.weight_packed)"; done
ok 'gptq: o_proj is fitted to the rounded cache' test "$(tensor "$T/g" model.layers.0.self_attn.o_proj.weight_packed)" != "$(tensor "$T/gkv" model.layers.0.self_attn.o_proj.weight_packed)"
ok 'gptq: it is sound' $OUNCE verify "$T/gkv" -q
$OUNCE quantize $M/llama -o "$T/b" -q "${L[@]}" --kv-cache-scheme fp8 -t 3 >"$T/out"
ok 'gptq: the same bytes with any number of threads' diff -r "$T/gkv" "$T/b"
rm -rf "$T/b"
for layer in 0 1 2; do
    $OUNCE quantize $M/llama -o "$T/b" -q "${L[@]}" --kv-cache-scheme fp8 --resume >"$T/out" 2>"$T/err" &
    for i in $(seq 3000); do grep -qs "\"layers_done\": $layer" "$T/b.gptq/manifest.json" && break; sleep 0.005; done
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
done
fails 'resumed without it' 1 "$T/b.gptq: was begun with another scheme or other option" $OUNCE quantize $M/llama -o "$T/b" -q "${L[@]}" --resume
$OUNCE quantize $M/llama -o "$T/b" -q "${L[@]}" --kv-cache-scheme fp8 --resume >"$T/out" || echo 'not ok resume'
ok 'gptq: killed and resumed: the same bytes' diff -r "$T/gkv" "$T/b"
q $M/mistral "$T/smooth" --scheme W8A8 --method smoothquant+gptq --kv-cache-scheme fp8_per_head >"$T/out" 2>&1 || cat "$T/out"
ok 'behind folds' $OUNCE verify "$T/smooth" -q

# By a recipe, in llm-compressor's words.
cat >"$T/r.yaml" <<'END'
quant_stage:
  quant_modifiers:
    QuantizationModifier:
      ignore: [lm_head]
      scheme: W8A8
      kv_cache_scheme: {num_bits: 8, type: float, strategy: tensor, dynamic: false, symmetric: true}
END
q $M/mistral "$T/recipe" --recipe "$T/r.yaml" >"$T/out" && q $M/mistral "$T/same" --scheme W8A8 --kv-cache-scheme fp8 >"$T/out" || echo 'not ok a recipe'
same 'a recipe: the same tensors' "$(sha256sum <"$T/same/model.safetensors")" "$(sha256sum <"$T/recipe/model.safetensors")"

# A value projection of zeros.
$OUNCE convert $M/mistral -o "$T/zero" --to f32 -q >"$T/out" && python3 - "$T/zero/model.safetensors" <<'END'
import json, struct, sys
data = bytearray(open(sys.argv[1], 'rb').read())
n = struct.unpack('<Q', data[:8])[0]
a, b = json.loads(data[8:8 + n])['model.layers.0.self_attn.v_proj.weight']['data_offsets']
data[8 + n + a:8 + n + b] = bytes(b - a)
open(sys.argv[1], 'wb').write(data)
END
q "$T/zero" "$T/zq" --scheme W8A16 --kv-cache-scheme fp8 >"$T/out" || echo 'not ok zeros'
same 'values that are zero throughout: a scale of 1' 'model.layers.0.self_attn.v_scale [1] 1' "$(stored "$T/zq" | grep v_scale)"
ok 'and it runs' $OUNCE logits "$T/zq" --ids <(echo 5 6 7) -o "$T/logits.safetensors" -q

q $M/mistral "$T/int8" --scheme W8A16 --kv-cache-scheme int8 >"$T/out" 2>"$T/err"
ok 'int8: what vLLM does not run is said' grep -q 'warning: .*kv_cache_scheme: vLLM runs a cache of float8 alone, not of int8' "$T/err"
same 'int8: its bytes' 'values are rounded to int8, not kept so' "$($OUNCE inspect "$T/int8" | grep -o 'values are rounded to int8, not kept so')"
fails 'without text' 2 '--calibration: a quantized cache needs text' $OUNCE quantize $M/mistral -o "$T/o" --scheme W8A16 --kv-cache-scheme fp8
fails 'a cache alone' 2 '--kv-cache-scheme: needs --scheme, too: a cache alone, with weights as they are, is not made' $OUNCE quantize $M/mistral -o "$T/o" --kv-cache-scheme fp8 --calibration "$T/cal.jsonl"
fails 'another' 2 '--kv-cache-scheme: must be fp8, fp8_per_head, int8 or int8_per_head, found "fp4"' q $M/mistral "$T/o" --scheme W8A16 --kv-cache-scheme fp4
fails 'latents' 1 "--kv-cache-scheme: quantization_config.kv_cache_scheme: a quantized cache is not supported for layer 0's kind of attention" q $M/deepseek_v3 "$T/o" --scheme W8A16 --kv-cache-scheme fp8
fails 'layers that scan' 1 "a quantized cache is not supported for layer" q $M/jamba "$T/o" --scheme W8A16 --kv-cache-scheme fp8
fails 'with a recipe' 2 '--kv-cache-scheme: --recipe says that' q $M/mistral "$T/o" --recipe "$T/r.yaml" --kv-cache-scheme fp8
ok 'nothing was written' test ! -e "$T/o" -a ! -e "$T/o.gptq"
bytes=$(q $M/mistral "$T/o" --scheme W8A16 --kv-cache-scheme fp8_per_head --dry-run --json | jq .files[0].bytes)
q $M/mistral "$T/o" --scheme W8A16 --kv-cache-scheme fp8_per_head >"$T/out"
same 'a dry run knows its size' "$(stat -c %s "$T/o/model.safetensors")" "$bytes"
