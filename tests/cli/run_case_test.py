# SPDX-License-Identifier: MIT
"""The runner of command-line tables fails a case for each kind of expectation that does not hold."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RUNNER = Path(__file__).with_name("run_case.py")
FAKE = "#!/bin/sh\necho out; echo err >&2; : > made; exit 3\n"
GOOD = {"run": '"oscar"', "exit": "3", "stdout": '["out"]', "stderr": '["err"]', "exists": '["made"]'}


def run_case(changes, shared="/nowhere"):
    """Exit status of the runner on the good case with `changes`; a value of None leaves the member out."""
    members = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        table, binary = Path(folder, "cases.toml"), Path(folder, "oscar")
        table.write_text('[[case]]\nname = "x"\n' + "".join(f"{key} = {value}\n" for key, value in members.items()))
        binary.write_text(FAKE)
        binary.chmod(0o755)
        environment = {**os.environ, "OSCAR_BINARY": str(binary), "OSCAR_TEST_DATA": folder, "OSCAR_SHARED": shared}
        done = subprocess.run([sys.executable, "-B", RUNNER, table, "x"], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout


class RunCase(unittest.TestCase):
    def test_a_case_that_holds_passes(self):
        self.assertEqual(run_case({}), (0, ""))

    def test_every_expectation_can_fail(self):
        for changes, reason in (({"exit": "0"}, "exit status 3, expected 0"), ({"exit": None}, "exit status 3, expected 0"),
                                ({"stdout": '["other"]'}, "stdout lacks 'other'"), ({"stdout": None}, "stdout is not empty"),
                                ({"stderr": '["other"]'}, "stderr lacks 'other'"), ({"stderr": None}, "stderr is not empty"),
                                ({"absent": '["err"]'}, "stderr has 'err'"), ({"exists": '["other"]'}, "other is missing"),
                                ({"missing": '["ma*"]'}, "ma* is there")):
            code, output = run_case(changes)
            self.assertEqual(code, 1, reason)
            self.assertIn(reason, output)

    def test_without_reference_data_a_case_is_skipped(self):
        code, output = run_case({"run": '"ls $SHARED"'})
        self.assertEqual(code, 77)
        self.assertIn("skipped:", output)


if __name__ == "__main__":
    unittest.main()
