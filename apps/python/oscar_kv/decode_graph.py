# SPDX-License-Identifier: MIT
"""Decode steps of a model of transformers with an Int2Cache, replayed as a CUDA graph.

    model.set_attn_implementation(oscar_kv.INT2_ATTENTION)
    cache = oscar_kv.Int2Cache(rotations, model.config, exact_prompt=True, max_length=40000)
    token = model(prompt, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
    step = oscar_kv.DecodeGraph(model, cache)
    for _ in range(1000):
        token = step(token).argmax(-1)

The cache is as it would be after the same calls of the model, and can be used by both in turn. Where its tensors were made anew (it
grew, sequences were reordered), a call is made by Python, and the one after it is captured again. Non-goals: padding, models that
decide by values on the device, layers whose own caches change shape (sliding windows).
"""
from typing import Any

import torch
from torch import Tensor

from .int2_cache import INT2_ATTENTION, Int2Cache, Int2Layer


class DecodeGraph:
    """Raises ValueError if the model does not attend by INT2_ATTENTION, or a layer of the cache is not served by the kernels."""

    def __init__(self, model: Any, cache: Int2Cache):
        if model.config._attn_implementation != INT2_ATTENTION:
            raise ValueError(f"DecodeGraph needs model.set_attn_implementation({INT2_ATTENTION!r})")
        if cache.get_seq_length() == 0:
            raise ValueError("the cache is empty; give it the prompt first, by a call of the model")
        for i, layer in enumerate(cache.layers):
            why = layer.why_no_graph() if isinstance(layer, Int2Layer) else f"it is a {type(layer).__name__}, whose shapes change"
            if why is not None:
                raise ValueError(f"layer {i} of this cache cannot be part of a CUDA graph: {why}")
        self._model, self._cache = model, cache
        self._stream = torch.cuda.Stream(model.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._places: list[int] = []

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens: int64 (batch, 1), the next of each sequence -> logits (batch, 1, vocabulary), which the next call overwrites."""
        for layer in self._cache.layers:
            if not layer.is_initialized:
                raise ValueError("the cache was reset; give it a prompt first, by a call of the model")
            layer.reserve(1)
        places = [tokens.shape[0], *(place for layer in self._cache.layers for place in layer.places())]
        if places != self._places:
            self._places, self._graph = places, None
            return self._by_python(tokens)
        if self._graph is None:
            self._capture(tokens)
        else:
            self._cache.follow()
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._logits

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
