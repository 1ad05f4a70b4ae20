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
    return np.maximum(np.searchsorted(LEAST, scales.astype(F), side="right") - 1, 0)


@dataclass(frozen=True)
class CodedCodec:
    """Of one KV head; (d) each. Channels of 16 levels and more, and those of 2 to 8, have one scale a row each; 1 level: 0."""
    levels: np.ndarray
    step: np.ndarray  # between levels, where the scale is 1
    sigma: np.ndarray  # of the channel, where the scale is 1

    def quantized(self, x):
        """Rows (T, d) as they are read. Sums are of fp64, where the program's are of fp32 in a fixed order."""
        stored = self.levels > 1
        classes = [stored & (self.levels >= 16), stored & (self.levels < 16)]
        step, sigma = (np.where(stored, each, 1) for each in (self.step, self.sigma))
        first = [scale_bytes(np.sqrt(((x / sigma)[:, members] ** 2).mean(axis=1))) for members in classes if members.any()]
        classes = [members for members in classes if members.any()]
        scales = lambda bytes_: np.select([members[None] for members in classes], [SCALES[each][:, None] for each in bytes_], F(1))
        codes = np.clip(np.floor(x / step / scales(first) + self.levels // 2), 0, self.levels - 1)
        values = lambda bytes_: np.where(stored, (codes - (self.levels - 1) / 2) * step * scales(bytes_), 0)
        mine, kept = np.where(stored, x, 0).astype(np.float64), values(first).astype(np.float64)
        energy, shared = (mine**2).sum(axis=1), (mine * kept).sum(axis=1)
        gain = np.where(energy > 0, np.where(shared > 0, np.clip(energy / np.where(shared > 0, shared, 1), 0.5, 2), 2), 1)
        return values([scale_bytes(SCALES[each] * gain) for each in first]).astype(F)


def turn_of(rotary):
    """(rows (T, d), whether back) -> rows at the positions 0, 1, …, turned as keys are, or as they were before, fp64."""
    pairs = np.array(rotary["pairs"])

    def turned(rows, back):
        far = "far_frequency" in rotary and len(rows) > rotary["near_context"]
        angles = np.arange(len(rows))[:, None] * np.array(rotary["far_frequency" if far else "frequency"]) * (-1 if back else 1)
        x, y = rows[:, pairs[:, 0]].astype(np.float64), rows[:, pairs[:, 1]].astype(np.float64)
        out = rows.astype(np.float64)
        out[:, pairs[:, 0]], out[:, pairs[:, 1]] = x * np.cos(angles) - y * np.sin(angles), x * np.sin(angles) + y * np.cos(angles)
        return out
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
        write, read, turn = own("write"), own("read"), None
        if "rotary" in layer[name]:
            rotary = part["rotary"][layer[name]["rotary"]]
            write, read = (whole(x, own("pair"), np.array(rotary["pairs"])) for x in (write, read))
            turn = turn_of(rotary)
        codecs = [CodedCodec(*rows) for rows in zip(own("levels"), own("step"), own("sigma"))]
        return Side(write, read, codecs, own("mean"), turn)
    return {layer["layer_id"]: (side(layer, "key"), side(layer, "value")) for layer in part["layers"]}
