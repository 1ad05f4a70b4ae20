# SPDX-License-Identifier: MIT
"""Dumps, and what --resume keeps, that have changed since they were written."""
import numpy
import torch

import edit
from harness import Fault

RECIPE = ("--recipe", "oscar", "--clip", "0.96,0.92", "--out", "out")


def chunk(layer, kind, change, folder="dump", number=1):
    def plant(place):
        path = place / f"{folder}/layer_{layer}/{kind}/{number}.pt"
        content = torch.load(path, weights_only=True)
        torch.save(change(content), path)

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


def dump_chunks():
    manifest = lambda path, value: lambda place: edit.json_file(place / "dump/manifest.json", lambda document: edit.put(
        document, path, value))
    plants = {
        **{f"{kind}-float32": chunk(1, kind, lambda rows: rows.float()) for kind in "qkv"}, **{
            f"{kind}-float16": chunk(1, kind, lambda rows: rows.half()) for kind in "qkv"
        }, **{f"{kind}-fewer": chunk(1, kind, lambda rows: rows[:800].clone()) for kind in "qkv"}, **{
            f"{kind}-more": chunk(1, kind, lambda rows: torch.cat([rows, rows[:40]])) for kind in "qkv"
        }, **{f"{kind}-nan": chunk(1, kind, put_tensor(float("nan"))) for kind in "qkv"},
        **{f"{kind}-bit": chunk(1, kind, flipped) for kind in "qkv"},
        **{f"{kind}-layers": exchange(f"layer_0/{kind}/1.pt", f"layer_1/{kind}/1.pt") for kind in "qkv"}, **{
            f"{kind}-missing": lambda place, k=kind: (place / f"dump/layer_1/{k}/1.pt").unlink() for kind in ("q", "k", "v", "seq_lens")
        }, "layers": exchange("layer_0", "layer_1"), "sides": exchange("layer_1/k/1.pt", "layer_1/v/1.pt"),
        "q-zeros": chunk(1, "q", torch.zeros_like), "k-zeros": chunk(1, "k", torch.zeros_like),
        "k-overflow": chunk(1, "k", put_tensor(float("inf"))), "k-heads": chunk(1, "k", lambda rows: rows.repeat(1, 2, 1)),
        "k-dim": chunk(1, "k", lambda rows: rows[..., :64].clone()), "seq-lens": chunk(1, "seq_lens", lambda lens: lens + 1),
        "seq-lens-negative": chunk(1, "seq_lens", lambda lens: torch.tensor([1600, -400])), "seq-lens-float": chunk(
            1, "seq_lens", lambda lens: lens.double() + 0.5), "seq-lens-other": chunk(1, "seq_lens",
                                                                                      lambda lens: torch.tensor([600, 600])),
        "cut": lambda place: edit.text_file(place / "dump/layer_1/k/1.pt", lambda raw: raw[:len(raw) // 2]),
        "grown": lambda place: edit.text_file(place / "dump/layer_1/k/1.pt", lambda raw: raw + bytes(4096)),
        "other-kind": lambda place: numpy.save(place / "dump/layer_1/k/1.pt.npy", numpy.zeros(3)) or
        (place / "dump/layer_1/k/1.pt.npy").replace(place / "dump/layer_1/k/1.pt"), "manifest-tokens": manifest(
            "layers.1.chunks.0.tokens",
            900), "manifest-offset": manifest("layers.1.chunks.0.offsets.k", 449), "manifest-offset-huge": manifest(
                "layers.1.chunks.0.offsets.k",
                1 << 60), "manifest-offset-negative": manifest("layers.1.chunks.0.offsets.k",
                                                               -64), "manifest-dtype": manifest("dtype", "float32"),
        "manifest-lens": manifest("layers.1.chunks.0.seq_lens", [1200]), "manifest-lens-sum": manifest(
            "layers.1.chunks.0.seq_lens",
            [400, 400]), "manifest-format": manifest("format", "h5"), "manifest-layer-id": manifest("layers.1.layer_id", 7),
        "manifest-layer-twice": manifest("layers.1.layer_id", 0), "manifest-chunk-number": manifest(
            "layers.1.chunks.0.chunk",
            2), "manifest-head-dim": manifest("model.head_dim", 64), "manifest-chunk-twice": lambda place: edit.json_file(
                place / "dump/manifest.json", lambda document: document["layers"][1]["chunks"].append(document["layers"][1][
                    "chunks"][0]))
    }
    reads = {
        "fit": ("fit", "--dump", "dump", *RECIPE),
        "verify": ("verify", "set", "--dump", "dump", "--recent", "64", "--compare", "none", "--no-record")
    }
    for index, (name, plant) in enumerate(plants.items()):
        yield Fault(f"drift/dump/{name}/fit", f"a dump has changed: {name}: fit", reads["fit"], ("dump",), plant)
        if index % 8 == 0:
            # A dump that says it is of another model speaks against the set; one that is damaged does not.
            yield Fault(f"drift/dump/{name}/verify",
                        f"a dump has changed: {name}: verify",
                        reads["verify"], ("dump", "set"),
                        plant,
                        exits=(1, 3) if name.startswith("manifest-") else (1,))


def served_chunks():
    """Of a server's dump nothing but the files themselves tells."""
    of = lambda kind, change, number=2: chunk(1, kind, change, "served", number)
    plants = {
        "k-fewer": of("k", lambda rows: rows[:300].clone()), "v-more": of("v", lambda rows: torch.cat([rows, rows[:1]])),
        "k-nan": of("k", put_tensor(float("nan"))),
        "q-zeros": lambda place: [chunk(1, "q", torch.zeros_like, "served", number)(place) for number in (1, 2, 3)],
        "k-dim": of("k", lambda rows: rows[..., :64].clone()), "v-flat": of("v", lambda rows: rows.reshape(-1)),
        "k-int": of("k", lambda rows: rows.to(torch.int32)), "lens-sum": of("seq_lens", lambda lens: lens + 5),
        "lens-zero": of("seq_lens", torch.zeros_like), "lens-text": of("seq_lens",
                                                                       lambda lens: ["400"]), "missing": lambda place:
        (place / "served/layer_1/k/2.pt").unlink(), "gap": lambda place: [(place / f"served/layer_1/{kind}/2.pt").unlink()
                                                                          for kind in ("q", "k", "v", "seq_lens")],
        "empty-layer": lambda place: [path.unlink() for path in (place / "served/layer_1").rglob("*.pt")]
    }
    for name, plant in plants.items():
        yield Fault(f"drift/served/{name}", f"a server's dump does not fit together: {name}",
                    ("fit", "--dump", "served", *RECIPE), ("served",), plant)


def kept_states():
    fit = ("fit", "--model", "model", "--tokens", "tokens.npy", "--sequences", "8", "--seq-len", "1024", "--recipe", "oscar",
           "--clip", "0.96,0.92", "--resume", "--out", "out")

    def same_bytes(folder, done):
        if done.status == 0 and any((folder / "out" / name).read_bytes() != (folder / "whole" / name).read_bytes()
                                    for name in (edit.KEYS, edit.VALUES)):
            return "another set than without the interruption"
        return None

    def kept(pattern, change):
        def plant(place):
            (place / "going.partial").rename(place / "out.partial")
            for path in sorted((place / "out.partial").glob(pattern)):
                change(path)

        return plant

    plants = {
        "hidden-bit": kept("hidden_*", lambda path: edit.flip(path,
                                                              path.stat().st_size // 2)),
        "hidden-end": kept("hidden_*", lambda path: edit.flip(path, -2)),
        "hidden-cut": kept("hidden_*", lambda path: edit.text_file(path, lambda raw: raw[:len(raw) // 2])),
        "hidden-zeros": kept("hidden_*", lambda path: edit.text_file(path, lambda raw: raw[:4096] + bytes(len(raw) - 4096))),
        "layer-bit": kept("layer_0*", lambda path: edit.flip(path,
                                                             path.stat().st_size // 2)),
        "layer-end": kept("layer_1*", lambda path: edit.flip(path, -2)),
        "layer-cut": kept("layer_0*", lambda path: edit.text_file(path, lambda raw: raw[:len(raw) // 2])),
        "layer-exchanged": kept("layer_0*", lambda path: path.write_bytes(
            (path.parent / "layer_1.safetensors").read_bytes()))
    }
    for name, plant in plants.items():
        yield Fault(f"drift/resume/{name}",
                    f"what --resume kept has changed: {name}",
                    fit, ("model", "tokens.npy", "going.partial", "whole"),
                    plant,
                    exits=(0, 1),
                    check=same_bytes,
                    control=False,
                    overwrites=True)


def faults():
    for group in (dump_chunks, served_chunks, kept_states):
        yield from group()
