# SPDX-License-Identifier: MIT
"""The flash attention that vLLM brings, for prompts: on Hopper its third version takes two thirds of the time of torch's. The interface
is that of vLLM 0.32 (vllm/v1/attention/backends/fa_utils.py)."""
from functools import cache

import torch
from torch import Tensor
from vllm.platforms import current_platform

from .chunk_attention import Attention


@cache
def flash_attention(head_size: int) -> Attention | None:
    """attention(q, keys, values, scaling, is_causal), bfloat16 (heads, tokens, d) each, any strides but of channels -> out of q's shape,
    lse float32 (query heads, tokens). is_causal: query i sees keys 0 to i, as many as there are queries. None: vLLM has none for these
    heads on this device."""
    if current_platform.device_type != "cuda":
        return None
    try:
        from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version
    except ImportError:
        return None
    version = get_flash_attn_version(head_size=head_size)
    if version not in (2, 3) or head_size > 256 or head_size % 8:
        return None

    def attention(q: Tensor, keys: Tensor, values: Tensor, scaling: float, is_causal: bool) -> tuple[Tensor, Tensor]:
        counts = q.shape[1], keys.shape[1]
        places = [torch.arange(0, 2 * count, count, dtype=torch.int32, device=q.device) for count in counts]  # [0, count]
        out, lse = flash_attn_varlen_func(*(x.transpose(0, 1) for x in (q, keys, values)), counts[0], places[0], counts[1], places[1],
                                          softmax_scale=scaling, causal=is_causal, return_softmax_lse=True, fa_version=version)
        return out.transpose(0, 1), lse

    return attention
