# SPDX-License-Identifier: MIT
"""What a set does to the keys, or to the values, of one layer of a served cache:

    stored = bf16(bf16(x - mean) bf16(rotation)),   native = stored bf16(read)^T + mean,   q' = bf16(bf16(q) bf16(read))

Rows are (..., KV heads, rows, d). Needs torch only. Non-goals: where rows are kept.
"""
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .coded_rows import CodedCodec
from .rotation_set import Side
from .row_codec import RowCodec

# What the published serving scripts use, for sets that do not say.
_PUBLISHED_CLIP = {"key": 0.96, "value": 0.92}


def of_heads(side: Side, first: int, count: int) -> Side:
    """The part of a tensor-parallel rank that holds these KV heads; what all heads share stays whole."""
    def own(x: Any) -> Any:
        return x if x is None or x.shape[0] == 1 else x[first:first + count]

    return replace(side, rotation=own(side.rotation), read_rotation=own(side.read_rotation), mean=own(side.mean),
                   head_clip_ratios=own(side.head_clip_ratios), levels=own(side.levels), step=own(side.step),
                   sigma=own(side.sigma))


def _codec(manifest: dict[str, Any], name: str, side: Side) -> RowCodec | CodedCodec:
    if side.levels is not None:
        return CodedCodec(side.levels, side.step, side.sigma)
    clip = side.head_clip_ratios if side.head_clip_ratios is not None else side.clip_ratio
    if clip is None:
        clip = _PUBLISHED_CLIP[name]
        warnings.warn(f"the rotation set does not say its clip ratios for {name}s; {clip} is used, as in the published scripts",
                      stacklevel=3)
    return RowCodec.of_set(manifest, name, clip)


def _product(rows: Tensor, matrices: Tensor) -> Tensor:
    """(..., heads, rows, d) by one matrix of all heads, as one product, or by one of each."""
    return rows @ (matrices[0] if len(matrices) == 1 else matrices)


class Int2Side:
    """Raises ValueError if rows do not fit the set's matrices."""

    def __init__(self, manifest: dict[str, Any], name: str, layer_id: int, side: Side):
        self.name, self.layer_id = name, layer_id
        self.codec = _codec(manifest, name, side)
        # Rounded as servers round, then in float32: products of bfloat16 matrices with float32 sums.
        self.rotation = side.rotation.bfloat16().float()
        self.read_rotation = side.read_rotation.bfloat16().float()
        self.mean = None if side.mean is None else side.mean.float().reshape(-1, 1, side.mean.shape[-1])
        self._expanded: dict[tuple[int, int], Tensor] = {}

    def place(self, heads: int, dim: int, device: torch.device, dtype: torch.dtype) -> None:
        """Checks the shape of rows of this device and type, and moves the matrices to them."""
        count, known = self.rotation.shape[:2]
        if dim != known or count not in (1, heads):
            raise ValueError(f"layer {self.layer_id}: {self.name} rows of {heads} heads of {dim} do not fit "
                             f"{count} matrices of {known} x {known}; is this a set for another model?")
        if self.mean is not None and self.mean.shape[0] not in (1, heads):
            raise ValueError(f"layer {self.layer_id}: means of {self.mean.shape[0]} heads for {heads}")
        if isinstance(self.codec, CodedCodec):
            if len(self.codec.heads) != heads:
                raise ValueError(f"layer {self.layer_id}: {self.name} formats of {len(self.codec.heads)} heads for {heads}")
            self.codec.to(device)
        ratios = self.codec.clip_ratio
        if isinstance(ratios, Tensor) and len(ratios) != heads:
            raise ValueError(f"layer {self.layer_id}: {self.name} clip ratios of {len(ratios)} heads for {heads}")
        # The same products: bfloat16 in, float32 sums. The CPU multiplies faster in float32.
        product_type = torch.bfloat16 if device.type == "cuda" and dtype == torch.bfloat16 else torch.float32
        self.rotation = self.rotation.to(device, product_type)
        self.read_rotation = self.read_rotation.to(device, product_type)
        self.mean = None if self.mean is None else self.mean.to(device)
        self._expanded = {}

    def stored(self, native: Tensor) -> Tensor:
        """bfloat16."""
        rows = native if self.mean is None else native.float() - self.mean
        return _product(rows.bfloat16().to(self.rotation.dtype), self.rotation).bfloat16()

    def native(self, stored: Tensor) -> Tensor:
        """Of values of bfloat16, float32."""
        rows = _product(stored.to(self.read_rotation.dtype), self.read_rotation.transpose(-1, -2)).float()
        return rows if self.mean is None else rows + self.mean

    def queries(self, native: Tensor) -> Tensor:
        """Queries for stored keys, bfloat16; scores of a query are off by one constant if keys are centred."""
        return _product(native.bfloat16().to(self.read_rotation.dtype), self.read_rotation).bfloat16()

    def store(self, native: Tensor, out: Tensor) -> None:
        """stored() of rows (tokens, KV heads, d) into bfloat16 of that shape."""
        if self.rotation.dtype != torch.bfloat16:
            out.copy_(self.stored(native.transpose(0, 1)).transpose(0, 1))
            return
        if self.mean is not None:
            native = torch.sub(native, self.mean.transpose(0, 1), out=torch.empty_like(out))
        _multiply(native, self.rotation, out)

    def turn(self, queries: Tensor, out: Tensor) -> None:
        """queries() of (tokens, query heads, d) into bfloat16 of that shape."""
        read = self._of_query_heads(self.read_rotation, queries.shape[1])
        if read.dtype == torch.bfloat16:
            _multiply(queries, read, out)
        else:
            out.copy_((queries.transpose(0, 1).bfloat16().to(read.dtype) @ read).transpose(0, 1))

    def turn_back(self, stored: Tensor, out: Tensor) -> None:
        """native() of outputs (tokens, query heads, d), bfloat16, into bfloat16 of that shape."""
        read = self._of_query_heads(self.read_rotation, stored.shape[1]).transpose(1, 2)
        if read.dtype == torch.bfloat16:
            _multiply(stored, read, out)
        else:
            out.copy_((stored.transpose(0, 1).to(read.dtype) @ read).transpose(0, 1))
        if self.mean is not None:
            out += self._of_query_heads(self.mean, stored.shape[1]).transpose(0, 1)

    def place_for_queries(self, heads: int) -> None:
        """Makes what turn() and turn_back() keep for so many query heads, as the capture of a graph must not."""
        for x in (self.read_rotation, self.mean):
            if x is not None:
                self._of_query_heads(x, heads)

    def _of_query_heads(self, x: Tensor, heads: int) -> Tensor:
        """(KV heads or 1, ...) as (query heads, ...), the same tensor in each call."""
        if len(x) == 1:
            return x.expand(heads, *x.shape[1:])
        key = (x.data_ptr(), heads)
        if key not in self._expanded:
            self._expanded[key] = x.repeat_interleave(heads // len(x), 0)
        return self._expanded[key]


def _multiply(rows: Tensor, matrices: Tensor, out: Tensor) -> None:
    """rows (tokens, heads, d) by (heads or 1, d, d) into `out`: one product, which copies nothing."""
    torch.bmm(rows.transpose(0, 1), matrices.expand(rows.shape[1], -1, -1), out=out.transpose(0, 1))
