# convert and synth as a user runs them: sizes, files, refusals, interruption.
. tests/lib.sh

G=tests/golden/gguf
cat >"$T/config.json" <<'END'
{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "vocab_size": 1000, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "torch_dtype": "bfloat16"}
END

# ---- convert ----
fails 'convert: no target' 2 'error: --output: say where to write' $OUNCE convert $G/llama.gguf --to bf16
fails 'convert: no type' 2 'error: --to: say what the weights become: bf16|f32|compressed-tensors' $OUNCE convert $G/llama.gguf -o "$T/x"
fails 'convert: a type that is none' 2 'must be one of bf16|f32|compressed-tensors, found q4' $OUNCE convert $G/llama.gguf -o "$T/x" --to q4
fails 'convert: a size that is none' 2 'max-shard-size: must be a number of bytes' $OUNCE convert $G/llama.gguf -o "$T/x" --to bf16 --max-shard-size 5XB
fails 'convert: an expression that is none' 1 "error: --take: expected a regular expression, found 're:(': " $OUNCE convert tests/golden/models/llama -o "$T/x" --to bf16 --take 're:(=tests/golden/models/llama'
fails 'convert: no such model' 1 'nowhere' $OUNCE convert nowhere -o "$T/x" --to bf16
fails 'convert: a damaged GGUF' 1 'expected the magic' $OUNCE convert $G/bad/magic.gguf -o "$T/x" --to bf16
same 'nothing was left behind' 'config.json err out' "$(ls -A "$T" | xargs)"

$OUNCE convert $G/llama.gguf --to bf16 --dry-run --json >"$T/dry.json" 2>/dev/null
$OUNCE convert $G/llama.gguf -o "$T/bf16" --to bf16 --json >"$T/wet.json" 2>/dev/null
size=$(stat -c %s "$T/bf16/model.safetensors")
same 'convert: the size that the dry run says' "$size" "$(sed -n 's/^  "bytes": \([0-9]*\),.*/\1/p' "$T/dry.json")"
same 'convert: the size that the run says' "$size" "$(sed -n 's/^  "bytes": \([0-9]*\),.*/\1/p' "$T/wet.json")"
same 'convert: files' 'chat_template.jinja config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json' "$(ls "$T/bf16" | xargs)"
same 'convert: rms_norm_eps is the short decimal' '  "rms_norm_eps": 1e-05,' "$(grep rms_norm_eps "$T/bf16/config.json")"
fails 'convert: an existing target' 1 "$T/bf16" $OUNCE convert $G/llama.gguf -o "$T/bf16" --to f32
same 'convert: which stays as it was' "$size" "$(stat -c %s "$T/bf16/model.safetensors")"
$OUNCE convert $G/llama.gguf -o "$T/bf16" --to f32 --force -q >/dev/null 2>"$T/err"
same 'convert: unless forced' '  "torch_dtype": "float32",' "$(grep torch_dtype "$T/bf16/config.json")"
same 'convert: -q is quiet' '' "$(cat "$T/err")"
same 'a GGUF and what it becomes give the same ids' "$(echo 'in the thing' | $OUNCE tokenize $G/llama.gguf)" "$(echo 'in the thing' | $OUNCE tokenize "$T/bf16")"
same 'inspect: what a GGUF stores roles as' 'q5_1, mxfp4' "$($OUNCE inspect $G/types.gguf | sed -n 's/^ffn_down .* dense *//p')"
same 'inspect: exact bytes of types' '65856' "$($OUNCE inspect $G/types.gguf --tensors --json | jq '[.tensors[] | select(.dtype != "F32") | .bytes] | add')"


# ---- models that are none ----
M=tests/golden/models Q=tests/golden/quantized
# NAME FOLDER CONFIG-JQ HEADER-JQ TEXT: refused with the same tensor by every conversion and by quantize, and nothing is written.
torn() {
    rm -rf "$T/m" && cp -r "$2" "$T/m" && jq "$3" "$2/config.json" >"$T/m/config.json" && header "$T/m/model.safetensors" "$4" 0
    for c in 'convert --to f32' 'convert --to bf16 --dry-run' 'convert --to compressed-tensors' 'quantize --scheme W8A8'; do
        set -- "$1" "$2" "$3" "$4" "$5"
        [ "${c##* }" = compressed-tensors ] && ! jq -e .quantization_config "$2/config.json" >"$T/log" && continue
        [ "${c%% *}" = quantize ] && jq -e .quantization_config "$2/config.json" >"$T/log" && continue
        fails "$1: $c" 1 "$5" $OUNCE ${c%% *} "$T/m" ${c#* } -o "$T/none"
    done
    ok "$1: verify finds it too" bash -c "$OUNCE verify '$T/m' 2>&1 | grep -qF '$5'"
}
for d in $M/llama $Q/fp8-dynamic; do
    n=$(basename $d)
    torn "$n, a layer less" $d '.num_hidden_layers += 1' . 'input_layernorm.weight: '
    torn "$n, a norm of another name" $d . 'with_entries(.key |= sub("layers.1.input_layernorm"; "layers.1.ln"))' 'model.layers.1.'
    torn "$n, another vocabulary" $d '.vocab_size -= 1' . 'model.embed_tokens.weight: expected ['
    torn "$n, a norm of another shape" $d . '."model.norm.weight".shape |= [.[0] / 2, 2]' 'model.norm.weight: '
done
torn 'GPTQ without a scale' $Q/gptq-v1-desc-act . 'with_entries(.key |= sub("layers.0.mlp.up_proj.scales"; "layers.0.mlp.up_proj.s"))' 'model.layers.0.mlp.up_proj.s'

# What bf16 has no number for, though f32 has; what is no number stays none.
rm -rf "$T/m" "$T/none" && $OUNCE convert $M/llama -o "$T/m" --to f32 -q >"$T/out" && poison "$T/m/model.safetensors" model.layers.1.mlp.up_proj.weight $((4 * (5 * 96 + 7))) '\xff\xff\x7f\x7f'
fails 'a value past the largest of bf16' 1 'model.layers.1.mlp.up_proj.weight: value 487 (row-major) is past the largest of BF16' $OUNCE convert "$T/m" -o "$T/none" --to bf16
poison "$T/m/model.safetensors" model.layers.1.mlp.up_proj.weight $((4 * (5 * 96 + 7))) '\x00\x00\x80\x7f'
ok 'an infinity is not new' $OUNCE convert "$T/m" -o "$T/y" --to bf16 --force -q

# A layer too many is refused. One that the config declares is kept where its tensors mean the same, else left out whole, with a warning, and the config has none.
for n in fp8-dynamic awq-gemm gptq-v1-desc-act; do
    d=$Q/$n
    rm -rf "$T/m" "$T/y" && cp -r $d "$T/m" && jq '.num_hidden_layers -= 1' $d/config.json >"$T/m/config.json"
    fails "$n, a layer too many" 1 'model.layers.1.input_layernorm.weight: expected no such tensor in a model of this config, found it, and ' $OUNCE convert "$T/m" -o "$T/y" --to f32
    jq '.num_hidden_layers -= 1 | .num_nextn_predict_layers = 1' $d/config.json >"$T/m/config.json"
    $OUNCE convert "$T/m" -o "$T/y" --to f32 >"$T/out" 2>"$T/err"
    same "$n, a layer that is declared: --to f32" "0 1" "$? $(grep -c 'is of no module of this model, and without the config of its scheme nothing says what its codes mean: left out' "$T/err")"
    same "$n, and nothing of it is left" 0 "$($OUNCE inspect "$T/y" --tensors --json 2>"$T/log" | jq '[.tensors[].name | select(test("layers.1."))] | length')"
    same "$n, nor in the config" 0 "$(jq .num_nextn_predict_layers "$T/y/config.json")"
    ok "$n, and the result loads" $OUNCE verify "$T/y"
done
rm -rf "$T/m" "$T/y" && cp -r $Q/fp8-dynamic "$T/m" && jq '.num_hidden_layers -= 1 | .num_nextn_predict_layers = 1' $Q/fp8-dynamic/config.json >"$T/m/config.json"
$OUNCE convert "$T/m" -o "$T/y" --to compressed-tensors -q >"$T/out" 2>"$T/err"
ok 'a declared layer stays in compressed-tensors' cmp $Q/fp8-dynamic/model.safetensors "$T/y/model.safetensors"
same 'and in the config' 1 "$(jq .num_nextn_predict_layers "$T/y/config.json")"

# A model that is not known is converted tensor by tensor, and that is said.
rm -rf "$T/m" && cp -r $M/llama "$T/m" && jq '.model_type = "other"' $M/llama/config.json >"$T/m/config.json"
$OUNCE convert "$T/m" -o "$T/y" --force --to f32 -q >"$T/out" 2>"$T/err"
same 'an unknown model' "0 1" "$? $(grep -c 'converted tensor by tensor; whether the model is whole cannot be told: config.json.model_type: "other"' "$T/err")"
fails 'an unknown model that is quantized' 1 'config.json.model_type: "other"' $OUNCE convert "$T/m" -o "$T/none" --to compressed-tensors
rm -rf "$T/m" "$T/y"

# ---- synth ----
fails 'synth: no such scheme' 2 'error: --scheme: must be one of W8A8' $OUNCE synth "$T/config.json" -o "$T/s" --scheme W3A5
fails 'synth: a group that does not divide' 1 'group_size 64 does not divide its 160 columns' $OUNCE synth "$T/config.json" -o "$T/s" --scheme W4A16 --group-size 64
fails 'synth: no config' 1 'nowhere.json' $OUNCE synth nowhere.json -o "$T/s"
fails 'synth: a split and a scheme' 2 'error: --split-ffn: the result is dense' $OUNCE synth --split-ffn 4 tests/golden/models/llama -o "$T/s" --scheme W8A16
fails 'synth: a split and a seed' 2 'error: --split-ffn: the result has nothing random' $OUNCE synth --split-ffn 4 tests/golden/models/llama -o "$T/s" --seed 1
fails 'synth: a split into 3' 2 'error: --split-ffn: must be a power of two' $OUNCE synth --split-ffn 3 tests/golden/models/llama -o "$T/s"
for m in qwen3 mistral llama-tied-bias mixtral; do
    fails "synth: a split of $m" 1 'what can be split is a dense Llama without biases' $OUNCE synth --split-ffn 4 tests/golden/models/$m -o "$T/s"
done
fails 'synth: a split that does not divide' 1 'error: --split-ffn: must divide intermediate_size 256' $OUNCE synth --split-ffn 512 tests/golden/models/llama -o "$T/s"
for scheme in W8A8 W8A16 FP8_DYNAMIC; do
    $OUNCE synth "$T/config.json" -o "$T/direct" --scheme $scheme --seed 3 -t 1 --force -q >/dev/null
    $OUNCE synth "$T/config.json" -o "$T/dense" --seed 3 -t 2 --force -q >/dev/null
    $OUNCE quantize "$T/dense" -o "$T/later" --scheme $scheme --force -q >/dev/null
    same "synth: $scheme at once or later" "$(cd "$T/later" && sha256sum *)" "$(cd "$T/direct" && sha256sum *)"
done

# ---- interruption ----
sed 's/"hidden_size": 64/"hidden_size": 4096/; s/"num_hidden_layers": 2/"num_hidden_layers": 20/' "$T/config.json" >"$T/large.json"
mkdir "$T/int"
$OUNCE synth "$T/large.json" -o "$T/int/out" -q >/dev/null 2>"$T/err" &
sleep 0.5
kill -INT $!
wait $!
same 'synth: SIGINT fails' 1 $?
same 'synth: and leaves nothing behind' '' "$(ls -A "$T/int")"
same 'synth: and says so' 'error: interrupted' "$(cat "$T/err")"

# Floats need the weights alone: what stands in the way of running them (how inputs, outputs and the cache are quantized) does not stand in theirs, and a word is said.
# MODEL JQ-PROGRAM WORD: the same floats as of the model before its config was changed, which run refuses.
Q=tests/golden/quantized
weights_alone() {
    rm -rf "$T/w" && cp -r "$Q/$1" "$T/w" && chmod -R u+w "$T/w" && jq "$2" "$Q/$1/config.json" >"$T/w/config.json"
    fails "$1, $2: run refuses it" 1 'quantization_config' $OUNCE logits "$T/w" --ids "$T/ids" -o "$T/none.st"
    fails "$1, $2: so does compressed-tensors" 1 'quantization_config' $OUNCE convert "$T/w" -o "$T/none" --to compressed-tensors
    $OUNCE convert "$Q/$1" -o "$T/wa" --to f32 --force -q 2>"$T/log"
    fails "$1, $2: floats" 0 "$3" $OUNCE convert "$T/w" -o "$T/wb" --to f32 --force -q
    ok "$1, $2: the same" cmp "$T/wa/model.safetensors" "$T/wb/model.safetensors"
}
echo 1 2 3 >"$T/ids"
FP4='{num_bits: 4, type: "float", symmetric: true, strategy: "tensor_group", group_size: 16, dynamic: "local"}'
MX='{num_bits: 4, type: "float", symmetric: true, strategy: "group", group_size: 32, dynamic: true}'
OFF='their inputs are not quantized any more, plain floats cannot say it'
weights_alone narrow-floats ".quantization_config.config_groups.group_0.input_activations = $FP4" "model.layers.0.self_attn.q_proj (scheme NVFP4A16 with quantized inputs), and 1 modules in all: $OFF"
weights_alone narrow-floats ".quantization_config.config_groups[].input_activations = $MX" "$OFF"
weights_alone w4a16-g128 '.quantization_config.config_groups[].output_activations = {num_bits: 8}' "$OFF"
weights_alone w4a16-g128 ".quantization_config.config_groups[].input_activations = $MX" "(scheme W4A16 with quantized inputs), and 14 modules in all: $OFF"
weights_alone kv-cache-fp8 '.quantization_config.kv_cache_scheme.dynamic = true' 'its quantized cache (kv_cache_scheme and its scales) is left out'
weights_alone kv-cache-fp8 '.quantization_config.kv_cache_scheme.symmetric = false' 'its quantized cache (kv_cache_scheme and its scales) is left out'
weights_alone fp8-native-block '.quantization_config.activation_scheme = "static"' "$OFF"
same 'nothing of the cache is left' 0 "$($OUNCE inspect "$T/wb" --tensors --json -q | jq '[.tensors[].name | select(endswith("_scale"))] | length')"

# Native blocks that do not divide the columns: of 256 columns the last 56 have the second scale.
rm -rf "$T/w" && cp -r $Q/fp8-native-block "$T/w" && jq '.quantization_config.weight_block_size = [128, 200]' $Q/fp8-native-block/config.json >"$T/w/config.json"
fails 'blocks that do not divide: run' 1 'which do not divide its 128 columns' $OUNCE logits "$T/w" --ids "$T/ids" -o "$T/none.st"
fails 'blocks that do not divide: floats' 0 "$OFF" $OUNCE convert "$T/w" -o "$T/wb" --to f32 --force -q
same 'and their values' 'same' "$(python3 - "$T/w/model.safetensors" "$T/wb/model.safetensors" <<'END'
import json, struct, sys
def tensor(path, name):
    data = open(path, 'rb').read()
    start = 8 + struct.unpack('<Q', data[:8])[0]
    t = json.loads(data[8:start])[name]
    return t['shape'], t['dtype'], data[start + t['data_offsets'][0]:start + t['data_offsets'][1]]
def e4m3(b):
    m, e = b & 7, b >> 3 & 15
    return (-1 if b & 128 else 1) * (m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
name = 'model.layers.0.mlp.down_proj.weight'
(rows, cols), _, codes = tensor(sys.argv[1], name)
_, dtype, scales = tensor(sys.argv[1], name + '_scale_inv')
scale = struct.unpack('<2f', scales[:8]) if dtype == 'F32' else [struct.unpack('<f', struct.pack('<I', s << 16))[0] for s in struct.unpack('<2H', scales[:4])]
want = [struct.unpack('<f', struct.pack('<f', e4m3(codes[i]) * scale[i // 200]))[0] for i in range(cols)]
got = list(struct.unpack(f'<{cols}f', tensor(sys.argv[2], name)[2][:4 * cols]))
print('same' if cols == 256 and want == got else f'{cols} columns, {sum(a != b for a, b in zip(want, got))} differ')
END
)"
