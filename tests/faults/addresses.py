# SPDX-License-Identifier: MIT
"""Models at addresses, and files of strangers on a hub."""
import contextlib

import edit
from harness import Fault
from peers import FileServer, Hub
from support import read_folder

QUICK = ("--retries", "0", "--timeout", "2")


def hubs():
    """Files of strangers on a hub."""
    @contextlib.contextmanager
    def hub(folder):
        with Hub("some/where", {f"a/{name}": content for name, content in read_folder(folder / "pt1").items()}) as server:
            yield server.url

    for name, text in {"command": "qqt_r_h_pbr$(touch pwned)", "path": "/../../escaped",
                       "newline": "a\ntouch pwned"}.items():

        def plant(place, text=text):
            for side in (edit.KEYS, edit.VALUES):
                edit.pt(place / "pt1" / side, lambda content: content.update(objective=text))

        for out in (("--out", "out"), ()):
            yield Fault(f"transport/hub-objective/{name}{'' if out else '-cache'}",
                        f"pull hf:// of .pt files whose objective is {name}", ("pull", "hf://some/where/a", *out, *QUICK),
                        ("pt1",),
                        plant,
                        serve=hub)
    yield Fault("transport/hub/one-side",
                "pull hf:// of a folder with keys only", ("pull", "hf://some/where/a", "--out", "out", *QUICK), ("pt1",),
                lambda place: (place / "pt1" / edit.VALUES).unlink(),
                serve=hub)


def streams():
    """Models at addresses."""
    def ranges(prefix, **options):
        def serve(folder):
            return FileServer({f"x/{name}": content for name, content in read_folder(folder / prefix).items()}, **options)

        return serve

    def model(change):
        def serve(folder):
            files = {f"x/{name}": content for name, content in read_folder(folder / "model").items()}
            change(files)
            return FileServer(files)

        return serve

    dump = ("dump", "--model", "{url}/x", "--tokens", "tokens.npy", "--max-tokens", "64", "--out", "out")
    yield Fault("transport/model/no-ranges",
                "a server of weights sends no ranges",
                dump, ("model", "tokens.npy"),
                serve=ranges("model", ranges=False))
    weights = "x/model-00001-of-00001.safetensors"
    for name, change in {
            "short": lambda files: files.update({weights: files[weights][:100_000]}),
            "missing": lambda files: files.pop(weights),
            "page": lambda files: files.update({weights: b"<html>" + bytes(1000)}),
            "config": lambda files: files.update({"x/config.json": b"{}"}), "index": lambda files: files.update({
                "x/model.safetensors.index.json": files["x/model.safetensors.index.json"].replace(
                    b"model-00001-of-00001", b"../../model-00001-of-00001")
            })
    }.items():
        yield Fault(f"transport/model/{name}",
                    f"weights at an address: {name}",
                    dump, ("model", "tokens.npy"),
                    serve=model(change))

def faults():
    for group in (hubs, streams):
        yield from group()
