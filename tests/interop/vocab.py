#!/usr/bin/env python3
"""vocab.py OUNCE WORK: ids that ounce makes with published vocabularies in other forms than tokenizer.json, beside those of the libraries they
belong to. The vocabularies lie in two packages (mistral-common: SentencePiece BPE; dashscope: Qwen's ranks) and in tests/golden/vocab; GGUFs are
made of them here, and read by llama.cpp too. Prints a line a comparison; exit 1 if any text differs."""
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import unicodedata

import gguf
import llama_cpp
import sentencepiece
import tiktoken.load
from sentencepiece import sentencepiece_model_pb2 as pb

OUNCE, WORK = sys.argv[1], pathlib.Path(sys.argv[2]) / "vocab"
ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
TEXTS = [json.loads(line)["text"] for name in ("texts", "fuzz") for line in (GOLDEN / f"tokenizers/{name}.jsonl").open()]
TEXTS += (ROOT / "bench/text/demo.txt").read_text().split("\n\n") + [(ROOT / "bench/text/demo.txt").read_text()]
failed = False


def package(name, *path):
    spec = importlib.util.find_spec(name)
    return pathlib.Path(spec.submodule_search_locations[0], *path)


def ounce(model, texts, *flags):
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    p = subprocess.run([OUNCE, "tokenize", str(model), "--jsonl", *flags], input=lines, capture_output=True, text=True)
    out = [json.loads(line) for line in p.stdout.splitlines()]
    assert len(out) == len(texts), p.stderr
    return [o.get("ids", o) for o in out]


def compare(what, texts, ours, theirs, scores=None):
    """scores: of unigram's tokens; another way with the same sum is as good (float32 and float64 round it differently)."""
    global failed
    bad = [(t, a, b) for t, a, b in zip(texts, ours, theirs) if a != b]
    ties = [x for x in bad if scores and abs(sum(scores[i] for i in x[1]) - sum(scores[i] for i in x[2])) < 1e-3]
    bad = [x for x in bad if x not in ties]
    print(f"{what}: {len(texts)} texts, {sum(map(len, ours))} ids, {len(ties)} ties, {len(bad)} differ")
    for t, a, b in bad[:3]:
        k = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        print(f"    {t[:60]!r}: at {k} ounce {a[max(k - 2, 0) : k + 6]} the other {b[max(k - 2, 0) : k + 6]}")
    failed |= bool(bad)


def folder(name, file, source, config):
    dir = WORK / name
    shutil.rmtree(dir, ignore_errors=True)
    dir.mkdir(parents=True)
    shutil.copy(source, dir / file)
    (dir / "tokenizer_config.json").write_text(json.dumps(config))
    return dir


def without(texts, pieces):
    return [t for t in texts if not any(p in t for p in pieces)]


def gguf_write(path, proto, kind, **keys):
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_context_length(64), w.add_embedding_length(64), w.add_block_count(1), w.add_feed_forward_length(64), w.add_head_count(1), w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model(kind)
    w.add_token_list([p.piece for p in proto.pieces]), w.add_token_scores([p.score for p in proto.pieces]), w.add_token_types([p.type for p in proto.pieces])
    for add, token in ((w.add_bos_token_id, proto.trainer_spec.bos_id), (w.add_eos_token_id, proto.trainer_spec.eos_id), (w.add_unk_token_id, proto.trainer_spec.unk_id)):
        if token >= 0:
            add(token)
    if proto.normalizer_spec.precompiled_charsmap:
        w.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)
    for k, v in keys.items():
        w.add_bool(f"tokenizer.ggml.{k}", v)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def llama(path, texts):
    m = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [m.tokenize(t.encode(), add_bos=False, special=True) for t in texts]


def mistral(version):
    source = next(p for p in package("mistral_common", "data").iterdir() if p.name.endswith(f".model.{version}"))
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    dir = folder(f"mistral-{version}", "tokenizer.model", source, config)
    proto = pb.ModelProto.FromString(source.read_bytes())
    sp = sentencepiece.SentencePieceProcessor(model_file=str(source))
    texts = without(TEXTS, [p.piece for p in proto.pieces if p.type in (2, 3)])
    compare(f"mistral {version}, sentencepiece", texts, ounce(dir, texts), [sp.encode(t) for t in texts])
    if version != "v3":
        return
    gguf_write(WORK / "mistral.gguf", proto, "llama")
    compare("the same as a GGUF, sentencepiece", texts, ounce(WORK / "mistral.gguf", texts), [sp.encode(t) for t in texts])
    some = [t for t in TEXTS if t and "\0" not in t]
    compare("the same as a GGUF, llama.cpp", some, ounce(WORK / "mistral.gguf", some), llama(WORK / "mistral.gguf", some))


def qwen():
    source = package("dashscope", "resources", "qwen.tiktoken")
    dir = folder("qwen", "qwen.tiktoken", source, {})
    ranks = tiktoken.load.load_tiktoken_bpe(str(source))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    enc = tiktoken.Encoding("qwen", pat_str=pattern, mergeable_ranks=ranks, special_tokens={s: len(ranks) + i for i, s in enumerate(special)})
    texts = [t for t in TEXTS if unicodedata.normalize("NFC", t) == t]  # libraries differ in the version of Unicode that they compose by
    compare("qwen.tiktoken, tiktoken", texts, ounce(dir, texts), [enc.encode(t, allowed_special="all") for t in texts])


def small(name, kind, **keys):
    """The golden vocabularies, over many more texts than there. Left out: what tokenizer.json cannot say (tokenizers looks a cluster up in a
    character map as a whole, and then each character: "\r\n", and an e with two accents), and U+2581 written in a text, which llama.cpp takes for a space."""
    source = GOLDEN / "vocab" / name / "tokenizer.model"
    proto = pb.ModelProto.FromString(source.read_bytes())
    sp = sentencepiece.SentencePieceProcessor(model_file=str(source))
    texts = without(TEXTS, [p.piece for p in proto.pieces if p.type in (2, 3)])
    if kind == "t5":
        texts = [t for t in texts if "\r" not in t and "e\u0301" not in t]
    scores = [p.score for p in proto.pieces] if kind == "t5" else None
    path = WORK / f"{name}.gguf"
    gguf_write(path, proto, kind, **keys)
    compare(f"{name} as a GGUF, sentencepiece", texts, ounce(path, texts), [sp.encode(t) for t in texts], scores)
    some = [t for t in texts if t and "\0" not in t and "\u2581" not in t]
    compare(f"{name} as a GGUF, llama.cpp", some, ounce(path, some), llama(path, some), scores)


def words():
    """The names in tokenizer.ggml.pre: one small vocabulary, cut into words as each says; llama.cpp's own reading of them."""
    ranks = tiktoken.load.load_tiktoken_bpe(str(GOLDEN / "vocab/tiktoken/tokenizer.model"))
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)}
    spell = lambda token: "".join(alphabet[b] for b in token)
    merges = []
    for token, rank in ranks.items():
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            i = min(range(len(parts) - 1), key=lambda k: ranks.get(parts[k] + parts[k + 1], 1 << 30))
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        merges += [f"{spell(parts[0])} {spell(parts[1])}"] if len(parts) == 2 else []
    texts = [t for t in TEXTS if t and t.isascii() and "\0" not in t] + [t for t in TEXTS[:280] if unicodedata.normalize("NFC", t) == t and "\0" not in t and t]
    for pre in ("gpt-2", "phi-2", "smollm", "starcoder", "qwen2", "llama-bpe", "llama3", "dbrx", "tekken", "gpt-4o", "llama4", "deepseek-v3"):
        path = WORK / f"pre-{pre}.gguf"
        w = gguf.GGUFWriter(str(path), "llama")
        w.add_context_length(64), w.add_embedding_length(64), w.add_block_count(1), w.add_feed_forward_length(64), w.add_head_count(1), w.add_layer_norm_rms_eps(1e-5)
        w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre(pre), w.add_token_list([spell(t) for t in ranks] + ["<|bos|>"]), w.add_token_types([1] * len(ranks) + [3])
        w.add_token_merges(merges), w.add_bos_token_id(len(ranks)), w.add_eos_token_id(len(ranks))
        w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
        compare(f"pre {pre}, llama.cpp", texts, ounce(path, texts), llama(path, texts))


WORK.mkdir(parents=True, exist_ok=True)
for v in ("v1", "v2", "v3"):
    mistral(v)
qwen()
small("bpe", "llama")
small("symbols", "llama", add_space_prefix=False, add_bos_token=False)
small("unigram", "t5", add_space_prefix=True, remove_extra_whitespaces=True)
words()
sys.exit(failed)
