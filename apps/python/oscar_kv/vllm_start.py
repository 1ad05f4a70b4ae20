# SPDX-License-Identifier: MIT
"""What must hold when vLLM starts with one of our backends, else the start ends with one line, and how a process learns of its steps: for
vllm_plugin.py and vllm_backend.py. This module imports neither: vLLM finds them by their names, and the layers that it makes have their classes.

A platform that does not take a backend serves with another one and says so at INFO, if at all. Three methods of the platform
are therefore watched in every process: check_and_update_config, where a configuration that cannot serve the set ends the start,
get_attn_backend_cls, by which each layer gets its backend, and update_block_size_for_backend, when all layers of a process have one.
"""
import gc
import inspect
import os
import re
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from . import identity
from .program import allows_rejected, manifest_hash, set_path
from .served_model import check_for_model, warn_if_longer
from .server import is_wanted, starting
from .sets import SetPart, read_set

SERVING = f"{__package__}.vllm_backend.PackedBackend"
LAYER = re.compile(r"\blayers\.(\d+)\.")
KNOWN = "0.32 or 0.33"
NAME = "oscar"  # of our cache, for --kv-cache-dtype, from vLLM 0.33 on
MOVES = "OffloadingConnector"  # the KV connector that moves packed pages, and windows with them (offloaded_windows.py)
_DRAFTS = ("eagle", "eagle3", "mtp", "draft_model")  # methods of speculative decoding with layers of their own, which keep vLLM's cache
_OF_DRAFT = re.compile(r"(^|\.)(draft_model|mtp|eagle_layers)\.")  # names of those whose numbers may be those of the model's layers, too
_read_once = cache(read_set)
_watches: dict[Callable[[Any], None], Callable[[], Any]] = {}  # of every step, and of whose engine, while that is there
_MARK = "oscar_kv"  # in vLLM's additional_config
_SECONDS_TO_WRITE = 30  # what observed layers of a large model take on few processors
_BLOCK_ON_CPUS = 32  # tokens; vLLM's 128 would make windows keep up to 256 tokens more


def served_set() -> SetPart:
    """What vLLM reads of the set that this process serves. Raises ValueError, ImportError or OSError if it cannot be read."""
    return _read_once(set_path() or "", "vllm", allows_rejected())


def name_cache() -> None:
    """Lets --kv-cache-dtype name our cache, which vLLM refuses where this package serves no set."""
    import torch
    from vllm.config import cache
    from vllm.v1.kv_cache_interface import KVQuantMode

    if not hasattr(cache, "register_kv_cache_dtype") or NAME in cache.KV_CACHE_DTYPES:
        return  # vLLM 0.32, or a second call

    @cache.register_kv_cache_dtype(NAME)
    class PackedCacheType:
        name = NAME

        def torch_dtype(self) -> torch.dtype:
            return torch.uint8

        def quant_mode(self) -> Any:
            return KVQuantMode.CUSTOM


def _refuse(why: str) -> None:
    raise ValueError(f"the set {set_path()} cannot be served: {why}")


def _why_not_moved(config: Any) -> str | None:
    """Why blocks cannot be moved as a configuration of vLLM says, and what to do; None if they can, or are not moved."""
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    transfer, size = config.kv_transfer_config, getattr(config.cache_config, "kv_offloading_size", None)
    name, more = getattr(transfer, "kv_connector", None), getattr(transfer, "kv_connector_extra_config", {})
    if size is not None:  # of which vLLM makes a transfer later
        name = MOVES if config.cache_config.kv_offloading_backend == "native" else "LMCacheMPConnector"
    spec = more.get("spec_name", "CPUOffloadingSpec")  # which vLLM takes for one of its own first
    return next((text for is_wrong, text in (
            (name is None, None),
            (name != MOVES and str(name).startswith("LMCache"), f"{name} takes pages for rows of heads; give --kv-offloading-size with the backend native"),
            (name != MOVES, f"{name} moves pages without the exact tokens that lie beside them; give --kv-offloading-size, which takes {MOVES}"),
            (spec != "CPUOffloadingSpec" and (spec in OffloadingSpecFactory._registry or "spec_module_path" not in more),
             f"{spec} keeps blocks by names that do not tell sets apart; leave spec_name out"),
            ("block_size" in more or more.get("blocks_per_chunk", 1) != 1,
             "a chunk on the host holds one block; leave block_size and blocks_per_chunk out of kv_connector_extra_config"),
            (more.get("sync_load_budget_bytes", 0) not in (0, "0"),
             "exact windows would be made of pages that have not come back yet; leave sync_load_budget_bytes out of kv_connector_extra_config"),
            (not (size or more.get("cpu_bytes_to_use")), "kv_connector_extra_config says no cpu_bytes_to_use; give --kv-offloading-size"),
            (config.model_config.is_hybrid, "states of linear attention or Mamba are not moved; leave --kv-offloading-size and --kv-transfer-config out"))
                if is_wrong), None)


def _refuse_backend(config: Any, name: str) -> None:
    """Raises ValueError. vLLM is asked again what the model gets where nobody gives a backend; whatever that changes is not served."""
    config.attention_config.backend, config.model_config.config_updated = None, False
    config.try_verify_and_update_config()
    _refuse(f"vLLM itself chooses the attention backend {chosen.name} for this model, which reads no packed rows; unset OSCAR_KV_SET to serve it without "
            "a set" if (chosen := config.attention_config.backend) else f"the attention backend is {name}; leave --attention-backend out")


def _check_options(config: Any) -> None:
    from vllm import envs

    cache, model, attention = config.cache_config, config.model_config, config.attention_config
    backend, parallel = getattr(attention.backend, "name", None), config.parallel_config
    method = getattr(config.speculative_config, "method", "ngram")
    if backend not in (None, "CUSTOM"):
        _refuse_backend(config, backend)
    for is_wrong, text in (
            (getattr(model.hf_config.get_text_config(decoder=True), "kv_lora_rank", None),
             "the model's attention is latent, for which oscar fit makes no coded part; unset OSCAR_KV_SET to serve it without a set"),
            (getattr(attention, "backend_per_kind", None), "kinds of layers have other backends; leave backend_per_kind out"),
            (cache.cache_dtype not in ("auto", "bfloat16", NAME), f"the cache is {cache.cache_dtype}; give --kv-cache-dtype auto"),
            (str(model.dtype) != "torch.bfloat16", f"the model is {model.dtype}; give --dtype bfloat16"),
            (method not in ("ngram", *_DRAFTS), f"speculative decoding by {method} is not known to work; give --speculative-config with the method ngram, "
             f"{', '.join(_DRAFTS[:-1])} or {_DRAFTS[-1]}, or leave it out"),
            (method in _DRAFTS and model.is_hybrid, "blocks of layers that draft are not as large as states of linear attention or Mamba; give "
             "--speculative-config with the method ngram, or leave it out"),
            (unmoved := _why_not_moved(config), unmoved),
            (getattr(parallel, "prefill_context_parallel_size", 1) > 1,
             "contexts are dealt to ranks; leave --prefill-context-parallel-size out"),
            (parallel.decode_context_parallel_size > 1, "contexts are dealt to ranks; leave --decode-context-parallel-size out"),
            (getattr(cache, "kv_sharing_fast_prefill", False), "prompts skip layers; leave --kv-sharing-fast-prefill out"),
            (cache.enable_prefix_caching and not hasattr(config.scheduler_config.get_scheduler_cls(), "oscar_computes_again"),
             "the scheduler is no subclass of vLLM's Scheduler, so requests would not compute again what their windows lack of a cached prefix; "
             "leave --scheduler-cls out, or give --no-enable-prefix-caching"),
            (parallel.distributed_executor_backend == "ray" and not getattr(envs, "VLLM_USE_RAY_V2_EXECUTOR_BACKEND", True),
             "steps of vLLM's older executor for Ray cannot be watched; unset VLLM_USE_RAY_V2_EXECUTOR_BACKEND"),
            (parallel.use_ubatching, "steps are cut into microbatches; leave --enable-dbo and --ubatch-size out"),
            (model.is_hybrid and parallel.pipeline_parallel_size > 1,
             "a part of a model with linear attention or Mamba does not know how large the blocks of others are; leave --pipeline-parallel-size out"),
            (parallel.tensor_parallel_size > model.get_total_num_kv_heads(),
             "there are more tensor-parallel ranks than KV heads; use fewer ranks")):
        if is_wrong:
            _refuse(text)


def _check_interface() -> None:
    import vllm
    from vllm.v1.attention.backend import AttentionBackend

    if not hasattr(AttentionBackend, "customize_spec"):
        _refuse(f"vLLM {getattr(vllm, '__version__', '')} does not let a backend say how large its cache is; use vLLM {KNOWN}")


def _check_set(model: Any) -> None:
    layers = identity.cache_layers(model.hf_config.get_text_config(decoder=True))
    _read_once.cache_clear()  # another set may have its path by now
    try:
        part = served_set()
        if model.uses_mrope and any(layer.key.rotary is not None for layer in part.layers.values()):
            raise ValueError("its keys are stored before RoPE, and the model's keys turn by the places of images, too (M-RoPE), which a step does not "
                             "tell; fit one with --keys after-rope")
        check_for_model(part, model.hf_config, layers, model.max_model_len)
        warn_if_longer(part, model.max_model_len, "--max-model-len allows")
        if _gauge.cache_info().currsize:
            _gauge().clear()  # of an engine before this one
        _gauge().labels(path := set_path() or "", manifest_hash(path)).set(len(part.layers))
    except (ImportError, OSError, ValueError) as error:
        _refuse(str(error))


@cache
def _gauge() -> Any:
    """Beside vLLM's own metrics."""
    from prometheus_client import Gauge

    return Gauge("oscar_kv_layers", "Layers whose cache is that of a set", ["set", "manifest_sha256"])


def _part_compiled_graphs(config: Any) -> None:
    """vLLM keeps compiled graphs of a model and does not ask for the attention backend when it takes one again, though whether the
    cache is written before attention or by it is a part of the graph. Graphs with a set get a name of their own."""
    if not isinstance(config.additional_config, dict):
        _refuse("additional_config is no dictionary, so compiled graphs cannot be told from those without a set; leave it out")
    config.additional_config = config.additional_config | {_MARK: "packed cache"}


def choose_for_each_layer() -> None:
    """vLLM keeps the backend that it chose for a shape of layers; layers that draft may have that shape, and need another."""
    from vllm.v1.attention import selector

    selector._cached_get_attn_backend = inspect.unwrap(selector._cached_get_attn_backend)


def is_for_drafts(config: Any) -> bool:
    """Whether it is what vLLM makes of a configuration that was checked, or of a model that drafts, for the layers that draft."""
    more = config.additional_config
    return getattr(config.model_config, "runner_type", None) == "draft" or (isinstance(more, dict) and _MARK in more)


def _refuse_beside_another(own: Any = None) -> None:
    """Raises ValueError if an engine of this process lives of whose steps only its own layers may be told: vLLM forgets those when it ends one."""
    if _watches:
        gc.collect()  # one that nobody ended and nobody has any more
    if any(owner.static_forward_context for find in _watches.values() if (owner := find()) is not None and owner is not own):
        raise ValueError("an engine of this process still serves a set, and would not be told of its steps any more; end it first, or start another process")


def _drop_unreached_window(config: Any) -> None:
    """A sliding window of all layers that no sequence outgrows is none (Phi-4-mini, whose is twice its longest text)."""
    cache = config.cache_config
    if (getattr(cache, "sliding_window", None) or 0) >= config.model_config.max_model_len:
        cache.sliding_window = None


def _is_ours(selector: Any) -> bool:
    """Whether a layer that is being made reads the whole text, and is not one that drafts: a set is for those."""
    from vllm.compilation import backends
    from vllm.config import get_current_vllm_config

    if backends.model_tag != "backbone":
        return False
    if selector.use_mla or selector.use_sparse:
        _refuse("the model's attention is latent or sparse; use a model with another one, or unset OSCAR_KV_SET")
    if selector.attn_type != "decoder" or selector.has_sliding_window:
        return False
    for name, text in (("use_mm_prefix", "tokens of a picture see each other both ways; give --language-model-only"),
                       ("use_non_causal", "the model's attention is not causal; unset OSCAR_KV_SET"),
                       ("use_rswa", "the model's attention has a window behind its prompt (R-SWA); unset OSCAR_KV_SET"),
                       ("use_batch_invariant", "answers depend on the other requests of a step; unset VLLM_BATCH_INVARIANT")):
        # vLLM sets use_mm_prefix for text models of Gemma 4, too.
        if getattr(selector, name, False) and (name != "use_mm_prefix" or get_current_vllm_config().model_config.is_multimodal_model):
            _refuse(text)
    return True


def _require_all_covered(layers: dict[str, Any]) -> None:
    """Raises ValueError if a layer that the set covers, or whose name tells no number, has another backend, or if a layer that drafts has ours
    or reads a packed cache. Layers that draft have numbers behind the model's, or names of their own."""
    covered = served_set().layers
    packed = {name for name, layer in layers.items() if is_packed(layer)}
    drafts = {name for name in layers if _OF_DRAFT.search(name)}
    others = [name for name, layer in layers.items() if hasattr(layer, "impl") and name not in packed | drafts
              and ((found := LAYER.search(name)) is None or int(found[1]) in covered)]
    if others:
        _refuse(f"another attention backend has {', '.join(others)}, whose attention has sliding windows or is another special one; "
                "unset OSCAR_KV_SET")
    if taking := [name for name, layer in layers.items() if (name in packed and name in drafts) or
                  (name not in packed and getattr(layer, "kv_sharing_target_layer_name", None) in packed)]:
        _refuse(f"{', '.join(taking)} would take packed rows for plain ones, as layers that draft do; leave --speculative-config out, or give it the method ngram")


def is_packed(layer: Any) -> bool:
    """Whether a layer of vLLM's forward context has our attention backend."""
    backend = getattr(layer, "attn_backend", None)
    return backend is not None and f"{backend.__module__}.{backend.__qualname__}" == SERVING


def _leave_time_to_write(config: Any) -> None:
    """vLLM kills its workers as soon as it is told to end, unless it has a time for requests that are running."""
    if getattr(config, "shutdown_timeout", None) == 0:
        config.shutdown_timeout = _SECONDS_TO_WRITE
    os.environ.setdefault("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", str(_SECONDS_TO_WRITE))


def watch(platform: Any, observed: dict[str, str] | None) -> None:
    """Watches vLLM's current platform; observed: paths of the backends that are registered for observing, by their names, or None
    where a set is served. A second call changes nothing. Engines of this process that are given neither a set nor a dump are left alone."""
    owner = type(platform)
    if "oscar_watches" in vars(owner):
        return
    choose, configure, finish = owner.get_attn_backend_cls, owner.check_and_update_config, owner.update_block_size_for_backend

    def get_attn_backend_cls(cls: type, *args: Any, **kwargs: Any) -> str:
        if set_path() is not None and _is_ours(kwargs.get("attn_selector_config", args[1] if len(args) > 1 else None)):
            return SERVING
        path = choose(*args, **kwargs)
        if set_path() is None and is_wanted() and observed is not None and path not in observed.values():
            raise ValueError(f"OSCAR_OBSERVE cannot observe the attention backend {path}; give --attention-backend with one of "
                             f"{', '.join(observed)}, or use oscar fit --model")
        return path

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        with starting():
            if is_wanted() if observed is None else set_path() is not None:
                raise ValueError(f"the first engine of this process had {'OSCAR_KV_SET' if observed is None else 'OSCAR_OBSERVE'}, which tells vLLM "
                                 "once what its backends do; start another process")
            if vllm_config.model_config is not None and not is_for_drafts(vllm_config):
                _refuse_beside_another()
        configure(vllm_config)
        if is_wanted():
            _leave_time_to_write(vllm_config)
        if set_path() is not None and vllm_config.model_config is not None and not is_for_drafts(vllm_config):
            cache = vllm_config.cache_config
            if cls.device_type == "cpu" and not cache.user_specified_block_size:
                cache.block_size, cache.user_specified_block_size = _BLOCK_ON_CPUS, True  # or vLLM 0.33 chooses again
            with starting():
                _check_options(vllm_config)
                _check_interface()
                _check_set(vllm_config.model_config)
                _part_compiled_graphs(vllm_config)
                _drop_unreached_window(vllm_config)
            if cache.cache_dtype == NAME:
                cache.cache_dtype = "auto"  # of layers that have another backend; ours knows what it takes

    def update_block_size_for_backend(cls: type, vllm_config: Any) -> None:
        layers = vllm_config.compilation_config.static_forward_context
        packed = next(filter(is_packed, layers.values()), None)
        if observed is None:
            _refuse_beside_another(vllm_config.compilation_config)  # whose layers were not there when this one's configuration was checked
            _watches.clear()  # of an engine before this one
        if packed is not None:
            packed.attn_backend.share_blocks(vllm_config, lambda: finish(vllm_config))
        else:
            finish(vllm_config)
        if set_path() is not None:
            _require_all_covered(layers)

    owner.update_block_size_for_backend = classmethod(update_block_size_for_backend)
    owner.get_attn_backend_cls = classmethod(get_attn_backend_cls)
    owner.check_and_update_config = classmethod(check_and_update_config)
    owner.oscar_watches = True


def watch_scheduler(begin: Callable[[Any], None], vllm_config: Any = None) -> None:
    """Calls begin(SchedulerOutput) before every step that a worker of this process is given. A second call with the same changes nothing.
    vllm_config: of the one engine that begin() is for; while it has layers no other starts."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    if "oscar_watches" not in vars(WorkerWrapperBase):
        WorkerWrapperBase.oscar_watches, execute = True, WorkerWrapperBase.execute_model

        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            for each in _watches:
                each(scheduler_output)
            return execute(self, scheduler_output, *args, **kwargs)

        WorkerWrapperBase.execute_model = execute_model
    _watches[begin] = weakref.ref(vllm_config.compilation_config) if vllm_config else lambda: None
