# SPDX-License-Identifier: MIT
"""HDF5 files that lead elsewhere, hold what has no place there, or claim too much."""
import h5py
import numpy

import edit
from harness import Fault

ROTATION = "layers/1/key/rotation"


def replaced(make):
    """make(file, name) puts something else in the place of a rotation."""
    def change(file):
        del file[ROTATION]
        make(file, ROTATION)

    return lambda path: edit.h5(path, change)


def edited(change):
    return lambda path: edit.h5(path, change)


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


def secret(path):
    with h5py.File(path.parent / "secret.h5", "w") as file:
        with h5py.File(path) as source:
            source.copy("layers/1", file, "1")
            source.copy("layers", file)


def external_link(name, target):
    def plant(path):
        secret(path)
        edited(lambda file: (file.__delitem__(name), file.__setitem__(name, h5py.ExternalLink("secret.h5", target))))(path)

    return plant


def compressed_bomb(file, name):
    file.create_dataset(name, (1 << 20, 1 << 20), "f4", chunks=(1024, 1024), compression="gzip", fillvalue=1)


def links():
    yield "external-dataset", "a rotation is a link into another file", external_link(ROTATION, f"/{ROTATION}")
    yield "external-group", "a layer is a link into another file", external_link("layers/1", "/1")
    yield "external-layers", "all layers are a link into another file", external_link("layers", "/layers")
    yield "external-passwd", "a rotation is a link to /etc/passwd", replaced(
        lambda file, name: file.__setitem__(name, h5py.ExternalLink("/etc/passwd", "/x")))
    yield "external-storage", "a rotation's bytes lie in another file", external_storage
    yield "virtual", "a rotation is a view of another file", virtual
    yield "soft-missing", "a rotation is a link to nothing", replaced(
        lambda file, name: file.__setitem__(name, h5py.SoftLink("/nowhere")))
    yield "soft-loop", "a rotation is a link to itself", replaced(
        lambda file, name: file.__setitem__(name, h5py.SoftLink(f"/{name}")))
    yield "soft-layer", "a layer is a soft link to another", edited(
        lambda file: (file.__delitem__("layers/1"), file.__setitem__("layers/1", h5py.SoftLink("/layers/2"))))
    yield "hard-cycle", "a layer holds the group of all layers", edited(
        lambda file: file.__setitem__("layers/1/layers", file["layers"]))
    yield "hard-root", "a layer is the root", edited(lambda file:
                                                     (file.__delitem__("layers/1"), file.__setitem__("layers/1", file["/"])))


def contents():
    for name, dtype in {"float64": "f8", "int8": "i1", "complex": "c8", "text": "S4", "big-endian": ">i4"}.items():
        yield f"type-{name}", f"a rotation is of type {name}", replaced(
            lambda file, at, d=dtype: file.create_dataset(at, data=numpy.eye(128).astype(d)))
    for name, shape in {
            "scalar": (), "vector": (128,), "empty": (0, 0), "wide": (128, 256), "deep": (2, 2, 128, 128), "small": (64, 64)
    }.items():
        yield f"shape-{name}", f"a rotation has the shape {shape}", replaced(
            lambda file, at, s=shape: file.create_dataset(at, data=numpy.ones(s, "f4")))
    for name, value in {"nan": numpy.nan, "infinite": numpy.inf, "huge": 1e38}.items():
        yield f"value-{name}", f"an element of a rotation is {name}", edited(
            lambda file, v=value: file[ROTATION].__setitem__((3, 4), v))
    yield "null", "a rotation is a dataset without a space", replaced(
        lambda file, at: file.create_dataset(at, data=h5py.Empty("f4")))
    yield "group", "a rotation is a group", replaced(lambda file, at: file.create_group(at))
    yield "bomb", "a rotation claims 4 TB", replaced(compressed_bomb)
    yield "layer-dataset", "a layer is a dataset", edited(lambda file:
                                                          (file.__delitem__("layers/1"), file.__setitem__("layers/1", 7)))
    yield "layer-name", "a layer is called -1", edited(lambda file: file.move("layers/1", "layers/-1"))
    yield "layer-huge", "a layer is called 99999999999", edited(lambda file: file.move("layers/1", "layers/99999999999"))
    yield "layer-zero", "a layer is there twice, as 1 and 01", edited(lambda file: file.copy("layers/1", "layers/01"))
    yield "more-dataset", "a dataset is there that nobody knows", edited(
        lambda file: file.create_dataset("layers/1/key/code", data=[1]))
    yield "more-group", "a group is there that nobody knows", edited(lambda file: file.create_group("run"))


def attributes():
    values = {
        "text": numpy.bytes_("0.9"), "nan": numpy.nan, "infinite": numpy.inf, "huge": 1e300, "negative": -0.5,
        "array": [0.9, 0.9, 0.9], "bool": numpy.True_, "reference": None
    }
    for name, value in values.items():

        def change(file, value=value):
            file["layers/1/key"].attrs["clip_ratio"] = file["layers"].ref if value is None else value

        yield f"clip-{name}", f"a clip ratio is {name}", edited(change)
    for attribute in ("sink", "recent", "group_size", "key_levels", "calibration_tokens"):
        for name, value in {
                "text": numpy.bytes_("64"), "nan": numpy.nan, "negative": -7, "huge": 1 << 62, "array": [64, 64]
        }.items():
            yield f"{attribute}-{name}", f"attribute {attribute} is {name}", edited(
                lambda file, a=attribute, v=value: file.attrs.__setitem__(a, v))
    for attribute in ("codec", "key_objective"):
        for name, value in {"number": 7, "variable": "minmax-or-so", "array": [numpy.bytes_("a"),
                                                                               numpy.bytes_("b")]}.items():
            yield f"{attribute}-{name}", f"attribute {attribute} is {name}", edited(
                lambda file, a=attribute, v=value: file.attrs.__setitem__(a, v))


def bytes_of_file():
    yield "cut", "it is cut in the middle", lambda path: path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
    yield "head", "only its first 100 bytes are there", lambda path: path.write_bytes(path.read_bytes()[:100])
    yield "zeros", "its second half is zeros", lambda path: path.write_bytes(path.read_bytes()[:path.stat().st_size // 2] +
                                                                             bytes(path.stat().st_size // 2))
    yield "superblock", "its superblock is damaged", lambda path: edit.flip(path, 20, 0xff)


def dump_cases():
    chunk = "dump_h5/layer_1/q/1.h5"

    def plant(change):
        def apply(place):
            path = place / chunk
            change(path)

        return apply

    for name, change in {
            "external": lambda path:
        (secret_of(path),
         edit.h5(path, lambda file: (file.__delitem__("q"), file.__setitem__("q", h5py.ExternalLink("secret.h5", "/x"))))),
            "soft": lambda path: edit.h5(path, lambda file:
                                         (file.move("q", "x"), file.__setitem__("q", h5py.SoftLink("/x")))), "nan": set_nan
    }.items():
        yield Fault(f"hdf5/dump/{name}", f"a chunk of a dump in HDF5: {name}",
                    ("fit", "--dump", "dump_h5", "--recipe", "oscar", "--out", "out"), ("dump_h5",), plant(change))


def secret_of(path):
    with h5py.File(path) as source, h5py.File(path.parent / "secret.h5", "w") as target:
        source.copy("q", target, "x")


def set_nan(path):
    def change(file):
        values = file["q"][()]
        values.view("u2")[7, 0, 3] = 0x7fc0
        file["q"][...] = values

    edit.h5(path, change)


def faults():
    for name, what, change in [*links(), *contents(), *attributes(), *bytes_of_file()]:
        if name == "type-float64":
            continue  # other writers may keep their matrices so
        yield Fault(f"hdf5/bare/{name}",
                    f"a foreign .h5: {what}", ("convert", "bare.h5", "out.safetensors"), ("bare.h5",),
                    lambda place, c=change: c(place / "bare.h5"))
    for name, what, change in [*links(), *contents()]:

        def in_set(place, change=change):
            change(place / "set/rotations.h5")
            for name in ("secret.h5", "secret.bin"):
                if (place / "set" / name).exists():
                    (place / "set" / name).rename(place / name)
            edit.rehash(place / "set")

        yield Fault(f"hdf5/set/{name}",
                    f"rotations.h5 of a set: {what}", ("verify", "set", "--compare", "none", "--no-record"), ("set",),
                    in_set,
                    exits=(1, 3))
    for name, what, change in links():
        yield Fault(f"hdf5/inspect/{name}",
                    f"a foreign .h5: {what}: inspect", ("inspect", "bare.h5"), ("bare.h5",),
                    lambda place, c=change: c(place / "bare.h5"))
    yield from dump_cases()
