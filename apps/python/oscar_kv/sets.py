# SPDX-License-Identifier: MIT
"""The coded part of a set (schemas/oscar.set.v1.schema.json), as arrays: the one reader of sets in Python.

Row vectors. Keys: k' = (k - mean) rotation, q' = q read_rotation. Values: v' = v rotation, o = o' read_rotation^T.

Somebody else may have written a set, and one wrong number in it would be served without a word. So the part's file is read once, compared
with manifest.json, and parsed from memory: what was checked is what is used. Texts that readers could understand in two ways are
refused. Functions raise ValueError that says what is wrong and what to do. Non-goals: whether a set is any good, and files that are not read
(`oscar verify`), parts with rotations, whose files SGLang and llama.cpp read themselves.
"""
import hashlib
import json
import logging
import os
import re
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

_SCHEMA = "oscar.set.v1"
_FILE, _PARTS = "coded.safetensors", {"coded", "with_means", "rotations"}
# What a folder can list; the last are for people (lib/set/one_truth.cpp).
_LISTED = re.compile(r"coded\.safetensors|(with_means/)?(rotations\.h5|serve\.env|k_mean\.pt|[kv]_rotation_\w+\.pt|[kv]_clip_per_(layer|head)\.json|"
                     r"layer_\d+\.pt)|.*(LICENSE|\.md|\.txt)", re.ASCII)
_READERS = "vllm", "transformers"
_MODEL_COUNTS = "num_layers", "num_attention_heads", "num_key_value_heads", "head_dim"  # 0: not known
_MOST_BYTES_OF_TEXT = 8 << 20  # kMaxDocumentBytes
_AGAIN = "fetch or fit the set again"
_STORED_KEYS = 2**-9, 256  # fast_frequency and turn_block of a Rotary, which kernels/rotary.hpp has, too
_MOST_FLOAT = float(np.finfo(np.float32).max)
_log = logging.getLogger("oscar_kv")


@dataclass(frozen=True)
class Side:
    """How the keys, or the values, of a layer are coded. Arrays are numpy arrays, or torch tensors after SetPart.to_torch()."""

    rotation: Any  # float32 (KV heads, d, d)
    read_rotation: Any  # of that shape: what undoes it
    mean: Any | None  # float32 (KV heads, d), subtracted from keys; None: nothing is
    levels: Any  # int32 (KV heads, d)
    step: Any  # float32, of that shape: distance of two levels, and root mean square of the channel
    sigma: Any
    rotary: "Rotary | None" = None  # of keys that are stored before RoPE, whose matrices are block diagonal over pairs


@dataclass(frozen=True)
class Rotary:
    """How keys turn: the channels (x, y) of pair p become (x cos(f j) - y sin(f j), x sin(f j) + y cos(f j)) at position j, f = frequency[p],
    or far_frequency[p] in texts of more than near_context tokens. Where either is larger than fast_frequency a key is stored as it stands but
    for its mean, which turns; else turned back, mean and all, by the middle of the turn_block positions that it is among."""

    pairs: list[list[int]]
    frequency: list[float]
    fast_frequency: float
    turn_block: int = 0
    far_frequency: list[float] | None = None
    near_context: int = 0


@dataclass(frozen=True)
class Layer:
    layer_id: int
    key: Side
    value: Side


@dataclass(frozen=True, eq=False)
class SetPart:
    """The coded part. layers: by layer id, ascending, possibly sparse. windows: first and last tokens that stay as they are, (sink, recent)."""

    layers: dict[int, Layer]
    windows: tuple[int, int]
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


def _read_file(path: Path, most: int) -> bytes:
    """Of a regular file of no more than `most` bytes. Raises ValueError for pipes, devices and larger files, OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path}: not a regular file")
        if found.st_size > most:
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
        raise ValueError(f"{said}: does not list {path}; {_AGAIN}")
    for found in folder.rglob("*"):
        if found.is_symlink():
            raise ValueError(f"{str(found)!a}: a link; copy the set without links (cp -rL)")
        if not (found.is_dir() or found.relative_to(folder).as_posix() in (*names, "manifest.json", "signature.json")):
            raise ValueError(f"{str(found)!a}: manifest.json does not list this file; take it away, or fetch the set by oscar pull")
    size, sha256 = (listed[names.index(path)].get(name) for name in ("size", "sha256"))
    try:
        data = _read_file(folder / path, size) if type(size) is int and size >= 0 else b""
    except (OSError, ValueError):
        data = b""
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{folder / path}: not the file that manifest.json lists; {_AGAIN}")
    return data


def _arrays_of(data: bytes, where: Path) -> dict[str, np.ndarray]:
    """Arrays of a safetensors file by name ("layers.0.key.write")."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    _parse_json(data[8:8 + int.from_bytes(data[:8], "little")], str(where))
    try:
        return load(data)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a safetensors file: {error}; {_AGAIN}") from error


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def member(json: Any, *names: str) -> Any:
    for name in names:
        json = json.get(name) if isinstance(json, dict) else None
    return json


def _refuse_if(where: str, *checks: tuple[bool, str]) -> None:
    for is_wrong, text in checks:
        if is_wrong:
            raise ValueError(f"{where}: {text}; {_AGAIN}, and ask `oscar verify`")


def _check_shared(manifest: dict[str, Any], reader: str, where: str) -> None:
    """What all parts share, and that the reader reads the coded one (lib/set/readers.cpp decides it when a set is written, and `oscar pull`
    and `oscar verify` whether it was decided so)."""
    parts, readers, windows = (manifest.get(name) for name in ("parts", "readers", "windows"))
    _refuse_if(
        where,
        (manifest.get("schema") != _SCHEMA, f"schema is {manifest.get('schema')!a}, not \"{_SCHEMA}\""),
        (not all(_is_count(member(manifest, "model", each)) for each in _MODEL_COUNTS), f"the model has no {', '.join(_MODEL_COUNTS)}"),
        (not all(_is_count(member(windows, each)) for each in ("sink", "recent")), "windows are no counts"),
        (not isinstance(readers, dict), "no readers"),
        (not isinstance(parts, dict) or not parts or not set(parts) <= _PARTS, "no parts, or some that are not known"))
    if "coded" not in parts:
        raise ValueError(f"{where}: the set has no coded part, which is what {reader} reads: fit one by oscar fit --model … --for vllm,transformers; "
                         "rotations are for SGLang and llama.cpp")
    name = readers.get(reader)
    if name is None:
        raise ValueError(f"{where}: the set has no part for {reader}, but for {', '.join(map(ascii, readers))}; fit it with --for {reader}")
    _refuse_if(where, (name != "coded", f"{reader} is to read the part {name!a}, which it cannot"))


def _check_verdict(manifest: dict[str, Any], reader: str, allow_rejected: bool, where: Path) -> None:
    """Raises ValueError for a part that `oscar verify` rejected, unless that is allowed, and warns of one that it did not accept."""
    said = member(manifest, "verification", "readers", reader)
    verdict = member(said, "verdict")
    if verdict == "rejected" and not allow_rejected:
        raise ValueError(f"{where}: oscar verify rejected the part coded, which {reader} reads; fit the set again, with more text or bits, or "
                         "allow it: allow_rejected=True, for vLLM OSCAR_KV_ALLOW_REJECTED=1")
    if verdict != "accepted" or member(said, "part") != "coded":
        _log.warning("oscar_kv: %s: the part coded, which %s reads, was %s by oscar verify", where, reader, "rejected" if verdict == "rejected" else "not measured")


def _layers_of(part: Any, where: str) -> list[dict[str, Any]]:
    """What the manifest says of layers, by ascending id."""
    layers = member(part, "layers")
    _refuse_if(where, (not isinstance(layers, list) or not layers, "no layers"), (member(part, "codec", "name") != "coded", "the codec is not coded"))
    ids = [member(layer, "layer_id") for layer in layers]
    _refuse_if(where, (not all(map(_is_count, ids)), "a layer_id is no count"), (len(set(map(str, ids))) < len(ids), "a layer_id comes twice"))
    return sorted(layers, key=lambda layer: layer["layer_id"])


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


def _inverse(matrices: np.ndarray) -> np.ndarray:
    """Of (any, d, d), in float64; not finite where there is none. By Gauss and Jordan with partial pivoting in one thread: numpy.linalg asks all
    processors for each small matrix, and servers that start on one machine at the same time then wait minutes for each other."""
    a, all_of_them = matrices.astype(np.float64), np.arange(len(matrices))
    rows = np.tile(np.arange(a.shape[1]), (len(a), 1))  # which row of the matrix stands in each
    for k in range(a.shape[1]):
        best = k + np.abs(a[:, k:, k]).argmax(1)
        for x in (a, rows):
            x[all_of_them, k], x[all_of_them, best] = x[all_of_them, best], x[all_of_them, k].copy()
        factor, row = a[:, :, k].copy(), a[:, k] / a[:, k, k, None]
        row[:, k], factor[:, k], a[:, :, k] = 1 / a[:, k, k], 0, 0
        a -= factor[:, :, None] * row[:, None]
        a[:, k] = row
    out = np.empty_like(a)
    np.put_along_axis(out, np.broadcast_to(rows[:, None], a.shape), a, 2)
    return out


def _read_side(write: np.ndarray, where: str) -> np.ndarray:
    """write^-T in float64, rounded to float32, as lib/set/coded_part.hpp has it."""
    with np.errstate(all="ignore"):
        read = _inverse(write).swapaxes(1, 2).astype(np.float32)
    _refuse_if(where, (not np.isfinite(read).all(), "a matrix has no inverse"))
    return read


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
    _refuse_if(where, (not fits, "pairs of channels that turn are not all channels once"),
               ((rotary.fast_frequency, rotary.turn_block) != _STORED_KEYS, "other parts of keys before RoPE are stored than here"))
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


def _side(arrays: dict[str, np.ndarray], layer: dict[str, Any], name: str, where: str, rotary: Rotary | None = None) -> Side:
    """Takes its arrays away. layer: as the manifest describes it."""
    prefix = f"layers.{layer['layer_id']}.{name}."
    where, said_dim = f"{where}, {prefix[:-1]}", layer.get("head_dim" if name == "key" else "value_dim")
    write, mean, levels, step, sigma = (arrays.pop(prefix + each, None) for each in ("write", "mean", "levels", "step", "sigma"))
    if rotary is not None:
        write = _of_pairs(write, arrays.pop(prefix + "pair", None), rotary, where)
    numbers = [write, *([mean] if name == "key" else []), step, sigma]
    _refuse_if(where, (any(x is None or x.dtype != np.float32 for x in numbers) or levels is None or levels.dtype != np.int32
                       or (name == "value" and mean is not None), "tensors are missing, or of other types"))
    _refuse_if(where, (write.ndim != 3 or write.shape[1] != write.shape[2] or 0 in write.shape, f"no square matrices, but {write.shape}"))
    dim = write.shape[2]
    _refuse_if(
        where,
        (mean is not None and (mean.ndim != 2 or mean.shape[1] != dim), "means of another shape"),
        (not all(np.isfinite(x).all() for x in numbers), "numbers that are not finite"),
        (dim != said_dim, f"matrices of {dim} where the manifest says {said_dim!a}"))
    side = Side(write, _read_side(write, where), mean, levels, step, sigma, rotary)
    _check_formats(side, layer.get(name), where)
    return side


def read_set(path: str | os.PathLike[str], reader: str = "transformers", allow_rejected: bool = False) -> SetPart:
    """The coded part of a set's folder, for `reader` (vllm or transformers). A part that `oscar verify` did not accept is warned of.

    Raises ValueError if it is something else, changed since it was written, says two things, has nothing for this reader, or was rejected
    by `oscar verify` and allow_rejected is not given.
    """
    path = Path(path)
    if reader not in _READERS:
        raise ValueError(f"{reader!a} does not read the coded part; give {' or '.join(_READERS)}: rotations are read by SGLang and llama.cpp themselves")
    place = path / "manifest.json"
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder; name the folder of a set")
    if not place.is_file():
        raise ValueError(f"{path}: no manifest.json, so this is not a set; `oscar inspect` says what it is")
    manifest = _parse_json(_read_file(place, _MOST_BYTES_OF_TEXT), str(place))
    _check_shared(manifest, reader, str(place))
    _check_verdict(manifest, reader, allow_rejected, path)
    part = manifest["parts"]["coded"]
    described = _layers_of(part, f"{place}, part coded")
    place = path / _FILE
    arrays, layers = _arrays_of(_read_listed(path, manifest, _FILE), place), {}
    for each in described:
        layers[each["layer_id"]] = Layer(each["layer_id"], _side(arrays, each, "key", str(place), _rotary_of(part, each, str(place))),
                                         _side(arrays, each, "value", str(place)))
    count, _, heads, dim = (manifest["model"][each] for each in _MODEL_COUNTS)
    for layer in layers.values():
        for side, own in ((layer.key, dim), (layer.value, manifest["model"].get("value_dim") or dim)):
            found = side.rotation.shape
            _refuse_if(str(place), (0 < count <= layer.layer_id or own not in (0, found[2]) or heads not in (0, found[0]),
                                    f"layer {layer.layer_id} has matrices {found}, and the manifest says {count} layers of {heads} heads of {own}"))
    sides = [(each[side]["bits"], getattr(layers[each["layer_id"]], side).levels.size) for each in described for side in ("key", "value")]
    taken = float(np.average([bits for bits, _ in sides], weights=[size for _, size in sides]))
    said = member(part, "codec", "bits")
    _refuse_if(str(place), (type(said) not in (int, float) or abs(said - taken) > 1e-5 * taken, f"rows take {taken} bits, and the manifest says {said!a}"))
    if arrays:
        raise ValueError(f"{place}: has {', '.join(sorted(arrays))!a}, of which the manifest does not know; {_AGAIN}")
    windows = manifest["windows"]
    return SetPart(layers, (windows["sink"], windows["recent"]), manifest)
