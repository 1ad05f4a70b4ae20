# SPDX-License-Identifier: MIT
"""Rotation sets (oscar.rotation_set.v1), and sets of the coded cache (oscar.rotation_set.v2), as arrays.

Row vectors. Keys: k' = (k - mean) rotation, q' = q read_rotation. Values: v' = v rotation, o = o' read_rotation^T.
Non-goals: checking that a set is any good (`verify`), other people's formats (`oscar convert`).
"""
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .set_check import CODED_SCHEMA, check_coded_manifest, check_coded_side, check_layer, check_manifest
from .set_files import MATRICES, arrays_of, read_file, read_listed, read_manifest


@dataclass(frozen=True)
class Side:
    """What is done to the keys, or to the values, of a layer. Arrays are float32 numpy arrays, or torch tensors after
    RotationSet.to_torch(); stacks have 1 matrix, or one for each KV head."""

    rotation: Any  # (1 or KV heads, d, d)
    read_rotation: Any  # the same shape; rotation itself if that is orthogonal
    mean: Any | None  # (KV heads or 1, d), subtracted from keys; None: nothing is
    clip_ratio: float | None  # of RowCodec; 0 = no clipping, None = not known
    head_clip_ratios: Any | None  # (KV heads), where they differ
    eigenvalues: Any | None  # (d) or (KV heads, d), ascending; None: not known
    levels: Any | None = None  # of a coded cache, int32 (KV heads, d); None: the manifest's codec
    step: Any | None = None  # float32 of that shape: distance of two levels, and root mean square of the channel
    sigma: Any | None = None


@dataclass(frozen=True)
class Layer:
    layer_id: int
    key: Side
    value: Side


@dataclass(frozen=True)
class RotationSet:
    """manifest: of schemas/oscar.rotation_set.v1.schema.json, or v2. layers: by layer id, ascending, possibly sparse."""

    manifest: dict[str, Any]
    layers: dict[int, Layer]

    @property
    def windows(self) -> tuple[int, int]:
        """First and last tokens that stay as they are: (sink, recent)."""
        return self.manifest["windows"]["sink"], self.manifest["windows"]["recent"]

    def to_torch(self, device: Any = None, dtype: Any = None) -> "RotationSet":
        """The same set with torch tensors, float32 unless `dtype` says otherwise."""
        import torch

        def moved(side: Side) -> Side:
            arrays = {name: value for name, value in vars(side).items() if isinstance(value, np.ndarray)}
            return replace(side, **{name: torch.from_numpy(array.copy()).to(device=device, dtype=dtype)
                                    for name, array in arrays.items()})

        layers = {i: Layer(i, moved(layer.key), moved(layer.value)) for i, layer in self.layers.items()}
        return replace(self, layers=layers)


def _stack(array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 3 else array[None]


def _side(arrays: dict[str, np.ndarray], layer_id: int, name: str, described: dict[str, Any], where: Path) -> Side:
    prefix = f"layers.{layer_id}.{name}."
    rotation = arrays.get(prefix + "rotation")
    if rotation is None:
        raise ValueError(f"{where}: no \"{prefix}rotation\"; write the set again, or ask `oscar inspect`")
    read_rotation = arrays.get(prefix + ("q_rotation" if name == "key" else "o_rotation"))
    return Side(_stack(rotation), _stack(rotation if read_rotation is None else read_rotation), arrays.get(prefix + "mean"),
                described["clip_ratio"], arrays.get(prefix + "clip_ratio_per_head"), arrays.get(prefix + "eigenvalues"))


def _set(arrays: dict[str, np.ndarray], manifest: dict[str, Any], where: Path) -> RotationSet:
    layers = {}
    for each in sorted(manifest["layers"], key=lambda layer: layer["layer_id"]):
        i = each["layer_id"]
        layers[i] = Layer(i, _side(arrays, i, "key", each["key"], where), _side(arrays, i, "value", each["value"], where))
        check_layer(layers[i], each, manifest["codec"]["group_size"], str(where))
    surplus = sorted({name.split(".")[1] for name in arrays if name.startswith("layers.")} - set(map(str, layers)))
    if surplus:
        raise ValueError(f"{where}: has layers {', '.join(surplus)!a}, of which the manifest does not know; fit the set again")
    return RotationSet(manifest, layers)


def _coded_side(arrays: dict[str, np.ndarray], prefix: str, described: dict[str, Any], where: Path) -> Side:
    found = {name: arrays.get(prefix + name) for name in ("write", "read", "mean", "levels", "step", "sigma")}
    check_coded_side(found, described, f"{where}, {prefix}")
    return Side(found["write"], found["read"], found["mean"], 0.0, None, None, found["levels"], found["step"], found["sigma"])


def _coded_set(arrays: dict[str, np.ndarray], manifest: dict[str, Any], where: Path) -> RotationSet:
    layers = {}
    for each in sorted(manifest["layers"], key=lambda layer: layer["layer_id"]):
        i = each["layer_id"]
        layers[i] = Layer(i, *(_coded_side(arrays, f"layers.{i}.{name}.", each[name], where) for name in ("key", "value")))
    return RotationSet(manifest, layers)


def read_set(path: str | os.PathLike[str]) -> RotationSet:
    """Reads a set's folder, or one `.safetensors` or `.h5` file that `oscar convert` made of it.

    Raises ValueError if it is something else, changed since it was written or says two things, ImportError if it needs h5py.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise ValueError(f"{path}: there is no such file or folder; name the folder of a rotation set")
        arrays, manifest = arrays_of(read_file(path), path)
        check_manifest(manifest or {}, str(path))
        return _set(arrays, manifest or {}, path)
    if not (path / "manifest.json").is_file():
        raise ValueError(f"{path}: no manifest.json, so this is not a rotation set; `oscar inspect` says what it is")
    manifest = read_manifest(path)
    if manifest.get("schema") == CODED_SCHEMA:
        check_coded_manifest(manifest, str(path / "manifest.json"))
        name, data = read_listed(path, manifest, ("coded.safetensors",))
        return _coded_set(arrays_of(data, path / name)[0], manifest, path / name)
    check_manifest(manifest, str(path / "manifest.json"))
    name, data = read_listed(path, manifest, MATRICES)
    return _set(arrays_of(data, path / name)[0], manifest, path / name)
