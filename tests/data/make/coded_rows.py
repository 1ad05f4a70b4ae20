# SPDX-License-Identifier: MIT
"""Writes ../codec/coded_rows.safetensors: rows of the coded cache packed by a few lines of numpy, from the definitions in
kernels/reference/coded_row.hpp and oscar/coded_attention.h alone. coded_rows.py; needs numpy and safetensors."""
from pathlib import Path

import numpy

F = numpy.float32
SCALES = numpy.array([2.0 ** ((b - 128) / 16) for b in range(256)]).astype(F)
LEAST = numpy.array([2.0 ** ((b - 128.5) / 16) for b in range(256)]).astype(F)


def ordered_sum(values):
    sums = numpy.zeros(32, F)
    for i, value in enumerate(values):
        sums[i % 32] = F(sums[i % 32] + value)
    for half in (16, 8, 4, 2, 1):
        sums = sums[:half] + sums[half:]
    return sums[0]


def scale_byte(scale):
    return max(int(numpy.searchsorted(LEAST, F(scale), side="right")) - 1, 0)


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


def encode(row, levels, step, sigma):
    """Bytes of a row, and the row that they stand for."""
    inverse = lambda x: F(1) / x
    wide, stored = levels >= 16, levels > 1
    scale, first = numpy.ones(len(row), F), {}
    for name, members in (("wide", wide), ("narrow", stored & ~wide)):
        first[name] = 0
        if members.any():
            ratio = numpy.where(members, row * inverse(numpy.where(stored, sigma, F(1))), F(0)).astype(F)
            first[name] = scale_byte(numpy.sqrt(F(ordered_sum(ratio * ratio) / F(members.sum()))))
            scale[members] = SCALES[first[name]]
    place = row * inverse(numpy.where(stored, step, F(1))) * inverse(scale) + (levels // 2).astype(F)
    codes = numpy.clip(numpy.floor(place), 0, levels - 1).astype(numpy.int64)
    value = lambda s: ((codes.astype(F) - F(0.5) * (levels - 1).astype(F)) * step * s).astype(F)
    kept = numpy.where(stored, value(scale), F(0)).astype(F)
    mine = numpy.where(stored, row, F(0)).astype(F)
    energy, shared = ordered_sum(mine * mine), ordered_sum(mine * kept)
    with numpy.errstate(all="ignore"):
        ratio = F(1) if not energy > 0 or numpy.isinf(energy) and numpy.isinf(shared) else F(energy / shared)
    gain = F(1) if not energy > 0 else F(2) if not shared > 0 else min(max(ratio, F(0.5)), F(2))
    last = [scale_byte(SCALES[first[n]] * gain) if members.any() else 0
            for n, members in (("wide", wide), ("narrow", stored & ~wide))]
    final = numpy.where(wide, SCALES[last[0]], SCALES[last[1]]).astype(F)
    bits = [int(l).bit_length() - 1 for l in levels[::8]]
    return pack(codes, bits) + last, numpy.where(stored, value(final), F(0)).astype(F)


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
        packed, decoded = zip(*(encode(row, levels, step, sigma) for row in rows))
        tensors.update({f"{name}.levels": levels.astype(numpy.int64), f"{name}.step": step, f"{name}.sigma": sigma,
                        f"{name}.rows": rows, f"{name}.bytes": numpy.array(packed, dtype=numpy.uint8),
                        f"{name}.decoded": numpy.stack(decoded)})
    save_file(tensors, Path(__file__).parents[1] / "codec/coded_rows.safetensors")


if __name__ == "__main__":
    main()
