# SPDX-License-Identifier: MIT
"""How an attacker edits: one function per format, and hashes that are made to fit again."""
import hashlib
import json
import struct

import h5py
import torch

KEYS, VALUES = "k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt"


def at(document, path):
    """(container, last key) of a dotted path; numbers are places in lists."""
    *steps, last = [int(step) if step.lstrip("-").isdigit() else step for step in path.split(".")]
    for step in steps:
        document = document[step]
    return document, last


def put(document, path, value):
    container, last = at(document, path)
    container[last] = value(container[last]) if callable(value) else value


def drop(document, path):
    container, last = at(document, path)
    del container[last]


def json_file(path, change):
    """change(document) edits in place, or returns another."""
    document = json.loads(path.read_text())
    changed = change(document)
    path.write_text(json.dumps(document if changed is None else changed, indent=1) + "\n")


def text_file(path, change):
    path.write_bytes(change(path.read_bytes()))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rehash(folder):
    """Makes the manifest list what is there, as whoever edits a file of a set would."""
    def change(manifest):
        for file in manifest["files"]:
            path = folder / file["path"]
            if path.is_file():
                file["sha256"], file["size"] = sha256(path), path.stat().st_size
    json_file(folder / "manifest.json", change)


def rehash_zoo(zoo, name="me/m/latest", hashes=True):
    """The same for a zoo: the index names the manifest's hash."""
    folder = zoo / name
    if hashes:
        rehash(folder)

    def change(index):
        entry = index["entries"][0]
        entry["manifest"] = {"sha256": sha256(folder / "manifest.json"), "size": (folder / "manifest.json").stat().st_size}
        manifest = json.loads((folder / "manifest.json").read_text())
        entry["total_size"] = entry["manifest"]["size"] + sum(file["size"] for file in manifest["files"])
    json_file(zoo / "index.json", change)


def h5(path, change):
    with h5py.File(path, "r+") as file:
        change(file)


def pt(path, change):
    content = torch.load(path, weights_only=True)
    changed = change(content)
    torch.save(content if changed is None else changed, path)


def read_safetensors(path):
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def write_safetensors(path, header, data, encode=None):
    text = encode(header) if encode else json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogateescape")
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def safetensors(path, change):
    """change(header) edits in place."""
    header, data = read_safetensors(path)
    change(header)
    write_safetensors(path, header, data)


def embedded(path, key, change):
    """Edits a JSON document in the metadata of a safetensors file. change(text) -> text."""
    def edit(header):
        header["__metadata__"][key] = change(header["__metadata__"][key])
    safetensors(path, edit)


def flip(path, offset, mask=0x40):
    """Flips bits of one byte; a negative offset counts from the end."""
    raw = bytearray(path.read_bytes())
    raw[offset] ^= mask
    path.write_bytes(bytes(raw))
