# SPDX-License-Identifier: MIT
"""A fit of the coded cache that was stopped goes on where it ended, and gives the bytes of one that was not: coded_resume_test.py."""
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from coded_proof_test import BINARY, GOLDEN, MODEL, same_files

TEXTS = ("--tokens", GOLDEN / "tokens_calib.npy", "--sequences", "2", "--seq-len")


class CodedResumeTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def command(self, *options):
        return [BINARY, *map(str, options), "--device", "cpu"]

    def oscar(self, *options, status=0):
        done = subprocess.run(self.command(*options), cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def stopped(self, by, kept, *options):
        """Runs until files are kept, and ends it by a signal before the last layer is."""
        for _ in range(10):
            with subprocess.Popen(self.command(*options, "--threads", "1"), cwd=self.folder, stderr=subprocess.DEVNULL) as process:
                while process.poll() is None and not all((self.folder / file).exists() for file in kept):
                    time.sleep(0.002)
                process.send_signal(by)
            if process.returncode != 0:
                return process.returncode
            shutil.rmtree(self.folder / "going")
        self.fail("the fit was never stopped in time")

    def went_on(self):
        same_files(self, self.folder / "whole", self.folder / "going")
        self.assertEqual(list(self.folder.glob("*.partial")), [])

    def test_a_killed_live_fit_goes_on_behind_its_layers(self):
        fit = ("fit", "--recipe", "coded", "--out")
        data = ("--model", MODEL, *TEXTS, "512")
        self.oscar(*fit, "whole", *data)
        kept = [f"going.partial/{name}.safetensors" for name in ("layer_costs", "layer_0", "hidden_1")]
        self.assertEqual(self.stopped(signal.SIGKILL, kept, *fit, "going", *data, "--resume"), -signal.SIGKILL)
        self.assertFalse((self.folder / "going").exists())
        other_model = self.folder / "other/qwen3-2m"
        shutil.copytree(MODEL, other_model)
        weights = other_model / "model-00001-of-00001.safetensors"
        raw = bytearray(weights.read_bytes())
        raw[len(raw) // 64] ^= 1  # one of the places by which weights are known
        weights.chmod(0o644), weights.write_bytes(raw)
        for options, words in ((("--model", MODEL, *TEXTS, "500"), "calibration, recipe differ"),
                               ((*data, "--sink", "32"), "windows differ"), ((*data, "--context", "1024"), "recipe differ"),
                               ((*data, "--model-dtype", "bfloat16"), "model_dtype differ"),
                               (("--model", other_model, *TEXTS, "512"), "weights differ")):
            said = self.oscar(*fit, "going", *options, "--resume", status=1)
            self.assertIn("what is left of an earlier fit is of another: " + words, said)
        said = self.oscar(*fit, "going", *data, "--resume", "--progress=plain")
        self.assertIn("the model goes on at layer", said)
        self.assertNotIn("layers there and back", said)
        self.went_on()

    def test_an_interrupted_fit_to_a_dump_goes_on_with_other_bits_too(self):
        self.oscar("dump", "--model", MODEL, *TEXTS, "512", "--out", "dump")
        data = ("--recipe", "coded", "--dump", "dump")
        sums = ("--save-stats", "going", "--resume")
        self.oscar("fit", *data, "--bits", "3", "--out", "whole")
        self.assertEqual(self.stopped(signal.SIGINT, ["going.partial/layer_1.safetensors"], "fit", *data, *sums), 130)
        kept = self.folder / "going.partial/layer_0.safetensors"
        before = kept.stat().st_mtime_ns
        raw = bytearray((self.folder / "going.partial/layer_1.safetensors").read_bytes())
        raw[-5] ^= 1
        (self.folder / "going.partial/layer_1.safetensors").write_bytes(raw)
        chunk = next((self.folder / "dump/layer_2/v").iterdir())
        rows = bytearray(chunk.read_bytes())
        rows[len(rows) // 2:len(rows) // 2 + 4] = b"\xff" * 4  # NaN
        chunk.rename(chunk.with_suffix(".away"))
        chunk.write_bytes(rows)
        said = self.oscar("fit", *data, *sums, status=1)
        self.assertIn("going.partial/layer_1.safetensors, kept by an earlier run, is made again", said)
        chunk.with_suffix(".away").rename(chunk)
        self.assertEqual(kept.stat().st_mtime_ns, before)
        self.oscar("fit", *data, *sums)
        self.assertEqual(list(self.folder.glob("*.partial")), [])
        (self.folder / "going").rename(self.folder / "sums")
        self.oscar("fit", "--recipe", "coded", "--stats", "sums", "--bits", "3", "--out", "going")
        self.went_on()


if __name__ == "__main__":
    unittest.main(verbosity=2)
