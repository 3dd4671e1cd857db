# ounce template, as a user runs it.
. tests/lib.sh
golden=tests/golden/templates
mkdir "$T/model"
cat >"$T/model/chat_template.jinja" <<'END'
{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}
{% endfor %}{% if tools %}{{ tools | length }} tools
{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}
END
echo '{"bos_token":{"content":"<s>"}}' >"$T/model/tokenizer_config.json"

same 'a list of messages' "$(printf '<s>[user] Hi\n.')" "$(echo '[{"role":"user","content":"Hi"}]' | $OUNCE template "$T/model"; echo .)"
same 'the answer begins' "$(printf '<s>[user] Hi\n[assistant].')" "$(echo '[{"role":"user","content":"Hi"}]' | $OUNCE template "$T/model" --add-generation-prompt; echo .)"
same 'a request' "$(printf '>[user] 100000000000000000000\n1 tools\n[assistant]')" "$(echo '{"messages":[{"role":"user","content":100000000000000000000}],
    "tools":[{"type":"function"}],"kwargs":{"add_generation_prompt":true},"special_tokens":{"bos_token":">"}}' | $OUNCE template "$T/model")"
same 'one document' '{"text": "<s>[user] Hi\n"}' "$(echo '[{"role":"user","content":"Hi"}]' | $OUNCE template "$T/model" --json | tr -s ' \n' ' ' | sed 's/{ /{/; s/ } *$/}/')"

printf '{"template":"{{ messages[0].a }}","messages":[{"a":1}]}\n{"template":"{{ x.y }}","messages":[{}]}\nnonsense\n{"template":7}\n{"template":"{{ strftime_now(\\"%%H:%%M\\") }}","messages":[{}],"now":"2026-03-07T09:05:03"}\n{"template":"","now":"noon"}\n' >"$T/lines"
$OUNCE template --jsonl <"$T/lines" >"$T/answers"
same 'a bad line does not end the run' 0 $?
same 'lines' '{"text":"1"}
{"error":"chat template, line 1: '"'x'"' is undefined"}
{"error":"the line: column 8: invalid token near '"'nonsense'"'"}
{"error":"template: must be a string, found 7"}
{"text":"09:05"}
{"error":"now: expected a time like 2026-03-07T09:05:03, found \"noon\""}' "$(cat "$T/answers")"

fails 'neither MODEL nor lines' 2 'template: an argument is missing: MODEL, or --jsonl' $OUNCE template
fails 'both' 2 'takes no MODEL' $OUNCE template "$T/model" --jsonl
fails 'no such folder' 1 "$T/none" $OUNCE template "$T/none"
mkdir "$T/bare"
fails 'no template' 1 "$T/bare: the model has no chat template" $OUNCE template "$T/bare"
fails 'no messages' 1 'stdin: expected JSON, found nothing' $OUNCE template "$T/model"
echo '{% if %}' >"$T/bare/chat_template.jinja"
fails 'a template that is wrong' 1 "chat template, line 1: expected an expression, found '%}'" $OUNCE template "$T/bare"

# Templates of strangers: a second and 300 MB of address space are plenty, each alone.
while read -r line; do
    echo "$line" >"$T/in"
    name=$(echo "$line" | sed 's/^{"id": "\([^"]*\)".*/\1/')
    ok "$name" sh -c "ulimit -t 1; ulimit -v 300000; $OUNCE_RELEASE template --jsonl <$T/in >$T/out && grep -q '^{\"error\":\"chat template, line 1: ' $T/out"
done <$golden/hostile.jsonl
