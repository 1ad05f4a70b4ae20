#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recomputes the rotations of a set from the dump it was fitted on, by the formulas alone, and compares.

Written in numpy from the definitions and sharing no code with the program, for tests and for the curious. Covers the
recipes oscar, stretch and hadamard with every objective, composition, granularity and codec; of the coded cache, of keys
after and before RoPE, what its rows do to attention.
Prints one line per comparison, largest error of all layers first, and exits with 1 if one is out of tolerance.
"""
import argparse
import json
import sys
from pathlib import Path

import h5py
import numpy as np

import transforms
from attention import METRICS, Sums, Windows, compare
from coded import coded_sides
from layers import layer_folders, read_layer
from recompute import attention_sums, fit_layer, recipes

# The set stores float32, which is 6e-8 of each number.
TOLERANCES = {"covariance": 1e-7, "eigenvalues": 1e-6, "eigenvectors": 1e-5, "rotation": 1e-6, "mean key": 1e-6,
              "T T^T": 1e-5, "read side": 1e-5, "read side, inverse": 1e-6, "predicted gain": 1e-6, "condition": 1e-4}
METRIC_TOLERANCE, CODED_TOLERANCE = 0.02, 0.002  # codes of INT2 that lie between two levels may be either
SMALLEST_GAP = 1e-4  # of the largest eigenvalue: eigenvectors on its two sides must not mix


class Findings:
    """Largest error of each comparison, and where it was."""

    def __init__(self):
        self.worst = {}

    def add(self, what, where, error, tolerance):
        error = float(error) if np.isfinite(error) else np.inf
        if what not in self.worst or error > self.worst[what][0]:
            self.worst[what] = (error, tolerance, where)

    def near(self, what, where, found, expected, tolerance=None):
        """Largest difference over the largest expected magnitude."""
        found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
        if found.shape != expected.shape:
            raise SystemExit(f"{where}: {what} has the shape {found.shape}, expected {expected.shape}")
        error = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300)
        self.add(what, where, error, tolerance or TOLERANCES[what])

    def report(self):
        for what, (error, tolerance, where) in self.worst.items():
            outcome = "ok    " if error <= tolerance else "FAILED"
            print(f"{outcome} {what}: {error:.2g} (tolerance {tolerance:g}), {where}")
        return all(error <= tolerance for error, tolerance, _ in self.worst.values())


def stack(array, ndim):
    """The set leaves out the first axis where there is one matrix or spectrum for all heads."""
    return array[...].astype(np.float64).reshape(-1, *array.shape[array.ndim - ndim:])


def mixing(found, expected, eigenvalues):
    """How far the spaces that eigenvectors span below and above each gap of the spectrum are from the expected ones."""
    overlap, worst, begin = found.T @ expected, 0.0, 0
    gaps = np.diff(eigenvalues) > SMALLEST_GAP * eigenvalues[-1]
    for end in [*(np.flatnonzero(gaps) + 1), len(eigenvalues)]:
        block = overlap[begin:end, begin:end]
        worst = max(worst, np.abs(block @ block.T - np.eye(end - begin)).max())
        begin = end
    return worst


def check_stretch(findings, where, group, fitted, scores):
    write, read = stack(group["rotation"], 2), stack(group["q_rotation"], 2)
    findings.near("T T^T", where, write @ write.swapaxes(1, 2), fitted.write @ fitted.write.swapaxes(1, 2))
    findings.near("read side", where, read @ read.swapaxes(1, 2), fitted.read @ fitted.read.swapaxes(1, 2))
    unit = np.broadcast_to(np.eye(write.shape[1]), write.shape)
    findings.near("read side, inverse", where, write @ read.swapaxes(1, 2), unit)
    findings.near("predicted gain", where, scores["predicted_gain"], fitted.gain)
    findings.near("condition", where, scores["condition"], fitted.condition)


def check_rotation(findings, where, group, fitted, composition):
    found = stack(group["rotation"], 2)
    if fitted.covariance is None:
        findings.near("rotation", where, found, fitted.write)
        return
    for r, expected, values in zip(found, fitted.write, fitted.eigenvalues):
        error = mixing(transforms.uncompose(r, composition), transforms.uncompose(expected, composition), values)
        findings.add("eigenvectors", where, error, TOLERANCES["eigenvectors"])


def check_side(findings, where, group, fitted, composition, scores):
    findings.near("eigenvalues", where, stack(group["eigenvalues"], 1), fitted.eigenvalues)
    if fitted.covariance is not None:
        findings.near("covariance", where, stack(group["covariance"], 2), fitted.covariance)
    if fitted.mean is not None:
        findings.near("mean key", where, group["mean"][:], fitted.mean)
    if fitted.gain is not None:
        check_stretch(findings, where, group, fitted, scores)
    else:
        check_rotation(findings, where, group, fitted, composition)


def check_metrics(findings, where, found, expected, tolerance=METRIC_TOLERANCE):
    for name in METRICS:
        error = abs(found[name] - expected[name]) / expected[name]
        findings.add(name, f"{where}: {found[name]:.4g} against {expected[name]:.4g}", error, tolerance)


class Report:
    """The figures of one part of the set in what `oscar verify --json` printed."""

    def __init__(self, path, part):
        report = json.loads(Path(path).read_text())
        method = next(method for method in report["methods"] if method["kind"] == "this" and method["name"] == part)
        attention = report["data"]["attention"]
        if attention["queries_per_layer"] != attention["tokens_per_layer"]:
            raise SystemExit(f"{path}: not every query was measured; run oscar verify with --max-queries 0")
        self.windows, self.precision = Windows(**report["windows"]), report["precision"]
        self.pooled = method["attention"]
        self.layers = {layer["layer"]: layer["attention"] for layer in method["layers"]}


def check(arguments, part, recipe):
    findings, pooled = Findings(), Sums()
    report = Report(arguments.report, part) if arguments.report else None
    file = h5py.File(arguments.set / ("with_means" if part == "with_means" else "") / "rotations.h5")
    for layer_id, folder in layer_folders(arguments.dump).items():
        layer = read_layer(folder)
        fitted = fit_layer(layer, layer_id, recipe)
        for name, side in zip(("key", "value"), fitted):
            scores = recipe.scores(layer_id) if side.gain is not None else None
            where, group = f"layer {layer_id}, {name}", file[f"layers/{layer_id}/{name}"]
            check_side(findings, where, group, side, recipe.composition[name], scores)
        if report:
            sums = attention_sums(layer, layer_id, fitted, recipe, report.windows, report.precision)
            check_metrics(findings, f"layer {layer_id}", report.layers[layer_id], sums.metrics())
            pooled += sums
    if report:
        check_metrics(findings, "pooled", report.pooled, pooled.metrics())
    return findings.report()


def check_coded(arguments, sides):
    findings, pooled, report = Findings(), Sums(), Report(arguments.report, "coded")
    for layer_id, folder in layer_folders(arguments.dump).items():
        sums = compare(read_layer(folder), *sides[layer_id], report.windows, report.precision)
        check_metrics(findings, f"layer {layer_id}", report.layers[layer_id], sums.metrics(), CODED_TOLERANCE)
        pooled += sums
    check_metrics(findings, "pooled", report.pooled, pooled.metrics(), CODED_TOLERANCE)
    return findings.report()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="folder that oscar fit wrote")
    parser.add_argument("--dump", type=Path, required=True,
                        help="the dump it was fitted on, in .safetensors or .pt files")
    parser.add_argument("--report", type=Path,
                        help="what oscar verify SET --dump DUMP --max-queries 0 --json printed: compare metrics too")
    arguments, sound = parser.parse_args(), []
    parts = recipes(arguments.set)
    coded = coded_sides(arguments.set) if arguments.report else {}
    if not parts and not coded:
        raise SystemExit(f"{arguments.set}: no part of this set is rotations, and without --report of the coded cache nothing is compared")
    if coded:
        print("coded:")
        sound.append(check_coded(arguments, coded))
    for part, recipe in parts.items():
        print(f"{part}:")
        sound.append(check(arguments, part, recipe))
    sys.exit(0 if all(sound) else 1)


if __name__ == "__main__":
    main()
