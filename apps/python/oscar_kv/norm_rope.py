# SPDX-License-Identifier: MIT
"""A head's RMS norm and rotary embedding of keys in torch, on any device, with the bits that kernels/reference/norm_rope.hpp defines.
Rows and results are bfloat16 (tokens, heads, d). Non-goals: queries, speed.
"""
import torch
from torch import Tensor

from .coded_rows import ordered_sum


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """weight (d): float32, or bfloat16, to which normed rows are rounded before they are multiplied, as servers do it."""
    assert weight.dtype in (torch.float32, torch.bfloat16) and weight.shape == x.shape[-1:], f"{weight.dtype}, {weight.shape}"
    assert epsilon > 0, f"norm_epsilon is {epsilon}"
    rows = x.float()
    mean = ordered_sum(rows * rows) * (1 / x.shape[-1]) + epsilon
    scale = (1 / mean.double().sqrt()).float()
    return ((rows * scale[..., None]).to(weight.dtype).float() * weight.float()).bfloat16()


def rope(x: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool = False) -> Tensor:
    """positions (tokens): rows of cos_sin (any number, rotary_dim), float32 or bfloat16, of cosines, then sines. Pairs of channels are
    f and f + rotary_dim / 2 (NeoX), or interleaved 2 f and 2 f + 1 (GPT-J)."""
    rotary = cos_sin.shape[1]
    assert cos_sin.dtype in (torch.float32, torch.bfloat16) and positions.dtype in (torch.int32, torch.int64), f"{cos_sin.dtype}, {positions.dtype}"
    assert 8 <= rotary <= x.shape[-1] and rotary % 8 == 0 and positions.shape == x.shape[:1], f"{rotary}, {positions.shape}"
    cos, sin = cos_sin[positions.long()].float()[:, None].chunk(2, -1)
    turned = x[..., :rotary].float()
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    a, b = a * cos - b * sin, b * cos + a * sin
    both = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
    return torch.cat((both.bfloat16(), x[..., rotary:]), -1)
