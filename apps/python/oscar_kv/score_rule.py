# SPDX-License-Identifier: MIT
"""What a layer does to scores besides their softmax, as ScoreRule of kernels/types.hpp has it: soft caps (Gemma 2), and sinks (gpt-oss).

A cap changes every score, so whatever computes scores applies it. A sink is a score of a query head that has no value, one more part of a sum
that is joined by its logarithm: with lse = log sum exp(scores),

    out with the sink = out exp(lse) / (exp(lse) + exp(sink)) = out sigmoid(lse - sink)

so it is applied to outputs, whatever computed them: to native ones, which have the mean of values. Needs torch only.
"""
from dataclasses import dataclass

import torch
from torch import Tensor

from .packed_layer import LayerSide

_MOST_SCORES = 1 << 23  # at once


@dataclass(frozen=True)
class ScoreRule:
    """soft_cap: a score s becomes soft_cap tanh(s / soft_cap); 0: it stays. sinks: (query heads), any type; None: there are none."""

    soft_cap: float = 0.0
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        return self.soft_cap == 0 and self.sinks is None

    def check(self, keys: LayerSide) -> None:
        """Raises ValueError if scores of these keys are off by a constant, which a softmax alone would not feel."""
        if keys.mean is not None and not self.is_plain:
            raise ValueError(f"{keys.where} rows are stored without their mean, which soft caps and sinks of this model feel; fit a set with "
                             "oscar fit --model, which keeps the mean of such layers")

    def apply_sinks(self, out: Tensor, lse: Tensor) -> None:
        """Takes from native outputs (tokens, query heads, d) what sinks get. lse: (tokens, query heads)."""
        if self.sinks is not None:
            out.mul_(torch.sigmoid(lse - self.sinks.float())[..., None])


def attend_by_scores(q: Tensor, keys: Tensor, values: Tensor, scaling: float, visible: Tensor, soft_cap: float) -> tuple[Tensor, Tensor]:
    """Attention whose scores are written out, in float32, those of some queries at a time. q: (..., query heads, tokens, d); keys, values: (...,
    KV heads, any, d); visible: bool (..., 1, tokens, any) or (tokens, any) -> out of q's shape and type, lse float32 (..., query heads, tokens)."""
    keys, values, heads, found = keys.float(), values.float(), keys.shape[-3], []
    at_once = max(_MOST_SCORES // (q.shape[:-2].numel() * keys.shape[-2]), 1)
    for some, seen in zip(q.split(at_once, -2), visible.split(at_once, -2)):
        rows = some.unflatten(-3, (heads, -1)).flatten(-3, -2).float()  # those of a KV head's query heads
        scores = (rows @ keys.transpose(-1, -2)).mul_(scaling).unflatten(-2, (-1, some.shape[-2]))
        if soft_cap:
            scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
        scores.masked_fill_(~seen.unsqueeze(-3), torch.finfo(torch.float32).min)
        lse = scores.logsumexp(-1)
        out = scores.sub_(lse[..., None]).exp_().flatten(-3, -2) @ values
        found.append((out.unflatten(-2, lse.shape[-2:]).flatten(-4, -3).to(q.dtype), lse.flatten(-3, -2)))
    return torch.cat([out for out, _ in found], -2), torch.cat([lse for _, lse in found], -1)
