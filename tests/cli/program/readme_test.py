# SPDX-License-Identifier: MIT
"""README's five jobs run as they are written: its ```bash blocks, in order and in one shell, in a folder that has what the
project's folder has."""
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

BINARY, PROJECT = Path(os.environ["OSCAR_BINARY"]), Path(os.environ["OSCAR_PROJECT"])


class ReadmeTest(unittest.TestCase):
    def test_readme_blocks(self):
        blocks = re.findall(r"^```bash\n(.*?)^```$", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 6)  # what is set first, and a block for each job
        with tempfile.TemporaryDirectory(prefix="oscar-readme-") as name:
            folder = Path(name)
            (folder / "build").mkdir()
            (folder / "build/oscar").symlink_to(BINARY)
            for part in ("scripts", "tests", "zoo"):
                (folder / part).symlink_to(PROJECT / part)
            # Fewer tokens than a user would take: what is tried is the commands.
            environment = {**os.environ, "OSCAR_MAX_TOKENS": "8192", "OSCAR_CACHE": str(folder / "cache")}
            environment.pop("OSCAR_ZOO", None)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", "".join(blocks)], cwd=folder, env=environment, text=True,
                                  capture_output=True, timeout=500)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertTrue((folder / "out/report.html").is_file())
            self.assertIn("SGLANG_OSCAR_K_ROTATION_PATH", done.stdout)
            self.assertEqual(done.stdout.count("verdict: accepted"), 4)
            for published in ("me/my-model/latest", "me/from-ci/latest"):
                self.assertTrue((folder / "out/zoo" / published / "manifest.json").is_file())


if __name__ == "__main__":
    unittest.main()
