# SPDX-License-Identifier: MIT
"""Statistics of the coded cache that were taken from parts of the data, added up: coded_parts_test.py."""
import json
import shutil
import tempfile
import unittest
from pathlib import Path

import numpy

from coded_proof_test import GOLDEN, MODEL, fit, oscar, same_files


class CodedPartsTest(unittest.TestCase):
    def test_statistics_of_parts_add_up(self):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        parts = [folder / f"part-{i}.npy" for i in (0, 1)]
        for i, part in enumerate(parts):
            numpy.save(part, numpy.load(GOLDEN / "tokens_calib.npy")[i:i + 1, :512])
            fit("--model", MODEL, "--tokens", part, "--save-stats", part.with_suffix(".sums"))
        one, two = (part.with_suffix(".sums") for part in parts)
        both, out = folder / "both", folder / "of-both"
        said = json.loads(oscar("fit", "--recipe", "coded", "--stats", one, two, "--save-stats", both, "--json", "--quiet"))
        self.assertEqual((said["parts"], said["tokens"]), (2, 1024))
        fit("--stats", both, "--out", out)
        fit("--stats", two, one, "--out", folder / "at-once")  # in the order of their contents
        same_files(self, out, folder / "at-once")
        manifest = json.loads((out / "manifest.json").read_text())
        self.assertEqual((manifest["calibration"]["tokens"], manifest["recipe"]["damage_tokens"]), (1024, 1024))
        said = fit("--stats", both, two, "--out", folder / "never", status=1)
        self.assertIn("the same data twice", said)
        for file in (both, two):
            self.assertIn(str(file), said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
