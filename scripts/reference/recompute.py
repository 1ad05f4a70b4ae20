# SPDX-License-Identifier: MIT
"""What `oscar fit` and `oscar verify` should have written, recomputed from the recipes in a set's manifest."""
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

import moments
import transforms
from attention import Side, Windows, compare
from row_codecs import Codec


class Fitted(NamedTuple):
    """One side of a layer; stacks of 1 matrix, or of one per KV head if fitted per head."""
    write: np.ndarray
    read: np.ndarray
    eigenvalues: np.ndarray
    covariance: np.ndarray = None  # what was decomposed; None for a stretch and for a Hadamard matrix
    mean: np.ndarray = None  # (Hkv, d)
    gain: np.ndarray = None  # of a stretch, per matrix
    condition: np.ndarray = None


def recipes(folder):
    """Of the parts of a set that are rotations, by name."""
    manifest = json.loads((Path(folder) / "manifest.json").read_text())
    return {name: Recipe(manifest, part) for name, part in manifest["parts"].items() if name != "coded"}


class Recipe:
    """What a manifest says to compute for a part of rotations."""

    def __init__(self, manifest, part):
        recipe, objectives = part["recipe"], part["objectives"]
        self.windows = Windows(manifest["windows"]["sink"], manifest["windows"]["recent"])
        self.objective, self.composition, self.per_head = {}, {}, {}
        granularity = recipe["granularity"].split(",")
        for i, side in enumerate(("key", "value")):
            name = objectives[side].removeprefix("stretch_")
            self.objective[side], _, self.composition[side] = name.partition("_")
            self.per_head[side] = granularity[i % len(granularity)] == "head"
        self.stretched = objectives["key"].startswith("stretch_")
        self.stretch, self.center = recipe.get("stretch", {}), recipe["center"]
        self.codec, self.layers = part["codec"], {layer["layer_id"]: layer for layer in part["layers"]}

    def codecs_of(self, layer_id, side):
        """One codec for all KV heads, or one for each."""
        codec, fitted = self.codec, self.layers[layer_id][side]
        return [Codec(grid=codec["name"], levels=codec["levels"][side == "value"], group_size=codec["group_size"],
                      clip_ratio=ratio, scale_dtype=codec["scale_dtype"])
                for ratio in fitted.get("clip_ratio_per_head", [fitted["clip_ratio"]])]

    def scores(self, layer_id):
        """What the fit recorded about the stretch of a layer's keys."""
        return self.layers[layer_id]["key"]["scores"]["stretch"]


MOMENTS = {
    "qqt": lambda layer, _: moments.qqt(layer), "sst": lambda layer, _: moments.sst(layer),
    "fisher": lambda layer, windows: moments.fisher(layer, *windows)[0],
}


def of_heads(stack, per_head):
    return stack if per_head else stack.mean(axis=0, keepdims=True)


def rotated(layer, recipe, side):
    objective = recipe.objective[side]
    if objective == "hadamard":
        rotation = transforms.hadamard(layer.k.shape[2])[None]
        return Fitted(rotation, rotation, np.ones((1, rotation.shape[1])))
    covariance = of_heads(MOMENTS[objective](layer, recipe.windows), recipe.per_head[side])
    spectra = [transforms.eigh(c) for c in covariance]
    rotation = np.stack([transforms.compose(vectors, recipe.composition[side]) for _, vectors in spectra])
    return Fitted(rotation, rotation, np.stack([values for values, _ in spectra]), covariance)


def stretched(layer, layer_id, recipe):
    """The lambda is the recorded one: the fit raises it where bfloat16 would spoil the transform."""
    mean = moments.mean_keys(layer) if recipe.center else None
    query = MOMENTS[recipe.objective["key"]](layer, recipe.windows)
    weights = np.ones((layer.kv_heads, len(layer.k)))
    if recipe.objective["key"] == "fisher":
        weights = moments.fisher(layer, *recipe.windows)[2]
    per_head, scores = recipe.per_head["key"], recipe.scores(layer_id)
    key, query = of_heads(moments.weighted_keys(layer, weights, mean), per_head), of_heads(query, per_head)
    solved = [transforms.stretch(c_k, c_q, scores["lambda"], recipe.stretch["power"], recipe.composition["key"])
              for c_k, c_q in zip(key, query)]
    write, read, values = (np.stack(part) for part in zip(*solved))
    return Fitted(write, read, values, gain=[transforms.predicted_gain(c_k, c_q) for c_k, c_q in zip(key, query)],
                  condition=np.linalg.cond(write))


def fit_layer(layer, layer_id, recipe):
    key = stretched(layer, layer_id, recipe) if recipe.stretched else rotated(layer, recipe, "key")
    if recipe.center:
        key = key._replace(mean=moments.mean_keys(layer))
    return key, rotated(layer, recipe, "value")


def attention_sums(layer, layer_id, fitted, recipe, windows, precision):
    sides = []
    for name, side in zip(("key", "value"), fitted):
        sides.append(Side(side.write, side.read, recipe.codecs_of(layer_id, name), side.mean))
    return compare(layer, *sides, windows, precision)
