# SPDX-License-Identifier: MIT
"""Passages that move: what a model computed for some tokens, packed once, and read wherever they come to stand.

    cache = transformers.DynamicCache()
    model(passage_ids, past_key_values=cache)
    passage = oscar_kv.Passage("SET", model.config, cache)     # once

    cache = transformers.DynamicCache()                        # or a PackedCache
    model(head_ids, past_key_values=cache)
    passage.append_to(cache)                                   # its tokens come next; then the question

Keys are packed as they were before RoPE, so the set is one of `oscar fit --keys before-rope`, and turned to the positions where they are read. What a passage
did not see when it was computed it still has not seen: what reuse costs a model by that alone, and what packing adds, is in
tests/bench/README.md. Needs transformers.
"""
import os
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from .packed_layer import PackedSlots
from .served_model import check_for_model
from .sets import SetPart, read_set


class Passage:
    """The tokens [begin, end) of a cache with one sequence, whose first token stood at position 0, in every layer.

    pages: of each layer uint8, its tokens' packed rows behind each other. part: what read_set() returned, or the path of a set. Raises
    ValueError if the set stores keys after RoPE or is for another model, if the cache has more than one sequence or fewer tokens, or a
    layer that is not full attention."""

    def __init__(self, part: SetPart | str | os.PathLike[str], config: Any, cache: Cache, begin: int = 0, end: int | None = None):
        part = (part if isinstance(part, SetPart) else read_set(part, "transformers")).to_torch()
        check_for_model(part, config, list(range(len(cache.layers))), None)
        end = cache.get_seq_length() if end is None else end
        if not 0 <= begin < end <= cache.get_seq_length():
            raise ValueError(f"tokens {begin} to {end} of a cache of {cache.get_seq_length()}: name some that it has")
        self.length = end - begin
        positions = torch.arange(begin, end)
        self._slots, self.pages, self._types = list[PackedSlots](), list[Tensor](), list[torch.dtype]()
        for i, layer in enumerate(cache.layers):
            if type(layer) is not DynamicLayer or len(layer.keys) != 1:
                raise ValueError(f"layer {i} is a {type(layer).__name__}, or has several sequences; passages are taken from a "
                                 "DynamicCache with one sequence, of a model all of whose layers are full attention")
            if part.layers[i].key.rotary is None:
                raise ValueError(f"the set stores the keys of layer {i} after RoPE, where they stay at their positions; fit one with "
                                 "--keys before-rope")
            keys, values = (x[0, :, begin:end].transpose(0, 1) for x in (layer.keys, layer.values))
            self._slots.append(PackedSlots(part.layers[i], *keys.shape[1:], keys.device, keys.dtype))
            self.pages.append(self._slots[i].page_of(keys, values, positions, cache.get_seq_length()))
            self._types.append(keys.dtype)

    def append_to(self, cache: Cache) -> None:
        """As the tokens that follow those of the cache, which has one sequence."""
        first = cache.get_seq_length()
        positions = torch.arange(first, first + self.length)
        for i, (slots, page) in enumerate(zip(self._slots, self.pages)):
            keys, values = (x.to(self._types[i]).transpose(0, 1)[None] for x in slots.rows_of(page, positions, first + self.length))
            cache.update(keys, values, i)

    def nbytes(self) -> int:
        return sum(page.nbytes for page in self.pages)
