# SPDX-License-Identifier: MIT
"""oscar_kv.observe on models of transformers, against `oscar dump`: tap_test.py [TapTest.test_…]"""
import contextlib
import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

try:
    import numpy as np
    import oscar_kv
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

PROJECT = Path(os.environ["OSCAR_PROJECT"])
sys.path.insert(0, str(PROJECT / "tests/unit/model/parity"))
import checkpoints  # noqa: E402
import parity  # noqa: E402

torch.set_num_threads(1)


def tokens(shape, vocabulary, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocabulary, shape, dtype=np.int32)).long()


class TapTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-tap-")))

    def sample(self):
        """The bundled model in float32, and its folder: config.json says what a dump is rounded to."""
        folder = self.folder / "qwen3-2m"
        shutil.copytree(PROJECT / "tests/data/qwen3-2m", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), folder

    def rows(self, model, *batches, name="rows", **options):
        """What is kept of forward passes: {"layers": {layer: {"k": …}}, …}."""
        with self.assertLogs("oscar_kv"), oscar_kv.observe(model, self.folder / name, **options), torch.no_grad():
            for batch in batches:
                model(**batch) if isinstance(batch, dict) else model(batch)
        return torch.load(self.folder / name / "oscar_rows_rank0.pt")

    def dump(self, name, model, ids):
        """The dump of the same tokens by the program: its folder."""
        np.save(self.folder / "tokens.npy", ids.int().numpy())
        oscar_kv.run("dump", "--model", model, "--tokens", self.folder / "tokens.npy", "--out", self.folder / name, "--dtype", "float32", "--quiet")
        return self.folder / name

    @staticmethod
    def dumped(dump, layer, name):
        return torch.cat([torch.load(file) for file in sorted((dump / f"layer_{layer}/{name}").iterdir(), key=lambda file: int(file.stem))])

    def assert_family(self, name):
        """Rows, and what the model is, are those of a dump; the dump's queries have all that scores are scaled by besides 1 / sqrt(d)."""
        model, folder = parity.build(name), self.folder / name
        checkpoints.publish(name, model, folder)
        model.config._name_or_path = str(folder)
        ids = tokens((2, 200), parity.COMMON["vocab_size"])
        kept, dump = self.rows(model, ids, name=f"rows-{name}"), self.dump(f"dump-{name}", folder, ids)
        mine, theirs = json.loads(kept["manifest"]), json.loads((dump / "manifest.json").read_text())
        for member in ("model", "calibration"):
            self.assertEqual(mine[member], theirs[member])
        self.assertEqual([f"layer_{layer}" for layer in kept["layers"]], sorted(path.name for path in dump.glob("layer_*")))
        for layer, own in kept["layers"].items():
            scale = own["q_scaling"] * kept["head_dim"] ** 0.5
            for x, part in ((own["q_samples"] * scale, "q"), (own["k"], "k"), (own["v"], "v")):
                y = self.dumped(dump, layer, part)
                self.assertLess(float((x - y).norm() / y.norm()), 1e-5, (layer, part))

    def test_families_are_told_and_taken_as_by_the_program(self):
        for name in ("llama",  # scaled RoPE
                     "llama-dynamic", "gemma2",  # sliding layers, and a query scale of its own
                     "gpt-oss",  # sinks, experts
                     "qwen3-next",  # recurrent layers
                     "mistral-sliding",  # all layers slide
                     "cohere", "cohere2", "ernie", "exaone4-sliding",  # no RoPE of the usual kind
                     "gemma4", "gemma4-unified", "hunyuan", "hunyuan-moe"):
            with self.subTest(name):
                self.assert_family(name)

    def test_rows_of_images_are_calibration_data_and_counted(self):
        from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

        torch.manual_seed(3)
        config = Qwen3VLConfig(
            text_config={"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                         "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
                         "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True}},
            vision_config={"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "out_hidden_size": 64,
                           "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
            image_token_id=290, video_token_id=291, vision_start_token_id=292, vision_end_token_id=293)
        model = Qwen3VLForConditionalGeneration(config).eval()
        ids = tokens((1, 400), 280)
        ids[0, 10], ids[0, 11:27], ids[0, 27] = 292, 290, 293
        picture = {"pixel_values": torch.randn(64, 96), "image_grid_thw": torch.tensor([[1, 8, 8]]), "mm_token_type_ids": (ids == 290).int()}
        keys = []
        attend = model.model.language_model.layers[1].self_attn
        hook = attend.k_norm.register_forward_hook(lambda module, given, rows: keys.append(rows))
        kept = self.rows(model, {"input_ids": ids, **picture})
        hook.remove()
        self.assertEqual(json.loads(kept["manifest"])["calibration"]["image_tokens"], 16)
        # Turning leaves lengths as they are: all rows are there, those of the picture, too.
        torch.testing.assert_close(kept["layers"][1]["k"].norm(dim=-1), keys[0][0].norm(dim=-1))
        oscar_kv.fit(self.folder / "set", dump=self.folder / "rows", sink=16, recent=64)
        self.assertEqual(json.loads((self.folder / "set/manifest.json").read_text())["calibration"]["image_tokens"], 16)

    def test_rows_are_those_of_a_dump(self):
        model, folder = self.sample()
        ids = tokens((3, 400), 2048)
        dump = self.dump("dump", folder, ids)
        alone = self.rows(model, ids[:1], ids[1:])["layers"]
        cache = transformers.DynamicCache(config=model.config)
        padded = torch.zeros(2, 450, dtype=torch.long)
        padded[0, 50:], padded[1, :400] = ids[1], ids[2]
        mask = torch.ones_like(padded)
        mask[0, :50] = mask[1, 400:] = 0
        batch = {"input_ids": padded, "attention_mask": mask}
        # Chunks and steps behind the first, and what stands behind padding without position_ids, are not from a first token on.
        other = self.rows(model, {"input_ids": ids[:1], "past_key_values": cache}, {"input_ids": ids[1:2, :9], "past_key_values": cache},
                          {"input_ids": padded[:1], "attention_mask": mask[:1]}, batch | {"position_ids": (mask.cumsum(1) - 1).clamp(0)},
                          ids, name="other", tokens=1150)["layers"]
        for layer in range(4):
            for name, kept in (("q", "q_samples"), ("k", "k"), ("v", "v")):
                expected = self.dumped(dump, layer, name)
                self.assertTrue(torch.equal(alone[layer][kept], expected))
                torch.testing.assert_close(other[layer][kept], expected[:1150], rtol=1e-4, atol=1e-4)
        for source in ("rows", "dump"):
            oscar_kv.fit(self.folder / f"of-{source}", dump=self.folder / source, sink=16, recent=64)
        self.assertEqual(*((self.folder / f"of-{source}/coded.safetensors").read_bytes() for source in ("rows", "dump")))
        self.assertIn("on 3 of 3 sequences that the set was fitted on", str(oscar_kv.verify(self.folder / "of-rows", dump=dump, compare="none")))
        cache = oscar_kv.PackedCache(self.folder / "of-rows", model.config)
        with torch.no_grad():
            self.assertTrue(model(ids[:1], past_key_values=cache).logits.isfinite().all())
        transformers.AutoConfig.from_pretrained(folder, rms_norm_eps=1e-5).save_pretrained(self.folder / "another")
        with self.assertRaisesRegex(ValueError, "the set is for another model"):
            oscar_kv.PackedCache(self.folder / "of-rows", transformers.AutoConfig.from_pretrained(self.folder / "another"))

    def test_rows_that_cannot_be_kept_or_written(self):
        model, _ = self.sample()
        ids, taken = tokens((1, 400), 2048), self.folder / "rows"
        self.rows(model, ids)
        for text, dump, limit in (("rows_rank0.pt is there already", taken, 9), ("0 tokens of rows are none", self.folder, 0),
                                  ("the folder cannot be made: No such", "/nowhere/x", 9)):
            with self.assertRaisesRegex(ValueError, text):
                oscar_kv.observe(model, dump, tokens=limit)
        new = self.folder / "new"
        with self.assertRaisesRegex(ValueError, "rows of 9 tokens take 0.1 MB .10240 bytes each., and half of the free memory has room for 4;"), \
                mock.patch("oscar_kv.rows._free_memory", lambda: 90000), oscar_kv.observe(model, new, tokens=9):
            model(ids)
        with self.assertRaisesRegex(RuntimeError, "no rows were kept: the model itself was not called"), oscar_kv.observe(model, new):
            model.model(ids)
        mask = torch.ones_like(ids)
        mask[0, 100:150] = 0
        with self.assertRaisesRegex(RuntimeError, "no sequence was seen from its first token on, .* or its mask has holes"), \
                oscar_kv.observe(model, new):
            model(ids, attention_mask=mask)
        other = self.folder / "other's rows"
        with self.assertRaises(FileExistsError), oscar_kv.observe(model, other), torch.no_grad():
            model(ids)
            (other / "oscar_rows_rank0.pt").write_text("of another replica")
        self.assertEqual([path.read_text() for path in other.iterdir()], ["of another replica"])
        (other / "oscar_rows_rank0.pt").unlink()
        with self.assertLogs("oscar_kv") as said, oscar_kv.observe(model, other), torch.no_grad():
            model(ids)
        self.assertIn(f"oscar fit --dump '{self.folder}/other'\"'\"'s rows' --out SET", said.output[0])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        with self.assertRaises((OSError, RuntimeError)), oscar_kv.observe(model, new), torch.no_grad():
            model(ids)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10000, limits[1]))  # as a full disk
        self.assertEqual(list(new.iterdir()), [])
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        for replaces in (False, True):  # on a file system without hard links
            with mock.patch("os.link", side_effect=PermissionError), mock.patch("os.fsync", wraps=os.fsync) as synced, \
                    mock.patch("os.replace", side_effect=os.replace if replaces else OSError), \
                    contextlib.nullcontext() if replaces else self.assertRaises(OSError):
                self.rows(model, ids, name="new")
            self.assertEqual((synced.call_count, len(list(new.iterdir()))), (1, replaces))

    def test_attention_classes_that_a_user_derives(self):
        model, _ = self.sample()
        model.set_attn_implementation("eager")
        plain = self.rows(model, tokens((1, 100), 2048), name="plain")["layers"]
        for layer in model.model.layers:
            layer.self_attn.__class__ = type("Own", (type(layer.self_attn),), {})  # of this module
        own = self.rows(model, tokens((1, 100), 2048))["layers"]
        self.assertTrue(torch.equal(own[3]["k"], plain[3]["k"]))

    def test_taps_leave_models_as_they_were(self):
        model, _ = self.sample()
        model.set_attn_implementation("sdpa")
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as registry
        functions = dict(registry)
        ids = tokens((2, 100), 2048)
        with torch.no_grad(), self.assertLogs("oscar_kv"), oscar_kv.observe(model, self.folder / "both"):
            self.assertNotEqual(dict(registry), functions)
            model(ids[:1])
            inner = self.rows(model, ids[1:], name="inner")["layers"]  # both see it
        self.assertEqual(dict(registry), functions)
        both = torch.load(self.folder / "both/oscar_rows_rank0.pt")["layers"]
        self.assertTrue(torch.equal(both[3]["k"][100:], inner[3]["k"]))
        self.assertTrue(torch.equal(both[3]["k"], self.rows(model, ids[:1], ids[1:], name="alone")["layers"][3]["k"]))
        first, second = (oscar_kv.observe(model, self.folder / name) for name in ("first", "second"))
        with torch.no_grad(), self.assertLogs("oscar_kv"):
            first.__enter__()
            model(ids[:1])
            second.__enter__()
            first.__exit__(None, None, None)
            model(ids[1:])
            second.__exit__(None, None, None)
        self.assertEqual(dict(registry), functions)
        self.assertTrue(torch.equal(torch.load(self.folder / "second/oscar_rows_rank0.pt")["layers"][3]["k"], inner[3]["k"]))

    def test_passes_of_several_threads_at_once(self):
        model, _ = self.sample()
        ids, both = tokens((2, 100), 2048), threading.Barrier(2)
        alone = [self.rows(model, ids[i:i + 1], ids[1 - i:2 - i], name=f"from-{i}") for i in (0, 1)]
        with self.assertLogs("oscar_kv"), oscar_kv.observe(model, self.folder / "rows", tokens=200), \
                ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(1) as other:
            hook = model.model.layers[2].register_forward_pre_hook(lambda *_: 1 / 0)
            self.assertIsInstance(other.submit(model, ids[:1]).exception(), ZeroDivisionError)  # what this pass took is free again
            hook.remove()
            hook = model.model.layers[1].register_forward_pre_hook(lambda *_: None if both.wait(60) else None)
            list(pool.map(model, ids.split(1)))
            hook.remove()
        with self.assertLogs("oscar_kv"), oscar_kv.observe(model, self.folder / "part"):
            model(ids[:1])
            model.model(ids[1:])  # of no pass
        self.assertTrue(torch.equal(*(torch.load(self.folder / name / "oscar_rows_rank0.pt")["layers"][3]["k"][:100] for name in ("part", "from-0"))))
        kept = torch.load(self.folder / "rows/oscar_rows_rank0.pt")
        expected = alone[kept["prompt_sha256"] == alone[1]["prompt_sha256"]]  # in the order in which they came
        self.assertEqual(kept["manifest"], expected["manifest"])
        for layer, rows in kept["layers"].items():
            for name in ("q_samples", "k", "v"):
                torch.testing.assert_close(rows[name], expected["layers"][layer][name], rtol=1e-4, atol=1e-4)

    def test_refuses_static_caches_latent_attention_and_unknown_layers(self):
        model, _ = self.sample()
        cache = transformers.StaticCache(config=model.config, max_cache_len=64)
        with self.assertRaisesRegex(ValueError, "static cache"), oscar_kv.observe(model, self.folder / "x"), torch.no_grad():
            model(tokens((1, 20), 2048), past_key_values=cache)
        for mask in (torch.ones(1, 1, 20, 20), {"full_attention": None}):
            with self.assertRaisesRegex(ValueError, "give attention_mask as .batch, tokens."), oscar_kv.observe(model, self.folder / "x"):
                model(tokens((1, 20), 2048), attention_mask=mask)
        with self.assertRaisesRegex(ValueError, "latent attention"):
            oscar_kv.observe(parity.build("deepseek-v3"), self.folder / "x")
        with self.assertRaisesRegex(ValueError, "no attention modules with a layer_idx of .9."):
            oscar_kv.observe(model, self.folder / "x", layers=[9])


if __name__ == "__main__":
    unittest.main()
