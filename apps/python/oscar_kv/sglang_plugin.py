# SPDX-License-Identifier: MIT
"""A plugin of SGLang (entry point sglang.srt.plugins): with OSCAR_OBSERVE set, a hook before every attention backend's
forward() observes prompts. Of backends that wrap others all but one call the others' forward(), which is the hooked one; the one for
models with linear attention calls forward_extend() instead, so its own forward() has the hook, too. See server.py for the
environment variables."""
from functools import cache
from itertools import accumulate
from pkgutil import resolve_name
from typing import Any

from .program import set_path
from .server import Place, ServerTap, Span, check_settings, is_wanted, starting

_TARGET = "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward"
_HYBRID = "sglang.srt.layers.attention.hybrid_linear_attn_backend.HybridLinearAttnBackend"


def register() -> None:
    """What SGLang calls in every process. Raises SystemExit with one line if prompts cannot be observed as told."""
    with starting():
        if set_path() is not None:
            raise ValueError("OSCAR_KV_SET is for vLLM, and SGLang would serve without the set; unset it, and use oscar serve-env")
        if not is_wanted():
            return
        check_settings()
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        try:
            resolve_name(_TARGET)  # SGLang logs it and goes on if a hook has no target
        except (AttributeError, ImportError) as error:
            raise ValueError(f"OSCAR_OBSERVE: this version of SGLang has no {_TARGET}, through which prompts go; use an earlier "
                             "one, or oscar fit --model") from error
        HookRegistry.register(_TARGET, _before_forward, HookType.BEFORE)
        if _has_own_forward(_HYBRID):
            HookRegistry.register(f"{_HYBRID}.forward", _before_forward, HookType.BEFORE)


def _has_own_forward(path: str) -> bool:
    """False for a class that inherits forward(), whose calls the hook sees already, and one that this version does not have."""
    try:
        return "forward" in vars(resolve_name(path))
    except (AttributeError, ImportError):
        return False


def _place() -> Place:
    from sglang.srt.runtime_context import get_parallel, get_server_args

    parallel = get_parallel()
    return Place(get_server_args().model_path, parallel.attn_tp_rank, parallel.attn_tp_size)


@cache
def _tap() -> ServerTap:
    return ServerTap(_place)


def _before_forward(backend: Any, q: Any = None, k: Any = None, v: Any = None, layer: Any = None, forward_batch: Any = None,
                    *args: Any, **kwargs: Any) -> None:
    """Observes, and leaves the arguments as they are. Layers of linear attention have no q, k and v."""
    _tap().guard(lambda: _observe(q, k, v, layer, forward_batch))


def _whole_prompts(batch: Any) -> list[Span]:
    """Those that are computed from their first token on. Decode steps of a mixed batch have a prefix; kernels are tried out on tokens 0."""
    spans = []
    for prefix, length, end in zip(batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, accumulate(batch.extend_seq_lens_cpu)):
        if prefix == 0 < length:
            at = slice(end - length, end)
            text = batch.input_ids[at].int().cpu().numpy()
            spans += [Span(at, text)] if text.any() else []
    return spans


def _observe(q: Any, k: Any, v: Any, layer: Any, batch: Any) -> None:
    import torch

    mode = getattr(batch, "_original_forward_mode", None) or batch.forward_mode  # a rank without requests is given some that are none
    # Drafts and their verification count as extending too.
    if k is None or not mode.is_extend() or getattr(mode, "name", "EXTEND") not in ("EXTEND", "MIXED", "SPLIT_PREFILL"):
        return
    if layer.is_cross_attention or (layer.sliding_window_size or -1) >= 0:
        return
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    if spans := _whole_prompts(batch):
        _tap().observe(layer.layer_id, q.view(-1, layer.tp_q_head_num, layer.qk_head_dim), k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
                       v.view(-1, layer.tp_v_head_num, layer.v_head_dim), spans, layer.scaling)
