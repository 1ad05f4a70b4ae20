# SPDX-License-Identifier: MIT
"""torch.ops.oscar.coded_pack, coded_unpack and coded_decode on the CPU: what the kernels compute (kernels/include/oscar/coded_pack.h and
coded_attention.h), a sequence at a time, with coded_pages.py and sums in float64.

Whoever imports this has liboscar_torch.so loaded. It is what kernels and their callers are tested against. Its tables are the
format itself, made by tables_of(). Non-goals: speed.
"""
import torch
from torch import Tensor, library

from .coded_pages import CodedPages
from .coded_rows import CodedCodec
from .int2_cpu import rows_of_pool
from .norm_rope import rms_norm, rope


def tables_of(pages: CodedPages) -> tuple[list[int], Tensor]:
    """(layout, tables) as torch.ops.oscar.coded_layout gives them, for this module's operators: bits, steps and sigmas."""
    formats = [codec.tables() for codec in pages.codecs]
    heads, dim = formats[0][1].shape
    tables = torch.cat([x.contiguous().view(torch.uint8).flatten() for each in formats for x in each])
    return [dim, heads, 0, 0, 0, pages.token_bytes, 0], tables


def _pages_of(layout: list[int], tables: Tensor) -> CodedPages:
    dim, heads = layout[:2]
    codecs = []
    for side in tables.chunk(2):
        bits, numbers = side.split([heads * dim // 8, 8 * heads * dim])
        levels = (1 << bits.int()).reshape(heads, -1).repeat_interleave(8, 1)
        codecs.append(CodedCodec(levels, *numbers.clone().view(torch.float32).reshape(2, heads, dim)))
    return CodedPages(*codecs)


@library.impl("oscar::coded_pack", "cpu")
def coded_pack(slots: Tensor, pages: Tensor, layout: list[int], tables: Tensor, *, k: Tensor | None = None, v: Tensor | None = None,
               k_rotation: Tensor | None = None, v_rotation: Tensor | None = None, k_mean: Tensor | None = None,
               v_mean: Tensor | None = None, k_norm_weight: Tensor | None = None, norm_epsilon: float = 0.0, positions: Tensor | None = None,
               cos_sin: Tensor | None = None, interleaved: bool = False, k_finished: Tensor | None = None) -> None:
    """k, v: bfloat16 (tokens, heads, d), written to the slots of pages (pages, page size, token bytes); keys after norm and RoPE, as
    norm_rope.py has them, go to k_finished, too."""
    assert slots.dtype == torch.int32 and pages.dtype == torch.uint8 and pages.shape[2] == layout[5], f"{slots.dtype}, {pages.shape}"
    assert pages.shape[1] in (4, 8, 16, 32, 64, 128, 256) and not (k is None and v is None), f"pages of {pages.shape[1]}"
    assert (positions is None) == (cos_sin is None), "positions and cos_sin must be given together"
    if not (k_norm_weight is None and cos_sin is None and k_finished is None):
        assert k is not None, "norm, RoPE and finished rows are of keys, and there are none"
        if k_norm_weight is not None:
            k = rms_norm(k, k_norm_weight, norm_epsilon)
        if cos_sin is not None:
            k = rope(k, positions, cos_sin, interleaved)
        if k_finished is not None:
            k_finished.copy_(k)
    for side, (rows, rotation, mean) in enumerate(((k, k_rotation, k_mean), (v, v_rotation, v_mean))):
        if rows is None:
            continue
        assert rows.dtype == torch.bfloat16 and rows.stride(2) == 1 and rows.shape == (len(slots), *layout[1::-1]), f"{rows.shape}"
        y = rows.transpose(0, 1).float()
        if rotation is not None:
            y = ((y - (0 if mean is None else mean.reshape(-1, 1, layout[0]))) @ rotation.float()).bfloat16().float()
        _pages_of(layout, tables).write(pages, slots, side, y)


@library.impl("oscar::coded_unpack", "cpu")
def coded_unpack(slots: Tensor, pages: Tensor, layout: list[int], tables: Tensor, *, k: Tensor | None = None, v: Tensor | None = None) -> None:
    """The rows of the slots, written to k and v: bfloat16 (tokens, heads, d)."""
    assert slots.dtype == torch.int32 and pages.dtype == torch.uint8 and pages.shape[2] == layout[5], f"{slots.dtype}, {pages.shape}"
    assert pages.shape[1] in (4, 8, 16, 32, 64, 128, 256) and not (k is None and v is None), f"pages of {pages.shape[1]}"
    read = slots >= 0
    for side, out in enumerate((k, v)):
        if out is None:
            continue
        assert out.dtype == torch.bfloat16 and out.stride(2) == 1 and out.shape == (len(slots), *layout[1::-1]), f"{out.shape}"
        out[read] = _pages_of(layout, tables).read(pages, slots[read], side).transpose(0, 1).bfloat16()


@library.impl("oscar::coded_decode", "cpu")
def coded_decode(q: Tensor, pages: Tensor, layout: list[int], tables: Tensor, page_table: Tensor, lengths: Tensor, k_window: Tensor,
                 v_window: Tensor, window_pages: Tensor, window_lengths: Tensor, *, softmax_scale: float | None = None,
                 split_batch: int = 0, workspace: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q: bfloat16 (batch, query heads, d), or (batch, query tokens, query heads, d) -> out float32 of that shape, log-sum-exp float32
    of the same without the last dimension."""
    if q.dim() == 4:
        tokens = q.shape[1]
        assert tokens <= 8, f"{tokens} query tokens"
        before = torch.arange(tokens - 1, -1, -1, dtype=torch.int32)  # a token does not see those after it
        each = [torch.ops.oscar.coded_decode(q[:, t].contiguous(), pages, layout, tables, page_table, lengths, k_window, v_window, window_pages,
                                             (window_lengths - before[t]).clamp(min=0), softmax_scale=softmax_scale) for t in range(tokens)]
        out, lse = (torch.stack(x, 1) for x in zip(*each))
        return out, lse
    (batch, heads, dim), kv_heads = q.shape, layout[1]
    assert q.dtype == torch.bfloat16 and q.is_contiguous() and heads % kv_heads == 0 and heads // kv_heads <= 16, q.shape
    for table, counts in ((page_table, lengths), (window_pages, window_lengths)):
        assert table.dtype == counts.dtype == torch.int32 and table.is_contiguous(), f"{table.dtype}, {counts.dtype}"
        assert table.shape[0] == counts.shape[0] == batch, f"tables of {table.shape[0]} sequences"
    read, scale = _pages_of(layout, tables), dim**-0.5 if softmax_scale is None else softmax_scale
    out, lse = q.new_zeros(q.shape, dtype=torch.float64), q.new_zeros(batch, heads, dtype=torch.float64)
    for b in range(batch):
        tokens = torch.arange(int(lengths[b]))
        slots = page_table[b][tokens // pages.shape[1]].long() * pages.shape[1] + tokens % pages.shape[1]
        k, v = (torch.cat([read.read(pages, slots, side).double(),
                           rows_of_pool(window, window_pages[b], int(window_lengths[b])).transpose(0, 1).double()], 1)
                for side, window in enumerate((k_window, v_window)))
        scores = q[b].double().unflatten(0, (kv_heads, -1)) @ k.transpose(1, 2) * scale
        lse[b] = scores.logsumexp(-1).flatten()
        if k.shape[1] > 0:
            out[b] = (scores.softmax(-1) @ v).flatten(0, 1)
    return out.float(), lse.float()
