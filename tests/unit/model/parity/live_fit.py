# SPDX-License-Identifier: MIT
"""live_fit.py OSCAR [NAME…]: dumps models of tiny_models.py, fits the dump and the running model, and lets verify run the set
in the model. Both fits must be equal, and cover the layers whose cache grows; the coded part is made by gradients.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import parity  # ends with 77 if transformers is not installed
import numpy
import torch

import checkpoints
from tiny_models import COMMON

# Layers whose cache grows with the whole text, and what verify says about models it cannot run a set in.
EXPECTED = {
    "qwen2": ([0, 1, 2], None),
    "gemma3": ([2], None),
    "qwen3-next": ([1, 4], None),
    # Layers 4 to 7 read the keys and values of layers 2 and 3.
    "gemma4-layer-inputs": ([1, 3], None),
    # Experts beside a dense part, each normed.
    "gemma4-experts": ([1, 3], None),
    "nemotron": ([0, 1, 2], None),
    "gpt-oss": ([1], None),
    "gemma2": ([2], None),
    "qwen3-moe": ([0, 1, 2], None),
    # Keys of 40 channels, values of 32: one latent is both.
    "deepseek-v3": ([0, 1, 2], "metrics of the model do not know latent attention"),
}
# A layer that has no set, and what is said of it.
NOT_TAKEN = {"gemma4-layer-inputs": (5, "reads the keys and values of layer 3 "), "gemma2": (1, "no cache in layer 1 that grows")}
LIVE = ["--tokens", "tokens.npy", "--recipe", "oscar", "--device", "cpu", "--quiet"]


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("[kv]_rotation*.pt"))}


def difference(folder, file):
    """Between the fits, by layer."""
    dumped, live = (torch.load(folder / fit / file, weights_only=True)["layers"] for fit in ("dumped", "live"))
    return {layer: f"{float((dumped[layer]['rotation'] - live[layer]['rotation']).abs().max()):.2e}" for layer in live}


def check(name, oscar, folder):
    layers, refusal = EXPECTED[name]

    def run(*words):
        return subprocess.run([oscar, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False)

    def must(*words):
        done = run(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)

    checkpoints.publish(name, parity.build(name), folder / "model")
    generator = numpy.random.default_rng(3)
    numpy.save(folder / "tokens.npy", generator.integers(0, COMMON["vocab_size"], (4, 400), dtype=numpy.int32))
    must("dump", "--model", "model", "--tokens", "tokens.npy", "--out", "dump", "--device", "cpu", "--quiet")
    found = sorted(int(entry.name.removeprefix("layer_")) for entry in (folder / "dump").glob("layer_*"))
    assert found == layers, (found, layers)
    must("fit", "--dump", "dump", "--out", "dumped", "--recipe", "oscar", "--device", "cpu", "--quiet")
    must("fit", "--model", "model", "--out", "live", *LIVE)
    dumped, live = files_of(folder / "dumped"), files_of(folder / "live")
    assert len(live) == 2, sorted(live)
    assert dumped == live, [f"{file} differs by up to {difference(folder, file)}" for file in live if live[file] != dumped.get(file)]
    if refusal is None:
        must("fit", "--model", "model", "--out", "coded", *LIVE[:2], "--recipe", "coded", "--recent", 64, *LIVE[4:])
    if name in NOT_TAKEN:
        layer, why = NOT_TAKEN[name]
        done = run("fit", "--model", "model", "--layers", layer, "--out", "none", *LIVE)
        assert done.returncode == 2 and why in done.stderr, done.stderr
    done = run("verify", "live", "--model", "model", "--tokens", "tokens.npy", "--recent", 64, "--compare", "none", "--device", "cpu")
    if refusal is None:
        assert done.returncode in (0, 3), (done.returncode, done.stderr)
        assert "layer_coverage" not in done.stdout + done.stderr, done.stdout
    else:
        assert done.returncode == 2 and refusal in done.stderr, (done.returncode, done.stderr)


def main():
    torch.set_num_threads(1)
    wrong = []
    for name in sys.argv[2:] or EXPECTED:
        with tempfile.TemporaryDirectory(prefix="oscar-live-") as folder:
            try:
                check(name, sys.argv[1], Path(folder))
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
