# SPDX-License-Identifier: MIT
"""What must be true of a rotation set before anything is computed with it, and of a set and a model: one wrong number here
would be served without a word. Each function raises ValueError that says what is wrong and what to do. Non-goals: whether the
set is any good (`oscar verify`).
"""
from typing import Any

import numpy as np

_SCHEMA, CODED_SCHEMA = "oscar.rotation_set.v1", "oscar.rotation_set.v2"
_CODECS, _SCALES, _MOST_LEVELS = ("minmax", "lsq", "lloyd-max"), ("float32", "float16", "bfloat16"), 256
_MOST = 2**31 - 1


def _is_count(value: Any, least: int = 0, most: int = _MOST) -> bool:
    return type(value) is int and least <= value <= most


def _is_ratio(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # NaN is not


def _member(json: Any, *names: str) -> Any:
    for name in names:
        json = json.get(name) if isinstance(json, dict) else None
    return json


def _refuse_if(where: str, *checks: tuple[bool, str]) -> None:
    for is_wrong, text in checks:
        if is_wrong:
            raise ValueError(f"{where}: {text}; fetch or fit the set again, and ask `oscar verify`")


def _are_levels(levels: Any, codec: Any) -> bool:
    if codec == "lloyd-max":
        return levels == [4, 4]
    return isinstance(levels, list) and len(levels) == 2 and all(_is_count(n, 2, _MOST_LEVELS) for n in levels)


def _has_ratios(side: Any) -> bool:
    if not isinstance(side, dict) or "clip_ratio" not in side:
        return False
    ratio, of_heads = side["clip_ratio"], side.get("clip_ratio_per_head", [])
    return (ratio is None or _is_ratio(ratio)) and isinstance(of_heads, list) and all(map(_is_ratio, of_heads))


def check_manifest(manifest: dict[str, Any], where: str) -> None:
    """What readers of matrices take from a manifest, as in schemas/oscar.rotation_set.v1.schema.json."""
    codec, windows, layers = (manifest.get(name) for name in ("codec", "windows", "layers"))
    name, levels = _member(codec, "name"), _member(codec, "levels")
    _refuse_if(
        where,
        (manifest.get("schema") != _SCHEMA, f"schema is {manifest.get('schema')!a}, not \"{_SCHEMA}\""),
        (not isinstance(manifest.get("model"), dict), "no model"),
        (name not in _CODECS, f"codec {name!a} is not known; known are {', '.join(_CODECS)}"),
        (not _are_levels(levels, name), f"levels {levels!a} are not those of {name}"),
        (not _is_count(_member(codec, "group_size")), "the codec's group_size is no count"),
        (isinstance(codec, dict) and codec.get("scale_dtype", "float32") not in _SCALES, "the codec's scale_dtype is not known"),
        (not all(_is_count(_member(windows, each)) for each in ("sink", "recent")), "windows are no counts"),
        (not isinstance(layers, list) or not layers, "no layers"))
    _check_layer_ids(layers, where)
    for layer in layers:
        for side in ("key", "value"):
            _refuse_if(f"{where}, layer {layer['layer_id']}, {side}",
                       (not _has_ratios(layer.get(side)), "no clip ratios, or not between 0 and 1"))


def _check_layer_ids(layers: list[Any], where: str) -> None:
    ids = [_member(layer, "layer_id") for layer in layers]
    _refuse_if(where, (not all(map(_is_count, ids)), "a layer_id is no count"),
               (len(set(map(str, ids))) < len(ids), "a layer_id comes twice"))


def check_coded_manifest(manifest: dict[str, Any], where: str) -> None:
    """The same of a coded cache, as in schemas/oscar.rotation_set.v2.schema.json."""
    windows, layers = manifest.get("windows"), manifest.get("layers")
    _refuse_if(
        where,
        (not isinstance(manifest.get("model"), dict), "no model"),
        (_member(manifest, "codec", "name") != "coded", "the codec is not coded"),
        (not all(_is_count(_member(windows, each)) for each in ("sink", "recent")), "windows are no counts"),
        (not isinstance(layers, list) or not layers, "no layers"))
    _check_layer_ids(layers or [], where)
    for layer in layers or []:
        for side in ("key", "value"):
            sizes = _member(layer, side, "row_bytes")
            _refuse_if(f"{where}, layer {layer['layer_id']}, {side}",
                       (not isinstance(sizes, list) or not all(map(_is_count, sizes)), "bytes of rows are no counts"))


def format_bytes(levels: np.ndarray, step: np.ndarray, sigma: np.ndarray) -> int:
    """Bytes of a packed row of one KV head of a coded cache, whose format these are, (d) each. Raises ValueError unless levels are
    powers of two from 256 down to 1, equal in blocks of 8, and steps and sigmas of stored channels are positive."""
    blocks, stored = levels.reshape(-1, 8) if len(levels) % 8 == 0 else levels[:0, None], levels > 1
    if not len(blocks) or (blocks != blocks[:, :1]).any() or (np.diff(levels) > 0).any() or not set(levels.tolist()) <= {
            2**bits for bits in range(9)}:
        raise ValueError("levels are no powers of two from 256 down to 1, equal in blocks of 8 channels")
    if not all(np.isfinite(x).all() and (x[stored] > 0).all() for x in (step, sigma)):
        raise ValueError("steps or sigmas of stored channels are not positive")
    return sum(int(count).bit_length() - 1 for count in blocks[:, 0].tolist()) + 2


def check_coded_side(arrays: dict[str, Any], described: dict[str, Any], where: str) -> None:
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
        sizes = [format_bytes(*of_head) for of_head in zip(*formats)]
    except ValueError as error:
        raise ValueError(f"{where}: {error}; fetch or fit the set again") from error
    _refuse_if(where, (sizes != described["row_bytes"], f"rows take {sizes} bytes, and the manifest says {described['row_bytes']}"))


def check_layer(layer: Any, described: dict[str, Any], group_size: int, where: str) -> None:
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
