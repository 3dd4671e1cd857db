#!/usr/bin/env python3
"""Writes tests/golden/rtn: small weights, and the scales, zero points and codes that compressed-tensors makes of them.

    pip install torch compressed-tensors==0.20.* && python3 tests/gen/gen_rtn.py

Scales and zero points: its calculate_qparams on the minimum and maximum of the values that share a scale, in the weight's own type (what the min-max
observers do). Codes: its quantize in float32 against those. Rows hold, beside random values, zeros, ties, only positive and only negative values,
and one large value. In a group of zeros our zero point is 0 and our scale 1, where the library divides zero by zero."""
import json
import os

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/rtn")
ROWS, COLS = 20, 64
CASES = {
    "w4_asym_g16": dict(num_bits=4, symmetric=False, strategy="group", group_size=16),
    "w4_asym_channel": dict(num_bits=4, symmetric=False, strategy="channel"),
    "w8_asym_channel": dict(num_bits=8, symmetric=False, strategy="channel"),
    "w8_asym_tensor": dict(num_bits=8, symmetric=False, strategy="tensor"),
    "w4_g16": dict(num_bits=4, strategy="group", group_size=16),
    "w8_channel": dict(num_bits=8, strategy="channel"),
    "f8_channel": dict(num_bits=8, type="float", strategy="channel"),
    "f8_tensor": dict(num_bits=8, type="float", strategy="tensor"),
    "f8_block": dict(num_bits=8, type="float", strategy="block", block_structure=[8, 24]),
}


def weight(dtype):
    w = torch.randn(ROWS, COLS) * 0.05
    w[2], w[3, :16] = 0, 0
    w[5] = torch.arange(COLS) % 16 - 7.5
    w[6] = torch.arange(COLS) % 16 * 0.5
    w[7], w[8] = w[7].abs() + 0.01, -w[8].abs() - 0.01
    w[9, 40] = 3
    w[10] = 0.75
    return w.to(dtype)


def blocks(w, args):
    """[down, across, values]: those that share a scale."""
    rows, cols = w.shape
    h, v = {"tensor": (rows, cols), "channel": (1, cols), "group": (1, args.group_size)}.get(args.strategy, args.block_structure)
    padded = torch.zeros(-(-rows // h) * h, -(-cols // v) * v, dtype=w.dtype)
    padded[:rows, :cols] = w
    return padded.unflatten(1, (-1, v)).unflatten(0, (-1, h)).transpose(1, 2).flatten(2)


torch.manual_seed(20261129)
out = {}
for name, args in CASES.items():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a = QuantizationArgs(**args)
        case, w = f"{name}.{str(dtype)[6:]}", weight(dtype)
        b = blocks(w, a)
        scale, zero = calculate_qparams(b.amin(-1), b.amax(-1), a)
        dead = (b == 0).all(-1)
        scale[dead] = 1
        if not a.symmetric: zero[dead] = 0
        if a.strategy == "tensor": scale, zero = scale.reshape(1), zero.reshape(1)
        codes = quantize(w.float(), scale.float(), None if a.symmetric else zero, a)
        out |= {f"{case}.weight": w, f"{case}.scale": scale, f"{case}.codes": codes.to(torch.float8_e4m3fn if args.get("type") else torch.int8)}
        if not a.symmetric: out[f"{case}.zero"] = zero.to(torch.int8)
os.makedirs(GOLDEN, exist_ok=True)
save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(GOLDEN, "model.safetensors"), {"format": "pt"})
with open(os.path.join(GOLDEN, "config.json"), "w") as f: json.dump({}, f)
