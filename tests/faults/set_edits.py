# SPDX-License-Identifier: MIT
"""Edits of a set after which its files disagree: each has a name, says what it does, and changes a set's folder."""
import numpy
import torch

import edit
from edit import KEYS, VALUES

RICH_KEYS = "k_rotation_stretch_qqt_r_h_pbr.pt"


def text(name, old, new):
    """Replaces `old` in a file of the set."""
    return lambda folder: edit.text_file(folder / name, lambda raw: raw.replace(old, new, 1))


def manifest(change):
    return lambda folder: edit.json_file(folder / "manifest.json", change)


def member(path, value):
    return manifest(lambda document: edit.put(document, path, value))


def attribute(name, value, group="/"):
    return lambda folder: edit.h5(folder / "rotations.h5", lambda file: file[group].attrs.update({name: value}))


def dataset(name, change):
    def edit_file(file):
        values = file[name][()]
        changed = change(values)
        del file[name]
        if changed is not None:
            file[name] = changed

    return lambda folder: edit.h5(folder / "rotations.h5", edit_file)


def pt(change, name=KEYS):
    return lambda folder: edit.pt(folder / name, change)


def tensors(change):
    return lambda folder: edit.safetensors(folder / "rotations.safetensors", change)


def turned(matrix):
    """Another rotation: two rows exchanged, one with its sign changed."""
    matrix = matrix.clone() if isinstance(matrix, torch.Tensor) else matrix.copy()
    matrix[[0, 1]] = matrix[[1, 0]]
    matrix[0] = -matrix[0]
    return matrix


def swap_layers(content):
    layers = content["layers"]
    layers[1]["rotation"], layers[2]["rotation"] = layers[2]["rotation"], layers[1]["rotation"]


def served():
    yield "env-command", "a command is appended to serve.env", lambda folder: edit.text_file(
        folder / "serve.env", lambda raw: raw + b"touch pwned\n")
    yield "env-substitution", "a value of serve.env runs a command", text("serve.env", b"=1\n", b"=$(touch pwned)\n")
    yield "env-clip", "serve.env has another clip ratio", text("serve.env", b"K_CLIP_RATIO=0.", b"K_CLIP_RATIO=0.1")
    yield "env-path", "serve.env names a file outside", text("serve.env", b"$oscar_set/k_", b"$oscar_set/../k_")
    yield "env-window", "serve.env has another window", text("serve.env", b"RECENT_TOKENS=256", b"RECENT_TOKENS=0")
    yield "env-empty", "serve.env is empty", lambda folder: (folder / "serve.env").write_text("")
    yield "env-preload", "serve.env preloads a library", lambda folder: edit.text_file(
        folder / "serve.env", lambda raw: raw + b"LD_PRELOAD=/tmp/evil.so\n")
    for side in "kv":
        yield f"table-layer-{side}", f"{side}_clip_per_layer.json has another ratio", lambda folder, s=side: edit.json_file(
            folder / f"{s}_clip_per_layer.json", lambda table: edit.put(table, "1", 0.5))
        yield f"table-head-{side}", f"{side}_clip_per_head.json has another ratio", lambda folder, s=side: edit.json_file(
            folder / f"{s}_clip_per_head.json", lambda table: table.update({"1,0": 0.5}))
    yield "table-short", "a clip table lacks a layer", lambda folder: edit.json_file(folder / "k_clip_per_layer.json", lambda
                                                                                     table: table[:-1])
    yield "table-text", "a clip table holds a text", lambda folder: (folder / "k_clip_per_layer.json").write_text("hello")


def in_h5():
    values = {
        "calibration_data_sha256": "0" * 64, "calibration_tokens": 999999, "codec": "lloyd-max", "group_size": 32,
        "key_levels": 8, "key_objective": "ktk_r_h_pbr", "model_config_sha256": "0" * 64, "model_id": "another/model",
        "recent": 0, "recipe": '{"name":"hadamard"}', "scale_dtype": "float16", "schema": "oscar.rotation_set.v9", "sink": 0,
        "value_levels": 8, "value_objective": "vtv_r_h_pbr"
    }
    for name, value in values.items():
        yield f"h5-{name}", f"attribute {name} of rotations.h5 differs from the manifest", attribute(
            name,
            numpy.bytes_(value) if isinstance(value, str) else value)
    for side in ("key", "value"):
        yield f"h5-clip-{side}", f"rotations.h5 has another clip ratio of {side}s", attribute(
            "clip_ratio", 0.5, f"layers/1/{side}")
        yield f"h5-rotation-{side}", f"rotations.h5 has another rotation of {side}s than the .pt file", dataset(
            f"layers/1/{side}/rotation", turned)
        yield f"h5-eigenvalues-{side}", f"eigenvalues of {side}s in rotations.h5 are others", dataset(
            f"layers/1/{side}/eigenvalues", lambda values: values * 2)
        yield f"h5-covariance-{side}", f"a covariance of {side}s in rotations.h5 is zero", dataset(
            f"layers/1/{side}/covariance", lambda values: values * 0)
    yield "h5-without-attribute", "rotations.h5 lacks an attribute", lambda folder: edit.h5(
        folder / "rotations.h5", lambda file: file.attrs.pop("sink"))
    yield "h5-without-layer", "rotations.h5 lacks a layer", lambda folder: edit.h5(folder / "rotations.h5", lambda file: file
                                                                                   .pop("layers/2"))
    yield "h5-more-layers", "rotations.h5 has one more layer", lambda folder: edit.h5(
        folder / "rotations.h5", lambda file: file.copy("layers/3", "layers/4"))
    yield "h5-mean", "rotations.h5 has a mean that the set does not have", lambda folder: edit.h5(
        folder / "rotations.h5", lambda file: file.create_dataset("layers/1/key/mean", data=numpy.ones((1, 128), "f4")))


def in_pt():
    yield "pt-rotation", "a .pt file has another rotation than rotations.h5", pt(
        lambda content: edit.put(content, "layers.1.rotation", turned))
    yield "pt-values-rotation", "the value file has another rotation than rotations.h5", pt(
        lambda content: edit.put(content, "layers.1.rotation", turned), VALUES)
    yield "pt-eigenvalues", "eigenvalues of a .pt file are others", pt(
        lambda content: edit.put(content, "layers.1.eigenvalues", lambda values: values * 2))
    yield "pt-exchanged", "two layers of a .pt file are exchanged", pt(swap_layers)
    yield "pt-nudged", "one element of a .pt file differs in its last bits", pt(
        lambda content: content["layers"][1]["rotation"][0].mul_(1 + 1e-6))
    yield "pt-layer-id", "a layer of a .pt file says it is another", pt(
        lambda content: edit.put(content, "layers.1.layer_id", 2))
    yield "pt-without-layer", "a .pt file lacks a layer", pt(lambda content: edit.drop(content, "layers.3"))
    yield "pt-more-layers", "a .pt file has one more layer", pt(
        lambda content: content["layers"].update({4: {**content["layers"][3], "layer_id": 4}}))
    yield "pt-objective", "a .pt file names another objective", pt(lambda content: content.update(objective="ktk_r_h_pbr"))
    yield "pt-grouping", "a .pt file says that it has a matrix a head", pt(
        lambda content: content.update(source_grouping="head"))
    yield "pt-version", "a .pt file is of version 7", pt(lambda content: content.update(format_version=7))
    yield "pt-sides", "keys and values are exchanged", lambda folder: [(folder / KEYS).rename(folder / "x"),
                                                                       (folder / VALUES).rename(folder / KEYS),
                                                                       (folder / "x").rename(folder / VALUES)]


def in_rich_pt():
    """Version 3 tells more: each field of it."""
    values = {
        "transform.recipe": "oscar", "transform.codec": "lloyd-max", "transform.key_levels": 8, "transform.value_levels": 8,
        "transform.group_size": 32, "transform.scale_dtype": "float16", "calibration.model_path": "another/model",
        "calibration.model_revision": "other", "calibration.prompt_sha256": "0" * 64, "calibration.tokens": 999999,
        "calibration.global_kv_heads": 7, "calibration.global_q_heads": 7, "calibration.clip_scalar": 0.5
    }
    for field, value in values.items():
        yield f"pt3-{field}", f"{field} of a .pt file of version 3 differs from the manifest", pt(
            lambda content, f=field, v=value: edit.put(content, f, v), RICH_KEYS)
    for name, change in {
            "clip_ratio": lambda content: content["calibration"]["clip_ratio"].update({1: torch.tensor([0.5])}),
            "k_mean": lambda content: edit.put(content, "layers.1.k_mean", lambda mean: mean * 0),
            "q_rotation": lambda content: edit.put(content, "layers.1.q_rotation", turned),
            "no-q_rotation": lambda content: edit.drop(content, "layers.1.q_rotation")
    }.items():
        yield f"pt3-{name}", f"{name} of a .pt file of version 3 is another", pt(change, RICH_KEYS)


def in_safetensors():
    yield "st-objective", "rotations.safetensors names another objective", tensors(
        lambda header: edit.put(header, "__metadata__.key_objective", "ktk_r_h_pbr"))
    yield "st-missing", "rotations.safetensors lacks a matrix", tensors(lambda header: header.pop("layers.1.key.rotation"))
    yield "st-exchanged", "matrices of rotations.safetensors are exchanged", tensors(lambda header: header.update({
        "layers.1.key.rotation": header["layers.2.key.rotation"], "layers.2.key.rotation": header["layers.1.key.rotation"]
    }))
    yield "st-bit", "a matrix of rotations.safetensors has another bit", lambda folder: edit.flip(
        folder / "rotations.safetensors", -5)
    yield "st-replaced", "rotations.safetensors is that of nobody", lambda folder: edit.write_safetensors(
        folder / "rotations.safetensors", {"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x")


def in_manifest():
    values = {
        "objectives.key": "ktk_r_h_pbr", "objectives.value": "vtv_r_h_pbr", "layers.1.key.clip_ratio": 0.5,
        "layers.1.value.clip_ratio": 0.5, "codec.clip_scalar.key": 0.5, "windows.sink": 0, "windows.recent": 4096,
        "codec.name": "lloyd-max", "codec.levels": [8, 4], "codec.group_size": 32, "layers.1.head_dim": 64,
        "layers.1.layer_id": 0, "layers.3.layer_id": 17, "model.id": "another/model", "model.config_sha256": "0" * 64,
        "model.num_layers": 8, "model.head_dim": 64, "model.num_key_value_heads": 7, "calibration.data_sha256": "0" * 64,
        "calibration.tokens": 999999, "recipe.name": "hadamard", "layers.1.key.eigenvalues.min": -1.0,
        "layers.1.key.eigenvalues.max": 1e6, "layers.1.key.eigenvalues.mean": 99.0,
        "layers.1.key.eigenvalues.effective_rank": 1.5
    }
    for path, value in values.items():
        yield f"manifest-{path}", f"{path} of the manifest disagrees with the files", member(path, value)
    yield "manifest-tokens-few", "the manifest says it was calibrated on 3 tokens", member("calibration.tokens", 3)
    yield "manifest-layer-missing", "the manifest leaves out a layer", manifest(
        lambda document: edit.drop(document, "layers.1"))
    yield "manifest-layer-twice", "the manifest has a layer twice", manifest(
        lambda document: document["layers"].append(document["layers"][1]))
    yield "manifest-layer-more", "the manifest has a layer that no file has", manifest(
        lambda document: document["layers"].append({**document["layers"][3], "layer_id": 4}))
    yield "manifest-order", "the manifest's layers are in another order", manifest(
        lambda document: document["layers"].reverse())
    yield "manifest-eigenvalues-null", "the manifest keeps the eigenvalues to itself", member(
        "layers.1.key.eigenvalues", None)


def in_list():
    """The list of files. No hashes are computed again behind these."""
    yield "files-unlisted", "a file of the set is not listed", manifest(lambda document: edit.drop(document, "files.0"))
    yield "files-env-unlisted", "serve.env is edited and not listed", lambda folder: [
        edit.text_file(folder / "serve.env", lambda raw: raw + b"touch pwned\n"),
        edit.json_file(
            folder / "manifest.json", lambda document:
            {**document, "files": [file for file in document["files"] if file["path"] != "serve.env"]})
    ]
    yield "files-more", "the folder has a file that is not listed", lambda folder: (folder / "run.sh").write_text(
        "touch pwned\n")
    yield "files-hidden", "the folder has a hidden file that is not listed", lambda folder: (folder / ".env").write_text(
        "x\n")
    yield "files-deep", "the folder has a folder with a file", lambda folder: [(folder / "sub").mkdir(),
                                                                               (folder / "sub/x").write_text("x\n")]
    yield "files-twice", "a file is listed twice", manifest(lambda document: document["files"].append(document["files"][0]))
    yield "files-size", "a file is listed with another size", member("files.0.size", 1)
    yield "files-hash", "a file is listed with another hash", member("files.0.sha256", "0" * 64)
    yield "files-hash-upper", "a hash is no hash", member("files.0.sha256", "x")
    yield "files-missing", "a listed file is not there", lambda folder: (folder / "serve.env").unlink()
    yield "files-none", "no file is listed", member("files", [])
    yield "files-self", "the manifest lists itself", manifest(
        lambda document: document["files"].append({**document["files"][0], "path": "manifest.json"}))
    yield "files-dot", "a path has a dot", member("files.0.path", lambda path: f"./{path}")
    yield "files-absolute", "a path is absolute", member("files.0.path", "/etc/passwd")
    yield "files-link", "a listed file is a link out", lambda folder: [(folder / "serve.env").rename(folder.parent /
                                                                                                     "elsewhere.env"),
                                                                       (folder / "serve.env").symlink_to("../elsewhere.env")]
