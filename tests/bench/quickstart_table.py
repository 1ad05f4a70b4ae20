# SPDX-License-Identifier: MIT
"""The table of tests/bench/README.md that scripts/quickstart.sh ends with, from its report.

quickstart_table.py --keep out/quickstart/report.json [--out tests/bench/results/quickstart.json]
quickstart_table.py --render tests/bench/results/quickstart.json
"""
import argparse
import json
import subprocess
from pathlib import Path

KEPT = Path(__file__).parent / "results/quickstart.json"
NAMES = {"naive": "naive INT2", "hadamard_clip": "Hadamard, clip 0.96 / 0.92", "int4": "Hadamard INT4",
         "rotations": "part `rotations`", "with_means": "part `with_means`", "coded": "**part `coded`**"}


def row(method):
    bits, attention, model = method["bits_per_element"], method["attention"], method["model"]
    return {"name": method["name"], "bits_fp16": bits["at_context"], "bits_fp32": bits["at_context_fp32_params"],
            "output_rel_error": attention["output_rel_error"], "softmax_kl": attention["softmax_kl"],
            **{name: model[name] for name in ("ppl", "kld_mean", "same_top", "needle_hits", "needles")}}


def cells(kept):
    bold = (lambda text: f"**{text}**") if kept["name"] == "coded" else str
    bits = [f"{kept[name]:.2f}" for name in ("bits_fp16", "bits_fp32")]
    return [NAMES.get(kept["name"], kept["name"]), "16" if kept["name"] == "bf16" else " / ".join(bits),
            bold(f"{kept['output_rel_error']:.4f}"), bold(f"{kept['softmax_kl']:.4f}"), f"{kept['ppl']:.3f}",
            bold(f"{kept['kld_mean']:.4f}"), bold(f"{kept['same_top']:.3f}"), f"{kept['needle_hits']}/{kept['needles']}"]


def table(document):
    head = ["method", "bits, fp16 / fp32 parameters", "attention error", "softmax KL", "ppl", "KLD", "same top", "retrieval"]
    lines = [head, ["---"] * len(head), *map(cells, document["rows"])]
    return "".join(("| " + " | ".join(line) + " |\n").replace(" --- ", "---") for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--keep", type=Path, help="a report of oscar verify")
    what.add_argument("--render", type=Path, help="what was kept")
    parser.add_argument("--out", type=Path, default=KEPT)
    options = parser.parse_args()
    if options.keep:
        report = json.loads(options.keep.read_text())
        commit = subprocess.run(["git", "-C", Path(__file__).parent, "rev-parse", "--short", "HEAD"], check=True,
                                capture_output=True, text=True).stdout.strip()
        document = {"what": "scripts/quickstart.sh", "commit": commit, "rows": [row(method) for method in report["methods"]]}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(json.loads((options.render or options.out).read_text())), end="")


if __name__ == "__main__":
    main()
