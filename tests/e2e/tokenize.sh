# ounce tokenize and detokenize, as a user runs them.
. tests/lib.sh
smol=tests/golden/tokenizers/smollm2 quirk=tests/golden/tokenizers/quirk-a

same 'text to ids' '19556 28 905 17' "$(printf 'Hello, world!' | $OUNCE tokenize $smol)"
same 'ids to text' 'Hello, world!' "$(echo '19556 28  905 17' | $OUNCE detokenize $smol)"
same 'special tokens in a text' '1 9690 198 2' "$(printf '<|im_start|>system\n<|im_end|>' | $OUNCE tokenize $smol)"
same 'special tokens are dropped' 'system' "$(echo 1 9690 198 2 | $OUNCE detokenize $smol)"
same 'special tokens are kept' '<|im_start|>system' "$(echo 1 9690 | $OUNCE detokenize $smol --keep-special)"
same 'the post-processor adds' '1200 0' "$(printf '' | $OUNCE tokenize $quirk --special)"
same 'nothing is nothing' '' "$(printf '' | $OUNCE tokenize $smol)"
same 'nothing back' '' "$(printf '' | $OUNCE detokenize $smol)"
same 'one document' '{"ids":[19556]}' "$(printf Hello | $OUNCE tokenize $smol --json)"
same 'one document back' '{"text":"Hello"}' "$(echo 19556 | $OUNCE detokenize $smol --json)"
same 'deltas, never half a character' '{"deltas":["a","","","\u20AC",""]}' "$(echo 81 173 220 122 | $OUNCE detokenize $smol --stream)"
same 'half a character at the end' '{"deltas":["","\uFFFD"]}' "$(echo 173 | $OUNCE detokenize $smol --stream)"
same 'ids outside the vocabulary' 'Hello' "$(echo -1 19556 49152 99999999999999999999 | $OUNCE detokenize $smol)"
same 'ill-formed text' "$(printf '\357\277\275x' | $OUNCE tokenize $smol)" "$(printf '\303x' | $OUNCE tokenize $smol)"

printf '{"text":"Hello"}\n{"text":5}\n\nnonsense\n{"text":""}\n' >"$T/lines"
$OUNCE tokenize $smol --jsonl <"$T/lines" >"$T/answers"
same 'a bad line does not end the run' 0 $?
same 'lines' '{"ids":[19556]}
{"error":"text: must be a string, found 5"}
{"error":"the line: column 8: invalid token near '"'nonsense'"'"}
{"ids":[]}' "$(cat "$T/answers")"
same 'lines back' '{"text":"Hello"}
{"error":"ids[1]: must be an integer, found \"x\""}
{"error":"ids: must be an array, found nothing"}' "$(printf '{"ids":[19556]}\n{"ids":[1,"x"]}\n{}\n' | $OUNCE detokenize $smol --jsonl)"

fails 'no such folder' 1 "$T/none" $OUNCE tokenize "$T/none"
mkdir "$T/empty"
fails 'no tokenizer' 1 "$T/empty: no tokenizer.json" $OUNCE tokenize "$T/empty"
echo '{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]}}' >"$T/empty/tokenizer.json"
fails 'a tokenizer that is wrong' 1 'tokenizer.json: model.merges[0]: "aa" is not in model.vocab' $OUNCE tokenize "$T/empty"
head -c 100000 $smol/tokenizer.json >"$T/empty/tokenizer.json"
fails 'half a tokenizer' 1 'tokenizer.json: line' $OUNCE tokenize "$T/empty"
echo '19556 x' >"$T/ids"
ok 'ids that are none' sh -c "! $OUNCE detokenize $smol <$T/ids 2>$T/err && grep -q 'stdin: byte 6: expected a decimal id' $T/err"

# 10 MB in under 5 s of processor time; and text that is one word, or one run of spaces.
for i in $(seq 8); do cat tests/golden/tokenizers/fuzz.jsonl tests/golden/tokenizers/texts.jsonl README.md; done >"$T/text"
while [ "$(wc -c <"$T/text")" -lt 10000000 ]; do cat "$T/text" "$T/text" >"$T/more" && mv "$T/more" "$T/text"; done
for f in text letters spaces; do
    case $f in letters) head -c 1000000 /dev/zero | tr '\0' x ;; spaces) head -c 1000000 /dev/zero | tr '\0' ' ' ;; *) head -c 10000000 "$T/text" ;; esac >"$T/in"
    ok "$f in time" sh -c "ulimit -t 5; $OUNCE_RELEASE tokenize $smol <$T/in >$T/ids"
    $OUNCE_RELEASE detokenize $smol --keep-special <"$T/ids" | cmp "$T/in" -
    same "$f comes back" 0 $?
done
