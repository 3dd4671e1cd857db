# Running as a user does: greedy continuations, ids in and out, stop, bad requests, memory, and quantized twins of the golden models.
. tests/lib.sh
M=tests/golden/models/llama


seq 10 29 | tr '\n' ' ' >"$T/ids"
"$OUNCE" run $M --ids "$T/ids" -n 24 --ignore-eos --print-ids -q >"$T/a"
same "as many ids as asked for" 24 "$(wc -w <"$T/a")"
"$OUNCE" run $M --ids "$T/ids" -n 24 --ignore-eos --print-ids -q -t 1 --cpu-level ref >"$T/b"
same "plain C and one thread give the same greedy ids" "$(cat "$T/b")" "$(cat "$T/a")"

# A continuation of a continuation is the continuation.
{ cat "$T/ids"; cut -d' ' -f1-10 "$T/a"; } >"$T/ids2"
"$OUNCE" run $M --ids "$T/ids2" -n 14 --ignore-eos --print-ids -q >"$T/c"
same "greedy ids do not depend on where prefill ends" "$(cut -d' ' -f11-24 "$T/a")" "$(cat "$T/c")"

"$OUNCE" run $M --ids "$T/ids" -n 20 --temperature 1 --seed 7 --ignore-eos --print-ids -q >"$T/s1"
"$OUNCE" run $M --ids "$T/ids" -n 20 --temperature 1 --seed 7 --ignore-eos --print-ids -q -t 1 >"$T/s2"
"$OUNCE" run $M --ids "$T/ids" -n 20 --temperature 1 --seed 8 --ignore-eos --print-ids -q >"$T/s3"
same "the same seed gives the same ids" "$(cat "$T/s1")" "$(cat "$T/s2")"
ok "another seed gives others" test "$(cat "$T/s1")" != "$(cat "$T/s3")"

for scheme in W8A8 W8A16 FP8_DYNAMIC "W4A16 --group-size 32"; do
    name=${scheme%% *}
    # shellcheck disable=SC2086
    "$OUNCE" quantize $M -o "$T/$name" --scheme $scheme -q >/dev/null
    "$OUNCE" logits "$T/$name" --ids "$T/ids" -o "$T/x.$name" -q
    "$OUNCE" logits "$T/$name" --ids "$T/ids" -o "$T/y.$name" -q -t 1
    ok "$name: logits are the same bits at 1 and 2 threads" cmp -s "$T/x.$name" "$T/y.$name"
    "$OUNCE" run "$T/$name" --ids "$T/ids" -n 8 --ignore-eos --print-ids -q >"$T/q"
    same "$name: runs" 8 "$(wc -w <"$T/q")"
done

echo "1 2 x" >"$T/bad"
"$OUNCE" run $M --ids "$T/ids" -n 24 --ignore-eos >"$T/c" 2>"$T/err"
same "ids of a model without a tokenizer are printed" "$(cat "$T/a")" "$(cat "$T/c")"
ok "and it says so" grep -qF "$M: no tokenizer.json: the new ids are printed (--print-ids)" "$T/err"
"$OUNCE" run tests/golden/gguf/llama.gguf --ids "$T/ids" -n 8 --ignore-eos >"$T/both" 2>&1
same "one with a tokenizer gives text, and the statistics are a line of their own" 1 "$(grep -c '^prompt 20 tokens' "$T/both")"
same "the last" "prompt 20 tokens" "$(tail -1 "$T/both" | cut -c-16)"
fails "an id that is none" 1 "bad: byte 4: expected a token id, found \"x\"" "$OUNCE" run $M --ids "$T/bad"
same "an id on stdin that is none" 'error: stdin: byte 2: expected a token id, found "y"' "$(echo "1 y z" | "$OUNCE" run $M --ids - -q 2>&1)"
echo "1 320" >"$T/bad"
fails "an id beyond the vocabulary" 1 "token id 320: must be 0..319" "$OUNCE" run $M --ids "$T/bad"
fails "no prompt" 2 "exactly one of" "$OUNCE" run $M
fails "two prompts" 2 "exactly one of" "$OUNCE" run $M --ids "$T/ids" -p x
fails "text without a tokenizer" 1 "tokenizer.json" "$OUNCE" run $M -p x
fails "too many new tokens" 1 "the model takes 492 more" "$OUNCE" run $M --ids "$T/ids" -n 493
fails "a prompt beyond --max-model-len" 1 "--max-model-len" "$OUNCE" run $M --ids "$T/ids" --max-model-len 16
fails "a --max-model-len that the model has not" 1 "--max-model-len: at most 512, the model's own length (max_position_embeddings), found 513" "$OUNCE" run $M --ids "$T/ids" --max-model-len 513
fails "bytes that are no text" 1 "-p: expected UTF-8, found 0xff at byte 3" "$OUNCE" run tests/golden/gguf/llama.gguf -p $'ab \xff c' -n 1
fails "half a character" 1 "-p: expected UTF-8, found 0xc3 at byte 4" "$OUNCE" run tests/golden/gguf/llama.gguf -p $'caf \xc3' -n 1
fails "in a conversation too" 1 "-p: expected UTF-8, found 0x80 at byte 0" "$OUNCE" run tests/golden/gguf/llama.gguf --chat -p $'\x80' -n 1
fails "logits to stdout" 2 "-o -: expected a file" "$OUNCE" logits $M --ids "$T/ids" -o -
ok "and no file of that name" test ! -e ./-
fails "a precision that this device lacks" 1 "--dtype bf16" "$OUNCE" run $M --ids "$T/ids" --dtype bf16 --cpu-level ref
fails "a level that does not exist" 2 "--cpu-level: expected" "$OUNCE" run $M --ids "$T/ids" --cpu-level avx9
fails "a device that does not exist" 2 'found "tpu"' "$OUNCE" run $M --ids "$T/ids" --device tpu

# Memory: at most 1.15 x the checkpoint + KV + 50 MB, on a model large enough to tell (60 MB), under every scheme.
cat >"$T/config.json" <<'J'
{"model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8,
 "num_key_value_heads": 4, "max_position_embeddings": 1024, "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "torch_dtype": "bfloat16"}
J
"$OUNCE_RELEASE" synth "$T/config.json" -o "$T/big" -q >/dev/null
kv=$((12 * 2 * 4 * 64 * 4 * 32)) # layers, k and v, heads, head_dim, bytes, positions
for scheme in "" W8A8 W8A16 FP8_DYNAMIC W4A16; do
    dir=$T/big
    if [ -n "$scheme" ]; then
        dir=$T/big-$scheme
        quantize=$("$OUNCE_RELEASE" quantize "$T/big" -o "$dir" --scheme "$scheme" --json -q | sed -n 's/.*"peak_rss_bytes": \([0-9]*\).*/\1/p')
        ok "quantizing to $scheme takes at most 200 MB + 4 x the largest tensor (took $((quantize / 1000000)) MB)" test "$quantize" -le $((200000000 + 4 * 8192 * 512 * 2))
    fi
    file=$(cat "$dir"/*.safetensors | wc -c)
    peak=$("$OUNCE_RELEASE" run "$dir" --ids "$T/ids" -n 12 --ignore-eos --json -q | sed -n 's/.*"peak_rss_bytes": \([0-9]*\).*/\1/p')
    limit=$((file * 115 / 100 + kv + 50000000))
    ok "running ${scheme:-bf16} takes at most 1.15 x the checkpoint + KV + 50 MB ($((peak / 1000000)) of $((limit / 1000000)) MB)" test "$peak" -le $limit
done
