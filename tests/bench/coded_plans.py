# SPDX-License-Identifier: MIT
"""The bits of coded sets, and of keys before RoPE the pair of each coordinate, as bench_coded_attention.py takes them.

coded_plans.py NAME=SET_FOLDER [...] --out FILE.json
"""
import argparse
import json
from pathlib import Path

import numpy
from safetensors.numpy import load_file


def bits_of(levels):
    """levels (kv_heads, head_dim), powers of two, equal within blocks of 8 channels. The bits of each head's blocks."""
    blocks = levels.reshape(levels.shape[0], -1, 8)
    bits = numpy.log2(blocks[:, :, 0]).astype(int)
    if not (blocks == (1 << bits)[:, :, None]).all():
        raise ValueError("the levels are not powers of two, equal in blocks of 8 channels")
    return bits.tolist()


def plan_of(folder):
    tensors, layers = load_file(Path(folder) / "coded.safetensors"), []
    while f"layers.{len(layers)}.key.levels" in tensors:
        number = len(layers)
        layers.append({side: bits_of(tensors[f"layers.{number}.{side}.levels"]) for side in ("key", "value")})
        if f"layers.{number}.key.pair" in tensors:
            layers[-1]["order"] = tensors[f"layers.{number}.key.pair"].tolist()
    if not layers:
        raise ValueError(f"{folder} has no layer 0")
    return {"head_dim": 8 * len(layers[0]["key"][0]), "layers": layers}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+", metavar="NAME=SET_FOLDER")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    plans = dict(named.split("=", 1) for named in options.sets)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({name: plan_of(folder) for name, folder in plans.items()}, file)


if __name__ == "__main__":
    main()
