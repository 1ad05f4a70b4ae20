# SPDX-License-Identifier: MIT
"""Turns ctest's JUnit file of the CUDA tests into JSON on standard output.

results.py RESULTS.xml COMMIT GPU NVCC. A test prints "measured: what | dtype | head_dim | tokens | error | tolerance";
of the lines of one what, dtype, head_dim and tokens the largest error is kept. Exit 1 if no test passed or one failed.
"""
import json
import sys
import xml.etree.ElementTree as ElementTree


def measurements(text):
    worst = {}
    for line in text.splitlines():
        if not line.startswith("measured: "):
            continue
        what, dtype, head_dim, tokens, error, tolerance = (part.strip() for part in line[10:].split("|"))
        key = (what, dtype, int(head_dim), int(tokens))
        known = worst.get(key, (0.0, 0.0, 0))
        worst[key] = (max(known[0], float(error)), float(tolerance), known[2] + 1)
    return [dict(zip(("operation", "dtype", "head_dim", "tokens"), key), largest_error=error, tolerance=tolerance,
                 comparisons=count) for key, (error, tolerance, count) in sorted(worst.items())]


def main():
    path, commit, gpu, nvcc = sys.argv[1:]
    cases, measured = [], []
    for case in ElementTree.parse(path).getroot().findall("testcase"):
        output = case.findtext("system-out") or ""
        passed = case.get("status") == "run" and "skipped:" not in output
        cases.append({"name": case.get("name"), "passed": passed, "seconds": float(case.get("time", "nan"))})
        measured += measurements(output)
    name, driver, memory = (part.strip() for part in gpu.split(","))
    result = {"commit": commit, "gpu": name, "driver": driver, "gpu_memory": memory, "nvcc": nvcc,
              "passed": sum(case["passed"] for case in cases), "failed": sum(not case["passed"] for case in cases),
              "cases": cases, "measurements": measured}
    # One line per entry of a list: short, and differences show.
    lines = [f' {json.dumps(key)}: ' + ("[\n" + ",\n".join("  " + json.dumps(entry) for entry in value) + "\n ]"
                                      if isinstance(value, list) else json.dumps(value))
             for key, value in result.items()]
    print("{\n" + ",\n".join(lines) + "\n}")
    return 0 if result["failed"] == 0 and result["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
