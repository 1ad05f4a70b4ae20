# SPDX-License-Identifier: MIT
"""torch.ops.oscar.int2_pack, int2_unpack and int2_decode on the CPU: what the kernels compute (kernels/include/oscar/int2_attention.h),
a row and a sequence at a time, with the torch codecs and sums in float64.

Whoever imports this has liboscar_torch.so loaded. It is what kernels and their callers are tested against. Non-goals: speed.
"""
from typing import Any

import torch
from torch import Tensor, library

from .row_codec import RowCodec

_PARAM_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _codec(params: Tensor, dim: int, grid: str = "minmax", clip_ratio: Any = 0.0) -> RowCodec:
    return RowCodec(grid, 4, dim // params.shape[3], clip_ratio, params.dtype)


def _check_pools(codes: Tensor, params: Tensor, heads: int, dim: int) -> None:
    assert dim in (64, 128, 256) and dim // params.shape[3] in (dim, 64, 32), f"rows of {dim}, {params.shape[3]} groups"
    assert codes.dtype == torch.uint8 and params.dtype in _PARAM_TYPES, f"{codes.dtype}, {params.dtype}"
    assert codes.shape[2:] == (heads, dim // 4) and codes.stride(3) == 1, f"codes are {codes.shape}"
    assert params.shape[:3] == codes.shape[:3] and params.shape[4] == 2, f"params are {params.shape}, codes {codes.shape}"
    assert params.stride()[3:] == (2, 1), "params are not dense"


@library.impl("oscar::int2_pack", "cpu")
def int2_pack(x: Tensor, slots: Tensor, codes: Tensor, params: Tensor, *, rotation: Tensor | None = None,
              grid: str = "minmax", clip_ratio: float = 0.0, clip_ranks: Tensor | None = None) -> None:
    """x: bfloat16 (tokens, heads, d), written to the slots of the pools (pages, page size, heads, ...). clip_ranks: int32 (heads), in
    place of clip_ratio."""
    assert x.dtype == torch.bfloat16 and x.stride(2) == 1 and slots.dtype == torch.int32, f"{x.dtype}, {slots.dtype}"
    assert grid in ("minmax", "lsq") and not (grid == "lsq" and clip_ratio > 0), f"{grid} with clip ratio {clip_ratio}"
    _check_pools(codes, params, *x.shape[1:])
    rows = x.float()
    if rotation is not None:
        rows = (rows.transpose(0, 1) @ rotation.float()).bfloat16().float().transpose(0, 1)
    clip: Any = clip_ratio
    if clip_ranks is not None:
        assert grid == "minmax" and clip_ranks.dtype == torch.int32 and clip_ranks.shape == x.shape[1:2], f"{clip_ranks.dtype}, {clip_ranks.shape}"
        clip = torch.where(clip_ranks >= 0, (clip_ranks.double() + 0.5) / x.shape[2], 0)
    _codec(params, x.shape[2], grid, clip).encode_into(rows, slots, codes, params)


@library.impl("oscar::int2_unpack", "cpu")
def int2_unpack(slots: Tensor, codes: Tensor, params: Tensor, out: Tensor) -> None:
    """The rows of the slots of the pools, written to out: bfloat16 (tokens, heads, d)."""
    assert slots.dtype == torch.int32 and out.dtype == torch.bfloat16 and out.stride(2) == 1, f"{slots.dtype}, {out.dtype}"
    assert len(out) == len(slots), f"{len(out)} rows for {len(slots)} slots"
    _check_pools(codes, params, *out.shape[1:])
    read = slots >= 0
    page, token = slots[read].long() // codes.shape[1], slots[read].long() % codes.shape[1]
    out[read] = _codec(params, out.shape[2]).decode(codes[page, token], params[page, token], out.shape[2]).bfloat16()


def rows_of_pool(pool: Tensor, pages: Tensor, length: int) -> Tensor:
    """A sequence's rows of a pool, (length, heads, ...)."""
    tokens = torch.arange(length)
    return pool[pages[tokens // pool.shape[1]].long(), tokens % pool.shape[1]]


@library.impl("oscar::int2_decode", "cpu")
def int2_decode(q: Tensor, k_codes: Tensor, v_codes: Tensor, k_params: Tensor, v_params: Tensor, pages: Tensor,
                lengths: Tensor, k_window: Tensor, v_window: Tensor, window_pages: Tensor, window_lengths: Tensor, *,
                softmax_scale: float | None = None, split_batch: int = 0,
                workspace: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q: bfloat16 (batch, query heads, d) -> out float32 of that shape, log-sum-exp float32 (batch, query heads)."""
    batch, heads, dim = q.shape
    kv_heads = k_codes.shape[2]
    assert q.dtype == torch.bfloat16 and q.is_contiguous() and heads % kv_heads == 0 and heads // kv_heads <= 16, q.shape
    for codes, params, window in ((k_codes, k_params, k_window), (v_codes, v_params, v_window)):
        _check_pools(codes, params, kv_heads, dim)
        assert window.dtype == torch.bfloat16 and window.shape[2:] == (kv_heads, dim), f"the window is {window.shape}"
    for pool, table, counts in ((k_codes, pages, lengths), (k_window, window_pages, window_lengths)):
        assert pool.shape[1] in (1, 2, 4, 8, 16, 32, 64, 128, 256), f"pages of {pool.shape[1]}"
        assert table.dtype == counts.dtype == torch.int32 and table.is_contiguous(), f"{table.dtype}, {counts.dtype}"
        assert table.shape[0] == counts.shape[0] == batch, f"tables of {table.shape[0]} sequences"
    out, lse = q.new_zeros(q.shape, dtype=torch.float64), q.new_zeros(batch, heads, dtype=torch.float64)
    codec, scale = _codec(k_params, dim), dim**-0.5 if softmax_scale is None else softmax_scale
    for b in range(batch):
        n, w = int(lengths[b]), int(window_lengths[b])
        k, v = (torch.cat([codec.decode(rows_of_pool(codes, pages[b], n), rows_of_pool(params, pages[b], n), dim),
                           rows_of_pool(window, window_pages[b], w).float()]).double().transpose(0, 1)
                for codes, params, window in ((k_codes, k_params, k_window), (v_codes, v_params, v_window)))
        scores = q[b].double().unflatten(0, (kv_heads, -1)) @ k.transpose(1, 2) * scale
        lse[b] = scores.logsumexp(-1).flatten()
        if n + w > 0:
            out[b] = (scores.softmax(-1) @ v).flatten(0, 1)
    return out.float(), lse.float()
