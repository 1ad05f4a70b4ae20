# SPDX-License-Identifier: MIT
"""What pages tell a user to run runs as it is written: the ```bash blocks of README, and those of the commands' page after README's
first, in order and in one shell, in a folder that has what the project's folder has."""
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

BINARY, PROJECT = Path(os.environ["OSCAR_BINARY"]), Path(os.environ["OSCAR_PROJECT"])


def blocks_of(page):
    return re.findall(r"^```bash\n(.*?)^```$", (PROJECT / page).read_text(), re.MULTILINE | re.DOTALL)


class ReadmeTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-readme-")))
        (self.folder / "build").mkdir()
        (self.folder / "build/oscar").symlink_to(BINARY)
        for part in ("scripts", "tests", "zoo"):
            (self.folder / part).symlink_to(PROJECT / part)

    def run_blocks(self, blocks):
        """What they print. Fewer tokens than a user would take, and shorter texts: what is tried is the commands."""
        environment = {**os.environ, "OSCAR_MAX_TOKENS": "8192", "OSCAR_SEQ_LEN": "512", "OSCAR_CACHE": str(self.folder / "cache")}
        environment.pop("OSCAR_ZOO", None)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", "".join(blocks)], cwd=self.folder, env=environment, text=True,
                              capture_output=True, timeout=500)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_readme_blocks(self):
        blocks = blocks_of("README.md")
        self.assertEqual(len(blocks), 3)  # what is set first; calibrate, judge and share; pull and serve
        printed = self.run_blocks(blocks)
        self.assertTrue((self.folder / "out/report.html").is_file())
        self.assertIn("SGLANG_OSCAR_K_ROTATION_PATH", printed)
        self.assertEqual(printed.count("verdict: accepted"), 1)
        self.assertTrue((self.folder / "out/zoo/me/my-model/latest/manifest.json").is_file())

    def test_blocks_of_more_jobs(self):
        blocks = blocks_of("apps/oscar/README.md")
        self.assertEqual(len(blocks), 3)  # a server's dump, somebody's files, CI
        printed = self.run_blocks([blocks_of("README.md")[0], *blocks])
        self.assertEqual(printed.count("verdict: accepted"), 3)
        self.assertTrue((self.folder / "out/zoo/me/from-ci/latest/manifest.json").is_file())


if __name__ == "__main__":
    unittest.main()
