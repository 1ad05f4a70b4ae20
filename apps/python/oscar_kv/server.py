# SPDX-License-Identifier: MIT
"""A dump (rows.py) of the prompts of a serving engine while it serves: what vllm_plugin.py and sglang_plugin.py share.

    OSCAR_OBSERVE=DUMP          switches it on and names the folder: the first chunk of each prompt that is computed from its first token on
    OSCAR_OBSERVE_TOKENS=8192   after so many tokens the dump is written and nothing more is observed
What is wrong with these ends the server's start with one line. Later errors never reach the server: they are logged, and
observing ends. Non-goals: decode steps, latent attention.
"""
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from . import identity
from .program import binary, setting
from .rows import DEFAULT_TOKENS, Rows, check_folder

_log = logging.getLogger("oscar_kv")


class Place(NamedTuple):
    """What a process of a server has of the model."""

    model: str  # folder, or name on the Hub
    rank: int  # among those that share the heads of attention
    ranks: int


class Span(NamedTuple):
    """Tokens of a prompt from its first on, as they lie side by side in a pass."""

    tokens: slice
    text: Any = None  # their ids, an int32 numpy array; None: not known


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


def _limit() -> int:
    text = setting("OSCAR_OBSERVE_TOKENS") or str(DEFAULT_TOKENS)
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"OSCAR_OBSERVE_TOKENS={text}: give a whole number of at least 1")
    return int(text)


def check_settings() -> None:
    """At the start of a process that will observe. Raises ValueError, FileNotFoundError or OSError for what would fail at the
    first prompt or when the file is written."""
    _limit()
    check_folder(setting("OSCAR_OBSERVE") or "")
    binary()  # which tells what the model is


class ServerTap:
    """One process's rows; `place` is asked for at the first call, when the server knows. The file is written when the process ends, by
    itself or by a signal that the server takes as a reason to end."""

    def __init__(self, place: Callable[[], Place]):
        self.place, self.dump = place, os.environ.get("OSCAR_OBSERVE", "")
        self._first_layer = -1
        self._rows: Rows | None = None
        self._ended = False
        Finalize(None, self._finish, exitpriority=100)  # atexit's functions do not run in processes that a server forks

    def guard(self, work: Callable[[], None]) -> None:
        """All that a hook does, observe() included: a server must go on serving. Nothing in an engine that is not to be observed."""
        try:
            if not self._ended and is_wanted():
                work()
        except Exception as error:
            self._fail(error)

    def observe(self, layer: int, q: Any, k: Any, v: Any, spans: list[Span], scale: float) -> None:
        """What a pass has of one layer: rows (tokens, heads, dim), scores = scale q k, and where its prompts are, at least one. Layers
        come in the model's order, so the first one tells when a pass begins. Under guard()."""
        if self._rows is None:
            self._rows, self._first_layer = self._begin(k.shape[1]), layer
        if layer == self._first_layer:
            if self._rows.full:
                self._finish()
                return
            self._rows.begin_prompts(len(q), [span.tokens for span in spans], [span.text for span in spans])
        self._rows.add(layer, q, k, v, scale)

    def _begin(self, heads: int) -> Rows:
        from transformers import AutoConfig

        place = self.place()
        self._config = AutoConfig.from_pretrained(place.model, trust_remote_code=False)
        text = self._config.get_text_config(decoder=True)
        if getattr(text, "kv_lora_rank", None):
            raise ValueError("latent attention, whose cache is not what attention sees; use oscar fit --model")
        self._identity = identity.describe_model(self._config)
        kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        if heads * place.ranks != kv_heads:
            raise ValueError(f"{place.ranks} ranks with {heads} KV heads each, but the model has {kv_heads}; use no more ranks than KV heads")
        layers = identity.cache_layers(text, self._identity)
        return Rows(self.dump, _limit(), layers, (place.rank * heads, kv_heads))

    def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._rows is None:
            _log.error("oscar_kv: no prompt was observed from its first token on, so OSCAR_OBSERVE=%s was not written", self.dump)
            return
        try:
            self._rows.save(self._identity, identity.image_tokens_of(self._config))
        except Exception as error:
            self._fail(error)
        finally:
            self._rows = None

    def _fail(self, error: Exception) -> None:
        self._ended, self._rows = True, None
        _log.error("oscar_kv: observing ended: %s", error)
