# SPDX-License-Identifier: MIT
"""Models at addresses, and files of strangers on a hub."""
import contextlib

import edit
from harness import Fault
from peers import FileServer, Hub
from support import read_folder

QUICK = ("--retries", "0", "--timeout", "2")
WEIGHTS, INDEX = "x/model-00001-of-00001.safetensors", "x/model.safetensors.index.json"


def hubs():
    """Files of strangers on a hub."""
    @contextlib.contextmanager
    def hub(folder):
        with Hub("some/where", {f"a/{name}": content for name, content in read_folder(folder / "pt1").items()}) as server:
            yield server.url

    pull = ("pull", "hf://some/where/a", *QUICK)
    for name, text in {"command": "qqt_r_h_pbr$(touch pwned)", "path": "/../../escaped", "newline": "a\ntouch pwned"}.items():
        def plant(place, text=text):
            for side in (edit.KEYS, edit.VALUES):
                edit.pt(place / "pt1" / side, lambda content: content.update(objective=text))
        yield Fault(f"transport/hub-objective/{name}", (*pull, "--out", "out"), ("pt1",), plant, serve=hub)
        yield Fault(f"transport/hub-objective/{name}-cache", pull, ("pt1",), plant, serve=hub)
    yield Fault("transport/hub/one-side", (*pull, "--out", "out"), ("pt1",),
                lambda place: (place / "pt1" / edit.VALUES).unlink(), serve=hub)


def models():
    """Models at addresses."""
    def serve(change=lambda files: None, **options):
        def server(folder):
            files = {f"x/{name}": content for name, content in read_folder(folder / "model").items()}
            change(files)
            return FileServer(files, **options)
        return server

    cases = {
        "no-ranges": serve(ranges=False),
        "short": serve(lambda files: files.update({WEIGHTS: files[WEIGHTS][:100_000]})),
        "missing": serve(lambda files: files.pop(WEIGHTS)),
        "page": serve(lambda files: files.update({WEIGHTS: b"<html>" + bytes(1000)})),
        "config": serve(lambda files: files.update({"x/config.json": b"{}"})),
        "index": serve(lambda files: files.update({INDEX: files[INDEX].replace(b"model-00001-of-00001",
                                                                             b"../../model-00001-of-00001")})),
    }
    for name, server in cases.items():
        yield Fault(f"transport/model/{name}",
                    ("dump", "--model", "{url}/x", "--tokens", "tokens.npy", "--max-tokens", "64", "--out", "out"),
                    ("model", "tokens.npy"), serve=server)


def faults():
    for group in (hubs, models):
        yield from group()
