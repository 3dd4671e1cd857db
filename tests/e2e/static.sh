# Static scales of inputs: W8A8_STATIC and FP8, and by a recipe asymmetric ones: what they are, with every method, and what they do.
. tests/lib.sh
M=tests/golden/models
awk 'BEGIN { srand(1); for (n = 0; n < 8; n++) { l = ""; for (i = 0; i < 40; i++) l = l (i ? "," : "") int(3 + rand() * 93); print "{\"ids\":[" l "]}" } }' >"$T/cal.jsonl"
q() { $OUNCE quantize "$1" -o "$2" -q --calibration "$T/cal.jsonl" --num-calibration-samples 8 --max-seq-length 40 --force "${@:3}"; } # MODEL OUT ...
cat >"$T/asym.yaml" <<'END'
quant_stage:
  quant_modifiers:
    QuantizationModifier:
      ignore: [lm_head]
      config_groups:
        g: {targets: [Linear], weights: {num_bits: 8, strategy: channel}, input_activations: {num_bits: 8, symmetric: false, strategy: tensor, dynamic: false}}
END
sed 's/^    QuantizationModifier:/    GPTQModifier:/' "$T/asym.yaml" >"$T/asym-gptq.yaml"
sed 's/^    QuantizationModifier:/    SmoothQuantModifier: {smoothing_strength: 0.5}\n    GPTQModifier:/' "$T/asym.yaml" >"$T/asym-smooth.yaml"
sed 's/symmetric: false, strategy: tensor/symmetric: true, strategy: tensor/' "$T/asym.yaml" >"$T/sym.yaml"

# FOLDER FLOATS KIND: the scale (and zero point) of the first layer's q_proj as it is stored, and as its inputs on the text, worked out in Python of the same checkpoint's embedding and norm, have it.
scales() {
    python3 - "$1" "$2" "$3" "$T/cal.jsonl" <<'END'
import json, math, struct, sys
folder, floats, kind, text = sys.argv[1:]
def read(path):
    data = open(path + '/model.safetensors', 'rb').read()
    n = struct.unpack('<Q', data[:8])[0]
    head = json.loads(data[8:8 + n])
    return lambda name: (head.get(name), head.get(name) and data[8 + n + head[name]['data_offsets'][0]:8 + n + head[name]['data_offsets'][1]])
def flat(get, name):
    t, raw = get(name)
    return struct.unpack('<%df' % (len(raw) // 4), raw)
quantized, dense = read(folder), read(floats)
p = 'model.layers.0.self_attn.q_proj.'
t, raw = quantized(p + 'input_scale')
zero = quantized(p + 'input_zero_point')
stored = '%s %s %.3g %s' % (t['dtype'], t['shape'], struct.unpack('<f', raw)[0], zero[1] and (zero[0]['dtype'], zero[0]['shape'], struct.unpack('<b', zero[1])[0]))
norm, embed, eps = flat(dense, 'model.layers.0.input_layernorm.weight'), flat(dense, 'model.embed_tokens.weight'), json.load(open(floats + '/config.json'))['rms_norm_eps']
lo = hi = 0.0
for line in open(text):
    for token in json.loads(line)['ids']:
        x = embed[token * len(norm):(token + 1) * len(norm)]
        by = 1 / math.sqrt(sum(v * v for v in x) / len(x) + eps)
        lo, hi = min([lo, *(v * by * w for v, w in zip(x, norm))]), max([hi, *(v * by * w for v, w in zip(x, norm))])
if kind == 'asym': scale = (hi - lo) / 255
else: scale = max(hi, -lo) / (448 if kind == 'fp8' else 127.5)
want = 'F32 [1] %.3g %s' % (scale, ('I8', [1], round(-128 - lo / scale)) if kind == 'asym' else None)
print('right' if stored == want else 'expected %s, found %s' % (want, stored))
END
}
# What a scheme is told: NAME KIND OPTIONS...
$OUNCE convert $M/mistral -o "$T/m" --to f32 -q >"$T/out"
while read -r name kind options; do
    q "$T/m" "$T/$name" ${options//@/$T/} --json >"$T/r.json" 2>"$T/err" || { echo "not ok $name" && cat "$T/err"; }
    $OUNCE convert "$T/$name" -o "$T/f32" --to f32 --force -q >"$T/out" 2>"$T/err"
    same "$name: scale and zero point of the first inputs" right "$(scales "$T/$name" "$T/f32" $kind)"
    ok "$name: it is sound" $OUNCE verify "$T/$name" -q
    same "$name: its config" "$([ $kind = fp8 ] && echo float || echo int) 8 tensor false $([ $kind = asym ] && echo false || echo true)" \
        "$(jq -r '.quantization_config.config_groups.group_0.input_activations | "\(.type) \(.num_bits) \(.strategy) \(.dynamic) \(.symmetric)"' "$T/$name/config.json")"
    case $options in *smooth*) continue ;; *gptq*) same "$name: less error" true "$(jq '([.errors[].after] | add) < ([.errors[].before] | add)' "$T/r.json")" ;; esac
done <<'END'
static sym --scheme W8A8_STATIC
static-gptq sym --scheme W8A8_STATIC --method gptq
static-smooth sym --scheme W8A8_STATIC --method smoothquant
static-smooth-gptq sym --scheme W8A8_STATIC --method smoothquant+gptq
fp8-gptq fp8 --scheme FP8 --method gptq
sym sym --recipe @sym.yaml
asym asym --recipe @asym.yaml
asym-gptq asym --recipe @asym-gptq.yaml
asym-smooth asym --recipe @asym-smooth.yaml
END
same 'a preset and a recipe that mean the same: the same tensors' "$(sha256sum <"$T/static/model.safetensors")" "$(sha256sum <"$T/sym/model.safetensors")"
for m in gptq smooth smooth-gptq; do ok "$m changes something" test "$(sha256sum <"$T/static/model.safetensors")" != "$(sha256sum <"$T/static-$m/model.safetensors")"; done
for m in gptq smooth; do ok "asymmetric, $m changes something" test "$(sha256sum <"$T/asym/model.safetensors")" != "$(sha256sum <"$T/asym-$m/model.safetensors")"; done
ok 'a name for people' grep -q W8A8_STATIC <($OUNCE inspect "$T/asym")

# What they do: rounding inputs to 8 bits changes the model, and little.
$OUNCE convert tests/golden/gguf/llama.gguf -o "$T/dense" --to f32 -q >/dev/null 2>&1
for i in {1..8}; do echo 'HELLO WORLD, THIS IS A TEXT. 12 OF 345, (AND SO ON)!'; done >"$T/text"
$OUNCE tokenize "$T/dense" <"$T/text" | tr ' ' ',' | sed 's/.*/{"ids":[&]}/' | head -c 100000 >"$T/cal.jsonl"
kl() { $OUNCE kl "$1" "$2" --text "$T/text" --ctx 48 --dtype f32 -q --json | jq '.[0].mean_kl'; }
for how in '--scheme W8A8_STATIC' "--recipe $T/asym.yaml"; do
    $OUNCE quantize "$T/dense" -o "$T/k" -q --calibration "$T/cal.jsonl" --num-calibration-samples 1 --max-seq-length 96 --force $how >"$T/out" 2>&1 || cat "$T/out"
    $OUNCE convert "$T/k" -o "$T/plain" --to f32 --force -q >"$T/out" 2>"$T/err" # the same weights, inputs as they are
    ok "${how##*/}: the model changes, and little" awk -v x="$(kl "$T/plain" "$T/k")" 'BEGIN { exit !(x > 1e-9 && x < 1e-2) }'
done

fails 'without text' 2 '--calibration: a static scale of inputs needs text' $OUNCE quantize $M/mistral -o "$T/o" --scheme W8A8_STATIC
fails 'a static lm_head' 1 'lm_head: scheme W8A8_STATIC: static scales are calibrated in layers' q $M/mistral "$T/o" --scheme W8A8_STATIC --targets re:lm_head
