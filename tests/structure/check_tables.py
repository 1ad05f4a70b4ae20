# SPDX-License-Identifier: MIT
"""README's table of recipes is what the kept run says. check_tables.py; exit status 1 and the table if not."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

bench = [sys.executable, "-B", ROOT / "tests/bench/bench_recipes.py", "--render", ROOT / "tests/bench/results/recipes.json"]
table = subprocess.run(bench, check=True, capture_output=True, text=True).stdout
if table not in (ROOT / "README.md").read_text():
    sys.exit(f"README.md lacks this table:\n{table}")
print(f"{table.count(chr(10)) - 2} rows as in README.md")
