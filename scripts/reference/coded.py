# SPDX-License-Identifier: MIT
"""The coded cache: rows y = (x - mean) W as codes whose channels have levels of their own, of keys after or before RoPE."""
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attention import Side
from layers import read_tensors

F = np.float32
SCALES = np.array([2.0 ** ((b - 128) / 16) for b in range(256)]).astype(F)  # what the two bytes of a row stand for
LEAST = np.array([2.0 ** ((b - 128.5) / 16) for b in range(256)]).astype(F)


def scale_bytes(scales):
    return np.maximum(np.searchsorted(LEAST, scales, side="right") - 1, 0)


def ordered_sum(x):
    """Of rows (T, d) in float32, in the order of the definition: 32 partial sums, which are added in halves."""
    blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    sums = np.zeros_like(blocks[:, 0])
    for block in blocks.swapaxes(0, 1):
        sums = sums + block
    for half in (16, 8, 4, 2, 1):
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


@dataclass(frozen=True)
class CodedCodec:
    """Of one KV head; (d) each. Channels of 16 levels and more, and those of 2 to 8, have one scale a row each; 1 level: 0."""
    levels: np.ndarray
    step: np.ndarray  # between levels, where the scale is 1; float32, as all arithmetic is
    sigma: np.ndarray  # of the channel, where the scale is 1

    def encode(self, x):
        """Rows (T, d) float32 -> codes (T, d), the bytes of both scales (T, 2), rows as they are read (T, d) float32."""
        stored = self.levels > 1
        step, sigma = (F(1) / np.where(stored, each, F(1)) for each in (self.step, self.sigma))
        classes = [stored & (self.levels >= 16), stored & (self.levels < 16)]

        def scales(numbers):
            return np.select([members[None] for members in classes], [SCALES[each][:, None] for each in numbers.T], F(1))

        first = np.zeros((len(x), 2), np.int64)
        for number, members in enumerate(classes):
            if members.any():
                ratio = np.where(members, x * sigma, F(0))
                first[:, number] = scale_bytes(np.sqrt(ordered_sum(ratio * ratio) / F(members.sum())))
        place = x * step * (F(1) / scales(first)) + (self.levels // 2).astype(F)
        codes = np.clip(np.floor(place), 0, self.levels - 1).astype(np.int64)

        def read(numbers):
            values = (codes.astype(F) - F(0.5) * (self.levels - 1).astype(F)) * self.step * scales(numbers)
            return np.where(stored, values, F(0)).astype(F)

        mine, kept = np.where(stored, x, F(0)), read(first)
        energy, shared = ordered_sum(mine * mine), ordered_sum(mine * kept)
        with np.errstate(all="ignore"):
            ratio = np.where(~(energy > 0) | (np.isinf(energy) & np.isinf(shared)), F(1), energy / shared)
        gain = np.where(energy > 0, np.where(shared > 0, np.clip(ratio, F(0.5), F(2)), F(2)), F(1)).astype(F)
        last = np.stack([scale_bytes(SCALES[each] * gain) * members.any() for each, members in zip(first.T, classes)], axis=1)
        return codes, last, read(last)

    def quantized(self, x):
        return self.encode(np.asarray(x, F))[2]


def turn_of(rotary):
    """(rows (T, d) at the positions 0, 1, …, whether back, mean) -> keys of what the coded cache stores of them but for its basis, or, where
    back, that of keys. Fast pairs stand as they are but for their mean, which is turned; others are turned back, mean and all, by the middle
    of the block of positions that they are in. fp64."""
    pairs, frequency = np.array(rotary["pairs"]), np.array(rotary["frequency"])
    far_frequency = np.array(rotary.get("far_frequency", frequency))
    fast = np.maximum(np.abs(frequency), np.abs(far_frequency)) > rotary["fast_frequency"]
    block = rotary["turn_block"]

    def turned_by(rows, positions, frequencies):
        angles = positions[:, None] * frequencies
        x, y = rows[:, pairs[:, 0]].astype(np.float64), rows[:, pairs[:, 1]].astype(np.float64)
        out = rows.astype(np.float64)
        out[:, pairs[:, 0]], out[:, pairs[:, 1]] = x * np.cos(angles) - y * np.sin(angles), x * np.sin(angles) + y * np.cos(angles)
        return out

    def turned(rows, back, mean):
        own = far_frequency if "near_context" in rotary and len(rows) > rotary["near_context"] else frequency
        positions = np.arange(len(rows))
        anchors, slow = positions // block * block + block // 2, np.where(fast, 0, own)
        means = turned_by(np.broadcast_to(mean, rows.shape), positions, np.where(fast, own, 0))
        return turned_by(rows, anchors, -slow) - means if back else turned_by(rows + means, anchors, slow)
    return turned


def whole(entries, pair, pairs):
    """(Hkv, d, d) of the two entries that each coordinate has, those of its pair of channels."""
    out = np.zeros((*pair.shape, pair.shape[1]), F)
    for head, coordinate in np.ndindex(pair.shape):
        out[head, pairs[pair[head, coordinate]], coordinate] = entries[head, coordinate]
    return out


def coded_sides(folder):
    """{layer id: (keys, values)} of a set's coded part; none if it has none."""
    manifest = json.loads((Path(folder) / "manifest.json").read_text())
    part = manifest["parts"].get("coded")
    if part is None:
        return {}
    tensors = read_tensors(Path(folder) / "coded.safetensors")

    def side(layer, name):
        own = lambda what: tensors.get(f"layers.{layer['layer_id']}.{name}.{what}")
        write, turn = own("write"), None
        if "rotary" in layer[name]:
            rotary = part["rotary"][layer[name]["rotary"]]
            write, turn = whole(write, own("pair"), np.array(rotary["pairs"])), turn_of(rotary)
        codecs = [CodedCodec(*rows) for rows in zip(own("levels"), own("step"), own("sigma"))]
        read = np.linalg.inv(write.astype(np.float64)).swapaxes(1, 2).astype(F)
        return Side(write, read, codecs, own("mean"), turn)
    return {layer["layer_id"]: (side(layer, "key"), side(layer, "value")) for layer in part["layers"]}
