# SPDX-License-Identifier: MIT
"""Writes ../codec/coded_rows.safetensors: rows of the coded cache packed by numpy: codes by scripts/reference/coded.py, bytes by a
few lines, from the definitions in kernels/reference/coded_row.hpp and oscar/coded_attention.h alone. coded_rows.py; needs numpy and safetensors."""
import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts/reference"))
from coded import CodedCodec  # noqa: E402

F = numpy.float32


def placed(bits):
    """[(block, byte of a string, lowest bit in it, width, lowest bit of the code)]: where the bits of the blocks lie."""
    parts, used = [], [0] * -(-sum(bits) // 8)
    for block, width in enumerate(bits):
        done = 0
        while done < width:
            byte = used.index(min(used))
            here = min(width - done, 8 - used[byte])
            parts.append((block, byte, used[byte], here, done))
            used[byte] += here
            done += here
    return parts


def pack(codes, bits):
    """Bytes of the strings of one row: pieces of 16 bytes, then one of 8 if strings have an odd number of bytes."""
    strings = numpy.zeros((-(-sum(bits) // 8), 8), numpy.int64)  # (byte, string)
    for block, byte, position, width, code_bit in placed(bits):
        strings[byte] |= (codes[8 * block:8 * block + 8] >> code_bit & 2**width - 1) << position
    odd = len(strings) % 2
    return [*strings[odd:].reshape(-1, 2, 8).transpose(0, 2, 1).flatten().tolist(), *strings[:odd].flatten().tolist()]


def main():
    from safetensors.numpy import save_file

    numpy.seterr(over="ignore")  # one row of each kind is beyond float32 on purpose
    rng, tensors = numpy.random.default_rng(7), {}
    plans = {"all_widths": [256, 128, 64, 32, 16, 8, 4, 2, 1], "narrow_only": [4, 4, 2, 1], "wide_only": [64, 16, 16],
             "nothing": [1, 1], "one_class_each": [32, 2], "head_128": [128, 32, 16, 8, 8, 4, 4, 4, 4, 2, 2, 2, 1, 1, 1, 1]}
    for name, blocks in plans.items():
        levels = numpy.repeat(numpy.array(blocks), 8)
        sigma = (2.0 ** rng.uniform(-6, 3, len(levels))).astype(F)
        step = (sigma * 3.5 / levels * rng.uniform(0.8, 1.2, len(levels))).astype(F)
        rows = (rng.standard_normal((24, len(levels))) * sigma * 2.0 ** rng.uniform(-12, 12, (24, 1))).astype(F)
        rows[0] = 0
        rows[1, ::3] *= F(40)  # values beyond the grid
        rows[2] *= F(1e-30)    # below the smallest scale
        rows[3] *= F(1e20)     # beyond the largest
        codes, scales, decoded = CodedCodec(levels, step, sigma).encode(rows)
        bits = [int(most).bit_length() - 1 for most in blocks]
        packed = [pack(row, bits) + of_row.tolist() for row, of_row in zip(codes, scales)]
        tensors.update({f"{name}.levels": levels.astype(numpy.int64), f"{name}.step": step, f"{name}.sigma": sigma,
                        f"{name}.rows": rows, f"{name}.bytes": numpy.array(packed, dtype=numpy.uint8),
                        f"{name}.decoded": decoded})
    save_file(tensors, Path(__file__).parents[1] / "codec/coded_rows.safetensors")


if __name__ == "__main__":
    main()
