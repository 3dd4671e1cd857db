# --json: each command, in each of its modes, prints one JSON document on stdout and nothing else; and what -q leaves of the rest.
. tests/lib.sh
M=tests/golden/models/llama G=tests/golden/gguf/llama.gguf
echo '1 2 3 4' >"$T/ids"
printf 'in the thing in the thing' >"$T/text"
for i in {1..40}; do cat "$T/text"; done >"$T/long"
for i in {1..8}; do echo '{"text": "in the thing in the thing in the thing in the thing"}'; done >"$T/cal.jsonl"
$OUNCE convert $G -o "$T/m" --to f32 -q
$OUNCE quantize "$T/m" -o "$T/q" --scheme W8A16 -q

# Errors of modules have one shape, and folds another, whatever the method.
CAL="--calibration $T/cal.jsonl --max-seq-length 16 --num-calibration-samples 8"
errors='(.errors | length > 0 and (map(keys) | unique) == [["after", "before", "dampening", "module", "tokens"]] and all(.before >= .after and .tokens > 0))'
folds='(.folds | length > 0 and (map(keys) | unique) == [["after", "balanced", "before", "from", "modules", "strength"]] and all(.before >= .after))'
printf '%s\n' 's_stage: {m_modifiers: {SmoothQuantModifier: {}, GPTQModifier: {scheme: W8A8, ignore: lm_head}}}' >"$T/r.yaml"

# NAME;what jq must find true;COMMAND, which reads the text on stdin
while IFS=';' read -r name wants command; do
    eval "$OUNCE $command --json -q" <"$T/text" >"$T/out" 2>"$T/err"
    status=$?
    same "$name: status and documents" '0 1 true' "$status $(jq -s length "$T/out" 2>&1) $(jq "$wants" "$T/out" 2>&1)"
    [ $status = 0 ] || head -3 "$T/err"
done <<END
quantize;.files[0].name == "model.safetensors" and .bytes > 0 and .errors == [] and .folds == [];quantize "$T/m" -o "$T/j1" --scheme W8A16
quantize, a dry run;.dry_run and .errors == [];quantize "$T/m" --scheme W8A16 --dry-run
quantize, a recipe's budget;.bytes > 0;quantize "$T/m" -o "$T/j2" --target-bytes 90K --scheme W4A16_ASYM --group-size 32 --calibration "$T/cal.jsonl" --max-seq-length 16 --num-calibration-samples 8
quantize, gptq;$errors and .folds == [];quantize "$T/m" -o "$T/j3" --scheme W4A16 --group-size 32 --method gptq $CAL
quantize, imatrix;$errors and .folds == [];quantize "$T/m" -o "$T/j7" --scheme W4A16 --group-size 32 --method imatrix $CAL
quantize, smoothquant;.errors == [] and $folds;quantize "$T/m" -o "$T/j8" --scheme W8A8 --method smoothquant $CAL
quantize, awq;$errors and $folds;quantize "$T/m" -o "$T/j9" --scheme W4A16 --group-size 32 --method awq $CAL
quantize, awq+gptq;$errors and $folds;quantize "$T/m" -o "$T/j10" --scheme W4A16 --group-size 32 --method awq+gptq $CAL
quantize, static scales;.errors == [] and .folds == [];quantize "$T/m" -o "$T/j11" --scheme FP8 $CAL
quantize, a recipe;$errors and $folds;quantize "$T/m" -o "$T/j12" --recipe "$T/r.yaml" $CAL
quantize, a budget and gptq;$errors and .folds == [] and .budget;quantize "$T/m" -o "$T/j13" --target-bytes 90K --method gptq $CAL
convert;.to == "bf16" and .modules[0].from == "q8_0";convert $G -o "$T/j4" --to bf16
convert, a dry run;.dry_run and .to == "compressed-tensors";convert "$T/q" --to compressed-tensors --dry-run
synth;.seed == 3;synth $M -o "$T/j5" --seed 3
synth, split;.tensors > 0;synth --split-ffn 2 $M -o "$T/j6"
inspect;.model_type == "llama";inspect "$T/m"
inspect, all of it;(.tensors and .kernels and .plan);inspect "$T/m" --tensors --kernels --plan
verify;.errors == 0 and .findings == [];verify "$T/q"
verify, against;(.against | length) > 0;verify "$T/q" --against "$T/m"
run, ids;.ids | length == 3;run "$T/m" --ids "$T/ids" -n 3 --ignore-eos
run, a prompt;.text and .prompt_tokens > 0;run "$T/m" -p 'in the' -n 3 --ignore-eos
logits;.tensors[0] == {name: "logits", dtype: "F32", shape: [4, 265]} and .device and .dtype and .bytes > 4240;logits "$T/m" --ids "$T/ids" -o "$T/l1"
logits, hidden;(.tensors | length == 3) and .output == "$T/l2" and .tensors[2].shape == [4, 64];logits "$T/m" --ids "$T/ids" -o "$T/l2" --hidden
tokenize;.ids | length > 2;tokenize "$T/m"
detokenize;(.text | length > 0);detokenize "$T/m" <"$T/ids"
detokenize, a stream;.deltas | length == 5;detokenize "$T/m" --stream <"$T/ids"
template;(.text | length > 0);template $G <<<'[{"role": "user", "content": "in"}]'
ppl;.[0].ppl > 0;ppl "$T/m" --text "$T/long" --ctx 32
kl;.[0].mean_kl >= 0;kl "$T/m" "$T/q" --text "$T/long" --ctx 32
kl, by module;.[0].modules | length > 0;kl "$T/m" "$T/q" --text "$T/long" --ctx 32 --by-module
bench;.rows | length > 0;bench "$T/m" -p 4 -n 2 -r 1
END

# -q: nothing of what was written but warnings; what was asked for is said all the same.
while IFS=';' read -r name want command; do
    eval "$OUNCE $command -q" <"$T/text" >"$T/out" 2>"$T/err"
    same "-q: $name" "$want" "$([ -s "$T/out" ] && echo said)"
done <<END
quantize;;quantize "$T/m" -o "$T/k1" --scheme W8A16
quantize, a dry run;said;quantize "$T/m" --scheme W8A16 --dry-run
convert;;convert $G -o "$T/k2" --to bf16
synth;;synth $M -o "$T/k3"
inspect;said;inspect "$T/m"
verify, against;said;verify "$T/q" --against "$T/m"
run;said;run "$T/m" --ids "$T/ids" -n 2 --ignore-eos
logits;;logits "$T/m" --ids "$T/ids" -o "$T/l3"
tokenize;said;tokenize "$T/m"
ppl;said;ppl "$T/m" --text "$T/long" --ctx 32
kl;said;kl "$T/m" "$T/q" --text "$T/long" --ctx 32
bench;said;bench "$T/m" -p 4 -n 2 -r 1
END

# A number that is none ends logits as it ends run, and no file is left.
cp -r "$T/m" "$T/nan"
python3 - "$T/nan/model.safetensors" <<'END'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
start = 8 + struct.unpack("<Q", data[:8])[0]
begin, end = json.loads(data[8:start])["model.norm.weight"]["data_offsets"]
data[start + begin + 8:start + begin + 12] = struct.pack("<f", float("nan"))
open(sys.argv[1], "wb").write(data)
END
want='logits are not finite at position 0; model.norm.weight[2] is not finite either (model.safetensors)'
fails 'logits: NaN' 1 "$want" $OUNCE logits "$T/nan" --ids "$T/ids" -o "$T/nan.st" --json -q
same 'no file, no document' '' "$(ls -A "$T" | grep nan.st; cat "$T/out")"
fails 'run: NaN' 1 'model.norm.weight[2] is not finite either (model.safetensors)' $OUNCE run "$T/nan" --ids "$T/ids" -q

# Names as long as a file system takes; one byte more is refused before the work.
long=$(printf 'n%.0s' {1..255})
ok 'quantize to a long name' $OUNCE quantize "$T/m" -o "$T/$long" --scheme W4A16 --group-size 32 --method gptq --calibration "$T/cal.jsonl" --max-seq-length 16 --num-calibration-samples 8 -q
ok 'convert to a long name' $OUNCE convert $G -o "$T/$long" --to bf16 --force -q
same 'it is a model, and alone' '4 1' "$($OUNCE run "$T/$long" --ids "$T/ids" -n 4 --ignore-eos --json -q | jq '.ids | length') $(ls -A "$T" | grep -cE 'nnnn|tmp-|gptq')"
rm -rf "$T/$long"
ok 'logits to a long name' $OUNCE logits "$T/m" --ids "$T/ids" -o "$T/$long" -q
for c in "quantize $T/m --scheme W8A16" "convert $G --to bf16" "synth $M" "logits $T/m --ids $T/ids"; do fails "${c%% *}: a name too long" 1 'File name too long' $OUNCE $c -o "$T/${long}n"; done

self=$(realpath $OUNCE)
# No command writes a folder into the model that it reads.
for c in "quantize $T/m --scheme W8A16" "convert $T/m --to f32" "synth $T/m"; do
    fails "${c%% *}: into its input" 1 "$T/m/sub: lies in the model that is read, $T/m: name a folder outside" $OUNCE $c -o "$T/m/sub"
    (cd "$T/m" && fails "${c%% *}: into the folder one is in" 1 'sub: lies in the model that is read' "$self" ${c/$T\/m/.} -o sub)
done
