# SPDX-License-Identifier: MIT
"""Row codecs: x (..., d) float32 -> codes, scale, zero per group, with x^ = (code - zero) scale."""
from dataclasses import dataclass

import numpy as np

from layers import to_bf16


@dataclass(frozen=True)
class Codec:
    grid: str = "minmax"  # minmax | lloyd-max
    levels: int = 4
    group_size: int = 0  # 0: the whole row
    clip_ratio: float = 0.0  # <= 0: no clipping
    scale_dtype: str = "float32"  # float32 | float16 | bfloat16

    def quantized(self, x):
        return decode(*encode(x, self))


def clip(x, ratio):
    """Clamps whole rows to +- their min(int(ratio d), d - 1)-th smallest magnitude."""
    d = x.shape[-1]
    threshold = np.sort(np.abs(x), axis=-1)[..., min(int(ratio * d), d - 1), None]
    return np.clip(x, -threshold, threshold)


def minmax(x, levels):
    """float32, as servers compute it."""
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    scale = np.maximum(high - low, np.float32(1e-8)) / np.float32(levels - 1)
    zero = -low / scale
    codes = np.clip(np.trunc(x / scale + zero + np.float32(0.5)), 0, levels - 1)
    return codes, scale, zero


def lloyd_max(x, levels):
    """OSCAR's published option: the thresholds of the best quantiser for N(0, 1), but evenly spaced levels."""
    assert levels == 4
    x = x.astype(np.float64)
    mean, deviation = x.mean(axis=-1, keepdims=True), np.sqrt(x.var(axis=-1, keepdims=True) + 1e-8)
    codes = np.searchsorted([-0.98107, 0, 0.98107], (x - mean) / deviation, side="right")
    scale = 1.16 * (2 * 1.50956 / 3) * deviation
    return codes, np.float32(scale), np.float32(1.5 - mean / scale)


GRIDS = {"minmax": minmax, "lloyd-max": lloyd_max}
PARAMETERS = {"float32": np.float32, "bfloat16": to_bf16,
              "float16": lambda x: np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)}


def encode(x, codec):
    """codes (..., d) uint8; scale and zero (..., groups) float32."""
    x = np.asarray(x, np.float32)
    if codec.clip_ratio > 0:
        x = clip(x, codec.clip_ratio)
    groups = x.reshape(*x.shape[:-1], -1, codec.group_size or x.shape[-1])
    codes, scale, zero = GRIDS[codec.grid](groups, codec.levels)
    stored = PARAMETERS[codec.scale_dtype]
    return codes.astype(np.uint8).reshape(x.shape), stored(scale)[..., 0], stored(zero)[..., 0]


def decode(codes, scale, zero):
    groups = codes.reshape(*scale.shape, -1).astype(np.float32)
    return ((groups - zero[..., None]) * scale[..., None]).reshape(codes.shape)
