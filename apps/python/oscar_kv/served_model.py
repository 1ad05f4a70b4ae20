# SPDX-License-Identifier: MIT
"""Whether a part of a set is for the model that it is served with, and for texts as long as it serves."""
import logging
from functools import cache
from typing import Any

from .identity import hashes_of, is_read
from .sets import SetPart, member

_log = logging.getLogger("oscar_kv")
_warn_once = cache(_log.warning)


def longest_known(part: SetPart) -> int:
    """Tokens of the longest texts that the part was calibrated for, or that `oscar verify` measured it on; 0: nothing tells."""
    def count(*names: str) -> int:
        value = member(part.manifest, *names)
        return value if type(value) is int and value > 0 else 0

    of_dump = count("calibration", "tokens") // max(count("calibration", "sequences"), 1)  # the mean length of its sequences
    return max(count("parts", "coded", "recipe", "context") or of_dump, count("verification", "data", "model", "longest"))


def warn_if_longer(part: SetPart, tokens: int, what: str) -> bool:
    """Warns where a sequence of so many tokens is longer than those that anybody tried. what: who has it, as the warning's subject."""
    known = longest_known(part)
    if is_longer := 0 < known < tokens:
        _log.warning("oscar_kv: %s %d tokens, and the part coded was calibrated and verified for no more than %d: fit with a longer --context, or "
                     "try it on texts of that length by oscar verify", what, tokens, known)
    return is_longer


def check_config(part: SetPart, config: Any) -> None:
    """Raises ValueError if the model's config.json is on this machine, and of another architecture than the set was fitted for. Warns of
    other weights, and where there is no program to tell."""
    fitted = part.manifest.get("model") or {}
    try:
        own = hashes_of(config) if fitted.get("config_sha256") else {}
    except FileNotFoundError as error:
        return _warn_once(f"oscar_kv: whether the set is for this model is not known: {error}")
    if own.get("config_sha256") and fitted["config_sha256"] != own["config_sha256"]:
        if not is_read(config):
            return _warn_once("oscar_kv: whether the set is for this model is not known: oscar cannot read its config.json")
        raise ValueError(f"the set is for another model: it was fitted on {fitted.get('id')!a}, whose architecture differs; fit one for this model")
    theirs, ours = fitted.get("weights_sha256"), own.get("weights_sha256")
    if theirs and ours and theirs != ours:
        _warn_once(f"oscar_kv: the set was fitted on other weights of this architecture ({fitted.get('id')!a}), such as those that a model was "
                   "tuned from: oscar verify tells whether it does for this model")


def check_for_model(part: SetPart, config: Any, covered: list[int], longest: int | None) -> None:
    """config: transformers' of the model; covered: layers that a set must have; longest: tokens that the model, or its
    server, can have in a sequence."""
    check_config(part, config)
    layers = config.get_text_config(decoder=True).num_hidden_layers
    count = (part.manifest.get("model") or {}).get("num_layers")
    missing = sorted(set(covered) - set(part.layers))
    surplus = [i for i in part.layers if i >= layers]
    kept = sum(part.windows)
    for is_wrong, text in (
            (count and count != layers,
             f"the set is for a model of {count} layers, and this one has {layers}; fit one for this model"),
            (surplus, f"the set has layers {surplus}, and the model has {layers}; fit one for this model"),
            (missing, f"the set has no layer {', '.join(map(str, missing))}; it has {sorted(part.layers)}; fit all layers"),
            (longest is not None and kept >= longest,
             f"the set's windows keep {kept} tokens as they are, and a sequence has no more than {longest}: nothing would be "
             "packed; allow longer sequences, or fit with smaller --sink and --recent")):
        if is_wrong:
            raise ValueError(text)
