# SPDX-License-Identifier: MIT
"""torch.ops.oscar.rotate_rows on the CPU: what the kernel computes (kernels/include/oscar/rotate_rows.h), in float32.

Whoever imports this has liboscar_torch.so loaded. It is what the kernel and its callers are tested against. Non-goals: speed.
"""
import torch
from torch import Tensor, library


@library.impl("oscar::rotate_rows", "cpu")
def rotate_rows(x: list[Tensor], matrices: list[Tensor], means: list[Tensor | None], out: list[Tensor], slots: Tensor | None,
                kept: list[Tensor], *, adds_mean: bool = False) -> None:
    """x: (tokens, heads, d) each, and out bfloat16 of that shape; kept: bfloat16 (any number, heads, d) for the first of them."""
    assert len(x) == len(matrices) == len(means) == len(out) <= 4, f"{len(x)}, {len(matrices)}, {len(means)}, {len(out)}"
    assert len(kept) <= len(x) and (slots is None) == (not kept), "kept rows need slots"
    for i, (rows, of_heads, mean, to) in enumerate(zip(x, matrices, means, out)):
        (_, heads, dim), count = rows.shape, len(of_heads)
        assert rows.dtype in (torch.float32, torch.bfloat16) and rows.stride(2) == 1 and dim in (64, 128, 256), f"{rows.dtype}, {rows.shape}"
        assert of_heads.dtype == torch.bfloat16 and of_heads.is_contiguous() and of_heads.shape[1:] == (dim, dim), f"{of_heads.shape}"
        assert heads % count == 0 and to.dtype == torch.bfloat16 and to.shape == rows.shape, f"{heads} heads, {count} matrices, {to.shape}"
        before = after = torch.zeros(1, 1, dim)
        if mean is not None:
            assert mean.dtype == torch.float32 and mean.is_contiguous() and mean.shape[1] == dim and heads % len(mean) == 0, f"{mean.shape}"
            of_rows = mean.repeat_interleave(heads // len(mean), 0)[:, None]
            before, after = (before, of_rows) if adds_mean else (of_rows, after)
        y = (rows.transpose(0, 1).float() - before).bfloat16().float() @ of_heads.float().repeat_interleave(heads // count, 0)
        to.copy_((y + after).transpose(0, 1))
        if i < len(kept):
            assert slots.dtype == torch.int32 and len(slots) == len(rows) and kept[i].dtype == torch.bfloat16, f"{slots.dtype}, {kept[i].dtype}"
            kept[i][slots[slots >= 0].long()] = to[slots >= 0]
