#!/usr/bin/env python3
"""Do the checkpoints that `ounce quantize` writes mean to compressed-tensors and transformers what they mean to us?

  quantized.py OUNCE MODEL TEXT WORK [--windows N] [--only PART,...]

MODEL is a dense bf16 checkpoint; its quantized forms are made in WORK. Four parts, one table, exit 1 if a line of it is bad:
  edge    as rtn, on a small random model with rows of zeros, of ties, of tiny and of huge values; FP8_BLOCK too, whose groups of inputs do not divide SmolLM2's
  rtn     scales and codes equal those that compressed-tensors computes in float32, from the bf16 model and from the same one in f32;
          a difference is allowed on a tie (the quotient lies halfway between two codes) and in an all-zero group (the library stores a tiny
          scale there, we store 1), and both are counted
  load    transformers loads each checkpoint (but W4A16_ASYM: 5.23 cannot; convert.py goes through the library's decompressor) without a missing or unexpected tensor; the weights that it dequantizes equal
          `ounce convert`, to the bit in f32 and after rounding to bf16
  logits  weight-only: KL between its logits and ours. With quantized activations logits are chaotic (every rounding of an early layer
          moves the late ones), so two things stand for them: one linear layer on the same input, and the mean KL of each program to
          its own bf16 logits. The int8 layer is compared with activations scaled by amax/127, which is what we run; the library's own
          amax/127.5 puts every negative extreme on a tie.

Needs torch, transformers, compressed-tensors 0.20 and safetensors; `make interop` installs them into build/venv.
"""
import argparse
import json
import os
import subprocess
import sys
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1", CUDA_VISIBLE_DEVICES="")
warnings.filterwarnings("ignore")

import torch
import torch.nn.functional as F
from compressed_tensors.compressors import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ap = argparse.ArgumentParser()
ap.add_argument("ounce")
ap.add_argument("model")
ap.add_argument("text")
ap.add_argument("work")
ap.add_argument("--windows", type=int, default=4)
ap.add_argument("--only", default="edge,rtn,load,logits")
a = ap.parse_args()
CTX = 1024
SCHEMES = {"W8A8": [], "W8A16": [], "FP8_DYNAMIC": [], "W4A16": ["--group-size", "64"], "W4A16_ASYM": ["--group-size", "64"], "W4A8": ["--group-size", "64"]}
LOADED = [s for s in SCHEMES if s != "W4A16_ASYM"]
rows = []


def check(name, value, good, limit):
    rows.append((name, value, limit, good))
    print(f"{'ok  ' if good else 'FAIL'}  {name:44} {value:>28}  {limit}", flush=True)


def ounce(*args):
    p = subprocess.run([a.ounce, *map(str, args), "-q"], capture_output=True, text=True)
    if p.returncode: sys.exit(f"ounce {' '.join(map(str, args))}: {p.stderr.strip()}")
    return p.stdout


def path(name): return os.path.join(a.work, name)


def tensors(folder):
    out = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"): out.update(load_file(os.path.join(folder, f)))
    return out


def make(scheme, source, suffix=""):
    folder = path(scheme + suffix)
    ounce("quantize", source, "-o", folder, "--scheme", scheme, *SCHEMES.get(scheme, []), "--force")
    return folder


def weight_args(folder):
    group = json.load(open(os.path.join(folder, "config.json")))["quantization_config"]["config_groups"]["group_0"]
    return QuantizationArgs(**group["weights"])


# ---- rtn ----

def near(t, codes, rel=1e-6):
    """Where t lies so close to a boundary between two codes that the last bit of the quotient decides."""
    return codes(t * (1 - rel)) != codes(t * (1 + rel))


def codes_of(args):
    one = torch.ones(1)
    return lambda t: quantize(t, one, torch.zeros(1), args).float()


def groups(w, args):
    """[down, across, values]: those that share a scale."""
    if args.strategy == "group": return w.unflatten(1, (-1, args.group_size))
    if args.strategy == "channel": return w[:, None, :]
    h, v = args.block_structure
    padded = F.pad(w, (0, -w.shape[1] % v, 0, -w.shape[0] % h))
    return padded.unflatten(1, (-1, v)).unflatten(0, (-1, h)).transpose(1, 2).flatten(2)


def compare_rtn(scheme, source, suffix, kind):
    folder = make(scheme, source, suffix)
    src, out, args = tensors(source), tensors(folder), weight_args(folder)
    count = dict(weights=0, ties=0, zeros=0, codes=0, scales=0)  # zeros: groups of zeros
    for name, scale in out.items():
        if not name.endswith(".weight_scale"): continue
        module = name[:-len(".weight_scale")]
        w = src[module + ".weight"]
        group = groups(w, args)
        theirs, zero = calculate_qparams(group.amin(-1), group.amax(-1), args)
        dead = (group == 0).all(-1)
        count["zeros"] += int(dead.sum())
        count["scales"] += int((theirs != scale)[~dead].sum()) + int((scale[dead] != 1).sum())
        ours = None
        if not args.symmetric:
            ours = unpack_from_int32(out[module + ".weight_zero_point"], args.num_bits, scale.shape, packed_dim=0)
            count["scales"] += int((zero != ours)[~dead].sum()) + int((ours[dead] != 0).sum())
        want = quantize(w.float(), scale.float(), ours, args).float()
        packed = out.get(module + ".weight_packed")
        have = (unpack_from_int32(packed, args.num_bits, w.shape) if packed is not None else out[module + ".weight"]).float()
        differ = have != want
        quotient = group.float() / scale.float()[..., None] + (ours.float()[..., None] if ours is not None else 0)
        ties = int(near(quotient.flatten(1)[differ], codes_of(args)).sum()) if args.strategy != "block" else 0
        count["weights"] += w.numel()
        count["ties"] += ties
        count["codes"] += int(differ.sum()) - ties
    check(f"rtn {scheme} scales{'' if args.symmetric else ' and zeros'}, {kind}", f"{count['scales']} differ", count["scales"] == 0, f"{count['zeros']} all-zero groups")
    check(f"rtn {scheme} codes, {kind}", f"{count['codes']} of {count['weights']} differ", count["codes"] == 0, f"{count['ties']} on a tie")


def edge_model():
    """Random weights of which some rows are zero, some are halves of the scale (ties), some tiny and some huge."""
    config = dict(model_type="llama", hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
                  num_key_value_heads=2, torch_dtype="bfloat16", tie_word_embeddings=False, architectures=["LlamaForCausalLM"])
    with open(path("edge.json"), "w") as f: json.dump(config, f)
    ounce("synth", path("edge.json"), "-o", path("edge"), "--seed", 1, "--force")
    t = tensors(path("edge"))
    for name, w in t.items():
        if not name.endswith("proj.weight"): continue
        w[3], w[5, :64], w[9], w[11] = 0, 0, w[9] * 2.0**-90, w[11] * 2.0**90
        w[7] = torch.arange(w.shape[1]) % 16 - 7.5
        w[8] = torch.arange(w.shape[1]) - 127.5
    save_file(t, os.path.join(path("edge"), "model.safetensors"), {"format": "pt"})
    return path("edge")


def edge():
    source = edge_model()
    for scheme in (*SCHEMES, "FP8_BLOCK"): compare_rtn(scheme, source, "-from-edge", "edge cases")


def rtn():
    ounce("convert", a.model, "-o", path("f32"), "--to", "f32", "--force")
    for scheme in SCHEMES:
        compare_rtn(scheme, a.model, "", "bf16 model")
        compare_rtn(scheme, path("f32"), "-from-f32", "f32 model")


# ---- load ----

def load(folder, dtype):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    if bad: sys.exit(f"{folder}: transformers reports {bad}")
    model.eval()
    with torch.no_grad(): model(torch.tensor([[1, 2, 3]]))  # the first forward pass dequantizes
    return model


def check_load():
    for scheme in LOADED:
        folder = make(scheme, a.model)
        ounce("convert", folder, "-o", path("dense"), "--to", "f32", "--force")
        ours = tensors(path("dense"))
        for dtype in (torch.float32, torch.bfloat16):
            model, differ, total = load(folder, dtype), 0, 0
            for name, theirs in model.state_dict().items():
                if name not in ours or not name.endswith("proj.weight"): continue
                if theirs.dtype == torch.float8_e4m3fn: sys.exit(f"{name}: not dequantized")
                total += 1
                differ += not torch.equal(theirs, ours[name].to(dtype))
            check(f"load {scheme} as {str(dtype)[6:]}", f"{differ} of {total} weights differ", differ == 0 and total > 0, "bit for bit")


# ---- logits ----

def windows():
    ids = list(map(int, subprocess.run([a.ounce, "tokenize", a.model], stdin=open(a.text), capture_output=True, text=True, check=True).stdout.split()))
    out = [ids[i:i + CTX] for i in range(0, len(ids) - CTX + 1, CTX)][:a.windows]
    if len(out) < a.windows: sys.exit(f"{a.text}: {len(ids)} tokens are too few for {a.windows} windows of {CTX}")
    return out


def our_logits(folder, ids, hidden=False):
    with open(path("ids"), "w") as f: f.write(" ".join(map(str, ids)))
    ounce("logits", folder, "--ids", path("ids"), "-o", path("logits.safetensors"), "--dtype", "f32", *(["--hidden"] if hidden else []))
    t = load_file(path("logits.safetensors"))
    return t if hidden else t["logits"]


def kl(p, q):
    """KL(p || q) of each row, in f64."""
    out = []
    for x, y in zip(p.split(128), q.split(128)):
        x, y = torch.log_softmax(x.double(), -1), torch.log_softmax(y.double(), -1)
        out.append((x.exp() * (x - y)).sum(-1))
    return torch.cat(out)


def one_linear(scheme):
    """lm_head alone is quantized: the last hidden state is its input but for the norm, the logits are its output."""
    folder = path(scheme + "-head")
    ounce("quantize", a.model, "-o", folder, "--scheme", scheme, *SCHEMES[scheme], "--targets", "lm_head", "--force")
    ounce("convert", folder, "-o", path("dense"), "--to", "f32", "--force")
    out, config = tensors(path("dense")), json.load(open(os.path.join(folder, "config.json")))
    t = our_logits(folder, windows()[0][:256], hidden=True)
    x = t[f"hidden_after_layer_{config['num_hidden_layers'] - 1}"]
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * out["model.norm.weight"].float()
    group = config["quantization_config"]["config_groups"]["group_0"]
    act = QuantizationArgs(**group["input_activations"])
    scale = x.abs().amax(-1, keepdim=True) / (127 if act.type == "int" else 448)
    xq = fake_quantize(x, scale, torch.zeros_like(scale), act)
    want = F.linear(xq, out["lm_head.weight"])
    clear = ~near(x / scale, codes_of(act)).any(-1)
    err = ((t["logits"] - want)[clear].norm() / want[clear].norm()).item()
    check(f"logits {scheme} one linear", f"{err:.2e} relative", err <= 1e-4 and int(clear.sum()) >= 128, f"1e-4; {int(clear.sum())} of {len(clear)} rows without a tie")


def logits():
    texts = windows()
    dense = load(a.model, torch.float32)
    with torch.no_grad(): reference = [dense(torch.tensor([w])).logits[0] for w in texts]
    del dense
    ours_dense = [our_logits(a.model, w) for w in texts]
    between = torch.cat([kl(x, y) for x, y in zip(reference, ours_dense)]).mean().item()
    check("logits bf16 model, theirs to ours", f"mean KL {between:.2e}", between < 1e-6, "1e-6")
    for scheme in LOADED:
        folder = make(scheme, a.model)
        model, to_ours, theirs, ours = load(folder, torch.float32), [], [], []
        for w, ref, our_ref in zip(texts, reference, ours_dense):
            with torch.no_grad(): t = model(torch.tensor([w])).logits[0]
            o = our_logits(folder, w)
            to_ours.append(kl(t, o)), theirs.append(kl(ref, t)), ours.append(kl(our_ref, o))
        to_ours, theirs, ours = (torch.cat(x).mean().item() for x in (to_ours, theirs, ours))
        if scheme in ("W8A8", "FP8_DYNAMIC", "W4A8"):
            one_linear(scheme)
            check(f"logits {scheme} mean KL to bf16", f"{ours:.5f}, theirs {theirs:.5f}", abs(ours / theirs - 1) <= 0.05, "within 5 %")
        else:
            check(f"logits {scheme} theirs to ours", f"mean KL {to_ours:.2e}", to_ours < 1e-3, "1e-3")
            check(f"logits {scheme} mean KL to bf16", f"{ours:.5f}, theirs {theirs:.5f}", abs(ours / theirs - 1) <= 0.05, "within 5 %")


os.makedirs(a.work, exist_ok=True)
torch.manual_seed(0)
for part in a.only.split(","): {"edge": edge, "rtn": rtn, "load": check_load, "logits": logits}[part]()
bad = [r for r in rows if not r[3]]
print(f"{len(rows) - len(bad)} good, {len(bad)} bad")
sys.exit(1 if bad else 0)
