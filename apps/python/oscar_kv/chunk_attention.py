# SPDX-License-Identifier: MIT
"""Attention of prompts, or chunks of them, to the packed tokens before them and to their own, in memory that does not grow with the history.

The requests of a step are read together. Rows before them, one request after another, are cut into pieces of bounded size, wherever requests
end: packed tokens are decoded into one scratch, between them go the copies that windows keep; a request's queries see all of its rows there,
so no piece needs a mask. The requests' own tokens are one causal piece. Each piece is attended to by torch's flash attention, which also returns
the log of the sum of exp(scores), or by a server's own; pieces are joined by it in float32:

    out = sum_i exp(lse_i - lse) out_i,   lse = log sum_i exp(lse_i)

Where scores are capped, which torch's flash attention cannot do, they are written out, those of some queries at a time. Rows are in the
coordinates of the set. Needs torch only. Non-goals: decode steps, how rows are packed.
"""
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .packed_layer import PackedSlots
from .score_rule import attend_by_scores


class Lengths:
    """How many queries and keys each of some requests has; rows of all lie one request after another. is_causal: query i of a request sees its
    keys 0 to i."""

    def __init__(self, queries: list[int], keys: list[int], is_causal: bool, device: torch.device):
        self.queries, self.keys, self.is_causal = queries, keys, is_causal
        self.starts = torch.tensor([[0, *accumulate(x)] for x in (queries, keys)], dtype=torch.int32, device=device)  # and the ends of the last


class Piece(NamedTuple):
    rows: slice  # of all rows before the requests
    queries: slice  # of the requests' new tokens: those that see some of these rows
    lengths: Lengths
    near: Tensor  # int64, the piece's rows that are in a window
    copies: Tensor  # int64, slots of their copies


@dataclass
class Prompts:
    """Requests that are read together. slots, positions: int32, of the rows before them, one request after another; slots of those in a window
    are negative. near: int64, which rows these are, ascending; copies: int64, slots of their copies. All four are empty where `before` is 0."""

    tokens: slice | Tensor  # the requests' new tokens, by their numbers in the step
    counts: list[int]  # how many each has
    before: list[int]  # tokens that the cache has of each: of all some, or of none
    slots: Tensor
    positions: Tensor
    near: Tensor
    copies: Tensor
    own: Lengths = field(init=False)
    _pieces: dict[int, list[Piece]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own = Lengths(self.counts, self.counts, True, self.slots.device)

    def pieces(self, room: int) -> list[Piece]:
        """Of so many rows."""
        if room not in self._pieces:
            ends, near = list(accumulate(self.before)), self.near.cpu()
            self._pieces[room] = [self._piece(begin, min(begin + room, ends[-1]), ends, near) for begin in range(0, ends[-1], room)]
        return self._pieces[room]

    def _piece(self, begin: int, end: int, ends: list[int], near: Tensor) -> Piece:
        keys = [min(last, end) - max(last - count, begin) for last, count in zip(ends, self.before)]
        seen = [i for i, count in enumerate(keys) if count > 0]
        requests, first = slice(seen[0], seen[-1] + 1), sum(self.counts[:seen[0]])
        lengths = Lengths(self.counts[requests], keys[requests], False, self.slots.device)
        own = slice(*torch.searchsorted(near, torch.tensor([begin, end])).tolist())
        return Piece(slice(begin, end), slice(first, first + sum(lengths.queries)), lengths, self.near[own] - begin, self.copies[own])


Attention = Callable[[Tensor, Tensor, Tensor, float, Lengths], tuple[Tensor, Tensor]]  # attention()


def attention(q: Tensor, keys: Tensor, values: Tensor, scaling: float, lengths: Lengths, soft_cap: float = 0.0) -> tuple[Tensor, Tensor]:
    """q (tokens, query heads, d), keys, values (rows, KV heads, d), any strides -> out of q's shape, lse float32 (tokens, query heads).
    soft_cap: as ScoreRule has it."""
    requests = zip(q.split(lengths.queries), keys.split(lengths.keys), values.split(lengths.keys))
    found = [_of_request(*(x.transpose(0, 1) for x in rows), scaling, lengths.is_causal, soft_cap) for rows in requests]
    out, lse = (torch.cat(x, 1).transpose(0, 1) for x in zip(*found))
    return out, lse


def _of_request(q: Tensor, keys: Tensor, values: Tensor, scaling: float, is_causal: bool, soft_cap: float) -> tuple[Tensor, Tensor]:
    """attention() of one request, heads first."""
    if soft_cap:
        visible = torch.ones(q.shape[1], keys.shape[1], dtype=torch.bool, device=q.device)
        return attend_by_scores(q, keys, values, scaling, visible.tril_() if is_causal else visible, soft_cap)
    rows = [x.to(q.dtype)[None] for x in (q, keys, values)]
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*rows, 0.0, is_causal, scale=scaling)
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(*rows, 0.0, is_causal, scale=scaling)[:2]
    return out[0], lse[0]


def attend(prompts: Prompts, q: Tensor, own: Tensor, copies: Tensor, packed: PackedSlots, cache: Tensor, scaling: float,
           attention: Attention = attention, is_far: bool = False) -> tuple[Tensor, Tensor]:
    """q: bfloat16 (tokens, query heads, d), of all prompts; own: their keys and values, bfloat16 (2, tokens, KV heads, d); copies: keys and values
    of windows, bfloat16 (2, slots, KV heads, d); cache, is_far: as PackedSlots.unpack() has them; attention: takes the place of torch's.
    -> out float32 (tokens, query heads, d), lse float32 (tokens, query heads)."""
    rows = q.float() if q.device.type == "cpu" else q  # flash attention of CPUs rounds weights to the type of its rows
    out, lse = attention(rows, *own, scaling, prompts.own)
    out, room = out.float(), max(packed.most_values // own[0, 0].numel(), 1)
    scratch = own.new_empty(2, min(room, len(prompts.slots)), *own.shape[2:])
    for piece in prompts.pieces(room):
        held = scratch[:, :piece.rows.stop - piece.rows.start]
        packed.unpack(cache, prompts.slots[piece.rows], *held, prompts.positions[piece.rows], is_far)
        held.index_copy_(1, piece.near, copies.index_select(1, piece.copies))
        more, lse_of_more = attention(rows[piece.queries], *held, scaling, piece.lengths)
        joined, sums = out[piece.queries], lse[piece.queries]
        joined.lerp_(more.float(), torch.sigmoid(lse_of_more - sums)[..., None])
        sums.copy_(torch.logaddexp(sums, lse_of_more))
    return out, lse


def rehearse(query: Tensor, values: int, soft_cap: float) -> None:
    """Takes as much memory as attend() does for as many queries and pieces of so many values, and gives it back: a server that measures
    its peak without a history leaves room for it."""
    torch.empty((16 if soft_cap else 8) * values + 16 * query.numel(), dtype=torch.uint8, device=query.device)
