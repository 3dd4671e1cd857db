#!/usr/bin/env python3
"""Makes the calibration set of docs/quality.md as a JSON-lines file of token ids.

usage: bench/calibration_set.py MODEL WIKITEXT2 GSM8K_TRAIN20 > calibration.jsonl

128 sequences of 512 tokens, encoded without special tokens: first the whole sequences that the 20 training problems of GSM8K give
(question, newline, answer; a blank line between problems), then WikiText-2 from token 65,536 on: window 64 of 1,024 tokens, behind
everything that `ounce kl` reads with 32 windows."""
import json
import subprocess
import sys

SEQUENCES, LENGTH, SKIP = 128, 512, 64 * 1024


def encode(model, text):
    line = json.dumps({"text": text}) + "\n"
    out = subprocess.run(["./ounce", "tokenize", model, "--jsonl"], input=line, capture_output=True, text=True, check=True).stdout
    answer = json.loads(out)
    if "ids" not in answer:
        sys.exit(f"error: {answer['error']}")
    return answer["ids"]


def windows(ids):
    return [ids[i : i + LENGTH] for i in range(0, len(ids) - LENGTH + 1, LENGTH)]


def main(model, wikitext, gsm8k):
    rows = [json.loads(line) for line in open(gsm8k, encoding="utf-8")]
    problems = windows(encode(model, "\n\n".join(r["question"] + "\n" + r["answer"] for r in rows)))
    prose = windows(encode(model, open(wikitext, encoding="utf-8", newline="").read())[SKIP:])
    chosen = (problems + prose)[:SEQUENCES]
    if len(chosen) < SEQUENCES:
        sys.exit(f"error: {len(chosen)} sequences of {LENGTH} tokens, expected {SEQUENCES}")
    for ids in chosen:
        print(json.dumps({"ids": ids}))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__.split("\n\n")[1])
    main(*sys.argv[1:])
