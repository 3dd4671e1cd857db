# Vocabularies in other forms than tokenizer.json: the ids and the text that the libraries they belong to give (tests/gen/gen_vocab.py).
. tests/lib.sh
golden=tests/golden/vocab
for dir in $golden/*/; do
    name=$(basename "$dir")
    case $name in gguf-llama) source=bpe ;; gguf-t5) source=unigram ;; gguf-gemma) source=symbols ;; *) source=$name ;; esac
    rows=$golden/$source/golden.jsonl model=$dir
    [ -e "$dir/model.gguf" ] && model=$dir/model.gguf
    n=$(wc -l <"$rows")
    jq -c '{text}' "$rows" | $OUNCE tokenize "$model" --jsonl >"$T/ids" 2>"$T/err"
    same "$name: ids of $n texts" "$(jq -c .ids "$rows")" "$(jq -c .ids "$T/ids")"
    jq -c 'select(.decoded != null)' "$rows" >"$T/rows"
    jq -c '{ids}' "$T/rows" | $OUNCE detokenize "$model" --jsonl --keep-special >"$T/texts" 2>"$T/err"
    same "$name: and back" "$(jq -c .decoded "$T/rows")" "$(jq -c .text "$T/texts")"
done

special() { printf 'a' | $OUNCE tokenize "$1" --special 2>&1; }
plain() { printf 'a' | $OUNCE tokenize "$1"; }
same 'Llama: bos' "1 $(plain $golden/bpe)" "$(special $golden/bpe)"
same 'T5: eos' "$(plain $golden/unigram) 1" "$(special $golden/unigram)"
same 'T5: sentinels behind the vocabulary' "519 $(plain $golden/unigram) 420" "$(printf '<extra_id_0>a<extra_id_99>' | $OUNCE tokenize $golden/unigram)"
same 'Gemma: bos' "2 $(plain $golden/symbols)" "$(special $golden/symbols)"
same 'Llama 3: bos' "500 $(plain $golden/tiktoken)" "$(special $golden/tiktoken)"
same 'GGUF, llama: bos' "1 $(plain $golden/bpe)" "$(special $golden/gguf-llama/model.gguf)"
same 'GGUF, t5: eos' "$(plain $golden/unigram) 1" "$(special $golden/gguf-t5/model.gguf)"
same 'BERT: around' "2 $(plain $golden/gguf-bert/model.gguf) 3" "$(special $golden/gguf-bert/model.gguf)"

# What a config says of a tokenizer.model. Of the prefix: `legacy: false` puts it before the first piece alone.
folder() { rm -rf "$T/m" && cp -r $golden/bpe "$T/m" && echo "$1" >"$T/m/tokenizer_config.json"; }
ids() { printf '%s' "$1" | $OUNCE tokenize "$T/m" --special 2>&1; }
a=$(plain $golden/bpe)
bare=$(printf 'za' | $OUNCE tokenize $golden/bpe | awk '{ print $NF }') # "a" without the prefix
folder '{"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "add_eos_token": true}'
same 'add_eos_token' "$a 2" "$(ids a)"
folder '{"tokenizer_class": "LlamaTokenizer", "bos_token": null}'
same 'no bos' "$a" "$(ids a)"
folder '{}'
same 'no class: nothing is added' "$a" "$(ids a)"
rm "$T/m/tokenizer_config.json"
same 'no config either' "$a" "$(ids a)"
folder '{"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": false, "add_bos_token": false}'
same 'add_prefix_space' "$bare" "$(ids a)"
added='"added_tokens_decoder": {"600": {"content": "<im>", "special": true, "lstrip": false, "rstrip": true, "normalized": false, "single_word": false}}'
folder "{\"tokenizer_class\": \"LlamaTokenizer\", \"bos_token\": {\"content\": \"<im>\"}, $added}"
same 'an added token' "600 $a 600 $a" "$(ids 'a<im>  a')"
folder "{\"tokenizer_class\": \"LlamaTokenizer\", \"legacy\": false, \"add_bos_token\": false, $added}"
same 'legacy: false' "$a 600 $bare" "$(ids 'a<im>  a')"
folder '{"tokenizer_class": "LlamaTokenizer", "add_bos_token": false}'
echo '{"<u>": 561, "<v>": 560}' >"$T/m/added_tokens.json" && echo '{"additional_special_tokens": ["<v>"]}' >"$T/m/special_tokens_map.json"
same 'added_tokens.json' "560 561" "$(ids '<v><u>')"
same 'one of them is special' '<u>' "$(echo 560 561 | $OUNCE detokenize "$T/m")"

refused() { folder "$2"; fails "$1" 1 "$3" $OUNCE tokenize "$T/m"; }
refused 'a class that numbers otherwise' '{"tokenizer_class": "XLMRobertaTokenizer"}' 'tokenizer_class: XLMRobertaTokenizer with a tokenizer.model and no tokenizer.json'
refused 'bos that is none' '{"tokenizer_class": "LlamaTokenizer", "bos_token": "<nix>"}' 'bos_token: "<nix>" is not in the vocabulary of'
refused 'another token with this id' '{"added_tokens_decoder": {"1": {"content": "<b>"}}}' 'added token 1: expected "<s>"'
refused 'an id out of all bounds' '{"added_tokens_decoder": {"99999999": {"content": "<b>"}}}' 'its id must be below'
refused 'an id that is none' '{"added_tokens_decoder": {"x": {"content": "<b>"}}}' 'added_tokens_decoder: expected an id, found "x"'
refused 'content that is none' '{"added_tokens_decoder": {"600": {"content": 7}}}' 'added token 600: must be a string'
folder '{}' && head -c 5000 $golden/bpe/tokenizer.model >"$T/m/tokenizer.model"
fails 'half a tokenizer.model' 1 'no protobuf message: broken at its byte' $OUNCE tokenize "$T/m"
folder '{}' && : >"$T/m/tokenizer.model"
fails 'an empty one' 1 'expected 1..2097152 tokens, found 0' $OUNCE tokenize "$T/m"
folder '{}' && mv "$T/m/tokenizer.model" "$T/m/a.tiktoken" && cp $golden/tiktoken/tokenizer.model "$T/m/a.tiktoken"
fails 'ranks without a pattern' 1 'not known how its tokenizer cuts text into words' $OUNCE tokenize "$T/m"
cp "$T/m/a.tiktoken" "$T/m/b.tiktoken"
fails 'two files of ranks' 1 'and 2 .tiktoken files' $OUNCE tokenize "$T/m"
folder '{}' && cp $golden/tiktoken/tokenizer.model "$T/m/" && echo 'QQ== 7' >>"$T/m/tokenizer.model"
fails 'a rank twice' 1 'the rank 7 is there twice' $OUNCE tokenize "$T/m"
