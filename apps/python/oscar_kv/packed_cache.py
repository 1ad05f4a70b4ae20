# SPDX-License-Identifier: MIT
"""PackedCache: a set as the cache of a model of Hugging Face transformers, and its decode steps as CUDA graphs.

    model.generate(**inputs, past_key_values=oscar_kv.PackedCache("SET", model.config))

Each layer holds what a server holds: rows in transformed coordinates, as bfloat16 in the windows (the first `sink` and
the last `recent` tokens) and packed between them, rounded as `oscar verify` rounds. Two ways to read it:
- any attention implementation gets native rows, decoded and transformed back in every call, so that every model works. A
  call's tokens see the cache as its first token does: with one token a call, as in decoding, token i sees token j exactly
  if j < sink or j > i - recent, as `verify` counts; a prompt given at once sees itself exactly, as in a server's prefill.
- model.set_attn_implementation(oscar_kv.PACKED_ATTENTION) stays in transformed coordinates and gives each token its own
  windows, however many come at once: calls of one token on CUDA by the kernels of liboscar_torch.so where they know the set's
  shapes, else in torch over unpacked rows (cache_rows.py); PackedCache.path says which, and why. Padded calls and those
  of several tokens are read in torch in either case.
Keys that are stored before RoPE are taken for keys of the positions 0, 1, 2 …: padding before a prompt, which moves them, costs quality;
those of LongRoPE, whose frequencies change with the length, are read in torch. Rows that the kernels do not take are packed on the CPU. Padding counts as tokens. Non-goals: taking back
tokens (crop).
"""
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .cache_rows import DecodeClock, LayerRows
from .packed_layer import why_no_decode, why_no_kernels
from .score_rule import ScoreRule, attend_by_scores
from .served_model import check_for_model, warn_if_longer
from .sets import Layer, SetPart, read_set

PACKED_ATTENTION = "oscar_packed"
_call = threading.local()  # .noted: the PackedLayer whose keys went to attention with a note that nobody read yet


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
               scaling: float | None = None, dropout: float = 0.0, **kwargs: Any) -> tuple[Tensor, None]:
    """transformers' interface: query, key, value (batch, heads, tokens, d) -> (batch, tokens, heads, d)."""
    seen = getattr(key, "oscar_seen", None)
    noted, _call.noted = getattr(_call, "noted", None), None
    if seen is None and noted is not None:
        raise ValueError(f"this model changes keys between its cache and attention, which {PACKED_ATTENTION} cannot follow; use "
                         "PackedCache with another attention implementation")
    if seen is not None and attention_mask is not None and attention_mask.dtype != torch.bool:
        raise ValueError(f"attention_mask is {attention_mask.dtype}; {PACKED_ATTENTION} takes masks (batch, 1, tokens, all tokens) of torch.bool, "
                         "true where a token is seen: pass `mask == 0` of one that is added to scores")
    if kwargs.get("position_bias") is not None:
        raise ValueError(f"{PACKED_ATTENTION} does not know this model's position_bias; use PackedCache with \"eager\" attention")
    rule, scaling = ScoreRule(kwargs.get("softcap") or 0.0, kwargs.get("s_aux")), query.shape[3]**-0.5 if scaling is None else scaling
    if seen is not None:
        out = seen(query, attention_mask, scaling, rule)
    elif rule.is_plain:  # no PackedLayer: layers with sliding windows, calls without a cache
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
    else:
        count, tokens = query.shape[2], key.shape[2]
        visible = torch.ones(count, tokens, dtype=torch.bool, device=key.device).tril(tokens - count) if attention_mask is None else attention_mask
        out, lse = attend_by_scores(query, key, value, scaling, visible, rule.soft_cap)
        rule.apply_sinks(out.transpose(1, 2), lse.transpose(1, 2))
    return out.transpose(1, 2).contiguous(), None


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """transformers' interface, with which it makes a mask while a graph is captured even for one token that sees all others."""
    _call.noted = None  # a call begins: what a call that failed noted does not count
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        if kwargs.get("q_length") == 1 and kwargs.get("attention_mask") is None:
            return None
    return sdpa_mask(*args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, _mask)


@dataclass(frozen=True)
class _Options:
    path: str
    exact_prompt: bool
    max_length: int
    clocks: dict[torch.device, DecodeClock] = field(default_factory=dict)

    def clock_of(self, rows: LayerRows, device: torch.device) -> DecodeClock:
        return self.clocks.setdefault(device, DecodeClock(rows.sink, rows.recent))


def place_of_rows(device: torch.device, why: str | None) -> torch.device:
    """Where rows of tensors on `device` lie; why: what keeps that device's kernels from them. Warns where rows leave their GPU."""
    if why is None or device.type == "cpu":
        return device
    warnings.warn(f"PackedCache keeps its rows on the CPU, which is slow: {why}", stacklevel=2)
    return torch.device("cpu")


class PackedLayer(CacheLayerMixin):
    """One layer of a PackedCache."""

    is_sliding = False

    def __init__(self, part: SetPart, layer: Layer, config: Any, options: _Options):
        super().__init__()
        self._layer, self._config, self._options = layer, config, options
        self.rows = LayerRows(part, layer)
        self.path = "none yet"

    def _in_transformed_coordinates(self) -> bool:
        return getattr(self._config, "_attn_implementation", None) == PACKED_ATTENTION

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        device, asked = key_states.device, self._options.path
        on_cuda = (why_no_kernels(key_states.shape[3]) if device.type == "cuda" else
                   f"rows are on {device.type}, the kernels on CUDA")
        why = next(filter(None, (
            "as asked for" if asked == "torch" else None,
            why_no_decode(getattr(self._config, "num_attention_heads", key_states.shape[1]), key_states.shape[1]),
            "LongRoPE turns keys of long texts by other frequencies" if self._layer.key.rotary and self._layer.key.rotary.near_context else None,
            None if self._in_transformed_coordinates() else f"the model's attention is not {PACKED_ATTENTION}",
            None if asked == "kernel" and device.type == "cpu" else on_cuda,
            None if self.rows.recent > 0 else "no recent tokens are kept as they are")), None)
        at = place_of_rows(device, on_cuda)
        try:
            self.rows.begin(key_states, value_states, at)
        except ValueError as error:
            if at.type == "cpu":
                raise
            why = why or str(error)
            self.rows.begin(key_states, value_states, place_of_rows(device, str(error)))
        if why is not None and asked == "kernel":
            raise ValueError(f"layer {self._layer.layer_id}: the kernels cannot serve this cache: {why}")
        self.by_kernels, self.path = why is None, "kernel" if why is None else f"torch: {why}"
        self.dtype, self.device = key_states.dtype, device
        if self.by_kernels:
            self.rows.reserve(max(self._options.max_length - self.rows.sink - self.rows.recent + 1, 0))
        self.is_initialized = True

    def why_no_graph(self) -> str | None:
        """Why a step cannot be part of a CUDA graph; None: it can."""
        if not self.is_initialized or not self.by_kernels:
            return f"it is served by {self.path}"
        return None if self.device.type == "cuda" else f"it is on {self.device.type}"

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Adds (batch, heads, tokens, d) and returns all rows as the first of these tokens sees them; for PACKED_ATTENTION
        what it was given, with a note of what to read. Raises ValueError if nobody read the last note of this cache."""
        if getattr(getattr(_call, "noted", None), "_options", None) is self._options:
            raise ValueError(f"layer {self._layer.layer_id}: what came before was not read by {PACKED_ATTENTION}, for which the cache was made: "
                             "set it by set_attn_implementation on the model that runs, and fill another cache, since this one has a part of the call")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = self.rows
        if self.by_kernels and key_states.shape[2] == 1 and self._in_transformed_coordinates():
            key_states.oscar_seen = rows.step_of(key_states, value_states, self._options.clock_of(rows, key_states.device))
            _call.noted = self
            return key_states, value_states
        is_prompt = rows.length == 0 and key_states.shape[2] > 1
        rows.append(key_states, value_states)
        if is_prompt and self._options.exact_prompt:
            pass  # as it is: nothing was read from the cache
        elif self._in_transformed_coordinates():
            key_states.oscar_seen = rows.attention()
            _call.noted = self
        else:
            key_states, value_states = (x.to(key_states.dtype) for x in rows.read())
        rows.evict()
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.rows.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.rows.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def nbytes(self) -> int:
        """Bytes that the rows take, room that is kept for the next ones included; matrices are the set's."""
        return self.rows.nbytes()

    def offload(self) -> None:
        raise NotImplementedError("PackedCache does not offload")

    def reset(self) -> None:
        self.rows.clear()
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            raise NotImplementedError("PackedCache cannot take tokens back: their predecessors are packed already; generate without "
                                      "assistant_model and prompt_lookup_num_tokens")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._batch(lambda x: x.index_select(0, beam_idx.to(x.device)))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._batch(lambda x: x.repeat_interleave(repeats, dim=0))

    def _batch(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.is_initialized:
            self.rows.change(change)


class PackedCache(Cache):
    """part: what read_set() returned, or the path of a set, which it reads. config: the model's, from which layers that are no full
    attention (sliding windows, recurrent states) get what transformers gives them; without it all layers are taken for full
    attention, and no attention but native rows is known.
    path: "kernel" or "torch" takes no other way; the CPU has "kernel" as a slow reference. exact_prompt: with PACKED_ATTENTION,
    a prompt in an empty cache sees itself exactly, by the model's own rows, as in servers. max_length: tokens that the kernels' caches
    have room for from the start; caches of more grow by a quarter at a time.

    Raises ValueError if the set cannot be read, has no coded part, is for another model, or leaves out a layer of full attention or has it
    in another shape, windows keep all that the model can read, or the path cannot be taken."""

    def __init__(self, part: SetPart | str | os.PathLike[str], config: Any = None, *, path: Literal["auto", "kernel", "torch"] = "auto",
                 exact_prompt: bool = False, max_length: int = 0, allow_rejected: bool = False):
        if path not in ("auto", "kernel", "torch"):
            raise ValueError(f"path is {path!r}, not \"auto\", \"kernel\" or \"torch\"")
        if not isinstance(part, SetPart):
            part = read_set(part, "transformers", allow_rejected)
        part, options = part.to_torch(), _Options(path, exact_prompt, max_length)
        if config is None:
            layers: list[Any] = [DynamicLayer() for _ in range(max(part.layers) + 1)]
        else:
            config = config.get_text_config(decoder=True)
            layers = list(DynamicCache(config=config).layers)
            covered = [i for i, layer in enumerate(layers) if type(layer) is DynamicLayer]
            check_for_model(part, config, covered, getattr(config, "max_position_embeddings", None))
        for i, layer in enumerate(layers):
            if type(layer) is not DynamicLayer:
                continue
            if i not in part.layers:
                raise ValueError(f"the set has no layer {i}; it has {sorted(part.layers)}")
            layers[i] = PackedLayer(part, part.layers[i], config, options)
        if not any(isinstance(layer, PackedLayer) for layer in layers):
            raise ValueError("the model has no layer of full attention, whose cache a set is for")
        self._layer_ids, self._options, self._part, self._watches_length = sorted(part.layers), options, part, True
        super().__init__(layers=layers)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if layer_idx >= len(self.layers):
            raise ValueError(f"the set has no layer {layer_idx}; it has {self._layer_ids}; is it for another model?")
        rows = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if self._watches_length and layer_idx == self._layer_ids[0]:
            self._watches_length = not warn_if_longer(self._part, self.get_seq_length(layer_idx), "a sequence has")
        return rows

    @property
    def path(self) -> str:
        """What serves the layers of full attention: "kernel", or "torch: why"; "none yet" before the first call."""
        return "; ".join(sorted({layer.path for layer in self.layers if isinstance(layer, PackedLayer)}))

    def position(self, device: torch.device) -> Tensor:
        """int64 (1): how many tokens the cache has, as a step of the kernels on this device finds it, and changes it."""
        return self._options.clocks[device].position.clone()

    def follow(self) -> None:
        """A CUDA graph has added a token to all layers."""
        for layer in self.layers:
            layer.rows.advance()
        for clock in self._options.clocks.values():
            clock.follow()

    def is_followed(self) -> bool:
        """Whether the next step's place is where the last one left it, with no call of several tokens between them."""
        return all(clock.next == self.get_seq_length() for clock in self._options.clocks.values())

    def nbytes(self) -> int:
        """Bytes of all layers' rows, those that stay as they are included."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, PackedLayer):
                total += layer.nbytes()
            else:
                total += sum(x.nbytes for x in (layer.keys, layer.values) if isinstance(x, Tensor))
        return total


class DecodeGraph:
    """Decode steps of a model with a PackedCache, replayed as a CUDA graph.

        model.set_attn_implementation(oscar_kv.PACKED_ATTENTION)
        cache = oscar_kv.PackedCache("SET", model.config, exact_prompt=True, max_length=40000)
        token = model(prompt, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
        step = oscar_kv.DecodeGraph(model, cache)
        for _ in range(1000):
            token = step(token).argmax(-1)

    The cache is as it would be after the same calls of the model, and can be used by both in turn. Where its tensors were made anew (it
    grew, sequences were reordered), or several tokens came at once, a call is made by Python, and the one after it is captured again.
    Non-goals: padding, models that decide by values on the device, layers whose own caches change shape (sliding windows).

    Raises ValueError if the model does not attend by PACKED_ATTENTION, or a layer of the cache is not served by the kernels."""

    def __init__(self, model: Any, cache: PackedCache):
        if model.config._attn_implementation != PACKED_ATTENTION:
            raise ValueError(f"DecodeGraph needs model.set_attn_implementation({PACKED_ATTENTION!r})")
        if cache.get_seq_length() == 0:
            raise ValueError("the cache is empty; give it the prompt first, by a call of the model")
        for i, layer in enumerate(cache.layers):
            why = layer.why_no_graph() if isinstance(layer, PackedLayer) else f"it is a {type(layer).__name__}, whose shapes change"
            if why is not None:
                raise ValueError(f"layer {i} of this cache cannot be part of a CUDA graph: {why}")
        self._model, self._cache = model, cache
        self._stream = torch.cuda.Stream(model.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._places: list[int] = []

    @torch.inference_mode(False)  # for `_tokens`, which other calls write
    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens: int64 (batch, 1), the next of each sequence -> logits (batch, 1, vocabulary), which the next call overwrites."""
        for layer in self._cache.layers:
            if not layer.is_initialized:
                raise ValueError("the cache was reset; give it a prompt first, by a call of the model")
            layer.rows.reserve(1)
        if self._where(tokens) != self._places or not self._cache.is_followed():
            self._graph = None
            logits = self._by_python(tokens)
            self._places = self._where(tokens)  # the call may have placed clocks
            return logits
        if self._graph is None:
            self._capture(tokens)
        else:
            self._cache.follow()
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._logits

    def _where(self, tokens: Tensor) -> list[int]:
        """What changes when tensors that a graph holds are made anew."""
        return [tokens.shape[0], *(clock.placed for clock in self._cache._options.clocks.values()),
                *(x.data_ptr() for layer in self._cache.layers for x in layer.rows.held())]

    def _by_python(self, tokens: Tensor) -> Tensor:
        """On the stream that captures, so that what is kept for a stream is there."""
        current = torch.cuda.current_stream(tokens.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            logits = self._model(tokens, past_key_values=self._cache, logits_to_keep=1).logits
        current.wait_stream(self._stream)
        return logits

    def _capture(self, tokens: Tensor) -> None:
        """The cache then is one token further to Python, and not on the device, until the graph is replayed."""
        graph, self._tokens = torch.cuda.CUDAGraph(), tokens.clone()
        torch.cuda.synchronize(tokens.device)
        with torch.cuda.graph(graph, stream=self._stream):
            positions = self._cache.position(tokens.device).expand_as(tokens)
            self._logits = self._model(self._tokens, past_key_values=self._cache, position_ids=positions, logits_to_keep=1).logits
        self._graph = graph
