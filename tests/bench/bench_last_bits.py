# SPDX-License-Identifier: MIT
"""How far figures of the sample model move when only last bits of its weights move, as they do when another processor's
libraries add in another order. Tests that compare such figures take their bounds from here.

bench_last_bits.py [--copies 12] [--build build] [--out tests/bench/results/last_bits.json]

Each copy of the sample model has its weights in float32, each moved by up to four units of a float32's last place. The
tests below run on every copy, with bounds switched off, and print lines "figure: NAME VALUE".
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import provenance

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
WEIGHTS = "model-00001-of-00001.safetensors"
UNITS = 4


def copy_of_data(folder, seed):
    """tests/data with a model whose last bits differ; seed 0: the weights as they are, in float32."""
    folder.mkdir()
    for entry in (PROJECT / "tests/data").iterdir():
        if entry.name != "qwen3-2m":
            (folder / entry.name).symlink_to(entry)
    model = folder / "qwen3-2m"
    model.mkdir()
    for file in (PROJECT / "tests/data/qwen3-2m").iterdir():
        if file.name != WEIGHTS:
            (model / file.name).symlink_to(file)
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in load_file(PROJECT / "tests/data/qwen3-2m" / WEIGHTS).items():
        shift = (torch.rand(weight.shape, generator=random, dtype=torch.float64) * 2 - 1) * (UNITS * 2.0**-23 if seed else 0)
        weights[name] = (weight.double() * (1 + shift)).float()
    save_file(weights, model / WEIGHTS, metadata={"format": "pt"})
    return folder


def commands(build):
    """What prints figures: a name and a command line each."""
    return [[str(build / "tests/verify_figures_test")],
            [PYTHON, "-B", str(PROJECT / "tests/python/cache_test.py"), "-k", "kld"],
            [PYTHON, "-B", str(PROJECT / "tests/cli/program/quickstart_test.py")]]


def figures(folder, build):
    environment = {**os.environ, "OSCAR_TEST_DATA": str(folder), "OSCAR_TEST_BOUNDS": "off", "OSCAR_PROJECT": str(PROJECT),
                   "OSCAR_BINARY": str(build / "oscar"), "PYTHONPATH": str(PROJECT / "apps/python"),
                   "OSCAR_TORCH_LIBRARY": str(build / "liboscar_torch.so")}
    found = {}
    for command in commands(build):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        found |= {name: float(value) for name, value in re.findall(r"^figure: (.+) (\S+)$", done.stdout, re.MULTILINE)}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1, help="copies at a time")
    parser.add_argument("--build", type=Path, default=PROJECT / "build")
    parser.add_argument("--out", type=Path, default=PROJECT / "tests/bench/results/last_bits.json")
    options = parser.parse_args()
    machine = provenance.machine()
    with tempfile.TemporaryDirectory(prefix="oscar-last-bits-") as name:
        folders = [copy_of_data(Path(name, str(seed)), seed) for seed in range(options.copies + 1)]
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = list(pool.map(lambda folder: figures(folder, options.build.resolve()), folders))
    rows = {}
    for figure in sorted(runs[0]):
        values = np.array([run[figure] for run in runs[1:]])
        rows[figure] = {"unmoved": runs[0][figure], "mean": values.mean(), "standard_deviation": values.std(ddof=1),
                        "least": values.min(), "most": values.max()}
    document = {"what": f"figures of {options.copies} copies of the sample model whose weights moved by up to {UNITS} units "
                        "in the last place of a float32", "machine": machine, "commit": provenance.commit(), "figures": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    for figure, row in rows.items():
        print(f"{figure}: {row['unmoved']:.6g}, mean {row['mean']:.6g}, sd {row['standard_deviation']:.2g}, "
              f"{row['least']:.6g} to {row['most']:.6g}")


if __name__ == "__main__":
    main()
