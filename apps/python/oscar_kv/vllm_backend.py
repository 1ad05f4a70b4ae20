# SPDX-License-Identifier: MIT
"""A set served by vLLM in its true size: the attention backend that vllm_plugin.py gives vLLM if OSCAR_KV_SET names a set.

    OSCAR_KV_SET=SET vllm serve MODEL --dtype bfloat16

vLLM's paged cache holds packed rows only, so a GiB holds as many more tokens as the set has fewer bits. What windows keep in
bfloat16 lies beside it, in copies of the blocks that they read (window_blocks.py): chunked prefill, prefix caching and preemption
work. A prompt's tokens see each other as they are, those of earlier chunks as the cache has them: packed between the windows.
The interface is that of vLLM 0.32 (vllm/v1/attention/backend.py, kv_cache_interface.py). On CUDA, requests of one new token are read
by kernels, all at once, where these know the set (kernel_slots.py); else arithmetic is torch's, on any device: packed rows are decoded
a request at a time. Non-goals, refused: soft caps, sinks, ALiBi, layers that share caches, more ranks than KV heads.
"""
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder

from .int2_side import Int2Side, of_heads
from .kernel_slots import slots_for
from .packed_slots import PackedSlots
from .places import manifest_hash, set_path
from .rotation_set import RotationSet, Side
from .vllm_start import LAYER, served_set
from .window_blocks import DecodeTables, WindowBlocks

_log = logging.getLogger("vllm.oscar_kv")  # below vLLM's own, so that it is seen where vLLM's lines are


@cache
def _served_set() -> RotationSet:
    return served_set().to_torch()


def _of_rank(side: Side, name: str, number: int, heads: int) -> Side:
    """A layer's side for this rank's KV heads. Raises ValueError if the set is not for all ranks' heads: vLLM gives a head
    to several ranks if there are more ranks than heads."""
    ranks = get_tensor_model_parallel_world_size()
    for what, x in (("matrices", side.rotation), ("means", side.mean), ("clip ratios", side.head_clip_ratios)):
        if x is not None and x.shape[0] not in (1, ranks * heads):
            raise ValueError(f"layer {number}: the set {set_path()} has {name} {what} of {x.shape[0]} KV "
                             f"heads, but {ranks} ranks have {heads} each; use a set for this model, and no more ranks than "
                             "KV heads")
    return of_heads(side, get_tensor_model_parallel_rank() * heads, heads)


def slots_of(layer_name: str, shape: tuple[int, int, int], block_size: int, device: torch.device, dtype: torch.dtype) -> PackedSlots:
    """How a layer's tokens are packed on this rank; shape: its query heads, KV heads and channels. Raises ValueError if the set does
    not fit the layer."""
    rotations, found = _served_set(), LAYER.search(layer_name)
    if found is None or int(found[1]) not in rotations.layers:
        raise ValueError(f"the set has no layer for {layer_name}; it has {sorted(rotations.layers)}")
    number, (q_heads, heads, dim) = int(found[1]), shape
    own, sides = rotations.layers[number], []
    for name, side in (("key", own.key), ("value", own.value)):
        sides.append(Int2Side(rotations.manifest, name, number, _of_rank(side, name, number, heads)))
        sides[-1].place(heads, dim, device, dtype)
    return slots_for(rotations.manifest, sides[0], sides[1], heads, dim, q_heads, block_size, device)


def _pack_specs() -> None:
    """Lets each layer that is ours ask vLLM for the bytes that its tokens take packed: vLLM asks a backend for the size of its
    cache (customize_spec) without telling the layer, and layers of a coded cache have different sizes."""
    of_layer = Attention.get_kv_cache_spec

    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        spec = of_layer(self, vllm_config)
        if not issubclass(self.attn_backend, PackedBackend):
            return spec
        def packed_in(block_size: int) -> Any:
            slots = slots_of(self.layer_name, (self.impl.num_heads, spec.num_kv_heads, spec.head_size), block_size,
                             torch.device(current_platform.device_type), spec.dtype)
            return replace(spec, block_size=block_size, dtype=torch.uint8, num_head_slots=1, state_content_bytes=slots.bytes)

        packed = packed_in(spec.block_size)
        page = max((of_layer(layer, vllm_config).page_size_bytes for layer in
                    vllm_config.compilation_config.static_forward_context.values()
                    if isinstance(layer, Attention) and not issubclass(layer.attn_backend, PackedBackend)), default=0)
        if page <= packed.page_size_bytes:
            return packed
        # vLLM gives all layers pages of one size, here that of layers with sliding windows: as many tokens as fit share one. Kernels
        # may not serve blocks of so many; a token takes no more bytes then.
        return replace(packed_in(spec.block_size * (page // packed.page_size_bytes)), page_size_padded=page)

    Attention.get_kv_cache_spec = get_kv_cache_spec


@dataclass
class _Request:
    begin: int  # its first token in the step, and its end
    end: int
    before: int  # tokens that the cache has of it
    history: Tensor  # slots of packed tokens between the windows
    windows: Tensor  # slots of copies of tokens in the windows


@dataclass
class PackedMetadata(AttentionMetadata):
    """One step. Slots count places in all blocks, those of copies in all copies of blocks (window_blocks.py)."""

    num_actual_tokens: int
    tokens: Tensor  # those that are written, and their slots
    slots: Tensor
    copied: Tensor  # those that have copies, and their slots
    copies: Tensor
    restored: tuple[Tensor, Tensor]  # slots of older tokens, and of the copies that are made of them
    copy_count: int  # slots of copies in all
    requests: list[_Request]  # those that torch reads
    decoded: Tensor  # the tokens that kernels read, and what they see
    tables: DecodeTables | None


class PackedMetadataBuilder(AttentionMetadataBuilder[PackedMetadata]):
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        packed = [layer.impl.prepare(layer, kv_cache_spec.block_size, device) for layer in layers.values()
                  if isinstance(getattr(layer, "impl", None), PackedImpl)]
        self.by_kernels = any(each.path == "kernels" for each in packed)
        self.by_torch = any(each.path != "kernels" for each in packed)
        cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
        self.windows = WindowBlocks(cache.num_gpu_blocks, kv_cache_spec.block_size, *_served_set().windows, scheduler.max_num_seqs,
                                    scheduler.max_num_batched_tokens, device)
        _report(layers, self.windows)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> PackedMetadata:
        common, windows = common_attn_metadata, self.windows
        starts, lengths = common.query_start_loc_cpu.tolist(), common.seq_lens.tolist()
        rows = [(i, begin, end, lengths[i] - (end - begin)) for i, (begin, end) in enumerate(zip(starts, starts[1:])) if end > begin]
        table = common.block_table_tensor[torch.tensor([row[0] for row in rows], dtype=torch.long)]
        before, after = (torch.tensor(counts, dtype=torch.long, device=table.device)
                         for counts in ([row[3] for row in rows], [lengths[row[0]] for row in rows]))
        written = common.slot_mapping[:common.num_actual_tokens].long()
        step = windows.begin(table, before, after, written)
        tokens, copied = (torch.nonzero(slots >= 0)[:, 0] for slots in (written, step.kept))
        # Kernels read requests of one token behind others; torch reads the rest.
        single = [n for n, (_, begin, end, seen) in enumerate(rows) if self.by_kernels and end - begin == 1 and seen > 0]
        decoded = torch.tensor([rows[n][1] for n in single], dtype=torch.long, device=table.device)
        tables = windows.decode_tables(table[single], [rows[n][3] for n in single], written[decoded]) if single else None
        others = [n for n in range(len(rows)) if self.by_torch or n not in set(single)]
        return PackedMetadata(common.num_actual_tokens, tokens, written[tokens], copied, step.kept[copied], step.restored,
                              windows.entries * windows.block_size, self._requests([rows[n] for n in others], table[others], before[others]),
                              decoded, tables)

    def _requests(self, rows: list[tuple[int, int, int, int]], table: Tensor, before: Tensor) -> list[_Request]:
        def split(request: Tensor, slots: Tensor) -> list[Tensor]:
            return list(slots.split(torch.bincount(request, minlength=len(rows)).tolist()))

        if not rows:
            return []
        windows = self.windows
        history_of, _, history = windows.history(table, before)
        sinks, recent = (split(of, windows.copies(slots)) for of, _, slots in windows.windows(table, before))
        return [_Request(begin, end, seen, packed, torch.cat([first, last])) for (_, begin, end, seen), packed, first, last
                in zip(rows, split(history_of, history), sinks, recent)]


@cache
def _say(text: str) -> None:
    _log.warning("%s", text)


def _report(layers: dict[str, Any], windows: WindowBlocks) -> None:
    """One line: what is served, and what it takes."""
    slots = [layer.impl.packed for layer in layers.values() if isinstance(getattr(layer, "impl", None), PackedImpl)]
    bits = sum(8 * each.bytes for each in slots) / sum(2 * each.heads * each.dim for each in slots)
    copies = sum(4 * each.heads * each.dim for each in slots) * windows.entries * windows.block_size
    path = set_path() or ""
    _say(f"oscar_kv: the set {path} ({manifest_hash(path)}) is served in {len(slots)} layers at {bits:.3f} bits a value; windows of "
         f"{windows.sink} + {windows.recent} tokens in bfloat16 take {copies / 2**20:.1f} MiB beside the cache, in "
         f"{windows.entries} blocks of {windows.block_size} tokens; decode steps by {', '.join(sorted({each.path for each in slots}))}")


class PackedImpl(AttentionImpl[PackedMetadata]):
    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None,
                 alibi_slopes: Any = None, sliding_window: int | None = None, kv_cache_dtype: str = "auto",
                 logits_soft_cap: float | None = None, attn_type: str = "decoder",
                 kv_sharing_target_layer_name: str | None = None, **others: Any):
        wrong = {"alibi_slopes": alibi_slopes, "sliding_window": sliding_window, "logits_soft_cap": logits_soft_cap,
                 "kv_sharing_target_layer_name": kv_sharing_target_layer_name, **others}
        names = [name for name, value in wrong.items() if isinstance(value, Tensor) or value]
        names += ["attn_type"] * (attn_type != "decoder") + ["kv_cache_dtype"] * (kv_cache_dtype not in ("auto", "bfloat16"))
        if names:
            raise NotImplementedError(f"oscar's attention backend does not know this model's {', '.join(names)}; unset "
                                      "OSCAR_KV_SET to serve it without a set")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads or num_heads, kv_cache_dtype
        self.dtype = get_current_vllm_config().model_config.dtype
        self.packed: PackedSlots | None = None
        self._copies: tuple[Tensor, Tensor] | None = None  # keys and values, bfloat16 (slots, KV heads, d), as stored

    def prepare(self, layer: Any, block_size: int, device: torch.device) -> PackedSlots:
        """Finds and checks the layer's matrices, while the server starts."""
        if self.packed is None:
            shape = self.num_heads, self.num_kv_heads, self.head_size
            self.packed = slots_of(layer.layer_name, shape, block_size, device, self.dtype)
        return self.packed

    def forward(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
                attn_metadata: PackedMetadata | None, output: Tensor, output_scale: Any = None,
                output_block_scale: Any = None) -> Tensor:
        """query, output: (tokens, query heads, d), key and value: (tokens, KV heads, d); kv_cache: (blocks, 1, tokens, bytes)."""
        if attn_metadata is None:  # a profiling run
            return output.fill_(0)
        step, packed = attn_metadata, self.prepare(layer, kv_cache.shape[2], query.device)
        stored = [side.stored(x[:step.num_actual_tokens].transpose(0, 1)).transpose(0, 1)
                  for side, x in zip(packed.sides, (key, value))]
        packed.write(kv_cache, step.slots, *(x[step.tokens] for x in stored))
        if self._copies is None:
            shape = step.copy_count, self.num_kv_heads, self.head_size
            self._copies = tuple(torch.zeros(shape, dtype=torch.bfloat16, device=query.device) for _ in range(2))
        for copies, rows in zip(self._copies, stored):
            copies[step.copies] = rows[step.copied]
        if len(step.restored[0]):
            for copies, rows in zip(self._copies, packed.read(kv_cache, step.restored[0])):
                copies[step.restored[1]] = rows.transpose(0, 1).bfloat16()
        by_kernels = step.tables is not None and packed.path == "kernels"
        if by_kernels:
            output[step.decoded] = self._decode(query[step.decoded], step.tables, packed, kv_cache)
        for request in step.requests:
            if by_kernels and request.end - request.begin == 1 and request.before > 0:
                continue
            own = slice(request.begin, request.end)
            rows = (query[own], key[own], value[own])
            output[own] = self._prompt(*rows) if request.before == 0 else self._behind(
                request, query[own], [x[own] for x in stored], packed, kv_cache)
        return output

    def _decode(self, q: Tensor, tables: DecodeTables, packed: Any, kv_cache: Tensor) -> Tensor:
        """One token of each request, (requests, query heads, d), native."""
        count, (key_side, value_side) = len(q), packed.sides

        def by_heads(change: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:  # (requests, query heads, d) by KV heads, and back
            grouped = x.unflatten(1, (self.num_kv_heads, -1)).transpose(0, 1).flatten(1, 2)
            return change(grouped).unflatten(1, (count, -1)).transpose(0, 1).flatten(1, 2)

        windows = [copies[:, None] for copies in self._copies or ()]  # pages of one token
        out = packed.decode(kv_cache, by_heads(key_side.queries, q).contiguous(), windows, tables, self.scale)
        return by_heads(value_side.native, out.bfloat16()).to(q.dtype)

    def _prompt(self, *rows: Tensor) -> Tensor:
        """Tokens that have none before them, (tokens, heads, d)."""
        out = scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in rows), is_causal=True, scale=self.scale,
                                           enable_gqa=self.num_heads != self.num_kv_heads)
        return out[0].transpose(0, 1)

    def _behind(self, request: _Request, q: Tensor, new: list[Tensor], packed: PackedSlots, kv_cache: Tensor) -> Tensor:
        """Tokens behind others: (tokens, query heads, d), native."""
        count, (key_side, value_side) = len(q), packed.sides
        keys, values = (torch.cat([history.bfloat16(), copies[request.windows].transpose(0, 1), rows.transpose(0, 1)], 1).float()
                        for history, copies, rows in zip(packed.read(kv_cache, request.history), self._copies or (), new))
        grouped = (self.num_kv_heads, -1, self.head_size)  # the query heads of a KV head, a token after another
        stored = key_side.queries(q.transpose(0, 1).reshape(grouped)).float().reshape(1, self.num_heads, count, -1)
        mask = None
        if count > 1:
            mask = torch.ones(count, keys.shape[1], dtype=torch.bool, device=q.device).tril(keys.shape[1] - count)
        out = scaled_dot_product_attention(stored, keys[None], values[None], attn_mask=mask, scale=self.scale,
                                           enable_gqa=self.num_heads != self.num_kv_heads)
        native = value_side.native(out.bfloat16().reshape(grouped)).reshape(self.num_heads, count, -1)
        return native.transpose(0, 1).to(q.dtype)


class PackedBackend(AttentionBackend):
    accept_output_buffer = True
    supported_dtypes = [torch.bfloat16]
    supported_kv_cache_dtypes = ["auto", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[PackedImpl]:
        return PackedImpl

    @staticmethod
    def get_builder_cls() -> type[PackedMetadataBuilder]:
        return PackedMetadataBuilder


_pack_specs()
