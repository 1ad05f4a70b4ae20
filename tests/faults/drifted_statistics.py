# SPDX-License-Identifier: MIT
"""Statistics that have changed since they were written, a bit of them or all."""
import json

import numpy

import edit
from harness import Fault

FIT_STATS = ("fit", "--stats", "stats", "stats2", "--recipe", "oscar", "--out", "out")


def tensor(path, name, change):
    """change(array) -> array of the same size, in the place of a tensor of a safetensors file."""
    header, data = edit.read_safetensors(path)
    begin, end = header[name]["data_offsets"]
    values = numpy.frombuffer(data[begin:end], "<f8").reshape(header[name]["shape"]).copy()
    changed = numpy.ascontiguousarray(change(values), "<f8").tobytes()
    assert len(changed) == end - begin
    edit.write_safetensors(path, header, data[:begin] + changed + data[end:])


def bit(values, place, bit_number):
    values.reshape(-1).view("u8")[place] ^= numpy.uint64(1 << bit_number)
    return values


def put_at(values, place, value):
    values.reshape(-1)[place] = value
    return values


CHANGES = {
    "nan": lambda values: put_at(values, 0, numpy.nan), "infinite": lambda values: put_at(values, -1, numpy.inf),
    "negated": lambda values: -values, "zeros": lambda values: values * 0, "doubled": lambda values: values * 2,
    "low-bit": lambda values: bit(values, 0, 1), "high-bit": lambda values: bit(values, values.size // 2, 58),
    "sign": lambda values: bit(values, values.size - 1, 63)
}


def statistics_tensors():
    for file, name in (("stats", "layer_0.qqt.sums"), ("stats", "layer_1.qqt.total"), ("stats2", "layer_2.sst.sums"),
                       ("stats2", "layer_3.sst.total")):
        for change, function in CHANGES.items():
            yield Fault(f"drift/{file}-{name}/{change}",
                        f"{name} of statistics: {change}",
                        FIT_STATS, ("stats", "stats2"),
                        lambda place, f=file, n=name, c=function: tensor(place / f, n, c))
    yield Fault(
        "drift/stats/indefinite", "sums have a negative eigenvalue", FIT_STATS, ("stats", "stats2"), lambda place: tensor(
            place / "stats", "layer_1.qqt.sums", lambda values: values - 2 * values[:, :1, :1] * numpy.eye(128)))
    yield Fault(
        "drift/stats/asymmetric", "sums are not symmetric", FIT_STATS, ("stats", "stats2"),
        lambda place: tensor(place / "stats", "layer_1.qqt.sums", lambda values: put_at(values, 3, values[0, 0, 0] * 3)))
    for read, args in {
            "verify": ("verify", "set", "--stats", "stats", "--compare", "none", "--no-record"),
            "inspect": ("inspect", "stats")
    }.items():
        for change in ("nan", "negated", "high-bit"):
            yield Fault(f"drift/stats-{read}/{change}",
                        f"sums of statistics: {change}: {read}",
                        args, ("stats", "set"),
                        lambda place, c=change: tensor(place / "stats", "layer_0.qqt.sums", CHANGES[c]),
                        exits=(1, 3))


def statistics_files():
    def manifest(change):
        def apply(text):
            document = json.loads(text)
            change(document)
            return json.dumps(document)

        return lambda place: edit.embedded(place / "stats", "manifest", apply)

    header = lambda change: lambda place: edit.safetensors(place / "stats", change)
    plants = {
        "missing-sums": header(lambda head: head.pop("layer_1.qqt.sums")),
        "missing-total": header(lambda head: head.pop("layer_1.qqt.total")), "exchanged": header(lambda head: head.update(
            {"layer_1.qqt.sums": head["layer_2.qqt.sums"], "layer_2.qqt.sums": head["layer_1.qqt.sums"]})),
        "renamed": header(lambda head: head.update({"layer_1.ktk.sums": head.pop("layer_1.qqt.sums")})),
        "reshaped": header(lambda head: head["layer_1.qqt.sums"].update(shape=[4, 64, 64])),
        "type": header(lambda head: head["layer_1.qqt.sums"].update(dtype="I64")),
        "key-dim": manifest(lambda document: edit.put(document, "layers.1.key_dim", 64)),
        "layer-missing": manifest(lambda document: edit.drop(document, "layers.1")),
        "layer-twice": manifest(lambda document: document["layers"].append(document["layers"][3])),
        "windows": manifest(lambda document: edit.put(document, "windows.sink", 0)),
        "model": manifest(lambda document: edit.put(document, "model.config_sha256", "0" * 64)),
        "tokens": manifest(lambda document: edit.put(document, "data.0.tokens", 7)),
        "data-none": manifest(lambda document: document.update(data=[])),
        "data-twice": manifest(lambda document: document["data"].append(document["data"][0])),
        "heads": manifest(lambda document: edit.put(document, "model.num_key_value_heads", 3)),
        "cut": lambda place: edit.text_file(place / "stats", lambda raw: raw[:len(raw) // 2]),
        "grown": lambda place: edit.text_file(place / "stats", lambda raw: raw + bytes(64)),
        "end": lambda place: edit.flip(place / "stats", -3)
    }
    for name, plant in plants.items():
        yield Fault(f"drift/stats/{name}", f"statistics have changed: {name}", FIT_STATS, ("stats", "stats2"), plant)
    yield Fault("drift/stats/same-twice",
                "the same statistics are given twice", ("fit", "--stats", "stats", "stats", "--save-stats", "out"),
                ("stats",),
                None,
                says="error:",
                control=False)


def faults():
    for group in (statistics_tensors, statistics_files):
        yield from group()
