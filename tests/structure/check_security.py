# SPDX-License-Identifier: MIT
"""The tests that SECURITY.md names are there: check_security.py BUILD; exit status 1 and one line per name that is not.
Where a ctest runs a whole file of Python tests, its methods are named as <ctest>/<method without test_>."""
import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "SECURITY.md"

known = subprocess.run(["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"], check=True, stdout=subprocess.PIPE).stdout
tests = set()
for test in json.loads(known)["tests"]:
    tests.add(test["name"])
    if test.get("command", [""])[-1] == "-v":
        tests |= {f"{test['name']}/{method}" for method in re.findall(r"^    def test_(\w+)", Path(test["command"][-2]).read_text(), re.M)}
rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
named = [(claim.strip(), name) for claim, cell in rows for name in re.findall(r"`([^`]+)`", cell) or [""]]
missing = [f"{claim}: there is no test \"{name}\"" for claim, name in named if name not in tests]
print("\n".join(missing) or f"{len(named)} tests of {len(rows)} claims are there")
sys.exit(bool(missing or not named))
