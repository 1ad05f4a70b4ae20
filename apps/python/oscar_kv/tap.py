# SPDX-License-Identifier: MIT
"""A dump (rows.py) of what a model of Hugging Face transformers computes while it runs, by its attention interface.

    with oscar_kv.observe(model, "DUMP"):
        model(**tokenizer(text, return_tensors="pt"))
    oscar_kv.fit("SET", dump="DUMP")

What is kept is what `oscar dump` has: queries, keys and values after rotary embeddings of the layers whose cache grows with the text.
Non-goals: latent attention, static caches, gradient checkpointing (it runs layers twice).
"""
import inspect
import os
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from . import identity
from .rows import DEFAULT_TOKENS, Rows

_open: list["Tap"] = []  # those that observe now
_replaced: dict[str, Any] = {}  # by name in transformers' registry, what the first of them found there
_lock = threading.Lock()  # of both


class Tap:
    """A context manager: while it is open, rows of every forward pass of `model` are kept, of several threads at once, too; its end writes
    them, unless by an error. Usable once.

    dump: the folder, for `tokens` tokens at most: of every sequence from its first token on, without what a cache has and what is
    generated, and without sequences whose position_ids do not count from 0, as behind padding unless they are passed. layers: only
    these; None: those whose cache grows with the text. shard: (first KV head, KV heads of the model) of a tensor-parallel rank.
    Raises ValueError for models without such layers or with latent attention, or a folder that has rows or takes none; at its end what
    Rows.save() does.
    """

    def __init__(self, model: Any, dump: str | os.PathLike[str], *, tokens: int = DEFAULT_TOKENS, layers: Sequence[int] | None = None,
                 shard: tuple[int, int] = (0, 0)):
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        if getattr(self._config, "kv_lora_rank", None):
            raise ValueError(f"{type(model).__name__} has latent attention, whose cache is not what attention sees; use oscar fit --model")
        self._identity = identity.describe_model(model.config)
        self.layers = list(identity.cache_layers(self._config, self._identity) if layers is None else layers)
        self._wanted = {id(module): module.layer_idx for module in model.modules()
                        if getattr(module, "layer_idx", None) in self.layers and hasattr(module, "config") and getattr(module, "is_causal", True)}
        if not self._wanted:
            raise ValueError(f"{type(model).__name__} has no attention modules with a layer_idx of {self.layers}")
        self._rows = Rows(dump, tokens, self.layers, shard)

    def __enter__(self) -> "Tap":
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        names = {getattr(module.config, "_attn_implementation", None) or "eager"
                 for module in self._model.modules() if id(module) in self._wanted}
        self._hooks = (self._model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
                       self._model.register_forward_hook(lambda *_: self._rows.end(), always_call=True))
        with _lock:
            _open.append(self)
            for name in names - _replaced.keys():
                _wrap(ALL_ATTENTION_FUNCTIONS, name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        for hook in self._hooks:
            hook.remove()
        with _lock:
            _open.remove(self)
            while _replaced and not _open:
                name, previous = _replaced.popitem()
                del ALL_ATTENTION_FUNCTIONS[name]
                if previous is not None:
                    ALL_ATTENTION_FUNCTIONS[name] = previous
        if kind is None:
            self._rows.save(self._identity, identity.image_tokens_of(self._model.config))

    def _before_forward(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
        given = {**given, **given.get("kwargs", {})}
        cache = given.get("past_key_values")
        if any(getattr(layer, "is_compileable", False) for layer in getattr(cache, "layers", [])):
            raise ValueError("observe: a static cache hides which keys are new; use the default (dynamic) cache")
        continues = cache is not None and cache.get_seq_length() > 0
        self._begin(given.get("input_ids"), given.get("inputs_embeds"), given.get("attention_mask"), given.get("position_ids"), continues)

    def _begin(self, ids: Any, embeddings: Any, mask: Any, positions: Any, continues: bool) -> None:
        """Chooses the sequences of a pass that are there from their first token on."""
        import torch

        batch, length = (embeddings if ids is None else ids).shape[:2]
        if not (mask is None or continues or getattr(mask, "ndim", 0) == 2):
            raise ValueError("observe: give attention_mask as (batch, tokens); padding cannot be told by other masks")
        real = torch.ones(batch, length, dtype=torch.bool) if mask is None or continues else mask[:, -length:].bool().cpu()
        if positions is not None and positions.dim() == 3:  # of text, height and width, or with those of the sequence before them
            positions = positions[0] if len(positions) == 4 else None
        counted = torch.arange(length)[None] if positions is None else positions.cpu()
        whole = ((counted == real.cumsum(1) - 1) | ~real).all(1) & (not continues)
        kept = real & whole[:, None]
        texts = [None] * batch if ids is None else [row.cpu()[own].int().numpy() for row, own in zip(ids, kept)]
        self._rows.begin(kept, kept.sum(1).tolist(), texts)

    def _observe(self, module: Any, query: Any, key: Any, value: Any, scaling: float | None) -> None:
        tokens, dim = query.shape[2], query.shape[3]
        if key.shape[2] > tokens:  # earlier ones come from the cache and were seen
            key, value = key[:, :, -tokens:], value[:, :, -tokens:]
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        self._rows.add(self._wanted[id(module)], q, k, v, dim**-0.5 if scaling is None else scaling)


def _wrap(registry: Any, name: str) -> None:
    """Puts an attention function by which open taps observe under a name of transformers' registry. "eager" is not in it: each
    architecture brings its own, in the module of its attention class or of one that this is made from."""
    known = registry.get(name)

    def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        for tap in tuple(_open):
            if id(module) in tap._wanted:
                tap._observe(module, query, key, value, kwargs.get("scaling"))
        function = known or next(brought for each in type(module).__mro__
                                 if (brought := getattr(sys.modules.get(each.__module__), "eager_attention_forward", None)))
        return function(module, query, key, value, *args, **kwargs)

    _replaced[name] = registry._local_mapping.get(name)
    registry[name] = attend


observe = Tap  # what is done with a model, where it is done
