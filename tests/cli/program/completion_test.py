# SPDX-License-Identifier: MIT
"""Completion scripts offer what the program has, and the examples of --help use options that it has."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

BINARY = os.environ["OSCAR_BINARY"]
DATA = Path(os.environ["OSCAR_PROJECT"]) / "tests/data"
COMMANDS = ("dump", "fit", "verify", "serve-check", "publish", "pull", "inspect", "convert", "zoo",
            "zoo list", "completion", "help", "version")
OPTION = re.compile(r"--[a-z][a-z0-9-]*")


def printed(*arguments):
    return subprocess.run([BINARY, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


def options_of(command):
    """Those that --help lists in its first column."""
    lines = printed(*command.split(), "--help").splitlines()
    return {name for line in lines if line.startswith("  -") for name in OPTION.findall(line.split("  ")[1])}


def common_options():
    """Those of the program, which every command takes."""
    return options_of("")


def completed(*words):
    """What bash offers for the last of the words."""
    script = printed("completion", "bash") + f"""
COMP_WORDS=(oscar {' '.join(f"'{word}'" for word in words)}); COMP_CWORD={len(words)}
_oscar; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-u", "-c", script], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.split()


def offered_by_zsh(*words):
    """What the function offers in zsh, which itself takes those of it that begin like the last of the words."""
    script = printed("completion", "zsh") + f"""
words=(oscar {' '.join(f"'{word}'" for word in words)}); CURRENT={len(words) + 1}
COMP_WORDS=("${{words[@]}}"); COMP_CWORD={len(words)}
compgen -F _oscar -- "${{words[CURRENT]}}" """
    with tempfile.TemporaryDirectory() as home:  # compinit writes there
        done = subprocess.run(["zsh", "-f", "-c", script], check=False, capture_output=True, text=True, timeout=60,
                              env={**os.environ, "ZDOTDIR": home})
    if done.returncode or done.stderr:
        raise AssertionError(f"zsh ended with {done.returncode}: {done.stderr}")
    return done.stdout.split()


class CompletionTest(unittest.TestCase):
    def test_completion_of_commands(self):
        self.assertEqual(completed("f"), ["fit"])
        self.assertEqual(completed("zoo", "d"), ["deprecate"])
        self.assertEqual(completed("completion", "b"), ["bash"])
        self.assertEqual(completed("fit", "z"), [])  # nothing of the program behind a command

    def test_completion_of_options(self):
        for command in COMMANDS:
            self.assertEqual(set(completed(*command.split(), "--")), options_of(command) | common_options(), command)

    def test_completion_of_values(self):
        self.assertEqual(completed("fit", "--target", "sglang"), ["sglang-v1", "sglang-v3"])
        self.assertEqual(completed("verify", "set", "--windows", ""), ["common", "own", "none"])
        self.assertEqual(completed("fit", "--out", ""), completed("fit", ""))  # then bash offers files

    def test_completion_of_fish_and_zsh(self):
        fish, zsh = printed("completion", "fish"), printed("completion", "zsh")
        for option in options_of("fit") - {"--help"}:
            self.assertRegex(fish, rf"'__fish_seen_subcommand_from fit' -l {option[2:]} ")
        for flag in ("force", "resume", "json", "center", "no-center"):  # a value may be left out, or there is none
            self.assertRegex(fish, rf"from fit' -l {flag} -d ")
        self.assertRegex(fish, r"complete -c oscar -s q -l quiet -d ")
        self.assertRegex(fish, "from fit' -l max-tokens -r ")
        self.assertRegex(fish, "from zoo; and __fish_seen_subcommand_from list' -l zoo -r ")
        self.assertRegex(fish, "from help' -x -a .dump fit ")
        self.assertRegex(fish, "from zoo; and __fish_seen_subcommand_from render' -l url -r ")
        self.assertRegex(fish, "from completion' -x -a .bash ")
        self.assertIn("bashcompinit", zsh)
        self.assertTrue(zsh.endswith(printed("completion", "bash")))
        for shell, script in (("fish", fish), ("zsh", zsh)):
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=script, check=True, text=True, timeout=60)

    @unittest.skipUnless(shutil.which("zsh"), "no zsh: scripts/setup.sh --tests installs it")
    def test_completion_in_zsh(self):
        self.assertIn("fit", offered_by_zsh(""))
        self.assertEqual(offered_by_zsh("zoo", ""), completed("zoo", ""))
        self.assertEqual(offered_by_zsh("fit", "--dump", "d", "--target", ""), completed("fit", "--target", ""))
        for command in ("fit", "zoo list"):
            offered = {word for word in offered_by_zsh(*command.split(), "--") if word.startswith("--")}
            self.assertEqual(offered, options_of(command) | common_options(), command)

    def test_choices_of_options_are_those_that_fit_takes(self):
        text = ("--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "1")
        for option in ("target", "recipe", "key-objective", "value-objective", "composition", "codec", "scale-dtype"):
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run([BINARY, "fit", "-q", *text, "--seq-len", "64", "--out", "set", f"--{option}", "nonsense"],
                                      cwd=folder, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            taken = done.stderr.split("use ")[-1].removeprefix("one of: ").strip()  # "a, b or c"
            self.assertEqual(sorted(re.split(", | or ", taken)), sorted(completed("fit", f"--{option}", "")), option)

    def test_help_has_examples_of_options_that_exist(self):
        for command in COMMANDS:
            if command == "zoo":
                continue
            examples = printed(*command.split(), "--help").split("\nExamples:\n")[1].split("\n\n")[0]
            self.assertIn(f"oscar {command}", examples)
            used = {option for line in examples.splitlines() for option in OPTION.findall(line[line.index("oscar "):])}
            self.assertLessEqual(used, options_of(command), command)


if __name__ == "__main__":
    unittest.main()
