# SPDX-License-Identifier: MIT
"""What a server keeps of rotations, by their definition, as a cache of transformers for the sample model, which has one KV head.

Rows between the windows are read as INT2 behind the part's matrices leaves them; a prompt that is given at once sees itself as it is.
"""
import json
import os
import sys
from pathlib import Path

import h5py
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

sys.path.insert(0, str(Path(os.environ["OSCAR_PROJECT"], "scripts/reference")))
from row_codecs import Codec  # noqa: E402


def sides_of(folder, reader, clipped):
    """Of each layer what a reader of rotations does to keys, and to values: (matrix, what undoes it, mean, codec)."""
    manifest = json.loads((folder / "manifest.json").read_text())
    part = manifest["readers"][reader]
    said = manifest["parts"][part]
    with h5py.File(folder / ("with_means/rotations.h5" if part == "with_means" else "rotations.h5")) as file:
        def side(layer, name, read):
            group, ratio = file[f"layers/{layer['layer_id']}/{name}"], layer[name]["clip_ratio"] if clipped else 0
            matrix, undoes, mean = (torch.from_numpy(group[each][()]).float().reshape(-1, group["rotation"].shape[-1]) if each in group else None
                                    for each in ("rotation", read, "mean"))
            codec = Codec(said["codec"]["name"], 4, said["codec"]["group_size"], ratio, scale_dtype=said["codec"]["scale_dtype"])
            return matrix, matrix if undoes is None else undoes, 0 if mean is None else mean, codec

        return [manifest["windows"][each] for each in ("sink", "recent")], [(side(each, "key", "q_rotation"), side(each, "value", "o_rotation")) for each in said["layers"]]


def as_read(side, rows):
    """rows: (batch, 1, tokens, d)."""
    matrix, undoes, mean, codec = side
    stored = ((rows - mean).bfloat16().float() @ matrix.bfloat16().float()).bfloat16()
    return torch.from_numpy(codec.quantized(stored.float().numpy())).bfloat16().float() @ undoes.bfloat16().float().T + mean


class RotatedLayer(DynamicLayer):
    def __init__(self, windows, sides):
        super().__init__()
        self.windows, self.sides, self.packed = windows, sides, None

    def update(self, key_states, value_states, *args, **kwargs):
        sink, recent = self.windows
        end = self.get_seq_length() - recent + 1  # of the tokens that the first of these sees packed
        rows = super().update(key_states, value_states, *args, **kwargs)
        if end <= sink:
            return rows
        have = 0 if self.packed is None else self.packed[0].shape[2]
        new = [as_read(side, x[:, :, sink + have:end]) for side, x in zip(self.sides, rows)]
        self.packed = new if have == 0 else [torch.cat(both, 2) for both in zip(self.packed, new)]
        return tuple(torch.cat([x[:, :, :sink], packed, x[:, :, end:]], 2) for x, packed in zip(rows, self.packed))


class RotatedCache(DynamicCache):
    """Of the part of a set that a reader of rotations takes; clipped: whether it takes the fitted clip ratios."""

    def __init__(self, folder, reader, config, clipped=True):
        super().__init__(config=config)
        windows, layers = sides_of(folder, reader, clipped)
        self.layers = [RotatedLayer(windows, sides) for sides in layers]
