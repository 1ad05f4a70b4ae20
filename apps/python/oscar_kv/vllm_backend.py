# SPDX-License-Identifier: MIT
"""A rotation set served by vLLM on our kernels: its attention backend CUSTOM, which vllm_plugin.py registers if OSCAR_INT2_SET
names a set.

    OSCAR_INT2_SET=SET vllm serve MODEL --attention-backend CUSTOM --dtype bfloat16 \\
        --no-enable-prefix-caching --no-enable-chunked-prefill

A prompt sees itself exactly, in one pass; then each token has windows in bfloat16 and a packed history, as in Int2Cache. A
token stays in its slot of vLLM's blocks, as bfloat16 while a window has it; when the window lets go of it, its packed rows
take the beginning of the slot. So decoding reads what a packed cache reads, but the cache takes as much memory as one in
bfloat16: a backend cannot tell vLLM another size of its blocks. The interface is that of vLLM 0.17 to 0.26
(vllm/v1/attention/backend.py). Non-goals, refused: prefix caching, chunked prefill and speculative decoding (they read
blocks whose tokens may be packed already), sliding windows, soft caps, sinks, more ranks than KV heads (but for sets with one
matrix for all heads); CUDA graphs are cut at attention.
"""
import os
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder

from .int2_kernel import pack, why_not
from .int2_side import Int2Side, of_heads
from .rotation_set import RotationSet, Side, read_set

_LAYER = re.compile(r"\blayers\.(\d+)\.")


@cache
def _served_set() -> RotationSet:
    return read_set(os.environ["OSCAR_INT2_SET"]).to_torch()


def _of_rank(side: Side, name: str, number: int, heads: int) -> Side:
    """A layer's side for this rank's KV heads. Raises ValueError if the set is not for all ranks' heads: vLLM gives a head
    to several ranks if there are more ranks than heads."""
    ranks = get_tensor_model_parallel_world_size()
    for what, x in (("matrices", side.rotation), ("means", side.mean), ("clip ratios", side.head_clip_ratios)):
        if x is not None and x.shape[0] not in (1, ranks * heads):
            raise ValueError(f"layer {number}: the set {os.environ.get('OSCAR_INT2_SET')} has {name} {what} of {x.shape[0]} KV "
                             f"heads, but {ranks} ranks have {heads} each; use a set for this model, and no more ranks than "
                             "KV heads")
    return of_heads(side, get_tensor_model_parallel_rank() * heads, heads)


def _prepare_layers(layers: dict[str, Any], own: list[str], spec: Any, device: torch.device) -> None:
    """Lets each of our layers find its matrices while the server starts, and not at its first prompt. Raises ValueError if the
    set does not fit one, or if another backend has a layer of the model."""
    others = [name for name, layer in layers.items() if hasattr(layer, "impl") and not isinstance(layer.impl, Int2Impl)]
    if others:
        raise ValueError(f"another attention backend has {', '.join(others)}, which would be served without the set; a set is for "
                         "models that have one kind of attention")
    rows = torch.empty(0, spec.num_kv_heads, spec.head_size, dtype=spec.dtype, device=device)
    for name in own:
        layers[name].impl._sides_of(layers[name], rows, rows)


@dataclass
class Int2Metadata(AttentionMetadata):
    """One step: first the requests that decode, one token each, then whole prompts. Slots count places in all blocks."""

    num_actual_tokens: int
    slot_mapping: Tensor  # (tokens)
    decodes: int
    prompts: list[tuple[int, int]]  # first token and end of each
    leaving: Tensor  # int32: slots of tokens that no window will have; -1: none
    pages: Tensor  # of the history of requests that decode, and its lengths, int32
    lengths: Tensor
    window_slots: Tensor  # int32 (decodes, sink + recent)
    window_lengths: Tensor


class Int2MetadataBuilder(AttentionMetadataBuilder[Int2Metadata]):
    reorder_batch_threshold = 1  # decoding requests come first

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        _prepare_layers(vllm_config.compilation_config.static_forward_context, layer_names, kv_cache_spec, device)
        self.block_size = kv_cache_spec.block_size
        self.sink, self.recent = _served_set().windows
        for is_wrong, text in (
                (vllm_config.cache_config.enable_prefix_caching, "prefix caching; give --no-enable-prefix-caching"),
                (vllm_config.scheduler_config.enable_chunked_prefill, "chunked prefill; give --no-enable-chunked-prefill"),
                (vllm_config.speculative_config is not None, "speculative decoding"),
                (kv_cache_spec.dtype != torch.bfloat16, f"a cache of {kv_cache_spec.dtype}; give --dtype bfloat16"),
                (self.sink % self.block_size, f"blocks of {self.block_size} tokens, for a sink of {self.sink}")):
            if is_wrong:
                raise ValueError(f"oscar's attention backend cannot serve with {text}")

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Int2Metadata:
        common = common_attn_metadata
        starts = common.query_start_loc_cpu.tolist()
        requests = list(zip(starts, starts[1:]))
        decodes = next((i for i, (begin, end) in enumerate(requests) if end - begin > 1), len(requests))
        prompts = requests[decodes:]
        if any(end - begin == 1 for begin, end in prompts):
            raise ValueError("a request that decodes stands behind a prompt")
        # From the device: the name of its copy on the CPU differs between versions. Only steps with prompts wait for it.
        lengths = common.seq_lens[decodes:].tolist() if prompts else []
        for (begin, end), length in zip(prompts, lengths):
            if end - begin != length:
                raise ValueError(f"a prompt of {end - begin} tokens has {length - end + begin} before it, from another step or "
                                 "a restored cache, which oscar's attention backend cannot read")
        slots, seen = common.slot_mapping, common.seq_lens[:decodes, None]
        table = common.block_table_tensor[:decodes, :-(-common.max_seq_len // self.block_size)]
        left = seen - 1 - self.recent
        leaving = torch.where(left < self.sink, -1, self._slots(table, left))[:, 0]
        entries = torch.arange(self.sink + self.recent, device=seen.device)
        oldest = (seen - self.recent).clamp(min=self.sink)
        window = torch.where(entries < self.sink, entries, entries - self.sink + oldest)
        whole = [slots[begin + self.sink:max(end - self.recent, begin + self.sink)] for begin, end in prompts]
        return Int2Metadata(
            common.num_actual_tokens, slots, decodes, prompts, torch.cat([leaving, *whole]).int(),
            table[:, self.sink // self.block_size:].contiguous(), (seen[:, 0] - len(entries)).clamp(min=0).int(),
            self._slots(table, torch.minimum(window, seen - 1)).int(), seen[:, 0].clamp(max=len(entries)).int())

    def _slots(self, table: Tensor, tokens: Tensor) -> Tensor:
        """Of tokens (requests, any number); of negative ones, anything."""
        tokens = tokens.clamp(min=0).long()
        return table.long().gather(1, tokens // self.block_size) * self.block_size + tokens % self.block_size


class Int2Impl(AttentionImpl[Int2Metadata]):
    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None,
                 alibi_slopes: Any = None, sliding_window: int | None = None, kv_cache_dtype: str = "auto",
                 logits_soft_cap: float | None = None, attn_type: str = "decoder",
                 kv_sharing_target_layer_name: str | None = None, **others: Any):
        wrong = {"alibi_slopes": alibi_slopes, "sliding_window": sliding_window, "logits_soft_cap": logits_soft_cap,
                 "kv_sharing_target_layer_name": kv_sharing_target_layer_name, **others}
        names = [name for name, value in wrong.items() if isinstance(value, Tensor) or value]
        names += ["attn_type"] * (attn_type != "decoder")
        if names:
            raise NotImplementedError(f"oscar's attention backend does not know this model's {', '.join(names)}; unset "
                                      "OSCAR_INT2_SET to serve it without a set")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads or num_heads, kv_cache_dtype
        self._sides: tuple[Int2Side, Int2Side] | None = None

    def _sides_of(self, layer: Any, keys: Tensor, values: Tensor) -> tuple[Int2Side, Int2Side]:
        """Checked and placed in the first call, which tells which layer this is."""
        if self._sides is None:
            rotations, found = _served_set(), _LAYER.search(layer.layer_name)
            if found is None or int(found[1]) not in rotations.layers:
                raise ValueError(f"the rotation set has no layer for {layer.layer_name}; it has {sorted(rotations.layers)}")
            why = why_not(rotations.manifest, *(x[None].transpose(1, 2) for x in (keys, values)), self.num_heads, on_cpu=True)
            if why is not None:
                raise ValueError(f"the kernels cannot serve this set: {why}")
            number, heads = int(found[1]), keys.shape[1]
            own = rotations.layers[number]
            sides = [Int2Side(rotations.manifest, name, number, _of_rank(side, name, number, heads))
                     for name, side in (("key", own.key), ("value", own.value))]
            for side in sides:
                side.place(heads, self.head_size, keys.device, keys.dtype)
            self._sides = sides[0], sides[1]
        return self._sides

    def forward(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
                attn_metadata: Int2Metadata | None, output: Tensor, output_scale: Any = None,
                output_block_scale: Any = None) -> Tensor:
        """query, output: (tokens, query heads, d), key and value: (tokens, KV heads, d)."""
        if attn_metadata is None:  # a profiling run
            return output.fill_(0)
        step, tokens = attn_metadata, attn_metadata.num_actual_tokens
        q, k, v = query[:tokens], key[:tokens], value[:tokens]
        sides = self._sides_of(layer, k, v)
        windows, packed = [], []
        slots = kv_cache.view(-1, *kv_cache.shape[2:])  # an error, not a copy, if blocks do not follow each other
        for number, (side, x) in enumerate(zip(sides, (k, v))):
            window = slots[..., number * self.head_size:(number + 1) * self.head_size]
            window[step.slot_mapping[:tokens]] = side.stored(x.transpose(0, 1)).transpose(0, 1)
            windows.append(window[:, None])
            packed.append(self._packed(kv_cache, number, side))
            if len(step.leaving):
                pack(side.codec, window[step.leaving.clamp(min=0).long()], step.leaving, *packed[-1])
        if step.decodes:
            output[:step.decodes] = self._decoded(q[:step.decodes], sides, packed, windows, step)
        for begin, end in step.prompts:
            rows = [x[begin:end].transpose(0, 1)[None] for x in (q, k, v)]
            out = scaled_dot_product_attention(*rows, is_causal=True, scale=self.scale,
                                               enable_gqa=self.num_heads != self.num_kv_heads)
            output[begin:end] = out[0].transpose(0, 1)
        return output

    def _packed(self, kv_cache: Tensor, number: int, side: Int2Side) -> tuple[Tensor, Tensor]:
        """Codes and params at the beginning of the keys' (0) or values' (1) part of each slot."""
        part = kv_cache.view(torch.uint8)[..., 2 * self.head_size * number:2 * self.head_size * (number + 1)]
        codes = self.head_size // 4
        groups = self.head_size // (side.codec.group_size or self.head_size)
        params = part[..., codes:codes + 2 * groups * side.codec.param_type.itemsize].view(side.codec.param_type)
        return part[..., :codes], params.unflatten(-1, (groups, 2))

    def _decoded(self, q: Tensor, sides: tuple[Int2Side, Int2Side], packed: list[tuple[Tensor, Tensor]],
                 windows: list[Tensor], step: Int2Metadata) -> Tensor:
        """(requests, query heads, d), native."""
        (k_codes, k_params), (v_codes, v_params) = packed
        heads = (len(q), self.num_kv_heads, -1, self.head_size)
        stored = sides[0].queries(q.reshape(heads)).reshape(q.shape)
        out, _ = torch.ops.oscar.int2_decode(stored.contiguous(), k_codes, v_codes, k_params, v_params, step.pages,
                                             step.lengths, *windows, step.window_slots, step.window_lengths,
                                             softmax_scale=self.scale)
        return sides[1].native(out.bfloat16().reshape(heads)).reshape(q.shape).to(q.dtype)


class Int2Backend(AttentionBackend):
    accept_output_buffer = True
    supported_dtypes = [torch.bfloat16]
    supported_kv_cache_dtypes = ["auto", "bfloat16"]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [16, 32, 64]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [64, 128, 256]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Int2Impl]:
        return Int2Impl

    @staticmethod
    def get_builder_cls() -> type[Int2MetadataBuilder]:
        return Int2MetadataBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> tuple[int, ...]:
        """Keys and values of a token beside each other, so that slots follow each other evenly."""
        return num_blocks, block_size, num_kv_heads, 2 * head_size
