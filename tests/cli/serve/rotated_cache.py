# SPDX-License-Identifier: MIT
"""What a server keeps of rotations, by their definition, as a cache of transformers for the sample model, which has one KV head.

Rows between the windows are read as INT2 behind the part's matrices leaves them; a prompt that is given at once sees itself as it is.
"""
import os
import sys
from pathlib import Path

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

sys.path.insert(0, str(Path(os.environ["OSCAR_PROJECT"], "scripts/reference")))
from row_codecs import Codec  # noqa: E402


def as_read(side, codec, rows):
    """rows: (batch, 1, tokens, d)."""
    rotation, read = side.rotation.bfloat16().float(), side.read_rotation.bfloat16().float()
    mean = 0 if side.mean is None else side.mean.float()
    stored = ((rows - mean).bfloat16().float() @ rotation).bfloat16()
    codec = Codec(codec.grid, 4, codec.group_size, float(side.clip_ratios[0]), scale_dtype=codec.scale_dtype)
    return torch.from_numpy(codec.quantized(stored.float().numpy())).bfloat16().float() @ read.transpose(1, 2) + mean


class RotatedLayer(DynamicLayer):
    def __init__(self, part, layer):
        super().__init__()
        self.part, self.sides, self.packed = part, (layer.key, layer.value), None

    def update(self, key_states, value_states, *args, **kwargs):
        sink, recent = self.part.windows
        end = self.get_seq_length() - recent + 1  # of the tokens that the first of these sees packed
        rows = super().update(key_states, value_states, *args, **kwargs)
        if end <= sink:
            return rows
        have = 0 if self.packed is None else self.packed[0].shape[2]
        new = [as_read(side, self.part.codec, x[:, :, sink + have:end]) for side, x in zip(self.sides, rows)]
        self.packed = new if have == 0 else [torch.cat(both, 2) for both in zip(self.packed, new)]
        return tuple(torch.cat([x[:, :, :sink], packed, x[:, :, end:]], 2) for x, packed in zip(rows, self.packed))


class RotatedCache(DynamicCache):
    """part: of oscar_kv.read_set(), for a server that reads rotations."""

    def __init__(self, part, config):
        super().__init__(config=config)
        self.layers = [RotatedLayer(part, layer) for layer in part.to_torch().layers.values()]
