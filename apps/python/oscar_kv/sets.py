# SPDX-License-Identifier: MIT
"""Sets of rotations (oscar.rotation_set.v1) and of the coded cache (oscar.rotation_set.v2) as arrays: the one reader of sets in Python.

Row vectors. Keys: k' = (k - mean) rotation, q' = q read_rotation. Values: v' = v rotation, o = o' read_rotation^T.

Somebody else may have written a set, and one wrong number in it would be served without a word. So bytes are read once, compared with
manifest.json, and parsed from memory: what was checked is what is used. Texts that readers could understand in two ways are refused. The
program checks the same (lib/base/json.hpp, lib/set/manifest.hpp). Functions raise ValueError that says what is wrong and what to do.
Non-goals: whether a set is any good (`oscar verify`), other people's formats (`oscar convert`).
"""
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

_SCHEMA, _CODED_SCHEMA = "oscar.rotation_set.v1", "oscar.rotation_set.v2"
_CODECS, _SCALES = ("minmax", "lloyd-max"), ("float32", "float16", "bfloat16")
_MOST_BYTES_OF_TEXT = 8 << 20  # kMaxDocumentBytes
_AGAIN = "fetch or fit the set again"
_TRIAL_SECONDS = 300
_TRIAL = f"from {__name__} import _try_h5; _try_h5()"


@dataclass(frozen=True)
class Side:
    """What is done to the keys, or to the values, of a layer. Arrays are float32 numpy arrays, or torch tensors after
    RotationSet.to_torch(); stacks have 1 matrix, or one for each KV head."""

    rotation: Any  # (1 or KV heads, d, d)
    read_rotation: Any  # the same shape; rotation itself if that is orthogonal
    mean: Any | None  # (KV heads or 1, d), subtracted from keys; None: nothing is
    clip_ratio: float | None  # 0 = no clipping, None = not known
    head_clip_ratios: Any | None  # (KV heads), where they differ
    eigenvalues: Any | None  # (d) or (KV heads, d), ascending; None: not known
    levels: Any | None = None  # of a coded cache, int32 (KV heads, d); None: four of the manifest's codec
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


def _parse_json(text: bytes, where: str) -> dict[str, Any]:
    """An object. Raises ValueError for anything else, for keys that come twice, and for NaN and Infinity."""
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise ValueError("an object has a key twice")
        return members

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number")

    try:
        value = json.loads(text.decode(), object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON: {error}; {_AGAIN}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where}: not a JSON object; {_AGAIN}")
    return value


def _read_file(path: Path, most: int | None = None) -> bytes:
    """Of a regular file of no more than `most` bytes. Raises ValueError for pipes, devices and larger files, OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path}: not a regular file")
        if most is not None and found.st_size > most:
            raise ValueError(f"{path}: more than {most} bytes")
        return file.read(found.st_size)


def _is_plain(path: Any) -> bool:
    return isinstance(path, str) and path.isprintable() and "\\" not in path and path != "manifest.json" and \
        all(part not in ("", ".", "..") for part in path.split("/"))


def _read_listed(folder: Path, manifest: dict[str, Any], wanted: tuple[str, ...]) -> tuple[str, bytes]:
    """The first of `wanted` that the manifest lists, and its content, after every listed file has been compared with its size
    and sha256. Raises ValueError that names the first that differs."""
    listed, found = manifest.get("files"), {}
    if not isinstance(listed, list):
        raise ValueError(f"{folder / 'manifest.json'}: no list of files; {_AGAIN}")
    names = [each.get("path") if isinstance(each, dict) else None for each in listed]
    for name, each in zip(names, listed):
        if not _is_plain(name) or names.count(name) > 1:
            raise ValueError(f"{folder / 'manifest.json'}: lists {name!a}, an unsafe path or one that comes twice; {_AGAIN}")
        size = each.get("size")
        try:
            data = _read_file(folder / name, size) if type(size) is int and size >= 0 else b""
            is_listed = len(data) == size and hashlib.sha256(data).hexdigest() == each.get("sha256")
        except (OSError, ValueError):
            is_listed = False
        if not is_listed:
            raise ValueError(f"{folder / name}: not the file that manifest.json lists; {_AGAIN}")
        if name in wanted:
            found[name] = data
    for name in wanted:
        if name in found:
            return name, found[name]
    raise ValueError(f"{folder}: neither {' nor '.join(wanted)}; fit with --format safetensors")


def _of_safetensors(data: bytes, where: Path) -> tuple[dict[str, np.ndarray], bytes | None]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    header = _parse_json(data[8:8 + int.from_bytes(data[:8], "little")], str(where))
    try:
        arrays = load(data)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a safetensors file: {error}; {_AGAIN}") from error
    manifest = (header.get("__metadata__") or {}).get("manifest")
    return arrays, None if manifest is None else manifest.encode()


def _arrays_of_h5(data: bytes) -> dict[str, np.ndarray]:
    """What a file leads to is not in the file, and no hash covers it: links, external storage and virtual datasets are refused."""
    import h5py

    found: dict[str, np.ndarray] = {}

    def add(group: Any, prefix: str) -> None:
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"\"{prefix}{name}\" is a link to something else")
            member = group[name]
            if isinstance(member, h5py.Group):
                if prefix.count("/") > 8:  # also what contains itself
                    raise ValueError(f"\"{prefix}\" is nested too deeply")
                add(member, f"{prefix}{name}/")
                continue
            if not isinstance(member, h5py.Dataset) or member.is_virtual or member.external:
                raise ValueError(f"\"{prefix}{name}\" is no dataset of its own, but of other files")
            if member.dtype.kind not in "fui" or member.nbytes > len(data):
                raise ValueError(f"\"{prefix}{name}\" holds no numbers, or claims more than the file has")
            found[prefix + name] = member[()]

    with h5py.File(io.BytesIO(data), "r") as file:
        add(file, "")
    return found


def _try_h5() -> None:
    """What the other process does."""
    try:
        _arrays_of_h5(sys.stdin.buffer.read())
    except Exception as error:
        sys.exit(ascii(str(error))[1:-1])


def _of_h5(data: bytes, where: Path) -> tuple[dict[str, np.ndarray], bytes | None]:
    """The HDF5 library can read beyond its buffers where metadata is forged, so another process reads the file first, which must
    survive."""
    try:
        import h5py  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{where}: h5py reads HDF5; pip install h5py, or fit with --format safetensors,h5") from error
    refused = f"{where}: not an HDF5 file that can be read"
    path = [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        trial = subprocess.run([sys.executable, "-c", _TRIAL], input=data, capture_output=True, check=False,
                               timeout=_TRIAL_SECONDS, env=os.environ | {"PYTHONPATH": os.pathsep.join(path)})
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{refused} within {_TRIAL_SECONDS} s; {_AGAIN}") from error
    if trial.returncode != 0:
        said = trial.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {trial.returncode}"]
        raise ValueError(f"{refused}: {said[0]}; {_AGAIN}")
    arrays = _arrays_of_h5(data)
    manifest = arrays.pop("manifest", None)
    return {name.replace("/", "."): array for name, array in arrays.items()}, None if manifest is None else manifest.tobytes()


_READERS = {".safetensors": _of_safetensors, ".h5": _of_h5}
_MATRICES = tuple("rotations" + suffix for suffix in _READERS)  # of a set's folder; the first that is listed is read


def _arrays_of(data: bytes, where: Path) -> tuple[dict[str, np.ndarray], dict[str, Any] | None]:
    """Arrays by name ("layers.0.key.rotation") of a .safetensors or .h5 file, and the manifest in it, if it has one. Raises
    ValueError for other files, ImportError if h5py is needed and not there."""
    if where.suffix not in _READERS:
        raise ValueError(f"{where}: not a folder, .safetensors or .h5; `oscar convert` makes them")
    arrays, manifest = _READERS[where.suffix](data, where)
    return arrays, None if manifest is None else _parse_json(manifest, f"{where}, manifest")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_ratio(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # NaN is not


def _member(json: Any, *names: str) -> Any:
    for name in names:
        json = json.get(name) if isinstance(json, dict) else None
    return json


def _refuse_if(where: str, *checks: tuple[bool, str]) -> None:
    for is_wrong, text in checks:
        if is_wrong:
            raise ValueError(f"{where}: {text}; {_AGAIN}, and ask `oscar verify`")


def _has_ratios(side: Any) -> bool:
    if not isinstance(side, dict) or "clip_ratio" not in side:
        return False
    ratio, of_heads = side["clip_ratio"], side.get("clip_ratio_per_head", [])
    return (ratio is None or _is_ratio(ratio)) and isinstance(of_heads, list) and all(map(_is_ratio, of_heads))


def _check_manifest(manifest: dict[str, Any], where: str) -> None:
    """What readers take from a manifest, as in schemas/oscar.rotation_set.v1.schema.json and v2, which is of coded sets."""
    codec, windows, layers = (manifest.get(name) for name in ("codec", "windows", "layers"))
    is_coded, name, levels = manifest.get("schema") == _CODED_SCHEMA, _member(codec, "name"), _member(codec, "levels")
    of_int2 = (
        (manifest.get("schema") != _SCHEMA, f"schema is {manifest.get('schema')!a}, not \"{_SCHEMA}\" or \"{_CODED_SCHEMA}\""),
        (name not in _CODECS, f"codec {name!a} is not known; known are {', '.join(_CODECS)}"),
        (levels != [4, 4], f"levels are {levels!a}, not [4, 4]"),
        (not _is_count(_member(codec, "group_size")), "the codec's group_size is no count"),
        (_member(codec, "scale_dtype") not in (None, *_SCALES), "the codec's scale_dtype is not known"))
    _refuse_if(
        where,
        *(((name != "coded", "the codec is not coded"),) if is_coded else of_int2),
        (not isinstance(manifest.get("model"), dict), "no model"),
        (not all(_is_count(_member(windows, each)) for each in ("sink", "recent")), "windows are no counts"),
        (not isinstance(layers, list) or not layers, "no layers"))
    ids = [_member(layer, "layer_id") for layer in layers]
    _refuse_if(where, (not all(map(_is_count, ids)), "a layer_id is no count"), (len(set(ids)) < len(ids), "a layer_id comes twice"))
    for layer in layers:
        for side in ("key", "value"):
            sizes = _member(layer, side, "row_bytes")
            _refuse_if(f"{where}, layer {layer['layer_id']}, {side}", (
                (not isinstance(sizes, list) or not all(map(_is_count, sizes)), "bytes of rows are no counts") if is_coded else
                (not _has_ratios(layer.get(side)), "no clip ratios, or not between 0 and 1")))


def _format_bytes(levels: np.ndarray, step: np.ndarray, sigma: np.ndarray) -> int:
    """Bytes of a packed row of one KV head of a coded cache, whose format these are, (d) each. Raises ValueError unless levels are
    powers of two from 256 down to 1, equal in blocks of 8, and steps and sigmas of stored channels are positive."""
    blocks, stored = levels.reshape(-1, 8) if len(levels) % 8 == 0 else levels[:0, None], levels > 1
    if not len(blocks) or (blocks != blocks[:, :1]).any() or (np.diff(levels) > 0).any() or not set(levels.tolist()) <= {
            2**bits for bits in range(9)}:
        raise ValueError("levels are no powers of two from 256 down to 1, equal in blocks of 8 channels")
    if not all(np.isfinite(x).all() and (x[stored] > 0).all() for x in (step, sigma)):
        raise ValueError("steps or sigmas of stored channels are not positive")
    return sum(int(count).bit_length() - 1 for count in blocks[:, 0].tolist()) + 2


def _check_coded_side(arrays: dict[str, Any], described: dict[str, Any], where: str) -> None:
    """Matrices and formats of one side of a coded cache against what the manifest says of it: "write", "read" (heads, d, d), "mean"
    (heads, d) or None, "levels", "step" and "sigma" (heads, d)."""
    write, levels = arrays["write"], arrays["levels"]
    _refuse_if(where, (write is None or write.ndim != 3 or write.shape[1] != write.shape[2] or 0 in write.shape,
                       "no square matrices of heads"))
    formats = [arrays[name] for name in ("levels", "step", "sigma")]
    numbers = [arrays[name] for name in ("write", "read", "mean", "step", "sigma") if arrays[name] is not None]
    _refuse_if(
        where,
        (arrays["read"] is None or arrays["read"].shape != write.shape, "reading and writing matrices have different shapes"),
        (any(x is None or x.shape != write.shape[:2] for x in formats), "formats of another shape than the matrices"),
        (levels is not None and levels.dtype.kind != "i", "levels are no whole numbers"),
        (arrays["mean"] is not None and arrays["mean"].shape != write.shape[:2], "means of another shape"),
        (not all(x.dtype == np.float32 and np.isfinite(x).all() for x in numbers), "numbers that are not finite float32"))
    try:
        sizes = [_format_bytes(*of_head) for of_head in zip(*formats)]
    except ValueError as error:
        raise ValueError(f"{where}: {error}; {_AGAIN}") from error
    _refuse_if(where, (sizes != described["row_bytes"], f"rows take {sizes} bytes, and the manifest says {described['row_bytes']}"))


def _check_layer(layer: Any, described: dict[str, Any], group_size: int, where: str) -> None:
    """Matrices of a layer against what the manifest says of it."""
    for name, side in (("key", layer.key), ("value", layer.value)):
        count, dim = side.rotation.shape[0], side.rotation.shape[-1]
        ratios, said = side.head_clip_ratios, described[name].get("clip_ratio_per_head")
        arrays = [x for x in (side.rotation, side.read_rotation, side.mean, ratios) if x is not None]
        _refuse_if(
            f"{where}, layer {layer.layer_id}, {name}",
            (side.rotation.shape != (count, dim, dim) or 0 in side.rotation.shape, f"matrices of {side.rotation.shape}"),
            (side.read_rotation.shape != side.rotation.shape, "reading and writing matrices have different shapes"),
            (name == "key" and dim != described.get("head_dim"),
             f"matrices of {dim} where the manifest says {described.get('head_dim')!a}"),
            (side.mean is not None and (side.mean.ndim != 2 or side.mean.shape[1] != dim), "means of another shape"),
            (not all(x.dtype.kind == "f" and np.isfinite(x).all() for x in arrays), "numbers that are not finite"),
            (group_size > 0 and dim % group_size != 0, f"groups of {group_size} channels do not divide {dim}"),
            ((ratios is None) != (not said) or (ratios is not None and (
                ratios.ndim != 1 or len(ratios) != len(said) or not np.allclose(ratios, said, rtol=1e-6, atol=0))),
             "clip ratios differ from the manifest's"))


def check_for_model(rotations: Any, model: dict[str, Any], covered: list[int], longest: int | None) -> None:
    """model: as identity.describe_model has it; covered: layers that a set must have; longest: tokens that the model, or its
    server, can have in a sequence."""
    fitted = rotations.manifest.get("model") or {}
    sha256, count = fitted.get("config_sha256"), fitted.get("num_layers")
    missing = sorted(set(covered) - set(rotations.layers))
    surplus = [i for i in rotations.layers if i >= model["num_layers"]]
    kept = sum(rotations.windows)
    for is_wrong, text in (
            (sha256 and model["config_sha256"] and sha256 != model["config_sha256"],
             f"the set is for another model: it was fitted on {fitted.get('id')!a}, whose config.json differs; fit one for this "
             "model"),
            (count and count != model["num_layers"],
             f"the set is for a model of {count} layers, and this one has {model['num_layers']}; fit one for this model"),
            (surplus, f"the set has layers {surplus}, and the model has {model['num_layers']}; fit one for this model"),
            (missing, f"the rotation set has no layer {', '.join(map(str, missing))}; it has {sorted(rotations.layers)}; fit all "
                      "layers"),
            (longest is not None and kept >= longest,
             f"the set's windows keep {kept} tokens as they are, and a sequence has no more than {longest}: nothing would be "
             "packed; allow longer sequences, or fit with smaller --sink and --recent")):
        if is_wrong:
            raise ValueError(text)


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


def _coded_side(arrays: dict[str, np.ndarray], layer_id: int, name: str, described: dict[str, Any], where: Path) -> Side:
    prefix = f"layers.{layer_id}.{name}."
    found = {name: arrays.get(prefix + name) for name in ("write", "read", "mean", "levels", "step", "sigma")}
    _check_coded_side(found, described, f"{where}, {prefix}")
    return Side(found["write"], found["read"], found["mean"], 0.0, None, None, found["levels"], found["step"], found["sigma"])


def _set(arrays: dict[str, np.ndarray], manifest: dict[str, Any], where: Path) -> RotationSet:
    layers, is_coded = {}, manifest["schema"] == _CODED_SCHEMA
    for each in sorted(manifest["layers"], key=lambda layer: layer["layer_id"]):
        i, side = each["layer_id"], _coded_side if is_coded else _side
        layers[i] = Layer(i, *(side(arrays, i, name, each[name], where) for name in ("key", "value")))
        if not is_coded:
            _check_layer(layers[i], each, manifest["codec"]["group_size"], str(where))
    surplus = sorted({name.split(".")[1] for name in arrays if name.startswith("layers.")} - set(map(str, layers)))
    if surplus:
        raise ValueError(f"{where}: has layers {', '.join(surplus)!a}, of which the manifest does not know; fit the set again")
    return RotationSet(manifest, layers)


def read_set(path: str | os.PathLike[str]) -> RotationSet:
    """Reads a set's folder, or one `.safetensors` or `.h5` file that `oscar convert` made of it.

    Raises ValueError if it is something else, changed since it was written or says two things, ImportError if it needs h5py.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise ValueError(f"{path}: there is no such file or folder; name the folder of a rotation set")
        arrays, found = _arrays_of(_read_file(path), path)
        _check_manifest(found or {}, str(path))
        return _set(arrays, found or {}, path)
    said = path / "manifest.json"
    if not said.is_file():
        raise ValueError(f"{path}: no manifest.json, so this is not a rotation set; `oscar inspect` says what it is")
    manifest = _parse_json(_read_file(said, _MOST_BYTES_OF_TEXT), str(said))
    _check_manifest(manifest, str(said))
    name, data = _read_listed(path, manifest, ("coded.safetensors",) if manifest["schema"] == _CODED_SCHEMA else _MATRICES)
    return _set(_arrays_of(data, path / name)[0], manifest, path / name)
