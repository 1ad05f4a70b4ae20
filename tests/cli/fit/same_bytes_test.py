# SPDX-License-Identifier: MIT
"""The gate of bytes: what `oscar` makes of fixed inputs, against hashes in tests/data/same_bytes.json.

From a dump among the fixtures: sets of each recipe, statistics and the report of a `verify`, whose bytes are the same on every
x86-64 processor. From the sample model: live fits, whose bytes follow the kernels that libtorch chooses for a processor; their
hashes are kept by kind of processor, and skipped aloud on one that has none. The page that vLLM's backend packs has its gate in
tests/python/page_bytes_test.py.

same_bytes_test.py --keep writes the hashes anew, for a change that is meant to change sets. OSCAR_RUN_UNDER: what the
program runs under, such as an emulator of another processor ("qemu-x86_64 -cpu Nehalem"). OSCAR_FITS: how many of the fits of the
dump; the first alone is quick enough for an emulator.
"""
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(os.environ.get("OSCAR_PROJECT", Path(__file__).resolve().parents[3]))
BINARY = os.environ.get("OSCAR_BINARY", PROJECT / "build/oscar")
DATA = PROJECT / "tests/data"
KEPT = DATA / "same_bytes.json"
DUMP = ["--dump", DATA / "reference-fit/dump"]
MODEL = ["--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--max-tokens", "2048"]
STRETCH = "--recipe stretch --key-objective fisher --center --codec minmax"
FITS = {"published clip ratios": "--recipe oscar --clip 0.96,0.92 --max-tokens 600",
        "oscar": "--recipe oscar",
        "oscar, plain": "--recipe oscar --composition plain",
        "hadamard": "--recipe hadamard",
        "stretch": STRETCH,
        "stretch, clip ratios by head": STRETCH + " --clip-granularity head",
        "coded": "--recipe coded",
        "coded, 1.5 bits by head": "--recipe coded --bits 1.5 --scope head",
        "auto": "--recipe auto"}
LIVE = {name: FITS[name] for name in ("oscar", "hadamard", "stretch", "coded")}


def oscar(*arguments):
    under = shlex.split(os.environ.get("OSCAR_RUN_UNDER", ""))
    done = subprocess.run([*under, BINARY, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)


def sha256(path, of_coded=False):
    """Of a file, or of the tensors alone that a coded set's file has: bytes behind a header of that length."""
    content = path.read_bytes()
    return hashlib.sha256(content[8 + int.from_bytes(content[:8], "little"):] if of_coded else content).hexdigest()


def hashes(data, options):
    """What a reader of the set depends on: its files of rotations or codes, and the layers in the manifest."""
    with tempfile.TemporaryDirectory(prefix="oscar-same-") as folder:
        made = Path(folder, "set")
        oscar("fit", "-q", "--device", "cpu", *data, "--out", made, *options.split())
        kept, folders = {}, {"coded": made, "rotations": made, "with_means": made / "with_means"}
        for name, part in json.loads((made / "manifest.json").read_text())["parts"].items():
            files = folders[name].glob("*.safetensors" if name == "coded" else "*.pt")
            kept[name] = {path.name: sha256(path, of_coded=name == "coded") for path in sorted(files)}
            kept[name]["layers of the manifest"] = hashlib.sha256(json.dumps(part["layers"]).encode()).hexdigest()
        return kept if options.startswith("--recipe auto") else kept.popitem()[1]


def statistics():
    with tempfile.TemporaryDirectory(prefix="oscar-same-") as folder:
        oscar("fit", "-q", "--device", "cpu", *DUMP, "--save-stats", f"{folder}/sums.safetensors")
        return sha256(Path(folder, "sums.safetensors"))


def figures():
    """The methods of a report: all figures of attention, without what names the set's own files."""
    with tempfile.TemporaryDirectory(prefix="oscar-same-") as folder:
        dump = Path(folder, "dump")
        dump.mkdir()
        (dump / "layer_0").symlink_to(DATA / "reference-fit/dump/layer_2")  # a model of one layer
        found = {}
        for name in ("oscar", "coded"):
            made, report = f"{folder}/{name}", Path(folder, name + ".json")
            oscar("fit", "-q", "--device", "cpu", "--dump", dump, "--out", made, *FITS[name].split())
            oscar("verify", "-q", "--device", "cpu", made, "--dump", dump, "--compare", "bf16,naive", "--max-output-error", "1", "--json", report)
            methods = {method["name"]: method for method in json.loads(report.read_text())["methods"]}
            found[name] = {method: hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()
                           for method, figures in sorted(methods.items())}
        return found


def processor():
    """What libtorch and its libraries choose kernels by."""
    info = Path("/proc/cpuinfo").read_text()
    vendor = re.search(r"vendor_id\s*: (\S+)", info)[1]
    return vendor + (" avx512" if " avx512f" in info else " avx2" if " avx2" in info else "")


def all_hashes(kept):
    live = kept.get("live fits", {}) | {processor(): {name: hashes(MODEL, options) for name, options in LIVE.items()}}
    return {"fits of a dump": {name: hashes(DUMP, options) for name, options in FITS.items()}, "statistics": statistics(),
            "figures of verify": figures(), "live fits": live}


class SameBytesTest(unittest.TestCase):
    maxDiff = None
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}

    def test_a_fit_has_the_bytes_that_other_processors_write(self):
        for name, options in list(FITS.items())[:int(os.environ.get("OSCAR_FITS", len(FITS)))]:
            with self.subTest(name):
                self.assertEqual(hashes(DUMP, options), self.kept["fits of a dump"][name])

    def test_statistics_have_their_bytes(self):
        self.assertEqual(statistics(), self.kept["statistics"])

    def test_verify_has_its_figures(self):
        self.assertEqual(figures(), self.kept["figures of verify"])

    def test_a_live_fit_has_the_bytes_of_this_kind_of_processor(self):
        kept = self.kept["live fits"].get(processor(), {})
        for name, options in LIVE.items():
            with self.subTest(name):
                if name not in kept:
                    self.skipTest(f"no hashes are kept for {processor()}: same_bytes_test.py --keep adds them")
                self.assertEqual(hashes(MODEL, options), kept[name])


if __name__ == "__main__":
    if sys.argv[1:] == ["--keep"]:
        KEPT.write_text(json.dumps(all_hashes(SameBytesTest.kept), indent=1) + "\n")
    else:
        unittest.main()
