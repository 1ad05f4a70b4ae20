# SPDX-License-Identifier: MIT
"""Attention over the packed rows of an Int2Cache, in transformed coordinates, each token with its own windows.

Token i sees token j as the window has it if j < sink or j > i - recent, else as the history has it. Keys that are both in
one call (a long prompt) stand there twice, and a mask says which of the two a query sees. Needs torch only.
"""
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .int2_rows import SideRows

Attention = Callable[[Tensor, Tensor | None, float], Tensor]  # query, mask, scaling: as attend()
_QUERIES = 512  # at once: bounds the mask, and the scores where they are written


@dataclass(frozen=True)
class Seen:
    """What the tokens of one call may see of the keys, or the values: the window before it was shortened, and the
    history after."""

    side: SideRows
    window: Tensor
    packed: int  # tokens of the history that were no part of the window
    length: int

    @staticmethod
    def by(side: SideRows) -> "Seen":
        """Between append and evict."""
        return Seen(side, side.window(side.codes.length), side.codes.length, side.length)

    def rows(self) -> Tensor:
        """Window and history, as stored."""
        return torch.cat([self.window.float(), self.side.history()], 2)

    def positions(self) -> tuple[Tensor, Tensor]:
        """Of rows(): (token of each row, whether it is the window's)."""
        device, sink = self.window.device, min(self.side.sink, self.length)
        places = torch.arange(self.window.shape[2], device=device)
        window = torch.where(places < sink, places, places + self.packed)
        history = torch.arange(self.side.codes.length, device=device) + sink
        return torch.cat([window, history]), torch.arange(len(window) + len(history), device=device) < len(window)

    def visible(self, queries: Tensor) -> Tensor:
        """(queries, rows): which rows the tokens see."""
        token, exact = self.positions()
        i = queries[:, None]
        in_window = (token < self.side.sink) | (token > i - self.side.recent)
        return (token <= i) & (in_window == exact)


def attend(query: Tensor, key: Seen, value: Seen, mask: Tensor | None, scaling: float) -> Tensor:
    """query, result: (batch, query heads, tokens, d), the last tokens of the cache. mask: None or bool (batch, 1, tokens,
    all tokens), False where padding is."""
    batch, heads, tokens, dim = query.shape
    kv_heads = key.window.shape[1]
    stored = key.side.queries(query.reshape(batch, kv_heads, -1, dim)).reshape(query.shape).to(query.dtype)
    k, v = key.rows().to(query.dtype), value.rows().to(query.dtype)
    places = torch.arange(key.length - tokens, key.length, device=query.device)
    parts = []
    for begin in range(0, tokens, _QUERIES):
        block = slice(begin, begin + _QUERIES)
        visible = key.visible(places[block])
        if mask is not None:
            own = key.positions()[0] == places[block, None]  # padding sees itself, or there would be nothing to weigh
            visible = visible & (mask[:, :, block][..., key.positions()[0]] | own)
        parts.append(scaled_dot_product_attention(stored[:, :, block], k, v, attn_mask=visible, scale=scaling,
                                                  enable_gqa=heads != kv_heads))
    out = torch.cat(parts, 2).bfloat16().reshape(batch, kv_heads, -1, v.shape[3])
    return value.side.native(out).reshape(batch, heads, tokens, v.shape[3]).to(query.dtype)


def attention_of(key: SideRows, value: SideRows) -> Attention:
    """For the tokens of one call, between append and evict."""
    seen = Seen.by(key), Seen.by(value)
    return lambda query, mask, scaling: attend(query, *seen, mask, scaling)
