# SPDX-License-Identifier: MIT
"""oscar_kv without a model: sets as arrays, and the commands: package_test.py [PackageTest.test_…]"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import oscar_kv
    import safetensors  # noqa: F401
    import torch
    from sample_sets import sample_set
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

class PackageTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-python-")))

    def test_torch_reads_the_files_that_are_written(self):
        """As SGLang does, and mapped: the elements of tensors are aligned."""
        oscar_kv.run("convert", sample_set(), self.folder / "pt", "--to", "pt")
        for pattern in ("k_rotation*.pt", "v_rotation*.pt"):
            written, = (self.folder / "pt").glob(pattern)
            before, = sample_set().glob(pattern)
            old = torch.load(before, weights_only=True)
            for mapped in (False, True):
                new = torch.load(written, weights_only=True, mmap=mapped)
                self.assertEqual({key: value for key, value in new.items() if key != "layers"},
                                 {key: value for key, value in old.items() if key != "layers"})
                self.assertEqual(list(new["layers"]), list(old["layers"]))
                for i, entry in new["layers"].items():
                    self.assertTrue(torch.equal(entry["rotation"], old["layers"][i]["rotation"]))
                    self.assertEqual(entry["rotation"].data_ptr() % 64, 0)

    def test_tensors_on_request(self):
        key = oscar_kv.read_set(sample_set()).to_torch().layers[2].key
        self.assertEqual((key.rotation.dtype, tuple(key.rotation.shape)), (torch.float32, (1, 128, 128)))
        self.assertLess(float((key.rotation[0] @ key.read_rotation[0].T - torch.eye(128)).abs().max()), 1e-4)

    def test_refuses_what_is_no_set(self):
        with self.assertRaisesRegex(ValueError, "no manifest.json"):
            oscar_kv.read_set(self.folder)
        with self.assertRaisesRegex(ValueError, "no manifest.json"):
            oscar_kv.read_set(sample_set() / "manifest.json")
        with self.assertRaisesRegex(ValueError, "'sglang' does not read the coded part; give vllm or transformers"):
            oscar_kv.read_set(sample_set(), "sglang")
        with self.assertRaisesRegex(ValueError, "there is no such file or folder"):
            oscar_kv.read_set(self.folder / "nowhere")

    def test_commands_and_their_errors(self):
        report = oscar_kv.verify(sample_set())
        self.assertEqual((report["schema"], report["verdict"]), ("oscar.verify_report.v1", "not_measured"))
        with self.assertRaisesRegex(oscar_kv.OscarError, "no folder for the set") as caught:
            oscar_kv.fit(stats=[self.folder / "a.safetensors"], recipe="stretch", center=True, key_objective="qqt")
        self.assertEqual(caught.exception.exit_code, 2)

    def test_says_where_it_looked_for_the_program(self):
        code = "import oscar_kv; oscar_kv.verify('x')"
        for value, expected in (("/nowhere/oscar", "OSCAR_BINARY=/nowhere/oscar: there is no such file"),
                                ("", "OSCAR_BINARY is set but empty; give it a value, or unset it")):
            done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60,
                                  env=os.environ | {"OSCAR_BINARY": value})
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
