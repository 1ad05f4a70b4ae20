# SPDX-License-Identifier: MIT
"""The last line of scripts/test.sh is true: counts, names of failures, exit status."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SUMMARIZE = Path(__file__).parents[2] / "scripts/summarize_tests.py"
PASSED = '<testcase name="fine" status="run"/>'
FAILED = '<testcase name="broken" status="fail"/>'
NO_PROGRAM = '<testcase name="lost" status="notrun"><skipped message="Unable to find executable"/></testcase>'
SKIPPED = ('<testcase name="left_out" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
           "<system-out>skipped: needs a GPU\n</system-out></testcase>")


def summarize(text, ctest_status):
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        if text is not None:
            results.write_text(text)
        done = subprocess.run([sys.executable, "-B", SUMMARIZE, results, str(ctest_status)], capture_output=True, text=True)
        return done.returncode, done.stdout


class SummarizeTests(unittest.TestCase):
    def check(self, cases, ctest_status, exit_code, lines):
        self.assertEqual(summarize(f"<testsuite>{''.join(cases)}</testsuite>", ctest_status), (exit_code, lines))

    def test_reason_of_unittest(self):
        skipped = SKIPPED.replace("skipped: needs a GPU", "test_x (X.test_x) ... skipped 'no zsh: install it'")
        self.check([PASSED, skipped], 0, 0, "skipped: no zsh: install it (1 tests)\n1 passed, 0 failed, 1 skipped\n")

    def test_passed_and_skipped_is_success(self):
        self.check([PASSED, PASSED, SKIPPED], 0, 0,
                   "skipped: needs a GPU (1 tests)\n2 passed, 0 failed, 1 skipped\n")

    def test_a_failure_is_named(self):
        self.check([PASSED, FAILED], 8, 1, "failed: broken\n1 passed, 1 failed, 0 skipped\n")

    def test_a_test_without_its_program_failed(self):
        self.check([PASSED, NO_PROGRAM], 8, 1, "failed: lost\n1 passed, 1 failed, 0 skipped\n")

    def test_ctest_failing_without_a_failed_test_is_failure(self):
        self.check([PASSED], 8, 1, "1 passed, 0 failed, 0 skipped\n")

    def test_no_results_are_failure(self):
        self.check([], 0, 1, "0 passed, 0 failed, 0 skipped\n")
        self.assertEqual(summarize(None, 0), (1, "0 passed, 0 failed, 0 skipped\n"))
        self.assertEqual(summarize("<testsuite>", 0), (1, "0 passed, 0 failed, 0 skipped\n"))


if __name__ == "__main__":
    unittest.main()
