# SPDX-License-Identifier: MIT
"""What one reader reads of a set (schemas/oscar.set.v1.schema.json), as arrays: the one reader of sets in Python.

Row vectors. Keys: k' = (k - mean) rotation, q' = q read_rotation. Values: v' = v rotation, o = o' read_rotation^T.

Somebody else may have written a set, and one wrong number in it would be served without a word. So the file of the part that is read is
read once, compared with manifest.json, and parsed from memory: what was checked is what is used. Texts that readers could understand
in two ways are refused. Functions raise ValueError that says what is wrong and what to do. Non-goals: whether a set is any good, and
files that are not read (`oscar verify`), other people's formats (`oscar convert`).
"""
import hashlib
import io
import json
import logging
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

_SCHEMA = "oscar.set.v1"
# Of each part, the file that is read.
_FILES = {"coded": "coded.safetensors", "with_means": "with_means/rotations.h5", "rotations": "rotations.h5"}
# What a folder can list; the last are for people (lib/set/one_truth.cpp).
_LISTED = re.compile(r"coded\.safetensors|(with_means/)?(rotations\.h5|serve\.env|k_mean\.pt|[kv]_rotation_\w+\.pt|[kv]_clip_per_(layer|head)\.json|"
                     r"layer_\d+\.pt)|.*(LICENSE|\.md|\.txt)", re.ASCII)
_READ_CODED = "vllm", "transformers"
_GRIDS, _SCALES = ("minmax", "lloyd-max"), ("float32", "float16", "bfloat16")
_MODEL_COUNTS = "num_layers", "num_attention_heads", "num_key_value_heads", "head_dim"  # 0: not known
_MOST_BYTES_OF_TEXT = 8 << 20  # kMaxDocumentBytes
_AGAIN, _TRIAL_SECONDS = "fetch or fit the set again", 300
_TRIAL = f"from {__name__} import _try_h5; _try_h5()"
_MOST_FLOAT = float(np.finfo(np.float32).max)
_log = logging.getLogger("oscar_kv")


@dataclass(frozen=True)
class Side:
    """What is done to the keys, or to the values, of a layer. Arrays are numpy arrays, float32 where nothing else is said, or torch
    tensors after SetPart.to_torch(); stacks have 1 matrix, or one for each KV head."""

    rotation: Any  # (1 or KV heads, d, d)
    read_rotation: Any  # the same shape; rotation itself if that is orthogonal
    mean: Any | None = None  # any float (KV heads or 1, d), subtracted from keys; None: nothing is
    clip_ratios: Any | None = None  # of INT2 rows, any float (KV heads or 1); 0 = no clipping, None = not known
    levels: Any | None = None  # of the coded cache, int32 (KV heads, d); None: rows are INT2
    step: Any | None = None  # of that shape: distance of two levels, and root mean square of the channel
    sigma: Any | None = None
    rotary: "Rotary | None" = None  # of keys that are stored before RoPE, whose matrices are block diagonal over pairs


@dataclass(frozen=True)
class Rotary:
    """How keys turn: the channels (x, y) of pair p become (x cos(f j) - y sin(f j), x sin(f j) + y cos(f j)) at position j, f = frequency[p],
    or far_frequency[p] in texts of more than near_context tokens."""

    pairs: list[list[int]]
    frequency: list[float]
    far_frequency: list[float] | None = None
    near_context: int = 0


@dataclass(frozen=True)
class Layer:
    layer_id: int
    key: Side
    value: Side


@dataclass(frozen=True)
class Int2Codec:
    """How rows of INT2 are rounded."""

    grid: str = "minmax"  # or lloyd-max
    group_size: int = 0  # channels that share a scale; 0 = all of a head
    scale_dtype: str = "float32"  # or float16, bfloat16


@dataclass(frozen=True)
class SetPart:
    """What one reader reads of a set. layers: by layer id, ascending, possibly sparse. windows: first and last tokens that stay as they
    are, (sink, recent). codec: None for the coded cache, whose sides have formats. name, manifest: of what was read."""

    layers: dict[int, Layer]
    windows: tuple[int, int]
    codec: Int2Codec | None
    name: str = ""
    manifest: dict[str, Any] = field(default_factory=dict)

    def to_torch(self) -> "SetPart":
        """The same part with torch tensors."""
        import torch

        def moved(side: Side) -> Side:
            return replace(side, **{name: torch.from_numpy(x.copy()) for name, x in vars(side).items() if isinstance(x, np.ndarray)})

        return replace(self, layers={i: Layer(i, moved(layer.key), moved(layer.value)) for i, layer in self.layers.items()})


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


def _read_listed(folder: Path, manifest: dict[str, Any], path: str) -> bytes:
    """A file that the manifest lists with this size and sha256."""
    said, listed = folder / "manifest.json", manifest.get("files")
    if not isinstance(listed, list):
        raise ValueError(f"{said}: no list of files; {_AGAIN}")
    names = [member(each, "path") for each in listed]
    for name in names:
        if not _is_plain(name) or names.count(name) > 1 or not _LISTED.fullmatch(name):
            raise ValueError(f"{said}: lists {name!a}, an unsafe path or one that comes twice, or that no set has; {_AGAIN}")
    if path not in names:
        raise ValueError(f"{folder}: the set has no {path}; fit it with --format pt,h5")
    for found in folder.rglob("*"):
        if found.is_symlink():
            raise ValueError(f"{found}: a link; copy the set without links (cp -rL)")
        if not (found.is_dir() or found.relative_to(folder).as_posix() in (*names, "manifest.json", "signature.json")):
            raise ValueError(f"{found}: manifest.json does not list this file; take it away, or fetch the set by oscar pull")
    size, sha256 = (listed[names.index(path)].get(name) for name in ("size", "sha256"))
    try:
        data = _read_file(folder / path, size) if type(size) is int and size >= 0 else b""
    except (OSError, ValueError):
        data = b""
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{folder / path}: not the file that manifest.json lists; {_AGAIN}")
    return data


def _of_safetensors(data: bytes, where: Path) -> tuple[dict[str, np.ndarray], bytes]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    header = _parse_json(data[8:8 + int.from_bytes(data[:8], "little")], str(where))
    try:
        arrays = load(data)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a safetensors file: {error}; {_AGAIN}") from error
    return arrays, (header.get("__metadata__") or {}).get("manifest", "{}").encode()


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


def _of_h5(data: bytes, where: Path) -> tuple[dict[str, np.ndarray], bytes]:
    """The HDF5 library can read beyond its buffers where metadata is forged, so another process reads the file first, which must
    survive."""
    try:
        import h5py  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{where}: h5py reads HDF5; pip install h5py, or convert the set to one .safetensors file") from error
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
    manifest = arrays.pop("manifest", np.frombuffer(b"{}", np.uint8)).tobytes()
    return {name.replace("/", "."): array for name, array in arrays.items()}, manifest


_FORMATS = {".safetensors": _of_safetensors, ".h5": _of_h5}


def _arrays_of(data: bytes, where: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays by name ("layers.0.key.rotation") of a .safetensors or .h5 file, and the manifest in it, empty if it has none. Raises
    ValueError for other files, ImportError if h5py is needed and not there."""
    if where.suffix not in _FORMATS:
        raise ValueError(f"{where}: not a folder, .safetensors or .h5; `oscar convert` makes them")
    arrays, manifest = _FORMATS[where.suffix](data, where)
    return arrays, _parse_json(manifest, f"{where}, manifest")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_ratio(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # NaN is not


def member(json: Any, *names: str) -> Any:
    for name in names:
        json = json.get(name) if isinstance(json, dict) else None
    return json


def _refuse_if(where: str, *checks: tuple[bool, str]) -> None:
    for is_wrong, text in checks:
        if is_wrong:
            raise ValueError(f"{where}: {text}; {_AGAIN}, and ask `oscar verify`")


def _has_no_coded(where: str, reader: str) -> ValueError:
    return ValueError(f"{where}: the set has no coded part, which is what {reader} reads: fit one by oscar fit --model … --for vllm,transformers; "
                      "rotations are for SGLang and llama.cpp")


def check_served(part: SetPart, reader: str) -> None:
    """Raises ValueError for rotations, which nothing in this package serves."""
    if part.codec is not None:
        raise _has_no_coded(f"part {part.name}", reader)


def _part_for(manifest: dict[str, Any], reader: str, where: str) -> str:
    """The name of the part that the reader reads (lib/set/readers.cpp decides it when a set is written, and `oscar pull` and `oscar verify`
    whether it was decided so), after what all parts share was checked."""
    parts, readers, windows = (manifest.get(name) for name in ("parts", "readers", "windows"))
    _refuse_if(
        where,
        (manifest.get("schema") != _SCHEMA, f"schema is {manifest.get('schema')!a}, not \"{_SCHEMA}\""),
        (not all(_is_count(member(manifest, "model", each)) for each in _MODEL_COUNTS), f"the model has no {', '.join(_MODEL_COUNTS)}"),
        (not all(_is_count(member(windows, each)) for each in ("sink", "recent")), "windows are no counts"),
        (not isinstance(readers, dict), "no readers"),
        (not isinstance(parts, dict) or not parts or not set(parts) <= set(_FILES), "no parts, or some that are not known"))
    name = readers.get(reader)
    if reader in _READ_CODED and "coded" not in parts:
        raise _has_no_coded(where, reader)
    _refuse_if(where, (reader in _READ_CODED and name not in (None, "coded"), f"{reader} is to read the part {name!a}, which it cannot"))
    if name is None:
        raise ValueError(f"{where}: the set has no part for {reader}, but for {', '.join(map(ascii, readers))}; fit it with --for {reader}")
    _refuse_if(where, (name not in list(parts), f"{reader} is to read the part {name!a}, and there are {', '.join(parts)}"))
    return name


def _check_verdict(manifest: dict[str, Any], name: str, reader: str, allow_rejected: bool, where: Path) -> None:
    """Raises ValueError for a part that `oscar verify` rejected, unless that is allowed, and warns of one that it did not accept."""
    said = member(manifest, "verification", "readers", reader)
    verdict = member(said, "verdict")
    if verdict == "rejected" and not allow_rejected:
        raise ValueError(f"{where}: oscar verify rejected the part {name}, which {reader} reads; fit the set again, with more text or bits, or "
                         "allow it: allow_rejected=True, for vLLM OSCAR_KV_ALLOW_REJECTED=1")
    if verdict != "accepted" or member(said, "part") != name:
        _log.warning("oscar_kv: %s: the part %s, which %s reads, was %s by oscar verify", where, name, reader,
                     "rejected" if verdict == "rejected" else "not measured")


def _codec_and_layers(part: Any, is_coded: bool, where: str) -> tuple[Int2Codec | None, list[dict[str, Any]]]:
    """Of a part of the manifest, layers by ascending id."""
    codec, layers = member(part, "codec"), member(part, "layers")
    name, levels, group_size, scales = (member(codec, each) for each in ("name", "levels", "group_size", "scale_dtype"))
    _refuse_if(where, (not isinstance(layers, list) or not layers, "no layers"), *(((name != "coded", "the codec is not coded"),) if is_coded else (
        (name not in _GRIDS, f"codec {name!a} is not known; known are {', '.join(_GRIDS)}"),
        (levels != [4, 4], f"levels are {levels!a}, not [4, 4]"),
        (not _is_count(group_size), "the codec's group_size is no count"),
        (scales not in _SCALES, "the codec's scale_dtype is not known"))))
    ids = [member(layer, "layer_id") for layer in layers]
    _refuse_if(where, (not all(map(_is_count, ids)), "a layer_id is no count"), (len(set(map(str, ids))) < len(ids), "a layer_id comes twice"))
    return None if is_coded else Int2Codec(name, group_size, scales), sorted(layers, key=lambda layer: layer["layer_id"])


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


def _check_formats(side: Side, described: Any, where: str) -> None:
    """Of a side of the coded cache, against what the manifest says of it."""
    formats = side.levels, side.step, side.sigma
    _refuse_if(where, (any(x.shape != side.rotation.shape[:2] for x in formats), "formats of another shape than the matrices"))
    try:
        sizes = [_format_bytes(*of_head) for of_head in zip(*formats)]
    except ValueError as error:
        raise ValueError(f"{where}: {error}; {_AGAIN}") from error
    bits, said = 8 * sum(sizes) / side.levels.size, member(described, "bits")
    for name, found in (("row_bytes", sizes), ("most_levels", side.levels.max(1).tolist())):
        _refuse_if(where, (member(described, name) != found, f"{name} are {found}, and the manifest says {member(described, name)!a}"))
    _refuse_if(where, (type(said) not in (int, float) or abs(said - bits) > 1e-6 * bits, f"bits are {bits}, and the manifest says {said!a}"))


def _error_of_inverse(write: np.ndarray, read: np.ndarray) -> float:
    """How far reading is from undoing writing, relative to the lengths of the rows that meet, as `oscar verify` has it."""
    lengths = np.linalg.norm(write, axis=2)[:, :, None] * np.linalg.norm(read, axis=2)[:, None, :]
    return float(np.abs((write @ read.swapaxes(1, 2) - np.eye(write.shape[2])) / lengths).max())


def _read_side(write: np.ndarray, where: str) -> np.ndarray:
    """Of the coded cache: write^-T in float64, rounded to float32, as lib/set/coded_part.hpp has it."""
    try:
        with np.errstate(over="ignore"):
            read = np.linalg.inv(write.astype(np.float64)).swapaxes(1, 2).astype(np.float32)
    except np.linalg.LinAlgError:
        read = np.full_like(write, np.nan)
    _refuse_if(where, (not np.isfinite(read).all(), "a matrix has no inverse"))
    return read


def _clip_ratios(described: Any, of_heads: np.ndarray | None, where: str) -> np.ndarray | None:
    """As Side has them. described: a side in the manifest."""
    ratio, said = member(described, "clip_ratio"), member(described, "clip_ratio_per_head") or []
    is_said = isinstance(described, dict) and "clip_ratio" in described and (ratio is None or _is_ratio(ratio))
    _refuse_if(where, (not is_said or not isinstance(said, list) or not all(map(_is_ratio, said)), "no clip ratios, or not between 0 and 1"))
    if of_heads is None and not said:
        return None if ratio is None else np.array([ratio], float)
    _refuse_if(where, (of_heads is None or of_heads.shape != (len(said),) or not np.allclose(of_heads, said, rtol=1e-6, atol=0),
                       "clip ratios differ from the manifest's"))
    return of_heads


def _rotary_of(part: Any, layer: dict[str, Any], where: str) -> Rotary | None:
    """How keys of a layer turn that are stored before RoPE."""
    number, listed = member(layer.get("key"), "rotary"), member(part, "rotary")
    if number is None:
        return None
    _refuse_if(where, (not _is_count(number) or not isinstance(listed, list) or number >= len(listed), "keys turn in a way that is not listed"))
    try:
        rotary = Rotary(**listed[number])
        channels = [channel for pair in rotary.pairs for channel in pair]
        fits = all(map(_is_count, channels)) and sorted(channels) == list(range(2 * len(rotary.frequency)))
        fits &= all(len(pair) == 2 for pair in rotary.pairs) and _is_count(rotary.near_context)
        fits &= all(abs(f) <= _MOST_FLOAT for f in [*rotary.frequency, *(rotary.far_frequency or [])])
        fits &= (rotary.far_frequency is None) == (rotary.near_context == 0)
        fits &= rotary.far_frequency is None or len(rotary.far_frequency) == len(rotary.frequency)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: what the manifest says of rotary embeddings is malformed; {_AGAIN}") from error
    _refuse_if(where, (not fits, "pairs of channels that turn are not all channels once"))
    return rotary


def _of_pairs(entries: Any, pair: Any, rotary: Rotary, where: str) -> np.ndarray:
    """Matrices (KV heads, d, d) of which (KV heads, d, 2) are the entries of each coordinate's pair of channels."""
    dim = 2 * len(rotary.pairs)
    fits = all(x is not None and x.ndim == 3 - is_pair and x.shape[1] == dim for x, is_pair in ((entries, False), (pair, True)))
    _refuse_if(where, (not fits or entries.shape[2] != 2 or len(entries) != len(pair) or pair.dtype != np.int32
                       or (np.sort(pair) != np.repeat(np.arange(dim // 2), 2)).any(), "entries of pairs of channels are missing, or of other pairs"))
    out = np.zeros((len(entries), dim, dim), entries.dtype)
    np.put_along_axis(out, np.array(rotary.pairs)[pair].swapaxes(1, 2), entries.swapaxes(1, 2), 1)
    return out


def _side(arrays: dict[str, np.ndarray], layer: dict[str, Any], name: str, codec: Int2Codec | None, where: str,
          rotary: Rotary | None = None) -> Side:
    """Takes its arrays away. layer: as the manifest describes it."""
    prefix = f"layers.{layer['layer_id']}.{name}."
    where, said_dim = f"{where}, {prefix[:-1]}", layer.get("head_dim" if name == "key" else "value_dim")

    def take(*names: str) -> list[Any]:
        return [arrays.pop(prefix + each, None) for each in names]

    if codec is None:
        write, mean, *formats = take("write", "mean", "levels", "step", "sigma")
        if rotary is not None:
            pair, = take("pair")
            write = _of_pairs(write, pair, rotary, where)
        clips, numbers = None, [write, *([mean] if name == "key" else []), *formats[1:]]
        _refuse_if(where, (any(x is None or x.dtype != np.float32 for x in numbers) or formats[0] is None or formats[0].dtype != np.int32
                           or (name == "value" and mean is not None), "tensors are missing, or of other types"))
    else:
        write, read, mean, clips = take("rotation", "q_rotation" if name == "key" else "o_rotation", "mean", "clip_ratio_per_head")
        take("eigenvalues", "covariance", "query_covariance")
        write, read, formats = *(x[None] if x is not None and x.ndim == 2 else x for x in (write, read if read is not None else write)), []
        numbers = [write, read, mean, clips]
    _refuse_if(where, (write is None or write.ndim != 3 or write.shape[1] != write.shape[2] or 0 in write.shape,
                       f"no square matrices{'' if write is None else f', but {write.shape}'}"))
    dim, group_size = write.shape[2], 0 if codec is None else codec.group_size
    _refuse_if(
        where,
        (codec is not None and read.shape != write.shape, "reading and writing matrices have different shapes"),
        (mean is not None and (mean.ndim != 2 or mean.shape[1] != dim), "means of another shape"),
        (not all(x.dtype.kind == "f" and np.isfinite(x).all() for x in numbers if x is not None), "numbers that are not finite"),
        (dim != said_dim and (name == "key" or codec is None), f"matrices of {dim} where the manifest says {said_dim!a}"),
        (group_size > 0 and dim % group_size != 0, f"groups of {group_size} channels do not divide {dim}"))
    if codec is None:
        read = _read_side(write, where)
    else:
        _refuse_if(where, (not _error_of_inverse(np.asarray(write, float), np.asarray(read, float)) <= 1e-5, "reading does not undo writing"))
    side = Side(write, read, mean, None if codec is None else _clip_ratios(layer.get(name), clips, where), *formats)
    side = side if rotary is None else replace(side, rotary=rotary)
    if codec is None:
        _check_formats(side, layer.get(name), where)
    return side


def read_set(path: str | os.PathLike[str], reader: str = "transformers", allow_rejected: bool = False) -> SetPart:
    """What `reader` (vllm, transformers, sglang, sglang-v1 or llamacpp) reads of a set's folder, or of one `.safetensors` or `.h5` file
    that `oscar convert` made of a part. A part that `oscar verify` did not accept is warned of.

    Raises ValueError if it is something else, changed since it was written, says two things, has nothing for this reader, or was rejected
    by `oscar verify` and allow_rejected is not given; ImportError if it needs h5py.
    """
    place = path = Path(path)
    if path.is_dir():
        place = path / "manifest.json"
        if not place.is_file():
            raise ValueError(f"{path}: no manifest.json, so this is not a set; `oscar inspect` says what it is")
        manifest = _parse_json(_read_file(place, _MOST_BYTES_OF_TEXT), str(place))
    elif path.exists():
        arrays, manifest = _arrays_of(_read_file(path), path)
    else:
        raise ValueError(f"{path}: there is no such file or folder; name the folder of a set")
    name = _part_for(manifest, reader, str(place))
    _check_verdict(manifest, name, reader, allow_rejected, path)
    codec, described = _codec_and_layers(manifest["parts"][name], name == "coded", f"{place}, part {name}")
    if path.is_dir():
        place = path / _FILES[name]
        arrays, _ = _arrays_of(_read_listed(path, manifest, _FILES[name]), place)
    layers = {}
    for each in described:
        rotary = _rotary_of(manifest["parts"][name], each, str(place)) if codec is None else None
        layers[each["layer_id"]] = Layer(each["layer_id"], _side(arrays, each, "key", codec, str(place), rotary),
                                         _side(arrays, each, "value", codec, str(place)))
    count, _, heads, dim = (manifest["model"][each] for each in _MODEL_COUNTS)
    for layer in layers.values():
        for side, own in ((layer.key, dim), (layer.value, manifest["model"].get("value_dim") or dim)):
            found = side.rotation.shape
            _refuse_if(str(place), (0 < count <= layer.layer_id or own not in (0, found[2]) or heads not in (0, found[0]) and (codec is None or found[0] > 1),
                                    f"layer {layer.layer_id} has matrices {found}, and the manifest says {count} layers of {heads} heads of {own}"))
    if name == "coded":
        sides = [(each[side]["bits"], getattr(layers[each["layer_id"]], side).levels.size) for each in described for side in ("key", "value")]
        taken = float(np.average([bits for bits, _ in sides], weights=[size for _, size in sides]))
        said = member(manifest["parts"], "coded", "codec", "bits")
        _refuse_if(str(place), (type(said) not in (int, float) or abs(said - taken) > 1e-5 * taken, f"rows take {taken} bits, and the manifest says {said!a}"))
    if arrays:
        raise ValueError(f"{place}: has {', '.join(sorted(arrays))!a}, of which the manifest does not know; {_AGAIN}")
    windows = manifest["windows"]
    return SetPart(layers, (windows["sink"], windows["recent"]), codec, name, manifest)
