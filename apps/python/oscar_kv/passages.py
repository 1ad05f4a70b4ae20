# SPDX-License-Identifier: MIT
"""Passages that move: what a model computed for some tokens, packed once, and read wherever they come to stand.

    cache = transformers.DynamicCache()
    model(torch.cat([start_ids, passage_ids], 1), past_key_values=cache)    # 16 tokens that prompts begin with, which become its sink
    passage = oscar_kv.Passage("SET", model.config, cache, begin=16)        # once

    cache = transformers.DynamicCache()                                     # or a PackedCache
    model(head_ids, past_key_values=cache)
    passage.append_to(cache)                                                # its tokens come next; then the question

Keys are packed as they were before RoPE, so the set is one of `oscar fit` without `--keys after-rope`, and turned to the positions where they are read. What
a passage did not see when it was computed it still has not seen; its sink is left out, since plans are not made for it. Needs transformers."""
import os
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from .packed_cache import _call, place_of_rows
from .packed_layer import PackedSlots, why_no_kernels
from .served_model import check_for_model
from .sets import SetPart, read_set


class Passage:
    """The tokens [begin, end) of a cache with one sequence, which one call of the model filled from position 0 on, in every layer.

    pages: of each layer uint8, what PackedSlots.packed() makes of its tokens. part: what read_set() returned, or the path of a set. Rows that
    the kernels of their device do not take are packed on the CPU, with a warning. Raises ValueError if the set stores keys after RoPE or is
    for another model, if the cache has more than one sequence or fewer tokens, or a layer that is not full attention."""

    def __init__(self, part: SetPart | str | os.PathLike[str], config: Any, cache: Cache, begin: int = 0, end: int | None = None):
        part = (part if isinstance(part, SetPart) else read_set(part, "transformers")).to_torch()
        check_for_model(part, config, list(range(len(cache.layers))), None)
        length = cache.get_seq_length()
        end = length if end is None else end
        if not 0 <= begin < end <= length:
            raise ValueError(f"tokens {begin} to {end} of a cache of {length}: name some that it has")
        self.length, positions = end - begin, torch.arange(begin, end)
        self._begin, self._text = begin, length  # where it was packed: its first position, and how long the text was
        self._slots, self.pages, self._like = list[PackedSlots](), list[Tensor](), list[Tensor]()
        for i, layer in enumerate(cache.layers):
            if type(layer) is not DynamicLayer or len(layer.keys) != 1:
                raise ValueError(f"layer {i} is a {type(layer).__name__}, or has several sequences; passages are taken from a "
                                 "DynamicCache with one sequence, of a model all of whose layers are full attention")
            if part.layers[i].key.rotary is None:
                raise ValueError(f"the set stores the keys of layer {i} after RoPE, where they stay at their positions; fit one "
                                 "without --keys after-rope, of a model all of whose keys turn by their place in the text alone")
            keys, values = (x[0, :, begin:end].transpose(0, 1) for x in (layer.keys, layer.values))
            at = place_of_rows(keys.device, None if keys.device.type == "cpu" else why_no_kernels(keys.shape[2]))
            self._slots.append(slots := PackedSlots(part.layers[i], *keys.shape[1:], at, keys.dtype))
            self.pages.append(slots.packed(keys.to(at), values.to(at), positions, slots.far(length)))
            self._like.append(keys.new_empty(0))

    def append_to(self, cache: Cache, length: int = 0) -> None:
        """As the tokens that follow those of the cache, which has one sequence. length: tokens that the text will have, by which models with
        LongRoPE turn all its keys; 0: those that it has then."""
        first = cache.get_seq_length()
        positions, length = torch.arange(first, first + self.length), max(length, first + self.length)
        for i, (slots, pages, like) in enumerate(zip(self._slots, self.pages, self._like)):
            read = slots.unpacked(pages, self.length, positions, slots.far(length), slots.far(self._text), first - self._begin)
            keys, values = (x.to(like).transpose(0, 1)[None] for x in read)
            cache.update(keys, values, i)
            _call.noted = None  # no attention reads it
