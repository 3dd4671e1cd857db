# ounce quantize --method imatrix: scales by the importance of columns: what they cost, beside rounding to nearest, and what the rest of the calibrated methods have.
. tests/lib.sh
M=tests/golden/models
ids 8 40 96 1 >"$T/cal.jsonl"
ids 8 64 280 2 >"$T/few.jsonl"
q() { $OUNCE quantize "$1" -o "$2" -q --method imatrix --calibration "$T/cal.jsonl" --num-calibration-samples 8 --max-seq-length 40 --force "${@:3}"; } # MODEL OUT ...

# FOLDER ORIGINAL WHICH: the error of the first layer's q_proj, its columns weighted by the mean square of their inputs on the text, all worked out in Python; FOLDER's tensors are floats.
weighted() {
    python3 - "$1" "$2" "$T/cal.jsonl" <<'END'
import json, math, struct, sys
def read(path):
    data = open(path + '/model.safetensors', 'rb').read()
    n = struct.unpack('<Q', data[:8])[0]
    head = json.loads(data[8:8 + n])
    def tensor(name):
        raw = data[8 + n + head[name]['data_offsets'][0]:8 + n + head[name]['data_offsets'][1]]
        return struct.unpack('<%df' % (len(raw) // 4), raw)
    return tensor
made, original = read(sys.argv[1]), read(sys.argv[2])
norm, embed, eps = original('model.layers.0.input_layernorm.weight'), original('model.embed_tokens.weight'), json.load(open(sys.argv[2] + '/config.json'))['rms_norm_eps']
n = len(norm)
squares = [0.0] * n
for line in open(sys.argv[3]):
    for token in json.loads(line)['ids']:
        x = embed[token * n:(token + 1) * n]
        by = 1 / math.sqrt(sum(v * v for v in x) / n + eps)
        for c in range(n): squares[c] += (x[c] * by * norm[c]) ** 2
mean = sum(squares) / n
importance = [s / mean + 0.01 for s in squares]
a, w = made('model.layers.0.self_attn.q_proj.weight'), original('model.layers.0.self_attn.q_proj.weight')
print('%.4g' % (sum(importance[i % n] * (x - y) ** 2 for i, (x, y) in enumerate(zip(a, w))) / sum(importance[i % n] * y * y for i, y in enumerate(w))))
END
}
$OUNCE convert $M/qwen2 -o "$T/m" --to f32 -q >"$T/out"
for s in 'W4A16 --group-size 16' 'W4A16_ASYM --group-size 16' W8A16 FP8_DYNAMIC 'W4A8 --group-size 16'; do
    n=${s%% *}
    q "$T/m" "$T/$n" --scheme $s --json -t 1 >"$T/r.json" 2>"$T/err" || { echo "not ok $n" && cat "$T/err"; }
    $OUNCE quantize "$T/m" -o "$T/rtn" --scheme $s -q --force >"$T/out"
    for f in "$n" rtn; do $OUNCE convert "$T/$f" -o "$T/$f-f32" --to f32 -q --force >"$T/out" 2>"$T/err"; done
    same "$n: the errors of the first module, before and after" "$(weighted "$T/rtn-f32" "$T/m") $(weighted "$T/$n-f32" "$T/m")" \
        "$(printf '%.4g %.4g' $(jq -r '.errors[] | select(.module == "model.layers.0.self_attn.q_proj") | "\(.before) \(.after)"' "$T/r.json"))"
    same "$n: 14 modules, none worse than rounded to nearest, together better" '14 320 true true' \
        "$(jq -r '.errors | "\(length) \(map(.tokens) | unique[]) \(map(.after <= .before) | all) \((map(.after) | add) < (map(.before) | add))"' "$T/r.json")"
    ok "$n: it is sound" $OUNCE verify "$T/$n" -q
    same "$n: each code is the nearest under its scale, and some scales are others than the largest values give" 'true true' \
        "$($OUNCE verify "$T/$n" --against "$T/m" --json -q 2>/dev/null | jq -r '[.against[] | select(.scales > 0)] | "\(length == 14 and all(.codes == .codes_nearest)) \((map(.scales) | add) > (map(.scales_nearest) | add))"')"
    q "$T/m" "$T/b" --scheme $s -t 3 >"$T/out"
    ok "$n: the same bytes with any number of threads" diff -r "$T/$n" "$T/b"
done
same 'how it was made' '["imatrix","searched",0.01,"cal.jsonl",8]' "$(jq -c '[.method, .parameters.scales, .parameters.added_frac, .calibration.file, .calibration.sequences]' "$T/W8A16/ounce_recipe.json")"
ok 'static inputs, too' q $M/mistral "$T/static" --scheme W8A8_STATIC >"$T/out"
ok 'and they run' $OUNCE logits "$T/static" --ids <(echo 5 6 7) -o "$T/logits.safetensors" -q

# Broken off after each layer.
rm -rf "$T/b"
for layer in 0 1; do
    $OUNCE quantize "$T/m" -o "$T/b" -q --method imatrix --calibration "$T/cal.jsonl" --num-calibration-samples 8 --max-seq-length 40 --scheme W4A16 --group-size 16 --resume >"$T/out" 2>"$T/err" &
    for i in $(seq 3000); do grep -qs "\"layers_done\": $layer" "$T/b.gptq/manifest.json" && break; sleep 0.005; done
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
done
q "$T/m" "$T/b" --scheme W4A16 --group-size 16 --resume >"$T/out" || echo 'not ok resume'
ok 'killed and resumed: the same bytes' diff -r "$T/W4A16" "$T/b"

# Experts that no token reaches: searched with all columns alike, and named.
$OUNCE quantize $M/mixtral -o "$T/few" --scheme W4A16 --group-size 32 --method imatrix --calibration "$T/few.jsonl" --num-calibration-samples 1 --max-seq-length 2 --json >"$T/r.json" 2>"$T/err"
n=$(jq '[.errors[] | select(.tokens == 0)] | length' "$T/r.json")
ok 'experts without a token: some' test "$n" -gt 0
same 'have no error' '[null,null]' "$(jq -c '[.errors[] | select(.tokens == 0) | [.before, .after]] | unique[]' "$T/r.json")"
same 'are named by one line, and so is too little text' "1 1 2" "$(grep -c "^warning: no token of the calibration text reached $n modules, the first model.layers" "$T/err") $(grep -c '^warning: few.jsonl: 2 tokens, fewer than the columns of ' "$T/err") $(grep -c '^warning' "$T/err")"
ok 'and have finite scales' $OUNCE verify "$T/few" -q

fails 'without text' 2 '--calibration: an importance matrix needs text' $OUNCE quantize $M/llama -o "$T/o" --scheme W8A16 --method imatrix
fails 'scales of several rows' 1 'model.layers.0.self_attn.q_proj: scheme FP8: its scales are of several rows together' q $M/llama "$T/o" --scheme FP8
fails 'outside of layers' 1 'lm_head: scheme W8A16: importance is measured in layers' q $M/llama "$T/o" --scheme W8A16 --targets re:lm_head
fails 'a Hessian' 2 '--dampening-frac: --method imatrix has no Hessian' q $M/llama "$T/o" --scheme W8A16 --dampening-frac 0.1
fails 'behind folds' 2 '--method' q $M/llama "$T/o" --scheme W8A16 --method awq+imatrix
