# SPDX-License-Identifier: MIT
"""Which model, and which text, statistics are of, told as `oscar dump` tells it: for tap.py and server.py."""
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_BLOCK_TOKENS, _BLOCK_DIGITS = 128, 16  # as CalibrationData in lib/model/config/identity.hpp


def cache_layers(config: Any) -> list[int]:
    """The layers whose cache grows with the whole text; where all are limited, all that have one."""
    count = config.num_hidden_layers
    types = getattr(config, "layer_types", None) or ["full_attention"] * count
    growing = [i for i in range(count) if types[i] == "full_attention"]
    return growing or [i for i in range(count) if types[i].endswith("_attention") and "linear" not in types[i]]


def _folder_of(name: str, revision: str | None) -> Path | None:
    """The folder of a checkpoint, given itself or by its name on the Hub; None if it is not on this machine."""
    if Path(name).is_dir():
        return Path(name).resolve()
    try:
        from huggingface_hub import try_to_load_from_cache
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except (ImportError, ValueError):
        return None
    return Path(found).parent if isinstance(found, str) else None


def _name_and_revision(folder: Path) -> tuple[str, str]:
    owner = folder.parent.parent.name
    if folder.parent.name == "snapshots" and owner.startswith("models--"):
        return owner.removeprefix("models--").replace("--", "/", 1), folder.name
    return folder.name, ""


def _plain_rope_theta(config: Any) -> float:
    """Of plain rotary embeddings over whole heads, else 0."""
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    plain = rope.get("rope_type") == "default" and rope.get("partial_rotary_factor", 1.0) == 1.0
    return float(rope.get("rope_theta", 0)) if plain else 0.0


def describe_model(config: Any, shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """ModelIdentity of a transformers config; shape: q heads, KV heads, key and value dimension of its first layer."""
    q_heads, kv_heads, key_dim, value_dim = shape
    text = config.get_text_config(decoder=True)
    layers = cache_layers(text)
    name = getattr(config, "_name_or_path", "") or ""
    folder = _folder_of(name, getattr(config, "_commit_hash", None)) if name else None
    described = {"id": name, "revision": "", "config_sha256": "", "num_layers": text.num_hidden_layers,
                 "num_attention_heads": q_heads, "num_key_value_heads": kv_heads, "head_dim": key_dim,
                 "rope_theta": _plain_rope_theta(text)}
    if folder is not None:
        described["id"], described["revision"] = _name_and_revision(folder)
        config_file = folder / "config.json"  # a model that transformers read from a GGUF file has none
        if config_file.is_file():
            described["config_sha256"] = hashlib.sha256(config_file.read_bytes()).hexdigest()
    if value_dim != key_dim:
        described["value_dim"] = value_dim
    if len(layers) < text.num_hidden_layers:
        described["cache_layers"] = layers
    return described


def _blocks(ids: bytes) -> str:
    size = 4 * _BLOCK_TOKENS
    parts = [ids[i:i + size] for i in range(0, len(ids), size)]
    if len(parts) > 1 and len(parts[-1]) < size:
        parts.pop()
    return "".join(hashlib.sha256(part).hexdigest()[:_BLOCK_DIGITS] for part in parts)


def describe_tokens(sequences: Iterable[Any]) -> dict[str, Any]:
    """CalibrationData of sequences of token ids (vectors of int32 numpy arrays)."""
    data: dict[str, Any] = {"data_sha256": "", "tokens": 0, "sequences": 0, "blocks": []}
    whole = hashlib.sha256()
    for ids in sequences:
        content = ids.astype("<i4").tobytes()
        whole.update(len(ids).to_bytes(4, "little") + content)
        data["tokens"] += len(ids)
        data["sequences"] += 1
        data["blocks"].append(_blocks(content))
    return data | {"data_sha256": whole.hexdigest()}
