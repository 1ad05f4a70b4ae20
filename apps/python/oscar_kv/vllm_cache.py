# SPDX-License-Identifier: MIT
"""How large vLLM's cache of a layer is, and what lies beside it, with a set: for vllm_backend.py, whose impl keeps what is found here.

vLLM asks each layer for the size of a token and of a block while a server starts, when its weights are there and its cache is not.
"""
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform

from .int2_side import Int2Side, of_heads
from .kernel_slots import slots_for
from .packed_slots import PackedSlots
from .places import set_path
from .rotation_set import RotationSet, Side
from .vllm_start import LAYER, is_packed, served_set
from .window_blocks import WindowBlocks


@cache
def packed_set() -> RotationSet:
    """The set that this process serves, as tensors."""
    return served_set().to_torch()


def _of_rank(side: Side, name: str, number: int, heads: int, rank: int) -> Side:
    """A layer's side for a rank's KV heads. Raises ValueError if the set is not for all ranks' heads: vLLM gives a head
    to several ranks if there are more ranks than heads."""
    ranks = get_tensor_model_parallel_world_size()
    for what, x in (("matrices", side.rotation), ("means", side.mean), ("clip ratios", side.head_clip_ratios)):
        if x is not None and x.shape[0] not in (1, ranks * heads):
            raise ValueError(f"layer {number}: the set {set_path()} has {name} {what} of {x.shape[0]} KV "
                             f"heads, but {ranks} ranks have {heads} each; use a set for this model, and no more ranks than "
                             "KV heads")
    return of_heads(side, rank * heads, heads)


def slots_of(layer_name: str, shape: tuple[int, int, int], block_size: int, device: torch.device, dtype: torch.dtype,
             rank: int | None = None) -> PackedSlots:
    """How a layer's tokens are packed on a rank, by default this one; shape: its query heads, KV heads and channels. Raises ValueError
    if the set does not fit the layer."""
    rank = get_tensor_model_parallel_rank() if rank is None else rank
    rotations, found = packed_set(), LAYER.search(layer_name)
    if found is None or int(found[1]) not in rotations.layers:
        raise ValueError(f"the set has no layer for {layer_name}; it has {sorted(rotations.layers)}")
    number, (q_heads, heads, dim) = int(found[1]), shape
    own, sides = rotations.layers[number], []
    for name, side in (("key", own.key), ("value", own.value)):
        sides.append(Int2Side(rotations.manifest, name, number, _of_rank(side, name, number, heads, rank)))
        sides[-1].place(heads, dim, device, dtype)
    slots = slots_for(rotations.manifest, sides[0], sides[1], heads, dim, q_heads, block_size, device)
    if slots.path != "kernels":
        for side in sides:
            side.place_for_queries(q_heads)
    return slots


def _room_of(*layer: Any) -> int:
    """Bytes of a token on the rank whose heads take most, as vLLM gives all ranks caches of one shape. layer: as slots_of() takes it."""
    is_coded = packed_set().manifest["codec"]["name"] == "coded"  # INT2 heads take equally much
    ranks = range(get_tensor_model_parallel_world_size()) if is_coded else (None,)
    return max(slots_of(*layer, rank).bytes for rank in ranks)


def _plan_windows(impl: Any, vllm_config: Any) -> None:
    """Notes how many copies a layer's windows need at most. Raises ValueError if those of all layers are more than half of what the GPU has
    free, while its weights are there and its cache is not."""
    scheduler, requests = vllm_config.scheduler_config, vllm_config.scheduler_config.max_num_seqs
    entries = WindowBlocks.most_entries(impl.block_size, *packed_set().windows, requests, scheduler.max_num_batched_tokens)
    impl.most_copies = entries * impl.block_size
    if current_platform.device_type != "cuda":
        return
    taken, free = impl.copy_bytes(impl.most_copies) * len(packed_layers(vllm_config)), torch.cuda.mem_get_info()[0]
    if 2 * taken > free:
        raise ValueError(f"the set {set_path()} cannot be served: windows of {requests} requests take {taken / 2**30:.1f} GiB in bfloat16 beside "
                         f"the cache, and the GPU has {free / 2**30:.1f} GiB free; give --max-num-seqs {max(1, int(requests * free / taken / 4))}")


def pack_specs() -> None:
    """Lets each layer that is ours ask vLLM for the bytes that its tokens take packed: vLLM asks a backend for the size of its
    cache (customize_spec) without telling the layer, and layers of a coded cache have different sizes."""
    of_layer = Attention.get_kv_cache_spec

    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        spec = of_layer(self, vllm_config)
        if not is_packed(self):
            return spec

        def packed_in(block_size: int) -> Any:
            self.impl.block_size, self.impl.room = block_size, _room_of(
                self.layer_name, (self.impl.num_heads, spec.num_kv_heads, spec.head_size), block_size,
                torch.device(current_platform.device_type), spec.dtype)
            return replace(spec, block_size=block_size, dtype=torch.uint8, num_head_slots=1, state_content_bytes=self.impl.room)

        packed = packed_in(spec.block_size)
        page = max((of_layer(layer, vllm_config).page_size_bytes for layer in
                    vllm_config.compilation_config.static_forward_context.values()
                    if isinstance(layer, Attention) and not is_packed(layer)), default=0)
        if page > packed.page_size_bytes:
            # vLLM gives all layers pages of one size, here that of layers with sliding windows: as many tokens as fit share one. Kernels
            # may not serve blocks of so many; a token takes no more bytes then.
            packed = replace(packed_in(spec.block_size * (page // packed.page_size_bytes)), page_size_padded=page)
        _plan_windows(self.impl, vllm_config)
        return packed

    Attention.get_kv_cache_spec = get_kv_cache_spec


def packed_layers(vllm_config: Any) -> list[Any]:
    return [layer for layer in vllm_config.compilation_config.static_forward_context.values() if is_packed(layer)]
