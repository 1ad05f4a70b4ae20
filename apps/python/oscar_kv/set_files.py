# SPDX-License-Identifier: MIT
"""The files of a rotation set, which somebody else may have written: what rotation_set.py reads goes through here.

Bytes are read once, compared with manifest.json, and parsed from memory: what was checked is what is used. Texts that readers
could understand in two ways are refused. The program checks the same (lib/base/json.hpp, lib/rotation/manifest.hpp).
"""
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from .set_h5 import read_h5

_MOST_BYTES_OF_TEXT = 8 << 20  # kMaxDocumentBytes
_AGAIN = "fetch or fit the set again"


def parse_json(text: bytes, where: str) -> dict[str, Any]:
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


def read_file(path: Path, most: int | None = None) -> bytes:
    """Of a regular file of no more than `most` bytes. Raises ValueError for pipes, devices and larger files, OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path}: not a regular file")
        if most is not None and found.st_size > most:
            raise ValueError(f"{path}: more than {most} bytes")
        return file.read(found.st_size)


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    return parse_json(read_file(path, _MOST_BYTES_OF_TEXT), str(path))


def _is_plain(path: Any) -> bool:
    return isinstance(path, str) and path.isprintable() and "\\" not in path and path != "manifest.json" and \
        all(part not in ("", ".", "..") for part in path.split("/"))


def read_listed(folder: Path, manifest: dict[str, Any], wanted: tuple[str, ...]) -> tuple[str, bytes]:
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
            data = read_file(folder / name, size) if type(size) is int and size >= 0 else b""
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

    header = parse_json(data[8:8 + int.from_bytes(data[:8], "little")], str(where))
    try:
        arrays = load(data)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a safetensors file: {error}; {_AGAIN}") from error
    manifest = (header.get("__metadata__") or {}).get("manifest")
    return arrays, None if manifest is None else manifest.encode()


def _of_h5(data: bytes, where: Path) -> tuple[dict[str, np.ndarray], bytes | None]:
    arrays = read_h5(data, where)
    manifest = arrays.pop("manifest", None)
    return {name.replace("/", "."): array for name, array in arrays.items()}, \
        None if manifest is None else manifest.tobytes()


_READERS = {".safetensors": _of_safetensors, ".h5": _of_h5}
MATRICES = tuple("rotations" + suffix for suffix in _READERS)  # of a set's folder; the first that is listed is read


def arrays_of(data: bytes, where: Path) -> tuple[dict[str, np.ndarray], dict[str, Any] | None]:
    """Arrays by name ("layers.0.key.rotation") of a .safetensors or .h5 file, and the manifest in it, if it has one. Raises
    ValueError for other files, ImportError if h5py is needed and not there."""
    if where.suffix not in _READERS:
        raise ValueError(f"{where}: not a folder, .safetensors or .h5; `oscar convert` makes them")
    arrays, manifest = _READERS[where.suffix](data, where)
    return arrays, None if manifest is None else parse_json(manifest, f"{where}, manifest")
