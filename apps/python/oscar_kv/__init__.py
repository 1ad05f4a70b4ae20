# SPDX-License-Identifier: MIT
"""oscar for people who are in Python already: read rotation sets, and run `oscar fit` and `oscar verify`.

Needs numpy and safetensors; torch only where tensors are asked for. Non-goals: the method itself, which is in the
`oscar` program and in liboscar_torch.so.
"""
from .command import OscarError, fit, run, verify
from .places import load_library
from .rotation_set import Layer, RotationSet, Side, read_set

__all__ = ["Layer", "OscarError", "RotationSet", "Side", "fit", "load_library", "read_set", "run", "verify"]
