# SPDX-License-Identifier: MIT
"""oscar for people who are in Python already: calibrate in a running model, read sets, serve them as a cache of transformers, run
`oscar fit` and `oscar verify`.

Needs numpy and safetensors; torch only where tensors are asked for, transformers for PackedCache. Non-goals: the method itself, which
is in the `oscar` program and in liboscar_torch.so.
"""
from typing import TYPE_CHECKING, Any

from .program import OscarError, fit, load_library, run, verify
from .sets import Layer, SetPart, Side, read_set
from .tap import Tap, observe

if TYPE_CHECKING:
    from .packed_cache import PACKED_ATTENTION, DecodeGraph, PackedCache
    from .passages import Passage

__all__ = ["PACKED_ATTENTION", "DecodeGraph", "Layer", "OscarError", "PackedCache", "Passage", "SetPart", "Side", "Tap", "fit",
           "load_library", "observe", "read_set", "run", "verify"]


def __getattr__(name: str) -> Any:
    """What needs transformers is imported when it is asked for."""
    if name == "Passage":
        from . import passages as module
    elif name in ("PACKED_ATTENTION", "DecodeGraph", "PackedCache"):
        from . import packed_cache as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
