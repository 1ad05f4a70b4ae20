# SPDX-License-Identifier: MIT
"""Dumps, and what --resume keeps, that have changed since they were written."""
import shutil

import numpy
import torch

import edit
from harness import Fault, table

RECIPE = ("--recipe", "oscar", "--clip", "0.96,0.92", "--out", "out")
KINDS = ("q", "k", "v", "seq_lens")


def chunk(kind, change, folder="dump", number=1):
    def plant(place):
        path = place / f"{folder}/layer_1/{kind}/{number}.pt"
        torch.save(change(torch.load(path, weights_only=True)), path)

    return plant


def exchange(first, second, folder="dump"):
    def plant(place):
        one, two, aside = place / folder / first, place / folder / second, place / "aside"
        one.rename(aside)
        two.rename(one)
        aside.rename(two)

    return plant


def put_tensor(value):
    def change(rows):
        rows = rows.clone()
        rows[5, 0, 7] = value
        return rows

    return change


def flipped(rows):
    rows = rows.clone()
    rows.view(torch.int16)[5, 0, 7] ^= 0x2000
    return rows


def manifest(path, value):
    return lambda place: edit.json_file(place / "dump/manifest.json", lambda document: edit.put(document, path, value))


def another_kind(place):
    numpy.save(place / "aside.npy", numpy.zeros(3))
    (place / "aside.npy").replace(place / "dump/layer_1/k/1.pt")


ROWS = {
    "float32": lambda rows: rows.float(), "float16": lambda rows: rows.half(), "fewer": lambda rows: rows[:800].clone(),
    "more": lambda rows: torch.cat([rows, rows[:40]]), "nan": put_tensor(float("nan")), "bit": flipped
}
DUMP = {
    **{f"{kind}-{name}": chunk(kind, change) for name, change in ROWS.items() for kind in "qkv"},
    **{f"{kind}-layers": exchange(f"layer_0/{kind}/1.pt", f"layer_1/{kind}/1.pt") for kind in "qkv"},
    **{f"{kind}-missing": lambda place, k=kind: (place / f"dump/layer_1/{k}/1.pt").unlink() for kind in KINDS},
    "layers": exchange("layer_0", "layer_1"),
    "sides": exchange("layer_1/k/1.pt", "layer_1/v/1.pt"),
    "q-zeros": chunk("q", torch.zeros_like),
    "k-zeros": chunk("k", torch.zeros_like),
    "k-overflow": chunk("k", put_tensor(float("inf"))),
    "k-heads": chunk("k", lambda rows: rows.repeat(1, 2, 1)),
    "k-dim": chunk("k", lambda rows: rows[..., :64].clone()),
    "seq-lens": chunk("seq_lens", lambda lens: lens + 1),
    "seq-lens-negative": chunk("seq_lens", lambda lens: torch.tensor([1600, -400])),
    "seq-lens-float": chunk("seq_lens", lambda lens: lens.double() + 0.5),
    "seq-lens-other": chunk("seq_lens", lambda lens: torch.tensor([600, 600])),
    "cut": lambda place: edit.text_file(place / "dump/layer_1/k/1.pt", lambda raw: raw[:len(raw) // 2]),
    "grown": lambda place: edit.text_file(place / "dump/layer_1/k/1.pt", lambda raw: raw + bytes(4096)),
    "chunk-more": lambda place: shutil.copy(place / "dump/layer_1/v/1.pt", place / "dump/layer_1/v/3.pt"),
    "layer-more": lambda place: shutil.copytree(place / "dump/layer_1", place / "dump/layer_7"),
    "other-kind": another_kind,
    **{f"manifest-{name}": manifest(path, value) for name, (path, value) in {
        "tokens": ("layers.1.chunks.0.tokens", 900), "offset": ("layers.1.chunks.0.offsets.k", 449),
        "offset-huge": ("layers.1.chunks.0.offsets.k", 1 << 60), "offset-negative": ("layers.1.chunks.0.offsets.k", -64),
        "dtype": ("dtype", "float32"), "lens": ("layers.1.chunks.0.seq_lens", [1200]),
        "lens-sum": ("layers.1.chunks.0.seq_lens", [400, 400]), "format": ("format", "h5"),
        "layer-id": ("layers.1.layer_id", 7), "layer-twice": ("layers.1.layer_id", 0),
        "chunk-number": ("layers.1.chunks.0.chunk", 2), "head-dim": ("model.head_dim", 64),
        "chunk-twice": ("layers.1.chunks", lambda chunks: [*chunks, chunks[0]])}.items()},
}


def in_format(suffix, folder):
    """Files of a format whose tensors nothing above writes."""
    keys = f"{folder}/layer_1/k/1.{suffix}"
    return {f"{suffix}-layers": exchange(f"layer_0/q/1.{suffix}", f"layer_1/q/1.{suffix}", folder),
            f"{suffix}-sides": exchange(f"layer_1/k/1.{suffix}", f"layer_1/v/1.{suffix}", folder),
            f"{suffix}-cut": lambda place: edit.text_file(place / keys, lambda raw: raw[:-200]),
            f"{suffix}-grown": lambda place: edit.text_file(place / keys, lambda raw: raw + bytes(70_000))}


def served(kind, change):
    return chunk(kind, change, "served", 2)


# Of a server's dump nothing but the files themselves tells. What is said of some:
SAYS = {"k-fewer": "different numbers of tokens: q ", "v-more": "different numbers of tokens", "k-dim": "different head dimensions", "k-int": "of int32",
        "q-empty": "the tensor is empty", "k-heads": "do not divide into groups", "lens-sum": "do not add up to 400 tokens", "lens-zero": "below 1", "missing": "layer_1/k/2.pt",
        "empty-layer": "no chunks", "no-layers": "no layer_<id> folders", "cut": "layer_1/q/2.pt"}
SERVED = {
    "k-fewer": served("k", lambda rows: rows[:300].clone()),
    "v-more": served("v", lambda rows: torch.cat([rows, rows[:1]])),
    "k-nan": served("k", put_tensor(float("nan"))),
    "q-zeros": lambda place: [chunk("q", torch.zeros_like, "served", number)(place) for number in (1, 2, 3)],
    "k-dim": served("k", lambda rows: rows[..., :64].clone()),
    **{f"{kinds}-of-another-size": lambda place, kinds=kinds: [
        chunk(kind, lambda rows: rows[..., :64].clone(), "served", number)(place) for kind in kinds for number in (1, 2, 3)] for kinds in ("v", "qkv")},
    "q-empty": lambda place: [served(kind, lambda rows: rows[:0].clone())(place) for kind in "qkv"],
    "k-heads": lambda place: [chunk(kind, lambda rows: rows.repeat(1, 2, 1), "served", number)(place) for kind in "kv" for number in (1, 2, 3)],
    "cut": lambda place: half(place / "served/layer_1/q/2.pt"),
    "no-layers": lambda place: (place / "served").rename(place / "served-before") and (place / "served").mkdir(),
    "v-flat": served("v", lambda rows: rows.reshape(-1)),
    "k-int": served("k", lambda rows: rows.to(torch.int32)),
    "lens-sum": served("seq_lens", lambda lens: lens + 5),
    "lens-zero": served("seq_lens", torch.zeros_like),
    "lens-other": served("seq_lens", lambda lens: torch.tensor([150, 250], dtype=lens.dtype)),  # than in layer 0
    "lens-text": served("seq_lens", lambda lens: ["400"]),
    "missing": lambda place: (place / "served/layer_1/k/2.pt").unlink(),
    "gap": lambda place: [(place / f"served/layer_1/{kind}/2.pt").unlink() for kind in KINDS],
    "empty-layer": lambda place: [path.unlink() for path in (place / "served/layer_1").rglob("*.pt")],
}


def kept(pattern, change):
    def plant(place):
        (place / "going.partial").rename(place / "out.partial")
        for path in sorted((place / "out.partial").glob(pattern)):
            change(path)

    return plant


def half(path):
    edit.text_file(path, lambda raw: raw[:len(raw) // 2])


def middle_bit(path):
    edit.flip(path, path.stat().st_size // 2)


KEPT = {
    "hidden-bit": kept("hidden_*", middle_bit),
    "hidden-end": kept("hidden_*", lambda path: edit.flip(path, -2)),
    "hidden-cut": kept("hidden_*", half),
    "hidden-zeros": kept("hidden_*", lambda path: edit.text_file(path, lambda raw: raw[:4096] + bytes(len(raw) - 4096))),
    "layer-bit": kept("layer_0*", middle_bit),
    "layer-end": kept("layer_1*", lambda path: edit.flip(path, -2)),
    "layer-cut": kept("layer_0*", half),
    "layer-exchanged": kept("layer_0*", lambda path: path.write_bytes((path.parent / "layer_1.safetensors").read_bytes())),
}


def same_bytes(folder, done):
    if done.status == 0 and any((folder / "out" / name).read_bytes() != (folder / "whole" / name).read_bytes()
                                for name in (edit.KEYS, edit.VALUES)):
        return "another set than without the interruption"
    return None


def faults():
    verify = ("verify", "set", "--dump", "dump", "--recent", "64", "--compare", "none", "--no-record")
    for index, (name, plant) in enumerate(DUMP.items()):
        yield Fault(f"drift/dump/{name}/fit", ("fit", "--dump", "dump", *RECIPE), ("dump",), plant)
        if index % 8 == 0:
            # A dump that says it is of another model speaks against the set; one that is damaged does not.
            yield Fault(f"drift/dump/{name}/verify", verify, ("dump", "set"), plant,
                        exits=(1, 3) if name.startswith("manifest-") else (1,))
    for suffix, folder in (("h5", "dump_h5"), ("safetensors", "dump_st")):
        yield from table("drift/dump", ("fit", "--dump", folder, *RECIPE), (folder,), in_format(suffix, folder))
    for name, plant in SERVED.items():
        yield Fault(f"drift/served/{name}", ("fit", "--dump", "served", *RECIPE), ("served",), plant, says=SAYS.get(name, ""))
    yield from table("drift/resume", ("fit", "--model", "model", "--tokens", "tokens.npy", "--sequences", "8", "--seq-len", "1024",
                                      "--recipe", "oscar", "--clip", "0.96,0.92", "--resume", "--out", "out"),
                     ("model", "tokens.npy", "going.partial", "whole"), KEPT, exits=(0, 1), check=same_bytes, control=False,
                     overwrites=True)
