# SPDX-License-Identifier: MIT
"""HDF5 files that lead elsewhere, hold what has no place there, or claim too much: {name: function that changes a file}."""
import h5py
import numpy

import edit
from harness import Fault, table

ROTATION = "layers/1/key/rotation"


def edited(change):
    return lambda path: edit.h5(path, change)


def replaced(make):
    """make(file, name) puts something else in the place of a rotation."""
    return edited(lambda file: (file.__delitem__(ROTATION), make(file, ROTATION)))


def external_storage(path):
    (path.parent / "secret.bin").write_bytes(bytes(128 * 128 * 4))
    replaced(lambda file, name: file.create_dataset(
        name, (128, 128), "f4", external=[(str(path.parent / "secret.bin"), 0, 128 * 128 * 4)]))(path)


def virtual(path):
    with h5py.File(path.parent / "secret.h5", "w") as file:
        file["x"] = numpy.eye(128, dtype="f4")
    layout = h5py.VirtualLayout(shape=(128, 128), dtype="f4")
    layout[:] = h5py.VirtualSource(str(path.parent / "secret.h5"), "x", shape=(128, 128))
    replaced(lambda file, name: file.create_virtual_dataset(name, layout))(path)


def external_link(name, target):
    def plant(path):
        with h5py.File(path.parent / "secret.h5", "w") as file, h5py.File(path) as source:
            source.copy("layers/1", file, "1")
            source.copy("layers", file)
        edited(lambda file: (file.__delitem__(name), file.__setitem__(name, h5py.ExternalLink("secret.h5", target))))(path)

    return plant


def layer(make):
    """make(file) is put in the place of a layer."""
    return edited(lambda file: (file.__delitem__("layers/1"), file.__setitem__("layers/1", make(file))))


LINKS = {
    "external-dataset": external_link(ROTATION, f"/{ROTATION}"),
    "external-group": external_link("layers/1", "/1"),
    "external-layers": external_link("layers", "/layers"),
    "external-passwd": replaced(lambda file, name: file.__setitem__(name, h5py.ExternalLink("/etc/passwd", "/x"))),
    "external-storage": external_storage,
    "virtual": virtual,
    "soft-missing": replaced(lambda file, name: file.__setitem__(name, h5py.SoftLink("/nowhere"))),
    "soft-loop": replaced(lambda file, name: file.__setitem__(name, h5py.SoftLink(f"/{name}"))),
    "soft-layer": layer(lambda file: h5py.SoftLink("/layers/2")),
    "hard-cycle": edited(lambda file: file.__setitem__("layers/1/layers", file["layers"])),
    "hard-root": layer(lambda file: file["/"]),
}

CONTENTS = {
    **{f"type-{name}": replaced(lambda file, at, d=dtype: file.create_dataset(at, data=numpy.eye(128).astype(d)))
       for name, dtype in {"float64": "f8", "int8": "i1", "complex": "c8", "text": "S4", "big-endian": ">i4"}.items()},
    **{f"shape-{name}": replaced(lambda file, at, s=shape: file.create_dataset(at, data=numpy.ones(s, "f4")))
       for name, shape in {"scalar": (), "vector": (128,), "empty": (0, 0), "wide": (128, 256), "deep": (2, 2, 128, 128),
                           "small": (64, 64)}.items()},
    **{f"value-{name}": edited(lambda file, v=value: file[ROTATION].__setitem__((3, 4), v))
       for name, value in {"nan": numpy.nan, "infinite": numpy.inf, "huge": 1e38}.items()},
    "null": replaced(lambda file, at: file.create_dataset(at, data=h5py.Empty("f4"))),
    "group": replaced(lambda file, at: file.create_group(at)),
    "bomb": replaced(lambda file, at: file.create_dataset(at, (1 << 20, 1 << 20), "f4", chunks=(1024, 1024),
                                                          compression="gzip", fillvalue=1)),
    "layer-dataset": layer(lambda file: 7),
    "layer-name": edited(lambda file: file.move("layers/1", "layers/-1")),
    "layer-huge": edited(lambda file: file.move("layers/1", "layers/99999999999")),
    "layer-zero": edited(lambda file: file.copy("layers/1", "layers/01")),
    "more-dataset": edited(lambda file: file.create_dataset("layers/1/key/code", data=[1])),
    "more-group": edited(lambda file: file.create_group("run")),
}


def attribute(name, value, group="/"):
    return edited(lambda file: file[group].attrs.__setitem__(name, value))


ATTRIBUTES = {
    "clip": attribute("clip_ratio", 0.5, "layers/1/key"),
    "clip-reference": edited(lambda file: file["layers/1/key"].attrs.__setitem__("clip_ratio", file["layers"].ref)),
    **{f"schema-{kind}": attribute("schema", value) for kind, value in {
        "number": 7, "nan": numpy.nan, "variable": "oscar.set.v1-or-so", "array": [numpy.bytes_("a"), numpy.bytes_("b")]}.items()},
}

BYTES = {
    "cut": lambda path: edit.text_file(path, lambda raw: raw[:len(raw) // 2]),
    "head": lambda path: edit.text_file(path, lambda raw: raw[:100]),
    "zeros": lambda path: edit.text_file(path, lambda raw: raw[:len(raw) // 2] + bytes(len(raw) // 2)),
    "superblock": lambda path: edit.flip(path, 20, 0xff),
}


def external_rows(path):
    with h5py.File(path) as source, h5py.File(path.parent / "secret.h5", "w") as target:
        source.copy("q", target, "x")
    edit.h5(path, lambda file: (file.__delitem__("q"), file.__setitem__("q", h5py.ExternalLink("secret.h5", "/x"))))


def set_nan(file):
    values = file["q"][()]
    values.view("u2")[7, 0, 3] = 0x7fc0
    file["q"][...] = values


ROWS = {
    "external": external_rows,
    "soft": edited(lambda file: (file.move("q", "x"), file.__setitem__("q", h5py.SoftLink("/x")))),
    "nan": edited(set_nan),
}


def at(path, changes):
    return {name: lambda place, c=change: c(place / path) for name, change in changes.items()}


def in_set(change):
    def plant(place):
        change(place / "set/rotations.h5")
        for name in ("secret.h5", "secret.bin"):
            if (place / "set" / name).exists():
                (place / "set" / name).rename(place / name)
        edit.rehash(place / "set")

    return plant


def faults():
    alone = at("set.h5", LINKS | CONTENTS | ATTRIBUTES | BYTES)
    yield from table("hdf5/alone", ("convert", "set.h5", "out.safetensors"), ("set.h5",), alone)
    for name, change in (LINKS | CONTENTS).items():
        yield Fault(f"hdf5/set/{name}", ("verify", "set", "--compare", "none", "--no-record"), ("set",), in_set(change), exits=(1, 3))
    yield from table("hdf5/inspect", ("inspect", "set.h5"), ("set.h5",), at("set.h5", LINKS))
    yield from table("hdf5/dump", ("fit", "--dump", "dump_h5", "--recipe", "oscar", "--out", "out"), ("dump_h5",),
                     at("dump_h5/layer_1/q/1.h5", ROWS))
