# SPDX-License-Identifier: MIT
"""Pages of one layer of a coded cache in torch, on any device, with the bytes that kernels/include/oscar/coded_attention.h
defines: a page of P tokens is uint8 (P, token_bytes), and its bytes are planes, not rows. The rows are those of coded_rows.py.
It is what the kernels are tested against, and reads what they wrote where they cannot. Non-goals: speed beside kernels.
"""
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .coded_rows import CodedCodec, CodedRows

_STRINGS = 8  # of a row: string j has the bits of the channels j, j + 8, j + 16, ...


class _Part(NamedTuple):
    """Bits of a block's codes that lie in one byte of each string."""

    block: int
    byte: int
    position: int  # the lowest bit in the byte, and that of the code
    width: int
    code_bit: int


def _parts(bits: list[int]) -> list[_Part]:
    """Where the bits of the blocks lie: each where most bits are free."""
    parts, used = [], [0] * -(-sum(bits) // 8)
    for block, width in enumerate(bits):
        done = 0
        while done < width:
            byte = used.index(min(used))
            here = min(width - done, 8 - used[byte])
            parts.append(_Part(block, byte, used[byte], here, done))
            used[byte] += here
            done += here
    return parts


@dataclass(frozen=True)
class _HeadSide:
    """The keys (0), or the values (1), of a KV head: bytes of a token before its planes of 16 bytes, of 8 bytes, and the scales."""

    side: int
    rows: CodedRows
    full_at: int
    half_at: int
    scales_at: int

    def columns(self, token: Tensor, page_size: int) -> Tensor:
        """(tokens, bytes) of a page: those of the strings' byte 0, of byte 1, ..., then the two scales."""
        count, device = -(-sum(self.rows.bits) // 8), token.device
        strings, found = torch.arange(_STRINGS, device=device), []
        for byte in range(count):
            piece, place = divmod(byte - count % 2, 2)
            if piece < 0:
                found.append(self.half_at * page_size + token[:, None] * 8 + strings)
            else:
                found.append((self.full_at + 16 * piece) * page_size + token[:, None] * 16 + 2 * strings + place)
        scales = self.scales_at * page_size + token[:, None] * 4 + 2 * self.side + torch.arange(2, device=device)
        return torch.cat([*found, scales], 1)

    def encode(self, rows: Tensor) -> Tensor:
        """rows (tokens, d) -> uint8 (tokens, bytes) in the order of columns()."""
        codes, wide, narrow = self.rows.quantize(rows)
        blocks = codes.unflatten(-1, (-1, _STRINGS)) if self.rows.stored else codes
        strings = codes.new_zeros(len(rows), -(-sum(self.rows.bits) // 8), _STRINGS)
        for part in _parts(self.rows.bits):
            strings[:, part.byte] |= ((blocks[:, part.block] >> part.code_bit) & (2**part.width - 1)) << part.position
        return torch.cat([strings.flatten(1), wide[:, None], narrow[:, None]], 1).to(torch.uint8)

    def decode(self, data: Tensor) -> Tensor:
        """The inverse: float32 (tokens, d)."""
        strings = data[:, :-2].long().unflatten(1, (-1, _STRINGS)) if data.shape[1] > 2 else None
        blocks = torch.zeros(len(data), self.rows.stored // 8, _STRINGS, dtype=torch.long, device=data.device)
        for part in _parts(self.rows.bits):
            blocks[:, part.block] |= ((strings[:, part.byte] >> part.position) & (2**part.width - 1)) << part.code_bit
        return self.rows.values(blocks.flatten(1), data[:, -2], data[:, -1])


class CodedPages:
    """key, value: of one layer, with as many heads. token_bytes: of all heads' keys and values."""

    def __init__(self, key: CodedCodec, value: CodedCodec):
        self.codecs, self._sides, self.token_bytes = (key, value), ([], []), 0
        for heads in zip(key.heads, value.heads):
            counts = [-(-sum(rows.bits) // 8) for rows in heads]
            full, half, first = sum(n // 2 for n in counts), sum(n % 2 for n in counts), self.token_bytes
            for side, rows in enumerate(heads):
                before = counts[0] if side else 0
                self._sides[side].append(_HeadSide(side, rows, first + 16 * (before // 2), first + 16 * full + 8 * (before % 2),
                                                   first + 16 * full + 8 * half))
            self.token_bytes += 16 * full + 8 * half + 4

    def write(self, pages: Tensor, slots: Tensor, side: int, rows: Tensor) -> None:
        """pages: uint8 (pages, page size, token_bytes); slots: int (tokens), places in all pages, negative ones are not written;
        side: 0 keys, 1 values; rows: (heads, tokens, d) as stored."""
        written = slots >= 0
        page, token = slots[written].long() // pages.shape[1], slots[written].long() % pages.shape[1]
        data = pages.flatten(1)
        for own, of_head in zip(self._sides[side], rows):
            data[page[:, None], own.columns(token, pages.shape[1])] = own.encode(of_head[written])

    def read(self, pages: Tensor, slots: Tensor, side: int) -> Tensor:
        """The inverse: float32 (heads, tokens, d) of the slots."""
        page, token = slots.long() // pages.shape[1], slots.long() % pages.shape[1]
        data = pages.flatten(1)
        return torch.stack([own.decode(data[page[:, None], own.columns(token, pages.shape[1])]) for own in self._sides[side]])
