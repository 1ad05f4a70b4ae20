# SPDX-License-Identifier: MIT
"""Times `oscar fit --stats FILE... --save-stats ALL`: first passes of many parts of the data added up; prints and keeps a JSON
document.

bench_merge.py [--binary build/oscar] [--files 64] [--layers 92] [--kv-heads 8] [--head-dim 128] [--repeats 5] [--commit C]
               [--work /dev/shm] [--out tests/bench/results/merge.json]
Run it with .venv/bin/python when nothing else runs; `load` says how it was before and after. The files have the shape of
GLM-4.7's query moments (recipe oscar; 6.2 GB in all, of which WORK must have the memory) and sums over random rows, the sum is
compared with numpy's. Times are whole processes, memory is the largest resident set. Exit status 1: another sum, or a target
missed.
"""
import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy

sys.dont_write_bytecode = True
import provenance  # noqa: E402  (beside this file)
from bench_fit import watch_peak  # noqa: E402

ROOT = Path(__file__).parents[2]
SECONDS, MEGABYTES = 5, 2000  # targets, for the default shape


def header_of(options, part):
    """Of a safetensors file: eight bytes of length, and the names, shapes and places of tensors."""
    dim, heads = options.head_dim, options.kv_heads
    manifest = {"schema": "oscar.statistics.v1", "oscar_version": "0.1.0",
                "model": {"id": "bench", "num_attention_heads": 12 * heads, "num_key_value_heads": heads, "head_dim": dim},
                "data": [{"data_sha256": f"{part:064x}", "tokens": 30000, "sequences": 15}],
                "windows": {"sink": 64, "recent": 256},
                "layers": [{"layer_id": i, "key_dim": dim, "value_dim": dim, "first_data": [0]}
                           for i in range(options.layers)]}
    header = {"__metadata__": {"schema": "oscar.statistics.v1", "manifest": json.dumps(manifest)}}
    place = 0
    for i in range(options.layers):
        for name, shape in (("sums", [heads, dim, dim]), ("total", [heads])):
            end = place + 8 * int(numpy.prod(shape))
            header[f"layer_{i}.qqt.{name}"] = {"dtype": "F64", "shape": shape, "data_offsets": [place, end]}
            place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def payload_of(options, generator):
    rows = []
    for _ in range(options.layers):
        sample = generator.standard_normal((options.kv_heads, options.head_dim, options.head_dim))
        rows += [(sample.transpose(0, 2, 1) @ sample).ravel(), numpy.full(options.kv_heads, 360000.0)]
    return numpy.concatenate(rows)


def write_parts(options, folder):
    """The files, and their sum in order."""
    generator = numpy.random.default_rng(0)
    base, total = payload_of(options, generator), None
    paths = []
    for part in range(options.files):
        values = base * (1 + part / 7)
        total = values if total is None else total + values
        paths.append(folder / f"part_{part}.safetensors")
        with open(paths[-1], "wb") as file:
            file.write(header_of(options, part))
            values.tofile(file)
    return paths, total


def merge(options, paths, out):
    out.unlink(missing_ok=True)
    begin, peak = time.perf_counter(), [0]
    process = subprocess.Popen([options.binary, "fit", "--quiet", "--device", "cpu", "--stats", *paths, "--save-stats", out])
    watch = threading.Thread(target=watch_peak, args=(process, peak))
    watch.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    watch.join()
    if process.returncode != 0:
        raise SystemExit("the merge failed")
    return {"seconds": seconds, "processor_seconds": usage.ru_utime + usage.ru_stime, "peak_mb": peak[0]}


def sum_in(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        payload = numpy.fromfile(file, dtype=numpy.float64)
    header.pop("__metadata__")
    ordered = sorted(header.items(), key=lambda item: (int(item[0].split(".")[0][len("layer_"):]), item[0].endswith("total")))
    return numpy.concatenate([payload[t["data_offsets"][0] // 8:t["data_offsets"][1] // 8] for _, t in ordered])


def measure(options, work):
    paths, expected = write_parts(options, work)
    load = os.getloadavg()[0]
    runs = [merge(options, paths, work / "all.safetensors") for _ in range(options.repeats)]
    error = float(numpy.max(numpy.abs(sum_in(work / "all.safetensors") - expected)) / numpy.max(numpy.abs(expected)))
    gigabytes = sum(path.stat().st_size for path in paths) / 1e9
    median = {name: statistics.median(run[name] for run in runs) for name in ("seconds", "processor_seconds")}
    return {"commit": options.commit, "processor": provenance.machine(), "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            "files": options.files, "layers": options.layers, "kv_heads": options.kv_heads, "head_dim": options.head_dim,
            "gb": gigabytes, **median, "all_seconds": [round(run["seconds"], 3) for run in runs],
            "peak_mb": max(run["peak_mb"] for run in runs), "gb_per_s": gigabytes / median["seconds"],
            "largest_error": error, "target_seconds": SECONDS, "target_mb": MEGABYTES}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    for name, default in (("files", 64), ("layers", 92), ("kv-heads", 8), ("head-dim", 128), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--commit", default="")
    parser.add_argument("--work", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.binary = options.binary.resolve()
    work = Path(tempfile.mkdtemp(prefix="oscar-merge-", dir=options.work))
    try:
        result = measure(options, work)
    finally:
        shutil.rmtree(work)
    text = json.dumps(result, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text, end="")
    met = result["seconds"] <= SECONDS and result["peak_mb"] <= MEGABYTES
    sys.exit(0 if met and result["largest_error"] < 1e-13 else 1)


if __name__ == "__main__":
    main()
