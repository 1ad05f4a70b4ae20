# SPDX-License-Identifier: MIT
"""A plugin of vLLM (entry point vllm.general_plugins): with OSCAR_OBSERVE set, attention backends are registered again as
subclasses whose forward() also observes prompts (server.py has its environment variables, vllm_steps.py which tokens those are); with OSCAR_KV_SET=SET, the
backend CUSTOM serves a set (vllm_backend.py). Where either cannot be done, the start ends (vllm_start.py)."""
import logging
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from .places import set_path
from .server import Place, ServerTap, check_settings, is_wanted, starting
from .vllm_start import SERVING, watch
from .vllm_steps import MARK, Steps, builder_of, watch_scheduler

_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "CPU_ATTN")
_LAYER = re.compile(r"\blayers\.(\d+)\.")


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
    watch(current_platform, {} if serves else backends)


@cache
def _steps() -> Steps:
    return Steps()


@cache
def _tap() -> ServerTap:
    from vllm.config import get_current_vllm_config
    from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

    model = get_current_vllm_config().model_config.model  # known while layers are made
    tap = ServerTap(lambda: Place(model, get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()),
                    lambda: _steps().from_cache)
    watch_scheduler(_steps(), tap.guard)
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
    number = _LAYER.search(name)
    if number is None:
        _say_unknown(name)
    if metadata is None or k is None or number is None or _is_sliding(getattr(impl, "sliding_window", None)):
        return  # a profiling run, shared keys, a window, another attention than the decoder's
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    spans = getattr(metadata, MARK, None)
    if spans is None:
        raise ValueError(f"{type(metadata).__name__} was built by another attention backend; use another --attention-backend")
    q, k, v = (x.unflatten(-1, (-1, impl.head_size)) if x.dim() == 2 else x for x in (q, k, v))
    if spans:
        tap.observe(int(number[1]), [(q[at], k[at], v[at], boundaries) for at, boundaries in spans], impl.scale)


@cache
def _observed(name: str) -> type:
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backend: Any = resolve_obj_by_qualname(AttentionBackendEnum[name].value)
    original: Any = backend.get_impl_cls()

    class ObservedImpl(original):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self._oscar_tap = _tap()

        def forward(self, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any,
                    *args: Any, **kwargs: Any) -> Any:
            self._oscar_tap.guard(
                lambda: _observe(self, self._oscar_tap, layer, query, key, value, attn_metadata))
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
