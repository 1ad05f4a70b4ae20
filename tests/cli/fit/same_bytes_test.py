# SPDX-License-Identifier: MIT
"""`oscar fit --dump` writes the same bytes on every x86-64 processor: rotations, eigenvalues and clip ratios of a dump among
the fixtures, by each kind of recipe, against hashes in tests/data/reference-fit/fits.json.

same_bytes_test.py --keep writes those hashes anew, for a change that is meant to change sets. OSCAR_RUN_UNDER: what the
program runs under, such as an emulator of another processor ("qemu-x86_64 -cpu Nehalem"). OSCAR_FITS: how many of the fits;
the first alone is quick enough for an emulator.
"""
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(os.environ.get("OSCAR_PROJECT", Path(__file__).resolve().parents[3]))
BINARY = os.environ.get("OSCAR_BINARY", PROJECT / "build/oscar")
REFERENCE = PROJECT / "tests/data/reference-fit"
KEPT = REFERENCE / "fits.json"
FITS = {"published clip ratios": "--recipe oscar --clip 0.96,0.92 --max-tokens 600",
        "oscar": "--recipe oscar",
        "lsq by head": "--recipe lsq --target any --granularity head --value-objective oto",
        "refined stretch": "--recipe stretch --target any --key-objective fisher --center --refine --levels 5,3",
        "clip ratios by head": "--recipe stretch --target any --codec minmax --clip-granularity head",
        "auto": "--recipe auto --target sglang-v1"}


def hashes(options):
    """What a reader of the set depends on: the files of rotations, and the clip ratios in the manifest."""
    with tempfile.TemporaryDirectory(prefix="oscar-same-") as folder:
        under = shlex.split(os.environ.get("OSCAR_RUN_UNDER", ""))
        done = subprocess.run([*under, BINARY, "fit", "-q", "--device", "cpu", "--dump", REFERENCE / "dump", "--out", f"{folder}/set",
                               *options.split()], capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(folder, "set").glob("*.pt"))}
        layers = json.loads(Path(folder, "set/manifest.json").read_text())["layers"]
        files["layers of the manifest"] = hashlib.sha256(json.dumps(layers).encode()).hexdigest()
        return files


class SameBytesTest(unittest.TestCase):
    maxDiff = None

    def test_a_fit_has_the_bytes_that_other_processors_write(self):
        kept = json.loads(KEPT.read_text())
        chosen = list(FITS.items())[:int(os.environ.get("OSCAR_FITS", len(FITS)))]
        for name, options in chosen:
            with self.subTest(name):
                self.assertEqual(hashes(options), kept[name])


if __name__ == "__main__":
    if sys.argv[1:] == ["--keep"]:
        KEPT.write_text(json.dumps({name: hashes(options) for name, options in FITS.items()}, indent=1) + "\n")
    else:
        unittest.main()
