# SPDX-License-Identifier: MIT
"""What tests of real servers measured: served_figures.py JUNIT OUT, of what `ctest --output-junit` wrote, for scripts/served.sh. Exit status 1
without a single test that ran. A test prints each figure as "figure: NAME: NUMBER"; several of one name are a list."""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import provenance


def figures_of(said):
    found = {}
    for name, number in re.findall(r"figure: (.+): ([-+.\de]+)$", said, re.MULTILINE):
        found.setdefault(name, []).append(float(f"{float(number):.4g}"))
    return {name: numbers if len(numbers) > 1 else numbers[0] for name, numbers in found.items()}


def main(junit, out):
    tests = {case.get("name"): {"status": "passed" if case.get("status") == "run" else case.get("status"), "seconds": round(float(case.get("time"))),
                                "figures": figures_of(case.findtext("system-out") or "")} for case in ElementTree.parse(junit).iter("testcase")}
    if not any(test["status"] == "passed" for test in tests.values()):
        sys.exit(f"no test of {junit} ran")
    Path(out).write_text(json.dumps({"what": "tests of a real vLLM on CPUs, by scripts/served.sh", "machine": provenance.machine(),
                                     "commit": provenance.commit(), "tests": tests}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
