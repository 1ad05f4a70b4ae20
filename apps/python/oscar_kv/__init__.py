# SPDX-License-Identifier: MIT
"""oscar for people who are in Python already: calibrate in a running model, read rotation sets, serve them as a cache of
transformers, run `oscar fit` and `oscar verify`.

Needs numpy and safetensors; torch only where tensors are asked for, transformers for Int2Cache. Non-goals: the method
itself, which is in the `oscar` program and in liboscar_torch.so.
"""
from typing import TYPE_CHECKING, Any

from .program import OscarError, fit, load_library, run, verify
from .sets import Layer, RotationSet, Side, read_set
from .tap import Tap, observe

if TYPE_CHECKING:
    from .int2_cache import INT2_ATTENTION, DecodeGraph, Int2Cache

__all__ = ["INT2_ATTENTION", "DecodeGraph", "Int2Cache", "Layer", "OscarError", "RotationSet", "Side", "Tap", "fit",
           "load_library", "observe", "read_set", "run", "verify"]


def __getattr__(name: str) -> Any:
    """What needs transformers is imported when it is asked for."""
    if name in ("INT2_ATTENTION", "DecodeGraph", "Int2Cache"):
        from . import int2_cache

        return getattr(int2_cache, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
