#!/usr/bin/env python3
"""Are our safetensors files, byte by byte, those that the safetensors library writes?

  safetensors_bytes.py check PATH...   every .safetensors file of the folders (or the files) is serialized again by the library
                                       from its tensors, and the index from its weight map; any difference is an error
  safetensors_bytes.py golden OUT      writes the file that tests/unit/test_writer.c compares with

Needs `pip install safetensors` (0.8 or later); not part of `make test`.
"""
import ctypes
import json
import struct
import sys
from pathlib import Path

import safetensors

# The library's name of a type in its Python interface, by the name in the file.
PYTHON_NAME = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32",
    "F64": "float64", "I64": "int64", "U64": "uint64",
}
SIZE = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4,
        "F32": 4, "F64": 8, "I64": 8, "U64": 8}
INDEX = "model.safetensors.index.json"


def serialize(tensors):
    """tensors: name to (type, shape, bytes)."""
    keep, specs = [], {}
    for name, (dtype, shape, data) in tensors.items():
        buffer = ctypes.create_string_buffer(data, max(len(data), 1))
        keep.append(buffer)
        specs[name] = safetensors.TensorSpec(dtype=PYTHON_NAME[dtype], shape=shape, data_ptr=ctypes.addressof(buffer), data_len=len(data))
    return bytes(safetensors.serialize(specs, {"format": "pt"}))


def parse(blob):
    n = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:8 + n])
    header.pop("__metadata__", None)
    data = blob[8 + n:]
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}


def check_file(path):
    blob = path.read_bytes()
    tensors = parse(blob)
    wanted = serialize(tensors)
    if blob != wanted:
        at = next((i for i, (a, b) in enumerate(zip(blob, wanted)) if a != b), min(len(blob), len(wanted)))
        sys.exit(f"{path}: differs from the library's bytes at {at}: {blob[at:at + 80]!r}, expected {wanted[at:at + 80]!r}")
    print(f"{path}: equal, {len(tensors)} tensors, {len(blob)} bytes")
    return tensors


def check_folder(folder):
    weight_map, total = {}, 0
    for path in sorted(folder.glob("*.safetensors")):
        for name, (_, _, data) in check_file(path).items():
            weight_map[name] = path.name
            total += len(data)
    index = folder / INDEX
    if index.exists():
        wanted = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2, sort_keys=True) + "\n"
        if index.read_text() != wanted:
            sys.exit(f"{index}: differs from what transformers would write")
        print(f"{index}: equal")
    config = folder / "config.json"
    if config.exists() and config.read_text() != json.dumps(json.loads(config.read_text()), indent=2, sort_keys=True) + "\n":
        sys.exit(f"{config}: differs from what transformers would write")


def golden():
    """One tensor of each type and some that are odd; byte i of the k-th tensor is 17 k + i. As declared in test_writer.c."""
    shapes = [(d.lower(), d, [3]) for d in PYTHON_NAME]
    shapes += [("model.layers.10.w", "BF16", [2, 5]), ("model.layers.9.w", "BF16", [5, 2]), ("scalar", "F32", []), ("empty", "F32", [0, 4]),
               ("\u00e9\"\\\b\t\n\f\r\x01\x1f\x7f/", "I8", [1, 1, 1])]
    tensors = {}
    for k, (name, dtype, shape) in enumerate(shapes):
        n = SIZE[dtype]
        for d in shape:
            n *= d
        tensors[name] = (dtype, shape, bytes((17 * k + i) & 255 for i in range(n)))
    return serialize(tensors)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "golden":
        Path(sys.argv[2]).write_bytes(golden())
    elif len(sys.argv) > 2 and sys.argv[1] == "check":
        for path in map(Path, sys.argv[2:]):
            check_folder(path) if path.is_dir() else check_file(path)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
