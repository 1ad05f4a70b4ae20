# SPDX-License-Identifier: MIT
"""The keys, or the values, of one layer of an Int2Cache: windows in bfloat16, the history packed.

    stored = bf16(bf16(x - mean) bf16(rotation)),   history = decode(encode(stored)),   native = stored bf16(read)^T + mean

The history holds the tokens [sink, length - recent] that the next token sees packed, the window all others.
"""
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .rotation_set import Side
from .row_codec import RowCodec

# What the published serving scripts use, for sets that do not say.
_PUBLISHED_CLIP = {"key": 0.96, "value": 0.92}
_ROOM = 256  # tokens; the history grows by steps of so many, and by a quarter


class _Grown:
    """(batch, heads, tokens, ...), with room for more tokens."""

    def __init__(self, first: Tensor):
        self.data, self.length = first, first.shape[2]

    def append(self, rows: Tensor) -> None:
        end = self.length + rows.shape[2]
        if end > self.data.shape[2]:
            room = -(-max(end, self.data.shape[2] * 5 // 4) // _ROOM) * _ROOM
            larger = self.data.new_empty(*self.data.shape[:2], room, *self.data.shape[3:])
            larger[:, :, :self.length] = self.rows()
            self.data = larger
        self.data[:, :, self.length:end] = rows
        self.length = end

    def rows(self) -> Tensor:
        return self.data[:, :, :self.length]


class SideRows:
    """Raises ValueError if rows do not fit the set's matrices."""

    def __init__(self, manifest: dict[str, Any], name: str, layer_id: int, side: Side, sink: int, recent: int):
        self.name, self.layer_id, self.sink, self.recent = name, layer_id, sink, recent
        clip = side.head_clip_ratios if side.head_clip_ratios is not None else side.clip_ratio
        self.codec = RowCodec.of_set(manifest, name, _PUBLISHED_CLIP[name] if clip is None else clip)
        # Rounded as servers round, then in float32: products of bfloat16 matrices with float32 sums.
        self.rotation = side.rotation.bfloat16().float()
        self.native_from_stored = side.read_rotation.bfloat16().float().transpose(-1, -2)
        self.mean = None if side.mean is None else side.mean.float().reshape(-1, 1, side.mean.shape[-1])
        self.clear()

    def clear(self) -> None:
        self.length = 0
        self.window: Tensor | None = None
        self.codes: _Grown | None = None
        self.params: _Grown | None = None

    def begin(self, states: Tensor) -> None:
        """Checks the shape of the first rows, and moves the matrices to where they are."""
        heads, dim = states.shape[1], states.shape[3]
        count, known = self.rotation.shape[:2]
        if dim != known or count not in (1, heads):
            raise ValueError(f"layer {self.layer_id}: {self.name} rows of {heads} heads of {dim} do not fit "
                             f"{count} matrices of {known} x {known}; is this a set for another model?")
        if self.mean is not None and self.mean.shape[0] not in (1, heads):
            raise ValueError(f"layer {self.layer_id}: means of {self.mean.shape[0]} heads for {heads}")
        device = states.device
        self.rotation, self.native_from_stored = self.rotation.to(device), self.native_from_stored.to(device)
        self.mean = None if self.mean is None else self.mean.to(device)
        self.window = states.new_empty(states.shape[0], heads, 0, dim, dtype=torch.bfloat16)
        self.codes, self.params = (_Grown(x) for x in self.codec.encode(self.window))

    def append(self, states: Tensor) -> None:
        rows = states.float() if self.mean is None else states.float() - self.mean
        stored = (rows.bfloat16().float() @ self.rotation).bfloat16()
        self.window = torch.cat([self.window, stored], 2)
        self.length += states.shape[2]

    def history(self) -> Tensor:
        """Decoded, as stored before, float32."""
        rows = self.codec.decode(self.codes.rows(), self.params.rows(), self.window.shape[3])
        return rows.bfloat16().float()

    def read(self) -> Tensor:
        """All rows in the order of their tokens, in native coordinates, float32."""
        window = self.window.float()
        return self.native(torch.cat([window[:, :, :self.sink], self.history(), window[:, :, self.sink:]], 2))

    def native(self, stored: Tensor) -> Tensor:
        rows = stored @ self.native_from_stored
        return rows if self.mean is None else rows + self.mean

    def queries(self, native: Tensor) -> Tensor:
        """Queries for stored keys, (batch, heads, tokens, d) float32; scores of a query are off by one constant if keys
        are centred."""
        return (native.bfloat16().float() @ self.native_from_stored.transpose(-1, -2)).bfloat16().float()

    def evict(self) -> None:
        """Packs what the next token does not see in a window."""
        begin = self.sink + self.codes.length
        count = min(self.length, self.length - self.recent + 1) - begin
        if count <= 0:
            return
        codes, params = self.codec.encode(self.window[:, :, self.sink:self.sink + count])
        self.codes.append(codes)
        self.params.append(params)
        self.window = torch.cat([self.window[:, :, :self.sink], self.window[:, :, self.sink + count:]], 2)

    def change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Selects or repeats sequences."""
        self.window = change(self.window)
        for grown in (self.codes, self.params):
            grown.data = change(grown.data)

    def nbytes(self) -> int:
        return 0 if self.window is None else sum(x.nbytes for x in (self.window, self.codes.data, self.params.data))
