# SPDX-License-Identifier: MIT
"""oscar_kv.read_set and Int2Cache with sets of somebody who means harm, or of another model: sets_test.py
[SetsTest.test_…]. Hashes are made again after each change unless it is the hashes that are tested."""
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

try:
    import h5py
    import numpy as np
    import oscar_kv
    from safetensors.numpy import load_file, save_file
    import transformers
    from oscar_kv import sets
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

PROJECT = Path(os.environ["OSCAR_PROJECT"])
SAMPLE, CODED, MODEL = (PROJECT / name for name in ("zoo/sample/qwen3-2m/latest", "zoo/sample/qwen3-2m/coded", "tests/data/qwen3-2m"))


class SetsTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-foreign-"))) / "set"
        self.again()

    def again(self, source=SAMPLE):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(source, self.folder)

    def manifest(self):
        return json.loads((self.folder / "manifest.json").read_text())

    def write(self, manifest, hashes=True):
        for each in manifest["files"] if hashes else []:
            data = (self.folder / each["path"]).read_bytes()
            each |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        (self.folder / "manifest.json").write_text(json.dumps(manifest))

    def assert_refused(self, expected):
        with self.assertRaises(ValueError) as refused:
            oscar_kv.read_set(self.folder)
        self.assertIn(expected, str(refused.exception))
        self.assertNotIn("\n", str(refused.exception))
        self.again()

    def test_what_a_manifest_may_not_say(self):
        def put(*path_and_value):
            def change(manifest):
                *path, last, value = path_and_value
                for name in path:
                    manifest = manifest[name]
                manifest[last] = value
            return change

        twice = lambda manifest: manifest["layers"].append(manifest["layers"][0])  # noqa: E731
        for expected, change in (
                ("schema is 'oscar.dump.v1'", put("schema", "oscar.dump.v1")), ("no model", put("model", None)),
                ("codec 'turbo' is not known; known are minmax", put("codec", "name", "turbo")),
                ("codec '\\x1b[2J' is not known", put("codec", "name", "\x1b[2J")),
                ("levels are [5, 3], not [4, 4]", put("codec", "levels", [5, 3])),
                ("group_size is no count", put("codec", "group_size", -1)),
                ("groups of 48 channels do not divide 128", put("codec", "group_size", 48)),
                ("scale_dtype is not known", put("codec", "scale_dtype", "int4")),
                ("windows are no counts", put("windows", "sink", 1 << 40)), ("windows are no counts", put("windows", None)),
                ("no layers", put("layers", [])), ("a layer_id comes twice", twice),
                ("a layer_id is no count", put("layers", 0, "layer_id", "0")),
                ("layer 0, key: no clip ratios", put("layers", 0, "key", None)),
                ("layer 2, key: no clip ratios", lambda m: m["layers"][2]["key"].pop("clip_ratio")),
                ("layer 1, value: no clip ratios, or not between 0 and 1", put("layers", 1, "value", "clip_ratio", 1.5)),
                ("layer 1, value: no clip ratios", put("layers", 1, "value", "clip_ratio_per_head", 0.5)),
                ("matrices of 128 where the manifest says 64", put("layers", 0, "head_dim", 64)),
                ("clip ratios differ from the manifest's", put("layers", 0, "key", "clip_ratio_per_head", [0.5])),
                ("of which the manifest does not know", lambda m: m["layers"].pop())):
            with self.subTest(expected):
                manifest = self.manifest()
                change(manifest)
                self.write(manifest)
                self.assert_refused(expected)

    def test_json_that_can_be_read_in_two_ways(self):
        text = (self.folder / "manifest.json").read_text()
        for expected, changed in (
                ("has a key twice", text.replace('"sink": 64', '"sink": 4, "sink": 64')), ("Extra data", text + "{}"),
                ("Infinity is no number", text.replace('"sink": 64', '"sink": Infinity')), ("not a JSON object", "[]"),
                ("not valid JSON", "[" * 100000), ("more than 8388608 bytes", " " * (9 << 20) + text)):
            with self.subTest(expected):
                (self.folder / "manifest.json").write_text(changed)
                self.assert_refused(expected)

    def test_every_listed_file_is_checked(self):
        for path in ("serve.env", "k_clip_per_head.json", "rotations.h5"):
            content = bytearray((self.folder / path).read_bytes())
            content[-1] ^= 1
            for damaged in (content, content[:-1]):
                (self.folder / path).write_bytes(damaged)
                self.assert_refused(f"{self.folder / path}: not the file that manifest.json lists")
            (self.folder / path).unlink()
            self.assert_refused("not the file that manifest.json lists")
            (self.folder / path).unlink()
            os.mkfifo(self.folder / path)
            self.assert_refused("not the file that manifest.json lists")

    def test_a_file_is_named_once_and_in_the_folder(self):
        for path in ("../rotations.h5", "/etc/passwd", "a//b", "", ".", "manifest.json", "a\nb", "a\\b", "rotations.h5"):
            with self.subTest(path):
                manifest = self.manifest()
                manifest["files"].append({"path": path, "sha256": "0" * 64, "size": 0})
                self.write(manifest, hashes=False)
                self.assert_refused("an unsafe path or one that comes twice")
        self.write(self.manifest() | {"files": [7]}, hashes=False)
        self.assert_refused("an unsafe path")

    def test_hdf5_that_leads_out_of_the_file(self):
        name = "layers/0/key/rotation"
        secret = self.folder.parent / "secret"
        secret.write_bytes(np.zeros((128, 128), np.float32).tobytes())
        with h5py.File(self.folder.parent / "secret.h5", "w") as file:
            file["x"] = np.zeros((128, 128), np.float32)

        def external(file):
            file.create_dataset(name, (128, 128), np.float32, external=[(str(secret), 0, 128 * 128 * 4)])

        def virtual(file):
            layout = h5py.VirtualLayout((128, 128), np.float32)
            layout[:] = h5py.VirtualSource(str(self.folder.parent / "secret.h5"), "x", (128, 128))
            file.create_virtual_dataset(name, layout)

        for expected, change in (
                ("is a link to something else", lambda file: file.__setitem__(name, h5py.ExternalLink("../secret.h5", "x"))),
                ("is a link to something else", lambda file: file.__setitem__(name, h5py.SoftLink("/layers/1/key/rotation"))),
                ("is no dataset of its own", external), ("is no dataset of its own", virtual),
                ("claims more than the file has", lambda file: file.create_dataset(name, (1 << 20, 1 << 20), np.float32)),
                ("holds no numbers", lambda file: file.__setitem__(name, "text")),
                ("nested too deeply", lambda file: file["layers"].__setitem__("0", file["layers"]))):
            with self.subTest(expected):
                with h5py.File(self.folder / "rotations.h5", "a") as file:
                    if "deeply" not in expected:
                        del file[name]
                    else:
                        del file["layers/0"]
                    change(file)
                self.write(self.manifest())
                self.assert_refused(expected)

    def test_hdf5_on_which_the_library_dies(self):
        with mock.patch.object(sets, "_TRIAL", "import os; os.abort()"):
            self.assert_refused("not an HDF5 file that can be read: status -6")
        (self.folder / "rotations.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
        self.write(self.manifest())
        self.assert_refused("not an HDF5 file that can be read")

    def test_matrices_that_are_no_transform(self):
        arrays = {}
        with h5py.File(self.folder / "rotations.h5") as file:
            file.visititems(lambda name, x: arrays.update({name.replace("/", "."): x[()]} if isinstance(x, h5py.Dataset) else {}))
        name = "layers.0.key.rotation"
        bad = arrays[name].copy()
        bad[3, 4] = np.nan
        for expected, changed in (("numbers that are not finite", {name: bad}), ("matrices of (1, 128, 64)", {name: bad[:, :64]}),
                                  ("numbers that are not finite", {name: np.zeros((128, 128), np.int32)}),
                                  ("reading and writing matrices have",
                                   {"layers.0.key.q_rotation": np.zeros((2, 128, 128), np.float32)}),
                                  ("means of another shape", {"layers.0.key.mean": np.zeros((1, 64), np.float32)})):
            with self.subTest(expected):
                manifest = self.manifest()
                manifest["files"] = [{"path": "rotations.safetensors"}]
                save_file(arrays | changed, self.folder / "rotations.safetensors")
                self.write(manifest)
                self.assert_refused(expected)

    def test_without_h5py_it_says_what_to_do(self):
        with mock.patch.dict(sys.modules, {"h5py": None}), self.assertRaisesRegex(ImportError, "pip install h5py, or fit with"):
            oscar_kv.read_set(self.folder)

    def changed(self, tensors=(), manifest=lambda document: None):
        """The sample set with other tensors, whose hashes fit, and a changed manifest."""
        self.again(CODED)
        path = self.folder / "coded.safetensors"
        if tensors:
            save_file({name: x for name, x in (load_file(path) | dict(tensors)).items() if x is not None}, path)
        self.write(self.manifest())
        document = self.manifest()
        manifest(document)
        self.write(document, hashes=False)
        return self.folder

    def test_a_coded_set_is_read(self):
        rotations = oscar_kv.read_set(CODED)
        self.assertEqual((sorted(rotations.layers), rotations.windows), ([0, 1, 2, 3], (64, 256)))
        for layer in rotations.layers.values():
            for side in (layer.key, layer.value):
                np.testing.assert_allclose(side.rotation[0].astype(np.float64) @ side.read_rotation[0].T, np.eye(128), atol=1e-4)
        self.assertEqual(str(rotations.to_torch().layers[0].key.levels.dtype), "torch.int32")

    def test_what_a_coded_set_may_not_say(self):
        key = load_file(CODED / "coded.safetensors")
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
                *(("levels are no powers of two", {name + "levels": wrong}, lambda m: None) for wrong in (
                    levels + 1, levels[:, ::-1].copy(), np.where(levels == levels.max(), 512, levels), np.concatenate([8 * levels[:, :1], levels[:, 1:]], 1))),
                *(("steps or sigmas of stored channels", {name + what: factor * key[name + what]}, lambda m: None)
                  for what, factor in (("sigma", 0), ("step", -1), ("sigma", -1))),
                ("means of another shape", {name + "mean": key[name + "mean"][:, :64]}, lambda m: None),
                ("numbers that are not finite", {name + "read": key[name + "read"] * np.float32("inf")}, lambda m: None)):
            with self.subTest(expected), self.assertRaises(ValueError) as refused:
                oscar_kv.read_set(self.changed(tensors, manifest))
            self.assertIn(expected, str(refused.exception))
            self.assertNotIn("\n", str(refused.exception))

    def test_a_cache_is_for_the_model_of_the_set(self):
        config = transformers.AutoConfig.from_pretrained(MODEL)
        rotations = oscar_kv.read_set(self.folder)
        oscar_kv.Int2Cache(rotations, config)
        other = self.folder.parent / "model"
        config.save_pretrained(other)  # other bytes
        fewer = transformers.AutoConfig.from_pretrained(MODEL, num_hidden_layers=3)
        short = transformers.AutoConfig.from_pretrained(MODEL, max_position_embeddings=320)
        layers = {i: layer for i, layer in rotations.layers.items() if i != 2}
        for expected, changed, given in (
                ("another model: it was fitted on 'qwen3-2m', whose config.json differs", rotations,
                 transformers.AutoConfig.from_pretrained(other)),
                ("a model of 4 layers, and this one has 3", rotations, fewer),
                ("no layer 2; it has .0, 1, 3.", dataclasses.replace(rotations, layers=layers), config),
                ("keep 320 tokens as they are, and a sequence has no more than 320: nothing would be packed", rotations, short)):
            with self.assertRaisesRegex(ValueError, expected):
                oscar_kv.Int2Cache(changed, given)

    def test_a_model_without_a_config_file_is_known_by_its_layers(self):
        config = transformers.AutoConfig.from_pretrained(MODEL)
        config._name_or_path = str(self.folder)  # as of a model that transformers read from a GGUF file
        oscar_kv.Int2Cache(oscar_kv.read_set(self.folder), config)
        config.num_hidden_layers = 3
        with self.assertRaisesRegex(ValueError, "a model of 4 layers, and this one has 3"):
            oscar_kv.Int2Cache(oscar_kv.read_set(self.folder), config)

    def test_a_cache_without_a_config_refuses_layers_that_it_lacks(self):
        import torch

        cache = oscar_kv.Int2Cache(oscar_kv.read_set(self.folder))
        rows = torch.zeros(1, 1, 3, 128)
        with self.assertRaisesRegex(ValueError, "no layer 4; it has .0, 1, 2, 3."):
            cache.update(rows, rows, 4)


if __name__ == "__main__":
    unittest.main()
