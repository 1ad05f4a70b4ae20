# SPDX-License-Identifier: MIT
"""What must hold when vLLM starts with one of our backends, else the start ends with one line: for vllm_plugin.py.

A platform that does not take a backend serves with another one and says so at INFO, if at all. Two methods of the platform
are therefore watched in every process: check_and_update_config, where a configuration that cannot serve the set ends the start,
and get_attn_backend_cls, by which each layer gets its backend.
"""
from typing import Any

from . import identity
from .places import load_library, setting
from .rotation_set import read_set
from .server import starting
from .set_check import check_for_model

SERVING = f"{__package__}.vllm_backend.Int2Backend"
KNOWN = "0.17 to 0.26"


def served_set() -> str | None:
    """The path in OSCAR_INT2_SET. Raises ValueError if it is empty."""
    return setting("OSCAR_INT2_SET")


def _refuse(why: str) -> None:
    raise ValueError(f"OSCAR_INT2_SET={served_set()} cannot be served: {why}")


def _check_options(config: Any) -> None:
    cache, model, attention = config.cache_config, config.model_config, config.attention_config
    backend = getattr(attention.backend, "name", "vLLM's own choice")
    for is_wrong, text in (
            (backend != "CUSTOM", f"the attention backend is {backend}; give --attention-backend CUSTOM"),
            (getattr(attention, "backend_per_kind", None), "kinds of layers have other backends; leave backend_per_kind out"),
            (cache.cache_dtype not in ("auto", "bfloat16"), f"the cache is {cache.cache_dtype}; give --kv-cache-dtype auto"),
            (str(model.dtype) != "torch.bfloat16", f"the model is {model.dtype}; give --dtype bfloat16"),
            (cache.enable_prefix_caching, "prefix caching is on; give --no-enable-prefix-caching"),
            (config.scheduler_config.enable_chunked_prefill, "chunked prefill is on; give --no-enable-chunked-prefill"),
            (config.speculative_config is not None, "speculative decoding is on; leave it out"),
            (config.parallel_config.tensor_parallel_size > model.get_total_num_kv_heads(),
             "there are more tensor-parallel ranks than KV heads; use fewer ranks")):
        if is_wrong:
            _refuse(text)


def _check_interface() -> None:
    import vllm
    from vllm.v1.attention.backend import AttentionBackend

    if not hasattr(AttentionBackend, "get_kv_cache_shape"):
        _refuse(f"vLLM {getattr(vllm, '__version__', '')} lays out caches by itself, which the backend cannot read; use {KNOWN}")


def _check_set(model: Any) -> None:
    heads, dim = model.get_total_num_kv_heads(), model.get_head_size()
    described = identity.describe_model(model.hf_config, (heads, heads, dim, dim))
    layers = identity.cache_layers(model.hf_config.get_text_config(decoder=True))
    try:
        load_library()
        check_for_model(read_set(served_set() or ""), described, layers, model.max_model_len)
    except (ImportError, OSError, ValueError) as error:
        _refuse(str(error))


def _check_serving(platform: Any, config: Any) -> None:
    """Raises ValueError that says why this configuration cannot serve the set."""
    from vllm.v1.attention.selector import AttentionSelectorConfig

    model = config.model_config
    _check_options(config)
    platform.get_attn_backend_cls(config.attention_config.backend, AttentionSelectorConfig(
        head_size=model.get_head_size(), dtype=model.dtype, kv_cache_dtype=config.cache_config.cache_dtype, block_size=None))
    _check_interface()
    _check_set(model)


def _check_choice(path: str, observed: dict[str, str]) -> None:
    if served_set() is not None:
        if path != SERVING:
            _refuse(f"this platform does not take its attention backend and would serve without the set, by {path}; serve on "
                    f"CUDA with vLLM {KNOWN}, or unset OSCAR_INT2_SET")
    elif path not in observed.values():
        raise ValueError(f"OSCAR_OBSERVE cannot observe the attention backend {path}; give --attention-backend with one of "
                         f"{', '.join(observed)}, or use oscar fit --model")


def watch(platform: Any, observed: dict[str, str]) -> None:
    """Watches vLLM's current platform; observed: paths of the backends that are registered for observing, by their names. A
    second call changes nothing."""
    owner = type(platform)
    if "oscar_watches" in vars(owner):
        return
    choose, configure = owner.get_attn_backend_cls, owner.check_and_update_config

    def get_attn_backend_cls(cls: type, *args: Any, **kwargs: Any) -> str:
        path = choose(*args, **kwargs)
        _check_choice(path, observed)
        return path

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        configure(vllm_config)
        if served_set() is not None and vllm_config.model_config is not None:
            with starting():
                _check_serving(cls, vllm_config)

    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)
    owner.check_and_update_config = classmethod(check_and_update_config)
    owner.oscar_watches = True
