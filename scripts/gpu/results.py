# SPDX-License-Identifier: MIT
"""Turns what test.sh left in a folder into one JSON document on standard output.

results.py FOLDER COMMIT GPU NVCC PART..., where PART is kernels, suite or sanitizers. A test prints
"measured: what | dtype | head_dim | tokens | error | tolerance"; of the lines of one what, dtype, head_dim and tokens the
largest error is kept. Exit 1 if a part failed, left nothing, or ran no case.
"""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from summarize_tests import outcome, skip_reason  # noqa: E402


def read_cases(path):
    """ctest's cases, none if it was cut off and wrote nothing."""
    return ElementTree.parse(path).getroot().findall("testcase") if path.exists() else []


def explain(case):
    last_words(case.get("name"), case.findtext("system-out") or "")


def last_words(name, output):
    """What a failure said, for whoever watches."""
    print("\n".join([f"--- failed: {name}", *output.strip().splitlines()[-25:]]), file=sys.stderr)


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


def kernels(folder):
    """Every case of the CUDA backend must run: a skipped one is a failed one."""
    cases, measured = [], []
    for case in read_cases(folder / "kernels.xml"):
        output = case.findtext("system-out") or ""
        passed = outcome(case) == "passed" and "skipped:" not in output
        cases.append({"name": case.get("name"), "passed": passed, "seconds": float(case.get("time", "nan"))})
        measured += measurements(output)
        if not passed:
            explain(case)
    passed = sum(case["passed"] for case in cases)
    return {"passed": passed, "failed": len(cases) - passed, "cases": cases, "measurements": measured}


def suite(folder):
    """The tests of everything else, told to compute on the GPU: counts, and names where something is to be said."""
    cases = read_cases(folder / "suite.xml")
    failed = [case for case in cases if outcome(case) == "failed"]
    for case in failed:
        explain(case)
    counts = Counter(outcome(case) for case in cases)
    reasons = Counter(skip_reason(case) for case in cases if outcome(case) == "skipped")
    return {"suite_on_cuda": {**{name: counts[name] for name in ("passed", "failed", "skipped")},
                              "failures": [case.get("name") for case in failed],
                              "skip_reasons": dict(sorted(reasons.items()))}}


def sanitizer(path):
    """Cases that ran, whether they were clean, and the tool's summary."""
    text = path.read_text(errors="replace")
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    cases = re.search(r"test cases: +(\d+) \| +(\d+) passed|^Ran (\d+) tests", text, re.MULTILINE)
    run, passed = (int(count or 0) for count in cases.groups()[:2]) if cases else (0, 0)
    if cases and cases[3]:
        run = passed = int(cases[3])  # exit status 9 or 1 if not all passed
    clean = (summary is not None and bool(re.match(r"0 (errors|hazards)", summary[1])) and 0 < run == passed
             and "exit status" not in text and "skipped:" not in text)
    if not clean:
        last_words(path.stem, text)
    return run, clean, summary[1] if summary else "none: cut off, or it could not run"


def sanitizers(folder):
    """Of each tool all logs together, one a case; no log is a failure."""
    results = []
    for tool in ("memcheck", "racecheck"):
        logs = [sanitizer(path) for path in sorted(folder.glob(f"{tool}.*.log"))]
        results.append({"tool": tool, "cases": sum(run for run, _, _ in logs),
                        "clean": bool(logs) and all(clean for _, clean, _ in logs),
                        "summary": "; ".join(sorted({summary for _, _, summary in logs}))})
    return {"sanitizers": results}


def failures(result):
    if result.get("failed") or result.get("passed") == 0:
        yield "kernels"
    on_cuda = result.get("suite_on_cuda")
    if on_cuda and (on_cuda["failed"] or on_cuda["passed"] == 0):
        yield "suite"
    yield from (entry["tool"] for entry in result.get("sanitizers", []) if not entry["clean"])


def main():
    folder, commit, gpu, nvcc, *parts = sys.argv[1:]
    name, driver, memory = (part.strip() for part in gpu.split(","))
    result = {"commit": commit, "gpu": name, "driver": driver, "gpu_memory": memory, "nvcc": nvcc}
    for part in parts:
        result.update({"kernels": kernels, "suite": suite, "sanitizers": sanitizers}[part](Path(folder)))
    bad = list(failures(result))
    # One line per entry of a list: short, and differences show.
    lines = [f' {json.dumps(key)}: ' + ("[\n" + ",\n".join("  " + json.dumps(entry) for entry in value) + "\n ]"
                                      if isinstance(value, list) else json.dumps(value))
             for key, value in result.items()]
    print("{\n" + ",\n".join(lines) + "\n}")
    for part in bad:
        print(f"gpu/test: failed: {part}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
