# SPDX-License-Identifier: MIT
"""The coded cache in Python: rows with the bytes of the definition, and sets that somebody may have changed: coded_test.py
[CodedTest.test_…]"""
import hashlib
import json
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
    import oscar_kv
    import torch
    from oscar_kv.coded_rows import CodedCodec, CodedRows
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

PROJECT = Path(os.environ["OSCAR_PROJECT"])
SAMPLE = PROJECT / "zoo/sample/qwen3-2m/coded"


class CodedTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-coded-"))) / "set"

    def test_rows_have_the_bytes_of_the_definition(self):
        tensors = load_file(PROJECT / "tests/data/codec/coded_rows.safetensors")
        names = {name.split(".")[0] for name in tensors}
        self.assertGreater(len(names), 4)
        for name in names:
            levels, step, sigma, rows, expected, decoded = (tensors[f"{name}.{each}"] for each in (
                "levels", "step", "sigma", "rows", "bytes", "decoded"))
            of_head = CodedRows(levels, step, sigma)
            packed = of_head.encode(torch.from_numpy(rows))
            np.testing.assert_array_equal(packed.numpy(), expected, name)
            np.testing.assert_array_equal(of_head.decode(packed).numpy(), decoded, name)
            self.assertEqual(of_head.row_bytes, expected.shape[1])

    def test_heads_of_unequal_rows(self):
        """Side by side in one array, and behind each other in a token of a server's cache."""
        levels = torch.tensor([[64] * 8 + [4] * 8, [2] * 8 + [1] * 8], dtype=torch.int32)
        codec = CodedCodec(levels, 8 / levels, torch.ones(2, 16))
        rows = torch.randn(1, 2, 7, 16, generator=torch.Generator().manual_seed(0))
        packed, params = codec.encode(rows)
        self.assertEqual((packed.shape, params.shape), ((1, 2, 7, 10), (1, 2, 7, 0, 2)))
        decoded = codec.decode(packed, params, 16)
        parts = codec.encode_parts(rows[0])
        self.assertEqual(([part.shape[1] for part in parts], codec.part_bytes(2, 16)), ([13], [13]))
        np.testing.assert_array_equal(codec.decode_parts(parts, 2, 16), decoded[0])
        wide = rows[0, 0, :, :8]
        self.assertLess(float((decoded[0, 0, :, :8] - wide).norm() / wide.norm()), 0.2)
        self.assertEqual(float(decoded[0, 1, :, 8:].abs().max()), 0)

    def test_formats_that_are_none(self):
        good = [np.repeat(np.array(blocks, dtype=np.int32), 8) for blocks in ([16, 4], [1, 1])]
        ones = np.ones(16, dtype=np.float32)
        for levels in good:
            CodedRows(levels, ones, ones)
        CodedRows(good[1], 0 * ones, 0 * ones)  # steps of channels that are not stored say nothing
        mixed = good[0].copy()
        mixed[3] = 8
        for levels in (mixed, good[0][::-1].copy(), np.repeat(np.array([512, 4]), 8), np.repeat(np.array([6, 4]), 8), good[0][:12]):
            with self.assertRaisesRegex(ValueError, "levels are no powers of two"):
                CodedRows(levels, ones[:len(levels)], ones[:len(levels)])
        for step, sigma in ((0 * ones, ones), (ones, -ones), (ones * np.float32("nan"), ones)):
            with self.assertRaisesRegex(ValueError, "steps or sigmas of stored channels are not positive"):
                CodedRows(good[0], step, sigma)

    def changed(self, tensors=(), manifest=lambda document: None):
        """The sample set with other tensors, whose hashes fit, and a changed manifest."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(SAMPLE, self.folder)
        path = self.folder / "coded.safetensors"
        if tensors:
            save_file({name: x for name, x in (load_file(path) | dict(tensors)).items() if x is not None}, path)
        document = json.loads((self.folder / "manifest.json").read_text())
        for each in document["files"]:
            data = (self.folder / each["path"]).read_bytes()
            each |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        manifest(document)
        (self.folder / "manifest.json").write_text(json.dumps(document))
        return self.folder

    def test_a_set_is_read(self):
        rotations = oscar_kv.read_set(SAMPLE)
        self.assertEqual((sorted(rotations.layers), rotations.windows), ([0, 1, 2, 3], (64, 256)))
        for layer, described in zip(rotations.layers.values(), rotations.manifest["layers"]):
            for name, side in (("key", layer.key), ("value", layer.value)):
                identity = side.rotation[0].astype(np.float64) @ side.read_rotation[0].T
                np.testing.assert_allclose(identity, np.eye(128), atol=1e-4)
                codec = CodedCodec(*(torch.from_numpy(x) for x in (side.levels, side.step, side.sigma)))
                self.assertEqual([head.row_bytes for head in codec.heads], described[name]["row_bytes"])
        self.assertEqual(rotations.to_torch().layers[0].key.levels.dtype, torch.int32)

    def test_what_a_set_may_not_say(self):
        key = load_file(SAMPLE / "coded.safetensors")
        name = "layers.1.key."
        levels = key[name + "levels"]
        for expected, tensors, manifest in (
                ("not the file that manifest.json lists", (), lambda m: m["files"][0].update(sha256="0" * 64)),
                ("windows are no counts", (), lambda m: m["windows"].update(sink=-1)), ("no layers", (), lambda m: m.update(layers=[])),
                ("a layer_id comes twice", (), lambda m: m["layers"].append(m["layers"][0])),
                ("the codec is not coded", (), lambda m: m["codec"].update(name="minmax")),
                ("bytes of rows are no counts", (), lambda m: m["layers"][0]["key"].update(row_bytes=None)),
                ("rows take [27] bytes, and the manifest says [24]", (), lambda m: m["layers"][1]["key"].update(row_bytes=[24])),
                ("no square matrices of heads", {name + "write": None}, lambda m: None),
                ("reading and writing matrices have different shapes", {name + "read": key[name + "read"][:, :64]}, lambda m: None),
                ("formats of another shape", {name + "step": key[name + "step"][:, :64]}, lambda m: None),
                ("levels are no whole numbers", {name + "levels": levels.astype(np.float32)}, lambda m: None),
                ("levels are no powers of two", {name + "levels": levels + 1}, lambda m: None),
                ("steps or sigmas of stored channels", {name + "sigma": 0 * key[name + "sigma"]}, lambda m: None),
                ("means of another shape", {name + "mean": key[name + "mean"][:, :64]}, lambda m: None),
                ("numbers that are not finite", {name + "read": key[name + "read"] * np.float32("inf")}, lambda m: None)):
            with self.subTest(expected), self.assertRaises(ValueError) as refused:
                oscar_kv.read_set(self.changed(tensors, manifest))
            self.assertIn(expected, str(refused.exception))
            self.assertNotIn("\n", str(refused.exception))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
