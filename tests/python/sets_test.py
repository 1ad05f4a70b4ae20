# SPDX-License-Identifier: MIT
"""What oscar_kv.read_set and PackedCache take of a set, and refuse: sets of somebody who means harm, of another model, or rejected:
sets_test.py [SetsTest.test_…]. Hashes are made again after each change unless it is the hashes that are tested."""
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
    import numpy as np
    import oscar_kv
    from oscar_kv import sets
    from safetensors.numpy import load_file, save_file
    import transformers
    from sample_sets import MODEL, sample_set
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

CODED = "coded.safetensors"


class SetsTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-foreign-"))) / "set"
        self.again()

    source = property(lambda self: sample_set())  # of what again() copies

    def again(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.source, self.folder)

    def manifest(self):
        return json.loads((self.folder / "manifest.json").read_text())

    def write(self, manifest, hashes=True):
        for each in manifest["files"] if hashes else []:
            data = (self.folder / each["path"]).read_bytes()
            each |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        (self.folder / "manifest.json").write_text(json.dumps(manifest))

    def assert_refused(self, expected, reader="vllm"):
        with self.assertRaises(ValueError) as refused:
            oscar_kv.read_set(self.folder, reader)
        self.assertIn(expected, str(refused.exception))
        self.assertNotIn("\n", str(refused.exception))
        self.again()

    def test_inverses(self):
        """Also of matrices whose rows change places, and which have none."""
        random = np.random.default_rng(0)
        for heads, dim in ((8, 128), (2, 5)):
            matrices = random.standard_normal((heads, dim, dim)) * np.exp(2 * random.standard_normal((heads, 1, dim)))
            matrices[0, 0, :3] = 0
            found, expected = sets._inverse(matrices.astype(np.float32)), np.linalg.inv(matrices.astype(np.float32).astype(float))
            self.assertLess(np.abs(found - expected).max() / np.abs(expected).max(), 1e-11)
        with np.errstate(all="ignore"):
            self.assertFalse(np.isfinite(sets._inverse(np.ones((1, 4, 4)))).all())

    def test_rotations_are_not_served(self):
        """Whatever a manifest says of them: vLLM and transformers read the coded part."""
        for reader in ("vllm", "transformers"):
            manifest = self.manifest()
            manifest["readers"][reader] = "with_means"
            self.write(manifest)
            self.assert_refused(f"{reader} is to read the part 'with_means', which it cannot", reader)
            del manifest["readers"][reader], manifest["parts"]["coded"]
            self.write(manifest)
            self.assert_refused(f"manifest.json: the set has no coded part, which is what {reader} reads: fit one by oscar fit --model … --for "
                                "vllm,transformers; rotations are for SGLang and llama.cpp", reader)

    def verified(self, verdict, reader="vllm"):
        """The set with this verdict for a reader in its manifest."""
        manifest = self.manifest()
        manifest["verification"] = {"verdict": "accepted", "readers": {
            each: {"part": part, "verdict": verdict if each == reader else "accepted"} for each, part in manifest["readers"].items()}}
        self.write(manifest, hashes=False)

    def test_a_rejected_part_is_refused_unless_told(self):
        from oscar_kv import vllm_start

        self.verified("rejected", "transformers")
        for take in (oscar_kv.read_set, oscar_kv.PackedCache):
            with self.assertRaisesRegex(ValueError, "oscar verify rejected the part coded, which transformers reads; .* allow_rejected=True"):
                take(self.folder)
            with self.assertLogs("oscar_kv", "WARNING") as said:
                take(self.folder, allow_rejected=True)
            self.assertEqual([line for line in said.output if "which transformers reads, was rejected by oscar verify" in line], said.output)
        with self.assertNoLogs("oscar_kv"):
            oscar_kv.read_set(self.folder, "vllm")  # who reads the same, and was not judged by the same measure
        self.verified("rejected")
        served = vllm_start.served_set
        with mock.patch.dict(os.environ, {"OSCAR_KV_SET": str(self.folder)}):
            with self.assertRaisesRegex(ValueError, "which vllm reads; .* for vLLM OSCAR_KV_ALLOW_REJECTED=1"):
                served()
            os.environ["OSCAR_KV_ALLOW_REJECTED"] = "yes"
            with self.assertRaisesRegex(ValueError, "OSCAR_KV_ALLOW_REJECTED=yes: give 1, or unset it"):
                served()
            os.environ["OSCAR_KV_ALLOW_REJECTED"] = "1"
            with self.assertLogs("oscar_kv", "WARNING"):
                self.assertEqual(list(served().layers), [0, 1, 2, 3])

    def test_a_part_that_was_not_measured_is_warned_of(self):
        def nobody(manifest):
            manifest["verification"] = None

        def another(manifest):
            manifest["verification"]["readers"]["vllm"]["part"] = "rotations"

        for change in (nobody, another, lambda manifest: manifest["verification"].pop("readers")):
            self.verified("accepted")
            manifest = self.manifest()
            change(manifest)
            self.write(manifest)
            with self.assertLogs("oscar_kv", "WARNING") as said:
                oscar_kv.read_set(self.folder, "vllm")
            self.assertEqual(len(said.output), 1)
            self.assertIn("the part coded, which vllm reads, was not measured by oscar verify", said.output[0])
        self.verified("not_measured")
        with self.assertLogs("oscar_kv", "WARNING"):
            oscar_kv.read_set(self.folder, "vllm")

    def test_sequences_are_warned_of_that_nobody_tried(self):
        import torch
        from oscar_kv.served_model import longest_known

        self.verified("accepted", "transformers")
        manifest = self.manifest()
        manifest["parts"]["coded"]["recipe"]["context"] = 40
        self.write(manifest)
        rows = torch.zeros(1, 1, 41, 128)
        cache = oscar_kv.PackedCache(self.folder)
        with self.assertNoLogs("oscar_kv"):
            cache.update(rows[:, :, :40], rows[:, :, :40], 0)
        with self.assertLogs("oscar_kv", "WARNING") as said:
            cache.update(rows[:, :, 40:], rows[:, :, 40:], 0)
        self.assertIn("a sequence has 41 tokens, and the part coded was calibrated and verified for no more than 40", said.output[0])
        with self.assertNoLogs("oscar_kv"):
            cache.update(rows, rows, 0)  # it was said
        manifest["verification"]["data"] = {"model": {"longest": 300}}
        self.write(manifest)
        self.assertEqual(longest_known(oscar_kv.read_set(self.folder)), 300)
        del manifest["parts"]["coded"]["recipe"]["context"], manifest["verification"]["data"]
        self.write(manifest)
        part = oscar_kv.read_set(self.folder)
        self.assertEqual(longest_known(part), part.manifest["calibration"]["tokens"] // part.manifest["calibration"]["sequences"])

    def test_what_a_manifest_may_not_say(self):
        def put(*path_and_value):
            def change(manifest):
                *path, last, value = path_and_value
                for name in path:
                    manifest = manifest[name]
                manifest[last] = value
            return change

        def of_part(*path_and_value):
            return put("parts", "coded", *path_and_value)

        for expected, change in (
                ("schema is 'oscar.dump.v1', not \"oscar.set.v1\"", put("schema", "oscar.dump.v1")), ("the model has no num_layers", put("model", None)),
                ("and the manifest says", put("model", "head_dim", 64)), ("and the manifest says", put("model", "num_layers", 2)),
                ("no readers", put("readers", [])), ("no parts", put("parts", {})), ("some that are not known", put("parts", "fast", {})),
                ("has no part for vllm, but for 'sglang', 'sgl\\x1bang'; fit it with --for vllm",
                 put("readers", {"sglang": "rotations", "sgl\x1bang": "rotations"})),
                ("is to read the part 'fast', which it cannot", put("readers", "vllm", "fast")),
                ("is to read the part ['coded']", put("readers", "vllm", ["coded"])),
                ("windows are no counts", put("windows", "sink", 1 << 40)), ("windows are no counts", put("windows", None)),
                ("a layer_id is no count", of_part("layers", 0, "layer_id", [0]))):
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

    def test_the_file_of_the_part_is_the_one_that_is_listed(self):
        path = self.folder / CODED
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        for damaged in (content, content[:-1]):
            path.write_bytes(damaged)
            self.assert_refused(f"{path}: not the file that manifest.json lists")
        path.unlink()
        self.assert_refused("not the file that manifest.json lists")
        path.unlink()
        os.mkfifo(path)
        self.assert_refused("not the file that manifest.json lists")
        manifest = self.manifest()
        manifest["files"] = [each for each in manifest["files"] if each["path"] != CODED]
        path.unlink()
        self.write(manifest)
        self.assert_refused(f"manifest.json: does not list {CODED}")

    def test_a_file_is_named_once_and_in_the_folder(self):
        for path in ("../rotations.h5", "/etc/passwd", "a//b", "", ".", "manifest.json", "a\nb", "a\\b", "rotations.h5", "run.sh", "x/serve.env", "x.pkl"):
            with self.subTest(path):
                manifest = self.manifest()
                manifest["files"].append({"path": path, "sha256": "0" * 64, "size": 0})
                self.write(manifest, hashes=False)
                self.assert_refused("an unsafe path or one that comes twice")
        manifest = self.manifest()
        self.write(manifest | {"files": [7]}, hashes=False)
        self.assert_refused("an unsafe path")
        self.write(manifest, hashes=False)
        for stranger, words in ((lambda path: path.write_text("sourced by somebody"), "manifest.json does not list this file"),
                                (lambda path: path.symlink_to("/etc/passwd"), "a link")):
            stranger(self.folder / "run\x1b[2J.sh")
            self.assert_refused(f"/run\\x1b[2J.sh': {words}")

    def changed(self, tensors=(), manifest=lambda document: None):
        """The coded part with other tensors, whose hashes fit, and a changed manifest of it."""
        self.again()
        path = self.folder / CODED
        if tensors:
            save_file({name: x for name, x in (load_file(path) | dict(tensors)).items() if x is not None}, path)
        document = self.manifest()
        manifest(document["parts"]["coded"])
        self.write(document)

    def test_a_coded_part_is_read(self):
        part = oscar_kv.read_set(sample_set())
        for layer in part.layers.values():
            for side in (layer.key, layer.value):
                np.testing.assert_allclose(side.rotation[0].astype(np.float64) @ side.read_rotation[0].T, np.eye(128), atol=1e-4)
        self.assertEqual(str(part.to_torch().layers[0].key.levels.dtype), "torch.int32")
        document = self.manifest()
        self.write(document | {"model": document["model"] | {"num_key_value_heads": 7}})
        self.assert_refused("and the manifest says", "vllm")

    def test_what_keys_before_rope_may_not_say(self):
        before = sample_set("coded", keys="before-rope", bits=1.25)
        self.enterContext(mock.patch.object(type(self), "source", before))
        self.again()
        side, name = oscar_kv.read_set(self.folder).layers[1].key, "layers.1.key."
        self.assertEqual((side.rotary.pairs[3], side.rotary.frequency[0]), ([3, 67], 1))
        fast = sum(frequency > 2**-9 for frequency in side.rotary.frequency)
        self.assertEqual(np.count_nonzero(side.rotation[0]), 256 - 2 * fast, "the channels of fast pairs are not mixed")
        np.testing.assert_allclose(side.rotation[0].astype(np.float64) @ side.read_rotation[0].T, np.eye(128), atol=1e-4)
        pair, same = load_file(self.folder / "coded.safetensors")[name + "pair"], lambda part: None  # noqa: E731
        number = r"keys turn in a way that is not listed"
        for expected, tensors, manifest in (
                (number, (), lambda part: part.pop("rotary")), (number, (), lambda part: part["layers"][1]["key"].update(rotary=1)),
                (number, (), lambda part: part["layers"][1]["key"].update(rotary=-1)), (number, (), lambda part: part["layers"][1]["key"].update(rotary="0")),
                ("malformed", (), lambda part: part["rotary"][0].pop("pairs")), ("malformed", (), lambda part: part["rotary"][0].update(more=1)),
                ("not all channels once", (), lambda part: part["rotary"][0]["pairs"][0].reverse() or part["rotary"][0]["pairs"].append([0, 1])),
                ("not all channels once", (), lambda part: part["rotary"][0].update(frequency=[1])),
                ("not all channels once", (), lambda part: part["rotary"][0]["frequency"].__setitem__(0, 10**400)),
                ("not all channels once", (), lambda part: part["rotary"][0]["pairs"].__setitem__(0, [0.0, 64])),
                ("other parts of keys before RoPE", (), lambda part: part["rotary"][0].update(fast_frequency=2**-10)),
                ("other parts of keys before RoPE", (), lambda part: part["rotary"][0].update(turn_block=128)),
                ("other parts of keys before RoPE", (), lambda part: part["rotary"][0].pop("turn_block")),
                ("not all channels once", (), lambda part: part["rotary"][0].update(near_context=8)),
                ("not all channels once", (), lambda part: part["rotary"][0].update(far_frequency=[1], near_context=8)),
                ("are missing, or of other pairs", {name + "pair": None}, same), ("are missing, or of other pairs", {name + "pair": 0 * pair}, same),
                ("are missing, or of other pairs", {name + "pair": pair - 64}, same), ("are missing, or of other pairs", {name + "pair": pair.astype(float)}, same)):
            with self.subTest(expected):
                self.changed(tensors, manifest)
                self.assert_refused(expected, "transformers")

    def test_what_a_coded_part_may_not_say(self):
        key = load_file(sample_set() / "coded.safetensors")
        name = "layers.1.value."
        levels, same = key[name + "levels"], lambda part: None  # noqa: E731
        said = self.manifest()["parts"]["coded"]["layers"][1]["value"]
        rows, bits = f"row_bytes are {said['row_bytes']}, and the manifest says", f"bits are {said['bits']}, and the manifest says"

        def says(**changes):
            return lambda part: part["layers"][1]["value"].update(**changes)

        for expected, tensors, manifest in (
                ("no layers", (), lambda part: part.update(layers=[])), ("the codec is not coded", (), lambda part: part["codec"].update(name="minmax")),
                ("a layer_id comes twice", (), lambda part: part["layers"].append(part["layers"][0])),
                (f"{rows} [2]", (), says(row_bytes=[2])),
                (f"{rows} None", (), says(row_bytes=None)),
                ("most_levels are [", (), says(most_levels=[256])), (f"{bits} 0.5", (), says(bits=0.5)),
                (f"{bits} '2'", (), says(bits="2")),
                ("row_bytes are", (), lambda part: part["layers"][1].update(value=7)),
                ("matrices of 128 where the manifest says 64", (), lambda part: part["layers"][1].update(value_dim=64)),
                ("tensors are missing", {name + "write": None}, same), ("no square matrices", {name + "write": key[name + "write"][:, :64]}, same),
                ("formats of another shape", {name + "step": key[name + "step"][:, :64]}, same),
                ("tensors are missing", {name + "levels": None}, same),
                ("of other types", {name + "levels": levels.astype(np.float32)}, same), ("of other types", {name + "step": key[name + "step"].astype(float)}, same),
                *(("a matrix has no inverse", {name + "write": np.float32(factor) * key[name + "write"]}, same) for factor in (0, 1e-40)),
                *(("rows take", (), lambda part, said=said: part["codec"].update(bits=said)) for said in (1.0, 2.3, "2.25", None)),
                *(("levels are no powers of two", {name + "levels": wrong}, same) for wrong in (
                    levels + 1, levels[:, ::-1].copy(), np.where(levels == levels.max(), 512, levels), np.concatenate([8 * levels[:, :1], levels[:, 1:]], 1))),
                *(("steps or sigmas of stored channels", {name + what: factor * key[name + what]}, same)
                  for what, factor in (("sigma", 0), ("step", -1), ("sigma", -1))),
                ("means of another shape", {"layers.1.key.mean": key["layers.1.key.mean"][:, :64]}, same),
                ("has 'layers.1.value.turn', of which the manifest does not know", {name + "turn": key["layers.1.key.mean"]}, same),
                ("numbers that are not finite", {name + "write": key[name + "write"] * np.float32("inf")}, same)):
            with self.subTest(expected):
                self.changed(tensors, manifest)
                self.assert_refused(expected, "vllm")

    def test_a_cache_is_for_the_model_of_the_set(self):
        config = transformers.AutoConfig.from_pretrained(MODEL)
        part = oscar_kv.read_set(self.folder)
        oscar_kv.PackedCache(part, config)
        saved, other = self.folder.parent / "saved", self.folder.parent / "other"
        config.save_pretrained(saved)  # other bytes
        with self.assertLogs("oscar_kv") as logs, mock.patch.dict(os.environ, OSCAR_BINARY="/nowhere"):
            for _ in range(2):
                oscar_kv.PackedCache(part, transformers.AutoConfig.from_pretrained(saved))
        self.assertRegex("\n".join(logs.output), "^.*whether the set is for this model is not known: OSCAR_BINARY=/nowhere: .*$")
        oscar_kv.PackedCache(part, transformers.AutoConfig.from_pretrained(saved))
        manifest = part.manifest | {"model": part.manifest["model"] | {"weights_sha256": "0" * 64}}
        with self.assertLogs("oscar_kv") as logs:
            oscar_kv.PackedCache(dataclasses.replace(part, manifest=manifest), config)
        self.assertIn("the set was fitted on other weights of this architecture ('qwen3-2m')", logs.output[0])
        transformers.AutoConfig.from_pretrained(MODEL, rms_norm_eps=1e-5).save_pretrained(other)
        fewer = transformers.AutoConfig.from_pretrained(MODEL, num_hidden_layers=3)
        short = transformers.AutoConfig.from_pretrained(MODEL, max_position_embeddings=320)
        layers = {i: layer for i, layer in part.layers.items() if i != 2}
        for expected, changed, given in (
                ("another model: it was fitted on 'qwen3-2m', whose architecture differs", part,
                 transformers.AutoConfig.from_pretrained(other)),
                ("a model of 4 layers, and this one has 3", part, fewer),
                ("no layer 2; it has .0, 1, 3.", dataclasses.replace(part, layers=layers), config),
                ("keep 320 tokens as they are, and a sequence has no more than 320: nothing would be packed", part, short)):
            with self.assertRaisesRegex(ValueError, expected):
                oscar_kv.PackedCache(changed, given)

    def test_a_model_without_a_config_file_is_known_by_its_layers(self):
        config = transformers.AutoConfig.from_pretrained(MODEL)
        config._name_or_path = str(self.folder)  # as of a model that transformers read from a GGUF file
        oscar_kv.PackedCache(self.folder, config)
        config.num_hidden_layers = 3
        with self.assertRaisesRegex(ValueError, "a model of 4 layers, and this one has 3"):
            oscar_kv.PackedCache(self.folder, config)

    def test_a_cache_without_a_config_refuses_layers_that_it_lacks(self):
        import torch

        cache = oscar_kv.PackedCache(self.folder)
        rows = torch.zeros(1, 1, 3, 128)
        with self.assertRaisesRegex(ValueError, "no layer 4; it has .0, 1, 2, 3."):
            cache.update(rows, rows, 4)


if __name__ == "__main__":
    unittest.main()
