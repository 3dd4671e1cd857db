# ounce quantize --method gptq: its input, its result, its bytes whatever the threads and however often it is killed, its memory.
. tests/lib.sh
M=tests/golden/models

ids 48 64 320 1 >"$T/cal.jsonl"
ids 48 64 320 2 >"$T/other.jsonl"
ids 8 64 280 3 >"$T/few.jsonl"
ids 512 64 320 4 >"$T/long.jsonl"
ids 1 600 320 5 >"$T/600.jsonl"
json() { jq -rc "$2" "$1"; } # FILE FILTER
G=($OUNCE quantize $M/llama -q --scheme W4A16 --group-size 32 --method gptq --calibration "$T/cal.jsonl" --num-calibration-samples 48 --max-seq-length 64)
g() { "${G[@]}" "$@"; } # in the background the command itself, not the function: $! is then its own

fails 'no calibration' 2 '--calibration: GPTQ needs text' $OUNCE quantize $M/llama -o "$T/o" --scheme W4A16 --group-size 32 --method gptq
fails 'calibration for nothing' 2 '--calibration: --method rtn with --scheme W4A16 takes no calibration text' $OUNCE quantize $M/llama -o "$T/o" --scheme W4A16 --group-size 32 --calibration "$T/cal.jsonl"
fails 'nothing to resume' 2 '--resume: --method rtn with --scheme W4A16 takes no calibration text' $OUNCE quantize $M/llama -o "$T/o" --scheme W4A16 --group-size 32 --resume
fails 'too few sequences' 1 'cal.jsonl: 48 sequences, and --num-calibration-samples is 49' g -o "$T/o" --num-calibration-samples 49
printf 'ab\377c' >"$T/bytes.txt"
cp "$T/cal.jsonl" "$T/lines.json"
printf '{"ids":[1,2\0]}\n' >"$T/nul.jsonl"
fails 'bytes that are no text' 1 'bytes.txt: expected plain text in UTF-8, or *.jsonl, found other bytes' g -o "$T/o" --calibration "$T/bytes.txt"
fails 'lines under a name of plain text' 1 'lines.json: its first line is a JSON object as calibration lines are, and its name says plain text; call it *.jsonl' g -o "$T/o" --calibration "$T/lines.json"
fails 'a NUL in a line' 1 'line 1: a NUL byte' g -o "$T/o" --calibration "$T/nul.jsonl" --num-calibration-samples 1
mkdir "$T/full" && cp $M/llama/config.json "$T/cal.jsonl" "$T/full"
fails 'calibration in the folder that is replaced' 1 '/full, and --force would delete it' g -o "$T/full" --force --calibration "$T/full/cal.jsonl"
ln -s "$T/full" "$T/linked.gptq"
fails 'a work folder that is a link' 1 'linked.gptq: the work would go there, and it is a symbolic link' g -o "$T/linked"
fails 'text without a tokenizer' 1 "needs the model's tokenizer.json" g -o "$T/o" --calibration README.md
echo '{"ids":[5,320]}' >"$T/bad.jsonl"
fails 'an id beyond the vocabulary' 1 'bad.jsonl: sequence 1: token id 320' g -o "$T/o" --calibration "$T/bad.jsonl" --num-calibration-samples 1
echo '{"ids":[5,"x"]}' >"$T/bad.jsonl"
fails 'a line that is none' 1 'bad.jsonl: line 1: ids[1]: must be a token id' g -o "$T/o" --calibration "$T/bad.jsonl" --num-calibration-samples 1
fails 'sequences longer than the model' 1 '--max-seq-length: the model takes 512 tokens, and the calibration has sequences of 600' \
    g -o "$T/o" --calibration "$T/600.jsonl" --num-calibration-samples 1 --max-seq-length 600
echo '{"text":"x"}' >"$T/bad.jsonl"
fails 'a line of text without a tokenizer' 1 "error: $T/bad.jsonl: line 1: text needs the model's tokenizer.json" g -o "$T/o" --calibration "$T/bad.jsonl" --num-calibration-samples 1
fails 'groups that no kernel runs' 1 'model.layers.0.self_attn.q_proj (scheme W4A16): no kernel gemm_i4_f32 for groups of 4 columns: expected a multiple of' g -o "$T/o" --group-size 4
fails 'the head' 1 'lm_head: scheme W4A16: GPTQ quantizes what is in layers' g -o "$T/o" --targets Linear --targets lm_head
echo '{"ids":[5,6}' >"$T/bad.jsonl"
fails 'a line that is no JSON' 1 "bad.jsonl: line 1: column 12: " g -o "$T/o" --calibration "$T/bad.jsonl" --num-calibration-samples 1
fails 'a dry run: too few sequences' 1 'cal.jsonl: 48 sequences' g --dry-run --num-calibration-samples 49
fails 'a dry run: no tokenizer' 1 "needs the model's tokenizer.json" g --dry-run --calibration README.md
fails 'a dry run: no file' 1 "$T/none.jsonl: No such file" g --dry-run --calibration "$T/none.jsonl"
fails 'a dry run: too long' 1 'the calibration has sequences of 600' g --dry-run --calibration "$T/600.jsonl" --num-calibration-samples 1 --max-seq-length 600
fails 'a dry run without text' 2 '--calibration: GPTQ needs text' $OUNCE quantize $M/llama --scheme W4A16 --group-size 32 --method gptq --dry-run
ok 'a dry run of what is right' g --dry-run >"$T/out"
g --dry-run --num-calibration-samples 2 >"$T/out" 2>"$T/err"
same 'fewer tokens than columns: a line for all' 'warning: cal.jsonl: 128 tokens, fewer than the columns of ffn_down (256): the result' "$(cut -d" " -f-13 "$T/err")"
ok 'nothing was written' test ! -e "$T/o" -a ! -e "$T/o.gptq"

: >"$T/empty.jsonl"
fails 'an empty calibration' 1 'empty.jsonl: 0 sequences: there is no line in it' g -o "$T/o" --calibration "$T/empty.jsonl" --num-calibration-samples 1
echo '{"ids":[]}' >"$T/none.jsonl"
fails 'an empty sequence' 1 'none.jsonl: line 1: no tokens' g -o "$T/o" --calibration "$T/none.jsonl" --num-calibration-samples 1
at() { jq -r --arg n "$1" '.[$n].data_offsets[0]' <<<"$head"; } # of a tensor in the file whose header is $head, of $n bytes
spoil() { # TENSOR BYTES: llama in $T/spoilt, the tensor's first bytes replaced
    rm -rf "$T/spoilt" && cp -r $M/llama "$T/spoilt"
    n=$(od -An -tu8 -N8 "$T/spoilt/model.safetensors") && head=$(tail -c +9 "$T/spoilt/model.safetensors" | head -c $n)
    printf "$2" | dd of="$T/spoilt/model.safetensors" bs=1 seek=$((8 + n + $(at "$1"))) conv=notrunc status=none
}
spoil model.layers.1.mlp.up_proj.weight '\377\377\377\377'
fails 'a weight that is NaN' 1 'model.layers.1.mlp.up_proj.weight: row 0: column 0: expected a finite weight, found' $OUNCE quantize "$T/spoilt" "${G[@]:3}" -o "$T/o"
fails 'with another that is kept' 1 'model.layers.2.self_attn.q_proj: the calibration text gives activations that are not finite' $OUNCE quantize "$T/spoilt" "${G[@]:3}" -o "$T/o" --ignore 're:.*layers.1.mlp'
same 'what is kept is named, and nobody is sent to resume what cannot end' "warning: $T/o.gptq keeps what was done of this model with this text" "$(grep -F "$T/o.gptq" "$T/err")"
ok 'nothing is left but what --resume takes up' test ! -e "$T/o" -a -e "$T/o.gptq/manifest.json"
rm -rf "$T/o.gptq"
spoil model.layers.1.post_attention_layernorm.weight '\377\377\377\377'
fails 'a norm that is NaN' 1 'model.layers.1.post_attention_layernorm.weight: expected finite values, found' $OUNCE quantize "$T/spoilt" "${G[@]:3}" -o "$T/o"
ok 'where nothing behind it is quantized it is kept, with a warning' $OUNCE quantize "$T/spoilt" "${G[@]:3}" -o "$T/o" --targets 're:.*layers.0.' >"$T/out" 2>"$T/err"
ok 'which names it' grep -q '^warning: model.layers.1.post_attention_layernorm.weight: expected finite values' "$T/err"
rm -rf "$T/o"
$OUNCE convert $M/llama -o "$T/f32" --to f32 -q >"$T/out" && poison "$T/f32/model.safetensors" model.layers.2.mlp.down_proj.weight $((4 * (2 * 256 + 255))) '\0\0\200\377'
fails 'an infinity of 32 bits' 1 'model.layers.2.mlp.down_proj.weight: row 2: column 255: expected a finite weight, found -inf (model.safetensors)' $OUNCE quantize "$T/f32" "${G[@]:3}" -o "$T/o"
ok 'nothing is left' test ! -e "$T/o" -a ! -e "$T/o.gptq"


# The result.
g -o "$T/a" -t 1 --json >"$T/a.json" || echo 'not ok gptq'
same '21 modules, each with less error than rounding to nearest' '[21,true]' "$(json "$T/a.json" '[(.errors | length), ([.errors[] | 0 < .after and .after < .before] | all)]')"
same 'the recipe' 'gptq W4A16 32 cal.jsonl 48 3072' "$(json "$T/a/ounce_recipe.json" '[.method, .scheme, .group_size, .calibration.file, .calibration.sequences, .calibration.tokens | tostring] | join(" ")')"
same 'and its parameters' '["static",128,0.01,"searched"]' "$(json "$T/a/ounce_recipe.json" '.parameters | [.actorder, .block_size, .dampening_frac, .scales]')"
same 'names the calibration text' "$(sha256sum <"$T/cal.jsonl" | cut -c-64)" "$(json "$T/a/ounce_recipe.json" .calibration.sha256)"
ok 'no work is left' test ! -e "$T/a.gptq"
seq 3 40 >"$T/ids"
ok 'it runs' $OUNCE logits "$T/a" --ids "$T/ids" -o "$T/logits.safetensors" -q
spoil model.layers.0.input_layernorm.weight '\0\0\0\0'
$OUNCE quantize "$T/spoilt" "${G[@]:3}" -o "$T/dead" --json >"$T/r.json" || echo 'not ok a channel that is always zero'
same 'a channel that is always zero: less error' true "$(json "$T/r.json" '[.errors[] | .after < .before] | all')"
ok 'and finite scales' $OUNCE verify "$T/dead" -q
echo '{"ids":[5]}' >"$T/one.jsonl"
$OUNCE quantize $M/llama "${G[@]:3}" -o "$T/one" --calibration "$T/one.jsonl" --num-calibration-samples 1 --json >"$T/r.json" 2>"$T/err" || echo 'not ok one token'
same 'one token: a warning' 'warning: one.jsonl: 1 tokens, fewer than the columns of attn_q (96)' "$(cut -d, -f-2 "$T/err")"
ok 'one token: finite scales' $OUNCE verify "$T/one" -q
for t in 2 3; do
    g -o "$T/b" -t $t --force >"$T/out" || echo "not ok $t threads"
    ok "the same bytes with $t threads" diff -r "$T/a" "$T/b"
done

# Killed again and again, each time a little later: --resume ends in the same bytes.
rm -rf "$T/b"
kills=0
for ms in 020 040 060 080 100 120 150 200 300 400 500 600 800 1000 1200 1500; do
    "${G[@]}" -o "$T/b" -t 2 --resume >"$T/out" 2>"$T/err" &
    sleep "$((10#$ms / 1000)).$(printf %03d $((10#$ms % 1000)))"
    kill -9 $! 2>/dev/null && kills=$((kills + 1))
    wait $! 2>/dev/null
    [ -e "$T/b" ] && break
done
[ -e "$T/b" ] || g -o "$T/b" -t 3 --resume >"$T/out" || echo 'not ok resume'
ok "killed $kills times: the same bytes" diff -r "$T/a" "$T/b"
rm -rf "$T/b.gptq"

# Between two layers.
rm -rf "$T/b"
for layer in 0 1 2; do
    "${G[@]}" -o "$T/b" --resume >"$T/out" 2>"$T/err" &
    for i in $(seq 3000); do grep -qs "\"layers_done\": $layer" "$T/b.gptq/manifest.json" && break; sleep 0.005; done
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    ok "killed after layer $layer: the work is kept" test -f "$T/b.gptq/manifest.json" -a ! -e "$T/b"
done
fails 'without --resume' 1 "$T/b.gptq: holds the work of a run that was broken off; --resume goes on with it" g -o "$T/b"
fails 'with other text' 1 "$T/b.gptq: was begun with another calibration text" g -o "$T/b" --resume --calibration "$T/other.jsonl"
fails 'with another number of samples' 1 "$T/b.gptq: was begun with --num-calibration-samples 48, not 32" g -o "$T/b" --resume --num-calibration-samples 32
fails 'with another length' 1 "$T/b.gptq: was begun with --max-seq-length 64, not 32" g -o "$T/b" --resume --max-seq-length 32
fails 'with another scheme' 1 "$T/b.gptq: was begun with another scheme or other option" g -o "$T/b" --resume --group-size 16
ok 'and goes on' g -o "$T/b" --resume >"$T/out"
ok 'to the same bytes' diff -r "$T/a" "$T/b"
fails 'an existing folder' 1 "$T/b: exists already" g -o "$T/b"

# Interrupted by the user: what --resume takes up is kept, and named.
rm -rf "$T/b"
"${G[@]}" -o "$T/b" >"$T/out" 2>"$T/err" &
for i in $(seq 3000); do grep -qs '"layers_done": 0' "$T/b.gptq/manifest.json" && break; sleep 0.005; done
kill -INT $!
wait $!
same 'interrupted: status' 1 $?
ok 'interrupted: says how to go on' grep -q "interrupted; $T/b.gptq holds . of 3 layers: the same command with --resume goes on" "$T/err"
g -o "$T/b" --resume >"$T/out"
ok 'interrupted and resumed: the same bytes' diff -r "$T/a" "$T/b"

# Two at once: the second one is told, and the first is not disturbed. It is stopped meanwhile, so that it is surely at work.
rm -rf "$T/b"
"${G[@]}" -o "$T/b" >"$T/out" 2>"$T/first" &
first=$!
for i in $(seq 3000); do grep -qs '"layers_done": 0' "$T/b.gptq/manifest.json" && break; sleep 0.005; done
kill -STOP $first
for how in '' --resume --force; do
    fails "another process at work${how:+: $how}" 1 "$T/b.gptq: another process (pid $first) is at work in it" g -o "$T/b" $how
done
mkdir "$T/b"
kill -CONT $first
wait $first
same 'a folder that appears meanwhile: status' 1 $?
ok 'and what to do' grep -qF "$T/b: appeared while this ran, and was left alone; move it away, or --force replaces it" "$T/first"
rmdir "$T/b"
ok 'which was done' g -o "$T/b" --resume >"$T/out"
ok 'and gives the same bytes' diff -r "$T/a" "$T/b"

# What is taken up must be what was written: another model, and damage of every kind, are found.
rm -rf "$T/b"
"${G[@]}" -o "$T/b" >"$T/out" 2>&1 &
for i in $(seq 3000); do grep -qs '"layers_done": [12]' "$T/b.gptq/manifest.json" && break; sleep 0.005; done
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
cp -r "$T/b.gptq" "$T/kept"
done=$(json "$T/kept/manifest.json" .layers_done) size=$(wc -c <"$T/kept/out/model.safetensors")
cp -r $M/llama "$T/llama"
flip() { printf '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; } # FILE OFFSET
flip "$T/llama/model.safetensors" $(($(wc -c <"$T/llama/model.safetensors") - 5))
fails 'resumed with another model of the same shapes' 1 "$T/b.gptq: was begun with another model" $OUNCE quantize "$T/llama" "${G[@]:3}" -o "$T/b" --resume
damaged() { # NAME TEXT COMMAND...: the command spoils w, a copy of the work
    rm -rf "$T/b.gptq" && cp -r "$T/kept" "$T/b.gptq"
    (cd "$T/b.gptq" && eval "$3")
    fails "resumed with $1" 1 "$2" g -o "$T/b" --resume
    same "resumed with $1: one line, that it cannot" 1 "$(wc -l <"$T/err")"
    ok "resumed with $1: no checkpoint, and the work is left as it is" test ! -e "$T/b" -a -e "$T/b.gptq/manifest.json"
}
damaged 'no weights' "$T/b.gptq cannot be taken up, remove it to begin anew: $T/b.gptq/out/model.safetensors: cannot open: No such file" 'rm out/model.safetensors'
damaged 'weights that were cut off' "$T/b.gptq/out/model.safetensors: expected $size bytes, found 9000" 'truncate -s 9000 out/model.safetensors'
damaged 'weights of zeros' "$T/b.gptq/out/model.safetensors: its header is not the one that was written" "truncate -s 0 out/model.safetensors; truncate -s $size out/model.safetensors"
n=$(od -An -tu8 -N8 "$T/kept/out/model.safetensors") && head=$(tail -c +9 "$T/kept/out/model.safetensors" | head -c $n)
damaged 'a code that changed' "$T/b.gptq/out: layer 0 is not as it was written" "flip out/model.safetensors $((8 + n + $(at model.layers.0.mlp.up_proj.weight_packed)))"
damaged 'a norm that changed' "$T/b.gptq/out: what is not quantized is not as it was written" "flip out/model.safetensors $((8 + n + $(at model.norm.weight)))"
damaged 'another config' "$T/b.gptq/out/config.json: is not as it was written" 'echo >>out/config.json'
damaged 'another recipe' "$T/b.gptq/out/ounce_recipe.json: is not as it was written" 'rm out/ounce_recipe.json'
damaged 'a file of another' "$T/b.gptq/out/tokenizer.json: is not of this run" 'echo {} >out/tokenizer.json'
damaged 'other inputs of a layer' "$T/b.gptq/residual-$done: is not as it was written" "flip residual-$done 77"
damaged 'more layers than are proven' "manifest.json: layers_done: expected $done, the number of digests in layers, and at most 3, found 3" \
    "sed -i 's/\"layers_done\": [12]/\"layers_done\": 3/' manifest.json"
rm -rf "$T/b.gptq" && cp -r "$T/kept" "$T/b.gptq" && touch "$T/b.gptq/.manifest.json.tmp-1-0" "$T/b.gptq/residual-9.new"
ok 'undamaged, it goes on' g -o "$T/b" --resume >"$T/out"
ok 'and gives the same bytes' diff -r "$T/a" "$T/b"
ok 'nothing else is left' test ! -e "$T/b.gptq"

# What the system refuses from the start: the reason is its own, and what is left is nothing that the next run would stumble over, or is told of.
same 'a file that may not grow' "error: $T/scarce.gptq/lock: cannot write: File too large" "$(prlimit --fsize=1 "${G[@]}" -o "$T/scarce" 2>&1)"
ok 'nothing is left' test ! -e "$T/scarce.gptq"
bad= scarce=0
for ((n = 4; n < 32; n++)); do
    (exec 3>&-; ulimit -n $n; G[0]=$OUNCE_RELEASE; g -o "$T/scarce") >"$T/out" 2>"$T/err"
    status=$?
    [ $status = 0 ] && break
    [ $status = 1 ] || continue # nor is it loaded
    scarce=$((scarce + 1))
    grep -q "^error: $T/scarce.gptq.*: Too many open files" "$T/err" || bad+=" $n: said $(tail -1 "$T/err");"
    [ ! -e "$T/scarce.gptq" ] || grep -qF "warning: $T/scarce.gptq: holds nothing of use, and could not be removed: $T/scarce.gptq: cannot read: Too many open files" "$T/err" || bad+=" $n: left $(ls "$T/scarce.gptq" | xargs);"
done
same 'too few descriptors' '' "$bad"
ok "they were ($scarce)" test $scarce -gt 1
mkdir "$T/d.gptq" && touch "$T/d.gptq/mine"
fails 'a folder of another at the place of the work' 1 "$T/d.gptq: the work would go there, and it holds something else (mine); choose another name" g -o "$T/d"
same 'which is left alone' mine "$(ls -A "$T/d.gptq")"
cp -r $M/llama "$T/e.gptq" && rm -rf "$T/e.gptq/golden" && before=$(ls -A "$T/e.gptq")
fails 'the model itself at the place of the work' 1 "$T/e.gptq: the work would go there, and it holds something else" $OUNCE quantize "$T/e.gptq" "${G[@]:3}" -o "$T/e"
same 'which is left alone, too' "$before" "$(ls -A "$T/e.gptq")"

# Other architectures and schemes.
for m in qwen3 llama-tied-bias mixtral; do
    for s in 'W4A16 --group-size 16' W8A16 W8A8 FP8_DYNAMIC 'W4A16_ASYM --group-size 16' 'W4A8 --group-size 16' FP8 W8A8_STATIC; do
        n=${s%% *}
        $OUNCE quantize $M/$m -o "$T/$m-$n" -q --scheme $s --method gptq --calibration "$T/few.jsonl" --num-calibration-samples 8 --max-seq-length 48 --json >"$T/r.json" || echo "not ok $m $n"
        same "$m $n: less error" true "$(json "$T/r.json" '([.errors[].after] | add) < ([.errors[].before] | add)')"
        ok "$m $n: runs" $OUNCE logits "$T/$m-$n" --ids "$T/ids" -o "$T/logits.safetensors" -q
    done
done

ids 8 48 90 3 >"$T/90.jsonl"
for m in deepseek_v2 jamba; do # latents and scans
    $OUNCE quantize $M/$m -o "$T/$m" -q --scheme W8A8 --method gptq --calibration "$T/90.jsonl" --num-calibration-samples 8 --max-seq-length 48 --json >"$T/r.json" || echo "not ok $m"
    same "$m W8A8: less error" true "$(json "$T/r.json" '([.errors[].after] | add) < ([.errors[].before] | add)')"
done

# Experts that no token, or few tokens, reach: said once, and not reported as good.
$OUNCE quantize $M/mixtral -o "$T/few" --scheme W8A16 --method gptq --calibration "$T/few.jsonl" --num-calibration-samples 1 --max-seq-length 2 --json >"$T/r.json" 2>"$T/err"
n=$(json "$T/r.json" '[.errors[] | select(.tokens == 0)] | length')
ok 'experts without a token: some' test "$n" -gt 0
same 'have no error' '[null,null]' "$(json "$T/r.json" '[.errors[] | select(.tokens == 0) | [.before, .after]] | unique[]')"
same 'are named by a line' 1 "$(grep -c "^warning: no token of the calibration text reached $n modules, the first model.layers" "$T/err")"
same 'each says so' "$n" "$(grep -c 'gives it no input: each weight is rounded by itself' "$T/err")"
same 'nothing has an error of 0' 0 "$(grep -c 'of rounding to nearest 0$' "$T/err")"
same 'and two warnings in all' 2 "$(grep -c '^warning' "$T/err")"

# Text: plain, and as lines.
cat >"$T/config.json" <<'JSON'
{"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":49152,"torch_dtype":"bfloat16","tie_word_embeddings":true}
JSON
$OUNCE synth "$T/config.json" -o "$T/m" -q >"$T/out" && cp tests/golden/tokenizers/smollm2/*.json "$T/m"
t() { $OUNCE quantize "$T/m" -o "$T/t" --force -q --scheme W8A16 --method gptq --max-seq-length 32 "$@"; }
fails 'too few tokens' 1 'tokens, and 1000 samples of 32 take 32000' t --calibration LICENSE --num-calibration-samples 1000
t --calibration README.md --num-calibration-samples 6 >"$T/out" || echo 'not ok text'
same 'plain text' '6 192' "$(json "$T/t/ounce_recipe.json" '.calibration | "\(.sequences) \(.tokens)"')"
echo '{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}' >"$T/m/chat_template.jinja"
printf '%s\n' '{"text":"One line of text."}' '' '{"messages":[{"role":"user","content":"What is it?"},{"role":"assistant","content":"A line."}]}' '{"ids":[1,2,3]}' >"$T/mixed.jsonl"
t --calibration "$T/mixed.jsonl" --num-calibration-samples 3 >"$T/out" || echo 'not ok lines'
want=$(($($OUNCE tokenize "$T/m" <<<'One line of text.' | wc -w) - 1 + $(printf '<|im_start|>user: What is it?<|im_end|><|im_start|>assistant: A line.<|im_end|>' | $OUNCE tokenize "$T/m" | wc -w) + 3))
same 'lines: tokens' "$want" "$(json "$T/t/ounce_recipe.json" .calibration.tokens)"

# Memory grows neither with the layers nor with the sequences.
config() { echo '{"model_type":"llama","hidden_size":256,"intermediate_size":768,"num_hidden_layers":'$1',"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":320,"torch_dtype":"bfloat16"}'; }
for n in 1 6; do
    config $n >"$T/config.json"
    $OUNCE_RELEASE synth "$T/config.json" -o "$T/s$n" -q >"$T/out"
done
ids 16 64 320 6 >"$T/blocks.jsonl"
$OUNCE quantize "$T/s1" -o "$T/blocks" -q --scheme FP8_BLOCK --method gptq --calibration "$T/blocks.jsonl" --num-calibration-samples 16 --max-seq-length 64 --json >"$T/r.json" || echo 'not ok FP8_BLOCK'
same 'blocks, whose scales are those of rounding to nearest: less error' true "$(json "$T/r.json" '[.errors[] | .after < .before] | all')"
rss() { # MODEL SEQUENCES
    $OUNCE_RELEASE quantize "$T/$1" -o "$T/$1-$2" -q --scheme W4A16 --group-size 64 --method gptq --calibration "$T/long.jsonl" --num-calibration-samples $2 --max-seq-length 64 --json >"$T/r.json"
    json "$T/r.json" '.peak_rss_bytes / 1048576 | floor'
}
small=$(rss s1 16) large=$(rss s6 512)
ok "peak memory of 6 layers and 512 sequences $large MB, of 1 and 16 $small MB" test "$large" -le $((small + 8))
