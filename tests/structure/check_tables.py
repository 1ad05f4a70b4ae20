# SPDX-License-Identifier: MIT
"""The tables of pages are what the kept runs say. check_tables.py; exit status 1 and the table if not."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/bench/results"

TABLES = [("quickstart_table.py", "quickstart.json", "tests/bench/README.md"),
          ("vllm_models_table.py", "vllm_models.json", "apps/python/MODELS.md"),
          *(("bench_real_model.py", f"real_model_{model}h200.json", "tests/bench/README.md", "--table", name)
            for model, name in (("qwen_", "main"), ("qwen_", "tasks"), ("gemma_", "main"), ("smollm2_", "main"), ("", "domains"), ("", "positions")))]
for script, kept, page, *options in TABLES:
    render = [sys.executable, "-B", ROOT / "tests/bench" / script, "--render", RESULTS / kept, *options]
    table = subprocess.run(render, check=True, stdout=subprocess.PIPE, text=True).stdout
    if not table or table not in (ROOT / page).read_text():
        sys.exit(f"{page} lacks this table of {kept}:\n{table}")
    print(f"{kept}: {table.count(chr(10)) - 2} rows as in {page}")
