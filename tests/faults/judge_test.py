# SPDX-License-Identifier: MIT
"""What counts as a refusal, and what does not: judge_test.py"""
import tempfile
import unittest
from pathlib import Path

from harness import ACCEPTED, CRASHED, HUNG, MARK, REFUSED, Done, Fault, judge, snapshot

ERROR = b"oscar: error: it is wrong\n  where: there\n"
FAULT = Fault("x", ("inspect",), says="wrong")


class JudgeTest(unittest.TestCase):
    def judged(self, status, stderr, act=lambda folder: None):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "letter").write_text("mine")
            before = snapshot(folder)
            act(folder)
            return judge(FAULT, folder, Done(status, b"", stderr, 0.1), before)[0]

    def test_an_error_that_says_what_and_where_is_a_refusal(self):
        self.assertEqual(self.judged(1, ERROR), REFUSED)

    def test_other_answers_are_none(self):
        cases = {(0, ERROR): ACCEPTED, (2, ERROR): ACCEPTED, (1, b"oscar: error: wrong"): ACCEPTED, (1, b"wrong"): ACCEPTED,
                 (1, ERROR + b"\x1b[31m"): ACCEPTED, (1, ERROR + "\u202e".encode()): ACCEPTED, (-11, ERROR): CRASHED, (153, ERROR): CRASHED,
                 (None, ERROR): HUNG, (1, ERROR + b"this is a bug in oscar"): CRASHED, (1, ERROR + b"[json.exception.x]"): ACCEPTED}
        for (status, stderr), outcome in cases.items():
            self.assertEqual(self.judged(status, stderr), outcome, (status, stderr))

    def test_nothing_may_have_happened_beside_the_refusal(self):
        acts = {"changed": lambda folder: (folder / "letter").write_text("yours"), "gone": lambda folder: (folder / "letter").unlink(),
                "made": lambda folder: (folder / "stray").write_text("x"), "executed": lambda folder: (folder / MARK).touch(),
                "link": lambda folder: [(folder / "letter").unlink(), (folder / "letter").symlink_to("/etc/passwd")]}
        for name, act in acts.items():
            self.assertEqual(self.judged(1, ERROR, act), ACCEPTED, name)


if __name__ == "__main__":
    unittest.main()
