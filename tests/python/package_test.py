# SPDX-License-Identifier: MIT
"""oscar_kv without a model: rotation sets as arrays, and the commands: package_test.py [PackageTest.test_…]"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
    import oscar_kv
    import safetensors  # noqa: F401
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

SAMPLE = Path(os.environ["OSCAR_PROJECT"]) / "zoo/sample/qwen3-2m/latest"


class PackageTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="oscar-python-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def assert_sample(self, rotations):
        """The sample set, whose .pt files torch reads on its own."""
        self.assertEqual(list(rotations.layers), [0, 1, 2, 3])
        self.assertEqual(rotations.windows, (64, 256))
        for side, pattern in (("key", "k_rotation*.pt"), ("value", "v_rotation*.pt")):
            file, = SAMPLE.glob(pattern)
            for i, entry in torch.load(file, weights_only=True)["layers"].items():
                mine = getattr(rotations.layers[i], side)
                np.testing.assert_array_equal(mine.rotation[0], entry["rotation"].numpy())
                self.assertIs(mine.mean, None)
                self.assertGreater(mine.clip_ratio, 0.8)

    def test_reads_a_folder_and_files_made_of_it(self):
        self.assert_sample(oscar_kv.read_set(SAMPLE))
        for name in ("set.safetensors", "set.h5"):
            oscar_kv.run("convert", SAMPLE, self.folder / name)
            self.assert_sample(oscar_kv.read_set(self.folder / name))

    def test_tensors_on_request(self):
        rotations = oscar_kv.read_set(SAMPLE).to_torch(dtype=torch.bfloat16)
        key = rotations.layers[2].key
        self.assertEqual((key.rotation.dtype, tuple(key.rotation.shape)), (torch.bfloat16, (1, 128, 128)))
        identity = key.rotation[0].float() @ key.read_rotation[0].float().T
        self.assertLess(float((identity - torch.eye(128)).abs().max()), 0.02)

    def test_refuses_what_is_no_set_or_was_changed(self):
        with self.assertRaisesRegex(ValueError, "no manifest.json"):
            oscar_kv.read_set(self.folder)
        with self.assertRaisesRegex(ValueError, "not a folder"):
            oscar_kv.read_set(SAMPLE / "manifest.json")
        (self.folder / "manifest.json").write_bytes((SAMPLE / "manifest.json").read_bytes())
        (self.folder / "rotations.h5").write_bytes((SAMPLE / "rotations.h5").read_bytes()[:-1] + b"x")
        with self.assertRaisesRegex(ValueError, "not the file that manifest.json lists"):
            oscar_kv.read_set(self.folder)
        manifest = json.loads((SAMPLE / "manifest.json").read_text())
        (self.folder / "manifest.json").write_text(json.dumps(manifest | {"schema": "oscar.dump.v1"}))
        (self.folder / "rotations.h5").write_bytes((SAMPLE / "rotations.h5").read_bytes())
        with self.assertRaisesRegex(ValueError, "schema is 'oscar.dump.v1'"):
            oscar_kv.read_set(self.folder)

    def test_commands_and_their_errors(self):
        report = oscar_kv.verify(SAMPLE)
        self.assertEqual((report["schema"], report["verdict"]), ("oscar.verify_report.v1", "not_measured"))
        with self.assertRaisesRegex(oscar_kv.OscarError, "no folder for the rotation set") as caught:
            oscar_kv.fit(stats=[self.folder / "a.safetensors"], center=True, key_objective="qqt")
        self.assertEqual(caught.exception.exit_code, 2)

    def test_says_where_it_looked_for_the_program(self):
        code = "import oscar_kv; oscar_kv.verify('x')"
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60,
                              env=os.environ | {"OSCAR_BINARY": "/nowhere/oscar"})
        self.assertIn("OSCAR_BINARY=/nowhere/oscar: there is no such file", done.stderr)


if __name__ == "__main__":
    unittest.main()
