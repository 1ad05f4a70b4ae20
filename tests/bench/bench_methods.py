# SPDX-License-Identifier: MIT
"""The methods of a table of another implementation, measured by ours on a model that is too large for this project, and what
they make of it when three pairs of its key channels are scaled by 12 (which leaves its function as it is).

bench_methods.py MODEL GOLDEN [--binary build/oscar] [--device auto] [--commit C] [--out FILE.json] [--only WORD]
MODEL: a checkpoint folder. GOLDEN: tokens_calib.npy (the last 8 rows are fitted on), tokens_eval.npy (the first 12 are
measured on), tokens_passkey.npy, passkey_answer_len.npy, and method_metrics.json, the other implementation's figures.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench_recipes import ROOT, figures, run

STRETCH = ["--recipe", "stretch", "--target", "any"]
FP32_METHODS = {"naive": ("naive", "naive asymmetric, fp32 simulation"),
                "hadamard_clip": ("hadamard, clip 0.96/0.92", "hadamard, clip .96/.92, fp32 simulation"),
                "int3": ("hadamard INT3", "hadamard int3, fp32 simulation"),
                "int4": ("hadamard INT4", "hadamard int4, fp32 simulation")}
HADAMARD = ["--recipe", "hadamard", "--clip", "off"]
PUBLISHED = ["--recipe", "oscar", "--clip", "0.96,0.92"]
LSQ = ["--recipe", "lsq", "--target", "any"]
AUTO = ["--recipe", "auto", "--no-coded", "--target", "any"]
# Name here, options of fit, whether needles are looked for, name in method_metrics.json.
PLAIN = [
    ("oscar, clip 0.96/0.92", PUBLISHED, True, "oscar, clip .96/.92"),
    ("oscar, clip ratio per layer", ["--recipe", "oscar", "--target", "any"], False, None),
    ("oscar, clip ratio per head", ["--recipe", "oscar", "--target", "any", "--clip-granularity", "head"], False, None),
    ("oscar rotations, lsq", LSQ, True, "oscar, lsq (min/max start)"),
    ("stretch, lsq", [*STRETCH, "--codec", "lsq"], True, "stretch per head, lambda 1e-3, lsq"),
    ("stretch p=0.5, centred, lsq", [*STRETCH, "--codec", "lsq", "--center", "--stretch-power", "0.5"], True,
     "stretch per head p=.5, centred, lsq"),
    ("fisher stretch p=0.5, lsq 5,3",
     [*STRETCH, "--codec", "lsq", "--key-objective", "fisher", "--levels", "5,3", "--stretch-power", "0.5"], False, None),
    ("stretch p=0.5, centred, lsq 5,3",
     [*STRETCH, "--codec", "lsq", "--levels", "5,3", "--center", "--stretch-power", "0.5"], False, None),
    ("auto", AUTO, True, None),
    ("auto, levels 8,4", [*AUTO, "--levels", "8,4"], True, None),
]
SCALED = [
    ("oscar, clip 0.96/0.92", PUBLISHED, False, "oscar, clip .96/.92"),
    ("oscar rotations, lsq", LSQ, False, "oscar, lsq (min/max start)"),
    ("stretch, lsq", [*STRETCH, "--codec", "lsq"], True, "stretch per head, lambda 1e-3, lsq"),
    ("auto", AUTO, False, None),
]


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.rows = options, folder, []
        self.other = json.loads((options.golden / "method_metrics.json").read_text())
        np.save(folder / "calib.npy", np.load(options.golden / "tokens_calib.npy")[-8:])
        np.save(folder / "eval.npy", np.load(options.golden / "tokens_eval.npy")[:12])

    def fit(self, model, arguments):
        report = self.folder / "fit.json"
        seconds = run(self.options.binary, "fit", "--model", model, "--tokens", self.folder / "calib.npy", "--max-tokens", "0",
                      "--device", self.options.device, *arguments, "--out", self.folder / "set", "--force", "--quiet",
                      f"--json={report}")
        report = json.loads(report.read_text())
        search = report["recipe"].get("search", {})
        return {"fit": " ".join(arguments), "fit_seconds": seconds, "device": report["device"],
                **({"choice": search["choice"]} if search else {})}

    def verify(self, model, precision, compare, needles):
        report, golden = self.folder / "verify.json", self.options.golden
        needles = ["--needle", golden / "tokens_passkey.npy", "--needle-answers", golden / "passkey_answer_len.npy"] if needles else []
        run(self.options.binary, "verify", self.folder / "set", "--model", model, "--tokens", self.folder / "eval.npy",
            "--max-tokens", "0", *needles, "--compare", compare, "--no-record", "--quiet",
            "--precision", precision, "--device", self.options.device, f"--json={report}")
        return {("this" if m["kind"] == "this" else m["name"]): figures(m) for m in json.loads(report.read_text())["methods"]}

    def add(self, row, fit, precision, measured, other):
        row = {"row": row, **fit, "precision": precision, **measured}
        if not row["needles"]:
            del row["needles"], row["needle_hits"]
        if other:
            row["other_implementation"] = dict(zip(("ppl", "kld_mean", "same_top", "retrieval"), other))
            if other[1]:
                row["kld_ratio_to_other"] = measured["kld_mean"] / other[1]
        self.rows.append(row)
        print(row, file=sys.stderr, flush=True)
        self.options.out.write_text(json.dumps(
            {"what": "fit on the calibration tokens, verify on the evaluation tokens and all needles",
             "model": self.options.model.name, "commit": self.options.commit, "rows": self.rows}, indent=1) + "\n")

    def plain(self, only):
        other = self.other["methods"]
        if only("hadamard fp32"):
            fit = self.fit(self.options.model, HADAMARD)
            measured = self.verify(self.options.model, "fp32", "bf16," + ",".join(FP32_METHODS), True)
            self.add("bf16", {}, "fp32", measured["bf16"], other["bf16"])
            for name, (row, key) in FP32_METHODS.items():
                self.add(row, {}, "fp32", measured[name], other[key])
            self.add("hadamard, no clip", fit, "fp32", measured["this"], other["hadamard, no clip, fp32 simulation"])
        self.rows_of(self.options.model, PLAIN, other, "", only)

    def rows_of(self, model, rows, other, prefix, only):
        for name, arguments, needles, key in rows:
            if not only(prefix + name):
                continue
            fit = self.fit(model, arguments)
            measured = self.verify(model, "serving", "none", needles)["this"]
            self.add(prefix + name, fit, "serving", measured, other[key] if key else None)

    def scaled(self, only):
        model = self.folder / "scaled"
        subprocess.run([sys.executable, "-B", ROOT / "tests/data/make/outlier_channels.py", self.options.model, model], check=True)
        key = next(name for name in self.other if name.startswith("key channels"))
        self.rows_of(model, SCALED, self.other[key], "outlier channels x12: ", only)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("golden", type=Path)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, default=ROOT / "out/methods.json")
    parser.add_argument("--only", default="", help="rows whose names have one of these in them, like lsq,auto")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="oscar-methods-") as folder:
        bench = Bench(options, Path(folder))
        only = lambda name: any(word in name for word in options.only.split(","))
        bench.plain(only)
        bench.scaled(only)


if __name__ == "__main__":
    main()
