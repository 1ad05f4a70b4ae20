# SPDX-License-Identifier: MIT
"""Compares a set and its attention metrics with what somebody else's numpy made of the same dump.

compare_oracle.py SET REPORT FOLDER METHOD: FOLDER has oracle.npz and oracle.json, METHOD is a row of the latter, if it has one. A
set that is stretched is compared with the oracle's stretch too. Exit 1 if a figure is off.
"""
import json
import sys
from pathlib import Path

import h5py
import numpy as np


def main(folder, report, oracle, method):
    metrics = json.loads((Path(oracle) / "oracle.json").read_text())
    arrays, file = np.load(Path(oracle) / "oracle.npz"), h5py.File(Path(folder) / "rotations.h5")
    part = json.loads((Path(folder) / "manifest.json").read_text())["parts"]["rotations"]
    found = next(m for m in json.loads(Path(report).read_text())["methods"] if m["kind"] == "this")
    errors = []

    def near(what, got, expected, tolerance):
        error = np.abs(np.asarray(got) - expected).max() / np.abs(expected).max()
        errors.append(error > tolerance)
        print(f"{'FAILED' if errors[-1] else 'ok    '} {what}: {error:.2g} (tolerance {tolerance:g})")

    for layer, measured in zip(part["layers"], found["layers"], strict=True):
        name = f"layer_{layer['layer_id']}"
        for metric, expected in metrics[name].get(method, {}).items():
            near(f"{name}, {metric}", measured["attention"][metric], expected, 0.02)
        scores = layer["key"]["scores"].get("stretch")
        if not scores:
            continue
        write = file[f"layers/{layer['layer_id']}/key/rotation"][:].reshape(-1, layer["head_dim"], layer["head_dim"])
        for head, t in enumerate(arrays[f"{name}.stretch_write"]):
            near(f"{name}, T T^T", write[head].astype(np.float64) @ write[head].T, t @ t.T, 1e-5)
        near(f"{name}, predicted gain", scores["predicted_gain"], metrics[name]["predicted_gain"], 1e-6)
        near(f"{name}, condition", scores["condition"], metrics[name]["stretch_condition"], 1e-4)
    sys.exit(any(errors))


if __name__ == "__main__":
    main(*sys.argv[1:5])
