# SPDX-License-Identifier: MIT
"""Workspaces of int2_decode and coded_decode, which all layers of a model share, since they take turns in one stream."""
from typing import Any

import torch
from torch import Tensor

_MOST_SHARED = 16384  # query rows; kernels share workspaces up to so many units, each of which has at least one

_workspaces: list[tuple[int, Tensor]] = []  # of a stream, all that ever were: graphs know their places; the last is the largest
_bytes: dict[tuple[Any, ...], int] = {}


def workspace_of(kind: str, arguments: tuple[Any, ...], scaling: float, stream: int = 0) -> Tensor | None:
    """A workspace for torch.ops.oscar.<kind>_decode, that of this stream's calls. None: the operator makes its own, as on the CPU, or for
    calls of so many sequences that they cannot share one."""
    q = arguments[0]
    if q.device.type != "cuda" or q.numel() // q.shape[-1] > _MOST_SHARED:
        return None
    key = (kind, q.device.index, *(x.shape for x in arguments if isinstance(x, Tensor)))
    if key not in _bytes:
        _bytes[key] = getattr(torch.ops.oscar, f"{kind}_decode_workspace")(*arguments, softmax_scale=scaling)
    fitting = [x for of, x in _workspaces if of == stream and x.device == q.device and len(x) >= _bytes[key]]
    if not fitting and torch.cuda.is_current_stream_capturing():
        return None  # it would be filled with zeros by the graph alone
    if not fitting:
        fitting = [torch.zeros(_bytes[key] * 5 // 4, dtype=torch.uint8, device=q.device)]
        _workspaces.append((stream, fitting[0]))
    return fitting[-1]
