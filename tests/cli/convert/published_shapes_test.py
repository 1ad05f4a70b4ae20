# SPDX-License-Identifier: MIT
"""Files of the shapes that upstream publishes rotations in, made sets, inspected and served: a few layers of each of its
thirteen models. published_shapes_test.py [PublishedShapesTest.test_…]"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

FIRST_AND_LAST, EVERY_FOURTH = (0, 1, -1), (3, 7, -1)


def rotation(*shape):
    generator = torch.Generator().manual_seed(shape[-1])
    return torch.linalg.qr(torch.randn(*shape, generator=generator))[0].contiguous()


def hadamard(dim):
    matrix = torch.ones(1, 1)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / dim ** 0.5


def side(layers, objective, version=1, **also):
    """A rotation file; layers: {id: shape of its matrices}."""
    made = {shape: hadamard(shape[-1]) if objective == "hadamard" else rotation(*shape) for shape in layers.values()}
    entries = {i: {"layer_id": i, "rotation": made[shape], **{name: make(shape) for name, make in also.items()}}
               for i, shape in layers.items()}
    return {"format_version": version, "objective": objective, "source_grouping": "head" if version > 1 else "layer",
            "layers": entries}


def ids(chosen, count, step=1):
    return [layer if layer >= 0 else count - (count % step or step) + step - 1 for layer in chosen]


class PublishedShapesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-shapes-")))
        (self.folder / "in").mkdir()

    def oscar(self, *arguments):
        done = subprocess.run([os.environ["OSCAR_BINARY"], *map(str, arguments)], capture_output=True, text=True,
                              cwd=self.folder, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def write(self, **files):
        for name, content in files.items():
            torch.save(content, self.folder / f"in/{name}.pt")

    def environment(self, *options):
        """Of the set that is made of the files, which must be sound."""
        self.oscar("convert", "-q", "in", "set", *options)
        facts = json.loads(self.oscar("inspect", "set", "--json"))
        self.assertTrue(facts["sound"], facts)
        served = json.loads(self.oscar("serve-env", "set", "--json", "-q"))
        return served["environment"], served["arguments"][0], json.loads((self.folder / "set/manifest.json").read_text())

    def serve_pair(self, layers, key="qqt_r_h_pbr", value="sst_r_h_pbr"):
        self.write(**{f"k_rotation_{key}": side(layers, key), f"v_rotation_{value}": side(layers, value)})
        environment, arguments, manifest = self.environment()
        self.assertEqual([layer["layer_id"] for layer in manifest["parts"]["rotations"]["layers"]], sorted(layers))
        self.assertEqual([layer["head_dim"] for layer in manifest["parts"]["rotations"]["layers"]], [layers[i][-1] for i in sorted(layers)])
        self.assertEqual(environment["SGLANG_OSCAR_ABSORB_V_ROTATION"], "1")
        return arguments

    def test_dense_models(self):
        for model, count, dim in (("Qwen3-4B-Thinking-2507", 36, 128), ("Qwen3-8B", 36, 128), ("Qwen3-32B", 64, 128),
                                  ("MiniMax-M2.7", 62, 128), ("GLM-4.7-FP8", 92, 128), ("heads of 64", 24, 64)):
            with self.subTest(model):
                self.setUp()
                arguments = self.serve_pair({i: (dim, dim) for i in ids(FIRST_AND_LAST, count)})
                self.assertIn(f"--kv-cache-quant-group-size {dim}", arguments)

    def test_hybrid_models_have_rotations_for_some_layers(self):
        for model, count in (("Qwen3.5-4B", 32), ("Qwen3.5-35B-A3B", 40)):
            with self.subTest(model):
                self.setUp()
                arguments = self.serve_pair({i: (256, 256) for i in ids(EVERY_FOURTH, count, 4)})
                self.assertIn("--kv-cache-quant-group-size 256", arguments)

    def test_minimax_m3_has_hadamard_files(self):
        self.serve_pair({i: (128, 128) for i in ids(FIRST_AND_LAST, 60)}, "hadamard", "hadamard")

    def test_gemma_4_has_heads_of_two_sizes(self):
        arguments = self.serve_pair({0: (256, 256), 1: (256, 256), 5: (512, 512), 47: (512, 512)})
        self.assertIn("--kv-cache-quant-group-size 256", arguments)

    def test_qwen3_30b_a3b_has_a_pair_per_head_beside_a_shared_one(self):
        layers = ids(FIRST_AND_LAST, 48)
        shared, per_head = {i: (128, 128) for i in layers}, {i: (4, 128, 128) for i in layers}
        self.write(k_rotation_qqt_r_h_pbr=side(shared, "qqt_r_h_pbr"), v_rotation_sst_r_h_pbr=side(shared, "sst_r_h_pbr"),
                   k_rotation_perhead=side(per_head, "qqt_r_h_pbr", 2), v_rotation_perhead=side(per_head, "sst_r_h_pbr", 2))
        done = subprocess.run([os.environ["OSCAR_BINARY"], "convert", "in", "set"], capture_output=True, text=True,
                              cwd=self.folder, timeout=120)
        self.assertEqual((done.returncode, "several pairs of rotations: perhead, qqt_r_h_pbr" in done.stderr), (2, True), done.stderr)
        environment, _, manifest = self.environment("--pair", "perhead")
        self.assertEqual(environment["SGLANG_OSCAR_ABSORB_V_ROTATION"], "0")
        self.assertEqual(manifest["origin"]["format"], "pt v2")

    def test_centred_keys_bring_their_means(self):
        layers = {i: (4, 128, 128) for i in (0, 1)}
        self.write(k_rotation_oscar2_center=side(layers, "oscar2_center", 3, k_mean=lambda shape: torch.ones(shape[:2])),
                   v_rotation_oscar2_center=side(layers, "oscar2_v_pre_wo", 3, eigenvalues=lambda shape: None))
        environment, _, _ = self.environment()
        self.assertEqual(environment["SGLANG_OSCAR_K_MEAN_IN_POOL"], "1")
        means = torch.load(environment["SGLANG_OSCAR_K_MEAN_PATH"], weights_only=True)
        self.assertEqual(means["layers"][1]["mu"].tolist(), torch.ones(4, 128).tolist())

    def test_mla_models_have_a_file_per_layer(self):
        for model, layers in (("GLM-5.2-FP8", ids(FIRST_AND_LAST, 78)), ("GLM-5.3", ids(FIRST_AND_LAST, 78)),
                              ("Kimi-K3", (3, 7, 92))):
            with self.subTest(model):
                self.setUp()
                self.write(**{f"layer_{i}": rotation(512, 512) for i in layers})
                environment, arguments, manifest = self.environment()
                self.assertEqual(arguments, "--kv-cache-dtype bfloat16")
                self.assertEqual(environment["SGLANG_OSCAR_MLA_KV_GROUP_SIZE"], "128")
                served = Path(environment["SGLANG_OSCAR_MLA_KV_ROTATION_PATH"])
                self.assertEqual(sorted(served.glob("*.pt")), sorted(served / f"layer_{i}.pt" for i in layers))
                self.assertEqual(torch.load(served / f"layer_{layers[0]}.pt", weights_only=True).shape, (512, 512))
                self.assertEqual([layer["layer_id"] for layer in manifest["parts"]["rotations"]["layers"]], sorted(layers))


if __name__ == "__main__":
    unittest.main()
