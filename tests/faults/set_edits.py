# SPDX-License-Identifier: MIT
"""Edits of a set after which its files disagree: {name: function that changes a set's folder}."""
import numpy
import torch

import edit
from edit import KEYS, VALUES

RICH_KEYS = "with_means/k_rotation_stretch_qqt_r_h_pbr.pt"


def text(name, old, new):
    """Replaces `old` in a file of the set."""
    return lambda folder: edit.text_file(folder / name, lambda raw: raw.replace(old, new, 1))


def appended(name, more):
    return lambda folder: edit.text_file(folder / name, lambda raw: raw + more)


def table(name, change):
    return lambda folder: edit.json_file(folder / name, change)


def manifest(change):
    return table("manifest.json", change)


def member(path, value):
    return manifest(lambda document: edit.put(document, path, value))


def h5(change):
    return lambda folder: edit.h5(folder / "rotations.h5", change)


def attribute(name, value, group="/"):
    return h5(lambda file: file[group].attrs.update({name: value}))


def dataset(name, change):
    def edit_file(file):
        changed = change(file[name][()])
        del file[name]
        file[name] = changed

    return h5(edit_file)


def pt(change, name=KEYS):
    return lambda folder: edit.pt(folder / name, change)


def turned(matrix):
    """Another rotation: two rows exchanged, one with its sign changed."""
    matrix = matrix.clone() if isinstance(matrix, torch.Tensor) else matrix.copy()
    matrix[[0, 1]] = matrix[[1, 0]]
    matrix[0] = -matrix[0]
    return matrix


def double_mean(file):
    file["layers/1/key/mean"][...] *= 2


def listed(name):
    """A file more, which the manifest lists."""
    def change(folder):
        (folder / name).write_text("touch pwned\n")
        entry = {"path": name, "size": 12, "sha256": edit.sha256(folder / name)}
        manifest(lambda document: document["files"].append(entry))(folder)

    return change


def swap_layers(content):
    layers = content["layers"]
    layers[1]["rotation"], layers[2]["rotation"] = layers[2]["rotation"], layers[1]["rotation"]


def swap_sides(folder):
    for old, new in ((KEYS, "x"), (VALUES, KEYS), ("x", VALUES)):
        (folder / old).rename(folder / new)


SERVED = {
    "env-command": appended("serve.env", b"touch pwned\n"),
    "env-substitution": text("serve.env", b"=1\n", b"=$(touch pwned)\n"),
    "env-clip": text("serve.env", b"K_CLIP_RATIO=0.", b"K_CLIP_RATIO=0.1"),
    "env-path": text("serve.env", b"$oscar_set/k_", b"$oscar_set/../k_"),
    "env-window": text("serve.env", b"RECENT_TOKENS=256", b"RECENT_TOKENS=0"),
    "env-empty": lambda folder: (folder / "serve.env").write_text(""),
    "env-preload": appended("serve.env", b"LD_PRELOAD=/tmp/evil.so\n"),
    **{f"table-layer-{side}": table(f"{side}_clip_per_layer.json", lambda ratios: edit.put(ratios, "1", 0.5)) for side in "kv"},
    **{f"table-head-{side}": table(f"{side}_clip_per_head.json", lambda ratios: ratios.update({"1,0": 0.5})) for side in "kv"},
    "table-short": table("k_clip_per_layer.json", lambda ratios: ratios[:-1]),
    "table-text": lambda folder: (folder / "k_clip_per_layer.json").write_text("hello"),
}

IN_H5 = {
    **{f"h5-{name}": attribute(name, numpy.bytes_(value)) for name, value in {
        "schema": "oscar.set.v9", "model_id": "another/model", "recipe": '{"name":"hadamard"}'}.items()},
    **{name: change for side in ("key", "value") for name, change in {
        f"h5-clip-{side}": attribute("clip_ratio", 0.5, f"layers/1/{side}"),
        f"h5-rotation-{side}": dataset(f"layers/1/{side}/rotation", turned),
        f"h5-eigenvalues-{side}": dataset(f"layers/1/{side}/eigenvalues", lambda values: values * 2),
        f"h5-covariance-{side}": dataset(f"layers/1/{side}/covariance", lambda values: values * 0)}.items()},
    "h5-manifest": h5(lambda file: file.create_dataset("manifest", data=numpy.zeros(7, "u1"))),
    "h5-without-layer": h5(lambda file: file.pop("layers/2")),
    "h5-more-layers": h5(lambda file: file.copy("layers/3", "layers/4")),
    "h5-mean": h5(lambda file: file.create_dataset("layers/1/key/mean", data=numpy.ones((1, 128), "f4"))),
}

IN_PT = {
    "pt-rotation": pt(lambda content: edit.put(content, "layers.1.rotation", turned)),
    "pt-values-rotation": pt(lambda content: edit.put(content, "layers.1.rotation", turned), VALUES),
    "pt-eigenvalues": pt(lambda content: edit.put(content, "layers.1.eigenvalues", lambda values: values * 2)),
    "pt-exchanged": pt(swap_layers),
    "pt-nudged": pt(lambda content: content["layers"][1]["rotation"][0].mul_(1 + 1e-6)),
    "pt-layer-id": pt(lambda content: edit.put(content, "layers.1.layer_id", 2)),
    "pt-without-layer": pt(lambda content: edit.drop(content, "layers.3")),
    "pt-more-layers": pt(lambda content: content["layers"].update({4: {**content["layers"][3], "layer_id": 4}})),
    "pt-objective": pt(lambda content: content.update(objective="ktk_r_h_pbr")),
    "pt-grouping": pt(lambda content: content.update(source_grouping="head")),
    "pt-version": pt(lambda content: content.update(format_version=7)),
    "pt-sides": swap_sides,
}

# Version 3 tells more: each field of it; and what else servers of means read.
IN_MEANS = {
    **{f"pt3-{field}": pt(lambda content, f=field, v=value: edit.put(content, f, v), RICH_KEYS) for field, value in {
        "transform.recipe": "oscar", "transform.codec": "lloyd-max", "transform.key_levels": 8, "transform.value_levels": 8,
        "transform.group_size": 32, "transform.scale_dtype": "float16", "calibration.model_path": "another/model",
        "calibration.model_revision": "other", "calibration.prompt_sha256": "0" * 64, "calibration.tokens": 999999,
        "calibration.global_kv_heads": 7, "calibration.global_q_heads": 7, "calibration.clip_scalar": 0.5}.items()},
    "pt3-clip_ratio": pt(lambda content: content["calibration"]["clip_ratio"].update({1: torch.tensor([0.5])}), RICH_KEYS),
    "pt3-k_mean": pt(lambda content: edit.put(content, "layers.1.k_mean", lambda mean: mean * 0), RICH_KEYS),
    "pt3-q_rotation": pt(lambda content: edit.put(content, "layers.1.q_rotation", turned), RICH_KEYS),
    "pt3-no-q_rotation": pt(lambda content: edit.drop(content, "layers.1.q_rotation"), RICH_KEYS),
    "means-pt": pt(lambda content: edit.put(content, "layers.1.mu", lambda mean: mean * 2), "with_means/k_mean.pt"),
    "means-h5": lambda folder: edit.h5(folder / "with_means/rotations.h5", double_mean),
    "means-table": table("with_means/k_clip_per_layer.json", lambda ratios: edit.put(ratios, "1", 0.5)),
    "means-env": text("with_means/serve.env", b"RECENT_TOKENS=256", b"RECENT_TOKENS=0"),
    "means-model": member("model.id", "another/model"),
    "means-script": listed("with_means/setup.sh"),
}

ROTATIONS = "parts.rotations."


def of_layers(change):
    """change(layers) edits the list of layers of the part."""
    return manifest(lambda document: change(document["parts"]["rotations"]["layers"]))


IN_MANIFEST = {
    **{f"manifest-{path}": member(ROTATIONS + path, value) for path, value in {
        "objectives.key": "ktk_r_h_pbr", "objectives.value": "vtv_r_h_pbr", "layers.1.key.clip_ratio": 0.5,
        "layers.1.value.clip_ratio": 0.5, "codec.clip_scalar.key": 0.5, "codec.name": "lloyd-max", "codec.levels": [8, 4],
        "codec.group_size": 32, "layers.1.head_dim": 64, "layers.1.layer_id": 0, "layers.3.layer_id": 17,
        "layers.1.key.eigenvalues.min": -1.0, "layers.1.key.eigenvalues.max": 1e6, "layers.1.key.eigenvalues.mean": 99.0,
        "layers.1.key.eigenvalues.effective_rank": 1.5, "layers.1.key.eigenvalues": None}.items()},
    **{f"manifest-{path}": member(path, value) for path, value in {
        "windows.sink": 0, "windows.recent": 4096, "model.num_layers": 8, "model.head_dim": 64, "model.num_key_value_heads": 7,
        "calibration.tokens": 3, "readers.vllm": "coded", "readers.sglang": "with_means"}.items()},
    "manifest-few-layers": member("model.num_layers", 2),
    "manifest-many-layers": member("model.num_layers", 2**31 - 1), "manifest-many-heads": member("model.num_key_value_heads", 2**31 - 1),
    "manifest-verdict": member("verification.readers.sglang.part", "coded"),
    "manifest-part": manifest(lambda document: document["parts"].update(with_means=document["parts"]["rotations"])),
    "manifest-layer-missing": of_layers(lambda layers: layers.remove(layers[1])),
    "manifest-layer-twice": of_layers(lambda layers: layers.append(layers[1])),
    "manifest-layer-more": of_layers(lambda layers: layers.append({**layers[3], "layer_id": 4})),
    "manifest-order": of_layers(lambda layers: layers.reverse()),
}


IN_CODED = {
    **{f"coded-{path}": member(f"parts.coded.{path}", value) for path, value in {
        "layers.1.key.bits": 1.0, "layers.1.value.row_bytes.0": 5, "layers.1.key.most_levels.0": 256, "layers.1.layer_id": 0,
        "layers.1.head_dim": 64, "layers.1.value_dim": 64, "layers.1.key.row_bytes": lambda sizes: [*sizes, 4], "layers": lambda layers: layers[:3],
        "layers.3": lambda layer: {**layer, "layer_id": 5}, "codec.bits": 2.3, "objectives": {}, "layers.1.key.damage": 0.1,
        "codec.levels": []}.items()},
    **{f"coded-{path}": member(path, value) for path, value in {
        "model.num_key_value_heads": 7, "model.head_dim": 64, "model.num_layers": 2}.items()},
    "coded-many-bits": member("parts.coded.layers.1.key.bits", 1e9),
    "coded-order": manifest(lambda document: document["parts"]["coded"]["layers"].reverse()),
    "coded-file": listed("rotations.h5"),
    "coded-lambda": lambda folder: edit.safetensors(folder / "coded.safetensors", lambda header: header.update(
        {"layers.1.key.lambda": header["layers.1.key.sigma"]})),
    "coded-tensor": lambda folder: edit.safetensors(folder / "coded.safetensors", lambda header: header.pop("layers.1.key.mean")),
    "coded-readers": member("readers.sglang", "coded"),
}


def unlisted_env(folder):
    appended("serve.env", b"touch pwned\n")(folder)
    manifest(lambda document: {**document, "files": [file for file in document["files"] if file["path"] != "serve.env"]})(folder)


# The list of files. No hashes are computed again behind these.
IN_LIST = {
    "files-unlisted": manifest(lambda document: edit.drop(document, "files.0")),
    "files-env-unlisted": unlisted_env,
    "files-more": lambda folder: (folder / "run.sh").write_text("touch pwned\n"),
    "files-hidden": lambda folder: (folder / ".env").write_text("x\n"),
    "files-deep": lambda folder: [(folder / "sub").mkdir(), (folder / "sub/x").write_text("x\n")],
    "files-twice": manifest(lambda document: document["files"].append(document["files"][0])),
    "files-size": member("files.0.size", 1),
    "files-hash": member("files.0.sha256", "0" * 64),
    "files-hash-upper": member("files.0.sha256", "x"),
    "files-missing": lambda folder: (folder / "serve.env").unlink(),
    "files-none": member("files", []),
    "files-listed-script": listed("setup.sh"),
    "files-listed-rotations": listed("k_rotation_other.pt"),
    "files-self": manifest(lambda document: document["files"].append({**document["files"][0], "path": "manifest.json"})),
    "files-dot": member("files.0.path", lambda path: f"./{path}"),
    "files-absolute": member("files.0.path", "/etc/passwd"),
    "files-link": lambda folder: [(folder / "serve.env").rename(folder.parent / "elsewhere.env"),
                                  (folder / "serve.env").symlink_to("../elsewhere.env")],
}
