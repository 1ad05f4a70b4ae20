# SPDX-License-Identifier: MIT
"""Packed rows of the coded cache in torch, on any device, with the bytes that kernels/reference/coded_row.hpp defines: channels
have levels of their own, and a row has two scale bytes. Non-goals: bases (int2_side.py), speed beside kernels.
"""
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .set_check import format_bytes

_BLOCK = 8  # neighbouring channels that share a number of levels
_LEAST_WIDE = 16  # levels of a channel of the wide class
_PARTIAL_SUMS = 32


@cache
def _scales(device: Any) -> Tensor:
    """float32 (256): the scale of each byte."""
    return torch.tensor([2.0**((byte - 128) / 16) for byte in range(256)], dtype=torch.float64).float().to(device)


@cache
def _least_scales(device: Any) -> Tensor:
    """float32 (256): the smallest scale to which each byte is nearest."""
    return torch.tensor([2.0**((byte - 128.5) / 16) for byte in range(256)], dtype=torch.float64).float().to(device)


def _scale_bytes(scale: Tensor) -> Tensor:
    """int64: the byte whose scale is nearest in ratio; 0 for what is no number."""
    found = torch.searchsorted(_least_scales(scale.device), scale.contiguous(), right=True) - 1
    return torch.where(scale.isnan(), 0, found.clamp(min=0))


def ordered_sum(values: Tensor) -> Tensor:
    """The last dimension's sum in the order that the definition fixes, float32."""
    padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % _PARTIAL_SUMS)).unflatten(-1, (-1, _PARTIAL_SUMS))
    sums = values.new_zeros(*values.shape[:-1], _PARTIAL_SUMS)
    for part in range(padded.shape[-2]):
        sums = sums + padded[..., part, :]
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0]


def _pieces(bits: int) -> list[int]:
    return [piece for piece in (8, 4, 2, 1) if bits & piece]


@dataclass(frozen=True)
class _Run:
    """Neighbouring blocks of one width: channels [first, first + 8 blocks), bytes from `offset` on."""

    first: int
    blocks: int
    bits: int
    offset: int

    def pack(self, codes: Tensor) -> Tensor:
        """codes (..., d) int64 -> uint8 (..., blocks bits)."""
        own, below, out = codes[..., self.first:self.first + _BLOCK * self.blocks].unflatten(-1, (-1, _BLOCK)), self.bits, []
        for piece in _pieces(self.bits):
            below -= piece
            parts = ((own >> below) & (2**piece - 1)).unflatten(-1, (-1, piece))  # (…, 8 / piece, piece)
            shifts = torch.arange(0, 8, piece, device=codes.device)[:, None]
            out.append((parts << shifts).sum(-2))
        return torch.cat(out, -1).flatten(-2).to(torch.uint8)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse: uint8 (..., 8 blocks)."""
        data = packed[..., self.offset:self.offset + self.bits * self.blocks].unflatten(-1, (-1, self.bits))
        codes, below, at = torch.zeros(*data.shape[:-1], _BLOCK, dtype=torch.uint8, device=packed.device), self.bits, 0
        for piece in _pieces(self.bits):
            below -= piece
            parts = data[..., None, at:at + piece]
            if piece < 8:
                shifts = torch.arange(0, 8, piece, dtype=torch.uint8, device=packed.device)[:, None]
                parts = (parts >> shifts) & (2**piece - 1)
            codes |= parts.flatten(-2) << below
            at += piece
        return codes.flatten(-2)


class CodedRows:
    """The format of the rows of one KV head and side. levels, step, sigma: numpy arrays (d), as a set has them. Raises ValueError if
    they do not make a format."""

    def __init__(self, levels: np.ndarray, step: np.ndarray, sigma: np.ndarray):
        self.row_bytes = format_bytes(levels, step, sigma)
        stored, of_blocks = levels > 1, levels[::_BLOCK]
        self._runs, first, offset = [], 0, 0
        for count in sorted(set(levels[stored].tolist()), reverse=True):
            blocks, bits = int((of_blocks == count).sum()), int(count).bit_length() - 1
            self._runs.append(_Run(first, blocks, bits, offset))
            first, offset = first + _BLOCK * blocks, offset + blocks * bits
        self.dim, self.stored = len(levels), first
        self.bits = [int(count).bit_length() - 1 for count in of_blocks.tolist()]  # of each block
        self._wide = int((levels >= _LEAST_WIDE).sum())
        kept = slice(0, first)
        self._levels = torch.from_numpy(levels[kept].astype(np.int64))
        self._step, self._sigma = (torch.from_numpy(x[kept].astype(np.float32)) for x in (step, sigma))

    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """For kernels, on the CPU: bits uint8 (blocks), steps and sigmas float32 (d), 1 where there are no bits."""
        return (torch.tensor(self.bits, dtype=torch.uint8),
                *(torch.nn.functional.pad(x.cpu(), (0, self.dim - self.stored), value=1.0) for x in (self._step, self._sigma)))

    def to(self, device: Any) -> "CodedRows":
        """Moves the tables, and returns this."""
        self._levels, self._step, self._sigma = (x.to(device) for x in (self._levels, self._step, self._sigma))
        return self

    def _of_classes(self, wide: Tensor, narrow: Tensor) -> Tensor:
        """(..., stored channels) of one value a class, (...)."""
        return torch.cat([wide[..., None].expand(*wide.shape, self._wide),
                          narrow[..., None].expand(*narrow.shape, self.stored - self._wide)], -1)

    def quantize(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """rows (..., d) -> codes int64 (..., stored), and the scale bytes of the wide and of the narrow class, int64 (...)."""
        y = rows[..., :self.stored].float()
        ratio = y * (1 / self._sigma)
        is_wide = torch.arange(self.stored, device=rows.device) < self._wide
        counts, bytes_ = (self._wide, self.stored - self._wide), []
        for members, count in ((is_wide, counts[0]), (~is_wide, counts[1])):
            own = torch.where(members, ratio, 0)
            bytes_.append(_scale_bytes((ordered_sum(own * own) / max(count, 1)).sqrt()) if count else
                          torch.zeros(rows.shape[:-1], dtype=torch.long, device=rows.device))
        scales = _scales(rows.device)
        scale = self._of_classes(*(scales[each] for each in bytes_))
        half = (self._levels // 2).float()
        place = y * (1 / self._step) * (1 / scale) + half
        codes = place.floor().nan_to_num(0).clamp(torch.zeros_like(half), (self._levels - 1).float()).long()
        kept = self._values(codes, scale)
        energy, shared = ordered_sum(y * y), ordered_sum(y * kept)
        gain = (energy / shared).clamp(0.5, 2)
        gain = torch.where(energy.isinf() & shared.isinf(), 1, torch.where(shared > 0, gain, 2))
        gain = torch.where(energy > 0, gain, 1)
        wide, narrow = (_scale_bytes(scales[each] * gain) if count else each for each, count in zip(bytes_, counts))
        return codes, wide, narrow

    def values(self, codes: Tensor, wide: Tensor, narrow: Tensor) -> Tensor:
        """The inverse: float32 (..., d); channels that are not stored are 0."""
        scales = _scales(codes.device)
        scale = self._of_classes(scales[wide.long()], scales[narrow.long()])
        return torch.nn.functional.pad(self._values(codes, scale), (0, self.dim - self.stored))

    def encode(self, rows: Tensor) -> Tensor:
        """rows (..., d) -> uint8 (..., row_bytes)."""
        codes, *scales = self.quantize(rows)
        return torch.cat([run.pack(codes) for run in self._runs] + [each[..., None].to(torch.uint8) for each in scales], -1)

    def decode(self, packed: Tensor) -> Tensor:
        """The inverse: float32 (..., d)."""
        codes = torch.cat([run.unpack(packed) for run in self._runs] or [packed[..., :0]], -1)
        return self.values(codes, packed[..., -2], packed[..., -1])

    def _values(self, codes: Tensor, scale: Tensor) -> Tensor:
        return (codes.float() - 0.5 * (self._levels - 1).float()) * self._step * scale


class CodedCodec:
    """The rows of all KV heads of one side as a RowCodec has them: packed rows are as wide as the widest head's, and there are no
    params. levels, step, sigma: tensors (heads, d). Raises ValueError as CodedRows does."""

    clip_ratio = None

    def __init__(self, levels: Tensor, step: Tensor, sigma: Tensor):
        self.heads = [CodedRows(*(x.cpu().numpy() for x in of_head)) for of_head in zip(levels.int(), step.float(), sigma.float())]

    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """For kernels, on the CPU: bits (heads, d / 8), steps and sigmas (heads, d), as CodedRows has them."""
        bits, steps, sigmas = (torch.stack(x) for x in zip(*(head.tables() for head in self.heads)))
        return bits, steps, sigmas

    def to(self, device: Any) -> None:
        for head in self.heads:
            head.to(device)

    def encode(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows (batch, heads, tokens, d) -> uint8 (batch, heads, tokens, bytes), and nothing (batch, heads, tokens, 0, 2)."""
        most = max(head.row_bytes for head in self.heads)
        packed = [torch.nn.functional.pad(head.encode(rows[:, i]), (0, most - head.row_bytes)) for i, head in enumerate(self.heads)]
        return torch.stack(packed, 1), rows.new_empty(*rows.shape[:3], 0, 2, dtype=torch.float32)

    def decode(self, packed: Tensor, params: Tensor, dim: int) -> Tensor:
        """The inverse: float32 (batch, heads, tokens, d)."""
        return torch.stack([head.decode(packed[:, i, :, :head.row_bytes]) for i, head in enumerate(self.heads)], 1)

    def part_bytes(self, heads: int, dim: int) -> list[int]:
        """The parts of a token in a cache of bytes: the rows of its heads behind each other, without gaps."""
        return [sum(head.row_bytes for head in self.heads)]

    def encode_parts(self, rows: Tensor) -> list[Tensor]:
        """rows (heads, tokens, d) -> uint8 (tokens, bytes) of each part."""
        return [torch.cat([head.encode(own) for head, own in zip(self.heads, rows)], -1)]

    def decode_parts(self, parts: list[Tensor], heads: int, dim: int) -> Tensor:
        """The inverse: float32 (heads, tokens, d)."""
        rows = parts[0].split([head.row_bytes for head in self.heads], -1)
        return torch.stack([head.decode(own) for head, own in zip(self.heads, rows)])
