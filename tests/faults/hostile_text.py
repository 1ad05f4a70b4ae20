# SPDX-License-Identifier: MIT
"""Texts of strangers that would be commands, paths, terminal sequences or too much, in every place that holds a text."""
import json

import edit
from harness import MARK, Fault, table

COMMANDS = {"command": f"qqt_r_h_pbr$(touch {MARK})", "backquote": f"`touch {MARK}`", "quotes": f"'\";touch {MARK};\"'"}
PATHS = {"path": "/../../escaped", "parent": "../escaped"}
CONTROLS = {"newline": f"a\ntouch {MARK}\n", "escape": "\x1b]0;owned\x07\x1b[31m", "c1": "a\u009b31m", "bidi": "a\u202eb",
            "nul": "a\0b"}
SIZES = {"long": "x" * 1_000_000, "empty": ""}
EVERY = COMMANDS | PATHS | CONTROLS | SIZES
SHOWN = (0, 1, 2, 3)  # a text that is shown or quoted safely has done nothing

# Of a prepared input, every command that reads it.
PT_READERS = {
    "convert": ("convert", "pt1", "out", "--to", "set"), "tensors": ("convert", "pt1", "out.safetensors"),
    "verify": ("verify", "pt1", "--compare", "none")
}
COMMANDS_OF = {
    "convert": ("convert", "set", "out"), "inspect": ("inspect", "set"),
    "publish": ("publish", "set", "--zoo", "out", "--name", "me/m"),
    "verify": ("verify", "set", "--compare", "none", "--no-record"),
    "pull": ("pull", "me/m", "--zoo", "zoo", "--out", "out"), "list": ("zoo", "list", "--zoo", "zoo")
}


def both_objectives(text):
    return lambda place: [edit.pt(place / "pt1" / name, lambda content: content.update(objective=text))
                          for name in (edit.KEYS, edit.VALUES)]


def objectives():
    """The objective is a name from an enumeration: nothing else may become a file name or a line of serve.env."""
    for kind, text in EVERY.items():
        for reader, args in PT_READERS.items():
            if reader == "convert" or kind in ("command", "path", "newline", "long"):
                yield Fault(f"text/pt1-objective/{kind}/{reader}", args, ("pt1",), both_objectives(text),
                            exits=(1, 3) if reader == "verify" else (1,), control=reader != "verify")
        if kind in CONTROLS:
            yield Fault(f"text/pt1-objective/{kind}/inspect", ("inspect", "pt1"), ("pt1",), both_objectives(text), exits=SHOWN)


def texts_of_pt():
    def put(field):
        return lambda text: lambda place: edit.pt(place / "pt3" / edit.KEYS, lambda content: edit.put(content, field, text))

    for fields, kinds, exits in (
            (("transform.recipe", "calibration.model_path", "calibration.model_revision", "calibration.prompt_sha256"),
             ("command", "quotes", "newline", "escape", "long"), SHOWN),
            (("transform.codec", "transform.scale_dtype", "source_grouping"), ("command", "newline", "long"), (1,))):
        for field in fields:
            yield from table(f"text/pt3-{field}", ("convert", "pt3", "out"), ("pt3",),
                             {kind: put(field)(EVERY[kind]) for kind in kinds}, exits=exits)


def layer_keys():
    def rename(key):
        def change(content):
            content["layers"] = {key if old == 1 else old: layer for old, layer in content["layers"].items()}

        return lambda place: edit.pt(place / "pt1" / edit.KEYS, change)

    keys = {"command": COMMANDS["command"], "escape": CONTROLS["escape"], "negative": -1, "huge": 1 << 40, "float": 1.5,
            "tuple": (1, 2)}
    yield from table("text/pt1-layer", ("convert", "pt1", "out"), ("pt1",), {kind: rename(key) for kind, key in keys.items()})


def in_containers():
    """A manifest inside another file."""
    def put(member, kind):
        def change(text):
            document = json.loads(text)
            edit.put(document, member, EVERY[kind])
            return json.dumps(document)
        return lambda place: edit.embedded(place / "set.safetensors", "manifest", change)

    for member, exits in [*((name, (1,)) for name in ("parts.rotations.objectives.key", "parts.rotations.codec.name",
                                                     "parts.rotations.layers.0.layer_id")),
                          *((name, SHOWN) for name in ("model.id", "recipe.name"))]:
        yield from table(f"text/set.safetensors-{member}", ("convert", "set.safetensors", "out"), ("set.safetensors",),
                         {kind: put(member, kind) for kind in ("command", "parent", "escape")}, exits=exits)


def in_documents():
    """Names are held to what they may be, free texts are quoted or refused."""
    def put(path, member, kind):
        return lambda place: edit.json_file(place / path, lambda document: edit.put(document, member, EVERY[kind]))

    for member in ("parts.rotations.objectives.key", "parts.rotations.codec.name", "files.0.path",
                   "parts.rotations.layers.0.layer_id", "readers.vllm", "schema"):
        for kind, command in (("command", "convert"), ("parent", "publish"), ("escape", "inspect"), ("newline", "verify")):
            yield Fault(f"text/manifest-{member}/{kind}", COMMANDS_OF[command], ("set",),
                        put("set/manifest.json", member, kind), exits=SHOWN if command == "inspect" else (1, 3))
    for member in ("model.id", "model.revision", "recipe.name", "parts.rotations.recipe.name", "oscar_version", "calibration.data_sha256"):
        for kind, command in (("command", "convert"), ("escape", "inspect"), ("c1", "verify"), ("newline", "convert")):
            yield Fault(f"text/manifest-{member}/{kind}", COMMANDS_OF[command], ("set",),
                        put("set/manifest.json", member, kind), exits=SHOWN)
    for member in ("name", "tag", "path", "oscar_version", "created", "summary.model", "summary.recipe"):
        for kind in ("command", "parent", "escape", "long"):
            for command in ("pull", "list"):
                yield Fault(f"text/index-{member}/{kind}/{command}", COMMANDS_OF[command], ("zoo",),
                            put("zoo/index.json", f"entries.0.{member}", kind),
                            exits=(1,) if member in ("name", "tag", "path") and command == "pull" else SHOWN)


def names_of_things():
    def tensor(name):
        return lambda place: edit.safetensors(
            place / "set.safetensors", lambda header: header.update({name: header.pop("layers.1.key.rotation")}))

    yield from table("text/tensor-name", ("convert", "set.safetensors", "out"), ("set.safetensors",),
                     {kind: tensor(EVERY[kind]) for kind in ("command", "parent", "escape", "newline", "nul", "long", "empty")})
    for kind in ("command", "newline", "escape", "bidi"):
        def named(place, name=EVERY[kind].replace("/", "_")):
            (place / "pt1" / edit.KEYS).rename(place / "pt1" / f"k_rotation_{name}.pt")
        for command, args in {"convert": ("convert", "pt1", "out"), "inspect": ("inspect", "pt1")}.items():
            yield Fault(f"text/file-name/{kind}/{command}", args, ("pt1",), named, exits=SHOWN)
        yield Fault(f"text/folder-name/{kind}", ("verify", EVERY[kind]), says="no such file")
    # What serve-env prints is sourced.
    for kind, name in {**COMMANDS, "newline": f"a\ntouch {MARK}\n", "space": f"a; touch {MARK}"}.items():
        yield Fault(f"text/serve-env/{kind}", ("serve-env", name), ("set",),
                    lambda place, n=name: (place / "set").rename(place / n), exits=(0, 1), control=False,
                    shell='"$@" >out.env; status=$?; (set -a; source ./out.env) >/dev/null 2>&1; exit $status')


def faults():
    for group in (objectives, texts_of_pt, layer_keys, in_containers, in_documents, names_of_things):
        yield from group()
