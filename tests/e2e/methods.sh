# ounce quantize with calibration text, whatever the method, under one scheme or --target-bytes: the same bytes in every run, with any number of threads; every method and option changes what it
# speaks of, and nothing else, or is refused; what the report and the log say of errors and experts.
. tests/lib.sh
M=tests/golden/models
ids 8 36 90 1 >"$T/cal.jsonl"
ids 8 36 90 2 >"$T/other.jsonl"
q() { local m=$1 && shift && $OUNCE_RELEASE quantize $M/$m -q --force --calibration "$T/cal.jsonl" --num-calibration-samples 8 --max-seq-length 36 "$@" >"$T/report" 2>"$T/err" || { echo "not ok $m $*" && cat "$T/err"; }; }
METHODS='gptq imatrix awq smoothquant smoothquant+gptq awq+gptq' A='W4A16_ASYM --group-size 32'
sum() { sha256sum <"$1/model.safetensors"; }
# FROM TO PATTERN...: a line for each tensor of FROM whose name begins with one of the patterns and which is not in TO, or has other bytes there; then their number.
changed() {
    python3 - "$@" <<'END'
import json, re, sys
def read(folder):
    data = open(folder + "/model.safetensors", "rb").read()
    n = int.from_bytes(data[:8], "little")
    return {k: (v["dtype"], v["shape"], data[8 + n:][slice(*v["data_offsets"])]) for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}
a, b = read(sys.argv[1]), read(sys.argv[2])
names = [k for k in sorted(a) if any(re.match(p, k) for p in sys.argv[3:])]
for k in names:
    if a[k] != b.get(k): print(k)
print("of", len(names))
END
}

# ---- the same bytes, and those of no other method ----
rows() {
    for m in $METHODS; do
        for s in "$A" W8A8 FP8; do [ "$m $s" = 'imatrix FP8' ] || echo "llama --method $m --scheme $s"; done # which has no scales of rows
        echo "llama --method $m --target-bytes 250K"
    done
    echo 'llama --method rtn --scheme FP8'
    echo 'llama --method rtn --scheme W8A8_STATIC'
    echo 'llama --method rtn --scheme W8A8 --kv-cache-scheme fp8'
    echo 'llama --method rtn --target-bytes 250K'
    echo "mixtral --method awq+gptq --scheme W4A16_ASYM --group-size 16"
    echo 'mixtral --method smoothquant --scheme FP8 --kv-cache-scheme fp8_per_head'
    echo 'mixtral --method gptq --target-bytes 360K'
}
n=0
while read -r m what; do
    for t in 1 2 3; do q $m -o "$T/$t" -t $t $what; done
    ok "$m $what: the same bytes with 1, 2 and 3 threads" eval 'diff -r "$T/1" "$T/2" && diff -r "$T/1" "$T/3"'
    mkdir -p "$T/made" && mv "$T/1" "$T/made/$m $what"
    sum "$T/made/$m $what" >>"$T/sums" && n=$((n + 1))
done < <(rows)
for s in "$A" W8A8; do $OUNCE_RELEASE quantize $M/llama -q -o "$T/made/llama --method rtn --scheme $s" --scheme $s >"$T/out" && sum "$T/made/llama --method rtn --scheme $s" >>"$T/sums" && n=$((n + 1)); done
same "$n methods and schemes, no two alike" $n "$(sort -u "$T/sums" | wc -l)"

# ---- options ----
differs() { # WHAT OPTIONS...: other bytes than $base
    local what=$1 && shift
    q llama -o "$T/x" $options "$@"
    ok "$options: $what: other bytes" test "$(sum "$T/x")" != "$(sum "$T/made/llama $options")"
}
for m in $METHODS; do
    options="--method $m --scheme $A"
    differs 'fewer samples' --num-calibration-samples 5
    differs 'shorter sequences' --max-seq-length 20
    differs 'other sequences' --num-calibration-samples 5 --seed 1
    differs 'another text' --calibration "$T/other.jsonl"
    differs 'other groups' --group-size 16
    if [[ $m = *gptq ]]; then differs 'dampening' --dampening-frac 0.1; fi
    if [[ $m = smoothquant* || $m = awq* ]]; then differs 'strength' --smoothing-strength 0.7; fi
    differs 'targets' --targets 're:.*layers\.[01]\.'
    same "$options: targets: what they do not reach is kept to the byte" 'of 12' "$(changed $M/llama "$T/x" 'model\.layers\.2\.' 'model\.[en]' lm_head)"
    differs 'ignore' --ignore 're:.*layers\.1\.'
    same "$options: ignore: so is what it names" 'of 12' "$(changed $M/llama "$T/x" 'model\.layers\.1\.' 'model\.[en]' lm_head)"
    ok "$options: and nothing else" test "$(changed $M/llama "$T/x" 'model\.layers\.[02].*proj' | wc -l)" = 15
    options="--method $m --target-bytes 250K"
    differs 'another budget' --target-bytes 300K
    differs 'a scheme that is the least' --scheme W4A16_ASYM --group-size 64
    differs 'fewer samples' --num-calibration-samples 5
    differs 'ignore' --ignore 're:.*layers\.1\.'
    same "$options: ignore: what it names is kept" 'of 12' "$(changed $M/llama "$T/x" 'model\.layers\.1\.' 'model\.[en]' lm_head)"
    if [[ $m = *gptq ]]; then differs 'dampening' --dampening-frac 0.1; fi
    if [[ $m = smoothquant* || $m = awq* ]]; then differs 'strength' --smoothing-strength 0.7; fi
done
for m in rtn imatrix awq smoothquant; do fails "$m: dampening for nothing" 2 "--dampening-frac: --method $m has no Hessian" $OUNCE quantize $M/llama -o "$T/no" --scheme W8A8 --method $m --dampening-frac 0.1; done
for m in 'rtn --scheme W8A8' "rtn --scheme FP8 --calibration $T/cal.jsonl" "gptq --scheme W8A8 --calibration $T/cal.jsonl" "imatrix --scheme W8A8 --calibration $T/cal.jsonl"; do
    fails "${m%% --cal*}: strength for nothing" 2 "--smoothing-strength: --method ${m%% *} moves no scales" $OUNCE quantize $M/llama -o "$T/no" --method $m --smoothing-strength 0.5
done
fails 'groups for nothing' 2 '--group-size: W8A8 has one scale a channel' $OUNCE quantize $M/llama -o "$T/no" --scheme W8A8 --group-size 32
fails 'a target that matches nothing' 1 "re:.*mpl.*" $OUNCE quantize $M/llama -o "$T/no" --scheme W8A8 --targets 're:.*mpl.*'
fails 'and so to ignore' 1 "re:.*mpl.*" $OUNCE quantize $M/llama -o "$T/no" --scheme W8A8 --ignore 're:.*mpl.*'

# What is to be left as it is, in every golden model: a layer, and all that is in no layer; the layer before it is not.
for d in $M/*/; do
    d=$(basename "$d") && [ ! -e $M/$d/model.safetensors.index.json ] || continue
    q $d -o "$T/x" --method smoothquant --scheme W8A16 --num-calibration-samples 2 --max-seq-length 16 --ignore 're:.*layers\.1\.'
    found=$(changed $M/$d "$T/x" '.*layers\.1\.(?!.*experts\.[a-z_]*$)' '(?!.*layers\.\d)') # experts that are one tensor are written one by one (test_fold has their bytes)
    ok "$d: what is to be ignored is kept to the byte ($found)" test "${found%% [0-9]*}" = of -a "${found##* }" -gt 8
    ok "$d: norms of another layer are not" test "$(changed $M/$d "$T/x" '.*layers\.0\..*norm' | wc -l)" -gt 1
done

# Scales of inputs that are stored follow the text; to nearest, nothing else does.
for s in FP8 W8A8_STATIC; do
    options="--method rtn --scheme $s"
    differs 'another text' --calibration "$T/other.jsonl"
    same "$s: codes and scales of weights do not follow the text" 'of 51' "$(changed "$T/made/llama $options" "$T/x" '.*weight')"
    ok "$s: scales of inputs do" test "$(changed "$T/made/llama $options" "$T/x" '.*input_scale' | wc -l)" -gt 15
done
same 'and are not there where scales are dynamic' 'of 0' "$(changed "$T/made/llama --method gptq --scheme W8A8" "$T/x" '.*input_scale')"
options='--method rtn --scheme W8A8 --kv-cache-scheme fp8'
differs 'one a head' --kv-cache-scheme fp8_per_head
same 'the cache: weights are those without it' 'of 51' "$(changed "$T/made/llama --method rtn --scheme W8A8" "$T/x" '.*weight')"
differs 'another text' --calibration "$T/other.jsonl"
ok 'the cache: its scales follow the text' test "$(changed "$T/made/llama $options" "$T/x" '.*[kv]_scale' | wc -l)" -gt 5

# ---- what is said ----
json() { jq -rc "$2" "$1"; } # FILE FILTER
Q=($OUNCE quantize $M/mixtral -o "$T/m" --force --calibration "$T/cal.jsonl" --num-calibration-samples 8 --max-seq-length 36 --scheme W8A8) # a command, not a function: $! is its own
m() { "${Q[@]}" "$@"; }
for what in gptq imatrix awq smoothquant+gptq; do
    m --method $what --json >"$T/json" 2>"$T/err" || cat "$T/err"
    same "$what: each token chose two experts of each layer" '[[0,8,576],[1,8,576],[2,8,576]]' "$(json "$T/json" '[.experts[] | [.layer, (.tokens | length), (.tokens | add)]]')"
    same "$what: and a line of the log says so" "$(json "$T/json" '.experts[] | "layer \(.layer): of 288 tokens an expert saw \(.tokens | min) (expert \(.tokens | to_entries | min_by(.value).key)) to \(.tokens | max), of 8 experts"')" "$(grep '^layer' "$T/err")"
    same "$what: errors before and after, of each module" '84 true' "$(json "$T/json" '.errors | [length, (map(.before > 0 and .after > 0 and .after <= .before) | all)] | map(tostring) | join(" ")')"
    same "$what: the log has them, too" 84 "$(grep -c '^model.*: \(output error\|error by importance\) .*, of \(rounding to nearest\|whole ranges\)' "$T/err")"
    same "$what: modules of an expert saw what it saw" true "$(json "$T/json" '.experts as $e | [.errors[] | select(.module | test("experts")) | (.module | capture("layers\\.(?<l>[0-9]+).*experts\\.(?<e>[0-9]+)")) as $at | .tokens == $e[$at.l | tonumber].tokens[$at.e | tonumber]] | all')"
    [[ $what != *oot* && $what != awq* ]] || same "$what: errors of 33 folds, too" '33 true' "$(json "$T/json" '.folds | [length, (map(.after <= .before) | all)] | map(tostring) | join(" ")')"
    cp "$T/json" "$T/$what.json"
done
rm -rf "$T/m"
"${Q[@]}" --method gptq >"$T/out" 2>&1 &
for i in $(seq 3000); do grep -qs '"layers_done": [12]' "$T/m.gptq/manifest.json" && break; sleep 0.005; done
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
m --method gptq --resume --json >"$T/json" 2>"$T/err"
same 'killed and resumed, the report is the same' "$(jq -cS '[.errors, .folds, .experts]' "$T/gptq.json")" "$(jq -cS '[.errors, .folds, .experts]' "$T/json")"
m --method gptq --scheme W8A16 --ignore 're:.*experts\.[0-6]\.' --json >"$T/json" 2>"$T/err"
same 'of experts that are kept nothing is known' '[null,null,null,null,null,null,null,"number"]' "$(json "$T/json" '.experts[0].tokens | map(if . then type else . end)')"

# On a terminal: the layer, the last error, the time that is left.
python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)' "${Q[@]}" --method awq+gptq >"$T/tty" 2>&1 </dev/null
ok 'the progress line' grep -qaE 'quantizing: .* left, layer [123] of 3, error [0-9.e-]+' "$T/tty"
