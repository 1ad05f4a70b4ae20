# SPDX-License-Identifier: MIT
"""The table of apps/python/MODELS.md, from what tests/python/vllm_models_test.py keeps: vllm_models_table.py --render FILE. Exit status 1
if a model_type of apps/oscar/README.md has no row."""
import json
import re
import sys
from pathlib import Path

FAMILIES = Path(__file__).parents[2] / "apps/oscar/README.md"
HEAD = ("`model_type`", "architecture", "what was run", "with a set", "layers packed", "difference to `PackedCache`", "to an exact cache")
ANSWERS = {"yes": "served", "refused": "refused: {reason}", "not run by vLLM": "not tried: vLLM fails without a set, too: {reason}"}


def cells(row):
    figures = [f"{row['packed']} of {row['layers']}", f"{row['difference']:.3f}", f"{row['exact']:.3f}"] if row["served"] == "yes" else ["–"] * 3
    return [f"`{row['model_type']}`", row["architecture"], row["what"] or "–", ANSWERS[row["served"]].format(**row), *figures]


def main():
    rows = sorted(json.loads(Path(sys.argv[sys.argv.index("--render") + 1]).read_text())["rows"], key=lambda row: row["model_type"])
    families = re.findall(r"^\| `(\w+)` \|", FAMILIES.read_text().partition("## Models")[2].partition("</details>")[0], re.MULTILINE)
    if lacking := set(families[1:]) ^ {row["model_type"] for row in rows}:
        sys.exit(f"the rows of models that vLLM was tried with and {FAMILIES} do not agree about {sorted(lacking)}")
    for line in (HEAD, ["---"] * len(HEAD), *map(cells, rows)):
        print(("| " + " | ".join(line) + " |").replace(" --- ", "---"))


if __name__ == "__main__":
    main()
