# The command line itself: help, versions, mistakes, a stdout that cannot be written.
. tests/lib.sh

same 'version' 'ounce 0.1.0' "$($OUNCE --version)"
same 'help names the commands' 'usage: ounce COMMAND [options]' "$($OUNCE --help | head -1)"
same 'help is help' "$($OUNCE --help)" "$($OUNCE help)"
fails 'no command' 2 'usage: ounce COMMAND' $OUNCE
fails 'unknown command' 2 'error: frobnicate: no such command (ounce --help lists them)' $OUNCE frobnicate
fails 'nothing like a command' 2 'error: -x: no such command (ounce --help lists them)' $OUNCE -x
fails 'help of an unknown command' 2 'no such command' $OUNCE help frobnicate
fails 'full disk' 1 'error: stdout: No space left on device' sh -c "$OUNCE --help >/dev/full"
fails 'closed pipe' 1 'error: stdout: Broken pipe' bash -c "set -o pipefail; (sleep 0.3; $OUNCE --help) | true"
same 'no colours without a terminal' '' "$($OUNCE frobnicate 2>&1 | grep "$(printf '\033')")"

for c in $($OUNCE --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    same "$c: usage" "usage: ounce $c" "$($OUNCE $c --help | head -1 | cut -d' ' -f1-3)"
    same "$c: help is help" "$($OUNCE $c --help)" "$($OUNCE help $c)"
    fails "$c: unknown option" 2 'error: --no-such-option: no such option' $OUNCE $c --no-such-option
    fails "$c: misspelt" 2 'did you mean' $OUNCE ${c}x
done
$OUNCE man >"$T/man"
same 'the manual page has every command' "$($OUNCE --help | grep -c '^  [a-z]')" "$(grep -c '^\.SH "OUNCE ' "$T/man")"

same 'its other sections' 'NAME SYNOPSIS DESCRIPTION EXIT RANKS FILES EXAMPLES' "$(sed -n 's/^\.SH "\?\([A-Z]*\).*/\1/p' "$T/man" | grep -v OUNCE | tr '\n' ' ' | sed 's/ $//')"
same 'commands that take ranks say so' 'run logits ppl kl ' "$(for c in $($OUNCE --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do $OUNCE $c --help | grep -q "mpirun -np N ounce $c" && printf '%s ' $c; done)"
grep -q '^run|logits|ppl|kl \.\.\.$' "$T/man" || echo 'not ok the manual page lists them'
if command -v groff >/dev/null; then same 'groff has no complaint' '' "$(groff -man -ww -Tutf8 "$T/man" 2>&1 >/dev/null)"; fi

# What is there stays there: --force takes neither the input, nor what no command of ours made; logits does not write over what it reads.
cp -r tests/golden/models/llama "$T/m" && rm -rf "$T/m/golden" && mkdir "$T/other" "$T/empty" && echo keep >"$T/other/diary" && echo '1 2 3' >"$T/ids" && ln -s m "$T/link"
before=$(cat "$T/m/"* | sha256sum)
for c in "convert $T/m --to f32" "quantize $T/m --scheme W8A8" "synth $T/m/config.json" "synth $T/m"; do
    n=${c%% *}
    fails "$n: onto its input" 1 "$T/m: --force would delete the model that is read" $OUNCE $c -o "$T/m" --force
    fails "$n: around its input" 1 "$T: expected a folder with a checkpoint" $OUNCE $c -o "$T" --force
    fails "$n: onto a link to its input" 1 "$T/link: --force would delete" $OUNCE $c -o "$T/link" --force
    fails "$n: onto a file" 1 "$T/ids: expected a folder with a checkpoint" $OUNCE $c -o "$T/ids" --force
    fails "$n: onto other files" 1 "$T/other: expected a folder with a checkpoint" $OUNCE $c -o "$T/other" --force
    ok "$n: onto an empty folder" $OUNCE $c -o "$T/empty" --force -q >"$T/report"
    ok "$n: onto a checkpoint" $OUNCE $c -o "$T/empty" --force -q >"$T/report"
done
# Files that are read through links lie where they lie: whole, or one of them, in a folder that --force would delete.
mkdir "$T/links" "$T/weights" && ln -s ../m/config.json ../m/model.safetensors "$T/links" && cp "$T/m/"*.json "$T/weights" && ln -s ../m/model.safetensors "$T/weights"
for c in "convert $T/MODEL --to f32" "convert $T/empty --to f32 --take Linear=$T/MODEL" "quantize $T/MODEL --scheme W8A8" "synth $T/MODEL"; do
    fails "${c%% *}: onto the files that links lead to" 1 "$T/m: --force would delete the model that is read, $T/links/" $OUNCE ${c/MODEL/links} -o "$T/m" --force
    fails "${c%% *}: onto the weights alone" 1 "$T/m: --force would delete the model that is read, $T/weights/model.safetensors" $OUNCE ${c/MODEL/weights} -o "$T/m" --force
done
ok 'through links to elsewhere' $OUNCE quantize "$T/links" --scheme W8A8 -o "$T/empty" --force -q >"$T/report"
cp tests/golden/gguf/llama.gguf "$T/g.gguf" && cp -r "$T/m" "$T/holds" && mv "$T/g.gguf" "$T/holds" && ln -s holds/g.gguf "$T/g.gguf"
fails 'convert: onto the folder that a link to a GGUF leads to' 1 "$T/holds: --force would delete the model that is read, $T/g.gguf" $OUNCE convert "$T/g.gguf" -o "$T/holds" --to f32 --force
fails 'convert: onto its GGUF' 1 'expected a folder with a checkpoint' $OUNCE convert "$T/g.gguf" -o "$T/g.gguf" --to f32 --force
fails 'logits: onto the weights' 1 'is an input of this command' $OUNCE logits "$T/m" --ids "$T/ids" -o "$T/m/model.safetensors"
fails 'logits: onto the ids' 1 'is an input of this command' $OUNCE logits "$T/m" --ids "$T/ids" -o "$T/ids"
same 'the input is as it was' "$before" "$(cat "$T/m/"* | sha256sum)"
same 'and the others' 'keep 1 2 3' "$(cat "$T/other/diary" "$T/ids" | tr '\n' ' ' | sed 's/ $//')"
cmp -s "$T/g.gguf" tests/golden/gguf/llama.gguf || echo 'not ok the GGUF is as it was'

# A pipe or a device in a checkpoint is refused, not waited for nor read for ever.
for f in config.json model.safetensors model.safetensors.index.json tokenizer.json tokenizer_config.json chat_template.jinja README; do
    for kind in pipe device; do
        rm -rf "$T/odd" && cp -r "$T/m" "$T/odd" && rm -f "$T/odd/$f"
        if [ $kind = pipe ]; then mkfifo "$T/odd/$f"; else ln -s /dev/zero "$T/odd/$f"; fi
        fails "$f is a $kind" 1 "$T/odd/$f: expected a regular file, found a $kind" timeout 20 $OUNCE quantize "$T/odd" -o "$T/none" --scheme W8A8
    done
done
mkfifo "$T/fifo"
fails 'MODEL is a pipe' 1 "$T/fifo: expected a folder with a checkpoint or a GGUF file" timeout 20 $OUNCE inspect "$T/fifo"
ok 'nothing was written' test ! -e "$T/none"

# A name that is no UTF-8 reaches JSON with U+FFFD for what is ill-formed.
odd=$(printf '%s/m\377' "$T") && cp -r "$T/m" "$odd"
for c in 'inspect --tensors' 'convert --to f32 --dry-run' 'bench -p 1 -n 1 -r 1'; do
    $OUNCE ${c%% *} "$odd" ${c#* } -o "$odd.out" --json -q >"$T/json" 2>"$T/err" || $OUNCE ${c%% *} "$odd" ${c#* } --json -q >"$T/json" 2>"$T/err"
    ok "${c%% *}: JSON of a name without UTF-8" jq -e 'has("model") or has("output")' "$T/json" >"$T/out"
done
same 'inspect: the name' "$T/m$(printf '\357\277\275')" "$($OUNCE inspect "$odd" --json -q | jq -r .model)"

# A build with CUDA on a machine without a driver says so.
if ! $OUNCE inspect "$T/m" --plan --device x 2>&1 | grep -q 'or cuda'; then echo '# built without CUDA' >&2
elif [ -e /proc/driver/nvidia/version ]; then echo '# there is a driver' >&2
else fails 'no driver' 1 'error: cuda: no NVIDIA driver on this machine' $OUNCE inspect "$T/m" --plan --device cuda; fi

# Values that were read as something else.
fails 'half a byte is not no limit' 2 '--max-shard-size' $OUNCE convert "$T/m" -o "$T/none" --to f32 --max-shard-size 0.5
fails 'a size behind a blank' 2 '--max-shard-size' $OUNCE convert "$T/m" -o "$T/none" --to f32 --max-shard-size ' -5'
fails 'a seed beyond 2^53' 2 '--seed: must be an integer, 0..9007199254740992, found 9007199254740993' $OUNCE run "$T/m" --ids "$T/ids" --seed 9007199254740993
fails 'an empty file name' 2 '--ids: its FILE is empty' $OUNCE logits "$T/m" --ids '' -o "$T/none"
fails 'an empty folder name' 2 '--output: its DIR is empty' $OUNCE convert "$T/m" -o '' --to f32
fails 'an empty model' 2 'run: argument 1 is empty' $OUNCE run '' -p x
fails 'an empty stop' 2 '--stop: the text is empty' $OUNCE run "$T/m" -p x --stop ''
fails 'half a character as a stop' 2 '--stop: must be UTF-8' $OUNCE run "$T/m" -p x --stop "$(printf '\303')"
fails 'nothing to measure' 2 'nothing to measure' $OUNCE bench "$T/m" -p 0 -n 0
fails 'more tokens than the model takes' 1 '--n-prompt 4096: the model takes 512 tokens' $OUNCE bench "$T/m" -p 4096
same 'and no ceiling was measured' '' "$(cat "$T/out")"
fails 'generated, too' 1 '--n-gen 513: the model takes 512 tokens' $OUNCE bench "$T/m" -n 513
fails 'more sequences than a call takes' 1 '--batch 4096: at most 512 sequences a call' $OUNCE bench "$T/m" -b 1,4096
fails 'a batch after nothing' 2 '--batch: expected' $OUNCE bench "$T/m" -b 1,
printf '1\0002 3' >"$T/nul"
fails 'a NUL among ids' 1 'byte 0: expected a token id' $OUNCE logits "$T/m" --ids "$T/nul" -o "$T/none"

# What is wrong inside a model is told with the model's name as it was given: two may stand on the command line.
cp -r "$T/m" "$T/cut" && head -c 7 "$T/m/model.safetensors" >"$T/cut/model.safetensors"
cp -r "$T/m" "$T/config" && jq '.num_hidden_layers = 0' "$T/m/config.json" >"$T/config/config.json"
for c in 'run --ids IDS' 'logits --ids IDS -o NONE' 'bench -p 1 -n 1 -r 1' 'kl --text IDS MODEL' 'convert -o NONE --to f32' 'quantize -o NONE --scheme W8A8' 'synth --split-ffn 2 -o NONE'; do
    args=$(echo "${c#* }" | sed "s,IDS,$T/ids,; s,NONE,$T/none,; s,MODEL,$T/m,")
    for m in "$T/cut" "$T/cut/"; do fails "${c%% *}: $m" 1 "error: $m: model.safetensors: 7 bytes, too short" $OUNCE ${c%% *} "$m" $args; done
    [[ $c == @(kl|convert)* ]] || fails "${c%% *}: a bad config" 1 "error: $T/config: config.json.num_hidden_layers: must be 1..1024, found 0" $OUNCE ${c%% *} "$T/config" $args
done
fails 'kl: the second model' 1 "error: $T/cut: model.safetensors: 7 bytes" $OUNCE kl tests/golden/gguf/llama.gguf "$T/cut" --text "$T/ids"
mkdir "$T/text" && echo '{"chat_template":5}' >"$T/text/tokenizer_config.json" && echo '{}' >"$T/text/tokenizer.json"
for c in tokenize detokenize template; do fails "$c: a bad file" 1 "error: $T/text: tokenizer_config.json: chat_template: must be a string or an array" $OUNCE $c "$T/text"; done
echo '{}' >"$T/text/tokenizer_config.json" && printf '{{ bad' >"$T/text/chat_template.jinja"
fails 'template: a bad template' 1 "error: $T/text: chat template, line 1: expected" $OUNCE template "$T/text"
for c in "ppl --text $T" "quantize -o $T/none --scheme W4A16 --group-size 16 --method gptq --calibration $T"; do
    fails "${c%% *}: a folder as a text" 1 "$T: Is a directory" $OUNCE ${c%% *} "$T/m" ${c#* }
    ok "${c%% *}: and no memory is lost" bash -c '! grep -q LeakSanitizer "$1"' _ "$T/err"
done

# What a file says does not speak to the terminal.
cp -r "$T/m" "$T/esc" && jq '.model_type = "\u001b[31mred\nerror: x"' "$T/m/config.json" >"$T/esc/config.json"
fails 'an escape sequence in a file' 1 'model_type: "\x1b[31mred\x0aerror: x" is not run here' $OUNCE run "$T/esc" --ids "$T/ids"
