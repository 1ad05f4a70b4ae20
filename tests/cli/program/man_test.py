# SPDX-License-Identifier: MIT
"""The manual page says what --help says, and is sound roff."""
import os
import re
import shutil
import subprocess
import unittest

BINARY = os.environ["OSCAR_BINARY"]
OPTION = re.compile(r"--[a-z][a-z0-9-]*")


def printed(*arguments):
    return subprocess.run([BINARY, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


def plain(roff):
    return roff.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")


class ManTest(unittest.TestCase):
    def test_man_page_has_every_command_and_option(self):
        page = plain(printed("help", "--man"))
        self.assertTrue(page.startswith(".TH OSCAR 1 "))
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "EXIT STATUS"):
            self.assertIn(f"\n.SH {section}\n", page)
        for command in ("fit", "verify", "zoo list", "help"):
            self.assertIn(f"\n.SS oscar {command}\n", page)
            listed = [line.strip().split("  ")[0] for line in printed(*command.split(), "--help").splitlines()
                      if line.startswith("  -")]
            for entry in listed:
                self.assertIn(f"\n.TP\n{entry}\n", page)

    def test_man_page_is_sound_roff(self):
        page = printed("help", "--man")
        for line in page.splitlines():  # nothing of a text is taken for a request
            if line.startswith((".", "'")):
                self.assertRegex(line, r"^\.(TH|SH|SS|PP|TP|nf|fi|RS|RE)\b")
        self.assertTrue(page.isascii())
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=page, capture_output=True, text=True,
                                  timeout=60, check=True)
            self.assertEqual(done.stderr, "")
        if shutil.which("mandoc"):
            subprocess.run(["mandoc", "-T", "lint", "-W", "error"], input=page, check=True, text=True, timeout=60)

    def test_help_and_version_are_commands(self):
        self.assertEqual(printed("version"), printed("--version"))
        self.assertEqual(printed("help"), printed("--help"))
        for command in (("fit",), ("zoo",), ("zoo", "tag")):
            self.assertEqual(printed("help", *command), printed(*command, "--help"))


if __name__ == "__main__":
    unittest.main()
