# SPDX-License-Identifier: MIT
"""oscar serve-check --long against servers that write by rules, each with one of the failures that users report:
serve_long_test.py [ServeLongTest.test_…]"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(os.environ["OSCAR_PROJECT"])
try:
    import numpy as np
    from tokenizers import Tokenizer
    from writing_server import WritingServer
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

MODEL, SET = PROJECT / "tests/data/qwen3-2m", PROJECT / "zoo/sample/qwen3-2m/latest"
TOKENS = PROJECT / "tests/data/golden/qwen3-2m/tokens_eval.npy"
CHECK, LONG = {"--prompts": "2", "--needles": "0", "--generate": "4"}, {"--passages": "12", "--long-tokens": "150"}
READ = (SET, "--for", "sglang-v1")
TEXT = np.load(TOKENS).reshape(-1).tolist()


def oscar(server, *words, **changes):
    """Exit status, report (None: none was written) and messages."""
    options = {"--prompt-tokens": "512", "--max-tokens": "12000"} | ({} if "--save-long" in words else CHECK)
    options |= (LONG if {"--long", "--save-long"} & set(words) else {}) | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    command = [os.environ["OSCAR_BINARY"], "serve-check", "--url", server.url, "--model", MODEL, "--tokens", TOKENS, "-q", *words,
               *(word for pair in options.items() for word in pair)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def compared(server, reference, *words, **changes):
    """The reference says, too, that the cache is neither broken nor quantised by much."""
    code, text, errors = oscar(server, *READ, "--long", reference.url, "--reference", reference.url, "--min-kl", "0", *words, **changes)
    return code, json.loads(text) if "--json" in words and text else text, errors


class ServeLongTest(unittest.TestCase):
    def server(self, habit="", start=0, **options):
        server = WritingServer(TEXT, Tokenizer.from_file(str(MODEL / "tokenizer.json")).decode, habit, start, **options)
        self.enterContext(server)
        return server

    def figures(self, report):
        return {figure["name"]: figure for figure in report["long"]["figures"]}

    def test_accepts_a_server_that_writes_as_well(self):
        reference = self.server()
        code, report, errors = compared(self.server(start=40), reference, "--json")
        self.assertEqual(code, 0, errors)
        self.assertEqual(report["reasons"], [])
        figures = self.figures(report)
        self.assertEqual(list(figures), ["quoted", "length", "unanswered", "compression"])
        for name, figure in figures.items():
            low, high = figure["interval"]
            self.assertLessEqual(low, figure["difference"], name)
            self.assertLessEqual(figure["difference"], high, name)
        self.assertEqual([figures[name]["server"] for name in ("quoted", "unanswered")], [1, 0])
        self.assertAlmostEqual(figures["length"]["reference"], sum(30 + 7 * (i % 5) for i in range(24)) / 24)
        self.assertEqual((report["long"]["passages"], report["long"]["questions"]), (12, 24))
        self.assertEqual(report["long"]["reference"], report["reference"])

    def test_rejects_each_failure_by_its_figure(self):
        reference = self.server()
        for habit, name in (("garbled", "compression"), ("repeating", "compression"), ("shortened", "length"),
                            ("silent", "unanswered"), ("cut off", "unanswered"), ("forgetful", "quoted")):
            code, report, errors = compared(self.server(habit, start=40), reference, "--json")
            self.assertEqual((code, report and report["verdict"]), (3, "rejected"), habit + errors)
            worse = [figure["name"] for figure in self.figures(report).values() if figure["verdict"] == "worse"]
            self.assertEqual((worse, len(report["reasons"])), ([name], 1), habit)
            self.assertIn(f"long answers, {name}: ", report["reasons"][0])

    def test_tells_it_in_words(self):
        code, text, errors = compared(self.server("forgetful"), self.server(), questions="0")
        self.assertEqual(code, 3, errors)
        self.assertIn("12 passages and 0 questions", text)
        self.assertRegex(text, r"quoted +1 +0\.2\d* +-0\.7\d\d +-0\.7\d\d to -0\.7\d\d +worse")
        self.assertIn("is beyond -0.05", text)
        self.assertNotIn("unanswered", text)

    def test_compares_with_answers_that_were_kept(self):
        with tempfile.TemporaryDirectory(prefix="oscar-long-") as folder:
            kept = Path(folder, "bf16.json")
            code, text, errors = oscar(self.server(), "--save-long", kept)
            self.assertEqual((code, text), (0, ""), errors)
            reference, server = self.server(), self.server("cut off")
            _, asked, _ = compared(server, reference, "--json")
            code, text, errors = oscar(server, *READ, "--long", kept, "--reference", reference.url, "--min-kl", "0", "--json")
            self.assertEqual((code, text and json.loads(text)["long"]["figures"]), (3, asked["long"]["figures"]), errors)
            code, _, errors = oscar(server, *READ, "--long", kept, "--reference", reference.url, long_tokens="100")
            self.assertEqual((code, '"long_tokens":150' in errors), (2, True), errors)
            document = json.loads(kept.read_text())
            kept.write_text(json.dumps(document | {"replies": document["replies"][1:]}))
            code, _, errors = oscar(server, *READ, "--long", kept, "--reference", reference.url)
            self.assertEqual((code, "some answers are missing" in errors), (1, True), errors)

    def test_says_what_is_wrong(self):
        def without_chat(answer):
            return {"error": "no chat template"} if "usage" in answer else answer

        server = self.server()
        for words, changes, status, expected in (
            ((*READ, "--long", server.url), {"questions": "3"}, 2, "give 0, or 8 and more"),
            ((*READ, "--long", server.url), {"prompt_tokens": "100"}, 2, "too short to hold a passage"),
            ((*READ, "--long", server.url, "--reference", server.url), {"max_tokens": "3000"}, 2, "the texts give 5 prompts"),
            ((*READ, "--long", "nowhere", "--reference", server.url), {}, 2, "where: --long"), ((), {}, 2, "name the set that the server should use"),
            ((*READ, "--long", server.url, "--save-long", "x"), {}, 2, "--long excludes --save-long"),
            ((*READ, "--save-long", "x"), {}, 2, "--save-long checks nothing"), (READ, {"questions": "24"}, 2, "no long answers without")):
            code, _, errors = oscar(server, *words, **changes)
            self.assertEqual((code, expected in errors), (status, True), errors)
        code, _, errors = oscar(self.server(change=without_chat), "--save-long", "/dev/null")
        self.assertEqual((code, 'has no "choices"' in errors), (1, True), errors)


if __name__ == "__main__":
    unittest.main()
