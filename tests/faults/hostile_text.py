# SPDX-License-Identifier: MIT
"""Texts of strangers that would be commands, paths, terminal sequences or too much, in every place that holds a text."""
import json

import edit
from harness import Fault, MARK

COMMANDS = {"command": f"qqt_r_h_pbr$(touch {MARK})", "backquote": f"`touch {MARK}`", "quotes": f"'\";touch {MARK};\"'"}
PATHS = {"path": "/../../escaped", "parent": "../escaped"}
CONTROLS = {
    "newline": f"a\ntouch {MARK}\n", "escape": "\x1b]0;owned\x07\x1b[31m", "c1": "a\u009b31m", "bidi": "a\u202eb",
    "nul": "a\0b"
}
SIZES = {"long": "x" * 1_000_000, "empty": ""}
EVERY = COMMANDS | PATHS | CONTROLS | SIZES
SHOWN = (0, 1, 2, 3)  # a text that is shown or quoted safely has done nothing

# Of a prepared input, every command that reads it.
PT_READERS = {
    "convert": ("convert", "pt1", "out", "--to", "set"), "tensors": ("convert", "pt1", "out.safetensors"),
    "verify": ("verify", "pt1", "--compare", "none")
}


def of_pt(change, folder="pt1"):
    return lambda place: edit.pt(place / folder / edit.KEYS, change)


def both_objectives(text):
    def plant(place):
        for name in (edit.KEYS, edit.VALUES):
            edit.pt(place / "pt1" / name, lambda content: content.update(objective=text))

    return plant


def objectives():
    """The objective is a name from an enumeration: nothing else may become a file name or a line of serve.env."""
    for kind, text in EVERY.items():
        for reader, args in PT_READERS.items():
            if reader != "convert" and kind not in ("command", "path", "newline", "long"):
                continue
            more = ("served",) if reader == "reference" else ()
            yield Fault(f"text/pt1-objective/{kind}/{reader}",
                        f"objective of a .pt file is {kind}: {reader}",
                        args, ("pt1", *more),
                        both_objectives(text),
                        exits=(1, 3) if reader == "verify" else (1,),
                        control=reader != "verify")
        if kind in CONTROLS:
            yield Fault(f"text/pt1-objective/{kind}/inspect",
                        f"objective of a .pt file is {kind}: inspect", ("inspect", "pt1"), ("pt1",),
                        both_objectives(text),
                        exits=SHOWN)


def free_texts_of_pt():
    for field in ("transform.recipe", "calibration.model_path", "calibration.model_revision", "calibration.prompt_sha256"):
        for kind in ("command", "quotes", "newline", "escape", "long"):
            yield Fault(f"text/pt3-{field}/{kind}",
                        f"{field} of a .pt file of version 3 is {kind}", ("convert", "pt3", "out"), ("pt3",),
                        of_pt(lambda content, f=field, k=kind: edit.put(content, f, EVERY[k]), "pt3"),
                        exits=SHOWN)
    for field in ("transform.codec", "transform.scale_dtype", "source_grouping"):
        for kind in ("command", "newline", "long"):
            yield Fault(f"text/pt3-{field}/{kind}", f"{field} of a .pt file of version 3 is {kind}: no name of ours",
                        ("convert", "pt3", "out"), ("pt3",),
                        of_pt(lambda content, f=field, k=kind: edit.put(content, f, EVERY[k]), "pt3"))


def layer_keys():
    def rename(key):
        def change(content):
            content["layers"] = {key if old == 1 else old: layer for old, layer in content["layers"].items()}

        return of_pt(change)

    for kind, key in {
            "command": COMMANDS["command"], "escape": CONTROLS["escape"], "negative": -1, "huge": 1 << 40,
            "float": 1.5, "tuple": (1, 2)
    }.items():
        yield Fault(f"text/pt1-layer/{kind}", f"a layer's key in a .pt file is {kind}", ("convert", "pt1", "out"), ("pt1",),
                    rename(key))


def attributes_of_h5():
    names = {
        "key_objective": (1,), "value_objective": (1,), "codec": (1,), "scale_dtype": (1,), "model_id": SHOWN,
        "calibration_data_sha256": SHOWN, "recipe": SHOWN, "schema": (1,)
    }
    for name, exits in names.items():
        for kind in ("command", "parent", "newline", "escape"):
            yield Fault(
                f"text/h5-{name}/{kind}",
                f"attribute {name} of a foreign .h5 is {kind}", ("convert", "bare.h5", "out"), ("bare.h5",),
                lambda place, n=name, k=kind: edit.h5(place / "bare.h5", lambda file: file.attrs.update({n: EVERY[k]})),
                exits=exits)
        yield Fault(f"text/h5-{name}/no-utf8",
                    f"attribute {name} of a foreign .h5 is no UTF-8", ("convert", "bare.h5", "out"), ("bare.h5",),
                    lambda place, n=name: edit.h5(place / "bare.h5", lambda file: file.attrs.update({n: b"\xff\xfea"})),
                    exits=exits)


# Members of a manifest: names are held to what they may be, free texts are quoted or refused.
NAMES = ("objectives.key", "codec.name", "files.0.path", "layers.0.layer_id", "schema")
FREE = ("model.id", "model.revision", "recipe.name", "recipe.target", "oscar_version", "calibration.data_sha256")


def in_containers():
    """A manifest inside another file: one JSON document in four formats."""
    for member, exits in [
            *((name, (1,)) for name in ("objectives.key", "codec.name", "layers.0.layer_id")),
            *((name, SHOWN) for name in ("model.id", "recipe.target"))
    ]:
        for kind in ("command", "parent", "escape"):

            def change(text, m=member, k=kind):
                document = json.loads(text)
                edit.put(document, m, EVERY[k])
                return json.dumps(document)

            for name, plant in {
                    "set.safetensors": lambda place, c=change: edit.embedded(place / "set.safetensors", "manifest", c)
            }.items():
                yield Fault(f"text/{name}-{member}/{kind}",
                            f"{member} in the manifest of {name} is {kind}", ("convert", name, "out"), (name,),
                            plant,
                            exits=exits)


def in_manifest():
    def plant(member, kind):
        return lambda place: edit.json_file(place / "set/manifest.json", lambda manifest: edit.put(
            manifest, member, EVERY[kind]))

    for member in NAMES:
        for kind, command in (("command", "convert"), ("parent", "publish"), ("escape", "inspect"), ("newline", "verify")):
            yield Fault(f"text/manifest-{member}/{kind}",
                        f"{member} of a set's manifest is {kind}: {command}",
                        COMMANDS_OF[command], ("set",),
                        plant(member, kind),
                        exits=SHOWN if command == "inspect" else (1, 3))
    for member in FREE:
        for kind, command in (("command", "convert"), ("escape", "inspect"), ("c1", "verify"), ("newline", "convert")):
            yield Fault(f"text/manifest-{member}/{kind}",
                        f"{member} of a set's manifest is {kind}: {command}",
                        COMMANDS_OF[command], ("set",),
                        plant(member, kind),
                        exits=SHOWN)


COMMANDS_OF = {
    "convert": ("convert", "set", "out"), "inspect": ("inspect", "set"),
    "publish": ("publish", "set", "--zoo", "out", "--name", "me/m"),
    "verify": ("verify", "set", "--compare", "none", "--no-record"),
    "pull": ("pull", "me/m", "--zoo", "zoo", "--out", "out"),
    "list": ("zoo", "list", "--zoo", "zoo")
}


def in_index():
    for member in ("name", "tag", "path", "oscar_version", "created", "summary.model", "summary.recipe"):
        for kind in ("command", "parent", "escape", "long"):
            for command in ("pull", "list"):
                yield Fault(f"text/index-{member}/{kind}/{command}",
                            f"{member} of a zoo's index is {kind}: {command}",
                            COMMANDS_OF[command], ("zoo",),
                            lambda place, m=member, k=kind: edit.json_file(
                                place / "zoo/index.json", lambda index: edit.put(index, f"entries.0.{m}", EVERY[k])),
                            exits=(1,) if member in ("name", "tag", "path") and command == "pull" else SHOWN)


def tensor_names():
    def plant(name):
        def change(header):
            header[name] = header.pop("layers.1.key.rotation")

        return lambda place: edit.safetensors(place / "set.safetensors", change)

    for kind in ("command", "parent", "escape", "newline", "nul", "long", "empty"):
        yield Fault(f"text/tensor-name/{kind}", f"a tensor of a set in safetensors is called {kind}",
                    ("convert", "set.safetensors", "out"), ("set.safetensors",), plant(EVERY[kind]))


def file_names():
    def named(name):
        return lambda place: (place / "pt1" / edit.KEYS).rename(place / "pt1" / f"k_rotation_{name}.pt")

    for kind in ("command", "newline", "escape", "bidi"):
        name = EVERY[kind].replace("/", "_")
        for command, args in {"convert": ("convert", "pt1", "out"), "inspect": ("inspect", "pt1")}.items():
            yield Fault(f"text/file-name/{kind}/{command}",
                        f"a .pt file's name is {kind}: {command}",
                        args, ("pt1",),
                        named(name),
                        exits=SHOWN)
        yield Fault(f"text/folder-name/{kind}",
                    f"a missing set's name is {kind}", ("verify", EVERY[kind].replace("\0", "")), (),
                    None,
                    says="no such file")


def served_folders():
    """What serve-env prints is sourced."""
    for kind, name in {**COMMANDS, "newline": f"a\ntouch {MARK}\n", "space": f"a; touch {MARK}"}.items():
        yield Fault(f"text/serve-env/{kind}",
                    f"the folder of a set that is served is called {kind}", ("serve-env", name), ("set",),
                    lambda place, n=name: (place / "set").rename(place / n),
                    exits=(0, 1),
                    shell='"$@" >out.env; status=$?; (set -a; source ./out.env) >/dev/null 2>&1; exit $status',
                    control=False)


def faults():
    for group in (objectives, free_texts_of_pt, layer_keys, attributes_of_h5, in_containers, in_manifest, in_index,
                  tensor_names, file_names, served_folders):
        yield from group()
