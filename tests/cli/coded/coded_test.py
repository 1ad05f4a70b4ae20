# SPDX-License-Identifier: MIT
"""The coded cache from fit to verdict, on the sample model and its text: coded_test.py. Each figure is held to one of a
method of more bits in the same report, with room for the last bits of another processor."""
import json
import tempfile
import unittest
from pathlib import Path

from coded_proof_test import DATA, GOLDEN, MODEL, oscar

# Most of a fit is asking what errors cost, of eight texts at most: of 512 tokens each that takes a fifth of the time that texts
# of 2,048 take. In all they are three blocks of sums. They are taken once, and sets of all bits are fitted from that.
TEXTS = ("--tokens", GOLDEN / "tokens_calib.npy", "--max-tokens", "12288", "--seq-len", "512")


class CodedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.set, cls.taken = cls.folder / "set", cls.folder / "taken"  # the set is for what needs any
        oscar("fit", "--recipe", "coded", "--dump", DATA / "reference-fit/dump", "--out", cls.set)
        cls.take("--threads", "2", "--save-stats", cls.taken)

    @classmethod
    def take(cls, *options, status=0):
        return oscar("fit", "--recipe", "coded", "--model", MODEL, *TEXTS, *options, status=status)

    def fit(self, out, *options):
        return oscar("fit", "--recipe", "coded", "--stats", self.taken, "--out", out, *options)

    def methods(self, rotations, compare, *options):
        """Over 4,096 tokens that nothing was fitted on, of which windows leave 2,816."""
        report = self.folder / "report.json"
        oscar("verify", rotations, "--model", MODEL, "--tokens", GOLDEN / "tokens_eval.npy", "--sequences", "4",
              "--seq-len", "1024", "--compare", compare, f"--json={report}", *options)
        document = json.loads(report.read_text())
        return document, {method["name"]: method for method in document["methods"]}

    def test_half_the_bits_of_int4_are_about_as_close(self):
        rotations = self.folder / "set2125"
        self.fit(rotations, "--bits", "2.125")
        document, methods = self.methods(rotations, "hadamard_clip,int4")
        self.assertEqual(document["verdict"], "accepted")
        coded, int4 = methods["coded"], methods["int4"]
        self.assertEqual(coded["bits_per_element"]["fp32_params"], 2.125)
        self.assertEqual(int4["bits_per_element"]["fp16_params"], 4.25)
        kld = {name: method["model"]["kld_mean"] for name, method in methods.items()}
        self.assertLess(kld["coded"], 1.25 * kld["int4"], kld)
        self.assertLess(kld["coded"], 0.1 * kld["hadamard_clip"], kld)
        # The verdict is kept in the manifest.
        self.assertIn("accepted", oscar("inspect", rotations))

    def test_fewer_bits_are_about_as_close_as_int3(self):
        rotations = self.folder / "set15"
        self.fit(rotations, "--bits", "1.625")
        _, methods = self.methods(rotations, "int3", "--no-record")
        kld = {name: method["model"]["kld_mean"] for name, method in methods.items()}
        self.assertLess(kld["coded"], kld["int3"], kld)

    def test_scopes_meet_their_budgets(self):
        for scope in ("layer", "head"):
            rotations = self.folder / f"set-{scope}"
            self.fit(rotations, "--bits", "2.125", "--scope", scope)
            layers = json.loads((rotations / "manifest.json").read_text())["parts"]["coded"]["layers"]
            for layer in layers:
                self.assertEqual((layer["key"]["bits"] + layer["value"]["bits"]) / 2, 2.125, scope)
            if scope == "head":
                for layer in layers:
                    pairs = zip(layer["key"]["row_bytes"], layer["value"]["row_bytes"])
                    self.assertEqual({key + value for key, value in pairs}, {2 * 34})

    def test_a_dump_plans_by_errors_of_attention(self):
        dump, rotations = self.folder / "dump", self.folder / "set-of-dump"
        oscar("dump", "--model", MODEL, *TEXTS, "--out", dump)
        said = oscar("fit", "--recipe", "coded", "--bits", "2.125", "--dump", dump, "--out", rotations)
        self.assertIn("a dump does not tell what errors cost the model", said)
        _, methods = self.methods(rotations, "int3", "--no-record")
        kld = {name: method["model"]["kld_mean"] for name, method in methods.items()}
        self.assertLess(kld["coded"], kld["int3"], kld)

    def test_mistakes_are_named(self):
        out = self.folder / "never"
        for options, words in (
                (["--context", "-1"], "--context"), (["--context", "4096"], "the model reads 2048 tokens at most")):
            self.assertIn(words, self.take("--out", out, *options, status=2))
            self.assertFalse(out.exists())
        self.assertIn("a dump's keys are taken at the positions where they are",
                      oscar("fit", "--recipe", "coded", "--dump", DATA, "--context", "99", "--out", out, status=2))
        self.assertIn("what errors cost", oscar("fit", "--recipe", "coded", "--model", MODEL, *TEXTS[:-1], "340", "--out", out,
                                                status=1))

    def test_other_commands_refuse_it_by_name(self):
        for command, words in ((["serve-env", self.set], "the set has no part for sglang"),
                               (["convert", self.set, self.folder / "x.h5"], "the coded cache has no rotations")):
            self.assertIn(words, oscar(*command, status=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
