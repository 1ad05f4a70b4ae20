# SPDX-License-Identifier: MIT
"""A plugin of vLLM (entry point vllm.general_plugins): with OSCAR_OBSERVE set, attention backends are registered again as
subclasses whose forward() also observes prompts (server.py has its environment variables); with OSCAR_KV_SET=SET, the
backend CUSTOM serves a set (vllm_backend.py). Where either cannot be done, the start ends (vllm_start.py).

Which prompts begin in a step and were not computed before: every attention backend builds its own metadata from
CommonAttentionMetadata, which says of each request whether it is still in its prompt, and how long it is. Which requests began before is
known from what vLLM's scheduler tells the workers in each step: prompts that are computed again after a preemption do not count twice.
Non-goals: speculative decoding, whose drafts are not in the scheduler's output.
"""
import logging
import os
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from .program import set_path
from .server import Place, ServerTap, Span, check_settings, is_wanted, starting
from .vllm_start import KNOWN, LAYER, SERVING, choose_for_each_layer, is_for_drafts, name_cache, served_set, watch, watch_scheduler

_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "CPU_ATTN")
_TAKEN_ALONG = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
_MARK = "oscar_prompts"  # the attribute of a backend's metadata that has a step's Spans
_Guard = Callable[[Callable[[], None]], None]


class Steps:
    """The requests of a server, by its scheduler."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._again: set[int] = set()  # lengths of the chunks with which requests begin again
        self._texts: dict[int, list[Any]] = {}  # of requests that begin, by the length of their first chunk

    def begin(self, output: Any) -> None:
        """A step, by vLLM's SchedulerOutput."""
        self._begun -= output.finished_req_ids
        cached, counts = output.scheduled_cached_reqs, output.num_scheduled_tokens
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens)) | {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        self._again = {counts[request] for request, start in starts.items() if start == 0 and request in self._begun}
        self._texts = {}
        for new in output.scheduled_new_reqs:
            if new.num_computed_tokens == 0 and new.req_id not in self._begun:
                count = counts[new.req_id]
                self._texts.setdefault(count, []).append(new.prompt_token_ids and np.array(new.prompt_token_ids[:count], np.int32))
        self._begun |= starts.keys()

    def spans(self, common: Any) -> list[Span]:
        """Of a step's CommonAttentionMetadata: the prompts that begin in it and were not computed before. Which has which text does not
        matter among those of one length; what has none is no request, as where a server tries its kernels out before it serves. Raises
        ValueError if it does not tell prompts."""
        prefilling = getattr(common, "is_prefilling", None)
        if prefilling is None:
            raise ValueError("this version of vLLM does not tell prompts from decode steps (CommonAttentionMetadata.is_prefilling); "
                             f"use vLLM {KNOWN}, or oscar fit --model")
        lengths = common.seq_lens_cpu_upper_bound
        lengths = (common.seq_lens if lengths is None else lengths).tolist()
        starts, texts = common.query_start_loc_cpu.tolist(), {count: iter(own) for count, own in self._texts.items()}
        return [Span(slice(begin, end), text)
                for begin, end, is_prompt, length in zip(starts, starts[1:], prefilling.tolist(), lengths)
                if is_prompt and length == end - begin and length not in self._again for text in islice(texts.get(length, ()), 1)]


def builder_of(backend: Any, steps: Steps, guard: _Guard) -> type:
    """The backend's builder of metadata, whose metadata also have the Spans of their step; guard(work): runs it, come what may."""
    original: Any = backend.get_builder_cls()

    class ObservedBuilder(original):
        def build(self, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(common_prefix_len, common_attn_metadata, *args, **kwargs)
            guard(lambda: setattr(metadata, _MARK, steps.spans(common_attn_metadata)))
            return metadata

    return ObservedBuilder


def compute_windows_again() -> None:
    """Shortens what vLLM's scheduler takes of a cached prefix, so that a request computes again what its first own token sees in the recent
    window: those exact rows may have made room for others. It does so where all layers have blocks of one kind: sliding windows and states
    are kept at the ends of prefixes alone. Where a connector brings blocks, it brings the exact rows, too."""
    from vllm.v1.core.sched.scheduler import Scheduler

    if "oscar_computes_again" in vars(Scheduler):
        return
    Scheduler.oscar_computes_again, make = True, Scheduler.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if set_path() is None or self.connector is not None or len(self.kv_cache_config.kv_cache_groups) != 1:
            return
        coordinator, recent = self.kv_cache_manager.coordinator, max(served_set().windows[1], 1)
        find, dropped = coordinator.find_longest_cache_hit, self.block_size if self.use_eagle_block_drop else 0  # of what it finds each time
        coordinator.find_longest_cache_hit = lambda hashes, most: find(hashes, max(find(hashes, most)[1] + 2 * dropped + 1 - recent, 0))

    Scheduler.__init__ = __init__


def register() -> None:
    """What vLLM calls in every process. Raises SystemExit with one line if it cannot be done as told."""
    with starting():
        serves, observes = set_path() is not None, is_wanted()
        if serves and observes:
            raise ValueError("OSCAR_KV_SET and OSCAR_OBSERVE are both set; observe a server in bfloat16, and unset one of them")
        if observes:
            check_settings()
        if serves or observes:
            _register(serves)


def _register(serves: bool) -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    backends = {"CUSTOM": SERVING} if serves else {name: f"{__name__}.Observed_{name}" for name in _BACKENDS
                                                   if name in AttentionBackendEnum.__members__}
    for name, path in backends.items():
        register_backend(AttentionBackendEnum[name], path)
    if serves:
        name_cache()
        choose_for_each_layer()
        compute_windows_again()
    watch(current_platform, None if serves else backends)
    # Actors of Ray get vLLM's own variables and those that this one names; without ours they would serve no set.
    told = os.environ.get(_TAKEN_ALONG, "").split(",")
    names = {*map(str.strip, told), *(name for name in os.environ if name.startswith("OSCAR_"))} - {""}
    os.environ[_TAKEN_ALONG] = ",".join(sorted(names))


@cache
def _steps() -> Steps:
    return Steps()


@cache
def _tap() -> ServerTap:
    from vllm.config import get_current_vllm_config
    from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

    model = get_current_vllm_config().model_config.model  # known while layers are made
    tap = ServerTap(lambda: Place(model, get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()))
    watch_scheduler(lambda output: tap.guard(lambda: _steps().begin(output)))
    return tap


def _tap_of_layers() -> ServerTap:
    """_tap(), while layers are made. Raises ValueError if an engine before this one has it for another model or dump."""
    from vllm.config import get_current_vllm_config

    tap, config = _tap(), get_current_vllm_config()
    made_for, wanted = (tap.place().model, tap.dump), (config.model_config.model, os.environ.get("OSCAR_OBSERVE"))
    if made_for != wanted and is_wanted() and not is_for_drafts(config):
        raise ValueError("this process observes {} into {}; start another process to observe {} into {}".format(*made_for, *wanted))
    return tap


def _guard(work: Callable[[], None]) -> None:
    """ServerTap.guard(), in a process that has made observed layers."""
    if _tap.cache_info().currsize:
        _tap().guard(work)


def _is_sliding(window: Any) -> bool:
    """None, a number, or (before, after) with -1 for no end."""
    before = window[0] if isinstance(window, tuple) else window
    return before is not None and before >= 0


@cache
def _say_unknown(name: str) -> None:
    logging.getLogger("oscar_kv").error("oscar_kv: the layer %a is not observed: its name tells no number", name)


def _observe(impl: Any, tap: ServerTap, layer: Any, q: Any, k: Any, v: Any, metadata: Any) -> None:
    import torch

    name = getattr(layer, "layer_name", "")
    number = LAYER.search(name)
    if number is None:
        _say_unknown(name)
    if metadata is None or k is None or number is None or _is_sliding(getattr(impl, "sliding_window", None)):
        return  # a profiling run, shared keys, a window, another attention than the decoder's
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    spans = getattr(metadata, _MARK, None)
    if spans is None:
        raise ValueError(f"{type(metadata).__name__} was built by another attention backend; use another --attention-backend")
    q, k, v = (x.unflatten(-1, (-1, impl.head_size)) if x.dim() == 2 else x for x in (q, k, v))
    if spans:
        tap.observe(int(number[1]), q, k, v, spans, impl.scale)


@cache
def _observed(name: str) -> type:
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backend: Any = resolve_obj_by_qualname(AttentionBackendEnum[name].value)
    original: Any = backend.get_impl_cls()

    class ObservedImpl(original):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self._oscar_tap = _tap_of_layers()

        def forward(self, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any,
                    *args: Any, **kwargs: Any) -> Any:
            self._oscar_tap.guard(lambda: _observe(self, self._oscar_tap, layer, query, key, value, attn_metadata))
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs)

    builder = builder_of(backend, _steps(), _guard)

    class ObservedBackend(backend):
        @staticmethod
        def get_impl_cls() -> type:
            return ObservedImpl

        @staticmethod
        def get_builder_cls() -> type:
            return builder

    # vLLM writes the path of a class from these, and finds the class by it again.
    ObservedBackend.__module__, ObservedBackend.__qualname__ = __name__, f"Observed_{name}"
    return ObservedBackend


def __getattr__(name: str) -> type:
    """Observed_<backend>: vLLM asks for the class by its path when the backend is chosen."""
    if name.startswith("Observed_"):
        return _observed(name.removeprefix("Observed_"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
