#!/usr/bin/env python3
"""Writes tests/golden/vocab: vocabularies in other forms than tokenizer.json, and what the libraries that they belong to make of some texts.

    pip install sentencepiece protobuf tiktoken tokenizers gguf && python3 tests/gen/gen_vocab.py

Each folder holds the vocabulary (a folder's files, or model.gguf) and golden.jsonl (gguf-llama, -t5, -gemma: that of bpe, unigram, symbols):
{"text", "ids", "decoded"}; decoded, special tokens kept, is null where the unknown is among the ids, which each library spells otherwise.
sentencepiece itself answers for the tokenizer.model and the GGUFs made of them, tiktoken for ranks, tokenizers for BERT. Left out are texts that
spell a control token, which sentencepiece does not know in a text, and those of which tokenizers makes other ids with the same model: it takes
another one of two ways with the same score, and looks for whole clusters in a character map.
"""
import base64
import io
import json
import pathlib
import shutil
import sys

import gguf
import sentencepiece
import tiktoken
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as pb
from tiktoken._educational import SimpleBytePairEncoding

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/vocab"
CORPUS = (ROOT / "bench/text/demo.txt").read_text()[:120_000]
TEXTS = [json.loads(line)["text"] for line in (ROOT / "tests/golden/tokenizers/texts.jsonl").open()]
TEXTS = [t for t in TEXTS if len(t) <= 80][:80] + [
    "", " ", "  ", "\n", " \n ", "a", " a", "a ", "  two  spaces  ", "\ttab\tand\nnewline\r\n", "a<sep>b", "<sep>", " <sep> <sep>", "x <sep>  y", "\u2581", "a\u2581b\u2581",
    "\u2581\u2581 \u2581", "<0x41>", "\u00a0non\u00a0breaking\u3000ideographic ", "\ufb01ne \uff21\uff22\uff23 \u2460", "\u4f60\u597d\U0001f600\U0001f600", "\n\n\n", "end\n\n", "e\u0301\u00e9",
    "aaaaaaaaaaaaaaaa", "the the  the   the    the", "1234567 89", "I'll we've THEY'RE it's", "CamelCaseWordsHTTPServer", "   indented\n      code()", "na\u00efve caf\u00e9 Caf\u00c9",
]
# nmt_nfkc's map is a quarter of a megabyte: a small one that has each kind of entry (to a space, to several characters, to nothing, of several)
RULES = {"\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\r": "", "\ufb01": "fi", "\u2460": "1", "e\u0301": "\u00e9"} | {chr(0xFF21 + i): chr(0x41 + i) for i in range(26)}


def train(folder, **options):
    folder.mkdir(parents=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS.split("\n")), model_writer=model, hard_vocab_limit=False, num_threads=1, minloglevel=2, **options)
    proto = pb.ModelProto.FromString(model.getvalue())
    proto.trainer_spec.ClearField("input")
    proto.normalizer_spec.ClearField("normalization_rule_tsv")  # a path, of the machine that trained
    (folder / "tokenizer.model").write_bytes(proto.SerializeToString())
    return proto


def write(folder, rows):
    with (folder / "golden.jsonl").open("w") as f:
        for text, ids, decoded in rows:
            print(json.dumps({"text": text, "ids": ids, "decoded": decoded}), file=f)


def unigram_of(proto):
    """The same model in the tokenizers library."""
    n, t = tokenizers.normalizers, tokenizers.Tokenizer(tokenizers.models.Unigram([(p.piece, p.score) for p in proto.pieces], proto.trainer_spec.unk_id, False))
    t.normalizer = n.Sequence([n.Precompiled(proto.normalizer_spec.precompiled_charsmap), n.Replace(tokenizers.Regex(r"\A +"), ""), n.Replace(tokenizers.Regex(" {2,}"), " "),
                               n.Prepend("\u2581"), n.Replace(" ", "\u2581"), n.Replace(tokenizers.Regex("\u2581+\\z"), "")])
    return lambda text: t.encode(text).ids


def spm_rows(proto, model, other=None):
    sp = sentencepiece.SentencePieceProcessor(model_file=str(model))
    control = [p.piece for p in proto.pieces if p.type in (2, 3)]
    for text in TEXTS:
        if any(c in text for c in control):
            continue
        ids = sp.encode(text)
        if other and other(text) != ids:
            print(f"{model.parent.name}: left out: {text!r}", file=sys.stderr)
            continue
        yield text, ids, None if sp.unk_id() in ids else sp.decode(ids)


def gguf_of(proto, folder, kind, **keys):
    folder.mkdir(parents=True)
    w = gguf.GGUFWriter(str(folder / "model.gguf"), "llama")
    w.add_tokenizer_model(kind)
    w.add_token_list([p.piece for p in proto.pieces] + ["[PAD]"])
    w.add_token_scores([p.score for p in proto.pieces] + [-10000.0])
    w.add_token_types([p.type for p in proto.pieces] + [5])
    t = proto.trainer_spec
    for add, token in ((w.add_bos_token_id, t.bos_id), (w.add_eos_token_id, t.eos_id), (w.add_unk_token_id, t.unk_id)):
        if token >= 0:
            add(token)
    if proto.normalizer_spec.precompiled_charsmap:
        w.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)
    for k, v in keys.items():
        w.add_bool(f"tokenizer.ggml.{k}", v)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def sentence_pieces():
    llama = train(OUT / "bpe", model_type="bpe", vocab_size=560, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
                  allow_whitespace_only_pieces=True, character_coverage=0.999)
    (OUT / "bpe/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}) + "\n")
    rules = OUT / "rules.tsv"
    rules.write_text("".join(f"{' '.join(f'{ord(c):X}' for c in k)}\t{' '.join(f'{ord(c):X}' for c in v)}\n" for k, v in RULES.items()))
    unigram = train(OUT / "unigram", model_type="unigram", vocab_size=420, normalization_rule_tsv=str(rules), pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    rules.unlink()
    (OUT / "unigram/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}) + "\n")
    # as Gemma: no prefix, runs of spaces and newlines are symbols of their own
    symbols = ["<sep>", "\n\n", "\n"] + ["\u2581" * n for n in range(2, 7)]
    gemma = train(OUT / "symbols", model_type="bpe", vocab_size=560, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
                  user_defined_symbols=symbols, pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>")
    (OUT / "symbols/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GemmaTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}) + "\n")
    for name, proto in (("bpe", llama), ("unigram", unigram), ("symbols", gemma)):
        write(OUT / name, spm_rows(proto, OUT / name / "tokenizer.model", unigram_of(proto) if name == "unigram" else None))
    for name, proto, kind, keys in (("gguf-llama", llama, "llama", {}), ("gguf-t5", unigram, "t5", {"add_space_prefix": True, "remove_extra_whitespaces": True}),
                                    ("gguf-gemma", gemma, "llama", {"add_space_prefix": False})):
        gguf_of(proto, OUT / name, kind, **keys)


def ranks():
    llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    folder = OUT / "tiktoken"
    folder.mkdir(parents=True)
    enc = SimpleBytePairEncoding.train(CORPUS[:20_000], vocab_size=500, pat_str=llama3)  # it prints
    (folder / "tokenizer.model").write_text("".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in sorted(enc.mergeable_ranks.items(), key=lambda x: x[1])))
    special = {"<|begin_of_text|>": 500, "<|end_of_text|>": 501, "<sep>": 510}
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>",
        "added_tokens_decoder": {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for t, i in special.items()}}) + "\n")
    fast = tiktoken.Encoding("test", pat_str=llama3, mergeable_ranks=enc.mergeable_ranks, special_tokens=special)
    write(folder, ((t, (ids := fast.encode(t, allowed_special="all")), fast.decode(ids)) for t in TEXTS))


def bert():
    for name, lower in (("gguf-bert", True), ("gguf-bert-cased", False)):
        folder = OUT / name
        folder.mkdir(parents=True)
        t = tokenizers.BertWordPieceTokenizer(lowercase=lower)
        t.train_from_iterator(CORPUS.split("\n"), vocab_size=500, min_frequency=2, show_progress=False)
        vocab = sorted(t.get_vocab(), key=t.get_vocab().get)
        spelled = [v if v.startswith("[") and v.endswith("]") else v[2:] if v.startswith("##") else "\u2581" + v for v in vocab]
        w = gguf.GGUFWriter(str(folder / "model.gguf"), "bert")
        w.add_tokenizer_model("bert"), w.add_token_list(spelled), w.add_token_types([3 if v in ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]") else 1 for v in vocab])
        w.add_bos_token_id(vocab.index("[CLS]")), w.add_sep_token_id(vocab.index("[SEP]")), w.add_unk_token_id(vocab.index("[UNK]")), w.add_pad_token_id(vocab.index("[PAD]"))
        w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
        rows = [(x, t.encode(x, add_special_tokens=False).ids) for x in TEXTS]
        write(folder, ((x, ids, t.decode(ids, skip_special_tokens=False)) for x, ids in rows))


shutil.rmtree(OUT, ignore_errors=True)
sentence_pieces()
ranks()
bert()
