# SPDX-License-Identifier: MIT
"""Which model, and which text, rows are of, told as `oscar dump` tells it: for tap.py, server.py and rows.py."""
import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .program import run

_BLOCK_TOKENS, _BLOCK_DIGITS = 128, 16  # as CalibrationData in lib/model/config/identity.hpp


def cache_layers(config: Any, described: dict[str, Any] | None = None) -> list[int]:
    """The layers whose cache grows with the whole text; where all are limited, all that have one. described: by describe_model(),
    which knows them of a family that the program knows."""
    count = config.num_hidden_layers
    if described and "head_dim" in described:
        return described.get("cache_layers") or list(range(count))
    types = getattr(config, "layer_types", None) or ["full_attention"] * count
    count -= getattr(config, "num_kv_shared_layers", None) or 0  # the last, which read the cache of others
    growing = [i for i in range(count) if types[i] == "full_attention"]
    return growing or [i for i in range(count) if types[i].endswith("_attention") and "linear" not in types[i]]


def _folder_of(config: Any) -> Path | None:
    """Where the config.json of a transformers config lies; None if that is not on this machine."""
    name = getattr(config, "_name_or_path", None)
    if not name or Path(name, "config.json").is_file():  # a model that transformers read from a GGUF file has none
        return Path(name).resolve() if name else None
    try:
        from huggingface_hub import try_to_load_from_cache
        found = try_to_load_from_cache(name, "config.json", revision=getattr(config, "_commit_hash", None))
    except (ImportError, ValueError):
        return None
    return Path(found).parent if isinstance(found, str) else None


@cache
def _told_of(folder: Path) -> dict[str, Any]:
    """ModelIdentity as the program tells it; {} of a config.json that it refuses."""
    return run("inspect", folder, accept=(0, 1)).get("facts", {}).get("identity", {})


def is_read(config: Any) -> bool:
    """Whether the program reads the model's config.json, if that is on this machine."""
    folder = _folder_of(config)
    return folder is None or bool(_told_of(folder))


def hashes_of(config: Any) -> dict[str, str]:
    """config_sha256 and weights_sha256 of ModelIdentity, where config.json and weights are on this machine. Of a config.json that is not
    read there is no weights_sha256, and the other is of its bytes. Raises FileNotFoundError where there is no program."""
    folder = _folder_of(config)
    told = _told_of(folder) if folder else {"config_sha256": ""}
    return {name: told[name] for name in ("config_sha256", "weights_sha256") if name in told} or {
        "config_sha256": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()}


def describe_model(config: Any) -> dict[str, Any]:
    """ModelIdentity of a transformers config as the program tells it, without sizes of a family that it does not know. Raises
    FileNotFoundError where there is no program."""
    folder = _folder_of(config)
    described = {"id": getattr(config, "_name_or_path", None) or "", "revision": "", **hashes_of(config),
                 "num_layers": config.get_text_config(decoder=True).num_hidden_layers}
    with tempfile.TemporaryDirectory(prefix="oscar-") as place:
        if folder is None:
            Path(place, "config.json").write_text(config.to_json_string(use_diff=False))
        told = _told_of(folder or Path(place))
    if told.get("num_layers", described["num_layers"]) != described["num_layers"]:
        raise ValueError(f"the model has {described['num_layers']} layers, and {folder}/config.json {told['num_layers']}; save it as it is run")
    return described | (told if folder else {key: told[key] for key in told if key not in ("id", "revision")})


def with_shape(described: dict[str, Any], shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """shape: q heads, KV heads, key and value dimension of the first layer that was observed."""
    sizes = dict(zip(("num_attention_heads", "num_key_value_heads", "head_dim", "value_dim"), shape))
    if shape[2] == shape[3]:
        del sizes["value_dim"]
    return sizes | described


def _blocks(ids: bytes) -> str:
    size = 4 * _BLOCK_TOKENS
    parts = [ids[i:i + size] for i in range(0, len(ids), size)]
    if len(parts) > 1 and len(parts[-1]) < size:
        parts.pop()
    return "".join(hashlib.sha256(part).hexdigest()[:_BLOCK_DIGITS] for part in parts)


def image_tokens_of(config: Any) -> list[int]:
    """Token ids that stand for pieces of images or videos."""
    return [each for name in ("image_token_id", "video_token_id") if (each := getattr(config, name, None)) is not None]


def describe_tokens(sequences: Iterable[Any], images: Sequence[int] = ()) -> dict[str, Any]:
    """CalibrationData of sequences of token ids (vectors of int32 numpy arrays). images: ids that stand for pieces of images or videos."""
    data: dict[str, Any] = {"data_sha256": "", "tokens": 0, "sequences": 0, "blocks": []}
    whole, image_tokens = hashlib.sha256(), 0
    for ids in sequences:
        content = ids.astype("<i4").tobytes()
        whole.update(len(ids).to_bytes(8, "little") + content)
        data["tokens"] += len(ids)
        image_tokens += sum(int((ids == each).sum()) for each in images)
        data["sequences"] += 1
        data["blocks"].append(_blocks(content))
    return data | {"data_sha256": whole.hexdigest()} | ({"image_tokens": image_tokens} if image_tokens else {})
