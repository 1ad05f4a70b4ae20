# SPDX-License-Identifier: MIT
"""oscar fit --resume on a dump: a set, or statistics, that a bad layer stopped go on with the layers that were kept, have the bytes
of one that nothing stopped, and refuse the layers of another fit."""
import fcntl
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

BINARY = Path(os.environ["OSCAR_BINARY"])
DATA = Path(os.environ["OSCAR_PROJECT"]) / "tests/data"


class ResumeTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-resume-")))
        self.oscar("dump", "--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "1",
                   "--seq-len", "512", "--out", "dump")

    def oscar(self, *options, status=0, says=""):
        done = subprocess.run([BINARY, *options], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "OSCAR_DEVICE": "cpu"})
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(says, done.stderr)

    def spoil(self, layer):
        """Whoever reads this layer fails: its queries are NaN. Returns what mends it."""
        path = self.folder / f"dump/layer_{layer}/q/1.pt"
        whole = path.read_bytes()
        path.write_bytes(whole[:len(whole) // 2] + b"\xff" * 4096 + whole[len(whole) // 2 + 4096:])
        return lambda: path.write_bytes(whole)

    def bytes_of(self, name):
        path = self.folder / name
        return path.read_bytes() if path.is_file() else {each.relative_to(path): each.read_bytes() for each in path.rglob("*") if each.is_file()}

    def test_a_set_and_statistics_go_on_after_a_layer_that_could_not_be_read(self):
        for what in ("--out", "--save-stats"):
            with self.subTest(what):
                fit = ["fit", "--dump", "dump", what]
                mend = self.spoil(3)
                self.oscar(*fit, "going", "--resume", status=1, says="layer_3")
                self.assertEqual({path.stem for path in (self.folder / "going.partial").glob("layer_*")}, {"layer_0", "layer_1", "layer_2"})
                mend()
                self.oscar(*fit, "going", "--resume", "--sink", "32", status=1, says="is of another: windows differ")
                mend = self.spoil(0)  # nobody may read it again
                self.oscar(*fit, "going", "--resume")
                mend()
                self.assertFalse((self.folder / "going.partial").exists())
                self.oscar(*fit, "at_once")
                self.assertEqual(self.bytes_of("going"), self.bytes_of("at_once"))
                for name in ("going", "at_once"):
                    shutil.rmtree(self.folder / name) if what == "--out" else (self.folder / name).unlink()

    def test_only_a_fit_that_uses_what_was_kept_takes_it_away(self):
        mend = self.spoil(3)
        fit = ["fit", "--dump", "dump", "--recipe", "oscar", "--clip", "off", "--force", "--out", "set"]
        self.oscar(*fit, "--resume", status=1)
        mend()
        kept, lock = self.bytes_of("set.partial"), self.folder / ".set.partial.lock"
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.oscar(*fit, "--resume", status=2, says="another process is writing to this output folder")
            self.oscar(*fit)
        self.assertEqual(self.bytes_of("set.partial"), kept)
        record = self.folder / "set.partial/fit.json"
        record.write_bytes(record.read_bytes()[:9])
        self.oscar(*fit, "--resume", status=1, says="remove the folder, or leave --resume out")
        shutil.rmtree(record.parent)
        record.parent.write_text("mine")
        self.oscar(*fit)
        self.oscar(*fit, "--resume", status=2, says="a file has its name")
        self.assertEqual(record.parent.read_text(), "mine")

    def test_a_layer_that_was_written_again_is_not_the_one_that_was_kept(self):
        fit = ["fit", "--dump", "dump", "--recipe", "oscar", "--resume", "--out", "set"]
        mend = self.spoil(3)
        self.oscar(*fit, status=1)
        mend()
        shutil.rmtree(self.folder / "dump/layer_0")
        shutil.copytree(self.folder / "dump/layer_2", self.folder / "dump/layer_0")
        self.oscar(*fit, status=1, says="the file changed after the dump's manifest was written")
        (self.folder / "dump/manifest.json").unlink()
        self.oscar(*fit, status=1, says="is of another")


if __name__ == "__main__":
    unittest.main()
