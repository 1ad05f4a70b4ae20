# SPDX-License-Identifier: MIT
"""Int2Cache: a rotation set as the cache of a model of Hugging Face transformers.

    model.generate(**inputs, past_key_values=oscar_kv.Int2Cache(oscar_kv.read_set("SET"), model.config))

Each layer holds what a server holds: rows in transformed coordinates, as bfloat16 in the windows (the first `sink` and
the last `recent` tokens) and packed between them, rounded as `oscar verify` rounds. Two ways to read it:
- any attention implementation gets native rows, decoded and transformed back in every call, so that every model works. A
  call's tokens see the cache as its first token does: with one token a call, as in decoding, token i sees token j exactly
  if j < sink or j > i - recent, as `verify` counts; a prompt given at once sees itself exactly, as in a server's prefill.
- model.set_attn_implementation(oscar_kv.INT2_ATTENTION) stays in transformed coordinates and gives each token its own
  windows, however many come at once: on CUDA by the kernels of liboscar_torch.so where they know the set's codec and
  shapes (int2_kernel.py), else in torch (int2_attend.py); Int2Cache.path says which, and why. Calls that transformers gives
  a mask, which are padded ones and those of several tokens after others, are read in torch in either case. Calls of one token by
  the kernels can be a CUDA graph: decode_graph.py.
Padding counts as tokens. Non-goals: taking back tokens (crop), models whose attention has sinks or soft
caps in the second way.
"""
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . import coded_kernel, identity, int2_attend, int2_kernel
from .decode_clock import DecodeClock
from .int2_rows import SideRows
from .rotation_set import Layer, RotationSet
from .set_check import check_for_model

INT2_ATTENTION = "oscar_int2"
_call = threading.local()  # .noted: the last layer's keys went to attention with a note


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
               scaling: float | None = None, dropout: float = 0.0, **kwargs: Any) -> tuple[Tensor, None]:
    """transformers' interface: query, key, value (batch, heads, tokens, d) -> (batch, tokens, heads, d)."""
    seen = getattr(key, "oscar_seen", None)
    noted, _call.noted = getattr(_call, "noted", False), False
    if seen is None and noted:
        raise ValueError(f"this model changes keys between its cache and attention, which {INT2_ATTENTION} cannot follow; use "
                         "Int2Cache with another attention implementation")
    if seen is None:  # no Int2Layer: layers with sliding windows, calls without a cache
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{INT2_ATTENTION} does not know this model's {name}; use Int2Cache with \"eager\" attention")
    out = seen(query, attention_mask, query.shape[3]**-0.5 if scaling is None else scaling)
    return out.transpose(1, 2).contiguous(), None


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """transformers' interface, with which it makes a mask while a graph is captured even for one token that sees all others."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        if kwargs.get("q_length") == 1 and kwargs.get("attention_mask") is None:
            return None
    return sdpa_mask(*args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(INT2_ATTENTION, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(INT2_ATTENTION, _mask)


@dataclass(frozen=True)
class _Options:
    path: str
    exact_prompt: bool
    max_length: int
    clocks: dict[torch.device, DecodeClock] = field(default_factory=dict)

    def clock_of(self, rows: SideRows, device: torch.device) -> DecodeClock:
        return self.clocks.setdefault(device, DecodeClock(rows.sink, rows.recent))


class Int2Layer(CacheLayerMixin):
    """One layer of an Int2Cache."""

    is_sliding = False

    def __init__(self, rotations: RotationSet, layer: Layer, config: Any, options: _Options):
        super().__init__()
        self._rotations, self._layer, self._config, self._options = rotations, layer, config, options
        self._begin(SideRows)
        self.path = "none yet"

    def _begin(self, rows: type[SideRows]) -> None:
        manifest, layer = self._rotations.manifest, self._layer
        sink, recent = self._rotations.windows
        self.key = rows(manifest, "key", layer.layer_id, layer.key, sink, recent)
        self.value = rows(manifest, "value", layer.layer_id, layer.value, sink, recent)
        rows.join(self.key, self.value)

    @property
    def is_coded(self) -> bool:
        return self._layer.key.levels is not None

    def _in_transformed_coordinates(self) -> bool:
        return getattr(self._config, "_attn_implementation", None) == INT2_ATTENTION

    def _why_torch(self, keys: Tensor, values: Tensor) -> str | None:
        """None: the kernels."""
        if self._options.path == "torch":
            return "as asked for"
        if not self._in_transformed_coordinates():
            return f"the model's attention is not {INT2_ATTENTION}"
        why = int2_kernel.why_not(self._rotations.manifest, keys, values, self._config.num_attention_heads,
                                  self._options.path == "kernel")
        if why is None and self.is_coded:
            return coded_kernel.why_not(self.key.codec, self.value.codec, keys.device)
        return why

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        why = self._why_torch(key_states, value_states)
        if why is not None and self._options.path == "kernel":
            raise ValueError(f"layer {self._layer.layer_id}: the kernels cannot serve this cache: {why}")
        self.path = "kernel" if why is None else f"torch: {why}"
        of_kernel = coded_kernel.CodedKernelRows if self.is_coded else int2_kernel.KernelRows
        self._begin(of_kernel if why is None else SideRows)
        self.by_kernels = why is None
        self._attention_of = int2_kernel.attention_of if why is None else int2_attend.attention_of
        self.dtype, self.device = key_states.dtype, key_states.device
        self.key.begin(key_states)
        self.value.begin(value_states)
        if self.by_kernels:
            self.reserve(max(self._options.max_length - self.key.sink - self.key.recent + 1, 0))
        self.is_initialized = True

    def reserve(self, count: int) -> None:
        """Makes room for so many more packed tokens of the kernels' cache."""
        self.key.reserve(count)
        self.value.reserve(count)

    def why_no_graph(self) -> str | None:
        """Why a step cannot be part of a CUDA graph (decode_graph.py); None: it can."""
        if not self.is_initialized or not self.by_kernels:
            return f"it is served by {self.path}"
        if self.device.type != "cuda":
            return f"it is on {self.device.type}"
        if any(getattr(side.codec, "grid", "minmax") not in ("minmax", "lsq") for side in (self.key, self.value)):
            return f"rows of {self._rotations.manifest['codec']['name']} are packed by torch, which asks the device how many"
        return None

    def places(self) -> list[int]:
        """Where the tensors lie that a step of the kernels reads and writes."""
        return [x.data_ptr() for side in (self.key, self.value) for x in side.held()]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Adds (batch, heads, tokens, d) and returns all rows as the first of these tokens sees them; for INT2_ATTENTION
        what it was given, with a note of what to read."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.by_kernels and key_states.shape[2] == 1 and self._in_transformed_coordinates():
            clock = self._options.clock_of(self.key, key_states.device)
            key_states.oscar_seen = int2_kernel.step_of(self.key, self.value, key_states, value_states, clock)
            _call.noted = True
            return key_states, value_states
        is_prompt = self.key.length == 0 and key_states.shape[2] > 1
        self.key.append(key_states)
        self.value.append(value_states)
        if is_prompt and self._options.exact_prompt:
            pass  # as it is: nothing was read from the cache
        elif self._in_transformed_coordinates():
            key_states.oscar_seen = self._attention_of(self.key, self.value)
            _call.noted = True
        else:
            key_states, value_states = (side.read().to(key_states.dtype) for side in (self.key, self.value))
        self.key.evict()
        self.value.evict()
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.key.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.key.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def nbytes(self) -> int:
        """Bytes that the rows take, room that is kept for the next ones included; matrices are the set's."""
        return self.key.nbytes() + self.value.nbytes()

    def offload(self) -> None:
        raise NotImplementedError("Int2Cache does not offload")

    def reset(self) -> None:
        self.key.clear()
        self.value.clear()
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            raise NotImplementedError("Int2Cache cannot take tokens back: their predecessors are packed already")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._batch(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._batch(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._batch(lambda x: x[indices])

    def _batch(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.is_initialized:
            self.key.change(change)
            self.value.change(change)


class Int2Cache(Cache):
    """config: the model's, from which layers that are no full attention (sliding windows, recurrent states) get what
    transformers gives them; without it all layers are taken for full attention, and no attention but native rows is known.
    path: "kernel" or "torch" takes no other way; the CPU has "kernel" as a slow reference. exact_prompt: with INT2_ATTENTION,
    a prompt in an empty cache sees itself exactly, by the model's own rows, as in servers. max_length: tokens that the kernels' caches
    have room for from the start; caches of more grow by a quarter at a time.

    Raises ValueError if the set is for another model, a layer of full attention has no rotation, or one of another shape,
    windows keep all that the model can read, or the path cannot be taken."""

    def __init__(self, rotations: RotationSet, config: Any = None, *, path: Literal["auto", "kernel", "torch"] = "auto",
                 exact_prompt: bool = False, max_length: int = 0):
        if path not in ("auto", "kernel", "torch"):
            raise ValueError(f"path is {path!r}, not \"auto\", \"kernel\" or \"torch\"")
        rotations, options = rotations.to_torch(), _Options(path, exact_prompt, max_length)
        if config is None:
            count = max(rotations.layers) + 1
            layers: list[Any] = [DynamicLayer() for _ in range(count)]
        else:
            config = config.get_text_config(decoder=True)
            layers = list(DynamicCache(config=config).layers)
            covered = [i for i, layer in enumerate(layers) if type(layer) is DynamicLayer]
            check_for_model(rotations, identity.describe_model(config, (0, 0, 0, 0)), covered,
                            getattr(config, "max_position_embeddings", None))
        for i, layer in enumerate(layers):
            if type(layer) is not DynamicLayer:
                continue
            if i not in rotations.layers:
                raise ValueError(f"the rotation set has no layer {i}; it has {sorted(rotations.layers)}")
            layers[i] = Int2Layer(rotations, rotations.layers[i], config, options)
        if not any(isinstance(layer, Int2Layer) for layer in layers):
            raise ValueError("the model has no layer of full attention, whose cache a rotation set is for")
        self._layer_ids, self._options = sorted(rotations.layers), options
        super().__init__(layers=layers)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if layer_idx >= len(self.layers):
            raise ValueError(f"the rotation set has no layer {layer_idx}; it has {self._layer_ids}; is it for another model?")
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    @property
    def path(self) -> str:
        """What serves the layers of full attention: "kernel", or "torch: why"; "none yet" before the first call."""
        return "; ".join(sorted({layer.path for layer in self.layers if isinstance(layer, Int2Layer)}))

    def position(self, device: torch.device) -> Tensor:
        """int64 (1): how many tokens the cache has, as a step of the kernels on this device finds it, and changes it."""
        return self._options.clocks[device].position.clone()

    def follow(self) -> None:
        """A CUDA graph has added a token to all layers."""
        for layer in self.layers:
            layer.key.advance()
            layer.value.advance()
        for clock in self._options.clocks.values():
            clock.follow()

    def nbytes(self) -> int:
        """Bytes of all layers' rows, those that stay as they are included."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, Int2Layer):
                total += layer.nbytes()
            else:
                total += sum(x.nbytes for x in (layer.keys, layer.values) if isinstance(x, Tensor))
        return total
