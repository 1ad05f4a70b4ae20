# SPDX-License-Identifier: MIT
"""Copies a checkpoint with query and key normalisation (Qwen3) and gives its keys outlier channels that change nothing.

outlier_channels.py MODEL OUT [--channels 5,23,41] [--factor 12]
k_norm is multiplied by the factor, q_norm divided by it, in the channels named and in their partners under rotary position
embedding, channel + head_dim / 2: every logit stays what it was, but for the rounding of the weights. Rotations cannot undo
this, stretches can. OUT must not exist.
"""
import argparse
import json
import shutil
import struct
from pathlib import Path

import numpy as np


def scaled(raw, dtype, scale):
    """The bytes of a vector, times scale (n), rounded to its dtype."""
    if dtype == "F32":
        return (np.frombuffer(raw, "<f4") * scale).astype("<f4").tobytes()
    if dtype != "BF16":
        raise SystemExit(f"outlier_channels: weights of type {dtype} are not supported")
    wide = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4") * scale
    bits = wide.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def rewrite(path, channels, factor):
    """Returns the number of vectors changed, in place."""
    data = bytearray(path.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    changed = 0
    for name, entry in json.loads(data[8:start]).items():
        if not name.endswith((".self_attn.k_norm.weight", ".self_attn.q_norm.weight")):
            continue
        dim = entry["shape"][0]
        scale = np.ones(dim, "<f4")
        scale[channels + [channel + dim // 2 for channel in channels]] = factor if ".k_norm." in name else 1 / factor
        begin, end = (start + offset for offset in entry["data_offsets"])
        data[begin:end] = scaled(bytes(data[begin:end]), entry["dtype"], scale)
        changed += 1
    path.write_bytes(data)
    return changed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--channels", type=lambda text: [int(part) for part in text.split(",")], default=[5, 23, 41])
    parser.add_argument("--factor", type=float, default=12.0)
    options = parser.parse_args()
    shutil.copytree(options.model, options.out)
    changed = sum(rewrite(path, options.channels, options.factor) for path in sorted(options.out.glob("*.safetensors")))
    if changed == 0:
        raise SystemExit(f"outlier_channels: {options.model} has no k_norm and q_norm weights")
    print(f"{changed} vectors changed in {options.out}")


if __name__ == "__main__":
    main()
