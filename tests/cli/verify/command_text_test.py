# SPDX-License-Identifier: MIT
"""What verify --report shows of the command line: addresses without users, passwords and queries."""
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

BINARY, PROJECT = os.environ["OSCAR_BINARY"], Path(os.environ["OSCAR_PROJECT"])


class CommandTextTest(unittest.TestCase):
    def test_secrets_do_not_reach_the_page(self):
        for address, shown in (
                ("https://me:hunter2@host/x?token=hunter2#hunter2", "https://host/x"),
                ("https://me:hun/ter?2@host/x", "https://host/x"), ("a,https://hunter2@h:80/x", "a,https://h:80/x"),
                ("https://hunter2:hunter2@host/a b", "'https://host/a b'"), ("hf://ORG/REPO@main", "hf://ORG/REPO@main"),
                ("it's", "'it'\\''s'")):
            with tempfile.TemporaryDirectory(prefix="oscar-command-") as name:
                page = Path(name) / "report.html"
                (Path(name) / address).parent.mkdir(parents=True, exist_ok=True)  # to the system, an address is a path
                command = [BINARY, "verify", str(PROJECT / "zoo/sample/qwen3-2m/latest"), "--no-record", "--json", address,
                           "--compare", "none", "--report", "report.html"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=name)
                self.assertEqual(done.returncode, 0, done.stderr)
                report = json.loads(re.search(r'<script type="application/json" id="report">(.*?)</script>', page.read_text())[1])
                self.assertIn(f"--json {shown} --compare none", report["command"])
                self.assertNotIn("hunter2", page.read_text())


if __name__ == "__main__":
    unittest.main()
