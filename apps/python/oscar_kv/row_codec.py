# SPDX-License-Identifier: MIT
"""The row codecs of rotation sets in torch, on any device: rows become packed codes and one (scale, zero) a group.

x^ = (code - zero) scale. Rows are (batch, heads, tokens, d). Formulas and rounding are those of the
program (kernels/README.md); sums of "lsq" and "lloyd-max" run in another order, which can turn a code at the edge
between two levels. Non-goals: transforms, caches.
"""
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_SMALLEST_SCALE = 1e-8
_LSQ_REFITS = 3
_LLOYD_MAX_THRESHOLD, _LLOYD_MAX_STEP = 0.98107, 1.16 * (2 * 1.50956 / 3)
_PARAM_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@cache
def _gaussian_step(levels: int) -> float:
    """Distance of the levels of the best uniform grid for N(0, 1), to the four digits that it is known by."""
    x = torch.linspace(-8, 8, 160001, dtype=torch.float64)
    weight = torch.exp(-x * x / 2)

    def error(step: float) -> float:
        codes = (x / step + (levels - 1) / 2).round().clamp(0, levels - 1)
        return float((weight * (x - (codes - (levels - 1) / 2) * step)**2).sum())

    low, high = 0.0, 3.0
    while high - low > 1e-6:
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if error(a) < error(b) else (a, high)
    return round(low, 4)


def _minmax(x: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    # By a tensor: torch on CUDA multiplies by the rounded inverse of a number, and ties between two levels are common.
    scale = (high - low).clamp(min=_SMALLEST_SCALE) / torch.full_like(low, levels - 1)
    zero = -low / scale
    return (x / scale + zero + 0.5).trunc().clamp(0, levels - 1), scale, zero


def _lsq(x: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    x = x.double()
    mean = x.mean(-1, keepdim=True)
    scale = _gaussian_step(levels) * (x - mean).square().mean(-1, keepdim=True).sqrt() + 1e-8
    low = mean - scale * (levels - 1) / 2
    codes = x
    for refit in range(_LSQ_REFITS + 1):
        codes = ((x - low) / scale + 0.5).floor().clamp(0, levels - 1)
        if refit == _LSQ_REFITS:
            break
        centre = codes.mean(-1, keepdim=True)
        spread = (codes - centre).square().sum(-1, keepdim=True).clamp(min=1e-6)
        scale = (((codes - centre) * (x - mean)).sum(-1, keepdim=True) / spread).clamp(min=_SMALLEST_SCALE)
        low = mean - scale * centre
    projection = (x * (codes * scale + low)).sum(-1, keepdim=True).clamp(min=1e-9)
    return codes, scale * (x * x).sum(-1, keepdim=True) / projection, -low / scale


def _lloyd_max(x: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    x = x.double()
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean).square().mean(-1, keepdim=True) + 1e-8).sqrt()
    thresholds = torch.tensor([-_LLOYD_MAX_THRESHOLD, 0, _LLOYD_MAX_THRESHOLD], dtype=x.dtype, device=x.device)
    scale = _LLOYD_MAX_STEP * deviation
    return torch.bucketize(((x - mean) / deviation).contiguous(), thresholds, right=True), scale, 1.5 - mean / scale


_GRIDS = {"minmax": _minmax, "lsq": _lsq, "lloyd-max": _lloyd_max}


@dataclass(frozen=True)
class Layout:
    """How codes of a row become bytes, as the program packs them: words of `codes` codes in `bits` bits, c0 + L c1 + …,
    follow each other from the lowest bit of the first byte. `interleaved`: INT2, where a byte has the codes of channels
    i, i + d/4, i + d/2 and i + 3d/4."""

    levels: int
    codes: int
    bits: int
    interleaved: bool

    @staticmethod
    @cache
    def of(levels: int, dim: int) -> "Layout":
        if levels == 4 and dim % 4 == 0:
            return Layout(4, 4, 8, True)
        words = [(n, math.ceil(n * math.log2(levels) - 1e-9)) for n in range(1, 9)]
        codes, bits = min((word for word in words if word[1] <= 8), key=lambda word: word[1] / word[0])
        return Layout(levels, codes, bits, False)

    def row_bytes(self, dim: int) -> int:
        return math.ceil(math.ceil(dim / self.codes) * self.bits / 8)

    def pack(self, codes: Tensor) -> Tensor:
        """codes (..., d), any type -> uint8 (..., row_bytes(d))."""
        dim = codes.shape[-1]
        if self.interleaved:
            codes = codes.unflatten(-1, (4, dim // 4)).transpose(-1, -2).flatten(-2)
        padded = torch.nn.functional.pad(codes.to(torch.int32), (0, -dim % self.codes))
        powers = torch.tensor([self.levels**i for i in range(self.codes)], dtype=torch.int32, device=codes.device)
        words = (padded.unflatten(-1, (-1, self.codes)) * powers).sum(-1)
        if self.bits == 8:
            return words.to(torch.uint8)
        bits = (words[..., None] >> torch.arange(self.bits, device=codes.device)) & 1
        bits = torch.nn.functional.pad(bits.flatten(-2), (0, -words.shape[-1] * self.bits % 8)).unflatten(-1, (-1, 8))
        return (bits << torch.arange(8, device=codes.device)).sum(-1).to(torch.uint8)

    def unpack(self, packed: Tensor, dim: int) -> Tensor:
        """The inverse: uint8 codes (..., dim)."""
        words = packed
        if self.bits < 8:
            first = torch.arange(math.ceil(dim / self.codes), device=packed.device) * self.bits
            wide = torch.nn.functional.pad(packed, (0, 1)).to(torch.int32)
            both = wide[..., first // 8] | (wide[..., first // 8 + 1] << 8)
            words = (both >> (first % 8)) & (2**self.bits - 1)
        codes = _digits(self.levels, self.codes, packed.device)[words.long()].flatten(-2)
        if self.interleaved:
            return codes.unflatten(-1, (dim // 4, 4)).transpose(-1, -2).flatten(-2)
        return codes[..., :dim]


@cache
def _digits(levels: int, count: int, device: Any) -> Tensor:
    """uint8 (256, count): the codes in each word."""
    words = torch.arange(256, device=device)
    return torch.stack([words // levels**i % levels for i in range(count)], -1).to(torch.uint8)


@dataclass(frozen=True)
class RowCodec:
    """grid: "minmax", "lsq" or "lloyd-max". group_size: channels that share a scale, 0: the row. clip_ratio: None or 0:
    no clipping; a tensor (heads): one for each head. param_type: of scale and zero."""

    grid: str
    levels: int
    group_size: int
    clip_ratio: Any
    param_type: torch.dtype

    @staticmethod
    def of_set(manifest: dict[str, Any], side: str, clip_ratio: Any) -> "RowCodec":
        """The codec of "key" or "value" in a rotation set."""
        codec = manifest["codec"]
        levels = codec["levels"][0 if side == "key" else 1]
        clip = None if codec["name"] == "lsq" else clip_ratio
        return RowCodec(codec["name"], levels, codec["group_size"], clip,
                        _PARAM_TYPES[codec.get("scale_dtype", "float32")])

    def clip_ranks(self, dim: int) -> list[int] | None:
        """Of rows of so many channels, the rank of each head's threshold, or of that of all heads; -1: no clipping. None: no head is clipped."""
        # As the program has it, in float64: int(0.9 * 80) is 72.
        ratios = self.clip_ratio.tolist() if isinstance(self.clip_ratio, Tensor) else [self.clip_ratio or 0.0]
        if not any(ratio > 0 for ratio in ratios):
            return None
        return [min(int(ratio * dim), dim - 1) if ratio > 0 else -1 for ratio in ratios]

    def _clipped(self, x: Tensor) -> Tensor:
        """Rows between plus and minus their min(int(ratio d), d - 1)-th smallest magnitude."""
        dim = x.shape[-1]
        found = self.clip_ranks(dim)
        if found is None:
            return x
        ranks = torch.tensor([dim - 1 if rank < 0 else rank for rank in found], device=x.device)[:, None, None].expand(*x.shape[:-1], 1)
        threshold = x.abs().sort(-1).values.gather(-1, ranks)
        return x.clamp(-threshold, threshold)

    def encode(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows (batch, heads, tokens, d) -> packed codes uint8 (batch, heads, tokens, bytes) and params (batch, heads,
        tokens, groups, 2) of scale and zero."""
        dim = rows.shape[-1]
        groups = self._clipped(rows.float()).unflatten(-1, (-1, self.group_size or dim))
        codes, scale, zero = _GRIDS[self.grid](groups, self.levels)
        params = torch.cat([scale, zero], -1).float()
        if self.param_type == torch.float16:  # saturates, so that rows almost without range stay finite
            params = params.clamp(-65504, 65504)
        return Layout.of(self.levels, dim).pack(codes.flatten(-2)), params.to(self.param_type)

    def decode(self, packed: Tensor, params: Tensor, dim: int) -> Tensor:
        """The inverse: float32 (batch, heads, tokens, dim)."""
        codes = Layout.of(self.levels, dim).unpack(packed, dim).unflatten(-1, (params.shape[-2], -1)).float()
        scale, zero = params.float().unbind(-1)
        return ((codes - zero[..., None]) * scale[..., None]).flatten(-2)

    def part_bytes(self, heads: int, dim: int) -> list[int]:
        """The parts of a token in a cache of bytes: the codes of its heads behind each other, and their params."""
        groups = dim // (self.group_size or dim)
        return [heads * Layout.of(self.levels, dim).row_bytes(dim), heads * groups * 2 * self.param_type.itemsize]

    def encode_parts(self, rows: Tensor) -> list[Tensor]:
        """rows (heads, tokens, d) -> uint8 (tokens, bytes) of each part."""
        packed, params = self.encode(rows[None])
        return [x[0].transpose(0, 1).contiguous().flatten(1).view(torch.uint8) for x in (packed, params)]

    def decode_parts(self, parts: list[Tensor], heads: int, dim: int) -> Tensor:
        """The inverse: float32 (heads, tokens, d)."""
        codes = parts[0].unflatten(-1, (heads, -1)).transpose(0, 1)
        params = parts[1].clone().view(self.param_type).unflatten(-1, (heads, -1, 2)).transpose(0, 1)
        return self.decode(codes, params, dim)

    def encode_into(self, rows: Tensor, slots: Tensor, codes: Tensor, params: Tensor) -> None:
        """rows (tokens, heads, d) into pools (pages, page size, heads, ...), at slots (tokens) that count places in all
        pages; negative ones are not written."""
        written = slots >= 0
        pages, places = slots[written].long() // codes.shape[1], slots[written].long() % codes.shape[1]
        for pool, values in zip((codes, params), self.encode(rows.transpose(0, 1)[None])):
            pool[pages, places] = values[0].transpose(0, 1)[written]
