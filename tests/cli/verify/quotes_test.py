# SPDX-License-Identifier: MIT
"""Figures of quotations and needles, with exact attention, are those of transformers on the same model: quotes_test.py."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY, DATA = os.environ["OSCAR_BINARY"], Path(os.environ["OSCAR_PROJECT"]) / "tests/data"
GOLDEN = DATA / "golden/qwen3-2m"
try:
    import numpy
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)

COUNT, PASSAGE = 4, 24


def quotations():
    """Held-out text, 16 tokens of its first half as a cue, then 24 that follow there and are to be repeated."""
    rows = []
    for row in numpy.load(GOLDEN / "tokens_eval.npy")[:COUNT, :900]:
        at = 100 + 50 * len(rows)
        rows.append(numpy.concatenate([row, row[at:at + 16 + PASSAGE]]))
    return numpy.stack(rows)


def answers_by_transformers(rows, lengths):
    """(rows, length) which tokens of the answers are the argmax, and their negative log-likelihoods."""
    model = transformers.AutoModelForCausalLM.from_pretrained(DATA / "qwen3-2m", dtype=torch.float32).eval()
    right, nll = [], []
    for row, length in zip(rows, lengths):
        with torch.no_grad():
            logits = model(torch.tensor(row[None].astype(numpy.int64))).logits[0, -length - 1:-1]
        answer = torch.tensor(row[-length:].astype(numpy.int64))
        right.append((logits.argmax(-1) == answer).numpy())
        nll.append(torch.nn.functional.cross_entropy(logits, answer, reduction="none").numpy())
    return right, nll


class QuotesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.oscar("fit", "--model", DATA / "qwen3-2m", "--tokens", GOLDEN / "tokens_calib.npy", "--max-tokens", 1024,
                  "--seq-len", 512, "--recipe", "oscar", "--out", "set", "--quiet")

    @classmethod
    def oscar(cls, *arguments, code=0):
        done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, cwd=cls.folder)
        assert done.returncode == code, done.stderr
        return done

    def save(self, name, rows, lengths):
        numpy.save(self.folder / f"{name}.npy", rows)
        numpy.save(self.folder / f"{name}_answers.npy", numpy.array(lengths))
        return f"--{name}", f"{name}.npy", f"--{name}-answers", f"{name}_answers.npy"

    def test_figures_are_those_of_transformers(self):
        rows, lengths = quotations(), [PASSAGE] * COUNT
        needles = numpy.load(GOLDEN / "tokens_passkey.npy")[:2]
        needle_lengths = numpy.load(GOLDEN / "passkey_answer_len.npy")[:2].tolist()
        verify = ["verify", "set", "--model", DATA / "qwen3-2m", "--no-record", "--quiet", *self.save("quote", rows, lengths)]
        document = json.loads(self.oscar(*verify, *self.save("needle", needles, needle_lengths), "--compare", "bf16,naive", "--json").stdout)
        exact, naive, own = (method["model"] for method in document["methods"])
        right, nll = answers_by_transformers(rows, lengths)
        quotes = exact["quotes"]
        self.assertEqual((quotes["quotes"], quotes["right_to_the_end"]), (COUNT, sum(row.all() for row in right)))
        self.assertAlmostEqual(quotes["tokens_right"], numpy.concatenate(right).mean(), delta=1e-9)
        self.assertGreater(quotes["tokens_right"], 0.3)  # the sample model can repeat text
        first_wrong = [int(numpy.argmin(row)) if not row.all() else len(row) for row in right]
        self.assertAlmostEqual(quotes["tokens_until_wrong"], numpy.mean(first_wrong), delta=1e-9)
        self.assertAlmostEqual(quotes["nll"], numpy.concatenate(nll).mean(), delta=1e-4)
        _, needle_nll = answers_by_transformers(needles, needle_lengths)
        self.assertAlmostEqual(exact["needle_nll"], numpy.concatenate([row[:-1] for row in needle_nll]).mean(), delta=1e-4)
        self.assertLess(naive["quotes"]["tokens_right"], own["quotes"]["tokens_right"])
        self.assertGreater(document["data"]["model"]["quotes_quantised_share"], 0.3)
        table = self.oscar(*verify, "--compare", "bf16", "--max-quotes", 2).stdout
        self.assertIn("quoted", table)
        self.assertRegex(table, r"bf16 .*, \d/2\n")

    def test_mistakes_are_named(self):
        rows = quotations()
        verify = ["verify", "set", "--model", DATA / "qwen3-2m", "--no-record"]
        self.assertIn("--quote requires --quote-answers", self.oscar(*verify, "--quote", "x.npy", code=2).stderr)
        told = self.oscar(*verify, *self.save("quote", rows, [PASSAGE] * (COUNT - 1)), code=1).stderr
        self.assertIn("expected integers of shape [4], one for each row of quote.npy, found [3]", told)
        told = self.oscar(*verify, *self.save("quote", rows[:1], [rows.shape[1]]), code=1).stderr
        self.assertIn("does not fit a row of 940", told)
        told = self.oscar(*verify, *self.save("quote", rows[:1] + 100000, [PASSAGE]), code=1).stderr
        self.assertIn("100", told)


if __name__ == "__main__":
    unittest.main()
