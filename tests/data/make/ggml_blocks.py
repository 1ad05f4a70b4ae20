# SPDX-License-Identifier: MIT
"""Makes tests/data/tensor/ggml_blocks.safetensors: blocks of ggml's types and their values by the package gguf.

    .venv/bin/python tests/data/make/ggml_blocks.py tests/data/tensor/ggml_blocks.safetensors

For each type that lib/tensor/ggml_blocks.hpp reads, NAME.blocks is uint8 [n, bytes] and NAME.values float32 [n, values]:
random bytes whose scales are finite halves, the smallest and largest scales, and rows that gguf itself quantised, where it
can. `sizes` is int32 [types, 3] with each type's number, values and bytes; the metadata `names` has their names.
"""
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

# Where each type's blocks have half-precision numbers.
HALVES = {Type.F32: [], Type.F16: [0], Type.BF16: [], Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0],
          Type.Q5_1: [0, 2], Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
          Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: []}
# The smallest half, the largest subnormal one (negative), negative zero, and the largest.
EXTREME_HALVES = [0x0001, 0x83ff, 0x8000, 0x7bff]
# Exponents of MXFP4: the subnormal ones, the smallest normal one, and the largest.
EXTREME_EXPONENTS = [0, 1, 2, 254, 255]
RANDOM_BLOCKS = 3
QUANTISED_BLOCKS = 3

random = np.random.default_rng(20240917)


def random_blocks(kind):
    """Random bytes, and random halves whose exponents are those of scales."""
    blocks = random.integers(0, 256, (RANDOM_BLOCKS, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    if kind is Type.F32:
        return random.standard_normal((RANDOM_BLOCKS, 1)).astype("<f4").view(np.uint8)
    for place in HALVES[kind]:
        halves = (random.standard_normal((RANDOM_BLOCKS, 1)) * 2.0 ** random.integers(-20, 4, (RANDOM_BLOCKS, 1))).astype("<f2")
        blocks[:, place:place + 2] = halves.view(np.uint8)
    return blocks


def extreme_blocks(kind):
    """One random block several times, each with another extreme scale; large blocks only with the smallest."""
    if kind is Type.MXFP4:
        blocks = random_blocks(kind)[[0] * len(EXTREME_EXPONENTS)]
        blocks[:, 0] = EXTREME_EXPONENTS
        return blocks
    extremes = np.array(EXTREME_HALVES if GGML_QUANT_SIZES[kind][0] < 256 else EXTREME_HALVES[:1], "<u2").reshape(-1, 1)
    blocks = random_blocks(kind)[[0] * (len(extremes) if HALVES[kind] else 0)]
    for place in HALVES[kind]:
        blocks[:, place:place + 2] = extremes.view(np.uint8)
    return blocks


def quantised_blocks(kind):
    """Rows of normal numbers as gguf quantises them; none where it cannot."""
    values, size = GGML_QUANT_SIZES[kind]
    rows = random.standard_normal((QUANTISED_BLOCKS, values)).astype(np.float32)
    try:
        return quantize(rows, kind).view(np.uint8).reshape(-1, size)
    except NotImplementedError:
        return np.zeros((0, size), np.uint8)


def main(target):
    # ggml's Q8_1 has 36 bytes; gguf still has the 40 of an early version.
    sizes = {kind: size for kind, size in GGML_QUANT_SIZES.items() if kind is not Type.Q8_1}
    tensors = {"sizes": np.array([(kind, *size) for kind, size in sizes.items()], np.int32)}
    for kind in HALVES:
        blocks = np.concatenate([random_blocks(kind), extreme_blocks(kind), quantised_blocks(kind)])
        with np.errstate(all="ignore"):
            values = dequantize(blocks, kind)
        tensors[f"{kind.name}.blocks"] = blocks
        tensors[f"{kind.name}.values"] = np.ascontiguousarray(values, np.float32)
    save_file(tensors, target, {"names": " ".join(kind.name for kind in sizes)})


if __name__ == "__main__":
    main(*sys.argv[1:])
