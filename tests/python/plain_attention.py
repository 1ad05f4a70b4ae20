# SPDX-License-Identifier: MIT
"""Attention as textbooks have it, a query at a time in float64: what the tests of attention expect."""
import torch


def plain_attention(q, keys, values, scaling, visible=None, soft_cap=0.0, sinks=None):
    """q (query heads, queries, d), keys, values (KV heads, any, d), visible: bool (queries, any), None: the last keys are the queries' own, and
    each sees those up to its own -> outputs of q's shape, and the logarithms of the sums of exp(scores), without sinks."""
    group, tokens = len(q) // len(keys), keys.shape[1]
    if visible is None:
        visible = torch.ones(q.shape[1], tokens, dtype=torch.bool, device=q.device).tril(tokens - q.shape[1])
    outs, sums = torch.zeros(q.shape, dtype=torch.float64, device=q.device), torch.zeros(q.shape[:2], dtype=torch.float64, device=q.device)
    for head in range(len(q)):
        for i in range(q.shape[1]):
            seen = visible[i].nonzero()[:, 0]
            scores = scaling * (keys[head // group][seen].double() @ q[head, i].double())
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            sums[head, i] = scores.logsumexp(0)
            total = sums[head, i] if sinks is None else torch.logaddexp(sums[head, i], sinks[head].double())
            outs[head, i] = (scores - total).exp() @ values[head // group][seen].double()
    return outs, sums
