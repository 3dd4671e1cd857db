# Measuring on the command line: what a text that is too short for some of it gives.
. tests/lib.sh

G=tests/golden/gguf/llama.gguf
printf 'hello world, this is a text. %.0s' {1..4} >"$T/short" # 112 tokens

"$OUNCE" ppl $G --text "$T/short" --convention all --ctx 64 --json -q -t 1 >"$T/json" 2>"$T/err"
same 'ppl all: which fit' 'hf gptq lm-eval' "$(jq -r 'map(.convention) | join(" ")' "$T/json")"
ok 'ppl all: which did not, and why' grep -qF 'warning: llamacpp: the text has 112 tokens: convention llamacpp with --ctx 64 needs at least 128' "$T/err"
ok 'ppl: the shortest window' "$OUNCE" ppl $G --text "$T/short" --ctx 4 --limit-tokens 8 -t 1 -q
fails 'ppl: a shorter one' 2 '--ctx: must be an integer, 4..' "$OUNCE" ppl $G --text "$T/short" --ctx 3
fails 'ppl: one longer than the model' 1 "--ctx 99999: must be 4..128, the model's length" "$OUNCE" ppl $G --text "$T/short" --ctx 99999
fails 'ppl: one that does not fit' 1 'convention llamacpp' "$OUNCE" ppl $G --text "$T/short" --convention llamacpp --ctx 64 -t 1
"$OUNCE" kl $G $G --text "$T/short" --json -q -t 1 >"$T/json" 2>"$T/err"
ok 'kl: says that its window is short' grep -qF 'warning: the text has 112 tokens, less than --ctx' "$T/err"
$OUNCE convert $G -o "$T/f32" --to f32 -q >"$T/out" && $OUNCE convert $G -o "$T/bf16" --to bf16 -q >"$T/out"
$OUNCE kl "$T/f32" "$T/bf16" --text "$T/short" -q -t 1 >"$T/out" 2>"$T/err"
ok 'kl: small numbers keep their digits' grep -qE 'mean KL +0\.0000[1-9][0-9] \+/- [1-9][.0-9]*e-0[0-9] nats' "$T/out"
same 'kl: of a model to itself' '0 111' "$(jq -r '"\(.[0].mean_kl) \(.[0].positions)"' "$T/json")"
printf 'HE HAS 12, AND 7!\n\n%.0s' {1..6} >"$T/kinds"
$OUNCE kl "$T/f32" "$T/bf16" --text "$T/kinds" --json -q -t 1 >"$T/json" 2>"$T/err"
same 'kl: positions by the next token and by place add up' 'true true' "$(jq -r '.[0] | . as $k | [.by_class, .by_position] | map((map(.positions) | add == $k.positions) and (map(.positions * .mean_kl) | add / $k.positions / $k.mean_kl - 1 | fabs < 1e-9)) | join(" ")' "$T/json")"
same 'kl: how it was measured' "[\"$T/f32\",\"$T/bf16\",\"$T/kinds\",114,\"all\",\"f32\"]" "$($OUNCE kl "$T/f32" "$T/bf16" --text "$T/kinds" --dtype f32 --json -q -t 1 2>"$T/err" | jq -c '.[0] | [.reference, .model, .text, .ctx, .score, .dtype]')"
same 'kl: kinds of tokens' 'continuation 47 digit 18 newline 12 other 24 punctuation 12' "$(jq -r '.[0].by_class | sort_by(.class) | map("\(.class) \(.positions)") | join(" ")' "$T/json")"
same 'kl: spans double' '0-0 1-1 2-3 4-7 8-15 16-31 32-63 64-127' "$(jq -r '.[0].by_position | map("\(.from)-\(.to)") | join(" ")' "$T/json")"

# The text is encoded once, by the reference's tokenizer.
$OUNCE kl "$T/f32" "$T/bf16" --text "$T/short" --json -q -t 1 >"$T/json" 2>"$T/err"
ok 'kl: tokenizers that are one are no matter' bash -c '! grep -q tokenizer "$1"' - "$T/err"
cp -r "$T/bf16" "$T/bare" && rm "$T"/bare/tokenizer*
$OUNCE kl "$T/f32" "$T/bare" --text "$T/short" --json -q -t 1 >"$T/bare.json" 2>"$T/err"
same 'kl: a model without one has the same figures' "$(jq -c '.[0].model = ""' "$T/json")" "$(jq -c '.[0].model = ""' "$T/bare.json")"
ok 'kl: and that is not worth a word' bash -c '! grep -q tokenizer "$1"' - "$T/err"
for c in "kl $T/bare $T/bf16" "ppl $T/bare"; do
    fails "${c%% *}: the one that encodes has no tokenizer" 1 "error: $T/bare: no tokenizer.json, nor a vocabulary in its place (tokenizer.model, *.tiktoken): text needs one" $OUNCE $c --text "$T/short" -q -t 1
done
cp -r "$T/bf16" "$T/other"
other() { jq -c "$1" "$T/bf16/tokenizer.json" >"$T/other/tokenizer.json" && $OUNCE kl "$T/f32" "$T/other" --text "$T/short" --json -q -t 1 "${@:2}" >"$T/other.json" 2>"$T/err"; }
other '.padding = {strategy: "BatchLongest", direction: "Right", pad_to_multiple_of: null, pad_id: 0, pad_type_id: 0, pad_token: "x"}'
ok 'kl: what is only written otherwise is no matter' bash -c '! grep -q tokenizer "$1"' - "$T/err"
other '.model.merges = [] | .model.ignore_merges = false'
ok 'kl: a tokenizer that makes other ids is a warning' grep -q "^warning: $T/other: its own tokenizer makes other ids of this text, from token [0-9]* on: it is measured on those of $T/f32" "$T/err"
same 'kl: and the figures are those of the reference' "$(jq -c '.[0].model = ""' "$T/json")" "$(jq -c '.[0].model = ""' "$T/other.json")"
other '.model.merges = []' --by-module
ok 'kl --by-module: so is one there' grep -q "^warning: $T/other: its own tokenizer makes other ids" "$T/err"
echo '{}' >"$T/other/tokenizer.json"
ok 'kl: one that is broken' $OUNCE kl "$T/f32" "$T/other" --text "$T/short" -q -t 1 >"$T/out" 2>"$T/err"
ok 'kl: is a warning, too' grep -q "^warning: $T/other: tokenizer.json.*; it is measured on the ids of $T/f32" "$T/err"

# lm-eval counts the words and bytes of whole documents: where a limit ends inside one, no number of them is given.
printf ' = One = \n\nhello world, this is a text.\n' >"$T/one"
{ cat "$T/one" && printf ' = Two = \n\nmore of it \n'; } >"$T/two"
lm_eval() { "$OUNCE" ppl $G --text "$1" --convention lm-eval --json -q -t 1 --limit-tokens "$2" | jq -c ".[0] | $3"; }
first=$(lm_eval "$T/one" 0 .tokens)
counts='[.documents, .words, .bytes, (.word_perplexity | type), (.byte_perplexity | type), (.bits_per_byte | type)]'
same 'lm-eval: both documents' '[2,19,63,"number","number","number"]' "$(lm_eval "$T/two" 0 "$counts")"
same 'lm-eval: a limit at the end of the first' '[1,11,40,"number","number","number"]' "$(lm_eval "$T/two" $first "$counts")"
same 'lm-eval: which is the first alone' "$(lm_eval "$T/one" 0 .word_perplexity)" "$(lm_eval "$T/two" $first .word_perplexity)"
same 'lm-eval: a limit inside the first' '[1,null,null,"null","null","null"]' "$(lm_eval "$T/two" $((first - 1)) "$counts")"
same 'lm-eval: a limit inside the second' '[2,null,null,"null","null","null"]' "$(lm_eval "$T/two" $((first + 1)) "$counts")"

# A model whose logits are no numbers has no perplexity and no divergence: an error that names it, not a result.
python3 - "$T/f32/model.safetensors" <<'END'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
start = 8 + struct.unpack("<Q", data[:8])[0]
begin, end = json.loads(data[8:start])["model.norm.weight"]["data_offsets"]
data[start + begin:start + end] = struct.pack("<f", float("nan")) * ((end - begin) // 4)
open(sys.argv[1], "wb").write(data)
END
for c in hf gptq llamacpp lm-eval; do
    fails "ppl: NaN, $c" 1 "error: $T/f32: logits are not finite at position " $OUNCE ppl "$T/f32" --text "$T/short" --convention $c --ctx 32 -q -t 1 --json
    same "ppl: NaN, $c: no number" '' "$(cat "$T/out")"
done
fails 'kl: NaN in a model' 1 "error: $T/f32: logits are not finite at position 0 of a window" $OUNCE kl $G "$T/bf16" "$T/f32" --text "$T/short" -q -t 1
fails 'kl: NaN in the reference' 1 "error: $T/f32: logits are not finite at position 0 of a window" $OUNCE kl "$T/f32" "$T/bf16" --text "$T/short" -q -t 1
same 'kl: no number' '' "$(cat "$T/out")"

# The window that nobody asked for is one that every model takes.
for i in {1..40}; do cat "$T/short"; done >"$T/long"
same 'kl: windows of the length of the shorter model' "$((128 - 1)) 35" "$($OUNCE kl $G "$T/bf16" --text "$T/long" --json -q -t 1 | jq -r '.[0] | "\(.positions / .windows) \(.windows)"')"
fails 'kl: one that was asked for' 1 '--ctx 129: must be 2..128' $OUNCE kl $G "$T/bf16" --text "$T/long" --ctx 129 -q -t 1
fails 'kl: as it was asked for, beside a shorter text' 1 '--ctx 99999: must be 2..128' $OUNCE kl $G "$T/bf16" --text "$T/long" --limit-tokens 200 --ctx 99999 -q -t 1
