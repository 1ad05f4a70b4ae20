# SPDX-License-Identifier: MIT
"""Statistics, or rows, of a model of Hugging Face transformers while it runs, by its attention interface.

    with oscar_kv.observe(model) as tap:
        model(**tokenizer(text, return_tensors="pt"))
        tap.save("stats.safetensors")

Then oscar_kv.fit("set", stats=["stats.safetensors"]). With observe(model, dump="FOLDER") tap.save() writes rows (rows.py) there, for
oscar_kv.fit("set", dump="FOLDER"). What is observed is what `oscar fit --model` takes: queries, keys
and values after rotary embeddings of the layers whose cache grows with the text; queries carry what the model scales
scores by besides 1 / sqrt(d). Non-goals: latent attention, static caches, gradient checkpointing (it runs layers twice).
"""
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from . import identity
from .program import load_library
from .rows import DEFAULT_TOKENS, Rows


class _Texts:
    """The token ids of forward passes, on the device they came from until they are asked for."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[Any, Any]]] = []  # of each batch: (ids, mask or None) of its pieces
        self.known = True

    def add(self, ids: Any, mask: Any, continues: bool) -> None:
        if ids is None:
            self.known = False
        elif continues and self.batches:
            self.batches[-1].append((ids.detach().clone(), mask))
        else:
            self.batches.append([(ids.detach().clone(), mask)])

    def sequences(self) -> list[Any]:
        import numpy as np

        found = []
        for pieces in self.batches:
            for row in range(len(pieces[0][0])):
                parts = [(ids[row] if mask is None else ids[row][mask[row].to(ids.device)]).cpu().numpy() for ids, mask in pieces]
                found.append(np.concatenate(parts))
        return found


class Tap:
    """A context manager: while it is open, every forward pass of `model` adds to the tap's statistics. Usable once.

    dump: a folder for rows instead of sums, of `tokens` tokens at most: of every sequence from its first token on, without what a cache
    has and what is generated, and without sequences whose position_ids do not count from 0, as behind padding unless they are passed.
    layers: only these; None: those whose cache grows with the text. reservoir: tokens of each layer that are kept,
    drawn uniformly by `seed`, for value moments by attention scores (at most 48 MiB a layer); 0: none, and the
    statistics are for verify alone. shard: (first KV head, KV heads of the model) of a tensor-parallel rank.
    Raises ValueError for models without such layers or with latent attention, or a folder that has rows or takes none.
    """

    def __init__(self, model: Any, *, dump: str | os.PathLike[str] | None = None, tokens: int = DEFAULT_TOKENS,
                 layers: Sequence[int] | None = None, reservoir: int = 8192, seed: int = 0, shard: tuple[int, int] | None = None):
        import torch

        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        if getattr(self._config, "kv_lora_rank", None):
            raise ValueError(f"{type(model).__name__} has latent attention, whose cache is not what attention sees; use oscar fit --model")
        self._identity = identity.describe_model(model.config)
        self.layers = list(identity.cache_layers(self._config, self._identity) if layers is None else layers)
        first, total = self._shard = shard or (0, 0)
        self._rows = None if dump is None else Rows(dump, tokens, self.layers, self._shard)
        if self._rows is None:
            load_library()
            self._ops = torch.ops.oscar
            self.state = self._ops.new_state(reservoir=reservoir, seed=seed, first_kv_head=first, total_kv_heads=total)
        self._wanted = {id(module): module.layer_idx for module in model.modules()
                        if getattr(module, "layer_idx", None) in self.layers and hasattr(module, "config") and getattr(module, "is_causal", True)}
        if not self._wanted:
            raise ValueError(f"{type(model).__name__} has no attention modules with a layer_idx of {self.layers}")
        self._texts = _Texts()
        self._mask: Any = None
        self._shape: tuple[int, int, int, int] | None = None
        self._unsaved = False
        self._restore: list[Callable[[], object]] = []

    def __enter__(self) -> "Tap":
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        names = {getattr(module.config, "_attn_implementation", None) or "eager"
                 for module in self._model.modules() if id(module) in self._wanted}
        hook = self._model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        self._restore.append(hook.remove)
        for name in names:
            self._wrap(ALL_ATTENTION_FUNCTIONS, name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        while self._restore:
            self._restore.pop()()
        if self._unsaved and kind is None:
            warnings.warn("oscar_kv.observe: what was observed was not saved; call tap.save(PATH) before the block ends", stacklevel=2)

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Writes oscar.statistics.v1 for `oscar fit --stats`, or rows to the folder that observe() was given. Raises ValueError for a
        name that does not end in .safetensors, RuntimeError if nothing was observed or it was not finite."""
        images = identity.image_tokens_of(self._model.config)
        if self._rows is not None:
            if path is not None:
                raise ValueError(f"{os.fspath(path)}: rows go where observe(dump=) says; call save()")
            self._rows.save(self._identity, images)
            self._unsaved = False
            return
        if path is None or not os.fspath(path).endswith(".safetensors"):
            raise ValueError(f"{path}: statistics are safetensors; name a file *.safetensors")
        if self._shape is None:
            raise RuntimeError("nothing was observed: run text through the model inside the block, before save")
        model = identity.with_shape(self._identity, self._shape)
        data = identity.describe_tokens(self._texts.sequences(), images) if self._texts.known and self._texts.batches else {}
        self._ops.save(self.state, os.fspath(path), model=json.dumps(model), data=json.dumps(data), expected_layers=self.layers)
        self._unsaved = False

    def _wrap(self, registry: Any, name: str) -> None:
        """Puts an attention function that observes under a name of transformers' registry. "eager" is not in it: each
        architecture brings its own."""
        local = registry._local_mapping
        known = registry.get(name)
        previous = local.get(name)

        def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) in self._wanted:
                self._observe(module, query, key, value, kwargs.get("scaling"))
            function = known or sys.modules[type(module).__module__].eager_attention_forward
            return function(module, query, key, value, *args, **kwargs)

        registry[name] = attend
        self._restore.append(lambda: local.pop(name) if previous is None else local.update({name: previous}))

    def _before_forward(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
        given = {**given, **given.get("kwargs", {})}
        cache = given.get("past_key_values")
        if any(getattr(layer, "is_compileable", False) for layer in getattr(cache, "layers", [])):
            raise ValueError("observe: a static cache hides which keys are new; use the default (dynamic) cache")
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        self._mask = None
        if mask is not None and mask.dim() == 2:
            tokens = ids if ids is not None else given.get("inputs_embeds")
            self._mask = mask[:, -tokens.shape[1]:].bool() if tokens is not None else mask.bool()
        continues = cache is not None and cache.get_seq_length() > 0
        if self._rows is None:
            self._texts.add(ids, self._mask, continues)
        else:
            self._begin_rows(self._rows, ids, given.get("inputs_embeds"), given.get("position_ids"), continues)

    def _begin_rows(self, rows: Rows, ids: Any, embeddings: Any, positions: Any, continues: bool) -> None:
        """Chooses the sequences of a pass that are there from their first token on."""
        import torch

        batch, length = (embeddings if ids is None else ids).shape[:2]
        real = torch.ones(batch, length, dtype=torch.bool) if self._mask is None else self._mask.cpu()
        if positions is not None and positions.dim() == 3:  # of text, height and width, or with those of the sequence before them
            positions = positions[0] if len(positions) == 4 else None
        counted = torch.arange(length)[None] if positions is None else positions.cpu()
        whole = ((counted == real.cumsum(1) - 1) | ~real).all(1) & (not continues)
        kept = real & whole[:, None]
        texts = [None] * batch if ids is None else [row.cpu()[own].int().numpy() for row, own in zip(ids, kept)]
        rows.begin(kept, kept.sum(1).tolist(), texts)

    def _observe(self, module: Any, query: Any, key: Any, value: Any, scaling: float | None) -> None:
        tokens, dim = query.shape[2], query.shape[3]
        if key.shape[2] > tokens:  # earlier ones come from the cache and were seen
            key, value = key[:, :, -tokens:], value[:, :, -tokens:]
        scale = 1.0 if scaling is None else scaling * dim**0.5
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        if self._rows is None:
            mask = self._mask.to(key.device, non_blocking=True) if self._mask is not None else None
            self._ops.observe(self.state, self._wanted[id(module)], q, k, v, mask=mask, query_scale=scale)
        else:
            self._rows.add(self._wanted[id(module)], q, k, v, scale * dim**-0.5)
        ranks = (self._shard[1] or key.shape[1]) // key.shape[1]
        self._shape = self._shape or (query.shape[1] * ranks, key.shape[1] * ranks, dim, value.shape[3])
        self._unsaved = True


observe = Tap  # what is done with a model, where it is done
