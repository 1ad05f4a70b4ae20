# SPDX-License-Identifier: MIT
"""Fits the bundled sample model by recipe after recipe, measures what each does to it, prints a table and keeps JSON.

bench_recipes.py [--binary build/oscar] [--device auto] [--out FILE.json]     scripts/recipes.sh runs it on a fresh build
bench_recipes.py --render FILE.json                                           the table of a run that was kept
Fitted on the calibration tokens (30,000), measured on 12,288 others and on 96 needles up to 2,048 tokens back.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STRETCH = ["--recipe", "stretch", "--target", "any"]
RECIPES = [
    ("published: `oscar`, clip 0.96 / 0.92", ["--recipe", "oscar", "--clip", "0.96,0.92"]),
    ("`oscar`, fitted clip", ["--recipe", "oscar"]),
    ("`auto` for `sglang-v1`", ["--recipe", "auto"]),
    ("`auto` for `sglang-v3`", ["--recipe", "auto", "--target", "sglang-v3"]),
    ("`lsq`", ["--recipe", "lsq", "--target", "any"]),
    ("`stretch`", STRETCH),
    ("`stretch`, fisher", [*STRETCH, "--key-objective", "fisher"]),
    ("`stretch`, fisher, levels 5,3", [*STRETCH, "--key-objective", "fisher", "--levels", "5,3"]),
    ("the same, refined", [*STRETCH, "--key-objective", "fisher", "--levels", "5,3", "--refine"]),
    ("`stretch`, fisher, levels 5,3, `--value-objective output`",
     [*STRETCH, "--key-objective", "fisher", "--levels", "5,3", "--value-objective", "output"]),
    ("**`auto` for `any`**", ["--recipe", "auto", "--no-coded", "--target", "any"]),
    ("`auto` for `any`, levels 8,4", ["--recipe", "auto", "--no-coded", "--target", "any", "--levels", "8,4"]),
]


def run(*command):
    begin = time.perf_counter()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: measured, and rejected
        raise SystemExit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return time.perf_counter() - begin


def figures(method):
    model = method["model"]
    bits = method["bits_per_element"]["at_context_fp32_params"] if "bits_per_element" in method else 16.0
    return {"bits": bits, "softmax_kl": method["attention"]["softmax_kl"],
            **{name: model[name] for name in ("ppl", "kld_mean", "same_top", "needle_hits", "needles") if name in model}}


def measure(options, folder):
    sample, tokens = ROOT / "tests/data/qwen3-2m", ROOT / "tests/data/golden/qwen3-2m"
    rows = []
    for name, arguments in RECIPES:
        out, fitted, report = folder / "set", folder / "fit.json", folder / "verify.json"
        fit = ["fit", "--model", sample, "--tokens", tokens / "tokens_calib.npy", *arguments, "--out", out, "--force"]
        seconds = run(options.binary, *fit, "--device", options.device, "--quiet", f"--json={fitted}")
        first = not rows
        run(options.binary, "verify", out, "--model", sample, "--tokens", tokens / "tokens_eval.npy", "--sequences", 6,
            "--needle", tokens / "tokens_passkey.npy", "--needle-answers", tokens / "passkey_answer_len.npy",
            "--compare", "bf16,naive,hadamard_clip" if first else "none", "--no-record", "--quiet",
            "--device", options.device, f"--json={report}")
        methods = json.loads(report.read_text())["methods"]
        if first:
            titles = {"bf16": "bf16", "naive": "naive INT2", "hadamard_clip": "Hadamard, clip 0.96 / 0.92"}
            rows += [{"name": titles[m["name"]], **figures(m)} for m in methods if m["name"] in titles]
        own = next(m for m in methods if m["kind"] == "this")
        search = json.loads(fitted.read_text())["recipe"].get("search", {})
        rows.append({"name": name, "arguments": " ".join(arguments), "fit_seconds": seconds, **figures(own),
                     **({"choice": search["choice"]} if search else {})})
        print(rows[-1], file=sys.stderr, flush=True)
        options.out.write_text(json.dumps({"device": json.loads(fitted.read_text())["device"], "commit": options.commit,
                                           "rows": rows}, indent=1) + "\n")


def render(document):
    lines = ["| recipe | bits | softmax KL | ppl | KLD | same top | retrieval | fitted in |", "|---|---|---|---|---|---|---|---|"]
    for row in document["rows"]:
        seconds = f"{row['fit_seconds']:.0f} s" if "fit_seconds" in row else ""
        choice = f" ({row['choice']})" if "choice" in row else ""
        lines.append(f"| {row['name']}{choice} | {row['bits']:.3g} | {row['softmax_kl']:.4f} | {row['ppl']:.3f} | {row['kld_mean']:.4f} "
                     f"| {row['same_top']:.3f} | {row['needle_hits']}/{row['needles']} | {seconds} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    parser.add_argument("--out", type=Path, default=ROOT / "out/recipes.json")
    parser.add_argument("--render", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if not options.render:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="oscar-recipes-") as folder:
            measure(options, Path(folder))
    print(render(json.loads((options.render or options.out).read_text())))


if __name__ == "__main__":
    main()
