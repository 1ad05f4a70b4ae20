# SPDX-License-Identifier: MIT
"""Statistics that have changed since they were written, a bit of them or all."""
import json

import numpy

import edit
from harness import Fault, table

FIT_STATS = ("fit", "--stats", "stats", "--recipe", "oscar", "--out", "out")
STATS = ("stats",)


def tensor(file, name, change):
    """change(array) -> array of the same size, in the place of a tensor of a safetensors file."""
    def plant(place):
        header, data = edit.read_safetensors(place / file)
        begin, end = header[name]["data_offsets"]
        values = numpy.frombuffer(data[begin:end], "<f8").reshape(header[name]["shape"]).copy()
        changed = numpy.ascontiguousarray(change(values), "<f8").tobytes()
        assert len(changed) == end - begin
        edit.write_safetensors(place / file, header, data[:begin] + changed + data[end:])

    return plant


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


def manifest(change):
    def apply(text):
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return lambda place: edit.embedded(place / "stats", "manifest", apply)


def member(path, value):
    return manifest(lambda document: edit.put(document, path, value))


def header(change):
    return lambda place: edit.safetensors(place / "stats", change)


FILES = {
    "indefinite": tensor("stats", "layer_1.qqt.sums", lambda values: values - 2 * values[:, :1, :1] * numpy.eye(128)),
    "asymmetric": tensor("stats", "layer_1.qqt.sums", lambda values: put_at(values, 3, values[0, 0, 0] * 3)),
    "missing-sums": header(lambda head: head.pop("layer_1.qqt.sums")),
    "missing-total": header(lambda head: head.pop("layer_1.qqt.total")),
    "exchanged": header(lambda head: head.update({"layer_1.qqt.sums": head["layer_2.qqt.sums"],
                                                  "layer_2.qqt.sums": head["layer_1.qqt.sums"]})),
    "renamed": header(lambda head: head.update({"layer_1.ktk.sums": head.pop("layer_1.qqt.sums")})),
    "reshaped": header(lambda head: head["layer_1.qqt.sums"].update(shape=[4, 64, 64])),
    "type": header(lambda head: head["layer_1.qqt.sums"].update(dtype="I64")),
    "key-dim": member("layers.1.key_dim", 64),
    "layer-missing": manifest(lambda document: edit.drop(document, "layers.1")),
    "layer-twice": manifest(lambda document: document["layers"].append(document["layers"][3])),
    "windows": member("windows.sink", 0),
    "model": member("model.config_sha256", "0" * 64),
    "tokens": member("data.0.tokens", 7),
    "tokens-none": member("data.0.tokens", 0),
    "tokens-fewer-than-rows": manifest(lambda document: document["data"][0].update(tokens=400)),
    "part": member("recipe.plain_part", 1.5),
    "damage": member("layers.1.damage", {"key": -1, "value": 1}),
    "data-none": manifest(lambda document: document.update(data=[])),
    "data-twice": manifest(lambda document: document["data"].append(document["data"][0])),
    "heads": member("model.num_key_value_heads", 3),
    "cut": lambda place: edit.text_file(place / "stats", lambda raw: raw[:len(raw) // 2]),
    "grown": lambda place: edit.text_file(place / "stats", lambda raw: raw + bytes(64)),
    "end": lambda place: edit.flip(place / "stats", -3)
}


def faults():
    for file, name in (("stats", "layer_0.qqt.sums"), ("stats", "layer_1.qqt.total"), ("stats", "layer_2.sst.sums"),
                       ("stats", "layer_3.sst.total")):
        yield from table(f"drift/{file}-{name}", FIT_STATS, STATS,
                         {change: tensor(file, name, function) for change, function in CHANGES.items()})
    for read, args in {"verify": ("verify", "set", "--stats", "stats", "--compare", "none", "--no-record"),
                       "inspect": ("inspect", "stats")}.items():
        yield from table(f"drift/stats-{read}", args, ("stats", "set"), exits=(1, 3), plants={
            change: tensor("stats", "layer_0.qqt.sums", CHANGES[change]) for change in ("nan", "negated", "high-bit")})
    yield from table("drift/stats", FIT_STATS, STATS, FILES)
    yield Fault("drift/stats/same-twice", ("fit", "--stats", "stats", "stats", "--save-stats", "out"), ("stats",),
                says="error:", control=False)
