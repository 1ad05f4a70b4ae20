# SPDX-License-Identifier: MIT
"""What a fit of the coded cache took from its data, kept in a file: coded_proof_test.py. Sets of other bits are fitted from
it, with the bytes that they have when they are fitted from the data."""
import functools
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy
import safetensors

BINARY, DATA = os.environ["OSCAR_BINARY"], Path(os.environ["OSCAR_PROJECT"]) / "tests/data"
GOLDEN, MODEL = DATA / "golden/qwen3-2m", DATA / "qwen3-2m"
WEIGHTS = MODEL / "model-00001-of-00001.safetensors"


def oscar(*arguments, status=0, stdin=None):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, input=stdin)
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def fit(*options, status=0):
    return oscar("fit", "--recipe", "coded", *options, status=status)


def same_files(test, one, other):
    for name in ("coded.safetensors", "manifest.json"):
        test.assertEqual((one / name).read_bytes(), (other / name).read_bytes(), name)


class CodedStatisticsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.sums, cls.direct = cls.folder / "sums.safetensors", cls.folder / "direct"
        cls.data = ["--model", MODEL, "--tokens", GOLDEN / "tokens_calib.npy", "--sequences", "2", "--seq-len", "512"]
        fit(*cls.data, "--save-stats", cls.sums, "--bits", "2.5", "--out", cls.direct)

    def test_other_bits_and_scopes_need_no_second_pass(self):
        for options in (["--bits", "1.5"], ["--bits", "3", "--scope", "layer"]):
            from_sums, from_data = self.folder / "from-sums", self.folder / "from-data"
            fit("--stats", self.sums, *options, "--out", from_sums, "--force")
            fit(*self.data, *options, "--out", from_data, "--force")
            same_files(self, from_sums, from_data)

    def test_queries_before_rope_are_not_in_it_since_the_model_tells_what_errors_cost(self):
        with safetensors.safe_open(self.sums, "numpy") as file:
            found = {name.split(".", 1)[1] for name in file.keys()}
        self.assertIn("fisher.base_key", found)
        self.assertNotIn("fisher.base_query", found)

    def test_rotations_are_fitted_from_it_where_their_sums_are_there(self):
        said = oscar("fit", "--recipe", "stretch", "--stats", self.sums, "--out", self.folder / "never", status=1)
        self.assertIn("no sums of ktk", said)
        both, sums = self.folder / "all-parts", self.folder / "all.safetensors"
        oscar("fit", *self.data, "--save-stats", sums, "--bits", "2.5", "--out", both)
        oscar("fit", "--stats", sums, "--recipe", "oscar", "--out", self.folder / "rotations")
        for name in ("k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt"):
            self.assertEqual((both / name).read_bytes(), (self.folder / "rotations" / name).read_bytes())
        self.assertEqual((both / "coded.safetensors").read_bytes(), (self.direct / "coded.safetensors").read_bytes())

    def test_statistics_that_do_not_fit_are_refused(self):
        out, weights = self.folder / "never", self.folder / "weights.safetensors"
        shutil.copy(WEIGHTS, weights)
        for options, words in (
                (["--stats", self.sums, *self.data], "statistics say all that a set depends on but its recipe and its bits"),
                (["--stats", self.sums, "--sink", "4"], "the statistics were taken with windows of 64 and 256 tokens"),
                (["--stats", self.sums, "--resume"], "with nothing to go on with"),
                ([*self.data, "--save-stats", self.sums], "there is such a file already"),
                ([*self.data, "--save-stats", weights, "--force"], "does not hold such statistics")):
            self.assertIn(words, fit(*options, "--out", out, status=2))
        damaged = self.folder / "damaged.safetensors"
        raw = bytearray(self.sums.read_bytes())
        raw[-5] ^= 1
        damaged.write_bytes(raw)
        self.assertIn("checksum", fit("--stats", damaged, "--out", out, status=1))
        self.assertIn("not a file of statistics", fit("--stats", WEIGHTS, "--out", out, status=1))
        self.assertFalse(out.exists())


class KeysBeforeRopeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.data = ["--model", MODEL, "--tokens", GOLDEN / "tokens_calib.npy", "--sequences", "4", "--seq-len", "512"]
        cls.set, cls.sums = cls.folder / "before", cls.folder / "sums.safetensors"
        cls.said = fit(*cls.data, "--keys", "before-rope", "--save-stats", cls.sums, "--out", cls.set)

    @classmethod
    @functools.cache
    def key_error(cls, folder):
        """What errors do to the softmax, on other text; without a record in the set, which too little text was fitted for a verdict of."""
        subprocess.run([BINARY, "verify", folder, "--model", MODEL, "--tokens", GOLDEN / "tokens_eval.npy", "--sequences", "2", "--seq-len",
                        "1024", "--compare", "none", "--no-record", "--json", cls.folder / "report.json"], capture_output=True)
        return json.loads((cls.folder / "report.json").read_text())["methods"][0]["attention"]["softmax_kl"]

    def test_errors_are_fewer_and_the_set_is_smaller(self):
        after = self.folder / "after"
        fit(*self.data, "--keys", "after-rope", "--out", after)
        manifest = json.loads((self.set / "manifest.json").read_text())
        self.assertEqual(manifest["readers"], {"transformers": "coded", "vllm": "coded"})
        self.assertIn("before RoPE", oscar("inspect", self.set))
        rotary, = manifest["parts"]["coded"]["rotary"]
        self.assertEqual((len(rotary["pairs"]), rotary["pairs"][1], rotary["frequency"][0]), (64, [1, 65], 1))
        self.assertLess((self.set / "coded.safetensors").stat().st_size, 0.6 * (after / "coded.safetensors").stat().st_size)
        self.assertLess(self.key_error(self.set), 0.6 * self.key_error(after))

    def test_statistics_have_what_it_takes_and_parts_of_them_add_up(self):
        again = self.folder / "again"
        fit("--stats", self.sums, "--out", again)
        same_files(self, again, self.set)
        self.assertIn("statistics say all", fit("--stats", self.sums, "--keys", "before-rope", "--out", again, "--force", status=2))
        tokens, parts = numpy.load(GOLDEN / "tokens_calib.npy")[:4, :512], []
        for i in (0, 2):
            numpy.save(self.folder / f"part-{i}.npy", tokens[i:i + 2])
            parts.append(self.folder / f"part-{i}.sums")
            fit("--model", MODEL, "--tokens", self.folder / f"part-{i}.npy", "--keys", "before-rope", "--save-stats", parts[-1])
        fit("--stats", *parts, "--out", self.folder / "joined")
        self.assertLess(self.key_error(self.folder / "joined"), 1.3 * self.key_error(self.set))
        after = self.folder / "after.sums"
        fit("--model", MODEL, "--tokens", self.folder / "part-0.npy", "--keys", "after-rope", "--save-stats", after)
        self.assertIn("take all parts with the same options", fit("--stats", after, parts[1], "--out", self.folder / "never", status=1))

    def test_a_dump_gives_it_where_it_tells_how_keys_turn(self):
        dump = self.folder / "dump"
        oscar("dump", *self.data, "--out", dump)
        fit("--dump", dump, "--keys", "before-rope", "--out", self.folder / "of-dump")
        self.assertLess(self.key_error(self.folder / "of-dump"), 2 * self.key_error(self.set))
        (dump / "manifest.json").write_text((dump / "manifest.json").read_text().replace('"rope_theta"', '"another"'))
        said = fit("--dump", dump, "--keys", "before-rope", "--out", self.folder / "of-foreign")
        self.assertIn("the keys of all layers are coded as they are, not before RoPE: the dump does not tell how keys turn", said)

    def test_another_turn_than_the_models_is_found(self):
        false = self.folder / "false"
        shutil.copytree(self.set, false)
        manifest = json.loads((false / "manifest.json").read_text())
        manifest["parts"]["coded"]["rotary"][0]["frequency"][20] *= 1.01
        (false / "manifest.json").write_text(json.dumps(manifest))
        said = oscar("verify", false, "--model", MODEL, "--tokens", GOLDEN / "tokens_eval.npy", "--sequences", "1", "--seq-len", "512",
                     "--compare", "none", "--no-record", status=3)
        self.assertIn("rotary failed (layer 0, key)", said)
        self.assertIn("the model turns keys otherwise", said)

    def test_other_words_and_recipes_are_refused(self):
        out = self.folder / "refused"
        self.assertIn("--keys", oscar("fit", *self.data, "--recipe", "oscar", "--keys", "before-rope", "--out", out, status=2))
        self.assertIn("use one of: after-rope, before-rope", fit(*self.data, "--keys", "in-rope", "--out", out, status=2))
        self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
