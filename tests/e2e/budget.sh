# ounce quantize --target-bytes: what is chosen keeps to the budget, is the same however it is made, loads, and gives bits to the modules that need them.
. tests/lib.sh
M=tests/golden/models
ids 24 48 300 1 >"$T/cal.jsonl"
ids 24 48 95 2 >"$T/few.jsonl"
b() { local m=$1; shift; $OUNCE quantize "$m" -q --calibration "$T/cal.jsonl" --num-calibration-samples 24 --max-seq-length 48 "$@"; }
# Bytes of the tensors of the linear modules, as they lie in the files.
bytes() {
    python3 - "$1" <<'END'
import glob, json, struct, sys
n = 0
for f in glob.glob(sys.argv[1] + "/*.safetensors"):
    data = open(f, "rb").read()
    for name, t in json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]]).items():
        if "_proj." in name or ".experts." in name: n += t["data_offsets"][1] - t["data_offsets"][0]
print(n)
END
}

# The least there is, all that there is, and between them.
fails 'less than the least' 1 'error: --target-bytes 1000: the modules take at least 167952, the first of them as W4A16 in groups of 32' b $M/llama -o "$T/o" --target-bytes 1000
fails 'as much as they take' 1 '--target-bytes 1000000000: the modules take 608256 as they are; give less' b $M/llama -o "$T/o" --target-bytes 1GB
fails 'bits that are no byte' 1 "--target-bytes 1: the modules take at least" b $M/llama -o "$T/o" --scheme W8A16 --target-bytes 0.00001bpw
fails 'a blank before' 2 '--target-bytes: must be a number of bytes' b $M/llama -o "$T/o" --target-bytes ' 4.5bpw'
fails 'no size' 2 '--target-bytes: must be a number of bytes, 60M, 1.5GB or 2GiB, or bits a weight, 4.5bpw, found "many"' b $M/llama -o "$T/o" --target-bytes many
fails 'no text' 2 '--calibration: --target-bytes needs text' $OUNCE quantize $M/llama -o "$T/o" --target-bytes 200K
fails 'groups without a scheme' 2 '--group-size: --target-bytes chooses groups' b $M/llama -o "$T/o" --target-bytes 200K --group-size 32
fails 'a scheme of another kind' 2 '--target-bytes with --scheme W8A8: expected W4A16' b $M/llama -o "$T/o" --target-bytes 200K --scheme W8A8
fails 'a strength for nothing, before anything is measured' 2 '--smoothing-strength: --method gptq moves no scales' b $M/llama -o "$T/o" --target-bytes 200K --method gptq --smoothing-strength 0.5
ok 'of which nothing is kept' test ! -e "$T/o.gptq"
fails 'a recipe besides' 2 '--target-bytes: --recipe says that' b $M/llama -o "$T/o" --target-bytes 200K --recipe x.yaml
fails 'a head that is the embedding' 1 'lm_head: shares its weights with the embedding' b $M/llama-tied-bias -o "$T/o" --target-bytes 200K --targets lm_head --calibration "$T/few.jsonl"
ok 'nothing was written' test ! -e "$T/o"
b $M/llama -o "$T/least" --target-bytes 167952 --json >"$T/json" || echo 'not ok the least'
same 'the least that was named is reached' '167952 167952' "$(bytes "$T/least") $(jq -r .budget.bytes "$T/json")"
for n in 170K 200K 219999 250K 290K 300K 400K 608255; do
    b $M/llama -o "$T/o" --target-bytes $n --force --json >"$T/json" || echo "not ok $n"
    same "$n: as many bytes as it says, not one too many" "$(jq -r .budget.bytes "$T/json") true" "$(bytes "$T/o") $(jq '.budget | .bytes <= .target_bytes and .bytes > 0.94 * .target_bytes' "$T/json")"
    jq -r '.budget.kl_expected' "$T/json" >>"$T/expected"
done
b $M/llama -o "$T/o" --target-bytes 5.5bpw --force --json >"$T/json" || echo 'not ok bits a weight'
same 'bits a weight: 304,128 of them' 209088 "$(jq .budget.target_bytes "$T/json")"
ok 'more bytes, less harm' sort -rg -c "$T/expected"
ok 'verify finds nothing' $OUNCE verify "$T/o" -q

# Any number of threads; the recipe; the same choice for modules that vLLM runs as one.
b $M/llama -o "$T/a" --target-bytes 219999 -t 1 --json >"$T/json" 2>"$T/err" || echo 'not ok a'
same 'no word of vLLM' '' "$(cat "$T/err")"
for t in 2 3; do
    b $M/llama -o "$T/b" --target-bytes 219999 -t $t --force >/dev/null
    ok "the same bytes with $t threads" diff -r "$T/a" "$T/b"
done
what='.budget | {target_bytes, bytes, version, sets: [.sets[] | {modules, scheme, bytes, leanest}]}'
same 'the recipe has it' "$(jq -cS "$what" "$T/json")" "$(jq -cS "$what" "$T/a/ounce_recipe.json")"
same 'and the text' "cal.jsonl $(sha256sum <"$T/cal.jsonl" | cut -c-64) 16 768" "$(jq -r '.budget.calibration | "\(.file) \(.sha256) \(.sequences) \(.tokens)"' "$T/a/ounce_recipe.json")"
ok 'several schemes' jq -e '[.budget.sets[].scheme] | unique | length > 1' "$T/json" >/dev/null
seq 3 60 >"$T/ids"
ok 'it runs' $OUNCE logits "$T/a" --ids "$T/ids" -o "$T/logits.safetensors" -q

# --scheme is the least that a module gets.
b $M/llama -o "$T/o" --target-bytes 250K --scheme W4A16_ASYM --group-size 64 --force --json >"$T/json"
same 'a scheme is the least' '[]' "$(jq -c '[.budget.sets[] | select(.scheme == "W4A16 g32" or .scheme == "W4A16 g64" or .scheme == "W4A16 g128" or .scheme == "W4A16_ASYM g128")]' "$T/json")"
fails 'and the least there is, then' 1 '--target-bytes 200000: the modules take at least' b $M/llama -o "$T/o" --target-bytes 200K --scheme W8A16 --force

# With GPTQ.
b $M/llama -o "$T/g" --target-bytes 219999 --method gptq --json >"$T/json" || echo 'not ok gptq'
same 'gptq: as many bytes as it says' "$(jq -r .budget.bytes "$T/json") true" "$(bytes "$T/g") $(jq '.budget | .bytes <= 219999' "$T/json")"
ok 'gptq: the recipe has both' jq -e '.method == "gptq" and .budget.target_bytes == 219999' "$T/g/ounce_recipe.json" >/dev/null
b $M/llama -o "$T/h" --target-bytes 219999 --method gptq -t 3 >/dev/null
ok 'gptq: the same bytes with 3 threads' diff -r "$T/g" "$T/h"
ok 'gptq counts errors otherwise' test "$(jq -c '[.budget.sets[].kl_expected]' "$T/g/ounce_recipe.json")" != "$(jq -c '[.budget.sets[].kl_expected]' "$T/a/ounce_recipe.json")"

b $M/llama -o "$T/w" --target-bytes 219999 --method awq --json >"$T/json" 2>"$T/err" || cat "$T/err"
same 'awq: as many bytes as it says' "$(jq -r .budget.bytes "$T/json") awq" "$(bytes "$T/w") $(jq -r .method "$T/w/ounce_recipe.json")"

# A mixture: the experts of a layer are one set, and have no zero points.
least=$(b $M/mixtral -o "$T/m" --target-bytes 1 2>&1 | sed 's/.*at least \([0-9]*\).*/\1/')
b $M/mixtral -o "$T/m" --target-bytes $((least * 5 / 4)) --json >"$T/json" 2>"$T/err" || cat "$T/err"
same 'experts: as many bytes as it says' "$(jq -r .budget.bytes "$T/json")" "$(bytes "$T/m")"
same 'experts: a layer is a set' 'model.layers.0.block_sparse_moe.experts model.layers.1.block_sparse_moe.experts model.layers.2.block_sparse_moe.experts' "$(jq -r '[.budget.sets[].modules | select(test("experts"))] | join(" ")' "$T/json")"
same 'experts: no zero points' '[]' "$(jq -c '[.budget.sets[] | select((.modules | test("experts")) and (.scheme | test("ASYM")))]' "$T/json")"
# vLLM looks for a layer's experts by the names gate_proj, up_proj and down_proj of the first, and takes the first target that is one of these, or matches it as re.match does; ignore goes first.
looked_for() {
    python3 - "$1" <<'END'
import json, re, sys
q = json.load(open(sys.argv[1] + "/config.json"))["quantization_config"]
hits = lambda targets, name: any(re.match(t[3:], name) if t.startswith("re:") else t in (name, "Linear") for t in targets)
def scheme(name):
    if hits(q["ignore"], name): return "dense"
    return [f'{w["num_bits"]} {w["group_size"]}' for g in q["config_groups"].values() for w in [g["weights"]] if hits(g["targets"], name)][0]
for i in range(3): print(*sorted({scheme(f"model.layers.{i}.block_sparse_moe.experts.0.{n}_proj") for n in ("gate", "up", "down")}), sep=", ")
END
}
experts() { jq -r '.budget.sets[] | select(.modules | test("experts")) | .scheme' "$T/json" | sed 's/^W4A16 g/4 /; s/^W8A16/8 None/'; }
for percent in 160 280; do
    b $M/mixtral -o "$T/m" --force --target-bytes $((least * percent / 100)) --json >"$T/json" 2>"$T/err" || cat "$T/err"
    same "experts: vLLM finds the schemes of each layer ($percent %)" "$(experts)" "$(looked_for "$T/m")"
    ok "experts: several of them ($percent %)" test "$(experts | sort -u | wc -l)" -gt 1
    ok "experts: verified ($percent %)" $OUNCE verify "$T/m" -q
    ok "experts: no warning of vLLM ($percent %)" bash -c '! grep -q vLLM "$1"' - "$T/err"
done
$OUNCE quantize $M/mixtral -o "$T/m" --force -q --scheme W8A8 --ignore 're:.*layers\.1.*experts' >"$T/out"
same 'experts that are ignored are that to vLLM, too' '8 None;dense;8 None;' "$(looked_for "$T/m" | tr '\n' ';')"

# A module made sensitive: one row of v is forty times as large, and the others with it in no group. It gets more bits than it got before.
python3 - $M/llama "$T/loud" <<'END'
import json, os, shutil, struct, sys
shutil.copytree(sys.argv[1], sys.argv[2])
name = "model.layers.2.self_attn.v_proj.weight"
index = os.path.join(sys.argv[2], "model.safetensors.index.json")
file = json.load(open(index))["weight_map"][name] if os.path.exists(index) else "model.safetensors"
path = os.path.join(sys.argv[2], file)
os.chmod(path, 0o644)
data = bytearray(open(path, "rb").read())
start = 8 + struct.unpack("<Q", data[:8])[0]
t = json.loads(data[8:start])[name]
begin, end = t["data_offsets"]
row = (end - begin) // t["shape"][0]
for i in range(begin + 5 * row, begin + 6 * row, 4 if t["dtype"] == "F32" else 2):
    if t["dtype"] == "F32": data[start + i:start + i + 4] = struct.pack("<f", 40 * struct.unpack("<f", data[start + i:start + i + 4])[0])
    else: # bf16
        v = struct.unpack("<f", b"\0\0" + data[start + i:start + i + 2])[0] * 40
        data[start + i:start + i + 2] = struct.pack("<f", v)[2:]
open(path, "wb").write(data)
END
choice() { jq -r '.budget.sets[] | select(.modules == "model.layers.2.self_attn.qkv_proj") | .scheme'; }
same 'a quiet module' 'W4A16_ASYM g32' "$(b $M/llama --target-bytes 219999 --dry-run --json | choice)"
same 'a loud one' 'W8A16' "$(b "$T/loud" --target-bytes 219999 --dry-run --json | choice)"

# Killed before each call that changes a file until all is measured (a layer's errors, and the divergences of some sets, are saved at once): what the manifest has is taken up and not measured again, in as many
# calls less as it took to save it, and the checkpoint is the one that nobody disturbed.
gcc -shared -fPIC -O1 -D_GNU_SOURCE -o "$T/fail_at.so" tests/e2e/fail_at.c -ldl || echo 'not ok fail_at.c'
k() ( # POINT OPTIONS...
    env LD_PRELOAD="$T/fail_at.so" CALLS="$T/calls" KILL_AT="$1" "$OUNCE_RELEASE" quantize $M/llama -o "$T/k/b" --calibration "$T/cal.jsonl" --num-calibration-samples 24 --max-seq-length 48 --target-bytes 219999 "${@:2}" >"$T/out" 2>"$T/err"
    exit $?
) 2>/dev/null
has() { jq -r "$1" "$T/k/b.gptq/manifest.json"; }
units='.measured | (.layers // 0) + ([.sets[]? | select(.kl != null and (.modules | test("layers.0|down_proj")))] | length)' # of layer 0 each set, of the others all together
per=4 whole=9
mkdir "$T/k" && k 0 && calls=$(cat "$T/calls") || echo 'not ok undisturbed'
ok 'undisturbed, the same bytes in another build' diff -r "$T/a" "$T/k/b"
bad= kept= n=0
for ((at = 1, found = 0; found < whole && at < 200; at++)); do
    rm -rf "$T/k" && mkdir "$T/k"
    k $at
    [ -e "$T/k/b" ] && bad+=" $at: a checkpoint;"
    found=0 said=
    if [ -e "$T/k/b.gptq/manifest.json" ]; then
        found=$(has "$units")
        said=$(has '.measured | select(.) | "the errors of \(.layers) of 3 layers and the divergences of \([.sets[] | select(.kl != null)] | length) of 12 sets of modules"')
    fi
    k 0 --resume || bad+=" $at: $(tail -1 "$T/err");"
    [ -z "$said" ] || grep -qF "$T/k/b.gptq: has $said" "$T/err" || bad+=" $at: expected $said;"
    less=$((calls - $(cat "$T/calls") - per * found)) # what was begun is not begun again; a file that was left behind is removed
    [ $less -ge -2 ] && [ $less -le 8 ] || bad+=" $at: with $found kept $less calls less;"
    diff -r "$T/a" "$T/k/b" >"$T/diff" 2>&1 || bad+=" $at: $(head -1 "$T/diff");"
    [ "$(ls -A "$T/k")" = b ] || bad+=" $at: left: $(ls -A "$T/k" | xargs);"
    [[ " $kept " = *" $found "* ]] || kept+=" $found"
done
same 'killed while it measures: what is kept is not measured again, and the bytes are the same' '' "$bad"
same 'each layer and each step of the divergences was kept once' ' 0 1 2 3 4 5 6 7 8 9' "$kept"

# What is taken up must be what was written, by the same run.
rm -rf "$T/k" && mkdir "$T/k" && k $((at - 1))
fails 'without --resume' 1 "$T/k/b.gptq: holds the work of a run that was broken off; --resume goes on with it" k 0
fails 'resumed with another target' 1 "$T/k/b.gptq: was begun with --target-bytes 219999, not 250000" k 0 --resume --target-bytes 250K
fails 'resumed without one' 1 "$T/k/b.gptq: was begun with --target-bytes 219999, not 0" $OUNCE quantize $M/llama -o "$T/k/b" --calibration "$T/cal.jsonl" --num-calibration-samples 24 --max-seq-length 48 --method gptq --scheme W4A16 --group-size 32 --resume
fails 'resumed with other text' 1 "$T/k/b.gptq: was begun with another calibration text" k 0 --resume --calibration "$T/few.jsonl"
fails 'resumed with fewer sequences' 1 "$T/k/b.gptq: was begun with --num-calibration-samples 24, not 20" k 0 --resume --num-calibration-samples 20
for o in '--method gptq' '--scheme W4A16_ASYM --group-size 32' '--ignore re:.*down_proj'; do
    fails "resumed with $o" 1 "$T/k/b.gptq: was begun with another method, least scheme or other option; give the options it was begun with" k 0 --resume $o
done
fails 'resumed with another model' 1 "$T/k/b.gptq: was begun with another model" b "$T/loud" -o "$T/k/b" --target-bytes 219999 --resume
cp -r "$T/k/b.gptq" "$T/kept"
damaged() { rm -rf "$T/k" && mkdir "$T/k" && cp -r "$T/kept" "$T/k/b.gptq" && eval "$2" || echo "not ok $1"; } # NAME COMMAND
damaged 'a number that changed' "jq '.measured.sets[3].kl *= 3' '$T/kept/manifest.json' >'$T/k/b.gptq/manifest.json'"
b $M/llama -o "$T/k/b" --target-bytes 219999 --resume >"$T/out" 2>"$T/err"
ok 'a number that changed: is said' grep -qF "warning: $T/k/b.gptq/manifest.json: measured: is not as it was written; modules are measured anew" "$T/err"
ok 'and the bytes are the same' diff -r "$T/a" "$T/k/b"
damaged 'a manifest that was cut off' "truncate -s 900 '$T/k/b.gptq/manifest.json'"
fails 'a manifest that was cut off' 1 "$T/k/b.gptq/manifest.json: " k 0 --resume
damaged 'a set too few' "jq 'del(.measured.sets[11])' '$T/kept/manifest.json' >'$T/k/b.gptq/manifest.json'"
ok 'a set too few: begins anew' k 0 --resume
ok 'and the bytes are the same, too' diff -r "$T/a" "$T/k/b"
damaged nothing :
ok 'undamaged, it goes on' b $M/llama -o "$T/k/b" --target-bytes 219999 --resume
ok 'to the same bytes' diff -r "$T/a" "$T/k/b"
same 'and nothing is left' b "$(ls -A "$T/k")"
rm -rf "$T/k" && mkdir "$T/k" && KILL_BY=2 k 11
same 'interrupted while it measures: status' 1 $?
ok 'and what is kept is named' grep -qF "interrupted; $T/k/b.gptq holds the errors of 1 of 3 layers and the divergences of 0 of 12 sets of modules: the same command with --resume goes on from there" "$T/err"
ok 'it goes on' k 0 --resume
ok 'and ends in the same bytes' diff -r "$T/a" "$T/k/b"
fails 'a checkpoint that is there, and nothing to resume' 1 "$T/k/b: exists already" k 0 --resume
same 'leaves nothing' b "$(ls -A "$T/k")"

# What is wrong in the model stays wrong: what was measured is kept, and nobody is sent to resume.
cp -r $M/llama "$T/spoilt" && poison "$T/spoilt/model.safetensors" model.norm.weight 0 '\377\377\377\377'
fails 'a norm behind the last layer that is NaN' 1 'logits are not finite at position 0 of a window; model.norm.weight[0] is not finite' b "$T/spoilt" -o "$T/nan" --target-bytes 219999
same 'what is kept is named' "warning: $T/nan.gptq keeps what was done of this model with this text" "$(grep -F "$T/nan.gptq" "$T/err")"

# Experts that no token came to are told of by the run that goes on, too.
ids 1 2 95 1 >"$T/two.jsonl"
x() ( # POINT OPTIONS...
    env LD_PRELOAD="$T/fail_at.so" CALLS="$T/calls" KILL_AT="$1" "$OUNCE_RELEASE" quantize $M/mixtral -o "$T/k/b" -q --calibration "$T/two.jsonl" --num-calibration-samples 1 --target-bytes $((least * 5 / 4)) "${@:2}" >"$T/out" 2>"$T/err"
    exit $?
) 2>/dev/null
rm -rf "$T/k" && mkdir "$T/k" && x 0 && mv "$T/k/b" "$T/starved" && grep '^warning' "$T/err" >"$T/said" || echo 'not ok experts without a token'
ok 'experts without a token: are told of' grep -q 'the calibration text gives [0-9]* modules no input other than zeros' "$T/said"
x 30
same 'killed when all errors are known' 3 "$(has .measured.layers)"
ok 'it goes on' x 0 --resume
same 'and says the same' "$(cat "$T/said")" "$(grep '^warning' "$T/err")"
ok 'of the same bytes' diff -r "$T/starved" "$T/k/b"
