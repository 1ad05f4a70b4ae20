# SPDX-License-Identifier: MIT
"""Attention of a chunk of a prompt to the packed tokens before it and to its own, in memory that does not grow with the history.

Keys are taken in pieces: packed tokens, a bounded number at a time, are decoded into one scratch, behind them lie the copies that windows
keep; all queries see all of these, so no piece needs a mask. The chunk's own tokens are one causal piece. Each piece is attended to by
torch's flash attention, which also returns the log of the sum of exp(scores); pieces are joined by it in float32:

    out = sum_i exp(lse_i - lse) out_i,   lse = log sum_i exp(lse_i)

Where scores are capped, which torch's flash attention cannot do, they are written out, those of some queries at a time. Rows are in the
coordinates of the set. Needs torch only. Non-goals: decode steps, how rows are packed.
"""
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .packed_layer import PackedSlots
from .score_rule import attend_by_scores

Attention = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]  # attention()


def attention(q: Tensor, keys: Tensor, values: Tensor, scaling: float, is_causal: bool, soft_cap: float = 0.0) -> tuple[Tensor, Tensor]:
    """q (query heads, tokens, d), keys, values (KV heads, any, d), any strides -> out of q's shape, lse float32 (query heads, tokens).
    is_causal: query i sees keys 0 to i. soft_cap: as ScoreRule has it."""
    if soft_cap:
        visible = torch.ones(q.shape[1], keys.shape[1], dtype=torch.bool, device=q.device)
        return attend_by_scores(q, keys, values, scaling, visible.tril_() if is_causal else visible, soft_cap)
    rows = [x.to(q.dtype)[None] for x in (q, keys, values)]
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*rows, 0.0, is_causal, scale=scaling)
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(*rows, 0.0, is_causal, scale=scaling)[:2]
    return out[0], lse[0]


def attend(q: Tensor, own: Tensor, windows: Tensor, packed: PackedSlots, cache: Tensor, slots: Tensor, scaling: float,
           attention: Attention = attention, positions: Tensor | None = None, is_far: bool = False) -> tuple[Tensor, Tensor]:
    """q: bfloat16 (tokens, query heads, d); own: keys and values of these tokens, bfloat16 (2, tokens, KV heads, d); windows: those of
    earlier tokens, the same; slots: int32, the packed tokens in `cache`; attention: takes the place of torch's; positions, is_far: of the
    packed tokens, as PackedSlots.unpack() has them.
    -> out float32 (tokens, query heads, d), lse float32 (tokens, query heads)."""
    rows = q.transpose(0, 1)
    if q.device.type == "cpu":
        rows = rows.float()  # flash attention of CPUs rounds weights to the type of its rows
    out, lse = attention(rows, *own.transpose(1, 2), scaling, True)
    out = out.float()
    for keys, values in _pieces(windows.transpose(1, 2), packed, cache, slots, positions, is_far):
        more, lse_of_more = attention(rows, keys, values, scaling, False)
        out.lerp_(more.float(), torch.sigmoid(lse_of_more - lse)[..., None])
        lse = torch.logaddexp(lse, lse_of_more)
    return out.transpose(0, 1), lse.transpose(0, 1)


def rehearse(query: Tensor, values: int, soft_cap: float) -> None:
    """Takes as much memory as attend() does for as many queries and pieces of so many values, and gives it back: a server that measures
    its peak without a history leaves room for it."""
    torch.empty((16 if soft_cap else 4) * values + 12 * query.numel(), dtype=torch.uint8, device=query.device)


def _pieces(windows: Tensor, packed: PackedSlots, cache: Tensor, slots: Tensor, positions: Tensor | None, is_far: bool) -> Iterator[Tensor]:
    """(2, KV heads, tokens, d) each, in the same memory: first the packed tokens, then those of the windows."""
    _, heads, copies, dim = windows.shape
    history, room = len(slots), max(packed.most_values // (heads * dim), 1)
    total = history + copies
    scratch = torch.empty(2, heads, min(room, total), dim, dtype=torch.bfloat16, device=windows.device)
    for begin in range(0, total, room):
        piece = scratch[:, :, :min(room, total - begin)]
        count = min(max(history - begin, 0), piece.shape[2])
        if count > 0:
            read = slice(begin, begin + count)
            packed.unpack(cache, slots[read], *piece[:, :, :count].transpose(1, 2), positions if positions is None else positions[read], is_far)
        first = begin + count - history
        if count < piece.shape[2]:
            piece[:, :, count:] = windows[:, :, first:first + piece.shape[2] - count]
        yield piece
