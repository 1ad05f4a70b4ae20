# SPDX-License-Identifier: MIT
"""oscar_kv.observe on models of transformers, against `oscar fit --model` and a dump: tap_test.py [TapTest.test_…]"""
import json
import os
import resource
import shutil
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

try:
    import numpy as np
    import oscar_kv
    import torch
    import transformers
    from safetensors import safe_open
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
        warnings.simplefilter("error")  # a forgotten save, unless a test expects it
        self.addCleanup(warnings.resetwarnings)

    def sample(self):
        """The bundled model in float32, and its folder: config.json says what a dump is rounded to."""
        folder = self.folder / "qwen3-2m"
        shutil.copytree(PROJECT / "tests/data/qwen3-2m", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), folder

    def observed(self, model, *batches, name="tap", **options):
        """The file of statistics of forward passes."""
        path = self.folder / f"{name}.safetensors"
        with oscar_kv.observe(model, **options) as tap, torch.no_grad():
            for batch in batches:
                model(**batch) if isinstance(batch, dict) else model(batch)
            tap.save(path)
        return path

    def native(self, name, **source):
        """What the program takes of the same data."""
        path = self.folder / f"{name}.safetensors"
        oscar_kv.fit(save_stats=path, device="cpu", recipe="oscar", **source)
        return path

    def assert_same(self, tap, native, tolerance=1e-6):
        """Every sum that `native` has, and whose they are."""
        with safe_open(tap, "pt") as mine, safe_open(native, "pt") as theirs:
            manifests = [json.loads(file.metadata()["manifest"]) for file in (mine, theirs)]
            for member in ("model", "data"):
                self.assertEqual(*[manifest[member] for manifest in manifests])
            self.assertEqual(*[[layer["layer_id"] for layer in manifest["layers"]] for manifest in manifests])
            names = [name for name in theirs.keys() if name.split(".")[1] in ("qqt", "sst")]
            self.assertEqual({name.split(".")[1] for name in names}, {"qqt", "sst"})
            for name in names:
                a, b = mine.get_tensor(name), theirs.get_tensor(name)
                self.assertLess(float((a - b).norm() / b.norm()), tolerance, name)

    def test_equals_the_native_runner_and_a_dump(self):
        model, folder = self.sample()
        ids = tokens((3, 300), 2048)
        np.save(self.folder / "tokens.npy", ids.int().numpy())
        source = {"model": folder, "tokens": self.folder / "tokens.npy"}
        tap = self.observed(model, ids[:1], ids[1:])
        self.assert_same(tap, self.native("live", **source))
        oscar_kv.run("dump", "--model", folder, "--tokens", source["tokens"], "--out", self.folder / "dump", "--quiet")
        self.assert_same(tap, self.native("dumped", dump=self.folder / "dump"))
        oscar_kv.fit(self.folder / "set", stats=[tap])
        self.assertEqual(oscar_kv.verify(self.folder / "set", dump=self.folder / "dump", compare="none", recent=64)["structure"]["ok"],
                         True)
        self.assertEqual(oscar_kv.read_set(self.folder / "set", "sglang-v1").layers.keys(), {0, 1, 2, 3})

    def assert_family(self, name):
        model, folder = parity.build(name), self.folder / name
        checkpoints.publish(name, model, folder)
        model.config._name_or_path = str(folder)
        ids = tokens((2, 200), parity.COMMON["vocab_size"])
        np.save(self.folder / "tokens.npy", ids.int().numpy())
        self.assert_same(self.observed(model, ids), self.native(f"live-{name}", model=folder,
                                                                tokens=self.folder / "tokens.npy"), 4e-6)

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
        statistics, folder = self.folder / "pictures.safetensors", self.folder / "of-pictures"
        keys = []
        attend = model.model.language_model.layers[1].self_attn
        hook = attend.k_norm.register_forward_hook(lambda module, given, rows: keys.append(rows))
        with oscar_kv.observe(model) as tap, torch.no_grad():
            model(input_ids=ids, **picture)
            tap.save(statistics)
        hook.remove()
        with safe_open(statistics, "pt") as file:
            self.assertEqual(json.loads(file.metadata()["manifest"])["data"][0]["image_tokens"], 16)
            trace = float(file.get_tensor("layer_1.ktk.sums").diagonal(dim1=-2, dim2=-1).sum())
        # Turning leaves lengths as they are: all rows are there, those of the picture, too.
        self.assertAlmostEqual(trace / float((keys[0] ** 2).sum()), 1, 4)
        oscar_kv.fit(folder, stats=[statistics], recipe="oscar", clip="off")
        self.assertEqual(json.loads((folder / "manifest.json").read_text())["calibration"]["image_tokens"], 16)

    def rows(self, model, *batches, name="rows", **options):
        """{layer: {"k": …}} of forward passes."""
        with self.assertLogs("oscar_kv"), oscar_kv.observe(model, dump=self.folder / name, **options) as tap, torch.no_grad():
            for batch in batches:
                model(**batch) if isinstance(batch, dict) else model(batch)
            tap.save()
        return torch.load(self.folder / name / "oscar_rows_rank0.pt")["layers"]

    def test_rows_are_those_of_a_dump(self):
        model, folder = self.sample()
        ids = tokens((3, 400), 2048)
        np.save(self.folder / "tokens.npy", ids.int().numpy())
        dump = self.folder / "dump"
        oscar_kv.run("dump", "--model", folder, "--tokens", self.folder / "tokens.npy", "--out", dump, "--quiet")
        alone = self.rows(model, ids[:1], ids[1:])
        cache = transformers.DynamicCache(config=model.config)
        padded = torch.zeros(2, 450, dtype=torch.long)
        padded[0, 50:], padded[1, :400] = ids[1], ids[2]
        mask = torch.ones_like(padded)
        mask[0, :50] = mask[1, 400:] = 0
        batch = {"input_ids": padded, "attention_mask": mask}
        # Chunks and steps behind the first, and what stands behind padding without position_ids, are not from a first token on.
        other = self.rows(model, {"input_ids": ids[:1], "past_key_values": cache}, {"input_ids": ids[1:2, :9], "past_key_values": cache},
                          {"input_ids": padded[:1], "attention_mask": mask[:1]}, batch | {"position_ids": (mask.cumsum(1) - 1).clamp(0)},
                          ids, name="other", tokens=1150)
        for layer in range(4):
            for name, kept in (("q", "q_samples"), ("k", "k"), ("v", "v")):
                files = sorted((dump / f"layer_{layer}/{name}").iterdir(), key=lambda file: int(file.stem))
                expected = torch.cat([torch.load(file) for file in files])
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
        for text, options in (("rows_rank0.pt is there already", {"dump": taken}), ("0 tokens of rows are none", {"dump": self.folder, "tokens": 0}),
                              ("the folder cannot be made: No such", {"dump": "/nowhere/x"})):
            with self.assertRaisesRegex(ValueError, text):
                oscar_kv.observe(model, **options)
        new = self.folder / "new"
        with self.assertRaisesRegex(ValueError, "rows of 9 tokens take 0.1 MB .10240 bytes each., and half of the free memory has room for 4;"), \
                mock.patch("oscar_kv.rows._free_memory", lambda: 90000), oscar_kv.observe(model, dump=new, tokens=9):
            model(ids)
        with oscar_kv.observe(model, dump=new) as tap, torch.no_grad():
            with self.assertRaisesRegex(RuntimeError, "no sequence was seen from its first token on"):
                tap.save()
            model(ids)
            with self.assertRaisesRegex(ValueError, "x.safetensors: rows go where observe.dump=. says"):
                tap.save("x.safetensors")
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10000, limits[1]))  # as a full disk
            try:
                with self.assertRaises((OSError, RuntimeError)):
                    tap.save()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            self.assertEqual(list(new.iterdir()), [])
            tap.save()
        self.assertEqual([path.name for path in new.iterdir()], ["oscar_rows_rank0.pt"])

    def test_chunks_and_padding_give_what_whole_sequences_give(self):
        model, _ = self.sample()
        ids = tokens((1, 150), 2048)
        whole = self.observed(model, ids, ids[:, :90], name="whole")
        with oscar_kv.observe(model) as tap, torch.no_grad():
            first = model(ids[:, :100], use_cache=True)
            model(ids[:, 100:149], past_key_values=first.past_key_values)
            model(ids[:, 149:], past_key_values=first.past_key_values)  # a decode step
            model(ids[:, :90])
            tap.save(self.folder / "chunks.safetensors")
        padded = torch.zeros(2, 150, dtype=torch.long)
        padded[0], padded[1, 60:] = ids[0], ids[0, :90]
        mask = torch.ones_like(padded)
        mask[1, :60] = 0
        positions = (mask.cumsum(1) - 1).clamp(0)
        batch = {"input_ids": padded, "attention_mask": mask, "position_ids": positions}
        for other in (self.folder / "chunks.safetensors", self.observed(model, batch, name="padded")):
            with safe_open(whole, "pt") as a, safe_open(other, "pt") as b:
                self.assertEqual(*[json.loads(file.metadata()["manifest"])["data"] for file in (a, b)])
                for name in a.keys():
                    x, y = a.get_tensor(name), b.get_tensor(name)
                    self.assertLess(float((x - y).norm() / x.norm()), 1e-5, name)

    def test_taps_leave_models_as_they_were(self):
        model, _ = self.sample()
        model.set_attn_implementation("sdpa")
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as registry
        functions = dict(registry)
        ids = tokens((2, 100), 2048)
        with torch.no_grad(), oscar_kv.observe(model) as tap:
            self.assertNotEqual(dict(registry), functions)
            model(ids[:1])
            with oscar_kv.observe(model) as other:
                model(ids[1:])  # both see it
                for name, each in (("both", tap), ("inner", other)):
                    each.save(self.folder / f"{name}.safetensors")
        self.assertEqual(dict(registry), functions)
        for name, alone in (("both", (ids[:1], ids[1:])), ("inner", (ids[1:],))):
            expected = self.observed(model, *alone, name="alone")
            with safe_open(expected, "pt") as a, safe_open(self.folder / f"{name}.safetensors", "pt") as b:
                self.assertEqual(*[json.loads(file.metadata()["manifest"])["data"] for file in (a, b)])
                self.assertLess(float((a.get_tensor("layer_3.sst.sums") / b.get_tensor("layer_3.sst.sums") - 1).abs().max()), 1e-5)

    def test_warns_of_a_forgotten_save(self):
        model, _ = self.sample()
        with self.assertWarnsRegex(UserWarning, "was not saved"), torch.no_grad(), oscar_kv.observe(model):
            model(tokens((1, 20), 2048))
        with self.assertRaisesRegex(RuntimeError, "nothing was observed"), oscar_kv.observe(model) as tap:
            tap.save(self.folder / "x.safetensors")
        with self.assertRaisesRegex(ValueError, "name a file"), oscar_kv.observe(model) as tap:
            tap.save(self.folder / "x.h5")

    def test_refuses_static_caches_latent_attention_and_unknown_layers(self):
        model, _ = self.sample()
        cache = transformers.StaticCache(config=model.config, max_cache_len=64)
        with self.assertRaisesRegex(ValueError, "static cache"), oscar_kv.observe(model), torch.no_grad():
            model(tokens((1, 20), 2048), past_key_values=cache)
        with self.assertRaisesRegex(ValueError, "latent attention"):
            oscar_kv.observe(parity.build("deepseek-v3"))
        with self.assertRaisesRegex(ValueError, "no attention modules with a layer_idx of .9."):
            oscar_kv.observe(model, layers=[9])


if __name__ == "__main__":
    unittest.main()
