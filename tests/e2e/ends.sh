# Ends that nobody wants: files that may not grow or are cut off, a reader that goes away, a terminal that is closed, configs and names that
# cannot be. Each is told, with status 1, and leaves nothing half-written.
. tests/lib.sh
M=tests/golden/models
nothing() { same "$1: nothing is left" '' "$(find "$T" -maxdepth 1 -name '*none*')"; }

# Types that scales cannot have.
for key in torch_dtype dtype; do
    for type in '"float64"' '"int8"' '"float8_e4m3fn"' '"half"' 16; do
        rm -rf "$T/m" && cp -r $M/llama "$T/m"
        jq "del(.torch_dtype) | .$key = $type" $M/llama/config.json >"$T/m/config.json"
        for c in "synth $T/m/config.json" "synth $T/m/config.json --scheme W8A8" "synth $T/m --split-ffn 2" "quantize $T/m --scheme W8A8"; do
            fails "${c%% *}: $key $type" 1 "config.json.$key: must be bfloat16, float16 or float32, found $type" $OUNCE $c -o "$T/none"
        done
    done
done
jq '.model_type = "mixtral" | .architectures = ["MixtralForCausalLM"] | .num_hidden_layers = 1024 | .num_local_experts = 4096 | .num_experts_per_tok = 2' $M/llama/config.json >"$T/huge.json"
fails 'synth: more experts than can be planned for' 1 'config.json: 1024 layers with 4096 experts each: at most 262144 experts' timeout 20 $OUNCE synth "$T/huge.json" -o "$T/none" --dry-run

# Names that no folder can take.
rm -rf "$T/m" && cp -r $M/llama "$T/m"
for o in . .. "$T/." "$T/m/.." /; do
    fails "-o $o --force" 1 'expected the name of a folder to make' $OUNCE quantize "$T/m" -o "$o" --scheme W8A8 --force
done
fails '-o a mount point' 1 '/proc: is where a file system is mounted, and cannot be replaced' $OUNCE quantize "$T/m" -o /proc --scheme W8A8 --force
echo 3 >"$T/file"
fails '-o below a file' 1 "$T/file/none: Not a directory" $OUNCE quantize "$T/m" -o "$T/file/none" --scheme W8A8
long=none$(printf %0300d 0)
fails '-o a name that is too long' 1 'File name too long' $OUNCE quantize "$T/m" -o "$T/$long" --scheme W8A8

# A file that may not grow.
for c in "quantize $T/m --scheme W8A8" "convert $T/m --to f32" "synth $T/m/config.json"; do
    fails "${c%% *}: a limit on file sizes" 1 'File too large' bash -c "ulimit -f 16; exec $OUNCE $c -o $T/none -q"
    nothing "${c%% *}: a limit on file sizes"
done

# A report that cannot be written: an error, which says that what was made is whole.
for c in "quantize $T/m --scheme W8A8" "convert $T/m --to f32" "synth $T/m/config.json" "synth --split-ffn 2 $T/m"; do
    for json in '' --json; do
        fails "${c%% *} $json: no room for the report" 1 "error: stdout: No space left on device; $T/whole is whole all the same" bash -c "exec $OUNCE $c -o $T/whole --force $json >/dev/full"
        ok "${c%% *} $json: and it is" $OUNCE verify "$T/whole" -q
    done
    fails "${c%% *}: no room for a dry run's" 1 'error: stdout: No space left on device' bash -c "exec $OUNCE $c -o $T/none --dry-run >/dev/full"
    ok "${c%% *}: of which nothing is said to be whole" bash -c "! grep -q whole '$T/err'"
done

# A model that is cut off while it is read.
echo '{"model_type":"llama","hidden_size":512,"intermediate_size":1536,"num_hidden_layers":24,"num_attention_heads":8,"num_key_value_heads":4,"vocab_size":320,"torch_dtype":"bfloat16","max_position_embeddings":100000}' >"$T/big.json"
for c in 'quantize --scheme W8A8' 'convert --to f32'; do
    rm -rf "$T/big" && $OUNCE_RELEASE synth "$T/big.json" -o "$T/big" -q >"$T/out" || echo 'not ok synth'
    $OUNCE ${c%% *} "$T/big" ${c#* } -o "$T/none" -t 2 >"$T/out" 2>"$T/err" &
    for i in $(seq 3000); do [ -n "$(find "$T" -maxdepth 1 -name '*none*')" ] && break; sleep 0.01; done
    truncate -s 8192 "$T/big/model.safetensors"
    wait $!
    same "${c%% *}: a model that is cut off: status" 1 $?
    ok "${c%% *}: a model that is cut off is named" grep -qE "error: ($T/big/model.safetensors|.*: cannot write: a file that its data comes from) ?(: )?cannot be read any more" "$T/err"
    nothing "${c%% *}: a model that is cut off"
done

# A reader that goes away: the command ends with it, not when it has said all (a minute or more).
rm -rf "$T/big" && $OUNCE_RELEASE synth "$T/big.json" -o "$T/big" -q >"$T/out" || echo 'not ok synth'
echo 3 4 5 >"$T/ids"
fails 'run: a reader that goes away' 1 'error: stdout: Broken pipe' timeout 60 bash -c "set -o pipefail; $OUNCE_RELEASE run $T/big --ids $T/ids -n 99000 --ignore-eos --print-ids --max-model-len 99999 | head -c 3"

# A terminal that is closed, and nohup.
for c in 'quantize --scheme W8A8' 'convert --to f32'; do
    for how in HUP TERM INT; do
        $OUNCE ${c%% *} "$T/big" ${c#* } -o "$T/none" >"$T/out" 2>"$T/err" &
        for i in $(seq 3000); do [ -n "$(find "$T" -maxdepth 1 -name '*none*')" ] && break; sleep 0.01; done
        kill -$how $!
        wait $!
        same "${c%% *}: SIG$how: status" 1 $?
        ok "${c%% *}: SIG$how is told" grep -q 'error: interrupted' "$T/err"
        nothing "${c%% *}: SIG$how"
    done
done
nohup $OUNCE quantize "$T/big" -o "$T/none" --scheme W8A8 >"$T/out" 2>"$T/err" &
for i in $(seq 3000); do [ -n "$(find "$T" -maxdepth 1 -name '*none*')" ] && break; sleep 0.01; done
kill -HUP $!
wait $!
same 'nohup: goes on' 0 $?
