# SPDX-License-Identifier: MIT
"""Statistics, or rows, of a serving engine while it serves: what vllm_plugin.py and sglang_plugin.py share.

    OSCAR_OBSERVE=stats.safetensors   switches it on; ranks of a tensor-parallel server write stats.rank<N>.safetensors
    OSCAR_OBSERVE=FOLDER              the same for rows (rows.py): of prompts that are computed from their first token on, the first chunk
    OSCAR_OBSERVE_TOKENS=30000        after so many prompt tokens (of rows: 8192) the file is written and nothing more is observed
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
from .program import binary, load_library, setting
from .rows import DEFAULT_TOKENS, Rows, check_folder

_log = logging.getLogger("oscar_kv")


class Place(NamedTuple):
    """What a process of a server has of the model."""

    model: str  # folder, or name on the Hub
    rank: int  # among those that share the heads of attention
    ranks: int


class Span(NamedTuple):
    """Tokens of prompts that lie side by side in a pass; for rows, those of one prompt from its first token on."""

    tokens: slice
    boundaries: Any = None  # of prompts, an int32 vector on the device, counted from the first token; None: there is one
    text: Any = None  # for rows: its token ids, an int32 numpy array; None: not known


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


def wants_rows() -> bool:
    """Whether what is observed becomes rows in a folder, not a file of sums."""
    return not (setting("OSCAR_OBSERVE") or "").endswith(".safetensors")


def _limit() -> int:
    return _number("OSCAR_OBSERVE_TOKENS", DEFAULT_TOKENS if wants_rows() else 30000, 1)


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
    _limit()
    if wants_rows():
        check_folder(path)
        binary()  # which tells what the model is
        return
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"OSCAR_OBSERVE={path}: {path.parent} is no folder that this user may write to; make it first")
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
        self._rows: Rows | None = None
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

    def observe(self, layer: int, q: Any, k: Any, v: Any, spans: list[Span], scale: float) -> None:
        """What a pass has of one layer: rows (tokens, heads, dim), scores = scale q k, and where its prompts are, at least one. Layers
        come in the model's order, so the first one tells when a pass begins. Under guard()."""
        if self._first_layer < 0:
            self._begin(layer, q, k, v)
        if layer == self._first_layer:
            if self._tokens >= self._limit:
                self._finish()
                return
            self._tokens += sum(len(q[span.tokens]) for span in spans)
            if self._rows is not None:
                self._begin_rows(self._rows, len(q), spans)
        if layer not in self._layers:
            return
        if self._rows is not None:
            self._rows.add(layer, q, k, v, scale)
            return
        for at, boundaries, _ in spans:
            self._ops.observe(self._state, layer, q[at], k[at], v[at], boundaries, query_scale=scale * q.shape[-1]**0.5)

    @staticmethod
    def _begin_rows(rows: Rows, tokens: int, spans: list[Span]) -> None:
        import torch

        mask = torch.zeros(tokens, dtype=torch.bool)
        for span in spans:
            mask[span.tokens] = True
        rows.begin(mask, [span.tokens.stop - span.tokens.start for span in spans], [span.text for span in spans])

    def _begin(self, layer: int, q: Any, k: Any, v: Any) -> None:
        import torch
        from transformers import AutoConfig

        self._limit, self._first_layer, self._place = _limit(), layer, self._place_of_process()
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
        first = self._place.rank * heads
        if wants_rows():
            self._rows = Rows(os.environ["OSCAR_OBSERVE"], self._limit, self._layers, (first, kv_heads))
            return
        load_library()
        self._ops = torch.ops.oscar
        self._shape = (q.shape[1] * ranks, kv_heads, k.shape[2], v.shape[2])
        shard = {"first_kv_head": first, "total_kv_heads": kv_heads} if ranks > 1 else {}
        self._state = self._ops.new_state(reservoir=_number("OSCAR_OBSERVE_RESERVOIR", 8192, 0), **shard)

    def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._first_layer < 0:
            _log.error("oscar_kv: no prompt was observed%s, so OSCAR_OBSERVE=%s was not written",
                       " from its first token on" if wants_rows() else "", os.environ.get("OSCAR_OBSERVE"))
            return
        try:
            if self._rows is not None:
                self._rows.save(self._identity, identity.image_tokens_of(self._config))
                return
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
        finally:
            self._state = self._rows = None

    def _fail(self, error: Exception) -> None:
        self._ended, self._state, self._rows = True, None, None
        _log.error("oscar_kv: observing ended: %s", error)
