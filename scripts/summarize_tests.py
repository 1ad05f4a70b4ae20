# SPDX-License-Identifier: MIT
"""Prints what ctest's JUnit file says: skipped tests by reason, failed tests by name, and one last line of counts.

summarize_tests.py RESULTS.xml CTEST_STATUS. Exit 1 if a test failed, could not be run, or if no test ran at all.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter


def outcome(case):
    """"passed", "failed" or "skipped"; a test whose program is missing is "notrun" to ctest and failed to us."""
    status = case.get("status")
    if status == "run":
        return "passed"
    if status == "disabled":
        return "skipped"
    skipped = case.find("skipped")
    if status == "notrun" and skipped is not None and skipped.get("message", "").startswith("SKIP_"):
        return "skipped"
    return "failed"


def skip_reason(case):
    output = case.findtext("system-out") or ""
    reason = re.search(r"(?:skipped:|\.\.\. skipped) *(.+)", output)  # our programs' words, and unittest's
    return reason[1].strip(" '\"") if reason else "no reason given"


def main():
    results, ctest_status = sys.argv[1], int(sys.argv[2])
    try:
        cases = ElementTree.parse(results).getroot().findall("testcase")
    except (OSError, ElementTree.ParseError) as error:
        print(f"test: ctest left no results ({error})", file=sys.stderr)
        cases = []
    counts = Counter(outcome(case) for case in cases)
    reasons = Counter(skip_reason(case) for case in cases if outcome(case) == "skipped")
    for reason, count in sorted(reasons.items()):
        print(f"skipped: {reason} ({count} tests)")
    for case in cases:
        if outcome(case) == "failed":
            print(f"failed: {case.get('name')}")
    bad = counts["failed"] > 0 or ctest_status != 0 or counts["passed"] == 0
    if bad and counts["failed"] == 0:
        print(f"test: ctest ended with status {ctest_status} after {counts['passed']} passed tests", file=sys.stderr)
    sys.stderr.flush()
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
