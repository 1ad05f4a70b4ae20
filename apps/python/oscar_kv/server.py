# SPDX-License-Identifier: MIT
"""Statistics of a serving engine while it serves: what vllm_plugin.py and sglang_plugin.py share.

    OSCAR_OBSERVE=stats.safetensors   switches it on; ranks of a tensor-parallel server write stats.rank<N>.safetensors
    OSCAR_OBSERVE_TOKENS=30000        after so many prompt tokens the file is written and nothing more is observed
    OSCAR_OBSERVE_RESERVOIR=8192      tokens of each layer that are kept for value moments by attention scores; their memory
                                      (48 MiB a layer at most) must be left free by the server
What is wrong with these ends the server's start with one line. Later errors never reach the server: they are logged, and
observing ends. Non-goals: decode steps, latent attention.
"""
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple

from . import identity
from .program import load_library, setting

_log = logging.getLogger("oscar_kv")


class Place(NamedTuple):
    """What a process of a server has of the model."""

    model: str  # folder, or name on the Hub
    rank: int  # among those that share the heads of attention
    ranks: int


@contextmanager
def starting() -> Iterator[None]:
    """Ends the process with one line and status 1 for what prevents that a plugin does as it was told. Servers log exceptions of
    plugins and go on without them; SystemExit they let through."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"oscar_kv: error: {error}") from error


def is_wanted() -> bool:
    """Raises ValueError if OSCAR_OBSERVE is empty."""
    return setting("OSCAR_OBSERVE") is not None


def _number(variable: str, default: int, least: int) -> int:
    text = setting(variable)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ValueError(f"{variable}={text}: give a whole number of at least {least}")
    return int(text)


def check_settings() -> None:
    """At the start of a process that will observe. Raises ValueError, FileNotFoundError or OSError for what would fail at the
    first prompt or when the file is written."""
    path = Path(setting("OSCAR_OBSERVE") or "")
    if path.suffix != ".safetensors":
        raise ValueError(f"OSCAR_OBSERVE={path}: statistics are safetensors; name a file *.safetensors")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"OSCAR_OBSERVE={path}: {path.parent} is no folder that this user may write to; make it first")
    _number("OSCAR_OBSERVE_TOKENS", 30000, 1)
    _number("OSCAR_OBSERVE_RESERVOIR", 8192, 0)
    load_library()


class ServerTap:
    """One process's statistics; `place` is asked for at the first call, when the server knows; `unseen`: how many tokens of
    prompts were not computed, because the server had them already. The file is written when the process ends, by itself or by a
    signal that the server takes as a reason to end."""

    def __init__(self, place: Callable[[], Place], unseen: Callable[[], int] = lambda: 0):
        self._place_of_process, self._unseen = place, unseen
        self._limit = 0
        self._first_layer = -1
        self._tokens = 0
        self._state: Any = None
        self._ended = False
        Finalize(None, self._finish, exitpriority=100)  # atexit's functions do not run in processes that a server forks

    def guard(self, work: Callable[[], None]) -> None:
        """All that a hook does, observe() included: a server must go on serving."""
        if self._ended:
            return
        try:
            work()
        except Exception as error:
            self._fail(error)

    def observe(self, layer: int, parts: list[tuple[Any, Any, Any, Any]], scale: float) -> None:
        """What a pass has of one layer: parts of rows q, k, v (tokens, heads, dim) of real tokens, scores = scale q k, and
        the boundaries of their sequences (None: one). Layers come in the model's order, so the first one tells when a pass
        begins. Under guard()."""
        if self._state is None:
            self._begin(layer, *parts[0][:3])
        if layer == self._first_layer:
            if self._tokens >= self._limit:
                self._finish()
                return
            self._tokens += sum(len(part[0]) for part in parts)
        if layer in self._layers:
            for q, k, v, boundaries in parts:
                self._ops.observe(self._state, layer, q, k, v, boundaries, query_scale=scale * q.shape[-1]**0.5)

    def _begin(self, layer: int, q: Any, k: Any, v: Any) -> None:
        import torch
        from transformers import AutoConfig

        load_library()
        self._limit = _number("OSCAR_OBSERVE_TOKENS", 30000, 1)
        self._ops, self._first_layer, self._place = torch.ops.oscar, layer, self._place_of_process()
        self._config = AutoConfig.from_pretrained(self._place.model, trust_remote_code=False)
        text = self._config.get_text_config(decoder=True)
        if getattr(text, "kv_lora_rank", None):
            raise ValueError("latent attention, whose cache is not what attention sees; use oscar fit --model")
        self._identity = identity.describe_model(self._config)
        self._layers = set(identity.cache_layers(text, self._identity))
        ranks, heads = self._place.ranks, k.shape[1]
        kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        if heads * ranks != kv_heads:
            raise ValueError(f"{ranks} ranks with {heads} KV heads each, but the model has {kv_heads}; use no more ranks than KV heads")
        self._shape = (q.shape[1] * ranks, kv_heads, k.shape[2], v.shape[2])
        shard = {"first_kv_head": self._place.rank * heads, "total_kv_heads": kv_heads} if ranks > 1 else {}
        self._state = self._ops.new_state(reservoir=_number("OSCAR_OBSERVE_RESERVOIR", 8192, 0), **shard)

    def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._state is None:
            _log.error("oscar_kv: no prompt was observed, so OSCAR_OBSERVE=%s was not written", os.environ.get("OSCAR_OBSERVE"))
            return
        try:
            path = Path(os.environ["OSCAR_OBSERVE"])
            # Ranks cannot compare token ids: one file name and one number of tokens make one run.
            run = hashlib.sha256(f"{path.name} {self._tokens}".encode()).hexdigest()
            data = {}
            if self._place.ranks > 1:
                path = path.with_suffix(f".rank{self._place.rank}{path.suffix}")
                data = {"data_sha256": run, "tokens": self._tokens, "sequences": 0}
            if path.exists():  # of another replica, or of an earlier run
                path = path.with_suffix(f".{os.getpid()}{path.suffix}")
            self._ops.save(self._state, str(path), model=json.dumps(identity.with_shape(self._identity, self._shape)),
                           data=json.dumps(data), expected_layers=sorted(self._layers))
            _log.warning("oscar_kv: statistics of %d tokens of prompts in %s; %d more were in the server's cache and are not in them",
                         self._tokens, path, self._unseen())
        except Exception as error:
            self._fail(error)
        self._state = None

    def _fail(self, error: Exception) -> None:
        self._ended, self._state = True, None
        _log.error("oscar_kv: observing ended: %s", error)
