# SPDX-License-Identifier: MIT
"""README's tables of the quickstart and of recipes are what the kept runs say. check_tables.py; exit status 1 and the table if not."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/bench/results"

readme = (ROOT / "README.md").read_text()
for script, kept in (("quickstart_table.py", "quickstart.json"), ("bench_recipes.py", "recipes.json")):
    render = [sys.executable, "-B", ROOT / "tests/bench" / script, "--render", RESULTS / kept]
    table = subprocess.run(render, check=True, capture_output=True, text=True).stdout
    if not table or table not in readme:
        sys.exit(f"README.md lacks this table of {kept}:\n{table}")
    print(f"{kept}: {table.count(chr(10)) - 2} rows as in README.md")
