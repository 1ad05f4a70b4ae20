# SPDX-License-Identifier: MIT
"""Makes tests/fuzz/corpus: small files that each reader accepts. Needs torch, h5py, numpy, safetensors, gguf, and build/oscar.

    .venv/bin/python tests/data/make/fuzz_seeds.py tests/fuzz/corpus
"""
import json
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import gguf
import h5py
import numpy
import server_calibration
import torch
from safetensors.numpy import save_file

corpus = Path(sys.argv[1])
matrix = numpy.eye(2, dtype=numpy.float32)


def place(target, name):
    (corpus / target).mkdir(parents=True, exist_ok=True)
    return corpus / target / name


for name, array in (("f4", matrix), ("i8", numpy.arange(3)), ("scalar", numpy.float64(1)), ("fortran", numpy.ones((2, 3), order="F"))):
    numpy.save(place("npy", name), array)
save_file({"layers.0.key.rotation": matrix, "b": numpy.ones(3, dtype=numpy.float16)}, place("safetensors", "two"), {"note": "hello"})
with h5py.File(place("hdf5", "small"), "w", libver="latest") as file:
    file.attrs["schema"] = "oscar.set.v1"
    file["a"] = matrix
    file.create_dataset("packed", data=numpy.zeros(64), chunks=(16,), compression="gzip")
writer = gguf.GGUFWriter(place("gguf", "small"), "qwen3")
writer.add_block_count(1)
writer.add_array("tokens", ["a", "b"])
writer.add_tensor("blk.0.attn_k_rot.weight", matrix)
writer.add_tensor("q", numpy.zeros((1, 34), dtype=numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
torch.save(torch.eye(2), place("pt", "bare"))
torch.save({"format_version": 1, "objective": "qqt_r_h_pbr", "source_grouping": "layer",
            "layers": {0: {"layer_id": 0, "rotation": torch.eye(2), "eigenvalues": torch.ones(2)}}}, place("pt", "rotation"))
torch.save([None, True, 1, 1 << 40, 2.5, "text", (1, 2)], place("pt", "values"))
shared = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
torch.save(OrderedDict(a=shared, b=shared.T, c={"list": [shared[1:]]}), place("pt", "views"))
torch.save(torch.quantize_per_tensor(torch.zeros(2), 0.1, 3, torch.quint8), place("pt", "quantised"))
server_calibration.LAYERS, server_calibration.LENGTHS, server_calibration.TOKENS, server_calibration.DIM = (0,), (3,), 3, 4
with tempfile.TemporaryDirectory() as folder:
    server_calibration.save(Path(folder), server_calibration.made_rows(), scaling=0.5)
    for kind in ("moments", "rows"):
        place("statistics", f"server_{kind}").write_bytes((Path(folder) / f"oscar_{kind}_rank0.pt").read_bytes())

sample = Path(__file__).parents[3] / "zoo"
index = json.loads((sample / "index.json").read_text())
index["entries"] = index["entries"][:1]
index["entries"][0]["summary"]["verification"] = {"verdict": "accepted", "methods": {"rotations": {"kind": "this"}}}
place("zoo", "index").write_text(json.dumps(index))
manifest = json.loads((sample / index["entries"][0]["path"] / "manifest.json").read_text())
manifest["verification"], manifest["calibration"]["blocks"] = {}, []
for part in manifest["parts"].values():
    part["layers"] = part["layers"][:1]
place("zoo", "manifest").write_text(json.dumps(manifest))
place("zoo", "signature").write_text(json.dumps({"schema": "oscar.signature.v1", "manifest_sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
                                                  "signatures": [{"key": "A" * 43 + "=", "signature": "A" * 86 + "=="}]}))

# Whole sets of one layer, eight channels: the length of the manifest, the manifest, and the file of its part.
with tempfile.TemporaryDirectory() as folder:
    random = torch.Generator().manual_seed(1)
    for kind in "qkv":
        (Path(folder) / f"dump/layer_0/{kind}").mkdir(parents=True)
        torch.save(torch.randn(600, 1, 8, generator=random), Path(folder) / f"dump/layer_0/{kind}/1.pt")
    for name, options in (("rotation", ("--recipe", "oscar")), ("stretch", ("--recipe", "stretch", "--center")),
                          ("coded", ("--recipe", "coded"))):
        subprocess.run([sample.parent / "build/oscar", "fit", "-q", "--dump", "dump", *options, "--out", name], cwd=folder, check=True)
        manifest = (Path(folder) / name / "manifest.json").read_bytes()
        made = "coded.safetensors" if name == "coded" else "rotations.h5"
        matrices = next((Path(folder) / name).rglob(made)).read_bytes()
        place("set", name).write_bytes(struct.pack("<I", len(manifest)) + manifest + matrices)
