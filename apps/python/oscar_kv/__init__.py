# SPDX-License-Identifier: MIT
"""oscar for people who are in Python already: calibrate in a running model, read rotation sets, run `oscar fit` and
`oscar verify`.

Needs numpy and safetensors; torch only where tensors are asked for. Non-goals: the method itself, which is in the
`oscar` program and in liboscar_torch.so.
"""
from .command import OscarError, fit, run, verify
from .places import load_library
from .rotation_set import Layer, RotationSet, Side, read_set
from .tap import Tap, observe

__all__ = ["Layer", "OscarError", "RotationSet", "Side", "Tap", "fit", "load_library", "observe", "read_set", "run",
           "verify"]
