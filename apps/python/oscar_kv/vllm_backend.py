# SPDX-License-Identifier: MIT
"""A set served by vLLM in its true size: the attention backend that vllm_plugin.py gives vLLM if OSCAR_KV_SET names a set.

    OSCAR_KV_SET=SET vllm serve MODEL --dtype bfloat16 --max-num-seqs 64

vLLM's paged cache holds packed rows only, so a GiB holds as many more tokens as the set has fewer bits. What windows keep in
bfloat16 lies beside it, in copies of the blocks that they read (window_blocks.py): chunked prefill, prefix caching and preemption
work. A prompt's tokens see each other as they are, those of earlier chunks as the cache has them: packed between the windows.
vLLM asks each layer for the size of a token and of a block while a server starts, when its weights are there and its cache is not.
The interface is that of vLLM 0.32 and 0.33 (vllm/v1/attention/backend.py, backends/fa_utils.py, kv_cache_interface.py). On CUDA, requests of at most 8 new tokens are
read by kernels, all at once, where these know the set (packed_layer.py); steps of such requests alone can be CUDA graphs. Others
are read in pieces of bounded size, on any device (chunk_attention.py). Sinks are applied to outputs, whatever read them (score_rule.py). A layer without keys of its own reads what another has (Gemma 4). In a hybrid, layers
of linear attention or Mamba keep vLLM's states, in blocks as large as those of tokens. Non-goals, refused: ALiBi, more ranks than KV heads.
"""
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import gcd
from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention as AttentionLayer
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadataBuilder, MultipleOf, max_decode_query_len

from .chunk_attention import Attention, Lengths, Prompts, attend, attention, rehearse
from .decode_step import DecodeStep, PackedMetadata, SharedStep, StepBuffers, chosen_of, running, uniform_of
from .offloaded_windows import OffloadedWindows, watch_transfers
from .packed_layer import MOST_VALUES, PackedSlots, why_no_decode, why_no_kernels
from .program import manifest_hash, set_path
from .score_rule import ScoreRule
from .sets import SetPart
from .vllm_start import LAYER, is_packed, served_set, watch_scheduler
from .window_blocks import MOST_NEW, WindowBlocks

ON_CPU = False  # tests: decode steps by the operators on the CPU, too
_PAGES = (4, 8, 16, 32, 64, 128, 256)  # tokens that the kernels' pages may have
_PAGE = 16  # tokens of a page of a hybrid's blocks
# Each line once, below vLLM's own logger, so that it is seen where vLLM's lines are.
_say = cache(logging.getLogger("vllm.oscar_kv").warning)
_tensors_of = lru_cache(1)(SetPart.to_torch)
_side_stream = cache(torch.cuda.Stream)


def packed_set() -> SetPart:
    """served_set(), as tensors."""
    return _tensors_of(served_set())


def _slots_of(layer_name: str, shape: tuple[int, int, int], block_size: int, device: torch.device, dtype: torch.dtype,
              rank: int | None = None) -> PackedSlots:
    """How a layer's tokens are packed on a rank, by default this one; shape: its query heads, KV heads and channels. Its path says whether
    kernels serve its decode steps. Raises ValueError if the set does not fit the layer, or cannot be packed on this device."""
    part, found = packed_set(), LAYER.search(layer_name)
    layer = part.layers.get(int(found[1])) if found else None
    if layer is None:
        raise ValueError(f"the set has no layer for {layer_name}; it has {sorted(part.layers)}")
    q_heads, heads, dim = shape
    if device.type == "cuda" and (why := why_no_kernels(dim)):
        raise ValueError(f"the set {set_path()} cannot be served: {why}")
    rank, ranks = get_tensor_model_parallel_rank() if rank is None else rank, get_tensor_model_parallel_world_size()
    slots = PackedSlots(layer, heads, dim, device, dtype, rank=rank, ranks=ranks)
    sink, recent = part.windows
    why = next((text for is_wrong, text in (
        (device.type != "cuda" and not ON_CPU, f"the cache is on {device.type}, the kernels on CUDA"),
        (recent < 2, f"a window of {recent} recent tokens"),
        (block_size not in _PAGES, f"blocks of {block_size} tokens"),
        (sink % block_size, f"a sink of {sink} tokens in blocks of {block_size}")) if is_wrong), why_no_decode(q_heads, heads))
    slots.path = "kernels" if why is None else f"torch: {why}"
    _ = slots.rotations  # before graphs are captured
    return slots


def _room_of(layer: Any, block_size: int) -> int:
    """Bytes of a layer's token on the rank whose heads take most, as vLLM gives all ranks caches of one shape."""
    device = torch.device(current_platform.device_type)
    return max(_slots_of(layer.layer_name, layer.impl.shape, block_size, device, layer.impl.dtype, rank).bytes
               for rank in range(get_tensor_model_parallel_world_size()))


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


def packed_spec(spec: Any, room: int) -> Any:
    return replace(spec, dtype=torch.uint8, num_head_slots=1, state_content_bytes=room)


def pack_specs() -> None:
    """Lets each layer that is ours ask vLLM for the bytes that its tokens take packed: vLLM asks a backend for the size of its
    cache (customize_spec) without telling the layer, and layers have different sizes."""
    of_layer = AttentionLayer.get_kv_cache_spec

    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        spec = of_layer(self, vllm_config)
        if not is_packed(self):
            return spec

        def packed_in(block_size: int) -> Any:
            self.impl.block_size = PackedBackend.page or block_size
            self.impl.room = PackedBackend.room or _room_of(self, block_size)
            return packed_spec(replace(spec, block_size=block_size), self.impl.room)

        packed = packed_in(spec.block_size)
        others = [of_layer(layer, vllm_config) for layer in vllm_config.compilation_config.static_forward_context.values()
                  if isinstance(layer, AttentionLayer) and not is_packed(layer)]
        page = max(other.page_size_bytes for other in others) if any(type(other) is not type(spec) for other in others) else 0
        if page > packed.page_size_bytes:
            # Where layers are of several kinds vLLM gives all of them pages of one size, here that of layers with sliding windows: as many
            # tokens as fit share one, in a power of two of blocks. Kernels take such pages, and vLLM finds prefixes in the least common multiple of what layers of other sizes have.
            blocks = 1 << ((page // packed.page_size_bytes).bit_length() - 1)
            packed = replace(packed_in(spec.block_size * blocks), page_size_padded=page)
        _plan_windows(self.impl, vllm_config)
        return packed

    AttentionLayer.get_kv_cache_spec = get_kv_cache_spec


def packed_layers(vllm_config: Any) -> list[Any]:
    """Those that have a cache."""
    return [layer for layer in vllm_config.compilation_config.static_forward_context.values() if is_packed(layer) and layer.impl.source_name is None]


@cache
def prompt_attention(head_size: int, soft_cap: float) -> Attention:
    """chunk_attention.attention(), or the flash attention that vLLM brings where it has one for these heads on this device: on Hopper its
    third version takes two thirds of the time of torch's. It takes bfloat16 rows, any strides but of channels, and as many keys as queries
    where it is causal."""
    own = partial(attention, soft_cap=soft_cap)
    if current_platform.device_type != "cuda":
        return own
    try:
        from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version
    except ImportError:
        return own
    version = get_flash_attn_version(head_size=head_size, requires_softcap=soft_cap > 0)
    if version not in (2, 3) or head_size > 256 or head_size % 8:
        return own

    def flash(q: Tensor, keys: Tensor, values: Tensor, scaling: float, lengths: Lengths) -> tuple[Tensor, Tensor]:
        splits = int(len(lengths.queries) > 1)  # 0: as it likes, by the longest request, with room for all
        out, lse = flash_attn_varlen_func(q, keys, values, max(lengths.queries), lengths.starts[0], max(lengths.keys), lengths.starts[1],
                                          softmax_scale=scaling, causal=lengths.is_causal, softcap=soft_cap, return_softmax_lse=True,
                                          num_splits=splits, fa_version=version)
        return out, lse.T

    return flash


class PackedMetadataBuilder(AttentionMetadataBuilder[PackedMetadata]):
    """Where kernels read all requests of a step and vLLM tells which these are, waits for the device only if some are new or come back;
    else in every step. Layers may have pages of several sizes, and each size its builder: those that vLLM tells
    the same of a step share what one made."""

    _made: SharedStep | None = None
    offloaded: Callable[[], OffloadedWindows | None] = staticmethod(lambda: None)  # while the engine that moves them is there
    _pages: dict[WindowBlocks, int] = {}  # windows of hybrids' layers, and pages of a block

    @classmethod
    def forget_copied(cls, output: Any) -> None:
        """A step, by vLLM's SchedulerOutput, before which it copies blocks for requests that share a part of one."""
        blocks = [copy.dst_block_id for copy in getattr(output, "kv_cache_block_copies", None) or ()]
        for windows, pages in cls._pages.items() if blocks else ():
            windows.forget([block * pages + i for block in blocks for i in range(pages)])

    @classmethod
    def begin_transfers(cls, output: Any) -> None:
        if (offloaded := cls.offloaded()) is not None and output.kv_connector_metadata is not None:
            offloaded.begin(output)

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        for layer in packed_layers(vllm_config):
            layer.impl.prepare(layer, kv_cache_spec.block_size, device)
        for impl in (layer.impl for layer in layers.values() if is_packed(layer) and layer.impl.source_name is not None):
            impl.source = layers[impl.source_name].impl
            impl.source.is_shared = True
        own = [layer for layer in packed_layers(vllm_config) if layer.layer_name in layer_names]
        self.by_kernels = all(layer.impl.packed.path == "kernels" for layer in own)
        self.turns = any(layer.impl.packed.turns for layer in packed_layers(vllm_config))  # of all: builders share their steps
        known, scheduler = vllm_config.cache_config.num_gpu_blocks, vllm_config.scheduler_config
        blocks = known or scheduler.max_num_seqs  # None while vLLM measures what its graphs take
        pages = vllm_config.cache_config.block_size // PackedBackend.page if PackedBackend.page else 1
        self.windows = WindowBlocks(blocks * pages, kv_cache_spec.block_size, *packed_set().windows, scheduler.max_num_seqs,
                                    scheduler.max_num_batched_tokens, device)
        if PackedBackend.page and known:
            self._pages[self.windows] = pages
        self.layers, self.most_tokens = own, scheduler.max_num_batched_tokens
        self.buffers = StepBuffers(scheduler.max_num_seqs, packed_set().windows[0], device)
        for layer in own:
            layer.impl.make_copies(self.windows.slots, device)
            layer.impl.builder = self
        if getattr(vllm_config, "kv_transfer_config", None) is not None:
            watch_scheduler(PackedMetadataBuilder.begin_transfers, vllm_config)
            watch_transfers(PackedMetadataBuilder, vllm_config)
        if known:
            _report(layers, self.windows)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """Steps in which each request has equally many tokens, as many as kernels read at once, are captured whole where kernels serve
        all packed layers: build() then leaves what a step reads where the step before had it."""
        device, layers = torch.device(current_platform.device_type), packed_layers(vllm_config)
        known = all(layer.impl.prepare(layer, kv_cache_spec.block_size, device).path == "kernels" for layer in layers)
        return AttentionCGSupport.UNIFORM_BATCH if known and max_decode_query_len(vllm_config) <= MOST_NEW else AttentionCGSupport.NEVER

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> PackedMetadata:
        common, kind = common_attn_metadata, (self.windows.block_size, self.by_kernels)
        made = PackedMetadataBuilder._made
        if made is None or not made.take(self, kind, common.slot_mapping):
            made = PackedMetadataBuilder._made = SharedStep(self, kind, common.slot_mapping, *self._build(common))
        if len(made.restored[0]):
            for layer in self.layers:
                layer.impl.restore(layer.kv_cache, *made.restored)
            if (offloaded := self.offloaded()) is not None:
                offloaded.give(self, made.restored[0])
        return made.metadata

    def _build(self, common: Any) -> tuple[PackedMetadata, tuple[Tensor, Tensor, Tensor]]:
        windows, table = self.windows, common.block_table_tensor
        starts, all_tokens, told = common.query_start_loc_cpu.tolist(), common.num_actual_tokens, running(common)
        chosen = chosen_of(starts) if self.by_kernels else []
        if self.by_kernels and windows.is_steady(*told[:2]):
            if made := self._build_by_kernels(common, starts, chosen, told[0]):
                return made, (table[:0],) * 3
        ends, after = common.query_start_loc.long(), common.seq_lens.long()
        count = ends[1:] - ends[:-1]
        before = (after - count).clamp(min=0)
        written = common.slot_mapping[:all_tokens].long()
        step = windows.begin(table, before, torch.where(count > 0, after, before), written, *told)
        decoded = self.buffers.build(windows, starts, chosen, table, before, count, all_tokens)
        others = [i for i, (begin, end) in enumerate(zip(starts, starts[1:])) if end > begin and i not in set(chosen)]
        lengths = before.tolist() if others else []
        prompts = [self._prompts(part, starts, lengths, table, before) for part in (
            [i for i in others if lengths[i] == 0], [i for i in others if lengths[i] > 0]) if part]
        slots, copies = (self.buffers.hold(name, x.int(), self.most_tokens) for name, x in (("slots", written), ("kept", step.kept)))
        positions = self.buffers.hold("positions", self._positions(before, count, all_tokens), self.most_tokens) if self.turns else None
        return PackedMetadata(all_tokens, slots, copies, positions, prompts, decoded), step.restored

    @staticmethod
    def _positions(before: Tensor, count: Tensor, all_tokens: int) -> Tensor:
        """int32 (all_tokens), of the tokens of all requests, and of those that fill a step up."""
        first = (before - count.cumsum(0) + count).repeat_interleave(count)
        positions = torch.zeros(all_tokens, dtype=torch.int32, device=before.device)
        positions[:len(first)] = first + torch.arange(len(first), device=before.device)
        return positions

    def _build_by_kernels(self, common: Any, starts: list[int], chosen: list[int], places: frozenset[int]) -> PackedMetadata | None:
        """A step like the one before it, as a graph replays it, by two launches and those of torch that find positions. None: a step of
        other shapes."""
        all_tokens = common.num_actual_tokens
        requests, tokens = uniform_of(starts, chosen, all_tokens) or (0, 0)
        if not 0 < requests <= self.buffers.requests or starts[-1] != len(chosen) * tokens or all_tokens > self.most_tokens:
            return None
        table = common.block_table_tensor[:requests]
        slots, copies, tables = self.buffers.rooms(self.windows, table, tokens, all_tokens, self.most_tokens)
        self.windows.step(table, common.query_start_loc[:requests + 1], common.seq_lens[:requests], common.slot_mapping[:all_tokens], places,
                          slots, copies, tables)
        positions = None
        if self.turns:  # of requests that fill the batch up negative: they are not written
            new = torch.arange(-tokens, 0, dtype=torch.int32, device=table.device)
            every = torch.nn.functional.pad((common.seq_lens[:requests, None] + new).int().flatten(), (0, all_tokens - requests * tokens))
            positions = self.buffers.hold("positions", every, self.most_tokens)
        return PackedMetadata(all_tokens, slots, copies, positions, [], DecodeStep(requests, tokens, tables, self.buffers.first[:requests]))

    def _prompts(self, which: list[int], starts: list[int], lengths: list[int], table: Tensor, before: Tensor) -> Prompts:
        """These requests, of which the cache has `lengths` tokens each."""
        counts = [starts[i + 1] - starts[i] for i in which]
        tokens = slice(starts[which[0]], starts[which[-1] + 1])
        if tokens.stop - tokens.start > sum(counts):
            tokens = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in which]).to(table.device)
        rows = [before[:0].int()] * 2 + [before[:0]] * 2
        if lengths[which[0]] > 0:
            index = torch.tensor(which, dtype=torch.long, device=table.device)
            rows = self.windows.rows_before(table[index], before[index])
        return Prompts(tokens, counts, [lengths[i] for i in which], *rows)


def _report(layers: dict[str, Any], windows: WindowBlocks) -> None:
    """One line for all layers whose blocks have as many tokens: what is served, and what it takes."""
    impls = [layer.impl for layer in layers.values() if isinstance(getattr(layer, "impl", None), PackedImpl)
             and layer.impl.block_size == windows.block_size]
    slots = [impl.packed for impl in impls]
    bits = sum(8 * impl.room for impl in impls) / sum(2 * each.heads * each.dim for each in slots)
    copies = sum(impl.copy_bytes(windows.entries * windows.block_size) for impl in impls)
    path = set_path() or ""
    _say(f"oscar_kv: the part coded of {path} ({manifest_hash(path)}) is served in {len(slots)} layers at {bits:.3f} bits a value; "
         f"windows of {windows.sink} + {windows.recent} tokens in bfloat16 take {copies / 2**20:.1f} MiB beside the cache, in "
         f"{windows.entries} blocks of {windows.block_size} tokens; decode steps by {', '.join(sorted({each.path for each in slots}))}")


def _beside(step: PackedMetadata, kv_cache: Tensor) -> Any:
    """A stream in which a step's tokens are packed beside its attention, from here on: in graphs of decode steps, where attention reads
    nothing packed that the step writes. Of the step's tokens it reads those of a request's own window, exact. A request that begins in the
    step may find a block that another one fills in it, whose last MOST_NEW tokens at most are new, and in its window, too: behind a block
    vLLM finds only blocks that were there when an older copy of that one was, for it drops those behind first. None: packed before attention."""
    if step.prompts or kv_cache.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return None
    if min(packed_set().windows[1], kv_cache.shape[2]) <= MOST_NEW:
        return None
    side = _side_stream(kv_cache.device)
    side.wait_stream(torch.cuda.current_stream())
    return side


class PackedImpl(AttentionImpl[PackedMetadata]):
    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None,
                 alibi_slopes: Any = None, sliding_window: int | None = None, kv_cache_dtype: str = "auto",
                 logits_soft_cap: float | None = None, attn_type: str = "decoder",
                 kv_sharing_target_layer_name: str | None = None, sinks: Tensor | None = None, **others: Any):
        wrong = {"alibi_slopes": alibi_slopes, "sliding_window": sliding_window, **others}
        names = [name for name, value in wrong.items() if isinstance(value, Tensor) or value]
        names += ["attn_type"] * (attn_type != "decoder") + ["kv_cache_dtype"] * (kv_cache_dtype not in ("auto", "bfloat16"))
        if names:
            raise NotImplementedError(f"oscar's attention backend does not know this model's {', '.join(names)}; unset OSCAR_KV_SET")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads or num_heads, kv_cache_dtype
        self.shape = num_heads, self.num_kv_heads, head_size
        self.rule = ScoreRule(logits_soft_cap or 0.0, sinks)
        model = get_current_vllm_config().model_config
        self.dtype, self._attention = model.dtype, prompt_attention(head_size, self.rule.soft_cap)
        self._longest, self._is_far = model.max_model_len, False  # by which vLLM chooses LongRoPE's frequencies, whatever a text's length
        self.packed: PackedSlots | None = None
        self.block_size, self.room = 0, 0  # tokens of a block, bytes of a token in vLLM's cache
        self.source_name, self.source = kv_sharing_target_layer_name, self  # the layer whose cache it reads, and that one's PackedImpl
        self.is_shared, self.new = False, None  # whether others read its cache, and for those its keys and values of the step, plain and stored
        self.most_copies = 0  # slots that windows need at most
        self.builder: Any = None  # its PackedMetadataBuilder
        self._copies: Tensor | None = None  # keys and values, bfloat16 (2, slots, KV heads, d), as stored

    def prepare(self, layer: Any, block_size: int, device: torch.device) -> PackedSlots:
        """Finds and checks the layer's matrices, while the server starts. block_size: counts if vLLM has not asked for the layer's own."""
        if self.packed is None:
            self.packed = _slots_of(layer.layer_name, self.shape, self.block_size or block_size, device, self.dtype)
            self.rule.check(self.packed.sides[0])
            self._is_far = self.packed.far(self._longest)
        return self.packed

    def forward(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
                attn_metadata: PackedMetadata | None, output: Tensor, output_scale: Any = None,
                output_block_scale: Any = None) -> Tensor:
        """query, output: (tokens, query heads, d), key and value: (tokens, KV heads, d), None in a layer that reads the cache of another;
        kv_cache: (blocks, 1, tokens, bytes)."""
        if attn_metadata is None:  # a profiling run: what it takes is not given to the cache
            self.make_copies(self.most_copies, query.device)
            rehearse(query, MOST_VALUES, self.rule.soft_cap)
            return output.fill_(0)
        step, packed = attn_metadata, self.source.prepare(layer, kv_cache.shape[2], query.device)
        kv_cache = packed.of_rank(kv_cache)
        queries = query[:0] if step.decoded is None else step.decoded.queries(query)
        turned, side = torch.empty(queries.shape, dtype=torch.bfloat16, device=query.device), None
        if self.source is not self:
            key, value, stored = self.source.new
            packed.turn(queries, turned)
        else:
            rows = key[:step.num_actual_tokens], value[:step.num_actual_tokens]
            stored = torch.empty(len(rows[0]), 2, *key.shape[1:], dtype=torch.bfloat16, device=key.device).transpose(0, 1)
            packed.rotate(rows, stored, step.copies, self._copies, queries, turned)
            side = _beside(step, kv_cache)
            with torch.cuda.stream(side):
                packed.write(kv_cache, step.slots, stored, step.positions, self._is_far)
            self.new = (key, value, stored) if self.is_shared else None
        if step.decoded is not None:
            self._decode(turned, step.decoded, packed, kv_cache, output)
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        for prompts in step.prompts:
            self._read(prompts, query[prompts.tokens], key, value, stored, packed, kv_cache, output)
        return output

    def copy_bytes(self, slots: int) -> int:
        """What so many copies of keys and values take."""
        return 4 * slots * self.num_kv_heads * self.head_size

    def make_copies(self, slots: int, device: torch.device) -> None:
        """Room for so many copies; what is there stays if it is enough. Steps write to it, in inference mode or not."""
        if self._copies is None or self._copies.shape[1] < slots:
            with torch.inference_mode(False):
                self._copies = torch.zeros(2, slots, self.num_kv_heads, self.head_size, dtype=torch.bfloat16, device=device)

    def copies_of(self, entry: int, tokens: int) -> Tensor:
        """The copies of one block, (2, tokens, KV heads, d)."""
        return self._copies[:, entry * tokens:(entry + 1) * tokens]

    def restore(self, kv_cache: Tensor, slots: Tensor, copies: Tensor, positions: Tensor) -> None:
        """Makes copies of packed rows, those of tokens at these positions."""
        rows = self._copies.new_empty(2, len(slots), *self._copies.shape[2:])
        self.packed.unpack(self.packed.of_rank(kv_cache), slots.int(), *rows, positions, self._is_far)
        self._copies.index_copy_(1, copies, rows)

    def _decode(self, turned: Tensor, step: DecodeStep, packed: Any, kv_cache: Tensor, output: Tensor) -> None:
        """New tokens of requests, whose outputs are written. turned: their queries, rotated."""
        pages = [copies[:, None] for copies in self.source._copies]  # of one token
        out, lse = packed.decode(kv_cache, turned.unflatten(0, (step.requests, -1)), pages, step.tables, self.scale, first=step.first,
                                 is_far=self.source._is_far, soft_cap=self.rule.soft_cap)
        native = output[:len(turned)] if step.gather is None else torch.empty_like(turned)
        packed.turn_back(out.flatten(0, 1), native)
        self.rule.apply_sinks(native, lse.flatten(0, 1))
        if step.gather is not None:
            output[step.places] = native[step.real]

    def _read(self, prompts: Prompts, q: Tensor, key: Tensor, value: Tensor, stored: Tensor, packed: PackedSlots, kv_cache: Tensor,
              output: Tensor) -> None:
        """Prompts, whose outputs are written. q: their queries; key, value, stored: of all tokens of the step. Where nothing is before them they
        see each other as they are, else as stored."""
        if not len(prompts.slots):
            native, lse = self._attention(q, key[prompts.tokens], value[prompts.tokens], self.scale, prompts.own)
        else:
            turned = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
            packed.turn(q, turned)
            out, lse = attend(prompts, turned, stored[:, prompts.tokens], self.source._copies, packed, kv_cache, self.scale, self._attention,
                              self.source._is_far)
            native = torch.empty_like(q)
            packed.turn_back(out, native)
        self.rule.apply_sinks(native, lse)
        output[prompts.tokens] = native.to(output.dtype)


class PackedBackend(AttentionBackend):
    supported_dtypes = [torch.bfloat16]
    supported_kv_cache_dtypes = ["auto", "bfloat16"]
    page, room = 0, 0  # of a hybrid: tokens of a page, bytes of a token in every layer

    @classmethod
    def share_blocks(cls, vllm_config: Any, finish: Callable[[], None]) -> None:
        """Calls finish(), by which vLLM makes blocks of attention as large as the states of linear attention or Mamba. It asks what a token
        takes: packed, in the layer that takes most, as all layers have blocks of one size. It cuts them into pages of few tokens for windows
        and kernels. In models without such layers each layer has its own. Raises ValueError if another layer has another size of blocks."""
        cls.page, cls.room = 0, 0  # of an engine before this one, as these pages
        PackedMetadataBuilder._pages.clear()
        if not vllm_config.model_config.is_hybrid:
            return finish()
        watch_scheduler(PackedMetadataBuilder.forget_copied, vllm_config)
        cache, page = vllm_config.cache_config, gcd(vllm_config.cache_config.block_size, _PAGE)
        cls.page, cls.room = page, max((_room_of(layer, page) for layer in packed_layers(vllm_config)), default=0)
        finish()
        if not cls.room:
            return
        taken = cache.block_size * cls.room
        for name, layer in vllm_config.compilation_config.static_forward_context.items():
            spec = None if is_packed(layer) else getattr(layer, "get_kv_cache_spec", lambda config: None)(vllm_config)
            if spec is not None and spec.page_size_bytes != taken:
                raise ValueError(f"the set {set_path()} cannot be served: blocks of {name} take {spec.page_size_bytes} bytes, and packed ones of "
                                 f"{cache.block_size} tokens {taken}; unset OSCAR_KV_SET")
        _say(f"oscar_kv: a block has {cache.block_size} tokens at {cls.room} bytes in a packed layer, or a state of linear attention or Mamba; "
             f"prefixes are found in parts of {cache.prefix_match_unit or cache.block_size} tokens")

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        return packed_spec(spec, cls.room) if cls.room else spec

    @classmethod
    def get_supported_kernel_block_sizes(cls, kv_cache_spec: Any = None) -> list[Any]:
        return [cls.page] if cls.page else [MultipleOf(1)]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[PackedImpl]:
        return PackedImpl

    @staticmethod
    def get_builder_cls() -> type[PackedMetadataBuilder]:
        return PackedMetadataBuilder


pack_specs()
