# SPDX-License-Identifier: MIT
"""Rotation sets (oscar.rotation_set.v1) as arrays.

Row vectors. Keys: k' = (k - mean) rotation, q' = q read_rotation. Values: v' = v rotation, o = o' read_rotation^T.
Non-goals: checking that a set is any good (`verify`), other people's formats (`oscar convert`).
"""
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

_SCHEMA = "oscar.rotation_set.v1"


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


@dataclass(frozen=True)
class Layer:
    layer_id: int
    key: Side
    value: Side


@dataclass(frozen=True)
class RotationSet:
    """manifest: of schemas/oscar.rotation_set.v1.schema.json. layers: by layer id, ascending, possibly sparse."""

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


Read = Callable[[str], np.ndarray | None]


def _stack(array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 3 else array[None]


def _side(read: Read, layer_id: int, name: str, manifest: dict[str, Any], where: Path) -> Side:
    prefix = f"layers.{layer_id}.{name}."
    rotation = read(prefix + "rotation")
    if rotation is None:
        raise ValueError(f"{where}: no \"{prefix}rotation\"; write the set again, or ask `oscar inspect`")
    read_rotation = read(prefix + ("q_rotation" if name == "key" else "o_rotation"))
    return Side(_stack(rotation), _stack(rotation if read_rotation is None else read_rotation), read(prefix + "mean"),
                manifest["clip_ratio"], read(prefix + "clip_ratio_per_head"), read(prefix + "eigenvalues"))


def _set(read: Read, manifest: dict[str, Any], where: Path) -> RotationSet:
    if manifest.get("schema") != _SCHEMA:
        raise ValueError(f"{where}: schema is {manifest.get('schema')!r}, not \"{_SCHEMA}\"")
    layers = {}
    for each in sorted(manifest["layers"], key=lambda layer: layer["layer_id"]):
        i = each["layer_id"]
        layers[i] = Layer(i, _side(read, i, "key", each["key"], where), _side(read, i, "value", each["value"], where))
    return RotationSet(manifest, layers)


def _from_safetensors(path: Path, manifest: dict[str, Any] | None) -> RotationSet:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        names = set(file.keys())
        manifest = manifest or json.loads((file.metadata() or {}).get("manifest", "{}"))
        return _set(lambda name: file.get_tensor(name) if name in names else None, manifest, path)


def _from_h5(path: Path, manifest: dict[str, Any] | None) -> RotationSet:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path}: h5py reads HDF5; pip install h5py, or fit with --format safetensors,h5") from error
    with h5py.File(path) as file:
        if manifest is None:
            manifest = json.loads(file["manifest"][()].tobytes()) if "manifest" in file else {}
        at = lambda name: file[name.replace(".", "/")][()] if name.replace(".", "/") in file else None  # noqa: E731
        return _set(at, manifest, path)


_READERS = {".safetensors": _from_safetensors, ".h5": _from_h5}


def read_set(path: str | os.PathLike[str]) -> RotationSet:
    """Reads a set's folder, or one `.safetensors` or `.h5` file that `oscar convert` made of it.

    Raises ValueError if it is something else or changed since it was written, ImportError if it needs h5py.
    """
    path = Path(path)
    if path.is_file():
        if path.suffix not in _READERS:
            raise ValueError(f"{path}: not a folder, .safetensors or .h5; `oscar convert` makes them")
        return _READERS[path.suffix](path, None)
    if not (path / "manifest.json").is_file():
        raise ValueError(f"{path}: no manifest.json, so this is not a rotation set; `oscar inspect` says what it is")
    manifest = json.loads((path / "manifest.json").read_text())
    listed = {each["path"]: each["sha256"] for each in manifest.get("files", [])}
    for suffix, read in _READERS.items():
        file = path / ("rotations" + suffix)
        if file.name not in listed:
            continue
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != listed[file.name]:
            raise ValueError(f"{file}: not the file that manifest.json lists; fetch or fit the set again")
        return read(file, manifest)
    raise ValueError(f"{path}: neither rotations.safetensors nor rotations.h5; fit with --format safetensors")
