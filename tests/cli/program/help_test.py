# SPDX-License-Identifier: MIT
"""What is made of help: completion offers what the program has, and manual pages have every command and option."""
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

BINARY, PROJECT = Path(os.environ["OSCAR_BINARY"]), Path(os.environ["OSCAR_PROJECT"])
ENVIRONMENT = {**os.environ, "PATH": f"{BINARY.parent}:{os.environ['PATH']}"}


def printed(*command, text=None):
    return subprocess.run(command, input=text, check=True, capture_output=True, text=True, timeout=60, env=ENVIRONMENT).stdout


def options_of(*words):
    """Those that help lists in its first column."""
    lines = printed(BINARY, *words, "--help-all" if words else "--help").splitlines()
    return {name for line in lines if re.match(" *-", line) for name in re.findall("--[a-z][a-z-]*", line.strip().split(" ")[0])}


class HelpTest(unittest.TestCase):
    SHELLS = {"bash": ["bash", "-u"], "zsh": ["zsh", "-f"]}

    def completed(self, shell, *words):
        """What a shell offers for the last of the words."""
        line = " ".join(f"'{word}'" for word in ("oscar", *words))
        first = "" if shell == "bash" else "autoload -U +X bashcompinit && bashcompinit; setopt ksharrays\n"
        script = f"{first}. {PROJECT}/apps/oscar/completion.bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _oscar; echo \"${{COMPREPLY[@]}}\""
        offered = printed(*self.SHELLS[shell], "-c", script).split()
        return [word for word in offered if word.startswith(words[-1])]  # zsh takes these itself

    def test_completion_of_commands_and_options(self):
        for shell in filter(shutil.which, self.SHELLS):
            with self.subTest(shell):
                self.assertEqual(self.completed(shell, "f"), ["fit"])
                self.assertEqual(self.completed(shell, "zoo", "l"), ["list"])
                self.assertEqual(self.completed(shell, "fit", "z"), [])
                for words in (("fit",), ("verify", "set"), ("zoo", "list")):
                    self.assertEqual(set(self.completed(shell, *words, "--")), options_of(*words[:2 - ("set" in words)]) | options_of())

    @unittest.skipUnless(shutil.which("help2man"), "no help2man: scripts/setup.sh --build-tests installs it")
    def test_manual_pages(self):
        for words in (("fit",), ("zoo", "list")):
            page = (BINARY.parent / f"man/oscar-{'-'.join(words)}.1").read_text()
            for section in ("NAME", "SYNOPSIS", "DESCRIPTION"):
                self.assertIn(f"\n.SH {section}\n", page)
            for option in options_of(*words):
                self.assertIn(option, page.replace("\\-", "-"))


if __name__ == "__main__":
    unittest.main()
