# SPDX-License-Identifier: MIT
"""scripts/quickstart.sh, but for what it installs and builds, ends with the table of tests/bench/README.md."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY, PROJECT = Path(os.environ["OSCAR_BINARY"]), Path(os.environ["OSCAR_PROJECT"])
sys.path[:0] = [str(PROJECT / "tests/bench"), str(PROJECT / "tests/support")]
import figures  # noqa: E402
import quickstart_table  # noqa: E402

# How far figures may be from those kept: six of the largest standard deviations of tests/support/figures.py, since the last bits
# of both runs move. Shares of the figure, but for hits of 16 needles, whose deviation is that of the 40 there
# times the root of 16 / 40. Of the coded part, whose bits are dealt out by what the model says, six standard deviations of eight fits: by
# three kinds of vector instructions, on another processor, and of four such copies of the model.
BOUNDS = {"output_rel_error": 0.015, "softmax_kl": 0.006, "ppl": 0.01, "kld_mean": 0.06, "same_top": 0.008, "needle_hits": 6}
CODED = BOUNDS | {"output_rel_error": 0.12, "softmax_kl": 0.025, "kld_mean": 0.13}


class QuickstartTest(unittest.TestCase):
    def test_the_quickstart_ends_with_the_table_of_the_readme(self):
        with tempfile.TemporaryDirectory(prefix="oscar-quickstart-") as name:
            folder = Path(name)
            for part in ("build", "scripts", "tests"):
                (folder / part).mkdir()
            (folder / "build/oscar").symlink_to(BINARY)
            (folder / "tests/data").symlink_to(PROJECT / "tests/data")
            for script in ("setup.sh", "build.sh"):
                (folder / "scripts" / script).symlink_to("/bin/true")
            script = shutil.copy(PROJECT / "scripts/quickstart.sh", folder / "scripts")
            done = subprocess.run(["bash", script], capture_output=True, text=True, timeout=900)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            report = json.loads((folder / "out/quickstart/report.json").read_text())
        self.assertIn("retrieval", done.stdout)
        self.check([quickstart_table.row(method) for method in report["methods"]])

    def check(self, rows):
        kept = json.loads(quickstart_table.KEPT.read_text())["rows"]
        self.assertEqual([row["name"] for row in rows], [row["name"] for row in kept])
        for row, expected in zip(rows, kept):
            for figure, bound in (CODED if row["name"] == "coded" else BOUNDS).items():
                limit = bound if figure == "needle_hits" else bound * expected[figure] + 1e-6
                figures.check(self, f"quickstart, {row['name']}, {figure}", row[figure], expected[figure], limit)


if __name__ == "__main__":
    unittest.main()
