# SPDX-License-Identifier: MIT
"""What scripts/gpu/test.sh concludes is true: counts, the largest error of a kind, and exit status 1 for anything amiss."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "scripts/gpu/results.py"
CLEAN = "[doctest] test cases:  2 |  2 passed | 0 failed | 9 skipped\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")


def case(name, status="run", output="", skipped=""):
    return f'<testcase name="{name}" status="{status}" time="0.5">{skipped}<system-out>{output}</system-out></testcase>'


SKIPPED = case("s", "notrun", "skipped: no data\n", '<skipped message="SKIP_RETURN_CODE=77"/>')


def conclude(parts, **files):
    """(exit status, document). Logs of the sanitizers are memcheck_0, racecheck_3, …"""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            suffix = "log" if "check" in name else "xml"
            Path(folder, f"{name.replace('_', '.')}.{suffix}").write_text(text if suffix == "log" else f"<testsuite>{text}</testsuite>")
        done = subprocess.run([sys.executable, "-B", RESULTS, folder, "abc", "H200, 580, 9 MiB", "13.0", *parts],
                              capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout)


class ResultsTests(unittest.TestCase):
    def test_the_largest_error_of_a_kind_is_kept(self):
        output = "".join(f"measured: eigh | f64 | 128 | 7 | {error} | 1e-10\n" for error in ("1e-12", "3e-12", "2e-12"))
        status, result = conclude(["kernels"], kernels=case("a", output=output) + case("b"))
        self.assertEqual((status, result["passed"], result["failed"], result["gpu"]), (0, 2, 0, "H200"))
        self.assertEqual(result["measurements"], [{"operation": "eigh", "dtype": "f64", "head_dim": 128, "tokens": 7,
                                                   "largest_error": 3e-12, "tolerance": 1e-10, "comparisons": 3}])

    def test_a_skipped_case_of_the_kernels_is_a_failure(self):
        self.assertEqual(conclude(["kernels"], kernels=case("a") + SKIPPED)[0], 1)

    def test_the_suite_may_skip_and_names_what_failed(self):
        status, result = conclude(["suite"], suite=case("a") + SKIPPED)
        self.assertEqual((status, result["suite_on_cuda"]["skip_reasons"]), (0, {"no data": 1}))
        status, result = conclude(["suite"], suite=case("a") + case("b", "fail"))
        self.assertEqual((status, result["suite_on_cuda"]["failures"]), (1, ["b"]))

    def test_nothing_run_is_a_failure(self):
        self.assertEqual([conclude([part])[0] for part in ("kernels", "suite", "sanitizers")], [1, 1, 1])

    def test_sanitizers_must_have_watched_something_and_said_nothing(self):
        status, result = conclude(["sanitizers"], memcheck_0=CLEAN, memcheck_1=CLEAN, racecheck_0=NO_RACE)
        self.assertEqual((status, [entry["cases"] for entry in result["sanitizers"]]), (0, [4, 2]))
        operators = "Ran 12 tests in 3s\n\nOK\n========= ERROR SUMMARY: 0 errors\n"
        status, result = conclude(["sanitizers"], memcheck_0=CLEAN, memcheck_operators=operators, racecheck_0=NO_RACE)
        self.assertEqual((status, result["sanitizers"][0]["cases"]), (0, 14))
        for bad in (operators.replace("12", "0"), operators + "exit status 1\n", CLEAN.replace("0 errors", "3 errors"), CLEAN.replace(" 2 ", " 0 "), CLEAN + "exit status 124\n",
                    CLEAN + "skipped: no GPU\n", ""):
            self.assertEqual(conclude(["sanitizers"], memcheck_0=CLEAN, memcheck_1=bad, racecheck_0=NO_RACE)[0], 1, bad)
        self.assertEqual(conclude(["sanitizers"], memcheck_0=CLEAN)[0], 1)


if __name__ == "__main__":
    unittest.main()
