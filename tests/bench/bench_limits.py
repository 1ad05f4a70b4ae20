# SPDX-License-Identifier: MIT
"""Measures between which sets the default limits of `oscar verify` lie: for INT2, and for bits of the coded
cache, one that works, and those that nobody should serve. The document is what tests/unit/verify/verdict_test.cpp holds the limits to.

bench_limits.py [MODEL GOLDEN [--language-model]] [--binary build/oscar] [--device cpu] [--commit C] [--sequences N] [--out FILE.json]
MODEL: a checkpoint folder, by default the sample's. GOLDEN: tokens_calib.npy, tokens_eval.npy. Rows of other models stay in
FILE. A set works if the model predicts with it about as it did; `works` is a judgement, the figures are not. With
--language-model other sets are measured, those that bench_real_model.py judges by retrieval: a set works if the model finds
at least half of the needles that it finds without.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import provenance

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
SETS = [("oscar", True, ["--recipe", "oscar"]),
        ("eigenvectors alone, not clipped", False, ["--recipe", "oscar", "--composition", "plain", "--clip", "off"])]
STRETCH = ["--recipe", "stretch", "--key-objective", "fisher", "--center"]
OF_LANGUAGE_MODEL = [("4,4", "oscar, published clip ratios", False, ["--recipe", "oscar", "--clip", "0.96,0.92"]),
                     ("4,4", "oscar", False, ["--recipe", "oscar"]),
                     ("4,4", "stretch, fisher, centred", True, STRETCH)]
CODED_BITS = ["1.25", "1.5", "2.25", "3", "4"]
FEW_TOKENS = ["--sequences", "1", "--seq-len", "512"]
HADAMARD = ("Hadamard, not clipped", False, ["--recipe", "hadamard", "--clip", "off"])


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: measured, and rejected
        raise SystemExit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr[-2000:]}")


def figures_of(document):
    of_set, = (method for method in document["methods"] if method["kind"] == "this")
    attention, model = of_set["attention"], of_set["model"]
    return {"output_rel_error": attention["output_rel_error"], "softmax_kl": attention["softmax_kl"], "kld_mean": model["kld_mean"],
            "ppl_increase": model["ppl_ratio"] - 1}


def measure(options, arguments, folder):
    rotations, report = folder / "set", folder / "report.json"
    calibration, held_out = options.golden / "tokens_calib.npy", options.golden / "tokens_eval.npy"
    run(options.binary, "fit", "--model", options.model, "--tokens", calibration, *arguments, "--out", rotations, "--force", "--quiet", "--device", options.device)
    run(options.binary, "verify", rotations, "--model", options.model, "--tokens", held_out, "--sequences", options.sequences,
        "--compare", "none", "--no-record", "--quiet", "--device", options.device, f"--json={report}")
    document = json.loads(report.read_text())
    return {"bits_per_code": next(iter(document["set"]["parts"].values()))["bits"],
            "figures": {name: float(f"{value:.4g}") for name, value in figures_of(document).items()}}


def sets(options):
    """(levels, name, whether it works, options of oscar fit) of all sets to measure."""
    if options.language_model:
        return OF_LANGUAGE_MODEL
    coded = [("coded", f"{bits} bits{suffix}", works, ["--recipe", "coded", "--bits", bits, *more]) for bits in CODED_BITS
             for suffix, works, more in (("", True, []), (", fitted on 512 tokens", False, FEW_TOKENS))]
    return [("4,4", *each) for each in [*SETS, HADAMARD]] + coded


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=DATA / "qwen3-2m")
    parser.add_argument("golden", type=Path, nargs="?", default=DATA / "golden/qwen3-2m")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", default="", help="of the binary; default: this checkout's")
    parser.add_argument("--language-model", action="store_true")
    parser.add_argument("--sequences", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/bench/results/limits.json")
    options = parser.parse_args()
    model = {"model": options.model.name, "commit": options.commit or provenance.commit(), "device": options.device,
             "held_out_sequences": options.sequences}
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    rows = [row for row in rows if row["model"] != model["model"]]
    with tempfile.TemporaryDirectory(prefix="oscar-limits-") as folder:
        for levels, name, works, arguments in sets(options):
            rows.append({**model, "set": name, "levels": levels, "works": works, "fit": " ".join(arguments),
                         **measure(options, arguments, Path(folder))})
            print(json.dumps(rows[-1]), flush=True)
    options.out.write_text(json.dumps({"what": "sets of each number of levels, for the default limits of oscar verify",
                                       "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
